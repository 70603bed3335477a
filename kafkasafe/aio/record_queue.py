"""The loop's side of a consumer: the fetched records, and which records the program has received."""

from __future__ import annotations

import asyncio
import collections
import os
import time
import weakref
from collections.abc import Collection, Iterable
from threading import get_ident
from typing import Any, Final

from kafka.structs import TopicPartition

from kafkasafe.aio.fetched import Fetched, UnassignedError, first_unhanded
from kafkasafe.aio.polls import HandedOut, PollRequest, PollResult, Seen
from kafkasafe.aio.threads import place_of

_ATTEND_S: Final = 0.25
"""How many seconds a program may process fetched records before the consumer serves its group membership again."""


class _Meanwhile:
    """Tracks what the program has done with partitions since the request for the running poll. Why this matters:

    1. A task polls. The consumer's thread asks the group coordinator, which takes a few milliseconds.
    2. Another task receives records of `orders-0` that an earlier poll had fetched.
    3. The poll ends: `orders-0` was revoked, or its position was moved back.
    4. The program now holds records of `orders-0` whose offsets must not be part of its next atomic batch.

    Attributes:
        paused: Partitions that the program has paused since the request.
    """

    def __init__(self) -> None:
        self.paused: set[TopicPartition] = set()
        self._before: dict[TopicPartition, int] = {}

    def begin(self, fetched: Iterable[Fetched]) -> None:
        """Forget the earlier state, because a poll is requested."""
        self.paused = set()
        self.compare_with(fetched)

    def compare_with(self, fetched: Iterable[Fetched]) -> None:
        """Store the present state of the fetched records. Later calls of `handed` compare the new state with the stored
        state.
        """
        self._before = first_unhanded({}, fetched)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Add partitions that the program pauses."""
        self.paused.update(partitions)

    def handed(self, fetched: Iterable[Fetched]) -> set[TopicPartition]:
        """Return the partitions from which the program has received records since the last `begin` or
        `compare_with`.
        """
        now = first_unhanded({}, fetched)
        return {tp for tp, offset in self._before.items() if now.get(tp) != offset}

    def forget(self, partition: TopicPartition) -> None:
        """Leave a partition out of the comparison, because its fetched records are dropped."""
        self._before.pop(partition, None)


class _MoveLog:
    """Numbers the program's moves: changes of positions, of the subscription or of the assignment. The numbers show
    which records were fetched before a move.

    Attributes:
        count: Number of the latest move.
    """

    def __init__(self) -> None:
        self.count = 0
        self._moved: dict[TopicPartition, int] = {}
        self._subscribed = 0
        self._assigned = 0
        self._restarted = 0

    def move(self, partitions: Iterable[TopicPartition]) -> None:
        """Count a move of the positions of these partitions."""
        self.count += 1
        self._moved.update(dict.fromkeys(partitions, self.count))

    def subscribe(self) -> None:
        """Count a new subscription."""
        self.count += 1
        self._subscribed = self.count

    def assign(self) -> None:
        """Count a new assignment that the program chose."""
        self.count += 1
        self._assigned = self.count

    def restart(self) -> None:
        """Count a restart, after which all records fetched so far are outdated."""
        self.count += 1
        self._restarted = self.count

    def has_moved(self, partition: TopicPartition, since: int) -> bool:
        """Return whether the program has moved the partition's position after the move with the number `since`."""
        return self._moved.get(partition, 0) > since

    def has_subscribed(self, since: int) -> bool:
        """Return whether the program has subscribed after the move with the number `since`."""
        return self._subscribed > since

    def has_assigned(self, since: int) -> bool:
        """Return whether the program has chosen an assignment after the move with the number `since`."""
        return self._assigned > since

    def has_restarted(self, since: int) -> bool:
        """Return whether there was a restart after the move with the number `since`."""
        return self._restarted > since


class RecordQueue:
    """Fetched records in the order of their polls, and the assignment after the last poll. Only the loop uses this
    object.
    """

    def __init__(self) -> None:
        self._fetched: collections.deque[Fetched] = collections.deque()
        self._in_hand: dict[TopicPartition, int] = {}
        """By partition, the first offset of the records that the last request returned."""
        self._assigned: frozenset[TopicPartition] = frozenset()
        self._paused: set[TopicPartition] = set()
        self._moves = _MoveLog()
        self._meanwhile = _Meanwhile()
        self._handed_late = False
        """Whether the program received records of a partition during a poll in which the partition was revoked or its
        position moved back."""
        self._kept = 0
        """Number of the latest poll whose records have arrived on the loop."""
        self._polled_at, self._attend_at = 0.0, 0.0
        self._holds = 0
        self._place: Any = None

    def belong_to(self, loop: asyncio.AbstractEventLoop) -> None:
        """Bind the queue to this loop: `take_now` returns records only on this loop, and never in a forked child."""
        self._place = place_of(loop)
        _started.add(self)

    # -- records -------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Return the number of fetched records, including those of paused partitions."""
        return sum(len(fetched.records) for fetched in self._fetched)

    def __bool__(self) -> bool:
        return bool(self._fetched)

    def take_now(self) -> Any:
        """Take the next record of any partition, as `next` and `take` do. Return None if the caller may have to wait.

        All records that the program received before this call count as finished.
        """
        queue = self._fetched
        if (
            not queue
            or self._paused
            or self._holds
            or self._place._thread_id != get_ident()  # noqa: SLF001  # see `place_of`
            or time.monotonic() >= self._attend_at
        ):
            return None
        first = queue[0]
        record = first.records.popleft()
        self._in_hand = {first.tp: record.offset}
        if not first.records:
            queue.popleft()
        return record

    def next(self, wanted: frozenset[TopicPartition]) -> Fetched | None:
        """Return the first fetched records of these partitions, or of any partition if `wanted` is empty."""
        if self._fetched and not wanted and not self._paused:
            return self._fetched[0]
        for fetched in self._fetched:
            if fetched.tp not in self._paused and (not wanted or fetched.tp in wanted):
                return fetched
        return None

    def take(self, fetched: Fetched, count: int) -> list[Any]:
        """Remove and return the first `count` records of `fetched`. The program processes these records from now on."""
        self._in_hand.setdefault(fetched.tp, fetched.next_offset)
        records = fetched.take(count)
        if not fetched.records:
            self._fetched.remove(fetched)
        return records

    def finish_all(self) -> None:
        """Treat all records that the program has received as finished."""
        self._in_hand = {}

    def seen(self) -> Seen:
        """Return the state of the fetched records."""
        return Seen(first_unhanded(self._in_hand, self._fetched), self._kept)

    def next_offset(self, partition: TopicPartition) -> int | None:
        """Return the offset of the first fetched record of a partition, or None."""
        return next((each.next_offset for each in self._fetched if each.tp == partition), None)

    def hold(self) -> None:
        """Make `take_now` return None until `release` is called."""
        self._holds += 1

    def release(self) -> None:
        """End one `hold`."""
        self._holds -= 1

    # -- polls ---------------------------------------------------------------------------------------------------------

    @property
    def must_attend(self) -> bool:
        """Whether the consumer must serve its group membership before more records are returned."""
        return time.monotonic() >= self._attend_at

    @property
    def polled_at(self) -> float:
        """Time of the last poll, seconds since the epoch."""
        return self._polled_at

    def attend_now(self) -> None:
        """Let the consumer poll once to serve its group membership before it returns the next records."""
        self._attend_at = 0.0

    def begin_poll(self) -> PollRequest:
        """Return a description of the poll that begins now."""
        self._meanwhile.begin(self._fetched)
        # Do not fetch more records of partitions whose fetched records have not been returned yet.
        left_out = frozenset(each.tp for each in self._fetched) - self._paused
        return PollRequest(left_out, self._paused, self._moves.count)

    def keep(self, request: PollRequest, result: PollResult) -> None:
        """Store the records and the assignment of a poll that has ended."""
        asked, gone = request.move, result.gone
        if self._moves.has_restarted(asked):
            return
        self._kept = result.number
        settled = result.joined and not self._moves.has_subscribed(asked)
        self._attend_at = time.monotonic() + _ATTEND_S if settled else 0.0
        self._polled_at = time.time()
        paused_meanwhile = self._meanwhile.paused & result.assigned
        # If the program has chosen an assignment since the request, the assignment of the poll is outdated.
        self.lose(gone, self._assigned if self._moves.has_assigned(asked) else result.assigned)
        # A partition that a rebalance took away is no longer paused, even if it was assigned again. But a partition
        # stays paused if only its position moved back (kafka-python's new state is paused, too), or if the program
        # paused it meanwhile.
        self._paused.difference_update({*gone} - result.paused - paused_meanwhile)
        for tp, found in result.records.items():
            # Ignore records that were fetched before a concurrent seek.
            if found and tp in result.assigned and not self._moves.has_moved(tp, asked):
                self._fetched.append(Fetched(tp, found))

    def begin_anew(self) -> None:
        """Forget all fetched records, and ignore the result of a running poll. Called after `start` was cancelled: the
        next consumer will fetch the records again.
        """
        self._moves.restart()
        self._fetched.clear()
        self._paused.clear()
        self._in_hand, self._handed_late, self._kept = {}, False, 0
        self._attend_at = 0.0

    def lose(self, gone: Collection[TopicPartition], assigned: frozenset[TopicPartition]) -> None:
        """Drop the records of partitions that were revoked or whose position moved back. Store the new assignment."""
        self._assigned = assigned
        if gone:
            self._handed_late |= not self._meanwhile.handed(self._fetched).isdisjoint(gone)
            self._drop(set(gone))

    def hand_over(self) -> HandedOut:
        """Let an atomic batch take the offsets of all records that the program has received."""
        self._in_hand = {}
        handed = HandedOut(self._handed_late, self._meanwhile.handed(self._fetched), self._kept)
        self._handed_late = False
        self._meanwhile.compare_with(self._fetched)
        return handed

    # -- assignment and moves ------------------------------------------------------------------------------------------

    @property
    def assigned(self) -> frozenset[TopicPartition]:
        return self._assigned

    @property
    def paused(self) -> Collection[TopicPartition]:
        return self._paused

    @property
    def kept(self) -> int:
        """Number of the latest poll whose records have arrived on the loop."""
        return self._kept

    def check_assigned(self, partitions: Iterable[TopicPartition]) -> None:
        """Check partitions that the program names.

        Raises:
            UnassignedError: One of them is not assigned.
        """
        for partition in partitions:
            if partition not in self._assigned:
                raise UnassignedError(
                    f"Unassigned partition {partition}. Assigned partitions, as of the last request for records:"
                    f" {sorted(self._assigned)}"
                )

    def assign(self, partitions: frozenset[TopicPartition]) -> set[TopicPartition]:
        """Store an assignment that the program chooses. Return the partitions that the program stops reading.

        Partitions that stay assigned keep their positions and their fetched records.
        """
        moved = {*self._assigned, *(fetched.tp for fetched in self._fetched)} - partitions
        self._moves.assign()
        self._assigned = partitions
        self._paused.intersection_update(partitions)
        return moved

    def subscribe(self) -> None:
        """Return no fetched records until a later poll, because the program may no longer be subscribed to the records'
        topics.
        """
        self._moves.subscribe()
        self._attend_at = 0.0

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        self._paused.update(partitions)
        self._meanwhile.pause(partitions)

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        self._paused.difference_update(partitions)

    def move(
        self, partitions: Collection[TopicPartition], *, overtakes_poll: bool
    ) -> dict[TopicPartition, int]:
        """Drop the fetched records of partitions whose positions move.

        Args:
            partitions: The partitions.
            overtakes_poll: Whether a running poll fetches from the positions that applied before the move.

        Returns:
            By partition, the offset of the first dropped record.
        """
        dropped: dict[TopicPartition, int] = {}
        if partitions:
            if overtakes_poll:
                self._moves.move(partitions)
            for fetched in self._fetched:
                if fetched.tp in partitions:
                    dropped.setdefault(fetched.tp, fetched.next_offset)
            self._drop(partitions)
        return dropped

    def _drop(self, partitions: Collection[TopicPartition]) -> None:
        self._fetched = collections.deque(each for each in self._fetched if each.tp not in partitions)
        for tp in partitions:
            self._in_hand.pop(tp, None)
            self._meanwhile.forget(tp)


_started: weakref.WeakSet[RecordQueue] = weakref.WeakSet()


def _forked() -> None:
    """Make sure that a forked child does not get the parent's records."""
    for records in list(_started):
        # Without this call, `take_now` would return the parent's records. Other requests raise an error, because the
        # loop does not run in the child.
        records.attend_now()


os.register_at_fork(after_in_child=_forked)
