"""An executor whose workers open a producer each and are killed one by one: `executor_program.py servers directory method`.

Prints what was durable.
"""

import multiprocessing
import os
import signal
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool

from kafkasafe import SafeProducer

SERVERS, DIRECTORY, METHOD = sys.argv[1:]
opened = []


def begin():
    opened.append(SafeProducer(bootstrap_servers=SERVERS.split(","), spool_dir=DIRECTORY))


def work(number):
    opened[0].send("orders", b"%d" % number).durable(60)
    return number, os.getpid()


def main():
    durable = []
    numbers = iter(range(1000))
    for _ in range(2):
        with ProcessPoolExecutor(
            2, mp_context=multiprocessing.get_context(METHOD), initializer=begin
        ) as workers:
            results = [workers.submit(work, next(numbers)) for _ in range(100)]
            try:
                for count, result in enumerate(as_completed(results)):
                    number, process = result.result()
                    durable.append(number)
                    if count == 20:
                        os.kill(process, signal.SIGKILL)
            except BrokenProcessPool:
                done = [each.result() for each in results if each.done() and each.exception() is None]
                durable += [number for number, _ in done]
    print(*sorted(set(durable)))


if __name__ == "__main__":
    main()
