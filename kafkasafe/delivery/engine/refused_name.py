"""The transactional ids and consumer groups that the cluster forbids a lane to use."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kafkasafe import units as u
from kafkasafe.journal.refusal import SILENCE_S


@dataclass(slots=True, eq=False)
class RefusedName:
    """A transactional id or a consumer group that the cluster refuses.

    Attributes:
        code: Kafka's error code.
        reason: What the cluster said.
        since: Time of the first refusal. All times are `EngineContext.now`.
        last_at: Time of the latest refusal.
        counted_from: Time from which the duration of the refusal is counted. Another answer, or a long time without an
            answer, restarts the count.
        transactional_id: The transactional id whose atomic batches wait; empty for the lane's own ids. Ignored if
            `group` is set.
        group: The group whose offsets the waiting atomic batches would commit; empty if the refusal is not about a
            user's group.
        destination: Number of a destination if the refusal affects only the units (atomic batches) whose first batch is
            for this destination; otherwise -1.
        reported: Whether the refusal was reported.
    """

    code: int
    reason: str
    since: float
    last_at: float
    counted_from: float
    transactional_id: str
    group: str
    destination: int = -1
    reported: bool = False

    def begin_again(self, now: float) -> None:
        """Count the duration of the refusal from `now` on, because the last request got another answer or no answer."""
        self.counted_from = now

    def repeat(self, now: float, reason: str) -> None:
        """Note another refusal with the same code. If the previous refusal was more than `SILENCE_S` ago, the duration
        of the refusal is counted from `now`.
        """
        if now - self.last_at > SILENCE_S:
            self.counted_from = now
        self.last_at, self.reason = now, reason

    def report(self) -> None:
        """Note that the refusal was reported."""
        self.reported = True

    def waiting(self, units: u.Units) -> list[u.Unit]:
        """Units that wait because of the refusal. Any thread may call this method."""
        return [
            unit
            for unit in units.unfinished
            if (
                any(each.group == self.group for each in unit.offsets)
                if self.group
                else unit.transactional_id == self.transactional_id
                and (
                    self.destination < 0
                    or self.destination in [each.destination for each in unit.batches[:1]]
                )
            )
        ]


class NameRefusals:
    """The transactional ids and consumer groups that the cluster forbids a lane to use. The key of each is a text such
    as "group orders".

    Any thread may read this object.
    """

    __slots__ = ("_found",)

    def __init__(self) -> None:
        self._found: dict[str, RefusedName] = {}

    def __bool__(self) -> bool:
        return bool(self._found)

    def get(self, name: str) -> RefusedName | None:
        """The refusal of a name; None if the cluster does not refuse the name."""
        return self._found.get(name)

    def add(self, name: str, refused: RefusedName) -> None:
        """Note a refusal, which replaces an earlier refusal of the same name."""
        self._found[name] = refused

    def accept(self, name: str) -> RefusedName | None:
        """Forget and return the refusal of a name; None if the cluster did not refuse the name."""
        return self._found.pop(name, None)

    def items(self) -> Iterable[tuple[str, RefusedName]]:
        """(name, refusal) of each refused name."""
        return list(self._found.items())
