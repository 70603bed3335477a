"""An atomic batch after `commit`: hands the batch's records to the pump, and stores the decision whether the batch is
accepted or dropped.

The classes that programs use are in `kafkasafe.atomic`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from kafka import TopicPartition

from kafkasafe._producing.open_batch import OpenBatch
from kafkasafe._producing.opening import ProducerParts
from kafkasafe.delivery.awaiting import LoopWaits
from kafkasafe.delivery.callbacks import take
from kafkasafe.delivery.engine.parcels import Parcel, leaves
from kafkasafe.delivery.first_decision import FirstDecision
from kafkasafe.errors import UsageError, WaitTimeoutError
from kafkasafe.spool.refusals import because

if TYPE_CHECKING:
    import asyncio

_Outcome = TypeVar("_Outcome")


@dataclass(frozen=True, slots=True)
class BatchMetadata:
    """A committed atomic batch.

    Attributes:
        batch_id: Id of the batch, as `kafkasafe spool ls` shows it.
        offsets: For each partition, the offsets of the first and the last record (inclusive); -1 if not known.
        records: Number of records.
    """

    batch_id: str
    offsets: Mapping[TopicPartition, tuple[int, int]]
    records: int


class BatchUnit:
    """Passes the records of one `commit` to the pump when the batch is accepted. Calls the callbacks when the batch
    ends.

    Attributes:
        parcels: The parcels (encoded batches) of the atomic batch, as soon as its records are encoded.
        callbacks: Pairs (wanted, function). If `wanted` is true, the function is called when the batch is committed;
            otherwise, when the batch is dropped.
    """

    def __init__(
        self,
        head: Parcel,
        open_batches: list[OpenBatch],
        decision: FirstDecision[BatchUnit],
        parts: ProducerParts,
    ) -> None:
        self.head = head
        self.open_batches = open_batches
        self.parcels: list[Parcel] = []
        self.callbacks: list[tuple[bool, Callable[[Any], object]]] = []
        self._delivery = parts.delivery
        self._in_memory = parts.config.in_memory
        self._owner: object = None
        self._decision: FirstDecision[BatchUnit] | None = decision
        """None once the pump (the thread that writes and delivers) has the batch. The decision refers back to this
        object; without the reset to None, this reference cycle would keep the producer alive until the next garbage
        collection.
        """

    @property
    def accepted(self) -> bool:
        decision = self._decision
        return decision is None or decision.accepted is self

    def waits(self, loop: asyncio.AbstractEventLoop) -> LoopWaits:
        return LoopWaits.of(self._delivery.pump.ledger.waiters, loop)

    def done_or_wrong_cluster(self) -> bool:
        """Return True if the batch is committed or dropped, or if the brokers belong to the wrong cluster."""
        return self.head.done or self._delivery.pump.ledger.wrong_cluster is not None

    def done_or_never(self) -> bool:
        """Return whether `get` can now return a result or raise an error."""
        return self.done_or_wrong_cluster() or self._delivery.pump.ledger.failure is not None

    def is_kept(self) -> bool:
        """Return whether the whole batch is on disk; with `spool="never"`: whether it is committed or dropped."""
        return self.head.done or (self.head.durable and not self._in_memory)

    def kept_or_never(self) -> bool:
        """Return whether `durable` can now return a result or raise an error."""
        return self.is_kept() or self._delivery.pump.ledger.failure is not None

    def not_durable(self, timeout: float | None) -> WaitTimeoutError:
        """Return the error that `durable` raises after it has waited for `timeout` seconds."""
        return WaitTimeoutError(
            f"The batch was not durable after {timeout} s.{self._delivery.disk_cause()}{self.because()}"
        )

    def because(self) -> str:
        """Return a sentence that says which records the cluster blocks, and why; empty without blocked records. The
        batch itself may contain the blocked records, or the batch may wait for blocked records of other batches.
        """
        return because(self._delivery.pump.refused())

    def carry(self, parcels: list[Parcel]) -> None:
        self.parcels = parcels

    def accept(self) -> None:
        if self._decision is not None:
            self._decision.accept(self)

    def refuse(self) -> None:
        if self._decision is not None:
            self._decision.drop()

    def hand_over(self) -> None:
        """Pass the accepted batch to the pump. An empty batch ends at once."""
        head = self.head
        if self.callbacks:
            self.watch()
        if self.parcels or (head.unit_handle is not None and head.unit_handle.offsets):
            self._delivery.pump.ledger.submit([head, *self.parcels])
        elif not head.done:
            head.be_durable()
            head.end()
            if self.callbacks:
                self._delivery.callbacks.put(lambda: self.call(0))
        for open_batch in self.open_batches:
            open_batch.submitted()
            open_batch.watch()
        self._decision = None

    def add(self, wanted: bool, call: Callable[[Any], object], owner: object) -> None:
        """Add a function that is called when the batch is committed (if `wanted` is true) or dropped (if `wanted` is
        false). Until the call, the reference to `owner`, the producer, keeps the producer alive.
        """
        self._owner = owner
        self.callbacks.append((wanted, call))
        self.watch()

    def watch(self) -> None:
        """Arrange that the callbacks are called. Idempotent."""
        self._delivery.callbacks.start()
        # Set the watcher before reading `done`: the pump sets `done` before it looks for the watcher.
        self.head.watch(self._ended)
        if self.head.done:
            self.head.take_watcher()
            self._delivery.callbacks.put(lambda: self.call(0))

    def _ended(self, _: Parcel) -> None:
        """Hand the callbacks to the callback thread. The pump calls this method while it holds its own lock."""
        self._delivery.callbacks.hand(self.call, len(self.callbacks))

    def call(self, due: int) -> None:
        """Call the callbacks, on the callback thread."""
        callbacks = take(self.callbacks)
        error = self.head.error
        answer: Any = self.metadata() if error is None else error
        mine = [call for wanted, call in callbacks if wanted is (error is None)]
        self._delivery.callbacks.call(mine, [answer] * len(mine), due)

    def metadata(self) -> BatchMetadata:
        found: dict[TopicPartition, tuple[int, int]] = {}
        records = 0
        for parcel in (leaf for each in self.parcels for leaf in leaves(each)):
            at = TopicPartition(parcel.topic, parcel.partition)
            last = parcel.base_offset + parcel.count - 1 if parcel.base_offset >= 0 else -1
            found[at] = found.get(at, (parcel.base_offset, -1))[0], last
            records += parcel.count
        unit_handle = self.head.unit_handle
        return BatchMetadata("" if unit_handle is None else unit_handle.unit_id.hex(), found, records)


class BatchDecision(Generic[_Outcome]):
    """The decision about an atomic batch, and the attempts to commit the batch."""

    def __init__(self) -> None:
        self.first: FirstDecision[BatchUnit] = FirstDecision()
        self._attempts: dict[BatchUnit, _Outcome] = {}
        """The outcome of each attempted commit, by the commit's `BatchUnit`. At most one commit is accepted."""

    @property
    def is_dropped(self) -> bool:
        return self.first.is_dropped

    @property
    def outcome(self) -> _Outcome | None:
        unit = self.first.accepted
        return None if unit is None else self._attempts[unit]

    def begin(self, unit: BatchUnit, outcome: _Outcome) -> None:
        """Note that a commit is attempted."""
        self._attempts[unit] = outcome

    def check_open(self) -> None:
        """Raise UsageError if the batch was already committed or dropped."""
        if self.first.made:
            self.check_is(None)

    def check_is(self, outcome: _Outcome | None) -> None:
        """Raise UsageError unless `outcome` is the outcome object of the accepted commit."""
        if outcome is None or self.outcome is not outcome:
            raise UsageError(f"This batch was {'dropped' if self.is_dropped else 'committed'} already")

    def drop(self) -> None:
        """Drop the batch. Raise UsageError if the batch is accepted already."""
        self.first.drop()
        if not self.is_dropped:
            raise UsageError("This batch was committed already")
