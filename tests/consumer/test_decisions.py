"""A consumer's decisions alone: no broker, no socket, no thread. The test fetches, and answers the procedures."""

from __future__ import annotations

import contextlib
import struct
import time
from types import SimpleNamespace

import pytest
from kafka import TopicPartition
from kafka.errors import ClusterAuthorizationFailedError, IllegalStateError, OffsetOutOfRangeError
from kafka.structs import OffsetAndMetadata

from kafkasafe._consuming.followers import Followers
from kafkasafe._consuming.lineage_file import LineageMemory
from kafkasafe._consuming.moves import Moves
from kafkasafe._consuming.partition import AssignedPartition, LocalStart, LogCompared, LogRange, ResetTo
from kafkasafe._consuming.parts import AssignedPartitions
from kafkasafe._consuming.pauses import Pauses
from kafkasafe._consuming.position_table import Activity, PositionEvent, Standing
from kafkasafe._consuming.positions import Positions
from kafkasafe._consuming.reports import Reports
from kafkasafe._consuming.responses import Responses
from kafkasafe._consuming.results import Results
from kafkasafe.cluster.api import EARLIEST, LATEST
from kafkasafe.cluster.inquiry import ProcedureRunner
from kafkasafe.cluster.procedures import Ask
from kafkasafe.errors import LogDivergedError
from kafkasafe.events import (
    LogDiverged,
    LossCheckInconclusive,
    PartitionNotReady,
    PartitionReady,
    PositionReset,
)
from kafkasafe.history.epochs import Diverged, Lineage, Same, Unknown
from tests.consumer.virtual_port import Client, State

TP = TopicPartition("orders", 0)
OLD, NEW = b"o" * 16, b"n" * 16
GONE = Diverged(6, (6, 9), (6, 7), None, (2,))
OUT_OF_RANGE, NOT_AVAILABLE, NO_TOPIC, NO_LEADER, NOT_LEADER = 1, 9, 3, 5, 6


class Questions:
    """In place of the procedures: each waits for the answer that the test gives."""

    def __init__(self):
        self.asked = []

    def _ask(self, *what):
        return (yield Ask(lambda reply: self.asked.append((what, reply))))

    def walk(self, tp, read, position):
        return self._ask("walk", position)

    def examine_range(self, tp, read, position):
        return self._ask("range", position)

    def local(self, tp):
        return self._ask("local")

    def reset(self, tp, strategy, reason):
        return self._ask("reset", strategy)


class NoBatches:
    """There are no atomic batches, so nothing is read again."""

    def __init__(self, parts):
        self.left = parts.take_left

    def __getattr__(self, name):
        return lambda *_: 0


class Reader:
    def __init__(self, strategy=LATEST, policy="raise"):
        self.events = []
        self.client, self.questions = Client(TP, strategy, (OLD, 1, 2)), Questions()
        port = self.client.port()
        reports = Reports("me", self.events.append)
        runner = ProcedureRunner()
        self.parts = AssignedPartitions(port.assignments, LineageMemory(None))
        moves = Moves(port.assignments, port.metadata, runner, self.questions)
        pauses = Pauses(moves, reports, None)
        rereading = NoBatches(self.parts)
        self.positions = Positions(
            port.assignments, port.group, port.metadata, self.parts, moves, rereading, has_group=True
        )
        self.responses = Responses(
            port.metadata, self.parts, moves, pauses, Followers(0.5, contextlib.nullcontext())
        )
        self.results = Results(
            assignments=port.assignments,
            metadata=port.metadata,
            runner=runner,
            parts=self.parts,
            moves=moves,
            pauses=pauses,
            positions=self.positions,
            rereading=rereading,
            reports=reports,
            policy=policy,
            seek=self.seek,
        )

    @property
    def part(self):
        return self.parts.of(TP)

    @property
    def at(self):
        return self.part.at

    def committed(self, offset, lineage, topic_id=OLD):
        """The group has this offset, and the records before it were read."""
        self.client.offsets[TP] = OffsetAndMetadata(offset, lineage.encode(topic_id=topic_id), 2)
        self.poll()

    def poll(self):
        self.positions.refresh_committed()
        self.results.carry_on()

    def answer(self, kind, result):
        """Answer the one procedure that waits, and poll."""
        [((what, *_), reply)] = self.questions.asked
        assert what == kind
        self.questions.asked.clear()
        reply(result)
        self.poll()

    def asks(self):
        return [what for what, _ in self.questions.asked]

    def seek(self, tp, offset):
        self.client.place(tp, offset)
        self.positions.sought(tp)

    def fetched(self, code=0, records=b"", diverging=None):
        at = self.part.state.position.offset
        data = SimpleNamespace(error_code=code, records=records, diverging_epoch=diverging)
        return self.responses.accept(
            SimpleNamespace(topic_partition=TP, partition_data=data, fetched_offset=at)
        )

    def of(self, kind):
        return [event for event in self.events if isinstance(event, kind)]


def walked(outcome, epoch=2, topic_id=OLD, **more):
    return LogCompared(outcome, epoch, 1, topic_id=topic_id, leadership=(OLD, 1, 2), **more)


def new_topic(epoch=0):
    """Both metadata name this topic."""
    return LogCompared(Unknown("nothing"), epoch, 0, topic_id=NEW, leadership=(NEW, 1, epoch))


def batch(base, count, epoch):
    head = struct.pack(">qiibIhi", base, 49, epoch, 2, 7, 0, count - 1)
    return head + bytes(57 - len(head)) + struct.pack(">i", count)


@pytest.fixture
def reader():
    """At offset 10 of a log that it has read."""
    found = Reader()
    found.committed(10, Lineage([(1, 0), (2, 6)], 10))
    return found


def valid(reader):
    reader.answer("walk", walked(Same(1)))
    assert reader.at == (Activity.IDLE, Standing.VALID)
    return reader


def test_nothing_is_fetched_before_the_log_was_compared(reader):
    assert reader.at == (Activity.WALKING, Standing.UNCHECKED)
    assert reader.asks() == [("walk", 10)]
    assert not reader.part.state.is_fetchable()
    valid(reader)
    assert reader.part.state.is_fetchable()
    reader.poll()
    assert reader.asks() == []


@pytest.mark.parametrize("leader", [(OLD, 3, 3), (NEW, 1, 0)], ids=["epoch", "topic"])
def test_a_new_leader_or_topic_is_compared_with(reader, leader):
    valid(reader).client.leader = leader
    reader.poll()
    assert reader.asks() == [("walk", 10)]


def test_of_the_same_leader_nothing_is_asked(reader):
    valid(reader).client.leader = OLD, 1, 1  # older metadata
    reader.poll()
    assert reader.asks() == []


@pytest.mark.parametrize(
    ("epoch", "node", "asks"),
    [(-1, 1, [("walk", 10)]), (-1, 2, []), (2, 1, [])],
    ids=["lost leader", "other broker", "with an epoch"],
)
def test_without_a_leader_epoch_a_lost_connection_is_a_reason_to_compare(reader, epoch, node, asks):
    reader.client.leader = OLD, 1, epoch
    reader.answer("walk", LogCompared(Same(1), epoch, 1, topic_id=OLD, leadership=(OLD, 1, epoch)))
    reader.positions.lost(node)
    reader.poll()
    assert reader.asks() == asks


@pytest.mark.parametrize(
    ("epoch", "walked_epoch", "asks"),
    [(-1, -1, [("walk", 10)]), (-1, 2, [("walk", 10)]), (2, 2, [])],
    ids=["old brokers", "during an upgrade", "with an epoch"],
)
@pytest.mark.parametrize("what", ["lost", "not leader"])
def test_without_a_leader_epoch_the_same_leader_may_have_been_replaced_for_a_while(
    reader, what, epoch, walked_epoch, asks
):
    """In between, another broker may have truncated the log, and the metadata never named it."""
    reader.client.leader = OLD, 1, epoch
    reader.answer("walk", walked(Same(1), walked_epoch)._replace(leadership=(OLD, 1, epoch)))
    if what == "lost":
        reader.positions.lost(1)
    else:
        assert not reader.fetched(NOT_LEADER)
    reader.poll()
    assert reader.asks() == asks


def test_where_nothing_was_read_nothing_is_asked():
    reader = Reader()
    reader.client.place(TP, 10)
    reader.poll()
    assert reader.at == (Activity.IDLE, Standing.VALID)
    assert reader.part.history.topic_id == OLD
    assert reader.asks() == []


def test_without_a_leader_nothing_is_fetched_of_what_must_be_checked():
    reader = Reader()
    reader.client.leader = None
    reader.committed(10, Lineage([(2, 6)], 10))
    assert not reader.part.state.is_fetchable()
    assert reader.client.requests == 1
    reader.client.leader = OLD, 1, 2
    reader.poll()
    assert reader.asks() == [("walk", 10)]


def test_a_divergence_is_raised_once_and_waits_for_the_decision(reader):
    with pytest.raises(LogDivergedError) as told:
        reader.answer("walk", walked(GONE))
    assert told.value.event == reader.of(LogDiverged)[0]
    assert (told.value.event.divergent_offset, told.value.event.rolled_back) == (6, (6, 9))
    reader.poll()
    assert [part.error for part in reader.parts.undecided()] == [told.value]
    assert not reader.part.state.is_fetchable()
    reader.seek(TP, 6)
    reader.poll()
    assert reader.parts.undecided() == []
    assert reader.asks() == [("walk", 6)]  # what was read before it is still compared
    valid(reader)
    assert len(reader.of(LogDiverged)) == 1
    assert reader.part.history.lineage.end_offset == 6


def test_the_policy_decides_at_once():
    reader = Reader(policy="seek")
    reader.committed(10, Lineage([(1, 0), (2, 6)], 10))
    reader.answer("walk", walked(GONE))
    assert reader.part.state.position.offset == 6
    assert reader.at.activity is not Activity.DIVERGED


def test_what_the_policy_raises_is_raised():
    def policy(event):
        raise ZeroDivisionError

    reader = Reader(policy=policy)
    reader.committed(10, Lineage([(1, 0), (2, 6)], 10))
    with pytest.raises(ZeroDivisionError):
        reader.answer("walk", walked(GONE))
    assert reader.at.activity is Activity.DIVERGED


def test_a_position_that_moves_without_a_decision_is_compared_again(reader):
    with pytest.raises(LogDivergedError):
        reader.answer("walk", walked(GONE))
    reader.client.place(TP, 8)
    assert reader.parts.undecided() == []
    reader.poll()
    assert reader.asks() == [("walk", 8)]


def test_a_result_about_a_former_position_is_not_used(reader):
    reader.client.place(TP, 8)
    reader.answer("walk", walked(GONE))
    assert reader.of(LogDiverged) == []
    reader.poll()
    assert reader.asks() == [("walk", 8)]


def test_what_a_seek_overtakes_is_not_applied(reader):
    [(_, reply)] = reader.questions.asked
    reader.questions.asked.clear()
    reader.seek(TP, 8)
    reply(walked(GONE))
    reader.poll()
    assert reader.of(LogDiverged) == []
    assert reader.asks() == [("walk", 8)]


def test_an_interrupt_before_the_procedure_runs_does_not_stop_the_partition(reader):
    valid(reader)
    reader.part.place(10)
    reader.part.check(None)
    reader.part.on(PositionEvent.CHECK_DUE)  # and nothing begins
    reader.poll()
    reader.poll()
    assert reader.asks() == [("walk", 10)]


def test_batches_of_newer_epochs_are_noted(reader):
    valid(reader)
    assert reader.fetched(records=batch(10, 5, 4))
    assert reader.part.history.lineage.epoch_at(14) == 4


@pytest.mark.parametrize(
    "response",
    [{"records": batch(10, 5, 1)}, {"diverging": SimpleNamespace(end_offset=7)}],
    ids=["batch", "broker"],
)
def test_what_contradicts_is_not_used_before_the_log_was_compared(reader, response):
    assert not valid(reader).fetched(**response)
    assert reader.at == (Activity.IDLE, Standing.SUSPECTED)
    assert reader.client.requests == 1
    assert not reader.part.state.is_fetchable()
    reader.poll()
    valid(reader)
    assert reader.part.state.is_fetchable()
    assert reader.part.state.position == OffsetAndMetadata(10, "", -1)


@pytest.mark.parametrize(
    ("bounds", "reason", "skipped"),
    [((12, 20), "retention", (10, 19)), ((0, 8), "beyond_end", None)],
    ids=["retention", "beyond the end"],
)
def test_a_position_outside_of_the_log_is_reset_with_an_event(reader, bounds, reason, skipped):
    assert not valid(reader).fetched(OUT_OF_RANGE)
    assert reader.asks() == [("range", 10)]
    assert not reader.part.state.is_fetchable()
    reader.answer("range", LogRange(*bounds, None))
    reader.poll()
    assert reader.asks() == [("reset", LATEST)]
    reader.answer("reset", ResetTo(LATEST, 20, None))
    [event] = reader.of(PositionReset)
    assert (event.reason, event.previous, event.position, event.skipped) == (reason, 10, 20, skipped)


@pytest.mark.parametrize("start", [0, 10])
def test_a_log_that_has_its_deleted_records_again_is_read_on(start):
    """A broker was killed right after it had deleted records, and had them again: the consumer began at offset 0."""
    reader = Reader(strategy=EARLIEST)
    reader.committed(10, Lineage([(1, 0), (2, 6)], 10))
    assert not valid(reader).fetched(OUT_OF_RANGE)
    reader.answer("range", LogRange(12, 20, None))
    reader.poll()
    reader.answer("reset", ResetTo(EARLIEST, start, start))
    reader.poll()
    assert reader.of(PositionReset) == []
    assert reader.at.activity is Activity.IDLE
    assert reader.part.state.position.offset == 10
    assert reader.fetched()


def test_where_no_reset_is_allowed_it_is_raised():
    reader = Reader(strategy=0)
    reader.committed(10, Lineage([(2, 0)], 10))
    valid(reader).fetched(OUT_OF_RANGE)
    with pytest.raises(OffsetOutOfRangeError):
        reader.answer("range", LogRange(12, 20, None))
    assert reader.at.activity is Activity.STRANDED
    reader.seek(TP, 12)
    assert reader.parts.undecided() == []


def test_a_broker_that_denies_a_position_in_the_log_may_have_it_elsewhere(reader):
    valid(reader).fetched(OUT_OF_RANGE)
    reader.answer("range", LogRange(0, 20, None))
    assert reader.parts.resting(0.0) == {TP}
    assert reader.at.activity is Activity.LOCATING
    assert reader.part.state.is_fetchable()
    reader.answer("local", LocalStart(15))
    [event] = reader.of(PartitionNotReady)
    assert (event.code, event.remote) == (OUT_OF_RANGE, True)
    assert reader.fetched()
    assert [each.failures for each in reader.of(PartitionReady)] == [1]
    assert reader.parts.resting(0.0) == set()


def test_of_a_topic_that_is_gone_everything_is_compared_again(reader):
    valid(reader).fetched(NO_TOPIC)
    assert reader.at == (Activity.IDLE, Standing.UNCHECKED)
    reader.poll()
    assert reader.asks() == [("walk", 10)]


def test_a_fetch_that_fails_while_another_answer_is_awaited(reader):
    """Out of range comes before it is known whether the position is in remote storage."""
    valid(reader).fetched(NOT_AVAILABLE)
    assert reader.at.activity is Activity.LOCATING
    inquiry = reader.part.inquiry
    reader.fetched(OUT_OF_RANGE)
    assert inquiry.done  # nothing would use its answer
    assert reader.asks() == [("local",), ("range", 10)]
    del reader.questions.asked[0]
    reader.answer("range", LogRange(0, 20, None))
    assert reader.part.state.is_fetchable()


@pytest.mark.parametrize("strategy", [LATEST, EARLIEST])
def test_where_nothing_was_read_a_new_topic_is_read_from_its_start(strategy):
    reader = Reader(strategy=strategy)
    reader.client.place(TP, 10)
    reader.poll()
    reader.client.leader = NEW, 1, 0
    reader.poll()
    reader.answer("walk", new_topic())
    reader.poll()
    assert reader.asks() == [("reset", EARLIEST)]
    reader.answer("reset", ResetTo(EARLIEST, 0, 0))
    assert [(event.reason, event.position) for event in reader.of(PositionReset)] == [("recreated", 0)]
    assert reader.part.history.topic_id == NEW


def test_in_a_new_topic_nothing_counts_that_was_read_of_the_former_one_before_a_seek_to_its_start(reader):
    """Otherwise a later seek forward would find that the new topic does not have these records."""
    valid(reader)
    reader.seek(TP, 0)
    reader.client.leader = NEW, 1, 0
    reader.poll()
    reader.answer("walk", new_topic())
    assert reader.fetched(records=batch(0, 4, 0))
    reader.client.place(TP, 4)
    assert (reader.part.history.topic_id, reader.part.history.lineage) == (NEW, Lineage([(0, 0)], 4))
    reader.seek(TP, 8)
    reader.poll()
    assert reader.part.history.read(8).lineage == Lineage([(0, 0)], 4)


@pytest.mark.parametrize("offset", [0, 10])
def test_older_metadata_do_not_replace_a_topic_in_which_another_member_has_committed(offset):
    reader = Reader()
    reader.committed(offset, Lineage(), NEW)
    assert not reader.part.state.is_fetchable()
    reader.client.leader = NEW, 1, 2
    reader.answer("walk", new_topic(epoch=2))
    reader.poll()
    assert reader.asks() == reader.events == []
    assert reader.part.state.is_fetchable()
    assert reader.part.state.position.offset == offset
    assert reader.part.history.topic_id == NEW


def test_older_metadata_do_not_bring_the_former_topic_back():
    reader = Reader()
    reader.client.place(TP, 0)
    reader.poll()
    reader.client.leader = NEW, 1, 0
    reader.poll()
    reader.answer("walk", new_topic())
    reader.client.leader = OLD, 1, 2
    reader.poll()
    assert not reader.part.state.is_fetchable()
    assert reader.part.history.topic_id == NEW


def test_a_topic_that_counts_as_a_former_one_is_read_if_all_metadata_name_it_for_long(monkeypatch):
    """Another member has committed in the newest topic, while all metadata of this consumer named an older one. So the
    consumer has taken the older one for the successor.
    """
    reader = Reader()
    reader.committed(10, Lineage(), NEW)
    reader.answer("walk", LogCompared(Unknown("nothing"), 2, 0, topic_id=OLD, leadership=(OLD, 1, 2)))
    reader.poll()
    reader.answer("reset", ResetTo(EARLIEST, 0, 0))
    assert reader.part.history.topic_id == OLD
    reader.client.leader = NEW, 1, 2
    reader.poll()
    reader.poll()
    assert not reader.part.state.is_fetchable()
    assert reader.asks() == []
    monkeypatch.setattr("kafkasafe._consuming.history.FORMER_TOPIC_S", 0.0)
    reader.poll()
    reader.answer("walk", new_topic(epoch=2))
    reader.poll()
    assert reader.part.state.is_fetchable()
    assert reader.part.history.topic_id == NEW
    assert reader.part.history.former.ids == {OLD}


def test_what_cannot_be_compared_is_reported(reader):
    reader.client.leader = OLD, 3, 5
    reader.answer("walk", walked(Unknown("trimmed", log_start_offset=10), epoch=5))
    assert [event.log_start_offset for event in reader.of(LossCheckInconclusive)] == [10]
    assert reader.part.state.is_fetchable()


def test_the_history_of_a_revoked_partition_comes_back_with_it(reader):
    valid(reader)
    reader.client.states.clear()
    reader.client.offsets.clear()
    reader.poll()
    assert reader.parts.items() == []
    reader.client.states[TP] = State()
    reader.client.place(TP, 10)
    reader.poll()
    assert reader.asks() == [("walk", 10)]
    assert reader.part.history.topic_id == OLD


@pytest.mark.parametrize("position", [10, 6])
def test_a_reset_that_another_rebalance_interrupts_still_says_how_far_the_member_had_read(position):
    reader = Reader()
    reader.committed(10, Lineage([(2, 6)], 10))
    valid(reader)
    reader.client.offsets.clear()
    if position < 10:
        reader.seek(TP, position)  # nothing before it was read
    for _ in range(2):
        reader.questions.asked.clear()
        reader.client.states = {TP: State()}
        reader.poll()
    reader.answer("reset", ResetTo(LATEST, 20, 0))
    assert [(event.previous, event.skipped) for event in reader.of(PositionReset)] == [
        (position, (position, 19))
    ]


def test_a_position_in_a_former_topic_is_not_the_one_before_if_a_rebalance_interrupts_the_reset():
    reader = Reader()
    reader.client.place(TP, 10)
    reader.poll()
    reader.client.leader = NEW, 1, 0
    reader.poll()
    reader.answer("walk", new_topic())
    assert reader.part.reset == ("recreated", 10)
    reader.client.states = {TP: State()}
    reader.poll()
    reader.questions.asked.clear()
    reader.client.states = {TP: State()}
    reader.poll()
    reader.answer("reset", ResetTo(LATEST, 20, 0))
    assert [(event.previous, event.skipped) for event in reader.of(PositionReset)] == [(None, (0, 19))]


def reassigned_without_an_offset(strategy):
    """The member has read up to 10, and has to find a position again."""
    reader = Reader(strategy=strategy)
    reader.committed(10, Lineage([(2, 6)], 10))
    valid(reader)
    reader.client.offsets.clear()
    reader.client.states = {TP: State()}
    reader.poll()
    return reader


def test_a_reset_to_an_end_before_what_was_read_finds_the_loss():
    """An unclean election has truncated the log. At its end the log does not differ from what was read."""
    reader = reassigned_without_an_offset(LATEST)
    reader.answer("reset", ResetTo(LATEST, 6, 0))
    assert reader.asks() == [("walk", 10)]
    assert not reader.part.state.is_fetchable()
    with pytest.raises(LogDivergedError) as told:
        reader.answer("walk", walked(GONE))
    assert (told.value.event.position, told.value.event.rolled_back) == (10, (6, 9))


def test_a_reset_to_an_end_that_is_not_the_last_goes_on_after_what_was_read():
    """A new leader may not have its newest end yet."""
    reader = reassigned_without_an_offset(LATEST)
    reader.answer("reset", ResetTo(LATEST, 6, 0))
    reader.answer("walk", walked(Same(1)))
    assert [(event.previous, event.position, event.skipped) for event in reader.of(PositionReset)] == [
        (10, 10, None)
    ]
    assert reader.part.state.is_fetchable()
    assert reader.part.state.position.offset == 10


def test_a_reset_to_the_start_reads_again():
    reader = reassigned_without_an_offset(EARLIEST)
    reader.answer("reset", ResetTo(EARLIEST, 0, 0))
    assert [(event.previous, event.position) for event in reader.of(PositionReset)] == [(10, 0)]
    assert reader.asks() == []


def running(activity):
    """A reader whose procedure of this activity waits for its answer."""
    reader = Reader()
    reader.committed(10, Lineage([(1, 0), (2, 6)], 10))
    if activity is Activity.WALKING:
        return reader
    valid(reader)
    if activity is Activity.RANGING:
        reader.fetched(OUT_OF_RANGE)
    elif activity is Activity.LOCATING:
        reader.fetched(NOT_AVAILABLE)
    else:
        reader.client.reset(TP, EARLIEST)
        reader.positions.sought(TP)
        reader.poll()
    return reader


ANSWERS = {
    Activity.WALKING: walked(GONE),
    Activity.RANGING: LogRange(12, 20, None),
    Activity.LOCATING: LocalStart(15),
    Activity.RESETTING: ResetTo(EARLIEST, 12, 12),
}
EACH = pytest.mark.parametrize("activity", ANSWERS, ids=lambda activity: activity.name)


@EACH
def test_a_seek_ends_every_procedure(activity):
    reader = running(activity)
    assert reader.at.activity is activity
    inquiry = reader.part.inquiry
    reader.seek(TP, 0)
    assert inquiry.done
    assert reader.at == (Activity.IDLE, Standing.UNCHECKED)
    [(_, reply)] = reader.questions.asked
    before = list(reader.events)
    reply(ANSWERS[activity])
    reader.poll()
    assert reader.part.state.position.offset == 0
    assert (reader.events, reader.parts.undecided()) == (before, [])


@EACH
def test_a_procedure_of_a_revoked_partition_moves_nothing(activity):
    reader = running(activity)
    inquiry = reader.part.inquiry
    reader.client.states[TP] = State()
    reader.client.place(TP, 3)
    reader.poll()
    assert inquiry.done
    assert reader.part.state.position.offset == 3


@EACH
def test_a_procedure_of_a_closed_consumer_ends(activity):
    reader = running(activity)
    reader.questions.asked.clear()
    reader.part.inquiry.ended(error=IllegalStateError("closed"))
    reader.results.carry_on()
    assert reader.at.activity is Activity.IDLE


@EACH
def test_a_procedure_that_was_cancelled_without_an_event_ends(activity):
    """A hook that seeks while the procedure itself calls it cannot close the procedure."""
    reader = running(activity)
    reader.part.inquiry.cancel()
    reader.results.carry_on()
    assert reader.at.activity is Activity.IDLE


@pytest.mark.parametrize(
    "activity", [Activity.WALKING, Activity.RANGING, Activity.LOCATING], ids=lambda it: it.name
)
def test_what_cannot_be_asked_does_not_stop_the_partition_for_ever(activity):
    reader = running(activity)
    reader.questions.asked.clear()
    before = time.monotonic()
    reader.part.inquiry.ended(error=ClusterAuthorizationFailedError("not you"))
    reader.results.carry_on()
    assert reader.at == (Activity.IDLE, Standing.VALID)
    assert reader.part.state.is_fetchable()
    assert reader.parts.resting(before) == {TP}
    reader.poll()
    assert reader.asks() == []


def test_a_reset_that_cannot_be_asked_is_raised_and_tried_again():
    reader = running(Activity.RESETTING)
    reader.questions.asked.clear()
    reader.part.inquiry.ended(error=ClusterAuthorizationFailedError("not you"))
    with pytest.raises(ClusterAuthorizationFailedError):
        reader.results.carry_on()
    reader.poll()
    assert reader.asks() == [("reset", EARLIEST)]


def test_a_reset_with_another_strategy_is_looked_up_again():
    reader = running(Activity.RESETTING)
    reader.client.reset(TP, LATEST)
    reader.answer("reset", ResetTo(EARLIEST, 0, 0))
    reader.poll()
    assert reader.asks() == [("reset", LATEST)]


def test_what_retention_has_deleted_is_forgotten(reader):
    valid(reader).fetched(OUT_OF_RANGE)
    reader.answer("range", LogRange(12, 20, None))
    assert reader.part.history.lineage.epoch_at(3) is None


def test_what_was_read_after_the_end_is_forgotten(reader):
    valid(reader).fetched(OUT_OF_RANGE)
    reader.answer("range", LogRange(0, 8, None))
    assert reader.part.history.lineage.end_offset == 8


def test_a_log_that_ends_before_the_position_may_have_diverged(reader):
    valid(reader).fetched(OUT_OF_RANGE)
    with pytest.raises(LogDivergedError):
        reader.answer("range", LogRange(0, 8, walked(GONE)))
    assert reader.at.activity is Activity.DIVERGED
    assert not reader.part.state.is_fetchable()


def test_the_topic_that_was_read_stays_until_the_decision(reader):
    with pytest.raises(LogDivergedError, match="deleted and recreated"):
        reader.answer("walk", walked(GONE, topic_id=NEW, recreated=True))
    assert reader.part.history.topic_id == OLD
    reader.seek(TP, 6)
    assert reader.part.history.topic_id == NEW
    assert reader.part.history.former.ids == {OLD}


def test_where_nothing_was_read_and_no_reset_is_allowed_a_new_topic_is_raised():
    reader = Reader(strategy=0)
    reader.client.place(TP, 10)
    reader.poll()
    reader.client.leader = NEW, 1, 0
    reader.poll()
    with pytest.raises(OffsetOutOfRangeError):
        reader.answer("walk", new_topic())
    assert reader.at.activity is Activity.STRANDED
    assert not reader.part.state.is_fetchable()
    reader.client.place(TP, 4)  # not by a decision
    assert reader.parts.undecided() == []
    assert reader.at == (Activity.IDLE, Standing.UNCHECKED)


def test_a_suspicion_about_what_was_read_after_a_seek_cuts_that(reader):
    valid(reader)
    reader.seek(TP, 6)
    reader.poll()
    valid(reader)
    assert not reader.fetched(records=batch(6, 5, 1))  # epoch 2 was read there before
    reader.poll()
    valid(reader)
    assert reader.part.history.lineage.end_offset == 6
    assert reader.fetched(records=batch(6, 5, 1))


def test_a_suspicion_where_nothing_was_read_begins_a_new_history(reader):
    valid(reader)
    reader.seek(TP, 0)
    reader.poll()
    assert not reader.fetched(records=batch(0, 5, 0))
    reader.poll()
    assert reader.at == (Activity.IDLE, Standing.VALID)
    assert reader.part.state.is_fetchable()
    assert reader.fetched(records=batch(0, 5, 0))


# -- what may come in between ------------------------------------------------------------------------------------------


def test_a_seek_between_the_state_and_its_procedure_ends_both(monkeypatch):
    """A signal handler may call `seek` there. The procedure was about the former position, and no poll may use it."""
    reader = Reader()
    begin = ProcedureRunner.begin

    def interrupted(runner, procedure):
        inquiry = begin(runner, procedure)
        monkeypatch.undo()
        reader.seek(TP, 3)
        return inquiry

    monkeypatch.setattr(ProcedureRunner, "begin", interrupted)
    reader.poll()
    assert reader.asks() == [("reset", LATEST)]
    [(_, reply)] = reader.questions.asked
    reader.questions.asked.clear()
    reply(ResetTo(LATEST, 10, 0))
    for _ in range(3):
        reader.poll()
    assert reader.at == (Activity.IDLE, Standing.VALID)
    assert reader.part.state.position.offset == 3


def test_a_result_that_cannot_be_used_is_not_used_again(reader):
    """1. A procedure fails with an error that `poll` raises. 2. The next poll goes on without it."""
    reader.questions.asked.clear()
    reader.part.inquiry.ended(error=ValueError("broken"))
    with pytest.raises(ValueError, match="broken"):
        reader.poll()
    reader.poll()
    assert reader.asks() == [("walk", 10)]
    valid(reader)


def test_an_interrupt_before_the_hold_lets_no_record_through(reader, monkeypatch):
    """1. The leader changes, so the log must be compared. 2. Ctrl-C comes before the partition is held.

    3. The next poll must not fetch from it before the comparison.
    """
    valid(reader)
    reader.client.leader = NEW, 2, 5

    def interrupt(state):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(reader.client, "hold", interrupt)
        with pytest.raises(KeyboardInterrupt):
            reader.poll()
    assert reader.at.activity is Activity.WALKING
    reader.positions.begin_checks()
    assert not reader.part.state.is_fetchable()
    assert reader.asks() == [("walk", 10)]


def test_an_interrupt_leaves_no_partition_that_waits_for_nothing(reader, monkeypatch):
    """A partition that is held because its log differs has the error that says so."""
    [(_, reply)] = reader.questions.asked
    reader.questions.asked.clear()
    reply(walked(GONE))
    on = AssignedPartition.on

    def interrupted(part, event, offset=0):
        actions = on(part, event, offset)
        if event is PositionEvent.DIFFERED:
            raise KeyboardInterrupt
        return actions

    with monkeypatch.context() as patch:
        patch.setattr(AssignedPartition, "on", interrupted)
        with pytest.raises(KeyboardInterrupt):
            reader.poll()
    assert reader.at.activity is Activity.DIVERGED
    with pytest.raises(LogDivergedError):
        reader.poll()


def test_a_hook_that_finds_a_divergence_ends_the_response_that_it_was_called_for(reader, monkeypatch):
    """1. A fetch succeeds after failures, so `PartitionReady` is emitted. 2. The hook calls `position()`.

    3. That compares the log with a newer leader, and finds that it differs. 4. The response contradicts the history,
    too, but nothing is fetched from the partition any more.
    """
    valid(reader)
    assert not reader.fetched(NO_LEADER)
    ended = Pauses.ended

    def hooked(pauses, tp, part):
        ended(pauses, tp, part)
        reader.client.leader = OLD, 2, 5
        reader.positions.begin_checks()
        [(_, reply)] = reader.questions.asked
        reader.questions.asked.clear()
        reply(walked(GONE))
        with pytest.raises(LogDivergedError):
            reader.results.carry_on()

    monkeypatch.setattr(Pauses, "ended", hooked)
    assert reader.fetched(diverging=SimpleNamespace(epoch=1, end_offset=6))
    assert reader.at == (Activity.DIVERGED, Standing.VALID)


def test_the_error_of_a_policy_is_raised_although_it_has_sought_a_position():
    def policy(event):
        reader.seek(TP, event.position)
        raise ValueError("no idea")

    reader = Reader(policy=policy)
    reader.committed(10, Lineage([(1, 0), (2, 6)], 10))
    with pytest.raises(ValueError, match="no idea"):
        reader.answer("walk", walked(GONE))
    assert reader.at.activity is Activity.IDLE
