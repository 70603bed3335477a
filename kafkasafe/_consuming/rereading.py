"""Read partitions again if an atomic batch with their offsets was dropped, or if another group member owned the
partitions for a while.

If a consumer keeps a partition in a rebalance, kafka-python also keeps the partition's position. This can lose records:

1. A program reads records 0 to 9, and puts the results into an atomic batch that commits offset 10.
2. The group begins its next generation and refuses the batch, so the producer drops the batch.
3. The consumer's position is still 10. The next batch would move the group's offset past records 0 to 9, whose results
   are in no output.

So if a batch is dropped, the consumer reads the batch's partitions again from the group's offset. After each rebalance,
the consumer compares the group's offset with the offset that its own atomic batches have set
(`kafkasafe.delivery.readings`).

If a program closes its producer, a batch may be left in the spool, undecided. The consumer cannot wait for the batch,
because perhaps no producer ever delivers the batch. So the consumer goes back to the group's offset. The batch may be
committed afterwards:

1. A batch with records 0 to 9 is left in the spool. The consumer goes back to the group's offset, 0.
2. A second producer delivers the batch, so the group's offset is 10. The second producer is closed, too.
3. The consumer has returned records 0 to 9 again, and the program adds them to a batch of a third producer. Each
   producer compares its own batches with each other (`ReadingOrder.is_superseded`), but the third producer does not
   know of the first batch. So records 0 to 9 would be in the output twice.

So after the consumer has gone back to the group's offset, `send_offsets` requests the group's offset again before it
accepts the next batch. If the group's offset has changed, `send_offsets` refuses the batch. When `send_offsets`
requests the offset, all earlier producers of the lane have ended. If the group's offset has not changed, `send_offsets`
accepts the batch. If this batch is rejected later, the first batch, which was left in the spool, may still be
committed. So before the following batch, `send_offsets` requests the offset once more (`ReadingRun.is_unused`). These
rules apply to the batches of one lane. `other_lanes` is about batches in several lanes.

Without atomic batches, the group's offset alone decides where the consumer continues in a partition that is assigned to
it again. If the group's offset is lower than the consumer's former position, `Rereading.resumed` only emits an event.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

import kafka.errors as kafka_errors
from kafka.structs import TopicPartition

from kafkasafe._consuming.commits import Commits
from kafkasafe._consuming.other_lanes import OtherLanes, Way
from kafkasafe._consuming.partition import PlaceLeft
from kafkasafe._consuming.parts import AssignedPartitions
from kafkasafe._consuming.ports import Assignments, AssignmentState, Group
from kafkasafe.delivery.process_readings import NUMBERS
from kafkasafe.delivery.readings import NONE, Carrier, OffsetClaim, OffsetsFate, ProducerLane, Readings
from kafkasafe.errors import BatchDroppedError
from kafkasafe.events import PositionRewound

_REREAD: Final = (
    "An atomic batch with offsets of this consumer was dropped, or other members had its partitions meanwhile: the"
    " records that this consumer has returned since then will be read again. Discard the collected records, and go on"
    " with poll()"
)

_METADATA_BYTES: Final = 256
"""Maximum length of an offset's metadata in an atomic batch: enough for the id of the topic and about 40 leader epochs.
The length is limited, because each atomic batch in the spool contains the metadata. And if a broker refuses the
metadata, it refuses the whole batch.
"""


class Rereading:
    """Decides which partitions of one consumer are read again. Only the thread that polls uses this object. A *reading*
    is one run of the consumer through a partition (see `kafkasafe.delivery.readings`).

    Args:
        rewound: Called when a partition's position moves back. The called function must discard the records that were
            fetched before the call.
        timeout_ms: How long `offer` may wait for the group's offsets.
    """

    def __init__(
        self,
        assignments: Assignments,
        group: Group,
        parts: AssignedPartitions,
        commits: Commits,
        emit: Callable[[Any], None],
        rewound: Callable[[], None],
        timeout_ms: float,
    ) -> None:
        self._assignments = assignments
        self._group = group
        self._parts = parts
        self._commits = commits
        self._emit = emit
        self._rewound = rewound
        self._timeout_ms = timeout_ms
        self._readings: Readings[TopicPartition] = Readings(NUMBERS)
        self._other_lanes = OtherLanes(group, timeout_ms)
        self._states: dict[TopicPartition, AssignmentState] = {}
        """For each partition: kafka-python's state object at the time when the consumer began its present run through
        the partition (its reading). A new object means a new assignment.
        """
        self._restart: dict[TopicPartition, int] = {}
        """For each partition that must be read again: its position when `offer` raised BatchDroppedError."""
        self._held: set[TopicPartition] = set()
        self._informed: set[TopicPartition] = set()
        """Held partitions for which `offer` has raised BatchDroppedError. After this error, the program has discarded
        the records of these partitions.
        """
        self._asked: dict[frozenset[TopicPartition], int] = {}
        """For each unanswered request for the group's offsets, by the partitions of the request: the number that `draw`
        returned.
        """
        self._undecided: set[TopicPartition] = set()
        """Partitions whose group offset may still move: a batch from an earlier reading (run through the partition) is
        undecided, and another producer may deliver this batch.
        """
        self._generation: Any = None
        self._stale = False
        """Whether `offer` still has to raise an error, because the program may hold records that this or another
        consumer will read again.
        """

    @property
    def holds(self) -> bool:
        """Whether a partition waits for a batch that is not decided yet."""
        return bool(self._held)

    def draw(self, partitions: Collection[TopicPartition]) -> int:
        """Return a number for new readings (runs through a partition). The caller then requests the group's offsets.

        If a request is not answered in time, kafka-python keeps waiting for the answer. If the offsets of the same
        partitions are requested again, kafka-python sends no new request and uses the answer to the first request. In
        this case, `draw` returns the same number as for the first request.
        """
        asked = frozenset(partitions)
        if asked not in self._asked:
            self._asked[asked] = self._readings.draw()
        return self._asked[asked]

    def answered(self, partitions: Collection[TopicPartition]) -> None:
        """Note that the request for the offsets of these partitions has ended."""
        self._asked.pop(frozenset(partitions), None)

    def placed(self, tp: TopicPartition, offset: int) -> None:
        """Note a position that comes from a reset: the group has no committed offset, or the application chose the
        beginning or the end.
        """
        run = self._readings.get(tp)
        if run is not None and self._states.get(tp) is self._assignments.state(tp):
            run.place(offset)

    def unassigned(self) -> None:
        """End the readings (runs through a partition) of partitions that are no longer assigned. Called after `assign`
        and `unsubscribe`.
        """
        self._look()
        self._forget_requests()

    def handed_out_late(self) -> None:
        """Note that the program received records of a partition while a poll revoked the partition or moved its
        position back. These records will be read again.
        """
        self._stale = True

    def begin(self, tp: TopicPartition, number: int, offset: int | None) -> None:
        """Begin a reading (run through the partition) at the group's offset.

        Args:
            tp: The partition.
            number: A number from `draw`.
            offset: The group's offset; None if the group has no offset.
        """
        state = self._assignments.state(tp)
        if state is not None:
            self._readings.begin(tp, number, NONE if offset is None else offset)
            self._states[tp] = state

    def resumed(self, tp: TopicPartition, offset: int) -> None:
        """Emit an event if a partition that was assigned again has a lower position than before it was revoked.

        Args:
            tp: The partition.
            offset: The group's offset, from which the consumer reads now.
        """
        left = self.left(tp)
        if left is not None and offset < left.offset:
            self._emit(PositionRewound(tp.topic, tp.partition, "rebalanced", left.offset))

    def left(self, tp: TopicPartition) -> PlaceLeft | None:
        """For a partition that was revoked and assigned again: return and forget its position before the revocation.
        Return None if the partition had no position, or if the program uses `assign`.

        By calling `assign`, the program has chosen to begin at the group's offset or at a reset.
        """
        left = self._parts.take_left(tp)
        return left if self._assignments.is_subscribed() else None

    def moved(self, tp: TopicPartition) -> None:
        """Note that the application chose a position. Begin a new reading (run through the partition), unless the
        position is where the last accepted batch ends.
        """
        state = self._assignments.state(tp)
        if state is None:
            return
        self._restart.pop(tp, None)
        self._informed.discard(tp)
        self._release(tp, state)
        run = self._readings.get(tp) if self._states.get(tp) is state else None
        if run is not None and state.position is not None and run.accepted == state.position.offset:
            # The program has sought to the first record that is in no batch yet, as programs do after an error.
            # Continue the present reading instead of beginning a new one, because the reading knows its earlier
            # batches: if one of them is dropped, its records must be read again.
            run.step_back()
            return
        self._readings.begin(tp, self._readings.draw(), None)
        self._states[tp] = state

    def settle(self, timeout_ms: float | None) -> None:
        """Reset or hold the partitions that must be read again. Called before each fetch.

        Args:
            timeout_ms: Time-out of the request for the group's offsets; None: `request_timeout_ms`.
        """
        if not self._readings.used:
            self._note_generation()
            return
        assigned = self._look()
        due = set(self._readings.look(assigned)) | (self._restart.keys() & assigned.keys())
        compared = []
        for tp in due:
            state = assigned[tp]
            if self._readings.waits(tp):
                # kafka-python clears the mark at a rebalance, so set it again.
                state.mark_pending_revocation(True)
                self._held.add(tp)
                if tp in self._restart:
                    self._informed.add(tp)
            elif tp in self._restart or self._run(tp).broken:
                self._again(tp, state, "dropped")
            else:
                state.mark_pending_revocation(True)
                self._held.add(tp)
                compared.append(tp)
        if not compared:
            return
        self.draw(compared)
        try:
            committed = self._group.committed(set(compared), timeout_ms)
        except kafka_errors.KafkaTimeoutError:
            return
        except BaseException:
            self.answered(compared)
            raise
        self.answered(compared)
        current = self._look()
        for tp in compared:
            if current.get(tp) is not assigned[tp]:
                continue
            found = committed.get(tp)
            if self._readings.goes_on(tp, NONE if found is None else found.offset):
                self._release(tp, assigned[tp])
            else:
                # Start again at the group's offset, which is requested once more.
                self._again(tp, assigned[tp], "rebalanced")

    def offer(
        self, fate: Callable[[], OffsetsFate], lane: ProducerLane, metadata: Callable[[], Any]
    ) -> tuple[Any, ...]:
        """Return the data with which an atomic batch of this lane (one producer's log in the spool) can commit this
        consumer's offsets.

        The result has four items. Item 1 maps partitions to the positions to commit; a partition is left out if all of
        its returned records are in batches already. Item 2 is the group's metadata. Item 3 maps the partitions of item
        1 to their readings (runs through a partition). Item 4 is a list of claims. A claim states that this batch moves
        the group's offset of one partition to the position in item 1.

        Args:
            fate: Returns how far the batch has come. Any thread may call it.
            lane: The lane of the batch's producer.
            metadata: Returns the group's metadata.

        Raises:
            LogDivergedError: A partition waits for the application's decision (see `on_divergence`).
            BatchDroppedError: The consumer will again read records that it has returned but that are in no batch.
            UsageError: See `OtherLanes`.
            WaitTimeoutError: See `OtherLanes`.
        """
        if undecided := self._parts.undecided():
            raise self._parts.error(undecided)
        # Take the group's metadata before the positions. If the consumer loses its membership after this line, the
        # group refuses the offsets, because they carry the old generation.
        group = metadata()
        # If the application assigns the partitions itself (`assign`), the consumer is not a member.
        is_assigned = not self._assignments.is_subscribed()
        positions = self._assignments.committable()
        member = (int(group.generation_id), str(group.member_id)) if group.generation_id >= 0 else None
        carrier = Carrier(lane, member)
        self._readings.use()
        is_member = is_assigned or carrier.member is not None
        moved = self._moved(positions)
        refused = self._is_refused(moved, is_member=is_member)
        if moved and not refused:
            way = self._other_lanes.make_way(
                {tp: self._run(tp) for tp in moved}, carrier, str(group.group_id)
            )
            overtaken = None
            if way is not Way.LEFT_GROUP:
                overtaken = self._overtaken(moved, is_assigned=is_assigned)
            if way is not Way.WAS_FREE or overtaken is not None:
                moved = self._moved(positions)  # the assignment may have changed during a wait or a request
                refused = self._is_refused(moved, overtaken or (), is_member=is_member)
                refused |= way is Way.LEFT_GROUP
        if refused:
            # The program discards the whole refused batch, so all partitions of the batch must be read again.
            self._stale = False
            self._restart.update((tp, position.offset) for tp, position in moved.items())
            raise BatchDroppedError(_REREAD)
        claims = []
        readings = {}
        for tp, position in moved.items():
            run = self._run(tp)
            readings[tp] = run.reading
            claims.append(claim := OffsetClaim(position.offset, fate, carrier))
            run.claim(claim)
        # The offsets carry the topic id and the leader epochs that were read, as in a commit. If the topic is
        # recreated, the topic id and the epochs show the restarted program that the offset belongs to the former topic.
        return self._commits.described(moved, max_bytes=_METADATA_BYTES), group, readings, claims

    def _is_refused(
        self,
        moved: Collection[TopicPartition],
        overtaken: Collection[TopicPartition] = (),
        *,
        is_member: bool,
    ) -> bool:
        """Return whether this or another consumer will read records of the batch again."""
        due = {*self._restart, *self._readings.look(self._look()), *overtaken}
        # Kafka accepts offsets without a generation from any client, even while other members own the partitions.
        return not due.isdisjoint(moved) or self._stale or bool(moved and not is_member)

    def _moved(self, positions: Mapping[TopicPartition, Any]) -> dict[TopicPartition, Any]:
        assigned = self._look()
        moved = {}
        for tp, position in positions.items():
            state = assigned.get(tp)
            # A program may get records of a held partition even after the error: the asyncio consumer returns buffered
            # records.
            if state is None or (tp in self._informed and self._restart[tp] == position.offset):
                continue
            if self._readings.get(tp) is None:
                self._readings.begin(tp, self._readings.draw(), None)
                self._states[tp] = state
            if self._run(tp).handed != position.offset:
                moved[tp] = position
        return moved

    def _overtaken(
        self, moved: Collection[TopicPartition], *, is_assigned: bool
    ) -> Collection[TopicPartition] | None:
        """Find partitions in which a batch from an earlier reading may have moved the group's offset since the present
        reading (run through the partition) began.

        Return None, without a request to the group, if no such batch can have moved a group offset.

        Args:
            moved: The partitions of the batch.
            is_assigned: Whether the application assigns the partitions itself. A consumer with `assign` has no
                generation, so the group cannot refuse batches of earlier runs of the program.
        """
        asked = {
            tp: self._run(tp)
            for tp in moved
            if (is_assigned or tp in self._undecided) and self._run(tp).is_unused
        }
        if not asked:
            return None
        self._forget_requests()
        try:
            committed = self._group.committed(set(asked), self._timeout_ms)
        except kafka_errors.KafkaTimeoutError:
            return set(asked)
        overtaken = set()
        for tp, run in asked.items():
            now = self._readings.get(tp)
            found = NONE if tp not in committed else committed[tp].offset
            if now is None or now is not run or now.reached != found:
                overtaken.add(tp)
        return overtaken

    def _look(self) -> dict[TopicPartition, AssignmentState]:
        """Return the assignment. End the readings (runs through a partition) of revoked partitions."""
        assigned = self._assignments.assigned()
        for tp, state in [each for each in self._states.items() if assigned.get(each[0]) is not each[1]]:
            # If the program still holds records of a revoked partition, a consumer will read these records again.
            self._stale |= self._holds_records(tp, state)
            self._end(tp)
        self._note_generation()
        return assigned

    def _note_generation(self) -> None:
        made = self._group.generation()
        if made != self._generation:
            if self._generation is not None:
                self._readings.suspect()
                self._asked.clear()  # in a new generation, kafka-python sends a new request, too
            self._generation = made

    def _run(self, tp: TopicPartition) -> Any:
        run = self._readings.get(tp)
        if run is None:  # pragma: no cover - callers pass only partitions that the consumer reads
            raise RuntimeError(f"nothing of {tp} is read")
        return run

    def _again(self, tp: TopicPartition, state: AssignmentState, reason: Any) -> None:
        """Treat a partition as newly assigned. Its position is then set to the group's offset."""
        position = None if state.position is None else int(state.position.offset)
        self._stale |= self._holds_records(tp, state)
        if not self._assignments.renew(tp, state):
            return
        self._forget_requests()
        self._rewound()
        self._end(tp)
        # Clear the former position, so that `resumed` does not emit the event a second time.
        self._parts.renewed(tp)
        self._emit(PositionRewound(tp.topic, tp.partition, reason, position))

    def _forget_requests(self) -> None:
        """Ignore the answers to earlier requests, which may lack the offsets of the last batch."""
        self._group.forget_committed()
        self._asked.clear()

    def _holds_records(self, tp: TopicPartition, state: AssignmentState) -> bool:
        """Return whether the program may still have records of the partition that are in no batch. Records that the
        program has discarded after an error do not count.
        """
        if state.position is None:
            return False
        offset = int(state.position.offset)
        consumed = self._parts.consumed(tp, offset)
        if tp in self._restart:
            return consumed != self._restart[tp]
        return bool(self._run(tp).in_no_batch(consumed))

    def _end(self, tp: TopicPartition) -> None:
        run = self._readings.get(tp)
        undecided = [] if run is None else run.undecided
        if undecided:
            self._undecided.add(tp)
            self._other_lanes.ended(tp, undecided)
        self._readings.end(tp)
        self._states.pop(tp, None)
        self._restart.pop(tp, None)
        self._informed.discard(tp)
        self._held.discard(tp)

    def _release(self, tp: TopicPartition, state: AssignmentState) -> None:
        self._informed.discard(tp)
        if tp in self._held:
            self._held.discard(tp)
            state.mark_pending_revocation(False)
