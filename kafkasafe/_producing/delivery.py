"""Lets callers wait until records have results or are on disk, and until callbacks have run. Raises an error if a wait
fails.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from kafkasafe._producing.accumulator import Accumulator
from kafkasafe._producing.lifecycle import Lifecycle
from kafkasafe._producing.open_batch import OpenBatch
from kafkasafe.cluster.api import Cluster, in_words
from kafkasafe.config import ProducerConfig
from kafkasafe.delivery.callbacks import CallbackThread
from kafkasafe.delivery.pump import Pump
from kafkasafe.errors import (
    DeliveryTimeoutError,
    ForkedProcessError,
    SpoolError,
    WaitTimeoutError,
    WrongClusterError,
)
from kafkasafe.limits.patience import timeout_of
from kafkasafe.logs import EventLog, apart
from kafkasafe.spool.refusals import because, counted

log = EventLog("producer")

_SAY_EVERY_S: Final = 30.0
"""Interval, in seconds, at which a long `flush` logs what it waits for."""


class Delivery:
    """Lets callers wait until records have results or are on disk, and until callbacks have run. Raises an error if a
    wait fails.

    `SafeProducer` documents its methods of the same names, such as `flush`.

    Attributes:
        pump: The pump. Its ledger has the encoded batches that have no outcome yet.
        callbacks: The thread that runs callbacks.
    """

    def __init__(
        self,
        config: ProducerConfig,
        lifecycle: Lifecycle,
        cluster: Cluster,
        pump: Pump,
        accumulator: Accumulator,
    ) -> None:
        self.pump = pump
        self.callbacks = _callback_thread(config, pump)
        self._started = time.monotonic()
        self._config = config
        self._lifecycle = lifecycle
        self._cluster = cluster
        self._accumulator = accumulator

    def forked(self, error: BaseException) -> None:
        self.pump.ledger.forked(error)
        self.callbacks = _callback_thread(self._config, self.pump)

    # -- errors, and the ends of their messages --------------------------------------------------------------------

    def raise_failure(self) -> None:
        failure = self.pump.ledger.failure
        if isinstance(failure, ForkedProcessError):
            raise failure.with_traceback(None)
        if isinstance(failure, (SpoolError, DeliveryTimeoutError)):
            raise type(failure)(str(failure)) from failure
        if failure is not None:
            raise SpoolError(f"The producer ended by an error: {failure!r}") from failure

    def raise_undurable(self) -> None:
        """After `close`: raise an error if the pump still runs, and accepted records are not durable yet."""
        error = None if self.pump.ended() else self.pump.ledger.left_undurable()
        if error is not None:
            raise error

    def raise_wrong_cluster(self) -> None:
        """Raise WrongClusterError if the brokers do not belong to the cluster of the pending records."""
        error = self.pump.ledger.wrong_cluster
        if error is not None:
            raise WrongClusterError(*error.args) from error

    def doubted(self, partitions: Sequence[tuple[str, int]] | None = None) -> str:
        """Return a list of partitions that may have lost acknowledged records, as text for messages."""
        found = self.pump.ledger.doubted if partitions is None else partitions
        more = f" and {len(found) - 3} more" if len(found) > 3 else ""
        return ", ".join(f"{topic}-{partition}" for topic, partition in found[:3]) + more

    def raise_loss(self) -> None:
        """Raise the error for the oldest unreported loss. There are two kinds of losses: the cluster lost acknowledged
        records that are not sent again, or the spool lost records.
        """
        loss = self.pump.ledger.errors.next_loss()
        if loss is not None:
            raise loss

    def disk_cause(self) -> str:
        """Return a sentence for the end of a message, which says why records cannot become durable at present; empty
        without a reason.
        """
        trouble = self.pump.ledger.room.disk_trouble
        return f" The spool takes nothing for now: {trouble}." if trouble else ""

    def network_cause(self) -> str:
        """Return a sentence for the end of a message, which says why the producer can use no broker or send nothing;
        empty without a reason.
        """
        error = self._cluster.last_error
        if error is not None:
            return f" Brokers cannot be used yet ({in_words(error)})"
        refusal = self.pump.producer_id_refusal
        return f" The cluster grants no producer id, so nothing can be sent: {refusal}" if refusal else ""

    def counts(self, *, raw: bool) -> dict[str, Any]:
        pump = self.pump
        values: dict[str, Any] = {**pump.stats.named()}
        values["spool_bytes"] = pump.ledger.room.kept_bytes
        values["unfinished_batches"] = len(pump.ledger.parcels)
        values["batches_not_durable"] = len(pump.ledger.undurable)
        if raw:
            return values
        seconds = max(time.monotonic() - self._started, 1e-3)
        sent = values.get("records_committed", 0)
        theirs = {
            "record-send-rate": sent / seconds,
            "record-error-rate": values.get("records_rejected", 0) / seconds,
            "records-per-request-avg": sent / max(values.get("batches_sent", 0), 1),
        }
        return {"kafkasafe": values, "producer-metrics": theirs}

    # -- waits ---------------------------------------------------------------------------------------------------

    def called(self, open_batch: OpenBatch | None, deadline: float | None) -> bool:
        """Wait until the due callbacks of one open batch, or of all open batches, have run. Return False after the
        deadline.
        """
        if open_batch is not None:
            open_batch.watch()  # perhaps another thread has sealed the open batch, but not yet called `watch`
            if not open_batch.watched:
                return True
        if self.pump.is_current_thread():
            return True
        with self._accumulator.released():
            return self.callbacks.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))

    def partitions(self, topic: str) -> set[int]:
        self._lifecycle.raise_closed()
        limit_s = self._config.max_block_s
        known = self.known_partitions(topic, limit_s)
        if not known:
            raise WaitTimeoutError(
                f"Failed to update metadata after {limit_s:.1f} secs.{self.network_cause()}"
            )
        return set(known)

    def known_partitions(self, topic: str, limit_s: float) -> Mapping[int, object]:
        """Return the partitions of a topic; empty if they are unknown after a wait for metadata."""

        def known() -> Mapping[int, object]:
            info = self._cluster.topic(topic)
            return {} if info is None else info.partitions

        if not known():
            self.pump.refresh_topic(topic)
            self.pump.wait(lambda: bool(known()), limit_s)
        return known()

    def flush(self, timeout: float | None = None) -> None:
        self._lifecycle.check_fork()
        pump = self.pump
        deadline = None if timeout is None else time.monotonic() + (timeout := timeout_of(timeout))
        self._accumulator.seal_all()
        pump.adopt_now()
        number = pump.ledger.last_number()
        finished = self._await_settled(number, deadline)
        self.raise_unsettled(number, timeout, finished=finished)
        if not self.called(None, deadline):
            raise WaitTimeoutError(
                f"Every record was delivered, but not every callback had run after {timeout} s; callbacks go on"
            )

    def _await_settled(self, number: int, deadline: float | None) -> bool:
        """Wait for the results, and regularly log which results are missing. Return whether `settled_or_never` became
        true.
        """
        pump = self.pump
        began = time.monotonic()
        while True:
            now = time.monotonic()
            left = _SAY_EVERY_S if deadline is None else min(_SAY_EVERY_S, max(0.0, deadline - now))
            if pump.wait(lambda: self.settled_or_never(number), left):
                return True
            now = time.monotonic()
            if pump.ledger.failure is not None or (deadline is not None and deadline <= now):
                return False
            waiting = pump.ledger.parcels.records(number)
            what = [counted(waiting, "record") + " without an acknowledgement"] if waiting else []
            what += [f"whether {doubt}" for doubt in pump.doubts()[:3]]
            with apart():
                log.warning(
                    "flush() has waited for %.0f s, for: %s.%s%s",
                    now - began,
                    "; ".join(what) or "records that are sent again after a loss",
                    self.network_cause(),
                    because(pump.refused()),
                    client_id=self._config.client_id,
                    records=waiting,
                    event="flush_waits",
                )

    def settled_or_never(self, number: int) -> bool:
        """Return whether `flush` can now return or raise an error."""
        ledger = self.pump.ledger
        return (
            ledger.settled(number)
            or ledger.errors.undecidable
            or ledger.errors.damaged
            or ledger.wrong_cluster is not None
        )

    def raise_unsettled(self, number: int, timeout: float | None, *, finished: bool) -> None:
        """Finish `flush`: raise an error if it failed."""
        pump = self.pump
        pump.ledger.errors.raise_undecidable()
        delivered = pump.ledger.parcels.flushed(number)
        if not delivered:
            pump.ledger.errors.raise_damage()
            self.raise_wrong_cluster()
        self.raise_loss()
        # Check this even if no record is pending: the failure may have dropped the records.
        self.raise_failure()
        if not finished:
            doubted = self.doubted()
            what = "Not every record was acknowledged"
            if delivered and doubted:
                what = f"The check whether {doubted} still has all acknowledged records did not end"
            raise WaitTimeoutError(
                f"{what} within {timeout} s; {self._where_they_are(number)}.{self.disk_cause()}"
                f"{self.network_cause()}{because(pump.refused())}"
            )

    def _where_they_are(self, number: int) -> str:
        """Return a phrase that says where the unacknowledged records up to this number are."""
        if self._config.in_memory:
            return "they are in memory and will be delivered while this producer is open"
        ledger = self.pump.ledger
        unfinished, memory = ledger.parcels.records(number), ledger.undurable.records(number)
        if not memory:
            return "they are in the spool and will be delivered"
        only = "in memory only, and lost if this process ends before they are written"
        if memory >= unfinished:
            return f"they are {only}"
        return f"{unfinished - memory} of them are in the spool and will be delivered, {memory} are {only}"

    def durable(self, timeout: float | None = None) -> None:
        self._lifecycle.check_fork()
        pump = self.pump
        deadline = None if timeout is None else time.monotonic() + (timeout := timeout_of(timeout))
        self._accumulator.seal_all()
        number = pump.ledger.undurable.last_number()
        if self._config.in_memory:
            self.flush(timeout)
            self._await_given_up(number, timeout, deadline)
            return
        if self._config.spool == "on_error":
            pump.spill_all()
        # If a hook calls this method on the pump's thread, do not wait until the pump has looked at the spool's files:
        # the pump would wait for itself.
        look = 0 if pump.is_current_thread() else pump.ask_look()
        pump.wait(lambda: pump.ledger.undurable.spooled(number) and pump.has_looked(look), timeout)
        self.raise_unspooled(number, timeout)
        self.raise_displaced(look, timeout)

    def raise_displaced(self, look: int, timeout: float | None) -> None:
        """Raise WaitTimeoutError if files of the spool were moved or deleted and are not restored yet."""
        if not self.pump.has_looked(look) and self.pump.displaced:
            raise WaitTimeoutError(
                f"After {timeout} s, some durable records were still not in the place where the next start looks for"
                f" them.{self.disk_cause()}"
            )

    def _await_given_up(self, number: int, timeout: float | None, deadline: float | None) -> None:
        """With `spool="never"`, wait until the cluster has all records, including those whose futures have failed after
        `delivery_timeout_ms`: the producer keeps the records of failed futures.
        """
        pump, ledger = self.pump, self.pump.ledger
        pump.wait(
            lambda: (
                ledger.undurable.spooled(number)
                or ledger.errors.undecidable
                or ledger.wrong_cluster is not None
            ),
            None if deadline is None else max(0.0, deadline - time.monotonic()),
        )
        self.raise_unspooled(number, timeout)

    def raise_unspooled(self, number: int, timeout: float | None) -> None:
        """Finish `durable`: raise an error if it failed."""
        ledger = self.pump.ledger
        spooled = ledger.undurable.spooled(number)
        # Check this even if no record is pending: the failure may have dropped the records.
        self.raise_failure()
        if spooled:
            return
        if not self._config.in_memory:
            raise WaitTimeoutError(f"Not every record was on disk within {timeout} s.{self.disk_cause()}")
        ledger.errors.raise_undecidable()
        self.raise_wrong_cluster()
        raise WaitTimeoutError(
            f"Not every record was acknowledged within {timeout} s. The others stay in memory, even after"
            f" delivery_timeout_ms, and will be delivered while this producer is open.{self.network_cause()}"
        )


def _callback_thread(config: ProducerConfig, pump: Pump) -> CallbackThread:
    return CallbackThread(
        f"kafkasafe-callbacks-{config.client_id}",
        wake_senders=pump.ledger.waiters.notify_all,
        ended=pump.ended,
    )


def safely(call: Callable[[], object]) -> None:
    """Call code of the application. Log an error that it raises."""
    try:
        call()
    except Exception:
        # Errors of the application's code must not end the calling thread.
        log.exception("Error processing callback", event="callback_failed")
