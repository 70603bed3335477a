"""Which batches the journal offers to make one of, and what that one is: to brokers, on disk, and to the next life."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from test_journal import NOW_MS, Shell

from kafkasafe import journal as j
from kafkasafe import marks as m
from kafkasafe.history.identity import BatchId
from kafkasafe.journal.batch import Fault

ROOM = 64 * 1024


def waiting(count: int = 40, *, size_bytes: int = 100) -> tuple[Shell, list[j.Batch]]:
    """Five are under way, and these are on disk behind them."""
    shell = Shell(gather_bytes=ROOM)
    shell.flowing(1, 2, 2, 2, 2, 2)
    number = shell.journal.destination("t", 0)
    batches = [
        shell.journal.seal(number, count=2, size_bytes=size_bytes, max_timestamp=NOW_MS + index)
        for index in range(count)
    ]
    shell.turn()
    assert all(batch.state is j.BatchState.PREPARED for batch in batches)
    return shell, batches


def offered(shell: Shell) -> list[j.Batch]:
    journal = shell.journal
    journal._state.out.ready.gathers.clear()
    journal._gatherer.gather(journal._state.destinations.partitions[1], shell.now_ms)
    return list(journal._state.out.ready.gathers.get(1, ()))


def test_what_waits_behind_those_under_way_is_offered() -> None:
    shell, batches = waiting()
    assert offered(shell) == batches


ANY_OTHER_BATCH = {
    "is under way": {"state": j.BatchState.SENT},
    "is asked about": {"state": j.BatchState.IN_DOUBT},
    "has no id yet": {"state": j.BatchState.SEALED},
    "is in memory": {"durable": False},
    "is being written": {"writing": True},
    "may have been sent by an earlier life": {"former_life": True},
    "was lost, and is sent again": {"revived": True},
    "was sent": {"tries": 1},
    "may still arrive": {"unanswered": True},
    "was refused": {"fault": Fault(7)},
    "has parts that are not finished": {"heirs": 1},
    "had no partition": {"origin": 3},
    "is a part, or was copied": {"rank": (1, 2)},
    "belongs to a unit": {"unit": object()},
    "is large": {"size_bytes": ROOM // 8 + 1},
    "is old": {"max_timestamp": NOW_MS - 30 * 86_400_000},
    "has a later sequence": {"identity": BatchId(7, 0, 1000, 2)},
    "has another epoch": {"identity": BatchId(7, 1, 11 + 2 * 20, 2)},
    "has another producer id": {"identity": BatchId(8, 0, 11 + 2 * 20, 2)},
}


@pytest.mark.parametrize("what", ANY_OTHER_BATCH)
def test_any_other_batch_ends_what_is_offered(what) -> None:
    shell, batches = waiting()
    assert batches[20].identity == BatchId(7, 0, 11 + 2 * 20, 2)
    for name, value in ANY_OTHER_BATCH[what].items():
        setattr(batches[20], name, value)
    assert offered(shell) == batches[:20]


def test_sequences_go_on_behind_the_last_one_there_is() -> None:
    shell, batches = waiting()
    for index, batch in enumerate(batches):
        batch.identity = BatchId(7, 0, (2**31 - 20 + 2 * index) % 2**31, 2)
    assert offered(shell) == batches


def test_nothing_is_offered_that_waits_for_others_or_for_what_was_lost() -> None:
    shell, batches = waiting()
    journal = shell.journal
    journal._state.precedence.hold_back({("t", 0): batches[20].written_at})
    assert offered(shell) == batches[:20]
    journal._state.precedence.hold_back({})
    journal._state.revivals.add(1, batches[:1])
    assert offered(shell) == []
    journal._state.revivals.forget(1)
    assert offered(shell) == batches
    journal.keep_apart(1)
    assert offered(shell) == []


def test_it_becomes_neither_too_much_nor_is_it_too_little() -> None:
    shell, batches = waiting(300)
    assert offered(shell) == batches[:256]
    shell, batches = waiting(100, size_bytes=1000)
    assert offered(shell) == batches[:65]
    shell, batches = waiting(8)
    assert offered(shell) == batches
    assert offered(waiting(7)[0]) == []


def test_it_has_their_records_their_sequences_and_their_place() -> None:
    """And is sent when the group that says so is durable: not before, and none of them after."""
    shell, batches = waiting()
    journal = shell.journal
    run, rest = batches[:30], batches[30:]
    run[3].max_timestamp = NOW_MS + 1000
    made = journal.gathered(run, 2000)
    assert made.identity == BatchId(7, 0, 11, 60)
    assert (made.count, made.size_bytes, made.max_timestamp) == (60, 2000, NOW_MS + 1000)
    assert made.state is j.BatchState.SEALED
    [later] = shell.seal(2)
    for batch in list(shell.sent[-5:]):
        shell.ack(batch, batch.identity.base_sequence)
    ready = journal.ready(shell.now, shell.now_ms)
    assert ready.sends == []
    assert ready.resolved == []
    # A division is written alone; what is new comes with the next group.
    persist = ready.persist
    assert persist.atomic
    assert persist.batches == [made]
    replaced = [mark for mark in persist.marks if isinstance(mark, m.Replaced)]
    assert replaced == [m.Replaced(batch.position, 0, 1) for batch in run]
    shell.write(persist)
    sent = shell.turn()
    assert sent == [made, *rest[:4]]
    assert [r.batch for r in shell.resolved if r.fate is j.Fate.REPLACED] == run
    queue = [batch for _, _, batch in journal.views.batches()]
    assert queue == [made, *rest, later]
    assert queue == sorted(queue, key=lambda batch: batch.rank)
    # Where it stands, the next life knows by the first of them.
    assert journal.views.release_position == run[0].position
    for batch in queue:
        shell.ack(batch, batch.identity.base_sequence)
        shell.turn()
    assert journal.views.release_position > later.position
    assert journal.views.unfinished == 0


def test_two_partitions_become_one_batch_each_in_one_group() -> None:
    shell, batches = waiting()
    number = shell.journal.destination("t", 1)
    others = [shell.journal.seal(number, count=1, size_bytes=100, max_timestamp=NOW_MS) for _ in range(20)]
    shell.turn()
    made = shell.journal.gathered(batches, 2000), shell.journal.gathered(others, 900)
    persist = shell.journal.ready(shell.now, shell.now_ms).persist
    assert persist.batches == list(made)
    marks = {mark.position: mark.first_child for mark in persist.marks if isinstance(mark, m.Replaced)}
    assert marks == {batch.position: at for at, run in enumerate((batches, others)) for batch in run}


@pytest.mark.parametrize("last", [True, False], ids=["the last group", "others follow"])
def test_the_next_life_and_whoever_looks_into_the_lane_find_it_in_their_place(last) -> None:
    shell, batches = waiting()
    shell.journal.gathered(batches[:30], 2000)
    shell.turn()
    if not last:
        shell.seal(3)
        shell.turn()
    counts = [batch.count for _, _, batch in shell.journal.views.batches()]
    assert counts == [*[2] * 5, 60, *[2] * 10, *([] if last else [3])]
    heir = shell.reborn()
    assert [batch.count for _, _, batch in heir.journal.views.batches()] == counts
    looked = j.Journal()
    position = 0
    for group in shell.groups:
        looked.recovery.recover_marks(position, group.marks)
        position += 1 + len(group.marks)
        for batch in group.batches:
            looked.recovery.recover_batch(
                position, batch.destination, count=batch.count, size_bytes=1, max_timestamp=0, identity=None
            )
            position += batch.count
    looked.recovery.recovered_log()
    assert [batch.count for _, _, batch in looked.views.batches()] == counts
    # The first of them tells where it stands, as long as it is needed.
    for index, _ in enumerate(counts):
        sent = [batch for batch in shell.sent if batch.state is j.BatchState.SENT]
        shell.ack(sent[0], sent[0].identity.base_sequence)
        shell.turn()
        if index < len(counts) - 1:
            left = shell.journal.views.release_position
            assert shell.reborn().journal.views.release_position == left
            assert (left == batches[0].position) is (index == 4)


@pytest.mark.parametrize(
    ("code", "apart"),
    [(10, True), (87, True), (6, False), (19, False)],
    ids=["too large", "bad", "leader", "replicas"],
)
def test_what_is_refused_as_it_is_keeps_the_next_ones_apart(code, apart) -> None:
    shell, batches = waiting()
    made = shell.journal.gathered(batches[:30], 2000)
    shell.turn()
    for batch in list(shell.sent[-5:]):
        shell.ack(batch, batch.identity.base_sequence)
    shell.turn()
    shell.refuse(made, code)
    assert shell.journal._state.destinations.partitions[1].gathers is not apart


def test_nothing_is_gathered_before_an_answer_says_that_what_waits_waits_for_its_turn() -> None:
    shell, batches = waiting()
    batches += shell.seal(2)
    for _ in range(3):
        ready = shell.journal.ready(shell.now, shell.now_ms)
        assert not ready.gathers
        if ready.persist:
            shell.write(ready.persist)
    assert batches[-1].state is j.BatchState.PREPARED
    first, second, *_ = shell.sent[-5:]
    shell.ack(first, 1)
    ready = shell.journal.ready(shell.now, shell.now_ms)
    assert list(ready.gathers[1]) == batches
    shell.write(ready.persist)
    shell.turn()
    # What is in doubt is settled first.
    shell.ack(second, 3)
    shell.lose(shell.sent[-1])
    ready = shell.journal.ready(shell.now, shell.now_ms)
    assert not ready.gathers
