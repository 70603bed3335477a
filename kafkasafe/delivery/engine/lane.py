"""The engine's state of one lane (the spool of one producer), and the small objects that own parts of it."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kafkasafe import journal as j
from kafkasafe import marks as m
from kafkasafe.delivery.engine.parcels import Parcel
from kafkasafe.delivery.engine.refused_name import NameRefusals
from kafkasafe.delivery.engine.unit_progress import UnitProgress
from kafkasafe.spool.lanes import LaneLock
from kafkasafe.spool.rejected import RejectedStore
from kafkasafe.spool.spool import Spool


class WriteBacklog:
    """Spool groups that wait because writes to the disk fail. Spool groups with decisions of the journal are written
    before spool groups with only batches.

    Attributes:
        attempt: Number of consecutive failures to write.
    """

    __slots__ = ("_groups", "_retry_at", "attempt")

    def __init__(self) -> None:
        self._groups: collections.deque[j.Persist] = collections.deque()
        self.attempt = 0
        self._retry_at = 0.0

    def __bool__(self) -> bool:
        return bool(self._groups)

    @property
    def has_decision(self) -> bool:
        """Whether the journal has made a decision that is not on disk yet."""
        return any(_decides(group) for group in self._groups)

    @property
    def batches(self) -> Iterable[j.Batch]:
        """The batches that wait to be written."""
        return (batch for group in self._groups for batch in group.everything)

    def leave_out_void(self) -> None:
        """Remove spool groups that need not be written any more. If no spool group remains, add an empty one: its write
        shows whether the disk works again.
        """
        if self._groups:
            for group in self._groups:
                group.leave_out_void()
            self._groups = collections.deque(group for group in self._groups if group)
            if not self._groups:
                self._groups.append(j.Persist())

    def extend(self, groups: Iterable[j.Persist]) -> None:
        """Add groups after all others."""
        self._groups.extend(groups)

    def take(self) -> tuple[int, j.Persist]:
        """Take the group to write next. Groups with decisions come first. Returns the index and the spool group."""
        index = next((i for i, group in enumerate(self._groups) if _decides(group)), 0)
        group = self._groups[index]
        del self._groups[index]
        return index, group

    def restore(self, index: int, groups: Sequence[j.Persist]) -> None:
        """Insert the parts of a spool group that could not be written as a whole, at the index where the group was."""
        for group in reversed(groups):
            self._groups.insert(index, group)

    def fail(self) -> int:
        """Note a failed write. Returns the number of consecutive failures."""
        self.attempt += 1
        return self.attempt

    def succeed(self) -> None:
        """Note a successful write."""
        self.attempt = 0

    def has_retry(self, now: float) -> bool:
        """Whether the pause before the next try is still under way."""
        return self._retry_at > now

    def pause(self, until: float) -> None:
        """Note a pause that ends at the monotonic time `until`, in seconds."""
        self._retry_at = until

    def end_pause(self) -> None:
        """Note that the pause is over."""
        self._retry_at = 0.0


def _decides(group: j.Persist) -> bool:
    return bool(group.marks or group.after)


class Divisions:
    """Batches that wait to be divided, because the spool cannot be read or has no space for the parts.

    Attributes:
        pending: Decisions to divide a batch that could not be read, or whose parts have no space yet.
        attempt: Number of consecutive failures to read.
        unreadable_until: Monotonic time, in seconds, of the next attempt to read.
        room_attempt: Number of consecutive attempts that found no space.
        unwritten_bytes: Bytes of parts that are not on disk yet.
        waiting_bytes: Bytes on disk of batches whose partitions are not chosen yet. The engine recounts these bytes
            when segments are deleted.
    """

    __slots__ = (
        "_room_at",
        "attempt",
        "pending",
        "room_attempt",
        "unreadable_until",
        "unwritten_bytes",
        "waiting_bytes",
    )

    def __init__(self) -> None:
        self.pending: Sequence[j.Divide] = ()
        self.unwritten_bytes = 0
        self.waiting_bytes = 0
        self._room_at = 0.0
        self.attempt = 0
        self.unreadable_until = 0.0
        self.room_attempt = 0

    def take(self) -> Sequence[j.Divide]:
        """Take the pending divisions. The caller calls `leave` with the divisions that it could not carry out."""
        pending, self.pending = self.pending, ()
        return pending

    def leave(self, pending: Sequence[j.Divide]) -> None:
        """Keep the divisions that could not be carried out."""
        self.pending = pending

    def fail(self) -> int:
        """Note that the spool could not be read. Returns the number of consecutive failures."""
        self.attempt += 1
        return self.attempt

    def wait(self, until: float) -> None:
        """Set the monotonic time, in seconds, of the next attempt to read."""
        self.unreadable_until = until

    def succeed(self) -> None:
        """Note that the spool could be read."""
        self.attempt = 0

    def miss_room(self) -> int:
        """Note that the disk has no space for the parts of a divided batch. Returns the number of consecutive attempts
        that found no space.
        """
        self.room_attempt += 1
        return self.room_attempt

    def find_room(self) -> None:
        """Note that a batch was divided."""
        self.room_attempt = 0

    def is_blocked(self, now: float) -> bool:
        """Whether the next division must wait: parts of an earlier division are not on disk yet, or the lane waits for
        space.
        """
        return bool(self.unwritten_bytes) or self._room_at > now

    def pause(self, until: float) -> None:
        """Wait for space until the monotonic time `until`, in seconds."""
        self._room_at = until

    def end_pause(self) -> None:
        """End the wait for space, because segments were deleted."""
        self._room_at = 0.0

    def add_unwritten(self, size: int) -> None:
        """Add the size of parts that still have to be written."""
        self.unwritten_bytes += size

    def written(self) -> None:
        """Note that the parts are on disk."""
        self.unwritten_bytes = 0

    def count_waiting(self, size: int) -> None:
        """Note how many bytes belong to batches whose partitions are not chosen yet."""
        self.waiting_bytes = size


class ReleaseCheck:
    """The result of the last check for segments that can be deleted, and when the next check is due."""

    __slots__ = ("_again_at", "_excess", "_position")

    def __init__(self) -> None:
        self._again_at = float("inf")
        """Monotonic time, in seconds, of the next attempt after a failed deletion."""
        self._position = -1
        self._excess = 0
        """Bytes by which the lane exceeded half of `spool_max_bytes` after the last deletion; negative if the lane was
        smaller.
        """

    def is_due(self, position: int, excess: int, more: int, now: float) -> bool:
        """Whether to check now which segments can be deleted. A check is due in each of these cases:

        - `position` has changed since the last check.
        - `excess` is positive, and has grown by more than `more` bytes since the last check.
        - The pause after a failed deletion is over.

        Args:
            position: The release position: before this position in the log, all batches are finished, and none is
                suspected to be lost.
            excess: Bytes by which the lane exceeds half of `spool_max_bytes`.
            more: See above.
            now: Monotonic seconds.
        """
        return position != self._position or excess > max(self._excess + more, 0) or now >= self._again_at

    def note(self, position: int, excess: int) -> None:
        """Note a check. For the arguments, see `is_due`."""
        self._position, self._excess = position, excess
        self._again_at = float("inf")

    def fail(self, again_at: float) -> None:
        """Note a failed deletion of a segment. The next check is due at the monotonic time `again_at`, in seconds."""
        self._again_at = again_at

    def freed(self, size: int) -> None:
        """Note that segments with this total size were deleted."""
        self._excess -= size


class Rejections:
    """Keeps the rejected batches that are not finished, with the paths of the files that contain their records. Also
    keeps the partitions whose next batch is damaged on disk.
    """

    __slots__ = ("_damaged", "_paths", "_stopped")

    def __init__(self) -> None:
        self._paths: dict[int, Path | None] = {}
        """Maps the handle of a rejected batch to the file with its records."""
        self._damaged: set[int] = set()
        """Handles of rejected batches that were damaged on disk. Their files are in `quarantine/`."""
        self._stopped: dict[int, float] = {}
        """For each destination whose next batch is damaged on disk: when the engine reads this batch again (monotonic
        time, in seconds).
        """

    def __contains__(self, handle: int) -> bool:
        return handle in self._paths

    def keep(self, handles: Iterable[int], path: Path | None) -> None:
        """Store the path of the file that contains these batches' records, or None if no such file exists
        (`spool="never"`).
        """
        self._paths.update(dict.fromkeys(handles, path))

    def keep_damaged(self, handle: int, path: Path) -> None:
        """Note which file in `quarantine/` keeps the bytes of a damaged batch."""
        self._paths[handle] = path
        self._damaged.add(handle)

    def is_damaged(self, handle: int) -> bool:
        """Whether a rejected batch was damaged on disk. In an atomic batch, only some batches may be damaged."""
        return handle in self._damaged

    def path(self, handle: int) -> Path | None:
        """The file with the records of a rejected batch."""
        return self._paths[handle]

    def finish(self, handle: int) -> Path | None:
        """Forget a rejected batch, because it is finished. Returns the file with its records."""
        self._damaged.discard(handle)
        return self._paths.pop(handle)

    def stop(self, destination: int, until: float) -> None:
        """Pause a destination, because the destination's next batch is damaged on disk. The engine reads that batch
        again at the monotonic time `until`, in seconds.
        """
        self._stopped[destination] = until

    def stopped(self, now: float) -> set[int]:
        """The destinations that are paused at the time `now`."""
        return {destination for destination, until in self._stopped.items() if until > now}


class ProducerIdRequest:
    """The state of a lane's request for a producer id: whether it is open, and how often it failed.

    Attributes:
        is_open: True from the request until the cluster grants an id, even if the request fails.
        failures: Number of consecutive failures.
        refusal: Why the last request failed; empty if no request has failed since the cluster granted an id.
    """

    __slots__ = ("failures", "is_open", "refusal")

    def __init__(self) -> None:
        self.is_open = False
        self.failures = 0
        self.refusal = ""

    def ask(self) -> None:
        """Note that a request is sent."""
        self.is_open = True

    def granted(self) -> None:
        """Note that a producer id was granted."""
        self.is_open = False
        self.failures = 0
        self.refusal = ""

    def failed(self, reason: str) -> None:
        """Note that the request was refused or not answered. The engine repeats it after a pause."""
        self.failures += 1
        self.refusal = reason


class LossChecks:
    """Stores the results of the checks for losses, so that no check is repeated needlessly."""

    __slots__ = ("_epochs", "_unproven")

    def __init__(self) -> None:
        self._epochs: dict[int, int] = {}
        """For each destination: the leader epoch under which its log was last checked for lost records."""
        self._unproven: dict[int, int] = {}
        """For each destination whose present log may never have contained an acknowledged offset: this offset. The
        engine has already reported it.
        """

    def see_leader(self, destination: int, epoch: int) -> bool:
        """Note a partition's leader epoch. Returns whether the epoch is new; if so, the log has to be checked."""
        before = self._epochs.get(destination)
        self._epochs[destination] = epoch
        return before is None or epoch > before

    def forget_leader(self, destination: int) -> None:
        """Forget the partition's leader epoch after a failed check, so that the next metadata answer causes another
        check.
        """
        self._epochs.pop(destination, None)

    def report_unproven(self, destination: int, last_acked_offset: int) -> bool:
        """Note that the present log may never have contained this acknowledged offset. Returns whether this is the
        first report about the offset.
        """
        if self._unproven.get(destination) == last_acked_offset:
            return False
        self._unproven[destination] = last_acked_offset
        return True

    def clear(self) -> None:
        """Forget all results, because they are about the former cluster, and another cluster answers now."""
        self._epochs.clear()
        self._unproven.clear()


class Handover:
    """Decides when to return an adopted lane to the producer that wants it: when two checks in a row find the lane
    idle. By the second check, the effects of all answers that arrived before the first check are on disk.
    """

    __slots__ = ("_was_idle",)

    def __init__(self) -> None:
        self._was_idle = False

    def look(self, *, idle: bool) -> bool:
        """Whether to hand the lane over now.

        Args:
            idle: True if another producer wants the lane, none of the lane's batches is in flight, and all spool groups
                are written.
        """
        was_idle, self._was_idle = self._was_idle, idle
        return idle and was_idle


class Copying:
    """The progress of copying unfinished batches to the end of the lane's log, and the time at which `RoomKeeper` next
    checks whether to copy.

    Attributes:
        before: Position in the log up to which unfinished batches are being copied to the log's end; -1 if no batches
            are being copied.
    """

    __slots__ = ("_look_at", "_looked_bytes", "before")

    def __init__(self) -> None:
        self.before = -1
        self._looked_bytes = 0
        """Size of the log when the engine last checked whether to copy batches."""
        self._look_at = 0.0
        """Monotonic time, in seconds, at which the next check is due even if the log has not grown."""

    @property
    def is_under_way(self) -> bool:
        """Whether batches are being copied."""
        return self.before >= 0

    def is_due(self, now: float, used_bytes: int, growth_bytes: int) -> bool:
        """Whether the next check is due: its time has come, or the log grew by `growth_bytes`."""
        return now >= self._look_at or used_bytes >= self._looked_bytes + growth_bytes

    def look(self, used_bytes: int, next_at: float) -> None:
        """Note a check, and the log's size. The next check is due at `next_at`, or earlier if the log grows."""
        self._looked_bytes, self._look_at = used_bytes, next_at

    def forget_size(self) -> None:
        """Note that there is enough space, so that the next check is due as soon as space becomes scarce."""
        self._looked_bytes = 0

    def begin(self, before: int) -> None:
        """Begin to copy the unfinished batches before this position in the log; -1: copy none."""
        self.before = before

    def stop(self) -> None:
        """Stop copying, because all unfinished batches are copied or the disk is full."""
        self.before = -1

    def fail(self, next_at: float) -> None:
        """Stop copying after a failed write. The engine checks again at `next_at`."""
        self.before = -1
        self._look_at = next_at


@dataclass(slots=True, eq=False)
class Lane:
    """One lane of the spool: its lock, log, journal, and the callers' batches (parcels) in it."""

    name: str
    lock: LaneLock
    spool: Spool
    journal: j.Journal
    own: bool
    rejected: RejectedStore
    parcels: dict[int, Parcel] = field(default_factory=dict)
    heads: dict[bytes, list[Parcel]] = field(default_factory=dict)
    """By the id of a unit (atomic batch): its head parcels, which have no records and carry the outcome of the whole
    unit.
    """
    unit_progress: UnitProgress = field(default_factory=UnitProgress)
    names: NameRefusals = field(default_factory=NameRefusals)
    rejections: Rejections = field(default_factory=Rejections)
    handover: Handover = field(default_factory=Handover)
    producer_id: ProducerIdRequest = field(default_factory=ProducerIdRequest)
    release: ReleaseCheck = field(default_factory=ReleaseCheck)
    copying: Copying = field(default_factory=Copying)
    checks: LossChecks = field(default_factory=LossChecks)
    write_backlog: WriteBacklog = field(default_factory=WriteBacklog)
    divisions: Divisions = field(default_factory=Divisions)
    held_back: bool = False
    """Whether the last report said that batches of this lane wait for records of other lanes."""

    @property
    def held(self) -> bool:
        """Whether the journal has made a decision that is not on disk yet. Until the decision is on disk, the engine
        asks the journal for no other decision. Unwritten batches do not count.
        """
        return self.write_backlog.has_decision

    def report_held_back(self, *, held_back: bool) -> None:
        """Note whether the last report said that batches of this lane wait for batches of other lanes."""
        self.held_back = held_back

    def bind(self, cluster_id: str, assumed: str | None) -> None:
        """Bind the lane to this cluster (see `Journal.bind`). Discards results of loss checks on another cluster."""
        if self.journal.bind(cluster_id, assumed=assumed):
            self.checks.clear()

    def stands(self) -> None:
        """Update the lane's paths to the present path of its locked directory, after the lane was restored."""
        path = self.lock.path
        self.name = f"{self.name.rpartition('/')[0]}/{path.name}".lstrip("/")
        self.spool.stands_at(path)
        self.rejected.stands_at(path)

    def disown(self) -> None:
        """Write a mark (log entry) for each file in `rejected/` that should have been deleted but may still exist.
        Without the mark, `kafkasafe spool resend` would send the records in the file again.
        """
        for name in self.rejected.undeleted():
            self.journal.disown(m.Resent(self.lock.path.name, name))
