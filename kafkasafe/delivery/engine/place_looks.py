"""Callers that ask whether the producer's own lane is in its place: one look answers all that asked before it."""

from __future__ import annotations

from typing import Final

from kafkasafe.delivery.engine.context import EngineContext
from kafkasafe.delivery.engine.disk import DiskWriter
from kafkasafe.delivery.engine.ledger import Ledger
from kafkasafe.delivery.engine.messages import Chore, ChoreDue

__all__ = ["PlaceLooks"]

_LOOK_AGAIN_S: Final = 0.1
"""How often the engine checks a spool that is not in its place, while a caller waits until it is."""


class PlaceLooks:
    """See the module.

    Attributes:
        looked: Number of the latest question after which the lane was found in its place. From any thread.
    """

    def __init__(self, context: EngineContext, ledger: Ledger, disk: DiskWriter) -> None:
        self._context = context
        self._ledger = ledger
        self._disk = disk
        self._asked = 0
        self.looked = 0

    def ask(self, number: int) -> None:
        """Record that a caller asks. Numbers grow."""
        self._asked = max(self._asked, number)

    def answer(self) -> None:
        """Look once for all callers that asked."""
        if self._asked <= self.looked:
            return
        if self._disk.look_at_place(self._context.own):
            self.looked = self._asked
            if self._ledger.waiters:
                self._ledger.waiters.notify_all()
        else:
            self._context.timer(_LOOK_AGAIN_S, ChoreDue(Chore.LOOK_AGAIN))
