"""What a journal remembers, as data: a living one is compared with one that reads its log back."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any

from kafkasafe import journal as j
from kafkasafe import units as u
from kafkasafe.history.loss import Cause
from kafkasafe.spool.recovery import replay, scan

_SAME: dict[str, Callable[[Any, Any], bool]] = {
    # What other lanes owed and is delivered by now is found out again.
    "afters": lambda living, read: all(debts <= read.get(at, set()) for at, debts in living.items()),
    # A transaction that is given up is void when the next one begins: until then its outcome is asked for once more.
    "staged": operator.le,
    # None while a part of the queue is packed, and while acknowledged batches may be gone.
    "queue": lambda living, read: living is None or living == read,
    "last": lambda living, read: living is None or living == read,
    # None where the newest one is not in the log any more.
    "last id": lambda living, read: living is None or living == read,
    # Answers to them are not written down: they are asked again.
    "checks": lambda living, read: all(check in read for check in living),
    # What an acknowledgement raised follows from the marks. What an error or a look at the log raised does not, and is
    # found again by another look.
    "suspicion": lambda living, read: living is not None if read else living is not Cause.ACK,
}
"""How the two are to be compared where they need not be equal: these are the documented differences."""


def is_written(lane: Any) -> bool:
    """Whether the log has all that the lane's journal decided."""
    journal = lane.journal
    return not (lane.spool._repair or lane.write_backlog or not journal._state.out.is_empty)


def differences(world: Any, lane: Any) -> list[str]:
    """In what the lane's journal and one that reads its log back differ, where they must not.

    Args:
        world: With the disk.
        lane: All of whose decisions are in its log.
    """
    files = world.disk.process()
    try:
        log = scan(files, lane.lock.path)
    finally:
        files.kill()
    read = j.Journal()
    read.units.name(f"kafkasafe-{lane.spool.lane_id.hex()}")
    replay(log.entries, read)
    first = lane.spool.first_position
    read.released(first)
    return _compared(_memory(lane.journal, first), _memory(read, first))


def _memory(journal: j.Journal, first_position: int) -> dict[str, dict[str, Any]]:
    """What it remembers, but for what is in memory only. Of acknowledged batches, those that the log still has."""
    units = [unit for unit in journal.units.unfinished if unit.durable]
    found: dict[str, dict[str, Any]] = {
        "lane": {
            "home": journal._state.home.cluster_id,
            "topics": dict(journal._state.destinations.topics),
            "afters": {after.position: set(after.debts) for after in journal.views.afters},
            "resent": set(journal.views.resent),
            "units": {unit.unit_id: _batches(unit.batches) for unit in units},
            "staged": {unit.unit_id for unit in units if unit.phase in {u.Phase.STAGED, u.Phase.ENDING}},
        }
    }
    for partition in journal._state.destinations.partitions.values():
        healing = journal._state.revivals.by_destination.get(partition.number)
        acked = [batch for batch in partition.log.acked if batch.position >= first_position]
        last = partition.log.last_acked_id
        started = partition.log.baseline_offset >= 0
        found[f"{partition.topic}-{partition.partition}"] = {
            "number": partition.number,
            "queue": None if partition.queue.packed.count else _batches(partition.queue.all()),
            "acked": [(*_batch(batch), batch.base_offset, batch.place) for batch in acked],
            "baseline": partition.log.baseline_offset,
            "last": partition.log.last_acked_offset if partition.loss.suspicion is None else None,
            "clear": partition.log.clear_offset,
            "last id": last if any(batch.identity == last for batch in acked) else None,
            "epoch": partition.log.leader_epoch,
            "topic id": partition.log.topic_id if started else None,
            "checks": [check for check in (partition.loss.asked, *partition.loss.due) if check is not None],
            "suspicion": partition.loss.suspicion and partition.loss.suspicion.cause,
            "healing": None if healing is None else (healing.keep_from, healing.left, healing.records),
        }
    return found


def _compared(living: dict[str, dict[str, Any]], read: dict[str, dict[str, Any]]) -> list[str]:
    wrong = []
    for place in sorted({*living, *read}):
        one, other = living.get(place, {}), read.get(place, {})
        wrong += [
            f"{place} {name}: {one.get(name)} lives, {other.get(name)} was read"
            for name in dict.fromkeys((*one, *other))
            if name not in one
            or name not in other
            or not _SAME.get(name, operator.eq)(one[name], other[name])
        ]
    return wrong


def _batches(batches: Iterable[Any]) -> list[Any]:
    return [_batch(batch) for batch in batches if batch.durable]


def _batch(batch: Any) -> Any:
    identity = batch.identity
    return (
        batch.position,
        batch.count,
        identity and (identity.producer_id, identity.producer_epoch, identity.base_sequence),
    )
