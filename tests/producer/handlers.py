"""A process whose signal handler calls the producer in the middle of send(): `handlers.py servers topic spool call tries`.

Prints what was accepted, as JSON, and how long the longest call of the handler took.
"""

from __future__ import annotations

import faulthandler
import json
import random
import signal
import sys
import time

from kafka.errors import IllegalStateError

from kafkasafe import SafeProducer

servers, topic, spool, call, tries = sys.argv[1:]
faulthandler.dump_traceback_later(100, exit=True)
chance = random.Random(11)
accepted: list[int] = []
number = 0
longest_s = 0.0
called = False


def opened() -> SafeProducer:
    made = SafeProducer(bootstrap_servers=servers, spool_dir=spool, linger_ms=5)
    made.partitions_for(topic)
    return made


def send():
    global number
    number += 1
    mine = number
    future = producer.send(topic, b"%d" % mine)
    accepted.append(mine)
    return future


def handler(*_: object) -> None:
    global called, longest_s
    began = time.monotonic()
    match call:
        case "close":
            producer.close(timeout=60)
        case "flush":
            producer.flush(timeout=60)
        case "durable":
            producer.durable(timeout=60)
        case "get":
            send().get(timeout=60)
        case "send":
            send()
    longest_s = max(longest_s, time.monotonic() - began)
    called = True


signal.signal(signal.SIGALRM, handler)
producer = opened()
for _ in range(int(tries)):
    called = False
    signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.0002, 0.01))
    try:
        while not called:
            send()
    except IllegalStateError:
        assert call == "close"
        producer = opened()
producer.close(timeout=60)
print(json.dumps({"accepted": accepted, "longest_s": longest_s}))
