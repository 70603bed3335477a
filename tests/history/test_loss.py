"""Which acknowledged batches are gone: the survey of the log."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kafkasafe.history.identity import BatchId, BatchKind, LogBatch
from kafkasafe.history.loss import AckedBatch, Released, Survey


def acked(*places, pid=7, epoch=0, sequence=0):
    """(base offset, count) of each, one sequence behind the other."""
    made = []
    for base_offset, count in places:
        made.append(AckedBatch(BatchId(pid, epoch, sequence, count), base_offset))
        sequence += count
    return made


def header(batch, base_offset=None):
    at = batch.base_offset if base_offset is None else base_offset
    identity = batch.identity
    last = at + identity.count - 1
    return LogBatch(at, last, identity.producer_id, identity.producer_epoch, identity.base_sequence)


def stranger(base_offset, count):
    return LogBatch(base_offset, base_offset + count - 1, 99, 0, base_offset)


def survey(batches, headers, *, end, start=0, changed=-1):
    run = Survey(batches, end, start, changed)
    headers = [h for h in headers if h[1] >= run.next_offset]
    while not run.done:
        page, headers = headers[:3], headers[3:]
        run.page(page, next_offset=page[-1][1] + 1 if page and headers else end, log_start_offset=start)
    return run.loss()


def test_all_there_is_no_loss():
    batches = acked((0, 10), (10, 10), (25, 5))
    log = [header(batches[0]), header(batches[1]), stranger(20, 5), header(batches[2])]
    loss = survey(batches, log, end=30)
    assert (loss.indexes, loss.first_offset, loss.last_offset, loss.records) == ((), -1, -1, 0)
    assert not loss.oldest_known


def test_an_unclean_election_loses_the_tail_that_others_then_overwrite():
    batches = acked((0, 10), (10, 5), (15, 5))
    newer = acked((10, 5), sequence=20)
    loss = survey([*batches, *newer], [header(batches[0]), header(newer[0])], end=15)
    assert (loss.indexes, loss.first_offset, loss.last_offset, loss.records) == ((1, 2), 10, 19, 10)
    assert not loss.oldest_known


def test_a_wiped_log_loses_all_and_there_may_be_more():
    batches = acked((5, 5), (10, 5))
    loss = survey(batches, [], end=0)
    assert (loss.indexes, loss.first_offset, loss.last_offset, loss.records) == ((0, 1), 5, 14, 10)
    assert loss.oldest_known


def test_what_retention_deleted_is_not_lost():
    batches = acked((0, 10), (10, 10), (20, 10))
    loss = survey(batches, [header(batches[2])], start=15, end=30)
    # The second one is cut in its middle: a part of it was there to be deleted, so it was there.
    assert loss.indexes == ()


def test_what_compaction_emptied_is_not_lost():
    batches = acked((0, 10), (10, 10), (20, 10))
    assert survey(batches, [header(batches[0]), header(batches[2])], end=30).indexes == ()


def test_a_batch_that_moved_is_there():
    batches = acked((0, 10), (10, 10))
    loss = survey(batches, [header(batches[0]), stranger(10, 3), header(batches[1], 13)], end=23)
    assert (loss.indexes, loss.moved) == ((), {1: 13})


def test_sequences_tell_how_many_are_lost_before_the_oldest_that_is_remembered():
    """Of ten batches of ten in the log of a leader that has three, the last two are remembered, the third is not."""
    all_of_them = acked(*((10 * number, 10) for number in range(10)))
    remembered = all_of_them[8:]
    left = [header(batch) for batch in all_of_them[:3]]
    loss = survey(remembered, left, end=30, changed=30)
    assert (loss.first_offset, loss.last_offset, loss.records, loss.oldest_known) == (30, 99, 70, False)
    # Others' records in between are not counted.
    elsewhere = acked((80, 10), (90, 10), sequence=50)
    loss = survey(elsewhere, left, end=30, changed=30)
    assert (loss.first_offset, loss.records) == (30, 40)
    # Nothing of it is missing.
    loss = survey(all_of_them[3:], left, end=30, changed=30)
    assert (loss.first_offset, loss.records) == (30, 70)
    # One is here again: an older request with it was late.
    loss = survey(remembered, [*left, header(all_of_them[5], 30)], end=40, changed=30)
    assert (loss.first_offset, loss.records) == (30, 60)
    # The change was believed to begin earlier: what stands behind that is left.
    loss = survey(remembered, left, end=30, changed=10)
    assert (loss.first_offset, loss.records) == (30, 70)


def test_where_others_stand_before_the_change_nothing_is_counted():
    remembered = acked((80, 10), (90, 10), sequence=80)
    log = [stranger(20, 10)]
    loss = survey(remembered, log, end=30, changed=30)
    assert (loss.first_offset, loss.records, loss.oldest_known) == (80, 20, True)
    # Of another epoch of the id: its sequences began anew.
    log = [header(*acked((20, 10), epoch=1))]
    loss = survey(remembered, log, end=30, changed=30)
    assert (loss.first_offset, loss.records, loss.oldest_known) == (80, 20, True)


@given(st.data())
def test_exactly_the_missing_ones_are_lost(data):
    """A log of ours and strangers', cut somewhere and written on by strangers."""
    counts = data.draw(st.lists(st.tuples(st.integers(1, 5), st.booleans()), min_size=1, max_size=12))
    offset, sequence, batches, log = 0, 0, [], []
    for count, ours in counts:
        if ours:
            batches.append(AckedBatch(BatchId(7, 0, sequence, count), offset))
            log.append(header(batches[-1]))
            sequence += count
        else:
            log.append(stranger(offset, count))
        offset += count
    kept = data.draw(st.integers(0, len(log)))
    end = log[kept][0] if kept < len(log) else offset
    lost = [i for i, batch in enumerate(batches) if batch.base_offset >= end]
    log = log[:kept]
    for count in data.draw(st.lists(st.integers(1, 7), max_size=6)):
        log.append(stranger(end, count))
        end += count
    loss = survey(batches, log, end=end)
    assert list(loss.indexes) == lost
    assert loss.records == sum(batches[i].identity.count for i in lost)


def any_left(batches, log, end):
    survey = Survey(batches, end, 0)
    survey.page(log, next_offset=end, log_start_offset=0)
    return survey.any_left


def test_what_is_left_at_its_place_proves_that_the_topic_is_the_same():
    batches = acked((0, 10), (10, 10), (20, 10))
    assert any_left(batches, [header(batches[0])], 10)
    assert any_left(batches, [stranger(0, 10), header(batches[1])], 20)
    # Late, or appended since: that may have gone into a topic created again.
    assert not any_left(batches, [header(batches[1], 0)], 10)
    since = AckedBatch(BatchId(8, 0, 0, 10), 0)
    assert not any_left([*batches, since], [header(since)], 10)
    assert not any_left([batches[0], since], [header(since)], 10)
    assert not any_left([AckedBatch(batches[0].identity, 0, exact=False)], [header(batches[0])], 10)
    assert not any_left(batches, [], 0)


def looked_up(headers, *, released=None, ours=frozenset({7}), end=30, start=0, doubted_from=10):
    """What is known of the batches that have left the spool; the last one, at 25, is remembered."""
    (newest,) = acked((25, 5), sequence=100)
    run = Survey([newest], end, start, doubted_from, ours, doubted_from, released)
    for each in [*headers, header(newest)]:
        run.page([each], next_offset=each[1] + 1, log_start_offset=start)
    return run.loss()


def ours(base_offset, count, pid=7, kind=BatchKind.PLAIN):
    return LogBatch(base_offset, base_offset + count - 1, pid, 0, base_offset, kind)


def in_transaction(base_offset, count, pid=7):
    return ours(base_offset, count, pid, BatchKind.TRANSACTIONAL)


def marker(offset, kind, pid=7):
    return LogBatch(offset, offset, pid, 0, -1, kind)


def test_what_is_ours_without_a_gap_is_ours_up_to_there():
    assert looked_up([ours(5, 10), ours(15, 10)]).ours_until == 30
    assert looked_up([ours(10, 5), stranger(15, 5), ours(20, 5)]).ours_until == 15
    assert looked_up([stranger(10, 5), ours(15, 10)]).ours_until == -1
    assert looked_up([ours(12, 13)]).ours_until == -1, "a hole in front of it"
    assert looked_up([ours(10, 5), ours(16, 9)]).ours_until == 15
    assert looked_up([ours(10, 15)], doubted_from=-1).ours_until == -1


def test_a_batch_that_has_left_the_spool_is_there_if_one_of_ours_begins_where_it_did():
    log = [ours(10, 5), stranger(15, 5), ours(20, 5, pid=8)]
    both = frozenset({7, 8})
    assert looked_up(log, released=[10, 20], ours=both).released_there
    assert not looked_up(log, released=[10, 20]).released_there, "id 8 is another's"
    assert not looked_up(log, released=[10, 15], ours=both).released_there
    assert not looked_up(log, released=[10, 22], ours=both).released_there, "it began elsewhere"
    assert not looked_up(log, released=[10, 40], ours=both).released_there, "the log ends before it"
    assert not looked_up([ours(10, 5), ours(20, 5)], released=[10, 17]).released_there, "nothing covers it"
    # What retention removed was there.
    assert looked_up([ours(20, 5)], released=[10, 20], start=18).released_there
    assert looked_up([], released=[]).released_there, "there is none"
    assert not looked_up([], released=None).released_there, "nobody knows"


def test_an_aborted_batch_is_not_the_acknowledged_one_that_was_at_its_offset():
    """A transaction's batch at offset 10 was acknowledged; the log has another one there, of the same producer id."""
    committed = [in_transaction(10, 5), marker(15, BatchKind.COMMIT), ours(16, 9)]
    loss = looked_up(committed, released=[10])
    assert (loss.ours_until, loss.released_there) == (30, True)
    for kind in (BatchKind.ABORT, None):
        end = [] if kind is None else [marker(15, kind)]
        loss = looked_up([in_transaction(10, 5), *end], released=[10])
        assert (loss.ours_until, loss.released_there) == (-1, False), kind
    # An aborted batch elsewhere proves nothing against batches at other offsets.
    loss = looked_up([ours(10, 5), in_transaction(15, 3), marker(18, BatchKind.ABORT)], released=[10])
    assert (loss.ours_until, loss.released_there) == (15, True)


def test_a_marker_decides_about_the_batches_of_its_own_producer_id_only():
    log = [
        in_transaction(10, 2),
        in_transaction(12, 2, pid=8),
        marker(14, BatchKind.ABORT, pid=8),
        in_transaction(15, 2),
        marker(17, BatchKind.COMMIT),
        in_transaction(18, 2, pid=8),
        marker(20, BatchKind.COMMIT, pid=8),
    ]
    both = frozenset({7, 8})
    assert looked_up(log, released=[10, 15, 18], ours=both).released_there
    assert not looked_up(log, released=[12], ours=both).released_there
    assert looked_up(log, released=[], ours=both).ours_until == 12


def test_what_is_known_of_released_batches_ends_where_the_log_was_cut():
    known = Released()
    assert known.since(0) is None
    for offset in (12, 15, 20, 30):
        known.note(offset, 12)
    assert known.since(11) is None, "others may be before them"
    assert list(known.since(15) or ()) == [15, 20, 30]
    known.note(18, 12)  # acknowledged again, after a loss
    assert list(known.since(12) or ()) == [12, 15, 18]
    known.cut(15)
    assert list(known.since(12) or ()) == [12]
    known.forget()
    assert known.since(12) is None
    known.note(1, -1)
    assert known.since(1) is None, "no mark says what was before"


def test_of_very_many_released_batches_the_last_ones_are_known():
    known = Released()
    for offset in range(100_000):
        known.note(offset, 0)
    assert known.since(10) is None
    assert list(known.since(99_998) or ()) == [99_998, 99_999]
    first = next(at for at in range(100_000) if known.since(at) is not None)
    assert 30_000 <= 100_000 - first <= 70_000
