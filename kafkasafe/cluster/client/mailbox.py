"""Jobs that other threads pass to the network thread, which runs them in order."""

from __future__ import annotations

import collections
import os
from collections.abc import Callable

from kafkasafe.cluster import at_once
from kafkasafe.cluster.network import Network
from kafkasafe.cluster.terms import closed_error, log
from kafkasafe.errors import ForkedProcessError


class Mailbox:
    """Jobs for the network thread. Each job runs or fails. Any thread may call `post`.

    Attributes:
        closing: Whether jobs fail instead of running. Only the network thread uses this attribute.
        ended: Whether the mailbox is closed for good. No thread will then run its jobs.
    """

    def __init__(self, network: Network) -> None:
        self._network = network
        self._pid = os.getpid()
        # Each job is a pair: the function to run on the network thread, and the function to call if the job cannot be
        # run.
        self._jobs: collections.deque[tuple[Callable[[], None], Callable[[BaseException], None]]] = (
            collections.deque()
        )
        self._woken = False
        self.ended = False
        self.closing = False

    def post(self, run: Callable[[], None], fail: Callable[[BaseException], None]) -> None:
        """Passes a job to the network thread.

        Args:
            run: Called on the network thread, unless the transport closes first.
            fail: Called with the reason if the job cannot be run. If the transport is closed already, the thread that
                called `post` calls `fail` at once.
        """
        if os.getpid() != self._pid:
            fail(ForkedProcessError("The connections belong to the parent process"))
            return
        self._jobs.append((run, fail))
        # One wake-up serves all jobs that come before the network thread calls `look`. `look` clears `_woken` before it
        # empties the mailbox, so it sees every job that came while `_woken` was set.
        if not self._woken and not at_once.is_deferred(self._wake, id(self)):
            self._wake()
        if self.ended:
            self._empty(closed_error())

    def _wake(self) -> None:
        if not self._woken:
            self._woken = True
            self._network.wake()

    def look(self) -> None:
        """Runs all jobs. Only the network thread may call this method."""
        self._woken = False
        while self._jobs:
            run, fail = self._jobs.popleft()
            try:
                if self.closing:
                    fail(closed_error())
                else:
                    run()
            except Exception:
                # The job has a bug, but the other jobs must still run.
                log.exception("A request could not be passed on", event="request_failed")

    def close(self) -> bool:
        """Makes jobs fail from now on. Only the network thread may call this method. Returns whether the mailbox was
        closed already.
        """
        closing, self.closing = self.closing, True
        return closing

    def reopen(self) -> None:
        """Prepares for a new event loop. The new loop is woken when it starts. Then it runs older jobs, too."""
        self._woken = False
        self.closing = False

    def end(self, error: BaseException) -> None:
        """Fails all jobs in the mailbox. No thread will run jobs from now on."""
        self.ended = True
        self._empty(error)

    def _empty(self, error: BaseException) -> None:
        while True:
            try:
                _, fail = self._jobs.popleft()
            except IndexError:
                return
            fail(error)
