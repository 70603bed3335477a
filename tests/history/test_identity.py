"""Whether a batch is in the log: the decision tables."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkasafe.history.identity import (
    MAX_SEQUENCE,
    BatchId,
    IdentityVerdict,
    LogBatch,
    ProducerView,
    Scan,
    add_sequence,
    judge_by_both,
    judge_by_log,
    judge_by_state,
    judge_located,
    sequence_distance,
)


def ids(*counts: int, epoch: int = 0, start: int = 0) -> list[BatchId]:
    made = []
    for count in counts:
        made.append(BatchId(7, epoch, start, count))
        start = add_sequence(start, count)
    return made


def view(last_sequence: int, epoch: int = 0) -> ProducerView:
    return ProducerView(epoch, last_sequence, 0)


@given(st.integers(0, MAX_SEQUENCE), st.integers(0, 2**20))
def test_sequences_wrap_as_kafkas_do(start: int, count: int) -> None:
    end = add_sequence(start, count)
    assert 0 <= end <= MAX_SEQUENCE
    assert sequence_distance(start, end) == count
    assert sequence_distance(end, start) == -count


def test_the_sequence_behind_the_largest_is_zero() -> None:
    assert add_sequence(MAX_SEQUENCE, 1) == 0
    assert BatchId(1, 0, MAX_SEQUENCE - 1, 4).last_sequence == 1


@pytest.mark.parametrize(
    ("last_sequence", "verdict", "present"),
    [
        (9, IdentityVerdict.GAP, 0),  # the batch before, 10–19, is missing as well
        (19, IdentityVerdict.DECIDED, 0),
        (24, IdentityVerdict.UNDECIDABLE, 0),  # half a batch is not ours
        (29, IdentityVerdict.DECIDED, 1),
        (39, IdentityVerdict.DECIDED, 2),
        (500, IdentityVerdict.DECIDED, 2),  # something behind it, too
    ],
)
def test_the_state_tells_up_to_where_the_leader_has_us(
    last_sequence: int, verdict: IdentityVerdict, present: int
) -> None:
    judgement = judge_by_state(ids(10, 10, start=20), view(last_sequence), acked_before=True)
    assert (judgement.verdict, judgement.present) == (verdict, present)


def test_the_state_tells_across_the_wrap() -> None:
    doubt = ids(10, 10, start=MAX_SEQUENCE - 4)
    judgement = judge_by_state(doubt, view(4), acked_before=True)
    assert (judgement.verdict, judgement.present) == (IdentityVerdict.DECIDED, 1)


@pytest.mark.parametrize(
    ("state", "acked_before", "start", "verdict"),
    [
        (None, False, 0, IdentityVerdict.READ_LOG),
        (view(-1, epoch=2), False, 0, IdentityVerdict.READ_LOG),
        (view(5, epoch=3), False, 0, IdentityVerdict.READ_LOG),  # somebody bumped the epoch
        (
            view(5, epoch=1),
            False,
            0,
            IdentityVerdict.DECIDED,
        ),  # our epoch is new to it and begins at 0: just send
        (view(5, epoch=1), True, 0, IdentityVerdict.GAP),
        (
            view(5, epoch=1),
            False,
            10,
            IdentityVerdict.GAP,
        ),  # what was before sequence 10 of our epoch is not there
    ],
)
def test_other_epochs_and_silence(
    state: ProducerView | None, acked_before: bool, start: int, verdict: IdentityVerdict
) -> None:
    judgement = judge_by_state(ids(10, epoch=2, start=start), state, acked_before=acked_before)
    assert (judgement.verdict, judgement.present) == (verdict, 0)


def scanned(
    doubt: list[BatchId],
    log: list[tuple[int, BatchId | None]],
    *,
    begin: int = 0,
    end: int = 100,
    start: int = 0,
) -> Scan:
    """A scan of one page; batches of others are None, of ten records."""
    scan = Scan(doubt, begin, end)
    headers = [
        LogBatch(
            offset,
            offset + (b.count if b else 10) - 1,
            *((7, b.producer_epoch, b.base_sequence) if b else (-1, -1, -1)),
        )
        for offset, b in log
    ]
    scan.page(headers, next_offset=end, log_start_offset=start)
    return scan


A, B, C = ids(10, 10, 10)


@pytest.mark.parametrize(
    ("log", "start", "verdict", "present"),
    [
        ([(0, None), (10, None)], 0, IdentityVerdict.DECIDED, 0),
        ([(0, A), (10, None), (20, B)], 0, IdentityVerdict.DECIDED, 2),
        ([(0, A), (10, B), (20, C)], 0, IdentityVerdict.DECIDED, 3),
        # A later one without the earlier, and everything to be seen: part of the log is gone.
        ([(0, None), (10, B)], 0, IdentityVerdict.UNDECIDABLE, 0),
        ([(0, A), (10, C)], 0, IdentityVerdict.UNDECIDABLE, 1),
        # The beginning is trimmed: it may have been there.
        ([(30, None)], 30, IdentityVerdict.UNDECIDABLE, 0),
        # What was before a batch that was found is decided by the order of appends; what is behind it was seen.
        ([(30, B)], 30, IdentityVerdict.DECIDED, 2),
        ([(30, B), (40, C)], 30, IdentityVerdict.DECIDED, 3),
        ([(30, A), (40, C)], 30, IdentityVerdict.UNDECIDABLE, 1),
        # Compaction left a hole between 10 and 40.
        ([(0, None), (40, None)], 0, IdentityVerdict.UNDECIDABLE, 0),
        ([(0, A), (40, None)], 0, IdentityVerdict.UNDECIDABLE, 1),
        ([(0, A), (40, C)], 0, IdentityVerdict.DECIDED, 3),
        ([(0, None), (40, A)], 0, IdentityVerdict.DECIDED, 1),
    ],
)
def test_the_log_tells(
    log: list[tuple[int, BatchId | None]], start: int, verdict: IdentityVerdict, present: int
) -> None:
    judgement = judge_by_log(scanned([A, B, C], log, start=start))
    assert (judgement.verdict, judgement.present) == (verdict, present)
    assert all(judgement.offsets[i] == offset for offset, b in log if b for i in [[A, B, C].index(b)])
    if start:
        assert "trimmed to 30" in judgement.evidence


def test_a_scan_ends_at_the_log_end_or_with_the_last_batch_found() -> None:
    scan = Scan([A], 5, 30)
    assert not scan.done
    # The first batch of an answer may begin, or even end, before what was asked for.
    scan.page([LogBatch(0, 4, 1, 0, 0), LogBatch(5, 9, 1, 0, 0)], next_offset=10, log_start_offset=0)
    assert (scan.next_offset, scan.done, scan.hidden_before) == (10, False, -1)
    scan.page([LogBatch(10, 19, 7, 0, 0)], next_offset=20, log_start_offset=0)
    assert scan.done
    assert scan.found == {0: 10}
    empty = Scan([A], 30, 30)
    assert empty.done


def test_the_first_copy_is_the_one() -> None:
    scan = Scan([A], 0, 20)
    scan.page([LogBatch(0, 9, 7, 0, 0), LogBatch(10, 19, 7, 0, 0)], next_offset=20, log_start_offset=0)
    assert judge_by_log(scan).offsets == {0: 0}


@pytest.mark.parametrize(
    ("last_sequence", "epoch", "log", "whole", "verdict", "present"),
    [
        # The log was trimmed past their place, the state has them: there, at any age. What it does not have may be gone.
        (29, 0, [(30, None)], True, IdentityVerdict.DECIDED, 3),
        (19, 0, [(30, None)], True, IdentityVerdict.UNDECIDABLE, 2),
        (-1, 0, [(30, None)], True, IdentityVerdict.UNDECIDABLE, 0),
        (29, 1, [(30, None)], True, IdentityVerdict.UNDECIDABLE, 0),
        # One that was cut may have taken the last of them alone.
        (29, 0, [(30, None)], False, IdentityVerdict.UNDECIDABLE, 0),
        # A later one without an earlier one, and the place to be seen: nothing that the state says explains it.
        (29, 0, [(30, A), (40, C)], True, IdentityVerdict.UNDECIDABLE, 1),
        (29, 0, [(30, B), (40, C)], True, IdentityVerdict.DECIDED, 3),
    ],
)
def test_what_the_log_has_no_more_the_state_may_have(
    last_sequence: int,
    epoch: int,
    log: list[tuple[int, BatchId | None]],
    *,
    whole: bool,
    verdict: IdentityVerdict,
    present: int,
) -> None:
    scan = scanned([A, B, C], log, start=30)
    judgement = judge_by_both(scan, ProducerView(epoch, last_sequence, 0), acked_before=False, whole=whole)
    assert (judgement.verdict, judgement.present) == (verdict, present)


def test_the_state_says_that_a_batch_before_is_missing() -> None:
    a, b, c = ids(10, 10, 10)
    scan = scanned([b, c], [(0, None), (10, None)])
    assert judge_by_both(scan, None, acked_before=True, whole=True) == judge_by_log(scan)
    judged = judge_by_both(scan, ProducerView(0, a.base_sequence, 0), acked_before=True, whole=True)
    assert (judged.verdict, judged.present) == (IdentityVerdict.GAP, 0)


@pytest.mark.parametrize(
    ("present", "log", "start", "offsets", "stable"),
    [
        (3, [(0, A), (10, None), (20, B), (30, C)], 0, {0: 0, 1: 20, 2: 30}, True),
        (2, [(0, A), (10, B)], 0, {0: 0, 1: 10}, True),
        # Where the log is not readable any more there is no offset.
        (3, [(30, C)], 30, {2: 30}, True),
        (2, [(40, None)], 40, {}, True),
        # The log contradicts the state: its leader must confirm it.
        (3, [(0, A), (10, C)], 0, {0: 0, 2: 10}, False),
        (2, [(0, A), (10, None)], 0, {0: 0}, False),
    ],
)
def test_the_log_tells_where_what_the_state_has_is(
    present: int, log: list[tuple[int, BatchId | None]], start: int, offsets: dict[int, int], *, stable: bool
) -> None:
    doubt = [A, B, C]
    by_state = judge_by_state(doubt, ProducerView(0, doubt[present - 1].last_sequence, 0), acked_before=True)
    judgement, below = judge_located(by_state, scanned(doubt[:present], log, start=start))
    assert (judgement.verdict, judgement.present) == (IdentityVerdict.DECIDED, present)
    assert (judgement.offsets, below, judgement.of_state) == (offsets, stable, True)
