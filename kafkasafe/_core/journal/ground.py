"""What all parts of `Journal` stand on: its settings, its state, and what is said about one batch or one partition.

Nothing is decided in here that another room could decide: only what nearly all of them need.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from kafkasafe._core import marks as m
from kafkasafe._core import units as u
from kafkasafe._core.journal.groups import Persist
from kafkasafe._core.journal.healing import Healing
from kafkasafe._core.journal.home import Home
from kafkasafe._core.journal.messages import Ready, Wait
from kafkasafe._core.journal.missing import Missing
from kafkasafe._core.journal.partition import UNCHOSEN, WINDOW, Partition
from kafkasafe._core.journal.precedence import Precedence
from kafkasafe._core.journal.quiescence import Quiescence
from kafkasafe._core.journal.replay import Replay
from kafkasafe._core.journal.sequences import IdSource
from kafkasafe._core.journal.spool_index import SpoolIndex
from kafkasafe._core.journal.states import Batch

__all__ = ["Ground"]


class Ground:
    """Part of `Journal`: what is known, and small answers from it.

    Args:
        durable_first: Send only what is on disk (`spool="always"`). False: `spill()` says what has to go there.
        window: Batches sent without a durable commit mark, per partition.
        state_age_s: How long after a batch's own timestamp a broker surely remembers the producer.
        request_timeout_s: After this a request without an answer is dead.
        blocked_timeout_s: How long a destination may be missing, forbidden or invalid, timestamps be too far ahead, or
            the broker fail on one batch, before what waits for it is rejected; None: for ever. In this life, without
            another answer in between.
        missing_grace_s: How long a topic may be unknown to the cluster before that is told: it may be new.
        heal: Acknowledged batches that the cluster lost are sent again, as far as the spool still has them.
        heal_recreated: Also into a topic that was deleted and created again.
        aside_batches: How many batches are put aside at a time, at most.
        gather_bytes: Small batches that wait become one of this size at most; 0: never.
        newest_reading: See `units.Units`.
    """

    def __init__(
        self,
        *,
        durable_first: bool = True,
        window: int = WINDOW,
        state_age_s: float = 6 * 3600.0,
        request_timeout_s: float = 30.0,
        blocked_timeout_s: float | None = 7 * 86400.0,
        missing_grace_s: float = 60.0,
        heal: bool = True,
        heal_recreated: bool = False,
        aside_batches: int = 256,
        gather_bytes: int = 0,
        newest_reading: Callable[[], int] = lambda: 0,
    ) -> None:
        self._durable_first = durable_first
        self._gather_bytes = gather_bytes
        self._window = window
        self._state_age_s = state_age_s
        self._behind_ms = 0
        self._at_least_ms = 0
        self._request_timeout_s = request_timeout_s
        self._refused_timeout_s = blocked_timeout_s
        self._missing_grace_s = missing_grace_s
        self._heal = heal
        self._heal_recreated = heal_recreated
        self._aside_batches = aside_batches
        self._index = SpoolIndex()
        self._home = Home()
        self._partitions: dict[int, Partition] = {}
        self._numbers: dict[tuple[str, int], int] = {}
        self._last_number = 0
        self._unchosen: list[Partition] = []
        """The destinations of batches whose partitions are not chosen yet."""
        self._topics: dict[str, m.Topic] = {}
        self._handles = itertools.count(1)
        self._ids = IdSource()
        self._replay = Replay()
        self._precedence = Precedence()
        self._quiescence = Quiescence()
        self.units = u.Units(self._in_front, newest_reading=newest_reading)
        self.missing = Missing()
        self._vacating: dict[int, None] = {}
        """Partitions that are surveyed as soon as nothing of a unit is on its way into them."""
        self._ready = _nothing()
        self._touched: dict[int, None] = {}
        self._committing: dict[int, None] = {}
        # By destination, what is on its way back.
        self._healing: dict[int, Healing] = {}

    def _declare(self, number: int, topic: str, partition: int) -> None:
        made = self._partitions[number] = Partition(number, topic, partition)
        self._numbers[topic, partition] = number
        self._last_number = max(self._last_number, number)
        if partition == UNCHOSEN:
            self._unchosen.append(made)

    def _take_ready(self) -> Ready:
        """What was decided since the last time."""
        ready, self._ready = self._ready, _nothing()
        ready.want_producer_id(wanted=not self._ids.is_granted)
        return ready

    @staticmethod
    def _members(unit: u.Unit) -> list[Batch]:
        return [batch for batch in unit.batches if isinstance(batch, Batch)]

    def _in_front(self, batch: u.Member) -> bool:
        partition = self._partitions[batch.destination]
        if partition.partition == UNCHOSEN:
            return False  # it is divided first
        for other in partition.queue:
            if other is batch:
                return partition.loss.suspicion is None and not self._precedence.stops(partition, other)
            if other.unit is None:
                return False
        return False

    def _state_marks(self, partition: Partition) -> list[m.State]:
        """How far the partition is, to be repeated: none where the mark would be read as a reset, and is none.

        1. The batches of a unit are acknowledged at no offset, by a broker without topic ids and leader epochs.
        2. Nothing else was sent to the partition, so that no baseline is known.
        3. A new segment begins: the mark would know nothing, but the batches are remembered.
        """
        mark = self._state_mark(partition)
        remembers = bool(partition.log.acked) or partition.number in self._healing
        return [] if mark.knows_nothing and remembers else [mark]

    def _state_mark(self, partition: Partition) -> m.State:
        return m.State(
            partition.number,
            partition.log.baseline_offset,
            # Not the last acknowledged one: its mark may not be durable yet, or an earlier batch be in doubt, and a
            # scan that starts behind a batch takes it for absent.
            partition.log.clear_offset,
            partition.log.leader_epoch,
            partition.log.topic_id,
        )

    def _pause(self, partition: Partition, reason: str, *, at_least_s: float = 0.0) -> None:
        refresh = partition.progress.wait()
        denial = partition.refusal.denial
        refused = denial is not None and denial.counted_from >= 0
        attempt = denial.answers if denial is not None and refused else partition.progress.attempt
        self._ready.waits.append(Wait(partition.number, attempt, refresh, at_least_s, reason, refused))

    def _send(self, partition: Partition, batch: Batch) -> None:
        self._ready.gathers.pop(partition.number, None)
        partition.queue.send(batch)
        self._ready.sends.append(batch)

    def broker_clock(self, broker_ms: int, now_ms: int) -> bool:
        """A broker told the time, by a timestamp of its own.

        Brokers forget a producer by their clock. Where ours is behind, our batches are older for them than for us.

        Args:
            broker_ms: Its clock, ms since the epoch.
            now_ms: Ours.

        Returns:
            Whether ours is so far behind that brokers may forget us at any moment. Then each batch goes alone.
        """
        self._behind_ms = max(0, broker_ms - now_ms)
        self._at_least_ms = 0
        return self._behind_ms > self._state_age_s * 1000

    def clock_at_least(self, at_least_ms: int) -> None:
        """Others' records say that it is as late as this (ms since the epoch). They may be wrong: be careful."""
        self._at_least_ms = at_least_ms

    def _brokers_ms(self, now_ms: int) -> int:
        return max(now_ms + self._behind_ms, self._at_least_ms)

    def _is_old(self, batch: Batch, now_ms: int) -> bool:
        """A leader forgets a producer by the timestamp of its last batch: after this one any moment."""
        return self._brokers_ms(now_ms) - batch.max_timestamp > self._state_age_s * 1000


def _nothing() -> Ready:
    return Ready(Persist(), [], [], [], [], [], [], [], [], [], [], [], wants_producer_id=False)
