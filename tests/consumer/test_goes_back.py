"""A partition that comes back to a consumer at a lower offset: the consumer says so once."""

from __future__ import annotations

import contextlib
import signal
import threading

import pytest
from consuming import produce
from kafka import TopicPartition
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from waiting import until

from kafkasafe import SafeConsumer
from kafkasafe.events import PositionReset, PositionRewound
from kafkasafe.testing.proxy import FaultProxy

RECORDS = 40
PLACES = [TopicPartition("in", 0), TopicPartition("in", 1)]


@pytest.fixture
def servers(fake_kafka):
    fake_kafka.create_topic("in", partitions=2)
    for place in PLACES:
        produce(fake_kafka, "in", [b""] * (RECORDS // 2), place.partition)
    return fake_kafka.bootstrap_servers


class Reader:
    """A member of the group that reads, and what its consumer has said."""

    def __init__(self, servers, **more):
        self.events = []
        self.read = {place: [] for place in PLACES}
        self.consumer = SafeConsumer(
            bootstrap_servers=servers,
            group_id="g",
            max_poll_records=3,
            heartbeat_interval_ms=50,
            on_event=self.events.append,
            **{"enable_auto_commit": False, "auto_offset_reset": "earliest", **more},
        )

    def poll(self):
        self._note(self.consumer.poll(100))

    def _note(self, found):
        for place, records in found.items():
            self.read[place] += [record.offset for record in records]

    def read_to(self, end):
        """Read both partitions up to this offset."""
        for place in PLACES:
            self.consumer.resume(place)
            self.consumer.pause(*set(PLACES) - {place})
            until(lambda place=place: self._read_one(place, end), 30)
        self.consumer.resume(*PLACES)

    def _read_one(self, place, end):
        missing = end - self.next_of(place)
        if missing:
            self._note(self.consumer.poll(100, max_records=missing))
        return not missing

    def rewound(self):
        return [event for event in self.events if isinstance(event, PositionRewound)]

    def reset(self):
        return [event for event in self.events if isinstance(event, PositionReset)]

    def next_of(self, place):
        return self.read[place][-1] + 1 if self.read[place] else 0

    def begin(self):
        """Join, commit after 3 records of each partition, and read 8."""
        self.consumer.subscribe(["in"])
        until(lambda: self.poll_none() or len(self.consumer.assignment()) == 2, 30)
        self.read_to(3)
        self.consumer.commit()
        self.read_to(8)
        self.consumer.pause(*PLACES)

    def poll_none(self):
        """Poll, while all partitions are paused that the consumer has before."""
        self.consumer.pause(*self.consumer.assignment())
        self.poll()


@contextlib.contextmanager
def another_member(servers):
    """It processes nothing and commits nothing."""
    over = threading.Event()

    def run():
        with SafeConsumer(
            "in", bootstrap_servers=servers, group_id="g", enable_auto_commit=False, heartbeat_interval_ms=50
        ) as consumer:
            while not over.is_set():
                consumer.poll(20)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def expelled(reader, fake_kafka):
    """The group expels the member, which then joins again."""
    states = dict(reader.consumer._subscription.assignment)
    reader.consumer._coordinator.reset_generation()
    fake_kafka.advance(60)  # the session of the member that it was is over

    def is_back():
        reader.poll_none()
        now = reader.consumer._subscription.assignment
        return len(now) == 2 and all(now[place] is not state for place, state in states.items())

    until(is_back, 30)
    until(
        lambda: reader.poll_none() or all(reader.consumer.position(place) is not None for place in PLACES), 30
    )


@pytest.mark.parametrize("auto_commit", [False, True])
def test_an_expelled_member_says_how_far_each_position_went_back(fake_kafka, servers, auto_commit):
    reader = Reader(servers, enable_auto_commit=auto_commit, auto_commit_interval_ms=10**6)
    with reader.consumer as consumer:
        reader.begin()
        expelled(reader, fake_kafka)
        assert sorted(reader.rewound(), key=str) == [
            PositionRewound("in", place.partition, "rebalanced", 8) for place in PLACES
        ]
        reader.read_to(12)
        assert [reader.read[place] for place in PLACES] == [[*range(8), *range(3, 12)]] * 2
        consumer.commit()
        expelled(reader, fake_kafka)
        assert len(reader.rewound()) == 2


def test_a_member_that_had_committed_everything_goes_on_without_an_event(fake_kafka, servers):
    reader = Reader(servers)
    with reader.consumer as consumer:
        reader.begin()
        consumer.commit()
        expelled(reader, fake_kafka)
        reader.read_to(12)
        assert [reader.read[place] for place in PLACES] == [[*range(12)]] * 2
        assert reader.rewound() == []


def test_a_partition_that_another_member_had_goes_back_with_an_event(servers):
    reader = Reader(servers)
    with reader.consumer as consumer:
        reader.begin()
        with another_member(servers):
            until(lambda: reader.poll_none() or len(consumer.assignment()) == 1, 30)
            [kept] = consumer.assignment()
        [gone] = set(PLACES) - {kept}
        until(lambda: reader.poll_none() or len(consumer.assignment()) == 2, 30)
        until(lambda: reader.poll_none() or consumer.position(gone) is not None, 30)
        assert reader.rewound() == [PositionRewound("in", gone.partition, "rebalanced", 8)]
        assert consumer.position(kept) == 8


def _takes_over(servers, *, commits, **options):
    """Start a member that reads one partition and leaves. Return its thread, and a dict that then has the records."""
    read = {}

    def read_one():
        with SafeConsumer(
            "in", bootstrap_servers=servers, group_id="g", enable_auto_commit=False, **options
        ) as member:
            until(lambda: read.update(member.poll(100)) or read, 30)
            if commits:
                member.commit()

    thread = threading.Thread(target=read_one)
    thread.start()
    return thread, read


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
@pytest.mark.parametrize("commits", [True, False])
def test_a_member_that_has_missed_a_generation_does_not_repeat_what_another_has_committed(
    servers, strategy, commits
):
    """Its answer to SyncGroup was lost. kafka-python took its partitions for those of the generation before."""
    assignors = [{"range": RangePartitionAssignor, "cooperative-sticky": CooperativeStickyAssignor}[strategy]]
    with FaultProxy(bootstrap=servers[0]) as proxy:
        reader = Reader(proxy.bootstrap_servers, partition_assignment_strategy=assignors)
        with reader.consumer as consumer:
            reader.begin()
            proxy.on("SyncGroup").truncate(2, times=1, hang_up=True).delay(1.5)
            thread, other = _takes_over(servers, commits=commits, partition_assignment_strategy=assignors)
            until(lambda: reader.poll_none() or not thread.is_alive(), 60)
            [gone] = other
            assert (other[gone][0].offset, other[gone][-1].offset) == (3, 19)
            until(
                lambda: (
                    reader.poll_none()
                    or (len(consumer.assignment()) == 2 and not consumer._coordinator.need_rejoin())
                ),
                30,
            )
            [kept] = set(PLACES) - {gone}
            assert consumer.position(kept) == 8
            if commits:
                until(lambda: reader.poll_none() or consumer.position(gone) == 20, 10)
                assert reader.rewound() == []
            elif strategy == "range":
                assert consumer.position(gone) == 8


def _interrupted_when_it_comes_back(servers, proxy, **options):
    """Return a member that has missed a generation. Ctrl-C came while it asked for the group's offsets. Also return the
    partition of which another member has committed 20.
    """
    if threading.current_thread() is not threading.main_thread():
        pytest.skip("Signals come to the main thread, and the tests run on another one")
    reader = Reader(proxy.bootstrap_servers, **options)
    reader.begin()
    coordinator = reader.consumer._coordinator
    ask, asked = coordinator.fetch_committed_offsets_async, threading.Event()

    async def asked_slowly(*arguments, **more):
        if not asked.is_set():
            asked.set()
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            await coordinator._net.sleep(1.0)
        return await ask(*arguments, **more)

    coordinator.fetch_committed_offsets_async = asked_slowly
    proxy.on("SyncGroup").truncate(2, times=1, hang_up=True).delay(1.5)
    thread, other = _takes_over(servers, commits=True, auto_offset_reset="earliest")
    with pytest.raises(KeyboardInterrupt):
        until(reader.poll_none, 60)
    thread.join()
    [gone] = other
    assert other[gone][-1].offset == 19
    return reader, gone


def test_such_a_member_goes_on_at_the_groups_offset_also_after_an_interrupt(servers):
    with FaultProxy(bootstrap=servers[0]) as proxy:
        reader, gone = _interrupted_when_it_comes_back(servers, proxy)
        with reader.consumer as consumer:
            consumer.resume(*PLACES)
            [kept] = set(PLACES) - {gone}
            until(lambda: reader.poll() or reader.next_of(kept) == 20, 30)
            assert consumer.position(gone) == 20
            assert reader.read[gone] == list(range(8))


def test_a_close_after_such_an_interrupt_does_not_move_the_group_back(servers):
    with FaultProxy(bootstrap=servers[0]) as proxy:
        reader, gone = _interrupted_when_it_comes_back(
            servers, proxy, enable_auto_commit=True, auto_commit_interval_ms=60000
        )
        reader.consumer.close()
    with SafeConsumer(bootstrap_servers=servers, group_id="g") as consumer:
        assert consumer.committed(gone) == 20


def test_a_reset_because_the_group_has_no_offset_says_how_far_the_member_had_read(fake_kafka, servers):
    reader = Reader(servers)
    with reader.consumer as consumer:
        consumer.subscribe(["in"])
        until(lambda: reader.poll_none() or len(consumer.assignment()) == 2, 30)
        reader.read_to(8)
        consumer.pause(*PLACES)
        reader.events.clear()
        expelled(reader, fake_kafka)
        assert sorted(reader.reset(), key=str) == [
            PositionReset("in", place.partition, "no_position", "earliest", 8, 0, None) for place in PLACES
        ]
        assert reader.rewound() == []


def test_records_that_such_a_reset_skips_begin_where_the_member_had_read_to(fake_kafka, servers):
    reader = Reader(servers, auto_offset_reset="latest")
    with reader.consumer as consumer:
        consumer.subscribe(["in"])
        until(lambda: reader.poll_none() or len(consumer.assignment()) == 2, 30)
        until(lambda: reader.poll_none() or len(reader.reset()) == 2, 30)
        assert [event.previous for event in reader.reset()] == [None, None]
        reader.events.clear()
        for place in PLACES:
            reader.read[place] = [19]
            produce(fake_kafka, "in", [b""] * 5, place.partition)
        reader.read_to(22)
        consumer.pause(*PLACES)
        expelled(reader, fake_kafka)
        assert sorted(reader.reset(), key=str) == [
            PositionReset("in", place.partition, "no_position", "latest", 22, 25, (22, 24))
            for place in PLACES
        ]


@pytest.mark.parametrize("first", ["read", "not read"])
def test_such_a_reset_names_the_position_before_also_if_nothing_before_it_was_read(
    fake_kafka, servers, first
):
    """The consumer seeks to the first record that it has read, or has read none."""
    reader = Reader(servers, auto_offset_reset="latest")
    with reader.consumer as consumer:
        consumer.subscribe(["in"])
        until(lambda: reader.poll_none() or len(reader.reset()) == 2, 30)
        reader.events.clear()
        for place in PLACES:
            reader.read[place] = [19]
            produce(fake_kafka, "in", [b""] * 5, place.partition)
        if first == "read":
            reader.read_to(22)
            consumer.pause(*PLACES)
            for place in PLACES:
                consumer.seek(place, 20)
        expelled(reader, fake_kafka)
        assert sorted(reader.reset(), key=str) == [
            PositionReset("in", place.partition, "no_position", "latest", 20, 25, (20, 24))
            for place in PLACES
        ]


def test_after_such_a_seek_a_position_in_a_deleted_topic_is_not_the_one_before_in_its_successor(
    fake_kafka, servers
):
    reader = Reader(
        servers, auto_offset_reset="latest", metadata_max_age_ms=100, allow_auto_create_topics=False
    )
    with reader.consumer as consumer:
        consumer.subscribe(["in"])
        until(lambda: reader.poll_none() or len(reader.reset()) == 2, 30)
        for place in PLACES:
            reader.read[place] = [19]
            produce(fake_kafka, "in", [b""] * 5, place.partition)
        reader.read_to(22)
        consumer.pause(*PLACES)
        for place in PLACES:
            consumer.seek(place, 20)
        fake_kafka.delete_topic("in")
        until(lambda: reader.poll_none() or not consumer.assignment(), 30)
        fake_kafka.create_topic("in", partitions=2)
        until(lambda: reader.poll_none() or len(reader.reset()) == 4, 30)
        assert sorted(reader.reset()[2:], key=str) == [
            PositionReset("in", place.partition, "no_position", "latest", None, 0, None) for place in PLACES
        ]


def test_a_position_in_a_deleted_topic_is_not_the_one_before_in_its_successor(fake_kafka, servers):
    reader = Reader(
        servers, auto_offset_reset="latest", metadata_max_age_ms=100, allow_auto_create_topics=False
    )
    with reader.consumer as consumer:
        consumer.subscribe(["in"])
        until(lambda: reader.poll_none() or len(reader.reset()) == 2, 30)
        fake_kafka.delete_topic("in")
        until(lambda: reader.poll_none() or not consumer.assignment(), 30)
        fake_kafka.create_topic("in", partitions=2)
        until(lambda: reader.poll_none() or len(reader.reset()) == 4, 30)
        assert sorted(reader.reset()[2:], key=str) == [
            PositionReset("in", place.partition, "no_position", "latest", None, 0, None) for place in PLACES
        ]


def test_neither_a_changed_assignment_nor_a_new_consumer_is_reported(servers):
    reader = Reader(servers)
    with reader.consumer as consumer:
        reader.begin()
        consumer.unsubscribe()
        consumer.assign(PLACES)
        reader.read_to(8)
        consumer.assign(PLACES[:1])
        reader.poll_none()
        consumer.assign(PLACES)
        assert consumer.position(PLACES[1]) == 3
        assert reader.rewound() == []
    another = Reader(servers)
    with another.consumer as consumer:
        consumer.assign(PLACES)
        assert [consumer.position(place) for place in PLACES] == [3, 3]
        assert another.rewound() == []


def test_a_reset_that_the_application_requested_is_not_reported(fake_kafka, servers):
    reader = Reader(servers)
    with reader.consumer as consumer:
        reader.begin()
        consumer.seek_to_beginning(*PLACES)
        expelled(reader, fake_kafka)
        reader.read_to(12)
        assert [reader.read[place] for place in PLACES] == [[*range(8), *range(3, 12)]] * 2
        assert reader.rewound() == []


def test_a_hook_that_seeks_other_partitions_has_the_last_word(fake_kafka, servers):
    """The group's offsets of all partitions come in one answer."""
    reader = Reader(servers)
    note = reader.events.append

    def seek_all(event):
        note(event)
        if len(reader.rewound()) == 1:
            for place in PLACES:
                consumer.seek(place, 6)

    with reader.consumer as consumer:
        reader.begin()
        consumer._reports._on_event = seek_all
        expelled(reader, fake_kafka)
        reader.read_to(12)
        assert [reader.read[place] for place in PLACES] == [[*range(8), *range(6, 12)]] * 2


def test_an_answer_from_before_another_assignment_is_not_used(fake_kafka, servers):
    """kafka-python keeps a request that was not answered in time, for the next request for the same partitions."""
    place, other = PLACES
    with (
        FaultProxy(bootstrap=servers[0]) as proxy,
        SafeConsumer(
            bootstrap_servers=proxy.bootstrap_servers, group_id="g", enable_auto_commit=False
        ) as consumer,
    ):
        consumer.assign([place])
        consumer.seek(place, 3)
        consumer.commit()
        consumer.assign([other])
        rule = proxy.on("OffsetFetch").delay(0.3, times=1)
        consumer.assign([place])
        until(lambda: consumer.poll() or rule.hits, 30)
        consumer.seek(place, 10)
        consumer.commit()
        consumer.assign([other])
        consumer.assign([place])
        assert consumer.position(place) == 10


def test_a_poll_between_records_of_the_iterator_returns_none_of_them_twice(servers):
    """The iterator holds records that it has not returned."""
    place = PLACES[0]
    with SafeConsumer(
        bootstrap_servers=servers, group_id="g", auto_offset_reset="earliest", enable_auto_commit=False
    ) as consumer:
        consumer.assign([place])
        read = [next(consumer).offset for _ in range(3)]
        while len(read) < 10:
            read += [record.offset for record in consumer.poll(100, max_records=4).get(place, ())]
        read += [next(consumer).offset for _ in range(3)]
        assert read == list(range(len(read)))
        assert consumer.position(place) == len(read)
