"""The engine's state that callers read: parcels without a fate, and errors to be raised.

The engine changes it with `lock` held. Callers take the lock only while they hold `SafeProducer._lock`. So a signal
handler that calls the producer can detect that it interrupted a call. The locks are reentrant, so the handler can take
both. The handler releases them while it waits (`Accumulator.released`). All code takes the lock by `with`: if a signal
handler raised (Ctrl-C) right after an acquire(), the lock would stay taken.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from kafkasafe import journal as j
from kafkasafe.delivery.engine.ahead import Ahead
from kafkasafe.delivery.engine.context import EngineContext
from kafkasafe.delivery.engine.elsewhere import Elsewhere
from kafkasafe.delivery.engine.lane import Lane
from kafkasafe.delivery.engine.messages import Submitted
from kafkasafe.delivery.engine.one_loss import one_loss
from kafkasafe.delivery.engine.parcels import Parcel, first, last, leaves
from kafkasafe.delivery.engine.waits import WaitingCallers
from kafkasafe.errors import (
    DataLossError,
    DeliveryTimeoutError,
    KafkaSafeError,
    Limit,
    SpoolCorruptError,
    SpoolError,
    SpoolWriteError,
    UndecidableError,
    WrongClusterError,
)
from kafkasafe.journal.backlog import Ordered
from kafkasafe.limits.capacity import FREE_BYTES, Capacity
from kafkasafe.spool.refusals import counted

__all__ = ["BACKLOG_BYTES", "Ledger"]

BACKLOG_BYTES: Final = 32 * 1024 * 1024
"""Bytes that may wait to be written."""
_NONE: Final = float("inf")


class Ledger:
    """See the module."""

    def __init__(self, context: EngineContext) -> None:
        self._context = context
        self._log = context.log
        self._config = context.config
        self.renew()
        self.numbers = itertools.count(1)
        self.open: Ordered[Parcel] = Ordered()
        """Parcels without a fate, by number, except those whose batches are packed."""
        self._packed = self._packed_records = 0
        # `_packed_from` has, by destination, the number of the first packed parcel. `_first_packed` is the lowest of
        # them.
        self._packed_from: dict[int, int] = {}
        self._first_packed: float = _NONE
        self._moves = 0
        """Odd while parcels are being packed or unpacked."""
        # `_live` has packed parcels that callers still hold. `_kept` keeps packed parcels alive that have a watcher.
        self._live: weakref.WeakValueDictionary[int, Parcel] = weakref.WeakValueDictionary()
        self._kept: dict[int, Parcel] = {}
        self.ahead = Ahead(context.config.run_ahead_bytes, context.clock)
        self.undurable: OrderedDict[int, Parcel] = OrderedDict()
        """Parcels that are not on disk yet, by number."""
        self.backlog = 0
        """Bytes in the parcels that are not on disk yet."""
        self.used = 0
        """Bytes that the producer's own lane takes on disk."""
        self.free: float = float("inf")
        """Free bytes of the disk at the last measurement; infinite if they cannot be measured."""
        self.disk_trouble = ""
        """Why nothing becomes durable for now; empty while the disk works."""
        self.disk_full = False
        """Whether the disk trouble is a lack of space."""
        self.failure: BaseException | None = None
        self.wrong_cluster: WrongClusterError | None = None
        """Set while another cluster answers instead of ours, and records wait for ours."""
        self.undecided: dict[tuple[Lane, int], tuple[j.Batch, UndecidableError]] = {}
        self._shown: list[tuple[Lane, int]] = []
        """The undecided batches that the last raised error is about."""
        self.damage: dict[tuple[str, int], SpoolCorruptError] = {}
        """Errors of partitions that wait because a batch is damaged on disk (`on_corrupt="raise"`)."""
        self.losses: collections.deque[DataLossError | SpoolCorruptError] = collections.deque()
        self.doubted: Sequence[tuple[str, int]] = ()
        """Partitions where acknowledged records of the producer's own lane may be lost; the engine asks the cluster."""
        self.left_behind: set[int] = set()
        """Lanes without an owner that held unfinished records when this producer began, and still do."""
        self._adopted: set[Path] = set()
        self._seeks_siblings = False
        self.names: dict[str, BaseException | None] = {}
        """By a user's transactional id, None if the id was taken over, or the error if the cluster refuses it."""
        self.name_trouble: dict[str, str] = {}
        """Why a transactional id is not taken over yet."""
        self._revived_number = 0
        """Number of the newest parcel that is sent again because the cluster lost it."""

    def disk_failed(self, why: str, *, full: bool = False) -> None:
        """Note that accepted records cannot become durable for now; `full`: for lack of space."""
        self.disk_full = full
        self.disk_trouble = why

    def disk_works(self) -> None:
        """Note that a group was written and is durable."""
        self.disk_trouble = ""

    def take_shown(self) -> list[tuple[Lane, j.Batch]]:
        """Take the undecidable batches that the caller's decision is about. No error is raised for them any more."""
        with self.lock:
            keys = self._shown or list(self.undecided)
            self._shown = []
            return [(key[0], self.undecided.pop(key)[0]) for key in keys if key in self.undecided]

    def renew(self) -> None:
        """Create a new lock: in a forked child, the thread that held the old one does not exist."""
        self.lock = threading.RLock()
        self.waiters = WaitingCallers()

    def submit(self, parcels: Sequence[Parcel]) -> None:
        """Accept parcels, in order. Never blocks; the caller has checked `room` before.

        The same parcels may come again: from a caller whose first call was interrupted (Ctrl-C), or from a signal
        handler that runs during this call. The ledger accepts each parcel only once.
        """
        now = self._context.clock.monotonic()
        with self.lock:
            failure = self.failure
            waiting = failure is None and any(not parcel.taken for parcel in parcels)
            for parcel in parcels if waiting else ():
                if parcel.taken:
                    continue
                if not parcel.number:
                    number = next(self.numbers)
                    # A signal handler may just have given the parcel a number.
                    parcel.accept(number, now)
                self.open[parcel.number] = parcel
                self.ahead.submit(parcel)
                if parcel.number not in self.undurable:
                    self.undurable[parcel.number] = parcel
                    self.backlog += parcel.size_bytes
            if waiting:
                self._context.post(Submitted(parcels))
            # The same handler may have waited until the parcels were on disk, or delivered.
            for parcel in parcels:
                if parcel.durable and self.undurable.pop(parcel.number, None) is not None:
                    self.backlog -= parcel.size_bytes
                if parcel.done:
                    self.open.pop(parcel.number, None)
        if failure is not None:
            for parcel in parcels:
                self.abort(parcel, failure)

    def publish_used(self, used: int, *, more_room: bool) -> None:
        """Publish the size of the producer's own lane, and wake callers that wait for space if there is more of it."""
        if used == self.used and not more_room:
            return
        with self.lock:
            more_room = more_room or used < self.used
            self.used = used
        if more_room and self.waiters:
            self.waiters.notify_all()

    def measure_free(self, free: float) -> bool:
        """Note the disk's free bytes, infinite if they cannot be measured. Returns whether they grew."""
        before, self.free = self.free, free
        return free > before

    def refuse_cluster(self, error: WrongClusterError) -> None:
        """Note that another cluster answers instead of ours, and wake callers that wait."""
        with self.lock:
            self.wrong_cluster = error
            self.waiters.notify_all()

    def accept_cluster(self) -> None:
        """Note that our cluster answers."""
        with self.lock:
            self.wrong_cluster = None

    def take(self, parcels: Sequence[Parcel]) -> list[Parcel]:
        """Mark parcels as taken by the pump. Returns those that were not taken yet."""
        with self.lock:
            new = [parcel for parcel in parcels if not parcel.taken]
            for parcel in new:
                parcel.take()
            self.ahead.take(new)
        return new

    def room(self, needed: int) -> bool:
        """Whether `needed` more bytes can be accepted now. Call with `lock` held. Does not access the disk."""
        return self.capacity.takes(needed)

    @property
    def capacity(self) -> Capacity:
        """The capacity of the producer's own lane, a moment old. Does not access the disk. From any thread."""
        config = self._config
        if config.in_memory:
            return Capacity(config.spool_max_bytes, 0, self.backlog)
        return Capacity(
            config.spool_max_bytes - config.spool_segment_bytes,
            self.used,
            self.backlog,
            max(BACKLOG_BYTES, 4 * config.max_record_bytes),
            self.free,
        )

    def flushed(self, number: int) -> bool:
        """Whether every parcel up to this number has its fate."""
        while True:
            moves = self._moves
            least, packed = self.open.least, self._first_packed
            if moves == self._moves and not moves % 2:
                return (least is None or least > number) and packed > number
            time.sleep(0)  # some parcels are being moved between the two

    def settled(self, number: int) -> bool:
        """Whether parcels up to this number have their fate, and nothing else is open that `flush` waits for.

        Nothing else is open if the engine doubts no acknowledged records, lost records that it sent again have their
        fate, and lanes that earlier producers left are drained or have another owner.
        """
        # Read in this order: the engine sets `_revived_number` before the doubt ends.
        return not self.doubted and not self.left_behind and self.flushed(max(number, self._revived_number))

    def lacks(self, needed: int) -> tuple[Limit, str]:
        """The limit that leaves no space for `needed` more bytes, and a text for humans. Any thread may call it."""
        config = self._config
        limit: Limit = "spool_max_bytes"
        if config.in_memory:
            return limit, f"{self.backlog:,} bytes wait, and spool_max_bytes is {config.spool_max_bytes:,}"
        if self.disk_trouble:
            waiting = f"{self.backlog:,} bytes wait to be written"
            return (
                "volume" if self.disk_full else "disk",
                f"{waiting}, and the spool takes nothing for now: {self.disk_trouble}",
            )
        now = self.capacity
        if needed > now.spool_left:
            used = now.used_bytes + now.backlog_bytes
            return limit, f"{used:,} bytes are taken, spool_max_bytes is {config.spool_max_bytes:,}"
        if needed > now.volume_left:
            kept = f"{FREE_BYTES:,} are kept for what delivery needs"
            return "volume", f"the volume has {now.free_bytes:,.0f} bytes left, of which {kept}"
        return "disk", f"{self.backlog:,} bytes wait to be written, the disk does not keep up"

    def revive(self, parcel: Parcel) -> None:
        """Give a new number to a parcel whose batch is sent again, so that its fate is open again."""
        with self.lock:
            self._revived_number = next(self.numbers)
            parcel.renumber(self._revived_number)
            self.open[parcel.number] = parcel

    def name_answered(self, name: str, error: BaseException | None = None, trouble: str = "") -> None:
        """Note that a transactional id is ours, or refused; with `trouble`, that the engine tries again."""
        with self.lock:
            self.name_trouble[name] = trouble
            if not trouble:
                self.names[name] = error
                self.waiters.notify_all()

    def lose(self, error: DataLossError | SpoolCorruptError) -> None:
        """Have the next `send`, `flush` or `close` raise this error, once."""
        with self.lock:
            self.losses.append(error)
            self.waiters.notify_all()

    def doubt(self, partitions: Sequence[tuple[str, int]]) -> None:
        """Replace `doubted`."""
        with self.lock:
            self.doubted = partitions
            if self.waiters:
                self.waiters.notify_all()

    def oldest_age_s(self) -> float:
        """How long the oldest record without a fate has waited, seconds; 0 if there is none. From any thread."""
        oldest = self.open.get(self.open.least or 0)
        if oldest is None:
            return 0.0
        if oldest.sealed_at:
            return max(0.0, self._context.clock.monotonic() - oldest.sealed_at)
        # An earlier run of the program accepted the record, at an unknown time.
        return max(0.0, (self._context.clock.wall_ms() - oldest.max_timestamp) / 1000)

    def undurable_s(self) -> float:
        """How long the oldest record has waited for the disk, seconds; 0 if none waits. From any thread."""
        oldest = self.undurable.get(first(self.undurable, 0))
        return 0.0 if oldest is None else max(0.0, self._context.clock.monotonic() - oldest.sealed_at)

    def spooled(self, number: int) -> bool:
        """Whether every parcel up to this number is durable."""
        return first(self.undurable, number + 1) > number

    def last_number(self) -> int:
        """A number above those of all parcels accepted so far, and below those of all later ones."""
        return next(self.numbers)

    @property
    def unfinished(self) -> int:
        """Parcels without a fate."""
        return len(self.open) + self._packed

    def unfinished_records(self, number: int) -> int:
        """About how many records without a fate are in parcels up to this number. If a packed parcel is among these
        parcels, the records of all packed parcels are included.
        """
        packed = self._packed_records if self._first_packed <= number else 0
        return packed + sum(parcel.count for parcel in list(self.open.values()) if parcel.number <= number)

    def undurable_records(self, number: int) -> int:
        """Records that are not on disk, nor in the cluster, in parcels up to this number."""
        waiting = list(self.undurable.values())
        return sum(p.count for p in waiting if p.number <= number and not p.done)

    def pack(self, destination: int, parcels: Sequence[Parcel]) -> None:
        """Note that the batches of these parcels are packed. The ledger keeps only parcels that callers hold."""
        with self.lock, self._moving():
            for parcel in parcels:
                parcel.pack(self._kept)
                if parcel.watcher is not None:
                    self._kept[parcel.number] = parcel
                self._live[parcel.number] = parcel
            first_number = self._packed_from.setdefault(destination, parcels[0].number)
            self._first_packed = min(self._first_packed, first_number)
            self._packed += len(parcels)
            self._packed_records += sum(parcel.count for parcel in parcels)
            for parcel in parcels:
                self.open.pop(parcel.number)
                self.ahead.withdraw(parcel)

    def pack_unseen(self, packed: j.Packed) -> None:
        """Note batches of earlier incarnations that were packed while they were read. No caller holds their parcels."""
        with self.lock, self._moving():
            self._packed_from[packed.destination] = packed.first_number
            self._first_packed = min(self._first_packed, packed.first_number)
            self._packed += packed.batches
            self._packed_records += packed.records

    @contextlib.contextmanager
    def _moving(self) -> Iterator[None]:
        self._moves += 1
        try:
            yield
        finally:
            self._moves += 1

    def unpack(self, number: int) -> Parcel | None:
        """The parcel of a packed batch, if a caller or a watcher still holds it."""
        parcel = self._live.pop(number, None)
        if parcel is not None:
            parcel.unpack()
        self._kept.pop(number, None)
        return parcel

    def unpacked(self, destination: int, parcel: Parcel, next_number: int) -> None:
        """Open a parcel again. `next_number` is the number of the next packed parcel of its partition, -1 for none."""
        with self.lock, self._moving():
            self.open[parcel.number] = parcel
            self._packed -= 1
            self._packed_records -= parcel.count
            if next_number < 0:
                del self._packed_from[destination]
            else:
                self._packed_from[destination] = next_number
            if parcel.number == self._first_packed:
                self._first_packed = min(self._packed_from.values(), default=_NONE)

    def last_undurable(self) -> int:
        """Number of the newest parcel that is not durable."""
        return last(self.undurable)

    def seek_siblings(self, *, on: bool) -> None:
        """Note whether directories beside this producer's may hold records for it to adopt."""
        with self.lock:
            self._seeks_siblings = on
            self.waiters.notify_all()

    def adopt(self, lane: Path) -> None:
        """Note that this producer reads and then delivers the lane of a producer that ended."""
        with self.lock:
            self._adopted.add(lane)

    def forget_lane(self, lane: Path) -> None:
        """Note that an adopted lane is delivered, cannot be read, or has another owner."""
        with self.lock:
            self._adopted.discard(lane)
            self.waiters.notify_all()

    def idle(self) -> bool:
        """Whether nothing is left that `close` waits for.

        Then nothing in the producer's own lane is unfinished or doubted. Lanes that earlier producers left in its own
        directory are drained. No adopted lane of any directory holds unfinished records, and no other directory can
        hold records to adopt. In memory, `close` also waits for records that `delivery_timeout_ms` gave
        up: no file has them.
        """
        return (
            not self.doubted
            and not self.unfinished
            and not self.left_behind
            and not self._seeks_siblings
            and not self._adopted
            and not (self._config.in_memory and self.undurable)
        )

    @property
    def undecidable(self) -> bool:
        """Whether a batch waits for a decision."""
        return bool(self.undecided)

    def raise_undecidable(self) -> None:
        """Raise the error about all batches that wait for a decision, if there are any."""
        if not self.undecided:
            return
        with self.lock:
            self._shown = list(self.undecided)
            errors = [error for _, error in self.undecided.values()]
        if len(errors) > 1:
            more = "; ".join(error.evidence for error in errors[1:4])
            note = f" The same of {len(errors) - 1} more batches: {more}{'; …' if len(errors) > 4 else ''}"
            raise UndecidableError(f"{errors[0].args[0]}.{note}", evidence=errors[0].evidence)
        if errors:
            raise UndecidableError(*errors[0].args, evidence=errors[0].evidence)

    def next_loss(self) -> DataLossError | SpoolCorruptError | None:
        """Take the oldest loss that was not raised yet."""
        if not self.losses:
            return None
        with self.lock:
            return self.losses.popleft() if self.losses else None  # another caller may have taken it

    def losses_left(self) -> DataLossError | SpoolCorruptError | None:
        """Take all losses that were not raised yet, as one error."""
        with self.lock:
            losses, self.losses = list(self.losses), collections.deque()
        return one_loss(losses)

    @property
    def damaged(self) -> bool:
        """Whether a partition is held up by a batch that is damaged on disk."""
        return bool(self.damage)

    def raise_damage(self, topic: str | None = None) -> None:
        """Raise an error if a batch damaged on disk holds up a partition, of this topic or of any."""
        if not self.damage:
            return
        for (name, partition), error in list(self.damage.items()):
            if topic in {None, name}:
                raise SpoolCorruptError(
                    f"{name}{f'-{partition}' if partition >= 0 else ''} waits: {error.args[0]}. Other partitions"
                    " continue. Restore the file from a copy, or open with on_corrupt='quarantine': kafkasafe then"
                    " copies the damaged bytes to quarantine/, their records are lost, and all others are delivered",
                    damage=error.damage,
                ) from error

    def made_durable(self, parcels: Iterable[Parcel]) -> None:
        """Mark parcels as durable, and wake callers that wait for this."""
        with self.lock:
            for parcel in parcels:
                self.durable(parcel)
        if self.waiters:
            self.waiters.notify_all()

    def durable(self, parcel: Parcel) -> None:
        """Mark one parcel as durable. Call with `lock` held."""
        parcel.be_durable()
        if self.undurable.pop(parcel.number, None) is not None:
            self.backlog -= parcel.size_bytes
            self._context.stats.durable.observe(
                self._context.clock.monotonic() - parcel.sealed_at, parcel.count
            )
        parent = parcel.parent
        if parent is not None and not parent.durable and all(c.durable for c, _ in parent.children or ()):
            self.durable(parent)

    def finish(self, parcel: Parcel) -> None:
        """Mark a parcel as done, call its watcher, and wake callers that wait."""
        with self.lock:
            if parcel.done:
                return
            parcel.end()
            self.open.pop(parcel.number, None)
            self.ahead.finish(parcel)
            # The watcher runs before callers wake: they may wait for what it does.
            watcher = parcel.take_watcher()
            if watcher is not None:
                watcher(parcel)
        # Notify without the lock: the threads that wake up need it.
        if self.waiters:
            self.waiters.notify_all()
        for parent in parcel.parents or (parcel.parent,):
            if parent is not None and all(child.done for child, _ in parent.children or ()):
                self.finish(parent)

    def abort(self, parcel: Parcel, error: BaseException) -> None:
        """End a parcel, and the parts that it was divided into, with an error."""
        for child, _ in parcel.children or ():
            self.abort(child, error)
        if not parcel.done and not parcel.children:
            parcel.fail(error)
            self.finish(parcel)

    def fail(self, error: BaseException, *, final: bool = True, elsewhere: Elsewhere | None = None) -> None:
        """End the producer: every parcel without a fate gets an error.

        Args:
            error: The error of durable parcels.
            final: This error ended the producer.
            elsewhere: Where the producer's own lane is, if it is not in its place.
        """
        with self.lock:
            if final:
                self.failure = error
            undone = [*self.open.values(), *list(self._live.values())]
            lost: KafkaSafeError = self._not_durable(elsewhere)
            if self._config.in_memory:
                lost = error = self._lost_from_memory(error, final=final)
            gone = elsewhere is not None and elsewhere.at is None and elsewhere.records > 0
            if self.failure is None and (self.undurable or gone):
                self.failure = lost
            self.open.clear()
            self.ahead.clear(undone)
            self._live.clear()
            self._kept.clear()
            self._packed_from.clear()
            self._packed = self._packed_records = 0
            self._first_packed = _NONE
            self.undurable.clear()
            self.waiters.notify_all()
        for parcel in undone:
            self.abort(parcel, error if parcel.durable or final else lost)

    def _not_durable(self, elsewhere: Elsewhere | None) -> SpoolError:
        """The error of records that are accepted but not durable, or that were durable in a lane that was deleted."""
        records = sum(parcel.count for parcel in self.undurable.values())
        why = f" ({self.disk_trouble})" if self.disk_trouble else ""
        accepted = (
            f"{counted(records, 'record')} {'was' if records == 1 else 'were'} accepted and not durable"
        )
        safe = "Everything that durable() or get() confirmed is safe"
        if elsewhere is None:
            return SpoolWriteError(
                f"{accepted} when the producer ended{why}. {'It is' if records == 1 else 'They are'} lost, unless the"
                f" cluster has {'it' if records == 1 else 'them'}. {safe}"
            )
        if elsewhere.at is not None:
            return SpoolWriteError(
                f"{accepted} when the producer ended{why}. The written records are in {elsewhere}, where the next"
                f" producer does not look: move the directory to {elsewhere.path}, or deliver its records with"
                f" kafkasafe spool drain. {safe}"
            )
        return SpoolCorruptError(
            f"{elsewhere.path} was deleted while its producer worked, and could not be created again{why}:"
            f" {counted(elsewhere.records, 'record')} that waited there"
            f" {'is' if elsewhere.records == 1 else 'are'} lost with this producer, unless the cluster has"
            f" {'it' if elsewhere.records == 1 else 'them'}" + (f"; and {accepted}" if records else ""),
            damage=(f"{elsewhere.path}: deleted",),
        )

    def _lost_from_memory(self, error: BaseException, *, final: bool) -> DeliveryTimeoutError:
        """`spool="never"`: the error of records without an acknowledgement. Call with `lock` held."""
        parts = [leaf for parcel in self.undurable.values() for leaf in leaves(parcel) if not leaf.durable]
        records = sum(leaf.count for leaf in parts)
        why = f"it ended by an error ({error!r})" if final else "it was closed"
        message = (
            f"{counted(records, 'record')} had not been acknowledged when {why}. With spool='never' nothing else has"
            " them: they are lost, unless the cluster has them and its answer is missing. If a program sends them"
            " again, the cluster may have those twice"
        )
        if records:
            self._log.error("%s", message, records=records, event="records_lost")
        return DeliveryTimeoutError(message)

    @property
    def kept_bytes(self) -> int:
        """Bytes that count against `spool_max_bytes`: those of the spool on disk, or with `spool="never"` the pending
        ones.
        """
        return self.backlog if self._config.in_memory else self.used
