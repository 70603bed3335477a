"""Look-ups by time while remote storage comes and goes (KIP-1007): never a wrong answer, in consumer and planner.

1. Offsets 2 to 5 are in remote storage only, and the leader cannot find them. A look-up by time whose answer is 2 gets 6, the first
   record of the leader's own disk, without an error.
2. Remote storage is ready again.
3. The probe reads offset 5: "remote storage is ready".

The probe says nothing about the moment of the answer.
"""

from __future__ import annotations

import random

import outages
import pytest
from kafka import TopicPartition
from outages import BEGIN_MS, LOCAL, RECORDS, STEP_MS, Outage, World, outages_of

from kafkasafe.consumer import SafeConsumer
from kafkasafe.spark.notices import Notices
from kafkasafe.spark.options import read_options
from kafkasafe.spark.planner import Planner

RUNS = 1000


class Consumer:
    """`offsets_for_times` of one consumer. Each look-up is of another millisecond, of which it remembers nothing."""

    def __init__(self, servers: str) -> None:
        self.consumer = SafeConsumer(bootstrap_servers=servers, enable_auto_commit=False)

    def __call__(self, timestamp: int) -> int:
        at = TopicPartition("t", 0)
        found = self.consumer.offsets_for_times({at: timestamp}, timeout_ms=60_000)[at]
        return -1 if found is None else found.offset

    def close(self) -> None:
        self.consumer.close()


class Plan:
    """Where a batch query of the Spark source begins, or, without a record that new, where its topic ends."""

    def __init__(self, servers: str) -> None:
        self.servers = servers

    def __call__(self, timestamp: int) -> int:
        given = {
            "kafka.bootstrap.servers": self.servers,
            "subscribe": "t",
            "startingTimestamp": str(timestamp),
            "startingOffsetsByTimestampStrategy": "latest",
        }
        planner = Planner(read_options(given, streaming=False), Notices(None))
        try:
            planned = planner.batch()
            return planned[0].begin if planned else -1
        finally:
            planner.close()

    def close(self) -> None:
        """Each look-up has a planner of its own."""


@pytest.fixture(params=[Consumer, Plan], ids=["consumer", "planner"])
def open_look_up(request, fake_kafka):
    """Makes a look-up in a world."""
    opened = []

    def make(world):
        servers = fake_kafka.bootstrap_servers[0]
        patched = world.instead_of(servers)
        patched.__enter__()
        opened.append((patched, request.param(servers)))
        return opened[-1][1]

    yield make
    for patched, look_up in opened:
        look_up.close()
        patched.__exit__(None, None, None)


def test_an_answer_from_before_remote_storage_was_ready_is_not_believed(open_look_up):
    world = World()
    look_up = open_look_up(world)
    for number in range(20):
        # Over when the first answer is on its way.
        world.begin(number, [])
        asked, world.asked = world.asked, 0
        world.outage = lambda: Outage(0, 1, 1) if world.asked == 1 else None
        assert look_up(BEGIN_MS + 2 * STEP_MS - number) == 2
        world.asked += asked
    assert world.believed == 20


def test_random_outages_give_no_wrong_answer(open_look_up):
    world = World()
    look_up = open_look_up(world)
    rng = random.Random(1)
    wrong = []
    for number in range(RUNS):
        # A record of the remote part, of the local part, or none.
        place = rng.choice([1, 2, 3, LOCAL - 1, LOCAL - 1, LOCAL, LOCAL + 1, RECORDS])
        timestamp = BEGIN_MS + place * STEP_MS - number % STEP_MS
        world.begin(number, outages_of(rng, rng.choice([1, 1, 2, 3, 8])))
        found = look_up(timestamp)
        if found != world.since(timestamp):
            wrong.append((number, timestamp - BEGIN_MS, found))
    assert not wrong, f"{len(wrong)} of {RUNS}: {wrong[:5]}"
    assert world.believed > RUNS / 4, "hardly any look-up met an outage"


def test_times_without_an_order_and_one_outage_give_no_wrong_answer(open_look_up):
    """The newest remote record says nothing then about those before it."""
    world = World([0, 5, 3, 4, 2, 1, 6, 2, 8, 9])
    look_up = open_look_up(world)
    rng = random.Random(2)
    wrong = []
    for number in range(RUNS):
        timestamp = BEGIN_MS + rng.choice([3, 4, 5, 6, 7]) * STEP_MS - number % STEP_MS
        world.begin(number, outages_of(rng, 1))
        found = look_up(timestamp)
        if found != world.since(timestamp):
            wrong.append((number, timestamp - BEGIN_MS, found))
    assert not wrong, f"{len(wrong)} of {RUNS}: {wrong[:5]}"
    assert world.believed > RUNS / 8, "hardly any look-up met an outage"


def test_a_newest_remote_batch_of_which_a_part_was_deleted_shows_nothing(open_look_up):
    """Its largest timestamp may be that of a deleted record: a look-up that waited for it would wait for ever."""
    world = World([0, 1, 9, 1, 1, 1, 2, 3, 9, 9], first_batch=LOCAL)
    world.cluster.delete_records("t", 0, 3)
    look_up = open_look_up(world)
    assert look_up(BEGIN_MS + 9 * STEP_MS) == 8


def test_outages_are_what_was_measured():
    """Of the world of these tests: a look-up in an outage has no error, and the fetch has one."""
    world = World()
    client = world.connect({})
    client.start()
    world.begin(0, [Outage(0, 60, 1)])
    answers = []
    client.list_offset("t", 0, BEGIN_MS + 2 * STEP_MS, answers.append)
    client.list_offset("t", 0, outages.EARLIEST_LOCAL, answers.append)
    client.fetch_records("t", 0, LOCAL - 1, 1, answers.append)
    assert world.time.run_while(lambda: len(answers) < 3)
    assert sorted((type(answer).__name__, answer.error_code) for answer in answers) == [
        ("OffsetListed", 0),
        ("OffsetListed", 0),
        ("RecordsFetched", 1),
    ]
    client.close(1)
