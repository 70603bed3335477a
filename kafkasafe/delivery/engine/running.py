"""Runs the engine's inquiries: generators that ask the cluster and pause. The engine's inbox and timers drive them."""

from __future__ import annotations

from typing import Any

from kafkasafe.cluster.procedures import Ask, Pause, Procedure, Together
from kafkasafe.delivery.engine.context import EngineContext
from kafkasafe.delivery.engine.messages import Answered, InquiryDue

__all__ = ["RunningInquiry"]


class RunningInquiry:
    """An inquiry, from its first request to its result. Each answer arrives as an `Answered` message.

    Args:
        context: See there.
        name: What transcripts show.
        procedure: Yields an `Ask` or a `Pause`, and is sent the answer. It has at most one request under way.
    """

    def __init__(self, context: EngineContext, name: str, procedure: Procedure[None]) -> None:
        self._context = context
        self._name = name
        self._procedure = procedure

    def __repr__(self) -> str:
        return self._name

    def go_on(self) -> None:
        """See `Inquiry`."""
        self.resume(None)

    def resume(self, answer: Any) -> None:
        """See `Inquiry`."""
        try:
            step = self._procedure.send(answer)
        except StopIteration:
            return
        match step:
            case Ask(send, name):
                send(lambda answer: self._context.post(Answered(self, name, answer)))
            case Pause(seconds):
                self._context.timer(seconds, InquiryDue(self))
            case Together():
                raise TypeError(f"{self} may have only one request in flight")
