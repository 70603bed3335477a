"""`flush` and `durable`: wait for the results of all accepted records, and raise an error if they do not come."""

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
"""How often a long `flush` logs what it waits for, seconds."""


class Flushing(Calling):
    """Part of `SafeProducer`."""

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every record accepted before is acknowledged, rejected or dropped, and its callbacks have run.

        If the cluster may have lost acknowledged records, `flush` also waits until that is decided, and until records
        that are sent again are in the log. When called in a callback, it does not wait for callbacks. During a long
        wait it logs the reason every 30 s (WARNING `flush_waits`).

        Args:
            timeout: Seconds; None for no limit.

        Raises:
            KafkaTimeoutError: Some records have no result in time. The message says how many are on disk and will be
                delivered, and how many are in memory only. Their callbacks will still be called.
            SpoolWriteError: There is not enough memory to encode accepted records. The next call tries again.
            UndecidableError: A batch is undecidable (`on_undecidable="raise"`).
            WrongClusterError: The brokers belong to another cluster than the records. The records are on disk, and are
                delivered when their own cluster answers again.
            DataLossError: The cluster lost acknowledged records that are not sent again (see `on_data_loss`). Raised
                once for each loss; the next call raises the next one. Pending records are delivered nevertheless.
        """
        self._lifecycle.check_fork()
        pump = self._pump
        deadline = None if timeout is None else time.monotonic() + (timeout := timeout_of(timeout))
        self._accumulator.seal_all()
        pump.adopt_now()
        number = pump.ledger.last_number()
        finished = self._await_settled(number, deadline)
        self._raise_unsettled(number, timeout, finished=finished)
        if not self._called(None, deadline):
            raise WaitTimeoutError(
                f"Every record was delivered, but not every callback had run after {timeout} s; callbacks go on"
            )

    def _await_settled(self, number: int, deadline: float | None) -> bool:
        """Wait for the results, and log from time to time what is missing. Return whether all are there."""
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
                    "; ".join(what) or "records that are sent again after a loss",
                    self._network_cause(),
                    because(pump.refused()),
                    client_id=self._config.client_id,
                    records=waiting,
                    event="flush_waits",
                )

    def _settled_or_never(self, number: int) -> bool:
        """Return whether `flush` can end, with a result or an error."""
        ledger = self._pump.ledger
        return (
            ledger.settled(number) or ledger.undecidable or ledger.damaged or ledger.wrong_cluster is not None
        )

    def _raise_unsettled(self, number: int, timeout: float | None, *, finished: bool) -> None:
        """Finish `flush`: raise the error, if there is one."""
        pump = self._pump
        pump.ledger.raise_undecidable()
        delivered = pump.ledger.flushed(number)
        if not delivered:
            pump.ledger.raise_damage()
            self._raise_wrong_cluster()
        self._raise_loss()
        # Check this even if no record is pending: the failure may have dropped the records.
        self._raise_failure()
        if not finished:
            doubted = self._doubted()
            what = "Not every record was acknowledged"
            if delivered and doubted:
                what = f"The check whether {doubted} still has all acknowledged records did not end"
            raise WaitTimeoutError(
                f"{what} within {timeout} s; {self._where_they_are(number)}.{self._disk_cause()}"
                f"{self._network_cause()}{because(pump.refused())}"
            )

    def _where_they_are(self, number: int) -> str:
        """Return a phrase that says where the unacknowledged records up to this number are."""
        if self._config.in_memory:
            return "they are in memory and will be delivered while this producer is open"
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

        With `spool="never"` only the cluster makes a record durable. Then this method is like `flush`, but also waits
        for records whose futures failed after `delivery_timeout_ms`.

        Args:
            timeout: Seconds; None for no limit.

        Raises:
            KafkaTimeoutError: Some records were not durable in time.
            SpoolWriteError: There is not enough memory to encode accepted records. The next call tries again.
            SpoolError: The spool failed permanently.
        """
        self._lifecycle.check_fork()
        pump = self._pump
        deadline = None if timeout is None else time.monotonic() + (timeout := timeout_of(timeout))
        self._accumulator.seal_all()
        number = pump.ledger.last_undurable()
        if self._config.in_memory:
            self.flush(timeout)
            self._await_given_up(number, timeout, deadline)
            return
        if self._config.spool == "on_error":
            pump.spill_all()
        # A hook on the pump's own thread cannot wait for a look.
        look = 0 if pump.is_current_thread() else pump.ask_look()
        pump.wait(lambda: pump.ledger.spooled(number) and pump.has_looked(look), timeout)
        self._raise_unspooled(number, timeout)
        self._raise_displaced(look, timeout)

    def _raise_displaced(self, look: int, timeout: float | None) -> None:
        """Raise if files of the spool were moved or deleted and are not restored yet."""
        if not self._pump.has_looked(look) and self._pump.displaced:
            raise WaitTimeoutError(
                f"What was durable is not all where the next start finds it, within {timeout} s."
                f"{self._disk_cause()}"
            )

    def _await_given_up(self, number: int, timeout: float | None, deadline: float | None) -> None:
        """With `spool="never"`: wait for the records whose futures failed after `delivery_timeout_ms`."""
        pump, ledger = self._pump, self._pump.ledger
        pump.wait(
            lambda: ledger.spooled(number) or ledger.undecidable or ledger.wrong_cluster is not None,
            None if deadline is None else max(0.0, deadline - time.monotonic()),
        )
        self._raise_unspooled(number, timeout)

    def _raise_unspooled(self, number: int, timeout: float | None) -> None:
        """Finish `durable`: raise the error, if there is one."""
        ledger = self._pump.ledger
        spooled = ledger.spooled(number)
        # Check this even if no record is pending: the failure may have dropped the records.
        self._raise_failure()
        if spooled:
            return
        if not self._config.in_memory:
            raise WaitTimeoutError(f"Not every record was on disk within {timeout} s.{self._disk_cause()}")
        ledger.raise_undecidable()
        self._raise_wrong_cluster()
        raise WaitTimeoutError(
            f"Not every record was acknowledged within {timeout} s. The others, even after delivery_timeout_ms, are in"
            f" memory and will be delivered while this producer is open.{self._network_cause()}"
        )
