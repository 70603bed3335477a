"""The state of one record that a producer has accepted: whether the record is done, and its result or its error."""

from __future__ import annotations

from typing import Any

from kafka.producer.future import RecordMetadata

from kafkasafe._producing.open_batch import OpenBatch
from kafkasafe._producing.opening import ProducerParts
from kafkasafe.delivery.awaiting import Fates, LoopWaits
from kafkasafe.delivery.engine.parcels import Parcel
from kafkasafe.errors import WaitTimeoutError
from kafkasafe.spool.refusals import because


class AcceptedRecord:
    """Computes the state of an accepted record, for the futures of threads and of event loops."""

    __slots__ = ("_index", "_open_batch", "_parts")

    def __init__(self, parts: ProducerParts, open_batch: OpenBatch, index: int) -> None:
        self._parts = parts
        self._open_batch = open_batch
        self._index = index

    def _parcel(self) -> Parcel | None:
        return None if self._open_batch.parcels is None else self._open_batch.locate(self._index)[0]

    @property
    def is_done(self) -> bool:
        """Whether the record was rejected, dropped, or acknowledged (and the acknowledgement is durably stored in the
        spool).
        """
        open_batch = self._open_batch
        return open_batch.parcels is not None and open_batch.locate(self._index)[0].done

    @property
    def error(self) -> BaseException | None:
        """Why the record was not delivered; None while the record is pending, or if it was delivered."""
        parcel = self._parcel()
        return parcel.error if parcel is not None and parcel.done else None

    @property
    def is_durable(self) -> bool:
        """Whether the record is on disk or in the cluster; with `spool="never"`: whether it is in the cluster."""
        parcel = self._parcel()
        if parcel is None:
            return False
        kept = parcel.durable and not self._parts.config.in_memory
        return kept or (parcel.done and parcel.error is None)

    def metadata(self) -> RecordMetadata:
        return self._open_batch.metadata(self._index)

    # -- durable -------------------------------------------------------------------------------------------------------

    def durable_or_never(self) -> bool:
        """Return whether `durable` can now return a result or raise an error."""
        in_memory = self._parts.config.in_memory
        ledger = self._parts.delivery.pump.ledger
        return (
            self.is_durable
            or self.is_done
            or (in_memory and ledger.wrong_cluster is not None)
            or ledger.failure is not None
        )

    def made_durable(self, timeout: float | None) -> None:
        in_memory = self._parts.config.in_memory
        if not self.is_durable:
            self._parts.delivery.raise_failure()
            if in_memory and not self.is_done:
                self._parts.delivery.raise_wrong_cluster()
            error = self.error
            if error is not None:
                raise error.with_traceback(None)
            cause = self._parts.delivery.network_cause() if in_memory else self._parts.delivery.disk_cause()
            raise WaitTimeoutError(f"The record was not durable after {timeout} s.{cause}{self._because()}")

    # -- get -----------------------------------------------------------------------------------------------------------

    def done_or_never(self) -> bool:
        """Return whether `get` can now return a result or raise an error."""
        ledger = self._parts.delivery.pump.ledger
        return self.is_done or ledger.wrong_cluster is not None or ledger.failure is not None

    def result(self, timeout: float | None) -> RecordMetadata:
        parcel = self._parcel()
        if parcel is not None and parcel.done and parcel.error is None:
            return self.metadata()
        if not self.is_done:
            self._parts.delivery.raise_failure()
            self._parts.delivery.raise_wrong_cluster()
            cause = "" if self.is_durable else self._parts.delivery.disk_cause()
            cause += self._parts.delivery.network_cause()
            raise WaitTimeoutError(f"Timeout after waiting for {timeout} secs.{cause}{self._because()}")
        error = self.error
        if error is not None:
            raise error.with_traceback(None)
        return self.metadata()

    def _because(self) -> str:
        return because(self._parts.delivery.pump.refused(self._open_batch.topic))

    # -- in a loop -----------------------------------------------------------------------------------------------------

    def wait_in_loop(self, waits: LoopWaits, timeout_s: float | None = None, *, durable: bool = False) -> Any:
        """Return an awaitable that ends when `result` (or, with `durable`, `made_durable`) can return or raise an
        error.
        """
        open_batch = self._open_batch
        ledger, kept = self._parts.delivery.pump.ledger, durable and not self._parts.config.in_memory
        return waits.until(
            (open_batch, True) if kept else open_batch,
            self._index,
            lambda: Fates(open_batch, ledger, durable=kept),
            timeout_s,
        )

    def __repr__(self) -> str:
        if not self.is_done:
            return f"<RecordFuture {self._open_batch.topic} pending{', durable' if self.is_durable else ''}>"
        return f"<RecordFuture {self.error or self.metadata()}>"
