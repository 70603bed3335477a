"""The base class of all inquiries, which run in named steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kafkasafe._io.engine.ground import Ground
from kafkasafe._io.engine.lane import Lane
from kafkasafe._io.engine.messages import Answered

__all__ = ["Steps"]


class Steps:
    """Sends one request after another. Each answer arrives as a message that names its step."""

    def __init__(self, ground: Ground, lane: Lane, topic: str, partition: int) -> None:
        self._ground = ground
        self._lane = lane
        self._topic = topic
        self._partition = partition

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._lane.name} {self._topic}-{self._partition})"

    def _then(self, step: str) -> Callable[[Any], None]:
        return lambda answer: self._ground.post(Answered(self, step, answer))

    def go_on(self) -> None:
        """See `Inquiry`."""
        raise NotImplementedError

    def resume(self, step: str, answer: Any) -> None:
        """See `Inquiry`."""
        proceed: Callable[[Any], None] = getattr(self, f"_on_{step}")
        proceed(answer)
