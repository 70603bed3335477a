"""Ends a producer that is closed or dropped: waits for deliveries, releases resources, and logs undelivered records."""

from __future__ import annotations

import atexit
import contextlib
import os
import shlex
import threading
import time
import weakref
from collections.abc import Callable
from typing import Final, Protocol

from kafkasafe._producing.accumulator import Accumulator
from kafkasafe._producing.delivery import Delivery, safely
from kafkasafe._producing.lifecycle import Lifecycle
from kafkasafe._producing.registry import (
    DROPPED,
    DROPPED_IDLE_S,
    LIVE,
    PRODUCERS,
    SUCCEEDED,
    goes_first,
    goes_live,
)
from kafkasafe.config import ProducerConfig
from kafkasafe.delivery.metric_samples import AT_CLOSE
from kafkasafe.errors import ProducerClosedError, SpoolWriteError
from kafkasafe.limits.patience import Patience, timeout_of
from kafkasafe.logs import EventLog, drain, own_threads
from kafkasafe.process.at_exit import at_end_of_child
from kafkasafe.spool.refusals import counted

log = EventLog("producer")

_CLOSE_IDLE_S: Final = 5.0
"""How long, in seconds, `close` waits for the next delivery."""
_CLOSE_MEMORY_IDLE_S: Final = 30.0
"""Replaces `_CLOSE_IDLE_S` if the producer has `spool="never"`. Without a spool, `close` waits longer, because it drops
undelivered records after the wait.
"""
_CLOSE_PAUSES: Final = 2
"""If deliveries pause, and the end of the pause is known, `close` waits for this end, but for at most this many request
time-outs.
"""
_CLOSE_DISK_S: Final = 30.0
_CLOSE_DISK_LEAST_S: Final = 10.0
"""`close` waits for a slow disk for at least this many seconds, if necessary, because records that are not on disk
after the wait are lost.
"""
_DISK_STEP_S: Final = 0.1
_LOG_S: Final = 1.0
_SEAL_TRIES: Final = 5
_SEAL_PAUSE_S: Final = 0.05
"""If memory is short, `close` tries several times to encode records. Each pause between the tries is this many seconds
longer than the previous pause.
"""


def report_failed_close(own: Exception, error: BaseException, client_id: str) -> None:
    """Report an error of `close()` that cannot be raised, because the `with` block has raised `error`."""
    error.add_note(f"Closing the SafeProducer failed as well: {type(own).__name__}: {own}")
    log.error(  # no traceback: the error's message is enough
        "close() failed after a %s, which is raised instead: %s",
        type(error).__name__,
        own,
        client_id=client_id,
        error=type(own).__name__,
        event="close_failed",
    )


class Ends(Protocol):
    """An object that must be closed before the producer."""

    def close(self) -> None:
        """End."""


class Shutdown:
    """Closes a producer, lets a dropped producer deliver its records, and ends a producer in a forked child."""

    def __init__(
        self,
        config: ProducerConfig,
        lifecycle: Lifecycle,
        accumulator: Accumulator,
        delivery: Delivery,
    ) -> None:
        self._config = config
        self._lifecycle = lifecycle
        self._accumulator = accumulator
        self._delivery = delivery
        self._pump = delivery.pump
        self._first: Ends | None = None
        self._producer: weakref.ref[object] | None = None
        """The producer; None before it is open."""
        self._kept: list[object] = []
        """The producer, from the moment when it is dropped, or closed on the pump's thread, until its pump has ended.
        The thread that removes it does the rest of the closing.
        """
        self._warned = False
        self._closer: threading.Thread | None = None
        """The thread that closes the producer at present."""
        self._closed_on_pump = False
        """Whether `close` was called on the pump's thread, and no other thread has raised its errors yet."""
        self._at_exit = _exit_hook(weakref.ref(self))
        self._not_at_end_of_child: Callable[[], object] = lambda: None

    @property
    def spool_path(self) -> str:
        """The resolved path of the spool directory, so that all producers on the directory have the same path. Empty
        without a directory.
        """
        return "" if self._config.in_memory else os.path.realpath(self._config.spool_dir)

    def end_first(self, ends: Ends) -> None:
        """Set the object that `close` closes before the producer: the transactions of a producer with a
        `transactional_id`.
        """
        self._first = ends

    def begin(self, producer: object) -> None:
        """Arrange that the producer is closed when the process ends, and that a forked child cannot use it."""
        PRODUCERS[producer] = weakref.ref(self)
        if not self._config.in_memory:
            goes_live(self._pump, self.spool_path)
        atexit.register(self._at_exit)
        self._not_at_end_of_child = at_end_of_child(self._at_exit)
        self._producer = weakref.ref(producer)

    def forgo_exit(self) -> None:
        """Do not close the producer at the end of the process, because the object that owns the producer closes it."""
        atexit.unregister(self._at_exit)
        self._not_at_end_of_child()

    def forked(self, error: BaseException) -> None:
        """In a forked child: make all calls raise this error, because the parent owns the producer."""
        self._lifecycle.end(error)
        self._closer = None  # the thread does not exist in the child
        self._closed_on_pump = False
        self._kept.clear()
        self._accumulator.forked()
        self._delivery.forked(error)

    # -- close -------------------------------------------------------------------------------------------------------

    def close(self, timeout: float | None) -> None:
        if timeout is not None and (timeout := timeout_of(timeout)) < 0:
            raise ValueError(f"Invalid timeout: {timeout}")
        self._close(timeout, Patience(self._idle_s, _CLOSE_PAUSES * self._config.request_timeout_s))

    def at_exit(self) -> None:
        """Close the producer at the end of the process. Unlike `close`, do not wait until a pause of the deliveries
        ends.
        """
        self._close(None, Patience(self._idle_s, 0.0))

    @property
    def _idle_s(self) -> float:
        """How long, in seconds, `close` waits for the next delivery."""
        return _CLOSE_MEMORY_IDLE_S if self._config.in_memory else _CLOSE_IDLE_S

    def _close(self, timeout: float | None, patience: Patience) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        begun = self._lifecycle.closed is not None
        if self._pump.is_current_thread():
            if not begun:
                self._close_on_pump(deadline, patience)
        elif begun and self._delivery.callbacks.is_current_thread():
            pass  # the thread that closes the producer waits for this one
        elif begun and not self._takes_over():
            self._await_closer(timeout, deadline)
        else:
            self._closer = threading.current_thread()
            try:
                self._close_first(timeout, deadline, patience)
            finally:
                self._closer = None
                self._pump.ledger.waiters.notify_all()

    def _close_on_pump(self, deadline: float | None, patience: Patience) -> None:
        """Close on the pump's thread, where a hook or a log handler has called `close`.

        The pump must not wait for itself, so it goes on to deliver, and ends after the same time as any other `close`.
        If another thread calls `close` before that, or the process ends, the other thread does the rest
        (`_takes_over`).
        """
        self._closer = threading.current_thread()
        self._closed_on_pump = True
        self._kept.append(None if self._producer is None else self._producer())
        try:
            self._refuse_more()
            self._seal_for_good()
        finally:
            # Finish even after an error: once the lifecycle has ended, a later call of `close` does not seal.
            self._leave_to_pump(patience, float("inf") if deadline is None else deadline)

    def _takes_over(self) -> bool:
        """Return whether the calling thread has to finish what `close` began on the pump's thread. True only once."""
        if not self._closed_on_pump:
            return False
        try:
            self._kept.pop()
        except IndexError:
            return False
        self._closed_on_pump = False
        return True

    def _await_closer(self, timeout: float | None, deadline: float | None) -> None:
        """If another thread is closing the producer, wait until the records are durable, and then until that thread
        has finished, or until the timeout.

        If a signal handler has interrupted `close` on this thread, wait only until the records are durable, because the
        handler may end the process.
        """
        closer = self._closer
        if closer is not None:
            with self._accumulator.released():
                self._seal_for_good()  # the other thread may not have sealed the open batches yet
                self._await_disk(timeout, deadline)
                if closer is threading.current_thread():
                    return
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                self._pump.ledger.waiters.wait_for(lambda: not self._is_closing(), left)
        elif not self._closed_on_pump:
            return
        loss = self._pump.ledger.errors.losses_left() if self._closed_on_pump else None
        self._closed_on_pump = False
        self._raise_errors(loss)

    def _is_closing(self) -> bool:
        """Return whether a thread is closing the producer."""
        closer = self._closer
        return closer is not None and closer.is_alive()

    def _close_first(self, timeout: float | None, deadline: float | None, patience: Patience) -> None:
        pump = self._pump
        try:
            self._refuse_more()
            with self._accumulator.released():
                self._seal_for_good()
                self._await_disk(timeout, deadline)
                if timeout is not None and deadline is not None and pump.ledger.room.disk_trouble:
                    timeout = max(0.0, deadline - time.monotonic())
                pump.adopt_now()
                self._await_deliveries(timeout, patience)
        finally:
            # Finish even after a Ctrl-C: once the lifecycle has ended, a later call of `close` does nothing.
            if self._lifecycle.closed is not None:
                with self._accumulator.released():
                    pump.stop(10.0, deadline)
                    self._give_up_unsealed()
                    self._closed_down(deadline)
                    self._log_undelivered()
        self._raise_errors(pump.ledger.errors.losses_left())

    def _raise_errors(self, loss: Exception | None) -> None:
        """Raise this error, or the error because of which records are not delivered or not durable."""
        try:
            if loss is not None:
                raise loss
        finally:
            self._delivery.raise_failure()
            self._delivery.raise_undurable()
            self._delivery.raise_wrong_cluster()

    def _refuse_more(self) -> None:
        """Refuse further records and batches, and end the transactions."""
        # End the lifecycle first, so that no thread begins an open batch from now on. `_seal_for_good` seals records
        # that other threads still add to existing open batches.
        self._lifecycle.end(
            ProducerClosedError(
                "The producer is closed. Records accepted before close() are delivered or on disk"
            )
        )
        LIVE.pop(self._pump, None)
        self._accumulator.refuse_units()
        if self._first is not None:
            self._first.close()

    def _seal_for_good(self) -> None:
        """Seal the open batches. If memory is short, try a few times (on the pump's thread, which must not wait, only
        once), then seal as many open batches as possible.
        """
        waits = not self._pump.is_current_thread()
        for attempt in range(_SEAL_TRIES if waits else 1):
            try:
                self._accumulator.seal_all()
            except (SpoolWriteError, MemoryError):
                if waits:
                    self._pump.wait(lambda: False, _SEAL_PAUSE_S * attempt)
            else:
                return
        with self._accumulator.lock:
            for open_batch in list(self._accumulator.open_batches.values()):
                self._accumulator.seal_or_leave(open_batch)

    def _give_up_unsealed(self) -> SpoolWriteError | None:
        """Give up the records that could not be encoded. They are lost with this producer. Return the error that
        becomes the result of these records.
        """
        records = self._accumulator.unsealed()
        if not records:
            return None
        were, are = ("was", "is") if records == 1 else ("were", "are")
        error = SpoolWriteError(
            f"{counted(records, 'record')} that {were} accepted could not be encoded for lack of memory, and {are}"
            " lost with the producer. Everything that durable() or get() confirmed is safe"
        )
        # First of all, make sure that callers that wait for the records get an error.
        self._pump.ledger.lose(error)
        self._accumulator.give_up(error)
        return error

    def _await_deliveries(self, timeout: float | None, patience: Patience) -> None:
        """Wait until everything is delivered, at most for `timeout` seconds; None: as long as `patience` permits."""
        pump = self._pump
        began = time.monotonic()

        def end() -> float:
            return pump.patience_ends(patience, began) if timeout is None else began + timeout

        while True:
            planned = end()

            def look_up(planned: float = planned) -> bool:
                # The end of the wait may move to an earlier time, for example after a large lane was read.
                return pump.idle() or end() < planned

            pump.wait(look_up, max(0.0, planned - time.monotonic()))
            if (
                pump.idle()
                or pump.ledger.failure is not None
                or pump.ledger.errors.undecidable
                or pump.ledger.wrong_cluster is not None
                or time.monotonic() >= end()
            ):
                return

    def _log_undelivered(self) -> None:
        """Log which records are undelivered, and which partitions may have lost acknowledged records."""
        doubted = self._delivery.doubted(self._pump.left.doubted)
        if doubted:
            then = f": the next producer on {self._config.spool_dir} repeats the check"
            log.warning(
                "The producer closed before it could check whether %s still has all acknowledged records%s",
                doubted,
                "" if self._config.in_memory else then,
                client_id=self._config.client_id,
                event="data_loss_unknown",
            )
        left = dict(self._pump.left.records)
        elsewhere = self._pump.left.elsewhere
        if elsewhere is not None and elsewhere.records:
            left[elsewhere.path.parent] -= elsewhere.records
            log.error(
                "%d record%s not delivered, and the next producer on %s does not find %s in %s.%s",
                elsewhere.records,
                " is" if elsewhere.records == 1 else "s are",
                self._config.spool_dir,
                "it: it is" if elsewhere.records == 1 else "them: they are",
                elsewhere,
                self._delivery.disk_cause(),
                client_id=self._config.client_id,
                lane=self._pump.lane,
                records=elsewhere.records,
                path=str(elsewhere),
                event="records_left",
            )
        given = self._config.kafka["bootstrap_servers"]
        servers = given if isinstance(given, str) else ",".join(given)
        # There may be several default directories, because the name of a default directory depends on the spelling of
        # the brokers' addresses.
        for path, records in sorted(left.items()):
            if not records:
                continue
            log.warning(
                "%d record%s not delivered, waiting in %s: the next producer on that directory delivers all records in"
                " it, or run kafkasafe spool drain %s -b %s",
                records,
                " is" if records == 1 else "s are",
                path,
                shlex.quote(str(path)),
                servers,
                client_id=self._config.client_id,
                lane=self._pump.lane,
                records=records,
                path=str(path),
                event="records_left",
            )

    # -- dropped -----------------------------------------------------------------------------------------------------

    def forgo_warning(self) -> None:
        """Issue no ResourceWarning for this producer, because its owner was garbage-collected and has issued the
        warning. This producer will be garbage-collected next.
        """
        goes_first(self._pump, self.spool_path)
        self._warned = True

    def drop(self, producer: object) -> bool:
        """Let the pump of a dropped producer continue to deliver. Without progress, the pump ends after the same time
        as `close()`.

        This method waits for the pump for a second at most, so that the pump can deliver its records before the program
        opens a new producer and sends more. This method takes no lock, because the garbage collector may call it at any
        time.

        Returns:
            Whether the caller should warn the program, because the producer was dropped without `close()`.
        """
        if self._producer is None or self._lifecycle.closed is not None:
            return False
        self._lifecycle.end(ProducerClosedError("The producer was collected by the garbage collector"))
        self._kept.append(producer)
        self._leave_to_pump(Patience(self._idle_s, 0.0))
        if (
            not threading.current_thread().name.startswith("kafkasafe-")
            and threading.get_ident() not in own_threads
        ):
            self._pump.join(DROPPED_IDLE_S)
        if self._pump.ended():
            self._left_to_pump()
        return not self._warned

    def _leave_to_pump(self, patience: Patience, deadline: float = float("inf")) -> None:
        """Let the pump deliver the accepted records, and then finish the producer."""
        # Write the dict `DROPPED` before `goes_first` reads the dict `LIVE`. A new producer does the reverse: it writes
        # `LIVE`, then reads `DROPPED`. So at least one of the two producers finds the other.
        DROPPED[self._pump] = self.spool_path
        goes_first(self._pump, self.spool_path)
        self._pump.retire(patience, self._left_to_pump, deadline)

    def _left_to_pump(self) -> None:
        """Finish a producer that was dropped, or closed on the pump's thread. Called on the pump's thread."""
        try:
            kept = self._kept.pop()
        except IndexError:
            return  # finished before, or another thread does it
        try:
            self._finish_left()
        finally:
            del kept
            self._closer = None
            self._pump.ledger.waiters.notify_all()

    def _finish_left(self) -> None:
        if self._pump not in SUCCEEDED:
            self._log_undelivered()
        lost = self._give_up_unsealed()
        if lost is not None:
            log.error("%s", lost, client_id=self._config.client_id, event="not_encoded")
        self._closed_down(None if self._closed_on_pump else time.monotonic() + DROPPED_IDLE_S)

    def _closed_down(self, deadline: float | None) -> None:
        left = self._delivery.callbacks.stop(
            None if deadline is None else max(0.0, deadline - time.monotonic())
        )
        if left:
            log.warning(
                "%d callbacks had not run when close() returned; they go on, unless the process ends",
                left,
                client_id=self._config.client_id,
                event="callbacks_left",
            )
        for serializer in (self._config.key_serializer, self._config.value_serializer):
            # Close serializers, as KafkaProducer does.
            if hasattr(serializer, "serialize") and hasattr(serializer, "close"):
                safely(serializer.close)
        producer = None if self._producer is None else self._producer()
        for call in AT_CLOSE:
            call(producer)
        # Wait for the log records of the producer's threads, but only briefly: a log handler may be waiting for this
        # close().
        drain(_LOG_S)
        self.forgo_exit()
        if producer is not None:
            PRODUCERS.pop(producer, None)
        LIVE.pop(self._pump, None)
        DROPPED.pop(self._pump, None)
        SUCCEEDED.discard(self._pump)

    def _await_disk(self, timeout: float | None, deadline: float | None) -> None:
        """For `close`: wait until everything is on disk, longer than the timeout if the disk is slow but works."""
        if not self._config.in_memory:
            self._flush_disk(
                _CLOSE_DISK_S if timeout is None else max(timeout, _CLOSE_DISK_LEAST_S), deadline
            )

    def _flush_disk(self, limit_s: float, deadline: float | None) -> None:
        """Wait until everything is on disk.

        Args:
            limit_s: Maximum duration of the wait for a slow disk, in seconds.
            deadline: If the disk fails, the wait ends at this monotonic time, in seconds; None: after `limit_s`.
        """
        pump = self._pump
        ledger = pump.ledger
        number = ledger.undurable.last_number()
        if self._config.spool == "on_error":
            pump.spill_all()
        began = time.monotonic()
        while (
            not pump.wait(lambda: ledger.undurable.spooled(number), _DISK_STEP_S) and ledger.failure is None
        ):
            now = time.monotonic()
            given_up = deadline is not None and now >= deadline and ledger.room.disk_trouble
            if given_up or now >= began + limit_s:
                log.error(
                    "Not everything could be made durable within %.0f s of close().%s",
                    now - began,
                    self._delivery.disk_cause(),
                    client_id=self._config.client_id,
                    event="not_durable",
                )
                return


def _exit_hook(reference: weakref.ref[Shutdown]) -> Callable[[], None]:
    def close() -> None:
        shutdown = reference()
        if shutdown is not None:
            with contextlib.suppress(Exception):
                shutdown.at_exit()

    return close
