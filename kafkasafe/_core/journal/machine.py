"""The machine: what is to be done now, of all that the rooms before it know."""

from __future__ import annotations

from itertools import islice
from typing import Final

from kafkasafe._core import marks as m
from kafkasafe._core.journal import packing
from kafkasafe._core.journal.messages import Ask, Divide, Ready
from kafkasafe._core.journal.partition import UNCHOSEN, WINDOW, Flow, Partition
from kafkasafe._core.journal.recovery import Recovery
from kafkasafe._core.journal.states import Batch, State, id_fields

__all__ = ["Journal"]

_DIVIDE_BYTES: Final = 1024 * 1024
"""How much is divided at a time: what waited through a long outage does not fit into memory, nor twice on disk."""


class Journal(Recovery):
    """Decides; see the package. Its settings are those of `Ground`."""

    @property
    def at_rest(self) -> bool:
        """Whether `ready` would give nothing, until something happens."""
        if self._touched or self._vacating or self._committing or self._still or self._producer_id < 0:
            return False
        return self.units.at_rest and not self._ready

    def ready(self, now: float, now_ms: int) -> Ready:
        """Everything that must be done now; each thing is given once.

        Args:
            now: Seconds.
            now_ms: Wall clock, ms since the epoch.
        """
        for number in self._vacating:
            self._touch(self._partitions[number])
        self._vacating.clear()
        if self._touched:
            self.units.look()
        while self._touched:
            number = next(iter(self._touched))
            del self._touched[number]
            self._advance(self._partitions[number], now, now_ms)
        self._advance_units()
        ready, self._ready = self._ready, self._fresh()
        if ready.persist.atomic:
            self._set_apart(ready.persist)
        for number in self._committing:
            partition = self._partitions[number]
            ready.persist.marks.append(m.Committed(number, partition.leader_epoch, tuple(partition.commits)))
            partition.commits.clear()
        self._committing.clear()
        ready.wants_producer_id = self._producer_id < 0
        if self._still:
            self._break_silence(ready)
        return ready

    def _advance(self, partition: Partition, now: float, now_ms: int) -> None:
        if partition.queue.packed and partition.queue.unpacked <= WINDOW:
            self._unpack(partition, packing.UNPACKED - WINDOW)
        if not partition.queue:
            self._relent(partition, accepted=False)
            partition.answered = False
        if partition.flow is Flow.REJECTING:
            return
        if partition.partition == UNCHOSEN:
            topic = self._topics.get(partition.topic)
            if topic is not None and topic.partition_count > 0 and partition.flow is not Flow.PARKED:
                size = 0
                for batch in partition.queue:
                    if batch.state not in {State.SEALED, State.JOINED} or not self._rests(batch):
                        break  # nothing overtakes it
                    self._ready.divides.append(Divide(batch, refused=False))
                    size += batch.size_bytes
                    if size >= _DIVIDE_BYTES:
                        break
            return
        if partition.checks and not partition.check_asked:
            partition.check_asked = True
            self._ready.checks.append(partition.checks[0])
        self._prepare(partition)
        if partition.flow is Flow.SETTLING and not partition.in_flight:
            self._settled(partition, now, now_ms)
        if not partition.queue:
            return
        if partition.flow is Flow.NEW:
            partition.flow = Flow.ASKING
            self._note_topic(partition)
            self._ready.asks.append(
                Ask(partition.number, (), -1, acked_before=False, read_log=False, fenced=False)
            )
        elif partition.flow is Flow.FLOWING:
            head = partition.queue[0]
            if head.doomed:
                self._reject_head(partition, head)
            else:
                self._flow(partition, now, now_ms)

    def _settled(self, partition: Partition, now: float, now_ms: int) -> None:
        """Every request in flight has an outcome: what now?"""
        if partition.suspicion is not None and not partition.doubtful:
            self._look(partition, now)
            return
        head = next((b for b in partition.queue if b.state is not State.ACKED), None)
        refused = head is not None and head.state is State.REFUSED
        if not partition.doubtful and (refused or partition.renew):
            # Both end in new ids: not while a request under the old ones may still be appended, and not for a
            # batch that was looked for before that was certain.
            if now < partition.dead_at:
                self._pause(partition, partition.reason, at_least_s=partition.dead_at - now)
                return
            for batch in partition.queue:
                if batch.state is State.PREPARED and batch.unanswered:
                    batch.move(State.IN_DOUBT)
                    partition.doubtful = partition.rested = True
        if not partition.doubtful:
            partition.fenced = partition.sequence_refused = False
            if head is not None and head.unconfirmed and head.identity is not None:
                # New ids follow, or a fate: what the broker says is checked once against what it has.
                partition.flow = Flow.ASKING
                self._ready.asks.append(
                    Ask(
                        partition.number,
                        (head.identity,),
                        -1,
                        acked_before=False,
                        read_log=False,
                        fenced=False,
                        confirm=True,
                    )
                )
                return
            if refused and head is not None:
                self._handle_refusal(partition, head)
                return
            for batch in partition.queue:
                if batch.state is State.REFUSED:
                    # What is before it was not appended either: it is sent again in its turn.
                    batch.move(State.PREPARED)
            if partition.renew:
                self._reidentify(partition)
                self._prepare(partition)
        if not partition.rested:
            self._pause(partition, partition.reason)
            return
        partition.rested = False
        if not partition.doubtful:
            if not any(batch.unanswered for batch in islice(partition.queue, self._window)):
                partition.rescan_from = -1
            started = partition.baseline_offset >= 0 or partition.last_acked_offset >= 0
            partition.flow = Flow.FLOWING if started else Flow.NEW
            partition.reason = ""
            return
        doubt = self._doubt(partition)
        asked = {id_fields(batch.identity)[:2] for batch in doubt[:1] if batch.identity is not None}
        for batch in partition.queue:
            if (
                batch.state is State.PREPARED
                and batch.unanswered
                and batch.identity is not None
                and id_fields(batch.identity)[:2] in asked
            ):
                # What was late may have come, as what is behind it may have.
                batch.move(State.IN_DOUBT)
        doubt = self._doubt(partition)
        if not doubt:
            partition.doubtful = False
            partition.rested = True
            self._touch(partition)
            return
        partition.flow = Flow.ASKING
        partition.asked_at = now
        first = doubt[0].identity
        last = partition.last_acked_id
        start = self.reach(partition.number)
        if 0 <= partition.rescan_from < start:
            start = partition.rescan_from
        partition.asked_from = start
        self._ready.asks.append(
            Ask(
                partition.number,
                tuple(batch.identity for batch in doubt if batch.identity is not None),
                start,
                acked_before=last is not None
                and first is not None
                and (last.producer_id, last.producer_epoch) == (first.producer_id, first.producer_epoch),
                # A log that was cut may have taken a late request out of order: its leader would speak for the others.
                read_log=partition.rescan_from >= 0 or any(self._is_old(batch, now_ms) for batch in doubt),
                fenced=partition.fenced,
                cut=partition.rescan_from >= 0,
            )
        )

    def _flow(self, partition: Partition, now: float, now_ms: int) -> None:
        """Send what the window and the order allow."""
        old_in_flight = False
        for batch in islice(partition.queue, self._window):
            if batch.state in {State.SENT, State.ACKED}:
                old_in_flight |= batch.state is State.SENT and self._is_old(batch, now_ms)
                continue
            if batch.state is not State.PREPARED or batch.identity is None:
                break
            if self._halted or self._is_held(partition, batch):
                break
            ours = (batch.identity.producer_id, batch.identity.producer_epoch)
            if partition.in_flight and (
                old_in_flight or partition.confirmed_id != ours or now >= partition.confirmed_until
            ):
                break
            old = self._is_old(batch, now_ms)
            if old and (partition.in_flight or now < partition.dead_at or batch.unanswered):
                # Once it is appended the leader may forget us, and would then append what is still on its way: what was
                # lost, and what may get lost together with this one.
                if not partition.in_flight:
                    self._hold(partition, batch, now)
                break
            self._send(partition, batch)
            old_in_flight |= old
        if partition.answered and partition.in_flight:
            partition.answered = False
            self._gather(partition, now_ms)

    def _hold(self, partition: Partition, batch: Batch, now: float) -> None:
        """Nothing is sent before all that is on its way is dead; the batch is then looked for once more."""
        if now < partition.dead_at:
            reason = "a request whose answer was lost may still arrive"
            self._pause(partition, reason, at_least_s=partition.dead_at - now)
            return
        batch.move(State.IN_DOUBT)
        partition.doubtful = True
        partition.flow = Flow.SETTLING
        partition.rested = True
        self._touch(partition)
