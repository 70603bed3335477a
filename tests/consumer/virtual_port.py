"""What stands for kafka-python in tests of a consumer's decisions. mypy compares it with `kafkasafe._consuming.ports`."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import kafka.errors as kafka_errors
from kafka.structs import OffsetAndMetadata, TopicPartition

from kafkasafe._consuming.ports import Assignments, AssignmentState, Group, Leadership, Metadata
from kafkasafe.offsets import IsolationLevel


@dataclasses.dataclass(frozen=True)
class VirtualPort:
    """A port of these parts."""

    assignments: Assignments
    group: Group
    metadata: Metadata
    isolation: IsolationLevel = "read_uncommitted"

    def wake(self) -> None:
        """Do nothing: polls do not wait."""


# -- for seeded histories ----------------------------------------------------------------------------------------------


class Topic(Protocol):
    """A topic as the brokers know it now."""

    @property
    def id(self) -> bytes: ...
    def leader(self, tp: TopicPartition) -> tuple[int, int]:
        """The leader and its epoch."""


class VirtualMetadata:
    """kafka-python's metadata: what some moment of the past was, until they are refreshed.

    Args:
        truth: Returns the topic as it is; None if there is none.
        places: The partitions.
        has_epochs: Whether brokers report leader epochs and topic ids.
        later: Calls a function after so many seconds.
        rng: Draws how long a request takes.
    """

    def __init__(
        self,
        truth: Callable[[], Topic | None],
        places: Sequence[TopicPartition],
        *,
        has_epochs: bool,
        later: Callable[[float, Callable[[], None]], None],
        rng: random.Random,
    ) -> None:
        self._truth = truth
        self._places = places
        self._has_epochs = has_epochs
        self._later = later
        self._rng = rng
        self._seen: dict[TopicPartition, tuple[int, int]] = {}
        self._id: bytes | None = None
        self._due = False

    def request(self) -> None:
        if not self._due:
            self._due = True
            self._later(self._rng.choice([0.005, 0.05, 1.0]), self.refresh)

    def refresh(self) -> None:
        """Take what the brokers say now."""
        self._due = False
        found = self._truth()
        self._id = None if found is None or not self._has_epochs else found.id
        self._seen = {} if found is None else {tp: found.leader(tp) for tp in self._places}

    def leadership(self, tp: TopicPartition) -> Leadership | None:
        leader, epoch = self._seen.get(tp, (-1, -1))
        return None if leader < 0 else (self._id, leader, epoch if self._has_epochs else -1)

    def learn_leader(self, tp: TopicPartition, data: object) -> None:
        pass  # the fake's answers name no leader here

    def may_create(self, topic: str) -> bool:
        return True

    def is_connected(self) -> bool:
        return True


class VirtualGroup:
    """The committed offsets of a group, of which an answer may be lost."""

    def __init__(self) -> None:
        self.offsets: dict[TopicPartition, OffsetAndMetadata] = {}
        self.answers = True

    def committed(
        self, partitions: Collection[TopicPartition], timeout_ms: float | None
    ) -> Mapping[TopicPartition, OffsetAndMetadata]:
        if not self.answers:
            raise kafka_errors.KafkaTimeoutError
        return {tp: self.offsets[tp] for tp in partitions if tp in self.offsets}

    def forget_committed(self) -> None:
        pass  # no answer comes late

    def generation(self) -> tuple[int, str]:
        return 1, "me"

    def leave(self, reason: str, timeout_ms: float) -> None:
        raise AssertionError("there are no atomic batches")


PARTS: tuple[type[Group], type[Metadata]] = (VirtualGroup, VirtualMetadata)
"""So mypy compares them with the protocols."""


# -- for single decisions ----------------------------------------------------------------------------------------------


class State:
    """As kafka-python's, of one assignment."""

    def __init__(self) -> None:
        self.position: Any = None
        self.reset_strategy: Any = None
        self.highwater: int | None = None
        self.held = self.paused = False

    @property
    def awaiting_reset(self) -> bool:
        return self.reset_strategy is not None

    @property
    def awaiting_validation(self) -> bool:
        return self.held

    @property
    def has_valid_position(self) -> bool:
        return self.position is not None

    def is_missing_position(self) -> bool:
        return not self.has_valid_position and not self.awaiting_reset

    def is_reset_allowed(self) -> bool:
        return True

    def is_fetchable(self) -> bool:
        return self.position is not None and not self.held

    def mark_pending_revocation(self, val: bool = True) -> None:
        raise AssertionError("there are no atomic batches")

    def clear_preferred_read_replica(self) -> int | None:
        return None


class Client(VirtualGroup):
    """A partition, its group and its metadata. A test changes them as it likes."""

    def __init__(self, tp: TopicPartition, strategy: int, leader: Leadership) -> None:
        super().__init__()
        self.strategy = strategy
        self.states = {tp: State()}
        self.leader: Leadership | None = leader
        self.requests = 0

    def port(self) -> VirtualPort:
        return VirtualPort(self, self, self)

    def is_subscribed(self) -> bool:
        return True

    def assigned(self) -> dict[TopicPartition, AssignmentState]:
        return dict(self.states)

    def state(self, tp: TopicPartition) -> AssignmentState | None:
        return self.states.get(tp)

    def renew(self, tp: TopicPartition, state: AssignmentState) -> bool:
        raise AssertionError("there are no atomic batches")

    def place(self, tp: TopicPartition, offset: int, epoch: int = -1) -> None:
        state = self.states[tp]
        state.position, state.reset_strategy, state.held = OffsetAndMetadata(offset, "", epoch), None, False

    def reposition(self, state: Any, offset: int) -> None:
        state.position = OffsetAndMetadata(offset, "", -1)

    def hold(self, state: Any) -> None:
        state.held = True

    def release(self, state: Any) -> None:
        state.held = False

    def reset(self, tp: TopicPartition, strategy: int) -> None:
        state = self.states[tp]
        state.position, state.reset_strategy, state.held = None, strategy, False

    def reset_missing(self) -> None:
        for tp, state in self.states.items():
            if state.is_missing_position():
                self.reset(tp, self.strategy)

    def consumed(
        self, unhanded: Mapping[TopicPartition, int], is_allowed: Callable[[TopicPartition, int], bool]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        raise AssertionError("nothing is committed")

    def committable(self) -> dict[TopicPartition, OffsetAndMetadata]:
        raise AssertionError("nothing is committed")

    def leadership(self, tp: TopicPartition) -> Leadership | None:
        return self.leader

    def learn_leader(self, tp: TopicPartition, data: object) -> None:
        pass

    def request(self) -> None:
        self.requests += 1

    def may_create(self, topic: str) -> bool:
        return True

    def is_connected(self) -> bool:
        return True
