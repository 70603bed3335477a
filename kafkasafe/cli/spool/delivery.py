"""Delivers the records in a spool directory, for `kafkasafe spool drain` and `spool resend`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from kafka.errors import KafkaTimeoutError

from kafkasafe.cli.common import (
    RESEND_HINT,
    address_of,
    counted,
    inspected,
    progress,
    rejected_lines,
)
from kafkasafe.cli.report import EXIT_BROKEN, EXIT_FAILED
from kafkasafe.cli.spool.opened import OpenSpool
from kafkasafe.cluster.api import in_words
from kafkasafe.errors import DataLossError, SpoolCorruptError, SpoolError, UndecidableError
from kafkasafe.events import DeliveryRetried, RecordsCommitted, TopicBlocked, TopicUnblocked
from kafkasafe.spool.inspection import Inspected, inspect
from kafkasafe.spool.lanes import SpoolDirectory

_REASONS: Final = 3


@dataclass(frozen=True, slots=True)
class DeliveryReport:
    """The result of a drain: the delivered records, and the records that are still in the directory."""

    delivered: int
    left: int
    rejected: list[Inspected]
    foreign: list[str]
    trouble: str
    seconds: float
    unreachable: bool = False
    """Whether the drain ended because no broker could be used."""
    lost: str = ""
    """A message about acknowledged records that the cluster has lost, and that cannot be sent again; empty if there are
    none.
    """
    dropped: int = 0
    """Number of records of dropped atomic batches. Dropped records are not kept in rejected/. The application produces
    the records again, because the consumer whose offsets belong to the batch reads its input again.
    """
    rejected_now: int = 0
    """Number of records that this drain added to rejected/."""
    ignore_rejected: bool = False
    """Whether the exit code ignores records that were in rejected/ before this drain."""

    @property
    def rejected_records(self) -> int:
        return sum(each.records for found in self.rejected for each in found.rejected)

    @property
    def exit_code(self) -> int:
        if self.unreachable:
            return EXIT_FAILED
        rejected = bool(self.rejected)
        if self.ignore_rejected:
            # Ignore records that were in rejected/ before this drain, unless a file is unreadable.
            rejected = self.rejected_now > 0 or any(found.rejected_unreadable for found in self.rejected)
        return EXIT_BROKEN if self.left or self.trouble or rejected or self.lost else 0

    @property
    def fields(self) -> dict[str, Any]:
        return {
            "delivered_records": self.delivered,
            "left_records": self.left,
            "rejected_records": self.rejected_records,
            "newly_rejected_records": self.rejected_now,
            "dropped_records": self.dropped,
            "lanes_of_others": self.foreign,
            "trouble": self.trouble or self.lost,
            "seconds": round(self.seconds, 1),
        }

    def lines(self) -> Iterator[str]:
        yield (
            f"{counted(self.delivered, 'record')} delivered, "
            + (
                f"{self.left:,} left"
                if self.left or not self.trouble
                else "but not all records could be read"
            )
            + (f": {self.trouble}" if self.trouble else "")
        )
        if self.dropped:
            yield (
                f"{counted(self.dropped, 'record')} in dropped atomic batches: the batches' consumer group no longer"
                " accepts their offsets, so its members read the same input again"
            )
        if self.lost:
            yield f"LOST by the cluster: {self.lost}"
        if self.rejected:
            yield f"{counted(self.rejected_records, 'record')} in rejected/, not delivered:"
        for found in self.rejected:
            yield from rejected_lines(found.rejected, found.rejected_unreadable)
        if self.rejected_records:
            yield RESEND_HINT
        for name in self.foreign:
            yield f"{name} belongs to a running process, which delivers it"


def deliver(
    lanes: SpoolDirectory,
    options: dict[str, Any],
    began: float,
    limit_s: float,
    on_undecidable: str,
    on_corrupt: str = "raise",
) -> DeliveryReport:
    """Delivers the records of lanes without an owner.

    Args:
        lanes: The spool directory.
        options: Options of the producer that delivers.
        began: Monotonic time, in seconds, at which the command began.
        limit_s: Time limit in seconds, counted from `began`.
        on_undecidable: The producer's option of that name.
        on_corrupt: The producer's option of that name. If `on_corrupt` is "raise", the value in `options` is used.
    """
    there = _left(lanes, set())
    before = there.records
    if not there.work:
        # Lanes without an owner hold no undelivered records, so no broker is needed.
        return DeliveryReport(0, 0, _all_rejected(lanes), there.foreign, "", time.monotonic() - began)
    refused_before = _rejected(lanes)
    options = {**options, "on_undecidable": on_undecidable}
    if on_corrupt != "raise":
        options = {**options, "on_corrupt": on_corrupt}
    drain = _Drain(lanes, options, before, limit_s, began + limit_s)
    drain.run()
    there = _left(lanes, set())
    left = there.records
    refused = max(0, _rejected(lanes) - refused_before)
    # After `before` was counted, another process may have taken a lane and delivered records. Do not count these
    # records.
    delivered = max(0, min(before - left - refused - drain.dropped, drain.committed))
    return DeliveryReport(
        delivered,
        left,
        _all_rejected(lanes),
        there.foreign,
        drain.trouble or there.damaged,
        time.monotonic() - began,
        drain.unreachable,
        drain.lost,
        drain.dropped,
        refused,
    )


class _Drain:
    """A producer that delivers the records of a directory, and its results so far.

    Args:
        lanes: The spool directory.
        options: Options of the producer.
        before: Number of undelivered records.
        limit_s: Time limit in seconds, for messages.
        deadline: Monotonic time, in seconds, at which to give up.

    Attributes:
        trouble: Why some records were not delivered; empty if all records were delivered.
        lost: See `DeliveryReport`.
        unreachable: See `DeliveryReport`.
        dropped: Number of records in dropped atomic batches.
        committed: Number of delivered records.
    """

    def __init__(
        self, lanes: SpoolDirectory, options: dict[str, Any], before: int, limit_s: float, deadline: float
    ) -> None:
        self._lanes = lanes
        self._options = options
        self._before = before
        self._limit_s = limit_s
        self._deadline = deadline
        self._reasons = _Reasons()
        self.trouble = self.lost = ""
        self.unreachable = False
        self.dropped = self.committed = 0

    def run(self) -> None:
        """Deliver until nothing is left, or until something prevents it."""
        spool: OpenSpool | None = None
        try:
            with (
                OpenSpool(
                    self._options, self._lanes.path, "kafkasafe-drain", self._reasons.note, self._deadline
                ) as spool,
                progress("delivering", "records") as report,
            ):
                while not self._is_over(spool, report):
                    pass
        except SpoolCorruptError as error:
            self.trouble = str(error)
        except DataLossError as error:
            self.lost = self.lost or str(error)
        if spool is not None:
            self.dropped, self.committed = spool.dropped_records, spool.committed_records

    def _is_over(self, spool: OpenSpool, report: Callable[[float, float], None]) -> bool:
        """Wait a moment for deliveries. Return whether the drain ends now."""
        try:
            flushed = self._flush(spool)
        except UndecidableError as error:
            self.trouble = str(error)
            return True
        waiting = spool.unfinished_records
        report(max(0, self._before - waiting), self._before)
        if flushed and not waiting:
            there = _left(self._lanes, spool.lanes)
            if there.damaged and self._options.get("on_corrupt") != "quarantine":
                self.trouble = there.damaged
                return True
            if not (there.records or there.damaged):
                return True
        if time.monotonic() >= self._deadline:
            network = spool.last_network_error
            self.unreachable = network is not None and not spool.connected
            why = f"no broker can be used: {in_words(network)}" if network else str(self._reasons)
            self.trouble = f"not everything was delivered within {self._limit_s:g} s" + (why and f" ({why})")
            return True
        time.sleep(0.1 if flushed else 0)
        return False

    def _flush(self, spool: OpenSpool) -> bool:
        """Wait up to a second for deliveries. Return whether no record is pending any more."""
        try:
            spool.flush(min(1.0, max(0.0, self._deadline - time.monotonic())))
        except KafkaTimeoutError:
            return False
        except DataLossError as error:
            # The cluster lost records that were delivered earlier. The drain still delivers the pending records.
            self.lost = self.lost or str(error)
            return False
        return True


def _all_rejected(lanes: SpoolDirectory) -> list[Inspected]:
    """Lanes with records or unreadable files in rejected/."""
    return [found for _, _, found in inspected(lanes.path, []) if found.rejected or found.rejected_unreadable]


def _rejected(lanes: SpoolDirectory) -> int:
    """Number of records in rejected/ of all lanes."""
    return sum(each.records for _, _, found in inspected(lanes.path, []) for each in found.rejected)


class _Reasons:
    """The reason why the last attempt failed, for each partition whose records are still being retried."""

    def __init__(self) -> None:
        self._reasons: dict[str, str] = {}

    def note(self, event: object) -> None:
        """Note an event of the delivery."""
        match event:
            case DeliveryRetried(topic, partition, _, _, reason):
                self._reasons[address_of(topic, partition)] = reason
            case TopicBlocked(topic, partition, _, reason):
                self._reasons[address_of(topic, partition)] = reason
            case RecordsCommitted(topic, partition) | TopicUnblocked(topic, partition):
                self._reasons.pop(address_of(topic, partition), None)
            case _:
                pass

    def __str__(self) -> str:
        found = sorted(self._reasons.copy().items())
        more = f"; and {len(found) - _REASONS} more partitions" if len(found) > _REASONS else ""
        return "; ".join(f"{where}: {reason}" for where, reason in found[:_REASONS]) + more


@dataclass(frozen=True, slots=True)
class _Left:
    """The undelivered records in all lanes that no other process owns.

    Attributes:
        damaged: A description of the damage; empty if none exists.
        foreign: Names of the lanes that other processes own.
        work: Whether a producer would have work to do if it owned these lanes.
    """

    records: int
    damaged: str
    foreign: list[str]
    work: bool


def _left(lanes: SpoolDirectory, mine: set[str]) -> _Left:
    """Examine the lanes without an owner, and the lanes in `mine`, which this process owns."""
    records, damaged, foreign, work = 0, "", [], False
    for number in lanes.lanes():
        path = lanes.lane_path(number)
        # Also examine each lane that this process has locked but not opened yet: `mine` does not name such a lane.
        if path.name not in mine and lanes.owners.seems_owned(number) not in {0, os.getpid()}:
            foreign.append(path.name)
            continue
        try:
            found = inspect(path, files=lanes.files)
        except SpoolError as error:
            damaged = str(error)
            work = True
            continue
        work = work or bool(found.unfinished or found.doubted or found.damage)
        records += sum(waiting.records for waiting in found.waiting)
        if found.untold and path.name not in mine:
            damaged = f"{path.name} is damaged: {found.untold[0]}; see kafkasafe spool repair"
    return _Left(records, damaged, foreign, work)
