"""The part of the engine's state that callers read: their batches (parcels) without a final outcome, and errors to
raise.

The engine changes this state with `lock` held. Callers take `lock` only while they hold `SafeProducer._lock`. So a
signal handler that calls the producer can tell from `SafeProducer._lock` whether the handler interrupted another call.
Both locks are reentrant, so the handler can take them. While the handler waits, it releases both locks
(`Accumulator.released`). All code takes `lock` in a `with` statement: a Ctrl-C right after a bare `acquire()` would
leave the lock taken.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from operator import attrgetter
from pathlib import Path

from kafkasafe.delivery.engine.context import EngineContext
from kafkasafe.delivery.engine.errors_to_raise import ErrorsToRaise
from kafkasafe.delivery.engine.left_at_end import Elsewhere, lost_from_memory, not_durable
from kafkasafe.delivery.engine.messages import Submitted
from kafkasafe.delivery.engine.open_parcels import Ahead, OpenParcels
from kafkasafe.delivery.engine.parcels import Parcel
from kafkasafe.delivery.engine.spool_room import SpoolRoom, UndurableParcels
from kafkasafe.delivery.engine.waits import Guard, WaitingCallers
from kafkasafe.errors import KafkaSafeError, WrongClusterError


class AwaitedLanes:
    """Other producers' lanes, for which `flush` and `close` wait. Any thread may read this object."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._left_behind: set[int] = set()
        self._adopted: set[Path] = set()
        self._seeks_siblings = False

    @property
    def left_behind(self) -> AbstractSet[int]:
        """Numbers of the lanes that earlier producers left: they have no owner, and still hold unfinished records."""
        return self._left_behind

    def expect(self, numbers: Iterable[int]) -> None:
        """Note lanes of earlier producers that hold unfinished records and have no owner."""
        with self._guard.lock:
            self._left_behind.update(numbers)

    def settle(self, number: int) -> None:
        """Note that lane `number` is no longer left behind: the lane is drained, or has another owner."""
        if number in self._left_behind:
            with self._guard.lock:
                self._left_behind.discard(number)
                self._guard.waiters.notify_all()

    def seek_siblings(self, *, on: bool) -> None:
        """Note whether other default spool directories may hold records that this producer has to adopt."""
        with self._guard.lock:
            self._seeks_siblings = on
            self._guard.waiters.notify_all()

    def adopt(self, lane: Path) -> None:
        """Note that this producer reads a lane of an ended producer, to deliver the lane's records."""
        with self._guard.lock:
            self._adopted.add(lane)

    def forget(self, lane: Path) -> None:
        """Note that an adopted lane is delivered, cannot be read, or has another owner."""
        with self._guard.lock:
            self._adopted.discard(lane)
            self._guard.waiters.notify_all()

    @property
    def is_empty(self) -> bool:
        """True if no awaited lane remains, and no other directory can hold records to adopt."""
        return not self._left_behind and not self._seeks_siblings and not self._adopted


class Ledger:
    """See the module.

    Attributes:
        parcels: Parcels without a final outcome.
        undurable: Parcels that are not on disk yet.
        room: How much room the spool has.
        errors: Errors that the next calls raise.
        lanes: Other producers' lanes. `flush` and `close` wait until these lanes have no unfinished records.
        ahead: Counts the submitted bytes without a final outcome.
        failure: The error that ended the producer; None while it works.
        wrong_cluster: The error to raise while records wait for the producer's own cluster, but another cluster
            answers.
        doubted: Partitions that may lack acknowledged records of the producer's own lane. The engine removes a
            partition once it knows whether the partition lacks records.
        names: By a user's transactional id: None if the engine has taken over the id, or the error with which the
            cluster refuses the id.
        name_trouble: By transactional id: why the engine could not take over the id yet; empty once the id is taken
            over or refused.
    """

    def __init__(self, context: EngineContext) -> None:
        self._config = config = context.config
        self._clock = clock = context.clock
        self._log = context.log
        self._post = context.post
        self._stats = context.stats
        self._guard = guard = Guard()
        self.ahead = Ahead(config.run_ahead_bytes, clock)
        self.parcels = OpenParcels(guard, self.ahead)
        self.undurable = UndurableParcels(clock)
        self.room = SpoolRoom(config, guard, self.undurable)
        self.errors = ErrorsToRaise(guard)
        self.lanes = AwaitedLanes(guard)
        self.failure: BaseException | None = None
        self.wrong_cluster: WrongClusterError | None = None
        self.doubted: Sequence[tuple[str, int]] = ()
        self.names: dict[str, BaseException | None] = {}
        self.name_trouble: dict[str, str] = {}

    @property
    def lock(self) -> threading.RLock:
        """The lock: see the module."""
        return self._guard.lock

    @property
    def waiters(self) -> WaitingCallers:
        """The callers that wait for a change."""
        return self._guard.waiters

    def forked(self, error: BaseException) -> None:
        """Accept nothing more in a forked child. Create a new lock, because a thread that does not exist in the child
        may hold the old lock.
        """
        self._guard.renew()
        self.failure = error

    def submit(self, parcels: Sequence[Parcel]) -> None:
        """Accept a caller's encoded batches, in this order. Never blocks. The caller has already checked `room`.

        After an interrupted call (Ctrl-C), a caller may submit the same batches again. During this call, a signal
        handler may also submit them. The ledger accepts each batch only once.
        """
        with self.lock:
            failure = self.failure
            if failure is None and not _are_taken(parcels):
                self._accept(parcels)
                self._post(Submitted(parcels))
            self._remove_finished(parcels)
        if failure is not None:
            for parcel in parcels:
                self.abort(parcel, failure)

    def _accept(self, parcels: Sequence[Parcel]) -> None:
        now = self._clock.monotonic()
        for parcel in parcels:
            if parcel.taken:
                continue
            if not parcel.number:
                number = next(self.parcels.numbers)
                # Pass the number to `accept`, because a signal handler may have numbered the batch in the meantime.
                parcel.accept(number, now)
            self.parcels.add(parcel)
            self.undurable.add(parcel)
        self.ahead.submit(parcels)

    def _remove_finished(self, parcels: Sequence[Parcel]) -> None:
        """Remove batches that are already on disk or delivered: a signal handler may have submitted them."""
        for parcel in parcels:
            if parcel.durable:
                self.undurable.remove(parcel)
            if parcel.done:
                self.parcels.remove(parcel)

    def take(self, parcels: Sequence[Parcel]) -> list[Parcel]:
        """Mark batches as taken by the pump. Returns those that were not taken before."""
        with self.lock:
            new = list(itertools.filterfalse(attrgetter("taken"), parcels))
            for parcel in new:
                parcel.take()
            self.ahead.take(parcels, new)
        return new

    def refuse_cluster(self, error: WrongClusterError) -> None:
        """Note that another cluster answers instead of the producer's own, and wake waiting callers."""
        with self.lock:
            self.wrong_cluster = error
            self.waiters.notify_all()

    def accept_cluster(self) -> None:
        """Note that the producer's own cluster answers."""
        with self.lock:
            self.wrong_cluster = None

    def settled(self, number: int) -> bool:
        """Whether `flush` has nothing left to wait for. All batches up to `number` must have a final outcome.

        `flush` also waits until the engine has found out, for each partition, whether the cluster still has all
        acknowledged records. If the engine sent lost records again, `flush` waits for their final outcome, too.
        Finally, `flush` waits for the lanes of earlier producers, until each lane is drained or has another owner.
        """
        # Read `doubted` before `parcels`: the engine puts lost batches into `parcels` again before it removes their
        # partition from `doubted`.
        return not self.doubted and not self.lanes.left_behind and self.parcels.settled(number)

    def name_answered(self, name: str, error: BaseException | None = None, trouble: str = "") -> None:
        """Note that the engine has taken over a transactional id or, with `error`, that the cluster refuses the id.
        With `trouble`, the id is neither taken over nor refused yet, and the engine tries again.
        """
        with self.lock:
            self.name_trouble[name] = trouble
            if not trouble:
                self.names[name] = error
                self.waiters.notify_all()

    def doubt(self, partitions: Sequence[tuple[str, int]]) -> None:
        """Replace `doubted`."""
        with self.lock:
            self.doubted = partitions
            if self.waiters:
                self.waiters.notify_all()

    def oldest_age_s(self) -> float:
        """How many seconds the oldest record without a final outcome has waited; 0 if there is no such record. Callable
        from any thread.
        """
        oldest = self.parcels.oldest
        if oldest is None:
            return 0.0
        if oldest.sealed_at:
            return max(0.0, self._clock.monotonic() - oldest.sealed_at)
        # An earlier run of the program accepted the record, at an unknown time.
        return max(0.0, (self._clock.wall_ms() - oldest.max_timestamp) / 1000)

    def last_number(self) -> int:
        """Returns a number above the numbers of all batches accepted so far, and below the numbers of all batches
        accepted later.
        """
        return next(self.parcels.numbers)

    def idle(self) -> bool:
        """Whether `close` has nothing left to wait for.

        `close` waits until the producer's own lane has no unfinished records, and until the engine knows whether the
        cluster has all acknowledged records. `close` also waits until all adopted lanes, and all lanes of earlier
        producers in this directory, are drained. Besides, `close` waits until no other directory can hold records to
        adopt. With `spool="never"`, `close` also waits for records whose `delivery_timeout_ms` is over, because no file
        has these records.
        """
        return (
            not self.doubted
            and not self.parcels
            and self.lanes.is_empty
            and not (self._config.in_memory and self.undurable)
        )

    def made_durable(self, parcels: Iterable[Parcel]) -> None:
        """Mark batches as durable, and wake callers that wait for durability."""
        with self.lock:
            for parcel in parcels:
                self.durable(parcel)
        if self.waiters:
            self.waiters.notify_all()

    def durable(self, parcel: Parcel) -> None:
        """Mark one batch as durable. Call with `lock` held."""
        parcel.be_durable()
        if self.undurable.remove(parcel):
            self._stats.durable.observe(self._clock.monotonic() - parcel.sealed_at, parcel.count)
        parent = parcel.parent
        if parent is not None and not parent.durable and all(c.durable for c, _ in parent.children or ()):
            self.durable(parent)

    def finish(self, parcel: Parcel) -> None:
        """Mark a batch as done, call the function that watches it, and wake callers that wait."""
        with self.lock:
            if parcel.done:
                return
            parcel.end()
            self.parcels.remove(parcel)
            self.ahead.finish(parcel)
            # Call the watcher before waking callers, because callers may rely on the watcher's effects.
            watcher = parcel.take_watcher()
            if watcher is not None:
                watcher(parcel)
        # Notify without holding the lock, because the woken threads need it.
        if self.waiters:
            self.waiters.notify_all()
        for parent in parcel.parents or (parcel.parent,):
            if parent is not None and parent.has_done_children():
                self.finish(parent)

    def abort(self, parcel: Parcel, error: BaseException) -> None:
        """End a batch, and the parts into which it was divided, with an error."""
        for child, _ in parcel.children or ():
            self.abort(child, error)
        if not parcel.done and not parcel.children:
            parcel.fail(error)
            self.finish(parcel)

    def left_undurable(self) -> KafkaSafeError | None:
        """The error for accepted records that are not durable; None if there are no such records. `close` raises this
        error if it ends while the producer's thread still waits for a disk write or a hook.
        """
        why = "its thread still waits: a write to the disk, or a hook, has not returned"
        with self.lock:
            undurable = list(itertools.filterfalse(attrgetter("done"), self.undurable.values()))
        if not undurable:
            return None
        if self._config.in_memory:
            return lost_from_memory(undurable, TimeoutError(why), final=False, log=self._log)
        return not_durable(undurable, why, None)

    def lose(self, error: BaseException) -> None:
        """Note the error with which a closing producer loses records, unless another error has already ended the
        producer.
        """
        with self.lock:
            self.failure = self.failure or error
            self.waiters.notify_all()

    def fail(self, error: BaseException, *, final: bool = True, elsewhere: Elsewhere | None = None) -> None:
        """End the producer: every batch without a final outcome gets an error.

        Args:
            error: The error for durable batches, or for all batches if `final` is true.
            final: True if an error ended the producer; False if `close` ended it.
            elsewhere: Where the producer's own lane is, if the lane is not in its place.
        """
        with self.lock:
            if final:
                self.failure = error
            undurable = self.undurable.values()
            lost: KafkaSafeError = not_durable(undurable, self.room.disk_trouble, elsewhere)
            if self._config.in_memory:
                lost = error = lost_from_memory(undurable, error, final=final, log=self._log)
            gone = elsewhere is not None and elsewhere.at is None and elsewhere.records > 0
            if self.failure is None and (self.undurable or gone):
                self.failure = lost
            undone = self.parcels.take_all()
            self.ahead.clear(undone)
            self.undurable.clear()
            self.waiters.notify_all()
        for parcel in undone:
            self.abort(parcel, error if parcel.durable or final else lost)


def _are_taken(parcels: Sequence[Parcel]) -> bool:
    return all(parcel.taken for parcel in parcels)
