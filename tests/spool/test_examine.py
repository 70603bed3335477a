"""What became of a batch, told from outside: only what was seen is said."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkasafe import marks as m
from kafkasafe.cli.concerns import concerns_of
from kafkasafe.history.identity import BatchId, ProducerView
from kafkasafe.spool.examine import Examination, ExchangeStep, Finding, SpoolFate, SpoolOutcome, fates

IDS = [BatchId(7, 0, 0, 5), BatchId(7, 0, 5, 5), BatchId(7, 0, 10, 5)]


def header(batch, at, count=None):
    return (
        at,
        at + batch.count - 1,
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
        batch.count if count is None else count,
    )


def examined(log, *, start=0, end=None, log_start=0, views=None, until=None, batches=IDS):
    """`log`: (offset, batch). `until`: the high watermark."""
    end = max([log_start, start, *(at + b.count for at, b in log)]) if end is None else end
    seen = Examination(batches, start, end, log_start)
    until = end if until is None else until
    seen.page(
        [header(b, at) for at, b in log if log_start <= at and at + b.count <= until],
        next_offset=until,
        log_start_offset=log_start,
    )
    return seen.verdicts(views or {})


def findings(*args, **more):
    return [verdict.finding for verdict in examined(*args, **more)]


C, A, P = Finding.COMMITTED, Finding.ABSENT, Finding.APPENDED
K, N = Finding.UNDECIDABLE, Finding.NOT_ANSWERED
OTHER = BatchId(9, 0, 0, 10)


def view(last_sequence, epoch=0):
    return {7: ProducerView(epoch, last_sequence, 0)}


@pytest.mark.parametrize(
    ("expected", "given_"),
    [
        ([C, C, A], {"log": [(0, IDS[0]), (5, IDS[1])]}),
        ([A, A, A], {"log": [(0, OTHER)]}),
        # The log is trimmed past the place, nobody remembers.
        ([K, K, K], {"log": [(20, OTHER)], "log_start": 20}),
        # The leader remembers.
        ([C, C, A], {"log": [(20, OTHER)], "log_start": 20, "views": view(9)}),
        # A later one is there: the earlier was.
        ([C, C, A], {"log": [(20, IDS[1])], "log_start": 20}),
        # Behind one that was found everything was seen.
        ([C, A, A], {"log": [(20, IDS[0])], "log_start": 20}),
        # Above the high watermark.
        ([C, P, A], {"log": [(0, IDS[0]), (5, IDS[1])], "until": 5, "end": 15, "views": view(9)}),
        ([C, N, N], {"log": [(0, IDS[0]), (5, IDS[1])], "until": 5, "end": 15}),
        # A newer epoch speaks for nothing of ours; all of the log was read.
        ([A, A, A], {"log": [(0, OTHER)], "views": view(3, epoch=4)}),
        # The state says yes, the log that was read says no.
        ([K, A, A], {"log": [(0, OTHER)], "views": view(4)}),
        # A hole between offsets: compaction.
        ([K, K, K], {"log": [(10, OTHER)]}),
    ],
)
def test_findings(expected, given_):
    assert findings(**given_) == expected


def test_more_than_once_is_told():
    (verdict, *_) = examined([(0, IDS[0]), (5, IDS[0])])
    assert verdict.offsets == (0, 5)
    assert "DUPLICATED" in verdict.evidence


def test_another_batch_under_the_same_id_is_not_ours():
    seen = Examination(IDS, 0, 4, 0)
    seen.page([(0, 3, 7, 0, 0, 4)], next_offset=4, log_start_offset=0)
    verdict = seen.verdicts({})[0]
    assert (verdict.finding, verdict.offsets) == (K, ())


@given(st.data())
def test_nothing_is_said_that_is_not_so(data):
    """A log with some of the batches, in order, between others'; part of it trimmed, part not replicated."""
    batches = []
    for producer in range(data.draw(st.integers(1, 2))):
        sequence = 0
        for _ in range(data.draw(st.integers(1, 4))):
            count = data.draw(st.integers(1, 3))
            batches.append(BatchId(producer, 0, sequence, count))
            sequence += count
    log, at, truth = [], data.draw(st.integers(0, 3)), {}
    begin = at
    last = {}
    gone = set()
    for batch in batches:
        if data.draw(st.booleans()):
            noise = data.draw(st.integers(1, 3))
            log.append((at, BatchId(99, 0, at, noise)))
            at += noise
        # In order, without gaps: as a leader that remembers takes them.
        if batch.producer_id not in gone and data.draw(st.booleans()):
            log.append((at, batch))
            truth[batch] = at
            last[batch.producer_id] = batch.last_sequence
            at += batch.count
        else:
            gone.add(batch.producer_id)
    starts = [begin, *(offset for offset, _ in log), at]
    log_start = data.draw(st.sampled_from(starts))
    until = data.draw(st.sampled_from([s for s in starts if s >= log_start]))
    views = {p: ProducerView(0, s, 0) for p, s in last.items() if data.draw(st.booleans())}
    verdicts = examined(
        log, start=begin, end=at, log_start=log_start, until=until, views=views, batches=batches
    )
    for batch, verdict in zip(batches, verdicts, strict=True):
        where = truth.get(batch)
        match verdict.finding:
            case Finding.COMMITTED:
                assert where is not None
                assert verdict.offsets in {(), (where,)}
                assert where < until
            case Finding.APPENDED:
                assert where is not None
                # With part of the log trimmed it may have been there.
                assert where >= until or where < log_start
            case Finding.ABSENT:
                assert where is None
            case _:
                assert log_start > begin or until < at
        if log_start <= begin and until == at:
            assert (verdict.finding is Finding.COMMITTED) == (where is not None)


def test_what_a_spool_knows_of_its_batches():
    marks = [
        (0, [m.Destination(1, "t", 0)]),
        (10, [m.Committed(1, 0, ((2, 100), (3, 101), (4, -1)))]),
        (20, [m.Rejected(5, 10, "too large"), m.Replaced(6, 0, 2)]),
        # Two of them were lost: one is sent again, one given up; a third is elsewhere.
        (30, [m.Revived(1, 100, (2,), (3,), ((4, 77),))]),
    ]
    told = fates(marks, {2: False, 7: True, 8: False})
    assert {position: (fate.fate, fate.base_offset) for position, fate in told.items()} == {
        2: (SpoolOutcome.NOT_SENT, -1),
        3: (SpoolOutcome.LOST, -1),
        4: (SpoolOutcome.COMMITTED, 77),
        5: (SpoolOutcome.REJECTED, -1),
        6: (SpoolOutcome.REPLACED, -1),
        7: (SpoolOutcome.IN_DOUBT, -1),
        8: (SpoolOutcome.NOT_SENT, -1),
    }
    assert told[5].note == "too large (10)"
    assert fates(marks, {7: True, 8: False}, blind_before=8)[7].fate is SpoolOutcome.UNKNOWN


SAFE = {
    "min.insync.replicas": "2",
    "unclean.leader.election.enable": "false",
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "message.timestamp.type": "CreateTime",
    "message.timestamp.before.max.ms": str(2**63 - 1),
}


@pytest.mark.parametrize(
    ("change", "broker", "named"),
    [
        ({}, {}, set()),
        ({"min.insync.replicas": "1"}, {}, {("breaks", "min.insync.replicas")}),
        ({"retention.ms": "3600000"}, {}, {("breaks", "retention.ms")}),
        ({"retention.ms": "3600000", "cleanup.policy": "compact"}, {}, {("note", "cleanup.policy")}),
        ({"cleanup.policy": "compact", "min.compaction.lag.ms": "86400000"}, {}, set()),
        ({"retention.bytes": "1000"}, {}, {("note", "retention.bytes")}),
        ({"message.timestamp.before.max.ms": "1000"}, {}, {("breaks", "message.timestamp.before.max.ms")}),
        ({"message.timestamp.before.max.ms": "1000", "message.timestamp.type": "LogAppendTime"}, {}, set()),
        ({}, {"producer.id.expiration.ms": "1000"}, {("breaks", "producer.id.expiration.ms")}),
        ({}, {"producer.id.expiration.ms": "86400000"}, set()),
        # What is not told, or no number, is passed over.
        ({"min.insync.replicas": None, "retention.ms": "?"}, {"producer.id.expiration.ms": None}, set()),
    ],
)
def test_settings(change, broker, named):
    found = concerns_of(
        SAFE | change, broker, replicas=3, outage_ms=86_400_000, assumed_expiration_ms=86_400_000
    )
    assert {(concern.level, concern.setting) for concern in found} == named


def test_one_replica():
    found = concerns_of(SAFE, {}, replicas=1, outage_ms=1, assumed_expiration_ms=1)
    assert [concern.setting for concern in found] == ["replication factor"]


def test_every_fate_has_its_step_of_the_two_phase_exchange():
    steps = {fate: SpoolFate(fate, base_offset=7).step for fate in SpoolOutcome}
    assert steps == {
        SpoolOutcome.NOT_SENT: ExchangeStep.PREPARED,
        SpoolOutcome.IN_DOUBT: ExchangeStep.PREPARE_ACKNOWLEDGED,
        SpoolOutcome.COMMITTED: ExchangeStep.COMMIT_ACKNOWLEDGED,
        SpoolOutcome.LOST: ExchangeStep.COMMIT_ACKNOWLEDGED,
        SpoolOutcome.REJECTED: None,
        SpoolOutcome.RESENT: None,
        SpoolOutcome.DROPPED: None,
        SpoolOutcome.REPLACED: None,
        SpoolOutcome.UNKNOWN: None,
    }
    # The producer state shows it, and no answer said where.
    assert SpoolFate(SpoolOutcome.COMMITTED).step is ExchangeStep.COMMITTED
    assert [step.number for step in ExchangeStep] == [1, 2, 3, 4]
