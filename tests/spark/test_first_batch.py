"""A query's first micro-batch, by exactly the calls that Spark makes of a reader, without Spark.

`Checkpoint` is what stays when a driver dies, `Driver` makes the calls of `MicroBatchExecution` in their order. With
PySpark 4.2 and later, a new query asks for its initial offset, then for the end of its first batch; 4.0 and 4.1 ask for
the end first. All of them ask for the initial offset again when they read the first batch, and keep it nowhere.
"""

from __future__ import annotations

import json
import queue
import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from waiting import until

from kafkasafe.cluster.api import ProduceRequest
from kafkasafe.errors import ConfigError, DataLossError
from kafkasafe.events import SourceDataLost
from kafkasafe.kafkapython.connect import over_sockets
from kafkasafe.record.batch import encode
from kafkasafe.spark import KafkaSafeSource
from kafkasafe.spark.connections import close_connections
from kafkasafe.spark.options import read_options
from kafkasafe.spark.source_readers import StreamReader
from kafkasafe.spark.streaming import LimitedStreamReader


class Checkpoint:
    """Spark's offset log and commit log: JSON by number of the batch."""

    def __init__(self) -> None:
        self.offsets: dict[int, str] = {}
        self.commits: set[int] = set()


class Driver:
    """One run of a query."""

    def __init__(self, version: str, options: dict[str, str], checkpoint: Checkpoint) -> None:
        kind = StreamReader if version == "4.0" else LimitedStreamReader
        self.checkpoint = checkpoint
        self.events: list[Any] = []
        self.reader = kind(read_options(options, streaming=True), KafkaSafeSource({}).schema())
        self.reader._notices.tell = self.events.append  # type: ignore[method-assign]

    def plan(self) -> int:
        """Writes down where the next batch ends, unless it is written; the number of the batch."""
        done, planned = self.checkpoint.commits, self.checkpoint.offsets
        number = len(done)
        if number in planned:
            return number
        if isinstance(self.reader, LimitedStreamReader):
            start = json.loads(planned[number - 1]) if number else self._initial()
            end = self.reader.latestOffset(start, self.reader.getDefaultReadLimit())
        else:
            end = self.reader.latestOffset()
        text = json.dumps(end)
        if number == 0 or text != planned[number - 1]:
            planned[number] = text
        return number

    def read(self, number: int) -> list[int]:
        """The rows of a batch that is planned; none where nothing is new."""
        planned = self.checkpoint.offsets
        if number not in planned:
            return []
        start = json.loads(planned[number - 1]) if number else self._initial()
        rows: list[int] = []
        for piece in self.reader.partitions(start, json.loads(planned[number])):
            for part in self.reader.read(piece):
                rows += [int(value) for value in part["value"].to_pylist()]
        return rows

    def commit(self, number: int) -> None:
        if number in self.checkpoint.offsets:
            self.checkpoint.commits.add(number)

    def batch(self) -> list[int]:
        """A whole micro-batch."""
        number = self.plan()
        rows = self.read(number)
        self.commit(number)
        return rows

    def _initial(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(json.dumps(self.reader.initialOffset()))
        return found


class Writer:
    """Writes to a partition, each call a batch: a client for each call would take longer than the test."""

    def __init__(self, cluster: Any) -> None:
        self._transport = over_sockets({"bootstrap_servers": cluster.bootstrap_servers})
        self._transport.start()
        self._lock = threading.Lock()
        self.written = 0

    def write(self, count: int, timestamp: int | None = None) -> None:
        if not count:
            return
        with self._lock:
            values = [b"%d" % number for number in range(self.written, self.written + count)]
            at = int(time.time() * 1000) if timestamp is None else timestamp
            data = encode(None, values, timestamps=at)
            replies: queue.SimpleQueue[Any] = queue.SimpleQueue()
            request = ProduceRequest(0, "t", 0, data)
            self._transport.produce([request], -1, 30_000, lambda *reply: replies.put(reply))
            _, reply = replies.get(timeout=60)
            assert reply.base_offset == self.written, reply
            self.written += count

    def close(self) -> None:
        self._transport.close(5)


class Query:
    """A query over a topic `t` of one partition, and its runs. A record's value is its offset."""

    def __init__(self, cluster: Any, version: str, **options: str) -> None:
        self.cluster, self.version = cluster, version
        self.checkpoint = Checkpoint()
        self.given = {
            "kafka.bootstrap.servers": ",".join(cluster.bootstrap_servers),
            "subscribe": "t",
            "startingOffsets": "latest",
        }
        self.given |= options
        self._drivers: list[Driver] = []
        cluster.create_topic("t", 1)
        self.writer = Writer(cluster)
        self.write = self.writer.write

    def start(self, **options: str) -> Driver:
        """Another run."""
        self.given |= options
        self._drivers.append(Driver(self.version, self.given, self.checkpoint))
        return self._drivers[-1]

    def close(self) -> None:
        self.writer.close()
        for driver in self._drivers:
            driver.reader.stop()
        # Tasks keep theirs for the next one, but the next test has another cluster.
        close_connections()


@pytest.fixture(params=["4.0", "4.2"])
def query(request: pytest.FixtureRequest, some_kafka: Any) -> Iterator[Any]:
    """Makes one."""
    made: list[Query] = []

    def make(**options: str) -> Query:
        made.append(Query(some_kafka, request.param, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def planned(query: Query) -> Driver:
    """A query that has planned its first batch, of records 10 to 14: they came between the look-ups of begin and end."""
    query.write(10)
    driver = query.start()
    planner = driver.reader._planner
    first = planner.first

    def first_then_more() -> Any:
        found = first()
        query.write(5)
        return found

    planner.first = first_then_more  # type: ignore[method-assign]
    assert driver.plan() == 0
    planner.first = first  # type: ignore[method-assign]
    return driver


@pytest.mark.parametrize("dies", [False, True], ids=["same run", "driver dies"])
@pytest.mark.parametrize("newer", [0, 7])
@pytest.mark.parametrize(
    "starting",
    [{}, {"startingTimestamp": str(2**50), "startingOffsetsByTimestampStrategy": "latest"}],
    ids=["latest", "by time"],
)
def test_the_first_batch_has_the_same_rows_however_often_it_is_run(
    query: Any, starting: dict[str, str], newer: int, dies: bool
) -> None:
    one = query(**starting)
    driver = planned(one)
    one.write(newer)
    for _ in range(3):  # a sink that fails
        if dies:
            driver = one.start()
        assert driver.plan() == 0
        assert driver.read(0) == [10, 11, 12, 13, 14]
        one.write(1)
    driver.commit(0)
    one.write(3)
    assert driver.batch() == list(range(15, 15 + newer + 6))
    assert one.start().batch() == []


@pytest.mark.parametrize("newer", [0, 7])
def test_an_empty_first_batch_stays_empty(query: Any, newer: int) -> None:
    one = query()
    one.write(10)
    assert one.start().plan() == 0
    one.write(newer)
    driver = one.start()
    assert driver.plan() == 0
    assert driver.read(0) == []
    driver.commit(0)
    one.write(1)
    assert driver.batch() == list(range(10, 11 + newer))


def test_what_retention_took_of_the_first_batch_is_a_loss(query: Any) -> None:
    one = query(startingOffsets="earliest")
    one.write(10)
    assert one.start().plan() == 0
    one.cluster.delete_records("t", 0, 4)
    with pytest.raises(
        DataLossError, match=r"was to be read from 0, but its log now begins at 4.*offsets 0 to 3"
    ) as raised:
        one.start().read(0)
    assert (raised.value.first_offset, raised.value.last_offset) == (0, 3)
    driver = one.start(failOnDataLoss="false")
    assert driver.read(0) == [4, 5, 6, 7, 8, 9]
    assert driver.events == [SourceDataLost("t", 0, "retention", 0, 4, (0, 3))]
    driver.commit(0)
    one.write(1)
    assert driver.batch() == [10]


def test_a_first_batch_that_retention_took_as_a_whole(query: Any) -> None:
    one = query(startingOffsets="earliest")
    one.write(10)
    assert one.start().plan() == 0
    one.write(5)
    one.cluster.delete_records("t", 0, 12)
    with pytest.raises(
        DataLossError, match=r"was to be read from 0, but its log now begins at 12.*offsets 0 to 9 unread"
    ):
        one.start().read(0)
    driver = one.start(failOnDataLoss="false")
    assert driver.batch() + driver.batch() == [12, 13, 14]
    assert [event.lost for event in driver.events] == [(0, 9), (10, 11)]


def test_a_loss_before_the_first_batch_was_planned_is_in_its_end(some_kafka: Any) -> None:
    one = Query(some_kafka, "4.2", startingOffsets="earliest", failOnDataLoss="false")
    one.write(10)
    driver = one.start()
    driver.reader._first = driver.reader._planner.first()  # type: ignore[attr-defined]
    some_kafka.delete_records("t", 0, 4)
    try:
        driver.plan()
        assert driver.events == [SourceDataLost("t", 0, "retention", 0, 4, (0, 3))]
        mark = json.loads(one.checkpoint.offsets[0])["topics"]["t"]["partitions"]["0"]
        assert (mark["begin"], mark["why"], mark["lost_last"]) == (4, "retention", 3)
        assert one.start().read(0) == [4, 5, 6, 7, 8, 9]
    finally:
        one.close()


def test_starting_options_that_have_no_answer_by_now_do_not_stop_the_first_batch(query: Any) -> None:
    """They named each partition when it was planned."""
    one = query(startingOffsets='{"t":{"0":3}}')
    one.write(10)
    assert one.start().plan() == 0
    driver = one.start(startingOffsets='{"t":{"0":3,"1":5}}')
    assert driver.read(0) == [3, 4, 5, 6, 7, 8, 9]
    driver.commit(0)
    one.write(1)
    assert one.start().batch() == [10]


def test_a_wrong_starting_option_of_a_new_query_is_an_error_and_can_be_corrected(query: Any) -> None:
    one = query(startingOffsets='{"t":{"0":3,"1":5}}')
    one.write(10)
    driver = one.start()
    with pytest.raises(ConfigError, match="names t-1, which does not exist"):
        driver.read(driver.plan())
    one.write(5)
    driver = one.start(startingOffsets="earliest")
    assert driver.batch() + driver.batch() == list(range(15))


def test_after_a_wrong_start_a_query_at_latest_begins_there(query: Any) -> None:
    one = query(startingOffsets='{"t":{"0":3,"1":5}}')
    one.write(10)
    driver = one.start()
    with pytest.raises(ConfigError):
        driver.read(driver.plan())
    one.write(5)
    driver = one.start(startingOffsets="latest")
    rows = driver.batch() + driver.batch()
    one.write(1)
    rows += driver.batch()
    # 4.0 and 4.1 have written an end down before they learn of the mistake: the query begins there.
    assert rows == ([15] if one.version == "4.2" else list(range(10, 16)))


def test_after_an_empty_first_batch_the_next_one_waits_for_min_offsets(some_kafka: Any) -> None:
    """As with Spark's own source: the first plan of a run does not wait."""
    one = Query(some_kafka, "4.2", minOffsetsPerTrigger="6")
    try:
        one.write(10)
        driver = one.start()
        assert driver.batch() == []
        one.write(5)
        assert driver.batch() == []
        one.write(1)
        assert driver.batch() == list(range(10, 16))
    finally:
        one.close()


def test_nothing_new_is_the_text_that_was_written(some_kafka: Any) -> None:
    """Another text would be an empty batch after each upgrade."""
    one = Query(some_kafka, "4.2")
    try:
        one.write(10)
        one.start().batch()
        text = one.checkpoint.offsets[0].replace('"topics"', '"of_another_version": 1, "topics"')
        one.checkpoint.offsets[0] = text
        driver = one.start()
        driver.plan()
        assert set(one.checkpoint.offsets) == {0}
    finally:
        one.close()


# --- checkpoints that exist already ------------------------------------------------------------------------------------


def make_old(checkpoint: Checkpoint) -> None:
    """What a kafkasafe wrote that did not note where a first batch begins."""
    for number, text in checkpoint.offsets.items():
        data = json.loads(text)
        for mark in data["topics"]["t"]["partitions"].values():
            mark.pop("begin", None)
            mark.pop("first", None)
        checkpoint.offsets[number] = json.dumps(data)


def make_connectors(checkpoint: Checkpoint) -> None:
    """What Spark's own source writes."""
    for number, text in checkpoint.offsets.items():
        marks = json.loads(text)["topics"]["t"]["partitions"]
        checkpoint.offsets[number] = json.dumps({"t": {key: mark["offset"] for key, mark in marks.items()}})


OLD = pytest.mark.parametrize("make", [make_old, make_connectors], ids=["kafkasafe", "kafka"])


@OLD
def test_an_old_checkpoint_whose_first_batch_is_committed_goes_on(query: Any, make: Any) -> None:
    one = query()
    driver = planned(one)
    driver.commit(0)
    make(one.checkpoint)
    one.write(7)
    driver = one.start()
    assert driver.batch() == list(range(15, 22))
    one.write(1)
    assert driver.batch() == [22]


@OLD
@pytest.mark.parametrize("starting", ["earliest", '{"t":{"0":0}}'])
def test_an_old_checkpoint_in_its_first_batch_goes_on_from_a_fixed_start(
    query: Any, make: Any, starting: str
) -> None:
    one = query(startingOffsets=starting)
    one.write(10)
    one.start().plan()
    make(one.checkpoint)
    one.write(7)
    driver = one.start()
    assert driver.batch() == list(range(10))
    assert driver.batch() == list(range(10, 17))


@OLD
@pytest.mark.parametrize(
    "starting", [{"startingOffsets": "earliest"}, {"startingTimestamp": "5"}], ids=["earliest", "by time"]
)
def test_an_old_checkpoint_in_its_first_batch_does_not_skip_what_retention_took(
    query: Any, make: Any, starting: dict[str, str]
) -> None:
    """The log began at 0 when the batch was planned, which such a checkpoint does not say."""
    one = query(**starting)
    one.write(10)
    one.start().plan()
    make(one.checkpoint)
    one.cluster.delete_records("t", 0, 4)
    with pytest.raises(ConfigError, match=r'FIRST_BATCH_UNKNOWN.* log of t-0: .*"failOnDataLoss", "false"'):
        one.start().read(0)
    assert one.start(failOnDataLoss="false").batch() == list(range(4, 10))


@OLD
def test_an_old_checkpoint_in_its_first_batch_goes_on_where_the_user_says_after_retention(
    query: Any, make: Any
) -> None:
    one = query(startingOffsets="earliest")
    one.write(10)
    one.start().plan()
    make(one.checkpoint)
    one.cluster.delete_records("t", 0, 4)
    with pytest.raises(DataLossError, match="offsets 0 to 3 unread"):
        one.start(startingOffsets='{"t":{"0":0}}').read(0)
    assert one.start(startingOffsets='{"t":{"0":4}}').batch() == list(range(4, 10))


@OLD
@pytest.mark.parametrize("newer", [0, 7])
def test_an_old_checkpoint_in_its_first_batch_at_latest_asks_for_the_begin(
    query: Any, make: Any, newer: int
) -> None:
    """Nothing says which rows that batch had: none of them is left out silently."""
    one = query()
    planned(one)
    make(one.checkpoint)
    one.write(newer)
    with pytest.raises(ConfigError, match=r'FIRST_BATCH_UNKNOWN.*"startingOffsets", \'{"t": {"0": 15}}\''):
        one.start().read(0)
    for begin in (15, 10):
        driver = one.start(startingOffsets=json.dumps({"t": {"0": begin}}))
        assert driver.read(0) == list(range(begin, 15))
    driver.commit(0)
    one.write(1)
    assert driver.batch() == list(range(15, 16 + newer))


def test_an_old_checkpoint_in_its_first_batch_by_time(query: Any) -> None:
    moment = 1_700_000_000_000
    one = query(startingTimestamp=str(moment + 3), startingOffsetsByTimestampStrategy="latest")
    one.cluster.alter_topic("t", {"retention.ms": -1})
    for number in range(10):
        one.write(1, timestamp=moment + number)
    one.start().plan()
    make_old(one.checkpoint)
    assert one.start().read(0) == list(range(3, 10))
    # A moment that no record had then: the first batch began at the end of that time.
    driver = one.start(startingTimestamp=str(moment + 100))
    with pytest.raises(ConfigError, match="FIRST_BATCH_UNKNOWN"):
        driver.read(0)


# --- records come all the time -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_each_row_comes_once_while_records_come_and_drivers_die(query: Any, seed: int) -> None:
    """From the first batch on, without a gap, whatever of Spark's steps a driver dies after."""
    one = query()
    rng = random.Random(seed)
    one.write(3)
    stop = threading.Event()

    def produce() -> None:
        pause = threading.Event()
        while not stop.is_set():
            one.write(1)
            pause.wait(0.001)

    writer = threading.Thread(target=produce)
    writer.start()
    try:
        driver, committed = one.start(), []
        first: list[int] = []
        tries = 0
        while len(one.checkpoint.commits) < 8:
            number = driver.plan()
            until(lambda before=one.writer.written: one.writer.written > before + 3)
            rows = driver.read(number)
            if number == 0:
                tries += 1
                first = first or rows
                assert rows == first, "the first batch has other rows now"
            if (number == 0 and tries < 4) or rng.random() < 0.4:
                driver = one.start()  # before the commit
                continue
            committed += rows
            driver.commit(number)
            if rng.random() < 0.2:
                driver = one.start()
    finally:
        stop.set()
        writer.join()
    driver = one.start()
    while rows := driver.batch():
        committed += rows
    assert committed == list(range(committed[0], one.writer.written))
    assert len(committed) > 20
