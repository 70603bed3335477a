"""The lock of the ledger, and the callers that wait for a change of it."""

from __future__ import annotations

import threading

from kafkasafe.delivery.engine.waits import WaitingCallers

__all__ = ["Guard"]


class Guard:
    """Guards the parts of the ledger: `Ledger` says who takes the lock, and when."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Create a new lock: in a forked child, the thread that held the old one does not exist."""
        self.lock = threading.RLock()
        self.waiters = WaitingCallers()
