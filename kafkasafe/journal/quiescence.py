"""Stores how long brokers may still append this lane's requests, so that the next incarnation need not wait longer.

1. An incarnation ends normally. Its last spool group has a QUIET mark (`marks.Quiet`), which says until when brokers
   may still append the incarnation's requests.
2. The next incarnation reads the QUIET mark, and asks about batches in doubt as soon as the mark's time has passed.
3. Before the next incarnation sends anything, it revokes the mark, and waits until the revocation is durable. Otherwise
   a third incarnation would believe the first incarnation's mark, and would not wait for the second incarnation's
   requests.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from kafkasafe import marks as m
from kafkasafe.journal.batch import Batch
from kafkasafe.journal.outbox import Ready, SilenceBroken

_CLOCKS_DIFFER_MS: Final = 60_000
"""How far the wall clocks of two machines, or of one machine before and after a correction, may differ."""


@dataclass(frozen=True, slots=True)
class Moment:
    """The current time, in a form that another incarnation can compare with its own current time.

    Attributes:
        wall_ms: Ms since the epoch. The clock may be set, even backwards.
        boot_id: Id of this boot of the machine, 16 bytes; zeros when unknown.
        boot_ms: Ms since this boot, not counting the time for which the machine slept.
    """

    wall_ms: int
    boot_id: bytes
    boot_ms: int


def alive_s(quiet: m.Quiet | None, clock: Moment | None, request_timeout_s: float) -> float:
    """The maximum number of seconds for which brokers may still append requests of earlier incarnations.

    Args:
        quiet: The QUIET mark that the last incarnation wrote at its end; None if the incarnation wrote no QUIET mark,
            or sent a request after the mark.
        clock: The current time; None if the time since the mark is unknown.
        request_timeout_s: After this time, no broker can append an unanswered request any more.
    """
    if quiet is None or clock is None:
        return request_timeout_s
    left_ms = quiet.until_ms - quiet.written_ms
    if any(clock.boot_id) and clock.boot_id == quiet.boot_id:
        passed_ms = clock.boot_ms - quiet.boot_ms
    else:
        passed_ms = clock.wall_ms - quiet.written_ms
        if passed_ms >= 0:
            # The mark's time may come from another machine's clock, or the clock may have been corrected since the mark
            # was written.
            passed_ms = max(0, passed_ms - _CLOCKS_DIFFER_MS)
    if passed_ms < 0:
        return max(request_timeout_s, left_ms / 1000)
    return max(0, left_ms - passed_ms) / 1000


class Quiescence:
    """Knows whether the lane's log has a QUIET mark, and until when brokers may still append requests of earlier
    incarnations.

    Attributes:
        is_announced: The lane's log has a QUIET mark, which the journal has to revoke before it sends anything.
        dead_at: Until this time (seconds), a broker may still append a request of an earlier incarnation.
    """

    __slots__ = ("_held", "dead_at", "is_announced")

    def __init__(self) -> None:
        self.is_announced = False
        self.dead_at = 0.0
        # Batches to send once the QUIET mark is revoked; None before the journal begins to revoke the mark.
        self._held: list[Batch] | None = None

    def begin(self, dead_at: float, *, announced: bool) -> None:
        """Begin an incarnation (a run of the producer), after recovery has read the log."""
        self.dead_at, self.is_announced = dead_at, announced

    def sleep(self, seconds: float, before: float) -> None:
        """Extend `dead_at` by the time for which the machine slept, if a broker could still append a request when the
        sleep began (at `before`).
        """
        if self.dead_at > before:
            self.dead_at += seconds

    def mark(self, dead_at: Iterable[float], now: float, clock: Moment) -> m.Quiet:
        """The QUIET mark, which an owner writes into its last spool group when it has stopped sending.

        Args:
            dead_at: For each partition, the time (seconds) until which a broker may still append a request of this
                incarnation.
            now: The current time in seconds.
            clock: The current time, in a form that another incarnation can compare.
        """
        left_ms = int(max(0.0, max((self.dead_at, *dead_at)) - now) * 1000) + 1
        return m.Quiet(clock.wall_ms + left_ms, clock.wall_ms, clock.boot_id, clock.boot_ms)

    def gate(self, ready: Ready) -> None:
        """Hold back the batches of `ready.sends` until the mark that revokes QUIET is durable."""
        if self._held is None:
            if not ready.sends and (not ready.persist.batches or ready.persist.atomic):
                return
            self._held = []
            ready.persist.marks.append(m.Quiet(-1, 0, bytes(16), 0))
            ready.persist.after.append(SilenceBroken())
        self._held += ready.sends
        ready.sends.clear()

    def taken_back(self) -> list[Batch]:
        """Note that the mark that revokes QUIET is durable. Returns the batches that may be sent now."""
        self.is_announced = False
        return self._held or []
