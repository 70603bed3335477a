"""A transactional producer that is killed again and again, while brokers hang and die."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading

import harness
import pytest

from kafkasafe import SafeProducer
from kafkasafe.testing import KafkaCluster

pytestmark = [pytest.mark.kafka, pytest.mark.crash]

KILLS = 8
PARTITIONS = 3

# To repeat a failure: KAFKASAFE_TEST_SEED=<the seed it names>.
SEED = int(os.environ.get("KAFKASAFE_TEST_SEED", "0")) or random.SystemRandom().getrandbits(31)

CHILD = """
import sys
from kafkasafe import SafeProducer
servers, spool, topic, number = sys.argv[1:]
number = int(number)
producer = SafeProducer(
    bootstrap_servers=servers.split(","), spool_dir=spool, transactional_id="app", request_timeout_ms=5000
)
producer.init_transactions()
print("ready 0", flush=True)
while True:
    number += 1
    producer.begin_transaction()
    for partition in range(3):
        producer.send(topic, b"%d" % number, partition=partition)
    if number % 7 == 3:
        producer.abort_transaction()
        continue
    print(f"decides {number}", flush=True)
    producer.commit_transaction()
    print(f"done {number}", flush=True)
"""


def life(servers, spool, topic, number, fault, rnd, killed_at):
    """One process until it is killed: the transactions that it began to commit, and those that it saw committed.

    It is killed soon after so many transactions, however long they take, and a broker fails around the same time.
    """
    said = {"ready": [], "decides": [], "done": []}
    failed_at = rnd.randrange(killed_at + 1)
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, ",".join(servers), str(spool), topic, str(number)],
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        timers = [threading.Timer(120, child.kill)]
        timers[0].start()
        try:
            for line in child.stdout:
                word, told = line.split()
                said[word].append(int(told))
                for moment, act in ((failed_at, fault), (killed_at, child.kill)):
                    if word != "decides" and len(said["done"]) == moment:
                        timers.append(threading.Timer(rnd.random() / 4, act))
                        timers[-1].start()
        finally:
            child.kill()
            for timer in timers:
                timer.cancel()
                if timer.is_alive():
                    timer.join()
    return said["decides"], said["done"]


@pytest.mark.parametrize("version", ["4.3.0", "2.8.2"])
def test_every_transaction_is_there_once_and_whole(tmp_path, version):
    rnd = random.Random(f"{SEED} {version}")
    decided, done = [], []
    with KafkaCluster(brokers=3, version=version) as cluster:
        cluster.create_topic("t", PARTITIONS, 3)

        def fault():
            node = rnd.choice([1, 2, 3])
            if rnd.random() < 0.4:
                rnd.choice([cluster.kill, cluster.pause])(node)

        moments = [*range(KILLS // 2)] * 2
        rnd.shuffle(moments)
        for killed_at in moments:
            last = max(decided, default=0) + 1
            tried, seen = life(
                cluster.bootstrap_servers, tmp_path / "spool", "t", last, fault, rnd, killed_at
            )
            decided += tried
            done += seen
            cluster.recover()
        with SafeProducer(
            bootstrap_servers=cluster.bootstrap_servers,
            spool_dir=tmp_path / "spool",
            transactional_id="app",
            max_block_ms=120_000,
        ) as producer:
            producer.init_transactions()
        harness.until_decided(cluster.bootstrap_servers, "t")
        values = harness.read_values(cluster.bootstrap_servers, "t", isolation_level="read_committed")
    found = {partition: list(map(int, some)) for partition, some in values.items()}
    assert found[0] == found[1] == found[2], SEED
    assert found[0] == sorted(set(found[0])), SEED
    assert set(done) <= set(found[0]) <= set(decided), SEED
    assert len(done) >= KILLS, "hardly anything was tried"
