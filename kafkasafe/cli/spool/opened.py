"""A spool directory that a command has opened like a producer, to deliver records or decide atomic batches."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from kafkasafe import units as u
from kafkasafe._producing.opening import opened
from kafkasafe.config import Decide, validate
from kafkasafe.delivery.metric_samples import producer_samples
from kafkasafe.stats import Sample

_CLOSE_S: Final = 5.0
"""Maximum number of seconds to wait for deliveries at the end of the context."""


class OpenSpool:
    """Takes the lanes of a spool directory that have no owner, and runs the thread that delivers their records. Accepts
    no records.

    Args:
        options: Options of a producer.
        directory: The spool directory.
        client_id: Client id of the command.
        on_event: Gets each event, on the pump's thread.
        deadline: Monotonic time, in seconds, at which the command gives up. At the end of the context, the wait for
            deliveries ends at the deadline at the latest.
        decide: Instruction to only end atomic batches; None: deliver everything.

    Raises:
        ConfigError: An option is unusable.
        SpoolError: The spool cannot be opened.
    """

    def __init__(
        self,
        options: Mapping[str, Any],
        directory: Path,
        client_id: str,
        on_event: Callable[[object], None],
        deadline: float,
        decide: Decide | None = None,
    ) -> None:
        self._deadline = deadline
        config = validate({**options, "spool_dir": directory, "client_id": client_id, "on_event": on_event})
        self._parts = opened(dataclasses.replace(config, decide=decide), lambda _: None)
        self._pump = self._parts.delivery.pump
        if config.prometheus:
            from kafkasafe.metrics import install

            install(self)
        self._parts.shutdown.begin(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close(min(_CLOSE_S, max(0.0, self._deadline - time.monotonic())))
        except Exception as own:
            if error is None:
                raise
            error.add_note(f"Closing the spool failed as well: {type(own).__name__}: {own}")

    def close(self, timeout_s: float) -> None:
        """Release the spool. Raises the same errors as `SafeProducer.close`. A second call does nothing."""
        self._parts.shutdown.close(timeout_s)

    def flush(self, timeout_s: float) -> None:
        """Wait until the records are delivered. Raises the same errors as `SafeProducer.flush`."""
        self._parts.delivery.flush(timeout_s)

    @property
    def client_id(self) -> str:
        return self._parts.config.client_id

    @property
    def connected(self) -> bool:
        """Whether the cluster answers."""
        return self._parts.cluster.connected

    @property
    def last_network_error(self) -> BaseException | None:
        """Why no broker can be used, according to the latest attempt."""
        return self._parts.cluster.last_error

    @property
    def has_failed(self) -> bool:
        """Whether nothing can be delivered any more, for example because the brokers belong to another cluster."""
        return self._pump.ledger.failure is not None

    @property
    def lanes(self) -> set[str]:
        """Names of the lanes that this process holds."""
        return {lane.name for lane in self._pump.lanes}

    @property
    def unfinished_records(self) -> int:
        """Number of undelivered records in the lanes that this process holds."""
        return sum(lane.journal.views.spooled_records for lane in self._pump.lanes)

    @property
    def committed_records(self) -> int:
        """Number of records that this process delivered, or found in the log."""
        return self._ended("committed")

    @property
    def dropped_records(self) -> int:
        """Number of records that belonged to dropped atomic batches and are not in rejected/."""
        return self._ended("dropped")

    def _ended(self, wanted: str) -> int:
        ended = self._pump.stats.records.copy()
        return sum(count for (_, how), count in ended.items() if how == wanted)

    def metric_samples(self) -> Iterable[Sample]:
        """Return the values that `kafkasafe.metrics` collects."""
        return producer_samples(self._pump, closed=self._parts.lifecycle.closed is not None)

    def unit(self, unit_id: bytes) -> tuple[u.Phase, bool] | None:
        """Returns the phase of an undecided atomic batch, and whether it waits for another atomic batch that stays
        undecided. Returns None if the atomic batch is in no lane of this process.
        """
        for lane in self._pump.lanes:
            unit = lane.journal.units.lines.by_id.get(unit_id)
            if unit is not None:
                return unit.phase, unit.phase is u.Phase.STAGED and lane.journal.units.held_up(unit)
        return None
