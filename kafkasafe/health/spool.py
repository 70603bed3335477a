"""Decides, without starting a producer, whether a producer could accept records in a spool directory. Also finds the
problems that need an operator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from kafkasafe.health.states import HealthReason
from kafkasafe.limits.capacity import Capacity

NEEDED_BYTES: Final = 2 * 1024 * 1024
"""Free bytes that a producer with default options needs for its next batch."""


@dataclass(frozen=True, slots=True)
class LaneSeen:
    """A lane (the part of a spool directory that one producer owns) at one moment.

    Attributes:
        name: Name of the lane's directory.
        owner_pid: Pid of the process that seems to own the lane; 0 if none does.
        strays_to: If the lane was moved or replaced after its owner opened it: the directory that the owner still uses.
            Empty if the lane was not moved or replaced, or if this is not known.
        size_bytes: Size of the lane's log.
        waiting_records: Number of records that are not delivered.
        oldest_s: Number of seconds for which the oldest waiting record has waited.
        in_doubt_batches: Number of undelivered batches that may already have been sent.
        undecidable_batches: Number of in-doubt batches that the owner found undecidable: they wait for
            `resolve_undecidable`.
        rejected_records: Number of records in `rejected/`, including those in deleted files.
        damaged: Number of damaged ranges and unreadable files.
        same_lane_id: The other lanes with the same lane id: one of these lanes is the original, the rest are copies.
    """

    name: str
    owner_pid: int
    strays_to: str
    size_bytes: int
    waiting_records: int
    oldest_s: float
    in_doubt_batches: int
    undecidable_batches: int
    rejected_records: int
    damaged: int
    same_lane_id: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class SpoolSeen:
    """A spool directory at one moment.

    Attributes:
        lanes: The lanes that can be read.
        unreadable: One sentence for each lane (subdirectory) or file that cannot be read.
        failing_starts: One sentence for each lane that would prevent the start of a new producer: the producer would
            choose this lane, and raise an error.
        free_bytes: Free space of the volume.
        read_only: Whether the volume is read-only.
        not_writable: A path that a producer needs to write, but that this user has no permission to write; empty if
            there is no such path.
        limit_bytes: Maximum size of a lane's log; None if unknown.
        max_age_s: Maximum age of a waiting record; None: no limit.
    """

    lanes: Sequence[LaneSeen]
    unreadable: Sequence[str]
    failing_starts: Sequence[str]
    free_bytes: int
    read_only: bool
    not_writable: str
    limit_bytes: int | None
    max_age_s: float | None


@dataclass(frozen=True, slots=True)
class SpoolHealth:
    """The health of a spool directory at one moment.

    Attributes:
        ready: Whether a producer that uses the directory could accept records.
        reasons: Why a producer could not accept records; empty if it could.
        warnings: Problems that need an operator but do not prevent a producer from accepting records.
        room_bytes: Number of bytes that the lane (subdirectory) with the least room could accept. If the lanes' limit
            is unknown, only the volume's free space counts.
        waiting_records: Number of records that are not delivered.
        oldest_record_age_s: Number of seconds for which the oldest waiting record has waited; 0 if none waits.
    """

    ready: bool
    reasons: tuple[HealthReason, ...]
    warnings: tuple[HealthReason, ...]
    room_bytes: int
    waiting_records: int
    oldest_record_age_s: float


def spool_health(seen: SpoolSeen) -> SpoolHealth:
    """The health of a spool directory."""
    reasons = [
        *_of_directory(seen),
        *(HealthReason("start_fails", text) for text in seen.failing_starts),
        *_of_lanes(seen, "spool_full", _full),
        *_of_lanes(seen, "spool_displaced", _displaced),
        *_of_lanes(seen, "undecidable", _undecidable),
    ]
    warnings = [
        *(HealthReason("unreadable", text) for text in seen.unreadable),
        *_of_lanes(seen, "damaged", _damaged),
        *_of_lanes(seen, "rejected", _rejected),
        *_of_lanes(seen, "copied", _copied),
        *_of_lanes(seen, "no_owner", _unowned),
        *_of_lanes(seen, "too_old", _too_old),
    ]
    return SpoolHealth(
        ready=not reasons,
        reasons=tuple(reasons),
        warnings=tuple(warnings),
        room_bytes=0
        if seen.read_only
        else min(
            (_capacity(seen, lane).room_bytes for lane in seen.lanes), default=_capacity(seen).room_bytes
        ),
        waiting_records=sum(lane.waiting_records for lane in seen.lanes),
        oldest_record_age_s=max((lane.oldest_s for lane in seen.lanes if lane.waiting_records), default=0.0),
    )


_Rule = Callable[[SpoolSeen, LaneSeen], str]


def _of_lanes(seen: SpoolSeen, name: str, rule: _Rule) -> list[HealthReason]:
    texts = ((lane.name, rule(seen, lane)) for lane in seen.lanes)
    return [HealthReason(name, f"{lane}: {text}") for lane, text in texts if text]


def _of_directory(seen: SpoolSeen) -> list[HealthReason]:
    if seen.read_only:
        return [HealthReason("read_only", "The volume is mounted read-only")]
    if seen.not_writable:
        text = (
            f"A producer of this user could not use the directory: the user may not write {seen.not_writable}. The"
            " directory and all in it must be writable by the producers' user: change the permissions, or run this"
            " command as that user"
        )
        return [HealthReason("not_writable", text)]
    if _capacity(seen).volume_left < NEEDED_BYTES:
        return [HealthReason("volume_full", f"The volume has {seen.free_bytes:,} bytes left")]
    return []


def _capacity(seen: SpoolSeen, lane: LaneSeen | None = None) -> Capacity:
    unlimited = 1 << 62
    limit = unlimited if seen.limit_bytes is None else seen.limit_bytes
    return Capacity(limit, 0 if lane is None else lane.size_bytes, 0, free_bytes=seen.free_bytes)


def _full(seen: SpoolSeen, lane: LaneSeen) -> str:
    left = _capacity(seen, lane).spool_left
    if seen.limit_bytes is None or not lane.owner_pid or left >= NEEDED_BYTES:
        return ""
    return f"{lane.size_bytes:,} bytes are taken; {max(left, 0):,} are left below the limit of its producer"


def _displaced(_: SpoolSeen, lane: LaneSeen) -> str:
    return (
        f"its producer writes to {lane.strays_to}, where the next start does not look"
        if lane.strays_to
        else ""
    )


def _undecidable(_: SpoolSeen, lane: LaneSeen) -> str:
    if not lane.undecidable_batches or not lane.owner_pid:
        return ""  # the next producer asks the cluster again
    return (
        f"{_counted(lane.undecidable_batches, 'batch', 'batches')} may or may not be in the log, and this cannot be"
        " determined: the producer waits for a decision"
    )


def _damaged(_: SpoolSeen, lane: LaneSeen) -> str:
    if not lane.damaged:
        return ""
    return f"{_counted(lane.damaged, 'damaged range or file', 'damaged ranges or files')}: see kafkasafe spool verify"


def _rejected(_: SpoolSeen, lane: LaneSeen) -> str:
    return (
        f"{_counted(lane.rejected_records, 'record')} rejected: see kafkasafe spool ls"
        if lane.rejected_records
        else ""
    )


def _copied(_: SpoolSeen, lane: LaneSeen) -> str:
    if not lane.same_lane_id:
        return ""
    return f"it has the same lane id as {', '.join(lane.same_lane_id)}: see kafkasafe spool verify"


def _unowned(_: SpoolSeen, lane: LaneSeen) -> str:
    if lane.owner_pid or lane.strays_to or lane.same_lane_id or not lane.waiting_records:
        return ""
    return (
        f"{_counted(lane.waiting_records, 'record')} that no process delivers: start a producer on the directory, or"
        " run kafkasafe spool drain"
    )


def _too_old(seen: SpoolSeen, lane: LaneSeen) -> str:
    if seen.max_age_s is None or not lane.waiting_records or lane.oldest_s <= seen.max_age_s:
        return ""
    return f"the oldest record has waited {lane.oldest_s:.0f} s"


def _counted(number: int, one: str, many: str = "") -> str:
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"
