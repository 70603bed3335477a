"""`flush` and `durable`: waiting for the fate of all that was accepted, and the error where it does not come."""

from __future__ import annotations

import time
from typing import Final

from kafkasafe._core.patience import timeout_of
from kafkasafe._io.refusals import because, counted
from kafkasafe._producing.calling import Calling
from kafkasafe.errors import WaitTimeoutError
from kafkasafe.logs import EventLog, apart

__all__ = ["Flushing"]

log = EventLog("producer")

_SAY_EVERY_S: Final = 30.0
"""How often who waits without an end says what for."""


class Flushing(Calling):
    """Part of `SafeProducer`."""

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every record accepted before has its fate (acknowledged, refused, or given up), and its callbacks.

        Where something says that the cluster lost acknowledged records, it also waits until that is known, and until
        what is sent again is back. In a callback it waits for no callbacks. While it waits, a WARNING (`flush_waits`)
        says every 30 s for what.

        Args:
            timeout: Seconds, None for ever.

        Raises:
            KafkaTimeoutError: Not everything in time. The message says what is on disk and will be delivered, and what
                is in memory only; callbacks will be called.
            SpoolWriteError: There is no memory to encode what was accepted. The next call tries again.
            UndecidableError: A batch is undecidable (`on_undecidable="raise"`).
            WrongClusterError: Another cluster answers instead of the one that the records are for. They are on disk
                and are delivered when theirs answers again.
            DataLossError: The cluster lost acknowledged records that are not sent again (see `on_data_loss`); once for
                each loss, the next one by the next call. What waits is delivered all the same.
        """
        self._check_fork()
        pump = self._pump
        deadline = None if timeout is None else time.monotonic() + (timeout := timeout_of(timeout))
        self._seal_all()
        pump.adopt_now()
        number = pump.ledger.last_number()
        finished = self._await_settled(number, deadline)
        self._raise_unsettled(number, timeout, finished=finished)
        if not self._called(None, deadline):
            raise WaitTimeoutError(
                f"Every record was delivered, but not every callback had run after {timeout} s; they go on"
            )

    def _await_settled(self, number: int, deadline: float | None) -> bool:
        """Wait for what `flush` waits for, and say now and then for what; whether it is there."""
        pump = self._pump
        began = time.monotonic()
        while True:
            now = time.monotonic()
            left = _SAY_EVERY_S if deadline is None else min(_SAY_EVERY_S, max(0.0, deadline - now))
            if pump.wait(lambda: self._settled_or_never(number), left):
                return True
            now = time.monotonic()
            if pump.ledger.failure is not None or (deadline is not None and deadline <= now):
                return False
            waiting = pump.ledger.unfinished_records(number)
            what = [counted(waiting, "record") + " without an acknowledgement"] if waiting else []
            what += [f"whether {doubt}" for doubt in pump.doubts()[:3]]
            with apart():
                log.warning(
                    "flush() has waited for %.0f s, for: %s.%s%s",
                    now - began,
                    "; ".join(what) or "what is sent again after a loss",
                    self._network_cause(),
                    because(pump.refused()),
                    client_id=self._config.client_id,
                    records=waiting,
                    event="flush_waits",
                )

    def _settled_or_never(self, number: int) -> bool:
        """Whether `flush` has something to say."""
        ledger = self._pump.ledger
        return ledger.settled(number) or ledger.parked or ledger.damaged or ledger.wrong_cluster is not None

    def _raise_unsettled(self, number: int, timeout: float | None, *, finished: bool) -> None:
        """The end of `flush`: nothing, or the error."""
        pump = self._pump
        pump.ledger.raise_parked()
        delivered = pump.ledger.flushed(number)
        if not delivered:
            pump.ledger.raise_damage()
            self._raise_wrong_cluster()
        self._raise_loss()
        # Also where nothing is left to wait for: then it was given up.
        self._raise_failure()
        if not finished:
            doubted = self._doubted()
            what = "Not every record was acknowledged"
            if delivered and doubted:
                what = f"Whether {doubted} still has all acknowledged records was not known"
            raise WaitTimeoutError(
                f"{what} within {timeout} s; {self._where_they_are(number)}.{self._disk_cause()}"
                f"{self._network_cause()}{because(pump.refused())}"
            )

    def _where_they_are(self, number: int) -> str:
        """What is not acknowledged up to this number, for people."""
        if self._config.in_memory:
            return "they are in memory, as long as this producer lives, and will be delivered"
        ledger = self._pump.ledger
        unfinished, memory = ledger.unfinished_records(number), ledger.undurable_records(number)
        if not memory:
            return "they are in the spool and will be delivered"
        only = "in memory only, and lost if this process ends before they are written"
        if memory >= unfinished:
            return f"they are {only}"
        return f"{unfinished - memory} of them are in the spool and will be delivered, {memory} are {only}"

    def durable(self, timeout: float | None = None) -> None:
        """Wait until every record accepted before is durable: fsynced in the spool, or in the cluster.

        With `spool="never"` only the cluster makes a record durable: this is `flush`, and also waits for what
        `delivery_timeout_ms` gave up.

        Args:
            timeout: Seconds, None for ever.

        Raises:
            KafkaTimeoutError: Not everything in time.
            SpoolWriteError: There is no memory to encode what was accepted. The next call tries again.
            SpoolError: The spool failed for good.
        """
        self._check_fork()
        pump = self._pump
        deadline = None if timeout is None else time.monotonic() + (timeout := timeout_of(timeout))
        self._seal_all()
        number = pump.ledger.last_undurable()
        if self._config.in_memory:
            self.flush(timeout)
            self._await_given_up(number, timeout, deadline)
            return
        if self._config.spool == "on_error":
            pump.spill_all()
        pump.wait(lambda: pump.ledger.spooled(number), timeout)
        self._raise_unspooled(number, timeout)

    def _await_given_up(self, number: int, timeout: float | None, deadline: float | None) -> None:
        """`spool="never"`: `flush` returned, which does not wait for what `delivery_timeout_ms` gave up."""
        pump, ledger = self._pump, self._pump.ledger
        pump.wait(
            lambda: ledger.spooled(number) or ledger.parked or ledger.wrong_cluster is not None,
            None if deadline is None else max(0.0, deadline - time.monotonic()),
        )
        self._raise_unspooled(number, timeout)

    def _raise_unspooled(self, number: int, timeout: float | None) -> None:
        """The end of `durable`: nothing, or the error."""
        ledger = self._pump.ledger
        spooled = ledger.spooled(number)
        # Also where nothing is left to wait for: then it was given up.
        self._raise_failure()
        if spooled:
            return
        if not self._config.in_memory:
            raise WaitTimeoutError(f"Not every record was on disk within {timeout} s.{self._disk_cause()}")
        ledger.raise_parked()
        self._raise_wrong_cluster()
        raise WaitTimeoutError(
            f"Not every record was acknowledged within {timeout} s; what delivery_timeout_ms gave up is in memory as"
            f" well, and will be delivered while this producer lives.{self._network_cause()}"
        )
