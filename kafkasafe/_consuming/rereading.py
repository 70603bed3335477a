"""What a consumer reads again: partitions whose atomic batches were dropped, or that others had meanwhile.

kafka-python's consumer keeps its position of a partition that it has before and after a rebalance.

1. Records 0 to 9 are read, and are in an atomic batch with the offset 10.
2. The group goes to its next generation, and refuses that batch: it is dropped.
3. The consumer is at 10 still. Its next batch would move the group past records that are in no output.

So a partition of which a batch was dropped is read again from the group's offset; and after each rebalance that offset
is compared with what this consumer's own batches have made of it (`kafkasafe._core.readings`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import kafka.errors as kafka_errors
from kafka.structs import TopicPartition

from kafkasafe._core.readings import NONE, Claim, Fate, Readings
from kafkasafe._io.readings import NUMBERS
from kafkasafe.errors import BatchDroppedError
from kafkasafe.events import PositionRewound

__all__ = ["Rereading"]

_REREAD: Final = (
    "An atomic batch with offsets of this consumer was dropped, or its partitions were other members' meanwhile: what"
    " it has handed out since is read again. Throw away what is collected, and go on with poll()"
)


class Rereading:
    """Of one consumer. On the thread that polls.

    Args:
        subscription: kafka-python's.
        coordinator: kafka-python's.
        emit: Takes events.
    """

    def __init__(self, subscription: Any, coordinator: Any, emit: Callable[[Any], None]) -> None:
        self._subscription = subscription
        self._coordinator = coordinator
        self._emit = emit
        self._readings: Readings[TopicPartition] = Readings(NUMBERS)
        self._states: dict[TopicPartition, Any] = {}
        """Of the readings: another state stands for another assignment."""
        self._restart: set[TopicPartition] = set()
        self._held: set[TopicPartition] = set()
        self._generation: Any = None
        self._stale = False
        """The program may hold records that come again, and was not told so."""

    @property
    def holds(self) -> bool:
        """Whether a partition waits for a batch that is not decided."""
        return bool(self._held)

    def draw(self) -> int:
        """A number for readings that begin. Before the group is asked for its offsets."""
        return self._readings.draw()

    def begin(self, tp: TopicPartition, number: int, offset: int | None) -> None:
        """Its position is taken from the group.

        Args:
            tp: Which.
            number: From `draw`.
            offset: The group's; None: it has none.
        """
        state = self._subscription.assignment.get(tp)
        if state is not None:
            self._readings.begin(tp, number, NONE if offset is None else offset)
            self._states[tp] = state

    def moved(self, tp: TopicPartition) -> None:
        """The application has chosen a position: what comes goes on from nothing that was read."""
        state = self._subscription.assignment.get(tp)
        if state is not None:
            self._restart.discard(tp)
            self._release(tp, state)
            self._readings.begin(tp, self._readings.draw(), None)
            self._states[tp] = state

    def settle(self, timeout_ms: float | None) -> None:
        """Before anything is fetched: partitions that are to be read again have no position after it, or are held.

        Args:
            timeout_ms: How long the group may take to say its offsets; None: `request_timeout_ms`.
        """
        if not self._readings.used:
            self._note_generation()
            return
        assigned = self._look()
        due = set(self._readings.look(assigned)) | (self._restart & assigned.keys())
        compared = []
        for tp in due:
            state = assigned[tp]
            if self._readings.waits(tp):
                # Also once more after a rebalance: kafka-python takes the mark away.
                state.mark_pending_revocation(True)
                self._held.add(tp)
            elif tp in self._restart or self._run(tp).broken:
                self._again(tp, state, "dropped")
            else:
                state.mark_pending_revocation(True)
                self._held.add(tp)
                compared.append(tp)
        if not compared:
            return
        try:
            committed = self._coordinator.fetch_committed_offsets(set(compared), timeout_ms=timeout_ms)
        except kafka_errors.KafkaTimeoutError:
            return
        current = self._look()
        for tp in compared:
            if current.get(tp) is not assigned[tp]:
                continue
            found = committed.get(tp)
            if self._readings.goes_on(tp, NONE if found is None else found.offset):
                self._release(tp, assigned[tp])
            else:
                # The offset is asked for once more, for the reading that begins.
                self._again(tp, assigned[tp], "rebalanced")

    def offer(
        self, fate: Callable[[], Fate], positions: Mapping[TopicPartition, Any]
    ) -> tuple[dict[TopicPartition, Any], dict[TopicPartition, Any], list[Claim]]:
        """A batch is about to move the group.

        Args:
            fate: What becomes of the batch. From any thread.
            positions: Up to where records were handed out.

        Returns:
            The positions that moved, and of which readings they are, by partition; and the batch's claims.

        Raises:
            BatchDroppedError: What was handed out, and is in no batch, comes again.
        """
        self._readings.used = True
        assigned = self._look()
        moved = {}
        for tp, position in positions.items():
            state = assigned.get(tp)
            if state is None:
                continue
            if self._readings.get(tp) is None:
                self._readings.begin(tp, self._readings.draw(), None)
                self._states[tp] = state
            if self._run(tp).handed != position.offset:
                moved[tp] = position
        due = self._restart.union(self._readings.look(assigned)).intersection(moved)
        if due or self._stale:
            # All of it: the batch that the program has collected is thrown away as a whole.
            self._stale = False
            self._restart.update(moved)
            raise BatchDroppedError(_REREAD)
        claims = []
        readings = {}
        for tp, position in moved.items():
            run = self._run(tp)
            readings[tp] = run.reading
            claims.append(claim := Claim(position.offset, fate))
            run.claim(claim)
        return moved, readings, claims

    def _look(self) -> dict[TopicPartition, Any]:
        """What is assigned; readings of what is not any more end."""
        with self._subscription._lock:
            assigned = dict(self._subscription.assignment)
        for tp in [tp for tp, state in self._states.items() if assigned.get(tp) is not state]:
            self._end(tp)
        self._note_generation()
        return assigned

    def _note_generation(self) -> None:
        generation = self._coordinator._generation
        made = generation.generation_id, generation.member_id
        if made != self._generation:
            if self._generation is not None:
                self._readings.suspect()
            self._generation = made

    def _run(self, tp: TopicPartition) -> Any:
        run = self._readings.get(tp)
        if run is None:  # pragma: no cover - those that are asked for have one
            raise RuntimeError(f"nothing of {tp} is read")
        return run

    def _again(self, tp: TopicPartition, state: Any, reason: Any) -> None:
        """As if it had just been assigned: its position is the group's offset."""
        position = None if state.position is None else int(state.position.offset)
        consumed = self._subscription.all_consumed_offsets().get(tp)
        is_told = tp in self._restart
        if not is_told and position is not None:
            self._stale |= consumed is None or consumed.offset != self._run(tp).handed
        with self._subscription._lock:
            if self._subscription.assignment.get(tp) is not state:
                return
            fresh = type(state)()
            if state.paused:
                fresh.pause()
            self._subscription.assignment[tp] = fresh
        self._end(tp)
        self._emit(PositionRewound(tp.topic, tp.partition, reason, position))

    def _end(self, tp: TopicPartition) -> None:
        self._readings.end(tp)
        self._states.pop(tp, None)
        self._restart.discard(tp)
        self._held.discard(tp)

    def _release(self, tp: TopicPartition, state: Any) -> None:
        if tp in self._held:
            self._held.discard(tp)
            state.mark_pending_revocation(False)
