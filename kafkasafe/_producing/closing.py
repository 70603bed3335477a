"""The end of a producer, closed or dropped: what is still waited for, what is let go of, what is said to be left."""

from __future__ import annotations

import atexit
import contextlib
import os
import shlex
import threading
import time
import warnings
from typing import Final

from kafkasafe._core.patience import Patience, timeout_of
from kafkasafe._io.refusals import counted
from kafkasafe._producing.calling import safely
from kafkasafe._producing.flushing import Flushing
from kafkasafe._producing.hold import DROPPED, DROPPED_IDLE_S, LIVE, PRODUCERS, SUCCEEDED, goes_first
from kafkasafe.errors import ProducerClosedError, SpoolWriteError
from kafkasafe.logs import EventLog, drain, own_threads
from kafkasafe.metrics import flush as flush_metrics

__all__ = ["Closing"]

log = EventLog("producer")

_CLOSE_IDLE_S: Final = 5.0
"""How long `close` waits for the next delivery."""
_CLOSE_MEMORY_IDLE_S: Final = 30.0
"""The same with `spool="never"`: what is left then is lost."""
_CLOSE_PAUSES: Final = 2
"""Request timeouts: how much of a pause whose end is known `close` waits for besides."""
_CLOSE_DISK_S: Final = 30.0
_CLOSE_DISK_LEAST_S: Final = 10.0
"""How long a disk that takes long holds up `close`, at least: what is not on disk then is lost."""
_DISK_STEP_S: Final = 0.1
_LOG_S: Final = 1.0
_SEAL_TRIES: Final = 5
_SEAL_PAUSE_S: Final = 0.05
"""Pauses of `close` between tries to encode what there was no memory for grow by so much."""


class Closing(Flushing):
    """Part of `SafeProducer`."""

    def close(self, timeout: float | None = None) -> None:
        """Make everything durable, deliver what can be delivered, and let go of the spool.

        That includes what earlier producers left and this one adopted: in its directory, and in directories beside a
        default one. What is not delivered by then stays on disk; the next producer on the directory delivers it, and a
        warning for each directory says how many records those are. With `spool="never"` it is lost, and that is raised.
        Calling it again does nothing.
        At the end of the interpreter it is called for those who did not.

        Args:
            timeout: Seconds to wait for deliveries, and for a disk that fails; one that only takes long is given ten at
                least. Default: as long as some are made, and 5 s more (30 s with
                `spool="never"`); where something
                has to wait before it may be sent, and until when is known, until then, at most two request timeouts.

        Raises:
            SpoolError: Not everything that was accepted could be made durable, or the spool failed for good. It is
                closed all the same.
            DeliveryTimeoutError: With `spool="never"`: records were accepted that the cluster has not acknowledged.
                Their futures have the same error. It is closed all the same.
            WrongClusterError: Another cluster answers instead of the one that records wait for. It is closed all the
                same, and they are on disk.
            DataLossError: As of `flush`; all losses that were not raised yet in one (`others`). It is closed all the
                same. Where the answer did not come in time a WARNING says so (`data_loss_unknown`), and the next
                producer on the directory asks again.
            ValueError: A negative timeout, or nan.
        """
        if timeout is not None and (timeout := timeout_of(timeout)) < 0:
            raise ValueError(f"Invalid timeout: {timeout}")
        self._close(timeout, Patience(self._idle_s, _CLOSE_PAUSES * self._config.request_timeout_s))

    @property
    def _idle_s(self) -> float:
        """How long `close` waits for the next delivery."""
        return _CLOSE_MEMORY_IDLE_S if self._config.in_memory else _CLOSE_IDLE_S

    def _close(self, timeout: float | None, patience: Patience) -> None:
        if self._closed is not None:
            return
        self._check_fork()
        deadline = None if timeout is None else time.monotonic() + (timeout := timeout_of(timeout))
        pump = self._pump
        LIVE.pop(pump, None)
        # First: what another thread still adds is sealed below, and no chunk is opened any more.
        self._closed = ProducerClosedError(
            "The producer is closed. What was accepted before is delivered or on disk"
        )
        for outcome in list(self._units):
            outcome._refuse()
        if self._transactions is not None:
            self._transactions.close()
        if pump.is_current_thread():
            # Called by a hook or a handler: waiting here would never end. What was accepted is written on the way.
            self._seal_all()
            pump.stop(0.0)
            self._closed_down(0.0)
            return
        with self._let_go():
            try:
                self._seal_for_good()
                if not self._config.in_memory:
                    self._flush_disk(
                        _CLOSE_DISK_S if timeout is None else max(timeout, _CLOSE_DISK_LEAST_S), deadline
                    )
                    if timeout is not None and deadline is not None and pump.ledger.disk_trouble:
                        timeout = max(0.0, deadline - time.monotonic())
                pump.adopt_now()
                self._await_deliveries(timeout, patience)
            finally:
                pump.stop(10.0, deadline)
                self._closed_down(deadline)
                self._tell_left()
        loss = pump.ledger.losses_left()
        try:
            if loss is not None:
                raise loss
        finally:
            self._raise_failure()
            self._raise_wrong_cluster()
            self._raise_unsealed()

    def _seal_for_good(self) -> None:
        """Seal what is open; where there is no memory for it, as much as there is. Tried a few times."""
        for attempt in range(_SEAL_TRIES):
            try:
                self._seal_all()
            except (SpoolWriteError, MemoryError):
                self._pump.wait(lambda: False, _SEAL_PAUSE_S * attempt)
            else:
                return
        with self._lock:
            for chunk in list(self._chunks.values()):
                self._seal_or_leave(chunk)

    def _raise_unsealed(self) -> None:
        """What could not be encoded is in no file, and in no other memory than this producer's."""
        records = self._unsealed()
        if records:
            were, are = ("was", "is") if records == 1 else ("were", "are")
            raise SpoolWriteError(
                f"{counted(records, 'record')} that {were} accepted could not be encoded for lack of memory, and {are}"
                " lost with the producer. Everything that durable() or get() confirmed is safe"
            )

    def _await_deliveries(self, timeout: float | None, patience: Patience) -> None:
        """Until everything is delivered, for `timeout` seconds, or for as long as there is something to hope for."""
        pump = self._pump
        began = time.monotonic()

        def end() -> float:
            return pump.patience_ends(patience, began) if timeout is None else began + timeout

        while True:
            planned = end()

            def look_up(planned: float = planned) -> bool:
                # The end comes nearer when a lane has been read that is large.
                return pump.ledger.idle() or end() < planned

            pump.wait(look_up, max(0.0, planned - time.monotonic()))
            if (
                pump.ledger.idle()
                or pump.ledger.failure is not None
                or pump.ledger.parked
                or pump.ledger.wrong_cluster is not None
                or time.monotonic() >= end()
            ):
                return

    def _tell_left(self) -> None:
        """What is on disk at the end and not in the cluster, and what is not known to be there still."""
        doubted = self._doubted(self._pump.left_doubted)
        if doubted:
            then = f": the next producer on {self._config.spool_dir} asks again"
            log.warning(
                "Whether %s still has all acknowledged records was not known at the end%s",
                doubted,
                "" if self._config.in_memory else then,
                client_id=self.client_id,
                event="data_loss_unknown",
            )
        left = dict(self._pump.left)
        elsewhere = self._pump.left_elsewhere
        if elsewhere is not None and elsewhere.records:
            left[elsewhere.path.parent] -= elsewhere.records
            log.error(
                "%d record%s not delivered, and the next producer on %s does not find %s: they are in %s.%s",
                elsewhere.records,
                " is" if elsewhere.records == 1 else "s are",
                self._config.spool_dir,
                "it" if elsewhere.records == 1 else "them",
                elsewhere,
                self._disk_cause(),
                client_id=self.client_id,
                lane=self.lane,
                records=elsewhere.records,
                path=str(elsewhere),
                event="records_left",
            )
        given = self._config.kafka["bootstrap_servers"]
        servers = given if isinstance(given, str) else ",".join(given)
        # Another spelling of the addresses has a directory of its own, and what is left there stays there.
        for path, records in sorted(left.items()):
            if not records:
                continue
            log.warning(
                "%d record%s not delivered, waiting in %s: the next producer on that directory delivers what waits, or"
                " kafkasafe spool drain %s -b %s",
                records,
                " is" if records == 1 else "s are",
                path,
                shlex.quote(str(path)),
                servers,
                client_id=self.client_id,
                lane=self.lane,
                records=records,
                path=str(path),
                event="records_left",
            )

    @property
    def _spool_path(self) -> str:
        """The real path of its directory, the same for all that stand on it; empty where it has none."""
        return "" if self._config.in_memory else os.path.realpath(self._config.spool_dir)

    def __del__(self) -> None:
        """Dropped without `close()`: its pump goes on until everything is delivered, as `close()` would wait for that.

        This waits a second at most, as KafkaProducer's does: what the next producer sends comes later. It takes no
        lock: the garbage collector calls it at any place.
        """
        if self._closed is not None or not self._opened:
            return
        self._closed = ProducerClosedError("The producer was collected by the garbage collector")
        self._hold.keep(self)
        # In this order: one that is made just now looks at DROPPED when it can be seen itself.
        DROPPED[self._pump] = self._spool_path
        goes_first(self._pump, self._spool_path)
        self._pump.retire(Patience(self._idle_s, 0.0), self._dropped)
        if (
            not threading.current_thread().name.startswith("kafkasafe-")
            and threading.get_ident() not in own_threads
        ):
            self._pump.join(DROPPED_IDLE_S)
        if self._pump.ended():
            self._dropped()
        with contextlib.suppress(Exception):
            # An application may make an error of it, which nobody could catch here.
            text = f"SafeProducer {self.client_id} was dropped without close(); it goes on until all is delivered"
            warnings.warn(text, ResourceWarning, stacklevel=2, source=self)

    def _dropped(self) -> None:
        """The end of a dropped producer, on the pump's thread."""
        if not self._hold.keeps():
            return  # said before
        if self._pump not in SUCCEEDED:
            self._tell_left()
        try:
            self._raise_unsealed()
        except SpoolWriteError as error:
            log.error("%s", error, client_id=self.client_id, event="not_encoded")  # noqa: TRY400
        self._closed_down(time.monotonic() + DROPPED_IDLE_S)
        self._hold.keep(None)
        DROPPED.pop(self._pump, None)
        SUCCEEDED.discard(self._pump)

    def _closed_down(self, deadline: float | None) -> None:
        atexit.unregister(self._at_exit)
        self._not_at_end_of_child()
        left = self._callbacks.stop(None if deadline is None else max(0.0, deadline - time.monotonic()))
        if left:
            log.warning(
                "%d callbacks had not run when close() returned; they go on, unless the process ends",
                left,
                client_id=self.client_id,
                event="callbacks_left",
            )
        for serializer in (self._config.key_serializer, self._config.value_serializer):
            # As KafkaProducer does.
            if hasattr(serializer, "serialize") and hasattr(serializer, "close"):
                safely(serializer.close)
        flush_metrics()
        # What its threads had to say; a handler that waits for this very close() is not waited for.
        drain(_LOG_S)
        PRODUCERS.discard(self)
        LIVE.pop(self._pump, None)

    def _flush_disk(self, limit_s: float, deadline: float | None) -> None:
        """Wait until everything is on disk.

        Args:
            limit_s: So long for a disk that only takes long.
            deadline: Until then for one that fails.
        """
        pump = self._pump
        ledger = pump.ledger
        number = ledger.last_undurable()
        if self._config.spool == "on_error":
            pump.spill_all()
        began = time.monotonic()
        while not pump.wait(lambda: ledger.spooled(number), _DISK_STEP_S) and ledger.failure is None:
            now = time.monotonic()
            given_up = deadline is not None and now >= deadline and ledger.disk_trouble
            if given_up or now >= began + limit_s:
                log.error(
                    "Not everything could be made durable within %.0f s of close().%s",
                    now - began,
                    self._disk_cause(),
                    client_id=self.client_id,
                    event="not_durable",
                )
                return
