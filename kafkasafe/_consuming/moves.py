"""Carry out the actions that `kafkasafe._consuming.position_table` selects."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from kafka.structs import TopicPartition

from kafkasafe._consuming.log_checks import LogChecks
from kafkasafe._consuming.partition import AssignedPartition
from kafkasafe._consuming.ports import Assignments, Metadata
from kafkasafe._consuming.position_table import Action, PositionEvent
from kafkasafe.cluster.inquiry import ProcedureRunner, pause_s
from kafkasafe.cluster.procedures import Procedure


class Moves:
    """Moves positions from state to state, and carries out the actions. Only the polling thread calls this object."""

    __slots__ = ("_assignments", "_checks", "_metadata", "_runner")

    def __init__(
        self, assignments: Assignments, metadata: Metadata, runner: ProcedureRunner, checks: LogChecks
    ) -> None:
        self._assignments = assignments
        self._metadata = metadata
        self._runner = runner
        self._checks = checks

    def on(
        self,
        tp: TopicPartition,
        part: AssignedPartition,
        event: PositionEvent,
        *,
        offset: int = 0,
        strategy: int = 0,
    ) -> None:
        """Apply an event to the position of a partition.

        Args:
            tp: The partition.
            part: State of the partition.
            event: What happened.
            offset: Offset of the event, for the actions that change the history.
            strategy: If the event requests a reset: the strategy of the reset.
        """
        self.carry_out(tp, part, part.on(event, offset), strategy=strategy)

    def carry_out(
        self, tp: TopicPartition, part: AssignedPartition, actions: Iterable[Action], *, strategy: int = 0
    ) -> None:
        """Carry out the actions that `AssignedPartition` does not carry out itself."""
        for action in actions:
            match action:
                case Action.HOLD:
                    self._assignments.hold(part.state)
                case Action.RELEASE:
                    self._assignments.release(part.state)
                case Action.PAUSE:
                    part.failures.rest(time.monotonic() + pause_s(part.failures.count))
                case Action.REQUEST_METADATA:
                    self._metadata.request()
                case Action.REQUEST_RESET:
                    self._assignments.reset(tp, strategy)
                case Action.REPOSITION:
                    self._assignments.reposition(part.state, part.position)
                case _:
                    part.begin(self._runner.begin(self._procedure(tp, part, action)))

    def _procedure(self, tp: TopicPartition, part: AssignedPartition, action: Action) -> Procedure[Any]:
        match action:
            case Action.WALK:
                return self._checks.walk(tp, part.history.read(part.position), part.position)
            case Action.EXAMINE_RANGE:
                return self._checks.examine_range(tp, part.history.read(part.position), part.position)
            case Action.LOCATE:
                return self._checks.local(tp)
            case Action.FIND_RESET:
                return self._checks.reset(tp, part.state.reset_strategy, part.reset)
            case _:  # pragma: no cover - `carry_out` and `AssignedPartition.on` handle all other actions
                raise RuntimeError(f"{action.name} begins no procedure")
