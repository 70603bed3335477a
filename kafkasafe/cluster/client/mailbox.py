"""The way in for other threads: jobs that the network thread runs, in their order.

What a job does is not known here.
"""

from __future__ import annotations

import collections
import os
from collections.abc import Callable

from kafkasafe.cluster import at_once
from kafkasafe.cluster.network import Network
from kafkasafe.cluster.terms import closed_error, log
from kafkasafe.errors import ForkedProcessError

__all__ = ["Mailbox"]


class Mailbox:
    """Jobs for the network thread. Each is run, or fails; `post` is for any thread.

    Args:
        network: Is woken.

    Attributes:
        closing: Jobs fail instead of being run. Belongs to the network thread.
        ended: No thread looks into the mailbox any more.
    """

    def __init__(self, network: Network) -> None:
        self._network = network
        self._pid = os.getpid()
        # (run on the network thread, fail instead)
        self._jobs: collections.deque[tuple[Callable[[], None], Callable[[BaseException], None]]] = (
            collections.deque()
        )
        self._woken = False
        self._at_end: Callable[[], None] = lambda: None
        self.ended = False
        self.closing = False

    @property
    def in_child(self) -> bool:
        """Whether this is a forked child: thread and connections belong to its parent."""
        return os.getpid() != self._pid

    def post(self, run: Callable[[], None], fail: Callable[[BaseException], None]) -> None:
        """Passes a job to the network thread.

        Args:
            run: Called there, unless the transport is closed first.
            fail: Called instead with the reason, at once on this thread if it is known already.
        """
        if os.getpid() != self._pid:
            fail(ForkedProcessError("The connections belong to the parent process"))
            return
        self._jobs.append((run, fail))
        # One wake-up serves all jobs that come before the thread has looked. `look` clears the flag before it
        # empties the mailbox, so a job that finds it set is seen.
        if not self._woken and not at_once.held(self._wake, id(self)):
            self._wake()
        if self.ended:
            self._empty(closed_error())

    def _wake(self) -> None:
        if not self._woken:
            self._woken = True
            self._network.wake()

    def at_end_of_look(self, step: Callable[[], None]) -> None:
        """Sets what each look into the mailbox ends with. Before the thread starts."""
        self._at_end = step

    def look(self) -> None:
        """On the network thread: runs all jobs."""
        self._woken = False
        while self._jobs:
            run, fail = self._jobs.popleft()
            try:
                if self.closing:
                    fail(closed_error())
                else:
                    run()
            except Exception:
                # A bug, but one that must not take the other jobs with it.
                log.exception("A request could not be passed on", event="request_failed")
        self._at_end()

    def close(self) -> bool:
        """On the network thread: jobs fail from now on. Returns whether they did before."""
        closing, self.closing = self.closing, True
        return closing

    def reopen(self) -> None:
        """Another network will look into the mailbox; jobs that came meanwhile are left for it."""
        # A caller that found the flag set, or woke the loop that crashed, did so before this: its job is seen.
        self._woken = False
        self.closing = False

    def end(self, error: BaseException) -> None:
        """No thread looks into the mailbox any more: all jobs in it fail."""
        self.ended = True
        self._empty(error)

    def _empty(self, error: BaseException) -> None:
        while True:
            try:
                _, fail = self._jobs.popleft()
            except IndexError:
                return
            fail(error)
