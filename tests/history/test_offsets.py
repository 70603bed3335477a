"""End offsets that go back only with a proof: decision tables, a model of leaders that lie for a moment, mutants."""

from __future__ import annotations

import json
import random
import uuid
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkasafe.errors import BaselineError
from kafkasafe.history.offset_answers import (
    Held,
    HeldReason,
    Isolation,
    Key,
    Proof,
    Regressed,
    RegressedReason,
    Unproven,
    Value,
)
from kafkasafe.history.offsets import EndOffsets
from kafkasafe.history.remembered_offsets import MAX_FORMER_IDS, MAX_TIMESTAMPS, BaselineFormatError
from kafkasafe.history.sealed import seal
from kafkasafe.offsets import EndOffsetTracker
from kafkasafe.testing.disk import Disk

KEY = Key("orders", 0)
COMMITTED = Key("orders", 0, Isolation.READ_COMMITTED)
OLD, NEW = b"o" * 16, b"n" * 16


def ends(*answers: tuple[int, int], **of) -> EndOffsets:
    tracker = EndOffsets(**of)
    for offset, epoch in answers:
        tracker.observe(KEY, offset, 0.0, leader_epoch=epoch)
    return tracker


# --- latest -----------------------------------------------------------------------------------------------------------


def test_answers_that_go_up_are_believed():
    tracker = EndOffsets()
    assert tracker.end_offset(KEY) is None
    assert tracker.observe(KEY, 0, 0.0) == Value(0)
    assert tracker.observe(KEY, 10, 1.0, leader_epoch=3) == Value(10, 3)
    assert tracker.observe(KEY, 10, 1.0, leader_epoch=4) == Value(10, 4)
    assert tracker.end_offset(KEY) == 10
    tracker.forget(KEY)
    assert tracker.end_offset(KEY) is None
    with pytest.raises(ValueError, match="-1"):
        tracker.observe(KEY, -1, 0.0)


def test_the_measured_bug_10_0_10_never_shows():
    # Brokers 1.1.1 and 2.0.1: no epochs, error 0.
    tracker = ends((10, -1))
    assert tracker.observe(KEY, 0, 1.0) == Held(10, 0, HeldReason.LOWER)
    assert tracker.observe(KEY, 0, 6.9) == Held(10, 0, HeldReason.LOWER, pytest.approx(5.9))
    assert tracker.observe(KEY, 10, 7.0) == Value(10)
    # It is over: a later one begins anew.
    assert tracker.observe(KEY, 9, 100.0) == Held(10, 9, HeldReason.LOWER)


def test_without_epochs_a_lower_answer_that_stays_is_unproven():
    tracker = ends((10, -1), hold_timeout_s=30.0)
    assert isinstance(tracker.observe(KEY, 4, 0.0), Held)
    assert isinstance(tracker.observe(KEY, 5, 29.9), Held)
    assert tracker.observe(KEY, 6, 30.0) == Unproven(10, 6, 30.0)
    assert tracker.end_offset(KEY) == 10, "reported, not believed"
    assert tracker.accept(KEY) == Regressed(6, 10, RegressedReason.ACCEPTED, None)
    assert tracker.accept(KEY) is None
    assert tracker.observe(KEY, 6, 31.0) == Value(6)


def test_with_epochs_the_leader_can_be_asked_and_time_proves_nothing():
    tracker = ends((20, 0))
    for now in (0.0, 1000.0):
        assert tracker.observe(KEY, 10, now, leader_epoch=2) == Held(
            20, 10, HeldReason.LOWER, now, ask_epoch=0
        )


def test_unclean_election_as_measured():
    # ListOffsets 20 → 10, OffsetForLeaderEpoch(0) = (0, 10).
    tracker = ends((20, 0))
    tracker.observe(KEY, 10, 0.0, leader_epoch=2)
    proof = Proof(requested_epoch=0, reply_epoch=0, end_offset=10, leader_epoch=2)
    assert tracker.prove(KEY, 0, 0, 10, 0.1) == Regressed(10, 20, RegressedReason.UNCLEAN_ELECTION, proof)
    assert tracker.end_offset(KEY) == 10
    assert tracker.observe(KEY, 11, 1.0, leader_epoch=2) == Value(11, 2)


def test_a_log_that_became_shorter_under_its_own_epoch():
    tracker = ends((20, 3))
    tracker.observe(KEY, 5, 0.0, leader_epoch=3)
    regressed = tracker.prove(KEY, 3, 3, 5, 0.1, leader_epoch=3)
    assert isinstance(regressed, Regressed)
    assert regressed.reason is RegressedReason.TRUNCATED


def test_only_what_is_proven_is_given_up():
    # The answer itself is early: records up to 15 are there.
    tracker = ends((20, 3))
    tracker.observe(KEY, 5, 0.0, leader_epoch=4)
    assert tracker.prove(KEY, 3, 3, 15, 0.1).offset == 15
    # The log was cut at 10 and has grown since.
    tracker = ends((20, 3))
    tracker.observe(KEY, 17, 0.0, leader_epoch=4)
    assert tracker.prove(KEY, 3, 3, 10, 0.1).offset == 17


@pytest.mark.parametrize(
    ("requested", "reply", "end", "leader", "reason"),
    [
        (3, 3, 20, 4, HeldReason.CATCHING_UP),
        (3, 3, 25, 4, HeldReason.CATCHING_UP),
        (3, 2, 20, 4, HeldReason.CATCHING_UP),
        (3, -1, -1, 4, HeldReason.LOWER),  # unknown, and no loss
        (3, 3, -1, 4, HeldReason.LOWER),
        (3, -1, 5, 4, HeldReason.LOWER),  # a broker that does not say which epoch
        (2, 2, 5, 4, HeldReason.LOWER),  # another question
        (3, 4, 5, 4, HeldReason.LOWER),  # nonsense
        (3, 3, 5, 2, HeldReason.FORMER_LEADER),
    ],
)
def test_what_is_no_proof_lowers_nothing(requested, reply, end, leader, reason):
    tracker = ends((20, 3))
    tracker.observe(KEY, 5, 0.0, leader_epoch=4)
    held = tracker.prove(KEY, requested, reply, end, 2.0, leader_epoch=leader)
    assert held == Held(20, 5, reason, 2.0, ask_epoch=3, refresh_metadata=reason is HeldReason.FORMER_LEADER)
    assert tracker.end_offset(KEY) == 20


def test_a_proof_that_comes_late_changes_nothing():
    tracker = ends((20, 3))
    tracker.observe(KEY, 5, 0.0, leader_epoch=4)
    tracker.observe(KEY, 21, 1.0, leader_epoch=4)
    assert tracker.prove(KEY, 3, 3, 5, 2.0) == Value(21, 4)
    assert EndOffsets().prove(KEY, 3, 3, 5, 2.0) == Value(None)


def test_a_deposed_leader_is_not_believed_however_high():
    tracker = ends((10, 4))
    assert tracker.observe(KEY, 30, 0.0, leader_epoch=3) == Held(
        10, 30, HeldReason.FORMER_LEADER, refresh_metadata=True
    )
    assert tracker.end_offset(KEY) == 10


def test_an_end_without_epoch_is_not_proven_by_a_former_one():
    # Records up to 20 may be of an epoch newer than 3: where 3 ends says nothing of them.
    tracker = ends((10, 3), (20, -1))
    assert tracker.observe(KEY, 15, 0.0, leader_epoch=5) == Held(20, 15, HeldReason.LOWER)
    assert isinstance(tracker.prove(KEY, 3, 3, 10, 0.1, leader_epoch=5), Held)


@pytest.mark.parametrize(
    ("code", "reason", "refresh"),
    [(78, HeldReason.OFFSET_NOT_AVAILABLE, False), (5, HeldReason.LEADER_NOT_AVAILABLE, True)],
)
def test_a_leader_that_is_not_ready_is_waited_for(code, reason, refresh):
    assert EndOffsets().unavailable(KEY, code, 0.0) == Held(None, None, reason, refresh_metadata=refresh)
    tracker = ends((10, 3))
    assert tracker.unavailable(KEY, code, 0.0) == Held(10, None, reason, refresh_metadata=refresh)
    tracker.observe(KEY, 5, 1.0, leader_epoch=4)
    assert tracker.unavailable(KEY, code, 4.0).since_s == 3.0
    with pytest.raises(ValueError, match="error code 6"):
        tracker.unavailable(KEY, 6, 0.0)


def test_isolation_levels_are_apart():
    tracker = ends((10, 3))
    assert tracker.observe(COMMITTED, 4, 0.0, leader_epoch=3) == Value(4, 3)
    assert (tracker.end_offset(KEY), tracker.end_offset(COMMITTED)) == (10, 4)


# --- a new topic of the same name ---------------------------------------------------------------------------------------


def test_a_recreated_topic_is_proven_by_its_id():
    tracker = EndOffsets()
    tracker.observe(KEY, 10, 0.0, leader_epoch=7, topic_id=OLD)
    proof = Proof(old_topic_id=OLD, topic_id=NEW)
    assert tracker.observe(KEY, 2, 1.0, leader_epoch=0, topic_id=NEW) == Regressed(
        2, 10, RegressedReason.RECREATED, proof
    )
    # A broker that has not heard yet.
    assert tracker.observe(KEY, 50, 2.0, leader_epoch=7, topic_id=OLD) == Held(
        2, 50, HeldReason.FORMER_TOPIC, refresh_metadata=True
    )
    assert tracker.observe(KEY, 3, 3.0, leader_epoch=0, topic_id=NEW) == Value(3, 0)
    assert tracker.observe(KEY, 4, 3.0, leader_epoch=0) == Value(4, 0)


def test_a_recreated_topic_that_is_longer_is_told():
    tracker = EndOffsets()
    tracker.observe(KEY, 10, 0.0, topic_id=OLD)
    assert tracker.observe(KEY, 12, 1.0, topic_id=NEW) == Value(12, recreated=True)


def test_whichever_look_up_notices_it_the_end_is_lowered_with_the_proof():
    tracker = EndOffsets()
    tracker.observe(KEY, 10, 0.0, topic_id=OLD)
    assert tracker.observe_start(KEY, 0, topic_id=NEW) == Value(0, recreated=True)
    assert tracker.observe_start(KEY, 0, topic_id=b"3" * 16) == Value(0, recreated=True)
    assert tracker.observe_start(KEY, 0, topic_id=OLD) == Held(
        0, 0, HeldReason.FORMER_TOPIC, refresh_metadata=True
    )
    assert tracker.observe_timestamp(KEY, 5, 0, topic_id=OLD) == Held(
        None, 0, HeldReason.FORMER_TOPIC, refresh_metadata=True
    )
    regressed = tracker.observe(KEY, 2, 1.0, topic_id=b"3" * 16)
    assert (regressed.offset, regressed.previous, regressed.reason) == (2, 10, RegressedReason.RECREATED)


def test_a_topic_between_two_others_does_not_stay_the_newest_one():
    """Two recreations within the age of a broker's metadata: ids do not say which of two topics is the newer one."""
    between = b"b" * 16
    tracker = EndOffsets(hold_timeout_s=30.0)
    tracker.observe(KEY, 10, 0.0, topic_id=OLD)
    tracker.observe(KEY, 4, 1.0, topic_id=NEW)
    # A broker with older metadata.
    assert tracker.observe(KEY, 7, 2.0, topic_id=between) == Value(7, recreated=True)
    held = Held(7, 5, HeldReason.FORMER_TOPIC, refresh_metadata=True)
    assert tracker.observe(KEY, 5, 3.0, topic_id=NEW) == held
    assert tracker.observe_start(KEY, 0, 32.9, topic_id=NEW).reason is HeldReason.FORMER_TOPIC
    back = tracker.observe(KEY, 5, 33.0, topic_id=NEW)
    proof = Proof(old_topic_id=between, topic_id=NEW)
    assert back == Regressed(5, 7, RegressedReason.RECREATED, proof)
    assert tracker.observe(KEY, 6, 34.0, topic_id=NEW) == Value(6)
    assert isinstance(tracker.observe(KEY, 7, 35.0, topic_id=between), Held)


def test_a_former_topic_stays_former_while_others_name_the_present_one():
    tracker = EndOffsets(hold_timeout_s=30.0)
    tracker.observe(KEY, 10, 0.0, topic_id=OLD)
    tracker.observe(KEY, 4, 1.0, topic_id=NEW)
    for second in range(2, 200, 2):
        held = tracker.observe(KEY, 10, float(second), topic_id=OLD)
        assert isinstance(held, Held)
        assert held.reason is HeldReason.FORMER_TOPIC
        if second % 20 == 0:
            tracker.observe_timestamp(KEY, 5, 0, second + 1.0, topic_id=NEW)


def test_two_former_topics_in_turn_are_both_former():
    tracker = EndOffsets(hold_timeout_s=30.0)
    for number, topic_id in enumerate((b"a" * 16, b"b" * 16, NEW)):
        tracker.observe(KEY, 10, float(number), topic_id=topic_id)
    for second in range(3, 200):
        topic_id = (b"a" if second % 2 else b"b") * 16
        assert isinstance(tracker.observe(KEY, 10, float(second), topic_id=topic_id), Held)


def test_the_ids_of_deleted_topics_are_bounded():
    tracker = EndOffsets()
    for number in range(100):
        tracker.observe(KEY, 0, 0.0, topic_id=number.to_bytes(16, "big"))
    assert len(json.loads(tracker.encode())["partitions"][0]["former_ids"]) == MAX_FORMER_IDS


# --- earliest, by timestamp ---------------------------------------------------------------------------------------------


def test_the_earliest_offset_goes_up():
    tracker = EndOffsets()
    assert tracker.observe_start(KEY, 5) == Value(5)
    assert tracker.observe_start(KEY, 3) == Held(5, 3, HeldReason.LOWER)
    assert tracker.observe_start(KEY, 8) == Value(8)
    with pytest.raises(ValueError, match="-1"):
        tracker.observe_start(KEY, -1)


def test_an_unclean_election_takes_the_start_along():
    tracker = ends((20, 0))
    tracker.observe_start(KEY, 15)
    tracker.observe(KEY, 10, 0.0, leader_epoch=2)
    tracker.prove(KEY, 0, 0, 10, 0.0)
    assert tracker.observe_start(KEY, 10) == Value(10)


class TestALowerStart:
    @pytest.fixture
    def tracker(self):
        tracker = EndOffsets(hold_timeout_s=30.0)
        tracker.observe_start(KEY, 5, 0.0, leader_epoch=3, topic_id=OLD)
        assert tracker.observe_start(KEY, 2, 1.0, leader_epoch=1) == Held(5, 2, HeldReason.LOWER, ask_epoch=3)
        return tracker

    def test_of_a_log_that_has_the_first_record_still_is_held(self, tracker):
        """However long: the records in front of it are those that were deleted."""
        for now in (1.0, 500.0):
            held = tracker.prove_start(KEY, 3, 3, 6, now, leader_epoch=4)
            assert (held.offset, held.answered, held.reason) == (5, 2, HeldReason.NOT_DELETED)
        # Up to it the log is the same even where it ends right there.
        assert tracker.prove_start(KEY, 3, 3, 5, 2.0, leader_epoch=4).reason is HeldReason.NOT_DELETED

    def test_of_another_log_is_believed(self, tracker):
        assert tracker.prove_start(KEY, 3, 2, 4, 2.0, leader_epoch=4) == Regressed(
            2, 5, RegressedReason.UNCLEAN_ELECTION, Proof(3, 2, 4, 4)
        )
        assert tracker.observe_start(KEY, 2, 3.0, leader_epoch=4) == Value(2, 4)
        assert tracker.prove_start(KEY, 4, 4, 9, 3.0) == Value(2, 4)  # nothing is held

    def test_under_the_same_leader_is_a_truncation(self, tracker):
        assert tracker.prove_start(KEY, 3, 3, 0, 2.0, leader_epoch=3).reason is RegressedReason.TRUNCATED

    @pytest.mark.parametrize(("requested", "reply", "end"), [(3, -1, -1), (3, 4, 2), (2, 2, 2)])
    def test_an_answer_that_tells_nothing_proves_nothing_for_a_while(self, tracker, requested, reply, end):
        assert tracker.prove_start(KEY, requested, reply, end, 2.0) == Held(5, 2, HeldReason.LOWER, 1.0)
        assert tracker.prove_start(KEY, requested, reply, end, 31.0) == Unproven(5, 2, 30.0)
        assert tracker.accept_start(KEY) == Regressed(2, 5, RegressedReason.ACCEPTED, None)
        assert tracker.accept_start(KEY) is None

    def test_of_a_deposed_leader_is_asked_for_again(self, tracker):
        tracker.observe(KEY, 20, 1.0, leader_epoch=7)
        held = tracker.prove_start(KEY, 3, 3, 6, 2.0, leader_epoch=6)
        assert (held.reason, held.refresh_metadata) == (HeldReason.FORMER_LEADER, True)

    def test_that_is_over_is_forgotten(self, tracker):
        tracker.observe_start(KEY, 6, 20.0, leader_epoch=3)
        assert tracker.observe_start(KEY, 2, 60.0, leader_epoch=1).since_s == 0.0

    def test_of_a_topic_that_was_recreated(self, tracker):
        value = tracker.observe_start(KEY, 0, 2.0, leader_epoch=0, topic_id=NEW)
        assert (value.offset, value.recreated, value.previous) == (0, True, 5)
        assert tracker.observe_start(KEY, 0, 3.0, leader_epoch=0, topic_id=NEW).previous is None

    def test_of_a_topic_whose_recreation_another_look_up_noticed(self, tracker):
        tracker.observe(KEY, 9, 2.0, topic_id=NEW)
        assert tracker.observe_start(KEY, 0, 3.0, topic_id=NEW).previous == 5

    def test_without_topic_ids_is_believed_in_the_end(self):
        """A topic that was recreated counts its epochs from 0 again: they prove nothing."""
        tracker = EndOffsets(hold_timeout_s=30.0)
        tracker.observe_start(KEY, 5, 0.0, leader_epoch=0)
        tracker.observe_start(KEY, 0, 1.0, leader_epoch=0)
        assert tracker.prove_start(KEY, 0, 0, 9, 2.0, leader_epoch=0).reason is HeldReason.NOT_DELETED
        assert isinstance(tracker.prove_start(KEY, 0, 0, 9, 32.0, leader_epoch=0), Unproven)

    def test_in_the_next_life(self, tracker):
        again = EndOffsets()
        again.restore(tracker.encode())
        assert again.observe_start(KEY, 2, 0.0).ask_epoch == 3

    def test_in_a_life_after_one_that_did_not_keep_epochs(self, tracker):
        text = tracker.encode()
        content = json.loads(text)
        rows = [{name: row[name] for name in row if name != "start_epoch"} for row in content["partitions"]]
        again = EndOffsets()
        again.restore(seal("end offsets", 1, rows))
        assert again.observe_start(KEY, 2, 0.0) == Held(5, 2, HeldReason.LOWER)


def test_where_the_log_parted_decides_what_else_is_void():
    """The new log may have grown past that place by the time that it is asked."""
    tracker = ends((20, 0))
    tracker.observe_start(KEY, 5)
    tracker.observe_timestamp(KEY, 1000, 7)
    tracker.observe(KEY, 12, 0.0, leader_epoch=2)
    assert tracker.prove(KEY, 0, 0, 3, 0.0).offset == 12
    assert tracker.observe_start(KEY, 0) == Value(0)
    assert tracker.observe_timestamp(KEY, 1000, None) == Value(None)


def test_what_is_held_of_a_look_up_by_time_has_the_record_s_own_fields():
    tracker = EndOffsets()
    tracker.observe_timestamp(KEY, 1000, 7, leader_epoch=2, found_timestamp_ms=1003)
    held = tracker.observe_timestamp(KEY, 1000, None)
    assert (held.offset, held.leader_epoch, held.timestamp_ms) == (7, 2, 1003)


def test_a_record_that_was_found_stays_found():
    tracker = EndOffsets()
    assert tracker.observe_timestamp(KEY, 1000, None) == Value(None)
    assert tracker.observe_timestamp(KEY, 1000, 7) == Value(7)
    assert tracker.observe_timestamp(KEY, 1000, None) == Held(7, None, HeldReason.NOT_FOUND)
    assert tracker.observe_timestamp(KEY, 2000, None) == Value(None)
    tracker.observe_start(KEY, 8)  # retention took it
    assert tracker.observe_timestamp(KEY, 1000, None) == Value(None)
    assert tracker.observe_timestamp(KEY, 1000, 9) == Value(9)
    with pytest.raises(ValueError, match="None"):
        tracker.observe_timestamp(KEY, 1000, -1)


def test_a_record_that_was_truncated_is_not_looked_for():
    tracker = ends((20, 0))
    tracker.observe_timestamp(KEY, 1000, 15)
    tracker.observe_timestamp(KEY, 500, 5)
    tracker.observe(KEY, 10, 0.0, leader_epoch=2)
    tracker.prove(KEY, 0, 0, 10, 0.0)
    assert tracker.observe_timestamp(KEY, 1000, None) == Value(None)
    assert isinstance(tracker.observe_timestamp(KEY, 500, None), Held)


def test_timestamps_are_bounded():
    tracker = EndOffsets()
    for timestamp in range(MAX_TIMESTAMPS + 1):
        tracker.observe_timestamp(KEY, timestamp, timestamp)
    assert tracker.observe_timestamp(KEY, 0, None) == Value(None)
    assert isinstance(tracker.observe_timestamp(KEY, 1, None), Held)


# --- stored -------------------------------------------------------------------------------------------------------------


def test_the_next_life_remembers():
    tracker = EndOffsets()
    tracker.observe(KEY, 10, 0.0, leader_epoch=3, topic_id=OLD)
    tracker.observe(KEY, 12, 0.0, leader_epoch=4, topic_id=NEW)
    tracker.observe(COMMITTED, 9, 0.0)
    tracker.observe_start(KEY, 5)
    tracker.observe(KEY, 2, 99.0, leader_epoch=4)
    again = EndOffsets()
    again.restore(tracker.encode())
    assert (again.end_offset(KEY), again.end_offset(COMMITTED)) == (12, 9)
    assert again.observe(KEY, 2, 1.0, leader_epoch=5) == Held(12, 2, HeldReason.LOWER, ask_epoch=4)
    assert again.observe(KEY, 50, 1.0, topic_id=OLD).reason is HeldReason.FORMER_TOPIC
    assert again.observe_start(KEY, 4) == Held(5, 4, HeldReason.LOWER)


def stored(**changed) -> str:
    tracker = EndOffsets()
    tracker.observe(KEY, 10, 0.0, topic_id=OLD)
    rows = json.loads(tracker.encode())["partitions"]
    rows[0] |= changed
    return seal("end offsets", 1, rows)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        seal("end offsets", 2, []),
        seal("something else", 1, []),
        seal("end offsets", 1, [{}]),
        seal("end offsets", 1, [5]),
        stored().replace("10", "11"),
        '{"kafkasafe": "end offsets", "version": 1, "partitions": []}',
        stored(end=-2),
        stored(end=True),
        stored(end="5"),
        stored(topic=5),
        stored(topic_id="xyz"),
        stored(isolation=2),
        stored(former_ids=5),
    ],
)
def test_a_damaged_baseline_is_refused_and_changes_nothing(text):
    tracker = ends((10, 3))
    with pytest.raises(BaselineFormatError):
        tracker.restore(text)
    assert tracker.end_offset(KEY) == 10


# --- the model: leaders with lagging high watermarks, elections, truncation -----------------------------------------------


class Cluster:
    """One partition: what is committed, and what its leader says of it."""

    def __init__(self) -> None:
        self.log: list[int] = []  # the epoch of each record
        self.epoch = 0
        self.lag = 0
        self.topic_id = 0

    @property
    def answer(self) -> int:
        return max(0, len(self.log) - self.lag)

    def end_of(self, epoch: int) -> tuple[int, int]:
        """OffsetForLeaderEpoch, as brokers answer it."""
        if epoch > self.epoch:
            return -1, -1
        older = [each for each in self.log if each <= epoch]
        if epoch == self.epoch:
            return epoch, len(self.log)
        return (older[-1], len(older)) if older else (epoch, 0)


actions = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(1, 5)),
        st.tuples(st.just("lag"), st.integers(0, 8)),
        st.tuples(st.just("move"), st.integers(0, 8)),
        st.tuples(st.just("unclean"), st.integers(1, 8)),
        st.tuples(st.just("recreate"), st.integers(0, 9)),
        st.tuples(st.just("ask"), st.just(0)),
    ),
    max_size=30,
)


def check(script, tracker: EndOffsets) -> None:
    """A believed value never goes back unless records were cut or the topic is new, and never below what is there."""
    cluster, believed, cut, now = Cluster(), -1, False, 0.0
    for action, number in script:
        now += 1.0
        match action:
            case "write":
                cluster.log += [cluster.epoch] * number
                cluster.lag = 0
            case "lag":
                cluster.lag = number
            case "move":
                cluster.epoch += 1
                cluster.lag = number
            case "unclean":
                cluster.epoch += 1
                cut = cut or bool(cluster.log)
                del cluster.log[max(0, len(cluster.log) - number) :]
            case "recreate":
                cluster.topic_id, cluster.epoch, cluster.lag = cluster.topic_id + 1, 0, 0
                cluster.log, cut = [0] * number, True
            case _:
                pass
        result = tracker.observe(
            KEY, cluster.answer, now, leader_epoch=cluster.epoch, topic_id=bytes([cluster.topic_id] * 16)
        )
        if isinstance(result, Held) and action == "ask" and result.ask_epoch is not None:
            reply = cluster.end_of(result.ask_epoch)
            result = tracker.prove(KEY, result.ask_epoch, *reply, now, leader_epoch=cluster.epoch)
            if believed > len(cluster.log):
                assert isinstance(result, Regressed), "cut, and not noticed"
        assert not isinstance(result, Unproven)
        assert action != "recreate" or not isinstance(result, Held), "the new topic is not believed"
        if isinstance(result, Regressed):
            assert cut, "regressed, and nothing was cut"
            assert result.offset <= len(cluster.log)
            assert result.offset >= cluster.answer
            assert result.proof is not None
            assert result.offset >= result.proof.end_offset, "given up, and it is there"
        elif believed >= 0 and not (isinstance(result, Value) and result.recreated):
            assert result.offset >= believed, "went back without a proof"
        if isinstance(result, Value):
            assert result.offset <= len(cluster.log)
        believed = result.offset
        cut = cut and (isinstance(result, Held) or believed > len(cluster.log))


@settings(max_examples=300, deadline=None)
@given(actions)
def test_the_end_goes_back_only_when_records_are_gone(script):
    check(script, EndOffsets())


class BelievesTheAnswer(EndOffsets):
    def _hold(self, known, offset, now, leader_epoch):
        known.end = offset
        return Value(offset, leader_epoch)


class LowersToTheAnswer(EndOffsets):
    def _lower(self, known, offset, reason, proof):
        return super()._lower(known, known.lower_ends.answered, reason, proof)


class LowersWhenAsked(EndOffsets):
    """Any answer to OffsetForLeaderEpoch is a proof."""

    def prove(self, key, requested_epoch, reply_epoch, end_offset, now, **of):
        known = self._of(key)
        return self._lower(known, known.lower_ends.answered, RegressedReason.TRUNCATED, Proof())


class NeverLowers(EndOffsets):
    def prove(self, key, requested_epoch, reply_epoch, end_offset, now, **of):
        return super().prove(key, requested_epoch, reply_epoch, 10**9, now, **of)


class IgnoresTopicIds(EndOffsets):
    def observe(self, key, offset, now, *, leader_epoch=-1, topic_id=None):
        return super().observe(key, offset, now, leader_epoch=leader_epoch)


class ForgetsTheEpochOfTheEnd(EndOffsets):
    """Asks about the newest epoch heard of, under which the lower answer came."""

    def _hold(self, known, offset, now, leader_epoch):
        known.end_epoch = known.newest_epoch
        return super()._hold(known, offset, now, leader_epoch)


@pytest.mark.parametrize(
    "mutant", [BelievesTheAnswer, LowersToTheAnswer, LowersWhenAsked, NeverLowers, IgnoresTopicIds]
)
def test_the_model_finds_trackers_with_a_rule_less(mutant):
    assert found(mutant)
    assert not found(EndOffsets)


def test_the_model_finds_a_tracker_that_asks_about_the_wrong_epoch():
    # Where the present epoch ends is the end of the log, whatever was cut before it.
    tracker = ForgetsTheEpochOfTheEnd()
    tracker.observe(KEY, 20, 0.0, leader_epoch=0)
    assert tracker.observe(KEY, 12, 0.0, leader_epoch=2).ask_epoch != 0
    assert ends((20, 0)).observe(KEY, 12, 0.0, leader_epoch=2).ask_epoch == 0


def found(kind: type[EndOffsets]) -> bool:
    for seed in range(200):
        chance = random.Random(seed)
        script = [
            (
                chance.choice(["write", "write", "lag", "move", "unclean", "recreate", "ask"]),
                chance.randint(1, 8),
            )
            for _ in range(20)
        ]
        try:
            check(script, kind())
        except AssertionError:
            return True
    return False


# --- around any client ----------------------------------------------------------------------------------------------------


class TopicPartition(NamedTuple):
    topic: str
    partition: int


def test_around_kafka_python():
    heard = []
    tracker = EndOffsetTracker(on_result=lambda *of: heard.append(of))
    one, two = TopicPartition("orders", 0), TopicPartition("orders", 1)
    assert tracker.end_offsets({one: 10, two: 5}) == {one: 10, two: 5}
    assert tracker.end_offsets({one: 0, two: 6}) == {one: 10, two: 6}
    assert [(topic, partition, held.offset) for topic, partition, held in heard] == [("orders", 0, 10)]
    assert tracker.end_offset("orders", 1) == 6
    assert tracker.end_offset("orders", 1, isolation_level="read_committed") is None
    assert tracker.end_offsets({one: 4}, isolation_level="read_committed") == {one: 4}


def test_the_clock_is_the_tracker_s():
    now = [0.0]
    tracker = EndOffsetTracker(hold_timeout_s=5.0, clock=lambda: now[0])
    tracker.observe("orders", 0, 10)
    assert isinstance(tracker.observe("orders", 0, 3), Held)
    assert tracker.unavailable("orders", 0, 78).offset == 10
    now[0] = 5.0
    assert tracker.observe("orders", 0, 3) == Unproven(10, 3, 5.0)
    assert tracker.accept("orders", 0) == Regressed(3, 10, RegressedReason.ACCEPTED, None)
    assert tracker.accept("orders", 0) is None


def test_a_proof_through_the_tracker():
    tracker = EndOffsetTracker()
    tracker.observe("orders", 0, 20, leader_epoch=0, topic_id=uuid.UUID(int=5))
    held = tracker.observe("orders", 0, 10, leader_epoch=2, topic_id=uuid.UUID(int=5).bytes)
    assert held.ask_epoch == 0
    regressed = tracker.prove("orders", 0, requested_epoch=0, reply_epoch=0, end_offset=10, leader_epoch=2)
    assert regressed.reason is RegressedReason.UNCLEAN_ELECTION
    assert repr(tracker) == "<EndOffsetTracker in memory>"


def test_a_wrong_isolation_level_is_named():
    with pytest.raises(ValueError, match="read_uncommitted, read_committed"):
        EndOffsetTracker().observe("orders", 0, 1, isolation_level="committed")


def test_the_file_outlives_the_process(tmp_path):
    path = tmp_path / "ends.json"
    with EndOffsetTracker(path) as tracker:
        tracker.observe("orders", 0, 10, leader_epoch=3)
        tracker.save()
        assert sorted(each.name for each in tmp_path.iterdir()) == ["ends.json"]
        tracker.observe("orders", 0, 12, leader_epoch=3)
    again = EndOffsetTracker(str(path))
    assert again.end_offset("orders", 0) == 12
    assert "ends.json" in repr(again)
    EndOffsetTracker().save()


def test_the_tracker_judges_starts_and_look_ups_by_time_too():
    told = []
    tracker = EndOffsetTracker(on_result=lambda *result: told.append(result))
    assert tracker.observe_start("orders", 0, 5, topic_id=uuid.UUID(bytes=OLD)) == Value(5)
    assert tracker.observe_start("orders", 0, 3) == Held(5, 3, HeldReason.LOWER)
    assert tracker.observe_timestamp("orders", 0, 1000, 7) == Value(7)
    assert tracker.observe_timestamp("orders", 0, 1000, None) == Held(7, None, HeldReason.NOT_FOUND)
    assert [reason.reason for _, _, reason in told] == [HeldReason.LOWER, HeldReason.NOT_FOUND]
    tracker.observe_start("orders", 0, 8)
    assert tracker.observe_timestamp("orders", 0, 1000, None) == Value(None)
    assert tracker.observe_start("orders", 0, 0, topic_id=NEW) == Value(0, recreated=True)
    assert tracker.observe_timestamp("orders", 0, 9, 1, topic_id=OLD).reason is HeldReason.FORMER_TOPIC


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"{}", seal("end offsets", 9, []).encode()])
def test_a_file_of_something_else_is_refused_and_kept(tmp_path, content):
    path = tmp_path / "ends.json"
    path.write_bytes(content)
    with pytest.raises(BaselineError, match=r"ends\.json"):
        EndOffsetTracker(path)
    assert path.read_bytes() == content


def test_a_loss_of_power_leaves_the_old_file_or_the_new_one():
    disk, path = Disk(), Path("/var/ends.json")
    disk.process().make_directory(path.parent)
    tracker = EndOffsetTracker(path, files=disk.process())
    saved = []
    for end in (10, 12):
        tracker.observe("orders", 0, end)
        tracker.save()
        saved.append(len(disk.operations))
    for state in disk.crash_states(samples=8):
        found = EndOffsetTracker(path, files=state.disk.process()).end_offset("orders", 0)
        promised = 12 if state.at >= saved[1] else 10 if state.at >= saved[0] else None
        assert found in {promised, 12 if state.at > saved[0] else 10}, state.how


@pytest.mark.parametrize("operation", ["open", "writev", "sync_data", "rename", "truncate"])
def test_a_failed_save_leaves_the_former_file(operation):
    disk, path = Disk(), Path("/var/ends.json")
    disk.process().make_directory(path.parent)
    process = disk.process()
    tracker = EndOffsetTracker(path, files=process)
    tracker.observe("orders", 0, 10)
    tracker.save()
    tracker.observe("orders", 0, 12)
    disk.fail(operation)
    with pytest.raises(OSError, match="Input/output error"):
        tracker.save()
    assert process.open_handles == 0
    assert EndOffsetTracker(path, files=disk.process()).end_offset("orders", 0) == 10
    disk.fail("writev", error=0)  # a short write
    tracker.save()
    assert EndOffsetTracker(path, files=disk.process()).end_offset("orders", 0) == 12
