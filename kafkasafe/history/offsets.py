"""Offsets that are looked up never go backwards without a proof (KIP-207, from the client's side).

After a leader change, the new leader may briefly know a lower high watermark than its predecessor. The end offset that
it then returns is too low, and correct a moment later (answers 10, 0 and 10 again were measured). Brokers since 2.2
refuse to answer until their high watermark has caught up (OFFSET_NOT_AVAILABLE, 78; older clients get 5). Older brokers
give no such sign.

So `EndOffsets` remembers the highest answer and *holds* a lower one: the remembered value stays valid. Only a proof
lowers it:

- the leader's epochs: OffsetForLeaderEpoch, asked for the epoch of the highest answer, returns an end offset below that
  answer. Then the log has lost those records; if the leader has a newer epoch, by an unclean election. If the end
  offset is at or after the highest answer, the log still has the records, and the lower answer came too early.
- another topic id: the topic was recreated.

Without epochs (old brokers), a lost record and an early answer look the same. There, a lower answer that has repeated
for `hold_timeout_s` is reported as unproven, and the caller decides which value to believe (`EndOffsets.accept`).

The same holds for the start of a log. Its proof is the end offset of the epoch of its first record. If that is below
the remembered start, the log has lost that record, and the records that it now has before it are new. If not, this
leader has merely not yet deleted records that its predecessor had deleted.

Topic ids have no order. An id that was never seen before is taken for a newer topic, but it may be an older one:

1. Topic A is observed. It is deleted and created again as B, and soon after that as C.
2. A broker with new metadata names C: C replaces A.
3. A broker with older metadata names B: B seems to replace C.
4. From then on every broker names C. If C stayed a deleted topic, all its answers would be held for ever.

So a deleted topic is the present one again if answers have named it for `FORMER_TOPIC_S`, and none has named another
topic in between. Metadata of that age from one broker only are possible as well. Then the same rule restores the
present topic later; until then, its answers are held.

One method per kind of answer: `EndOffsets.observe` (latest), `observe_start` (earliest), `observe_timestamp`.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Final

from kafkasafe.history.sealed import SealError, seal, unseal

__all__ = [
    "BaselineFormatError",
    "EndOffsets",
    "Held",
    "HeldReason",
    "Isolation",
    "Key",
    "Proof",
    "Regressed",
    "RegressedReason",
    "Result",
    "Unproven",
    "Value",
]

UNDEFINED: Final = -1

LEADER_NOT_AVAILABLE: Final = 5
OFFSET_NOT_AVAILABLE: Final = 78

MAX_TIMESTAMPS: Final = 64
"""Look-ups by timestamp remembered per key."""
MAX_FORMER_IDS: Final = 16
"""Ids of deleted topics remembered per key."""
FORMER_TOPIC_S: Final = 30.0
"""How long answers must name a topic that counts as deleted, and no other one, before it counts as present, seconds."""


class BaselineFormatError(ValueError):
    """A stored baseline cannot be read: damaged, or of a newer version."""


class Isolation(enum.IntEnum):
    """Which offset counts as the end: the high watermark, or the last stable offset. Kafka's numbers."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


@dataclass(frozen=True, slots=True)
class Key:
    """A partition and an isolation level: each pair has its own end offset."""

    topic: str
    partition: int
    isolation: Isolation = Isolation.READ_UNCOMMITTED


class HeldReason(enum.Enum):
    """Why an answer is held, or why the broker gave none."""

    OFFSET_NOT_AVAILABLE = "offset_not_available"
    """Error 78: the new leader is catching up. Ask it again; new metadata would not help."""
    LEADER_NOT_AVAILABLE = "leader_not_available"
    """Error 5: the same, if the broker or the client predates KIP-207; or an election is in progress."""
    LOWER = "lower"
    """The answer is lower than before, and it is unknown whether the log lost records. A request for `Held.ask_epoch`
    decides it.
    """
    CATCHING_UP = "catching_up"
    """The answer is lower than before, although the leader has the records."""
    NOT_DELETED = "not_deleted"
    """The start is lower than before: this leader has not yet deleted records that its predecessor had deleted."""
    FORMER_LEADER = "former_leader"
    """A leader with an older epoch gave the answer, which is therefore outdated."""
    FORMER_TOPIC = "former_topic"
    """The answer is about a deleted topic of this name."""
    NOT_FOUND = "not_found"
    """An earlier look-up found a record with such a timestamp, and nothing shows that the log lost it. A look-up of the
    earliest offset may show that (`EndOffsets.observe_start`)."""


class RegressedReason(enum.Enum):
    """Why an offset is lower than before."""

    TRUNCATED = "truncated"
    """The leader's log became shorter, under the same leader epoch or an unknown one."""
    UNCLEAN_ELECTION = "unclean_election"
    """A leader under a newer epoch never had the records."""
    RECREATED = "recreated"
    """The topic was deleted and created again."""
    ACCEPTED = "accepted"
    """Not proven: the caller decided an unproven case."""


@dataclass(frozen=True, slots=True)
class Proof:
    """The cluster's evidence for a lower offset.

    Attributes:
        requested_epoch: Epoch that was asked about.
        reply_epoch: Largest epoch of the leader not above it.
        end_offset: Where `reply_epoch` ends in the leader's log; the log lost the records from here on.
        leader_epoch: The leader's own epoch, -1 when not known.
        old_topic_id: Topic id before.
        topic_id: Topic id now.
    """

    requested_epoch: int = UNDEFINED
    reply_epoch: int = UNDEFINED
    end_offset: int = UNDEFINED
    leader_epoch: int = UNDEFINED
    old_topic_id: bytes | None = None
    topic_id: bytes | None = None


@dataclass(frozen=True, slots=True)
class Value:
    """An accepted answer.

    Attributes:
        offset: None: no record has this timestamp or a later one (look-ups by timestamp only).
        leader_epoch: Leader epoch of the answer, -1 when it had none.
        recreated: The topic was recreated since the last answer (its end happens not to be lower).
        previous: Where the deleted topic began, if `recreated` and this answer is a start; may be above `offset`.
    """

    offset: int | None
    leader_epoch: int = UNDEFINED
    recreated: bool = False
    previous: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Held:
    """An answer that is not accepted yet; `offset` stays valid. Ask again.

    Attributes:
        offset: The remembered value; None before the first accepted answer.
        answered: The offset in the answer; None when the broker returned none.
        reason: The reason.
        since_s: For how long answers have been held, seconds.
        ask_epoch: An OffsetForLeaderEpoch request for this epoch shows whether the log lost records. Pass the response
            to `EndOffsets.prove`, for a start to `EndOffsets.prove_start`. None: such a request cannot help.
        refresh_metadata: The leader may have changed.
        leader_epoch: Leader epoch of the record at `offset`, -1 when not known (look-ups by timestamp only).
        timestamp_ms: Timestamp of the record at `offset`, -1 when not known (look-ups by timestamp only).
    """

    offset: int | None
    answered: int | None
    reason: HeldReason
    since_s: float = 0.0
    ask_epoch: int | None = None
    refresh_metadata: bool = False
    leader_epoch: int = UNDEFINED
    timestamp_ms: int = -1


@dataclass(frozen=True, slots=True)
class Regressed:
    """The offset went back, with the reason.

    Attributes:
        offset: The new value.
        previous: The value before.
        reason: For an end: what happened to the records from `offset` to `previous` − 1. For a start: what happened to
            the log that began at `previous`.
        proof: The evidence; None when `reason` is ACCEPTED.
    """

    offset: int
    previous: int
    reason: RegressedReason
    proof: Proof | None


@dataclass(frozen=True, slots=True)
class Unproven:
    """A lower answer that persists, on a broker without epochs: the broker is slow to catch up, or lost records.

    The remembered value stays valid until the caller calls `EndOffsets.accept`, for a start `EndOffsets.accept_start`.

    Attributes:
        offset: The remembered value.
        answered: The last answer.
        since_s: For how long answers have been lower, seconds.
    """

    offset: int
    answered: int
    since_s: float


Result = Value | Held | Regressed | Unproven


@dataclass(frozen=True, slots=True)
class _Record:
    """The result of a look-up by timestamp."""

    offset: int
    leader_epoch: int
    timestamp_ms: int


@dataclass(slots=True)
class _Lower:
    """Answers that were lower than the remembered one, and are not accepted.

    Attributes:
        since: Time of the first of them; None when none is held.
        answered: The last of them; -1 when none is held.
    """

    since: float | None = None
    answered: int = -1

    def hold(self, offset: int, now: float) -> float:
        """Note a lower answer. Return for how long answers have been lower, seconds."""
        self.answered = offset
        return self.age_s(now)

    def age_s(self, now: float) -> float:
        """Return for how long answers have been lower, seconds."""
        if self.since is None:
            self.since = now
        return max(0.0, now - self.since)

    def release(self) -> None:
        """An answer was accepted."""
        self.since, self.answered = None, -1


@dataclass(slots=True)
class _Known:
    """The remembered answers for one key.

    Attributes:
        end: Highest end offset; -1 before the first answer.
        end_epoch: Leader epoch of the answer that gave `end`.
        newest_epoch: Highest leader epoch of any answer; at or above `end_epoch`.
        start: Highest earliest offset; -1 before the first answer.
        start_epoch: Leader epoch of the record at `start`, -1 when not known.
        start_before: `start` of the deleted topic, until the new topic's start is observed; else -1.
        lower_ends: Held answers about the end.
        lower_starts: Held answers about the start.
        found: Timestamp → the first record at or after it.
        former_ids: Ids of deleted topics of this name.
        former_named: The deleted topic that the last answers have named; None if the last answer has named another one.
        former_since: Time of the first of these answers.
        recreated: The topic was recreated, and no end offset of the new one was observed yet.
        end_before: `end` of the deleted topic, while `recreated` is set.
    """

    end: int = -1
    end_epoch: int = UNDEFINED
    newest_epoch: int = UNDEFINED
    topic_id: bytes | None = None
    start: int = -1
    start_epoch: int = UNDEFINED
    start_before: int = -1
    lower_ends: _Lower = field(default_factory=_Lower)
    lower_starts: _Lower = field(default_factory=_Lower)
    found: OrderedDict[int, _Record] = field(default_factory=OrderedDict)
    former_ids: list[bytes] = field(default_factory=list)
    former_named: bytes | None = None
    former_since: float = 0.0
    recreated: Proof | None = None
    end_before: int = -1

    # --- the end ---

    def see_epoch(self, leader_epoch: int) -> None:
        """Note the leader epoch of an answer."""
        self.newest_epoch = max(self.newest_epoch, leader_epoch)

    def raise_end(self, offset: int, leader_epoch: int) -> None:
        """Note an end offset that is not lower than the one before."""
        self.end, self.end_epoch = offset, leader_epoch
        self.lower_ends.release()

    def begin_end(self, offset: int, leader_epoch: int) -> int:
        """Note the first end offset of a recreated topic. Return the end offset of the deleted topic."""
        previous, self.recreated = self.end_before, None
        self.end, self.end_epoch, self.newest_epoch = offset, leader_epoch, leader_epoch
        return previous

    def lower_end(self, offset: int, proof: Proof | None) -> int:
        """Replace the end by this lower offset. Return the former end."""
        previous = self.end
        self.end, self.end_epoch = offset, self.newest_epoch
        # The new log may have grown past the offset at which it diverged from the old one.
        self._cut(offset if proof is None else proof.end_offset)
        self.lower_ends.release()
        return previous

    # --- the start ---

    def raise_start(self, offset: int, leader_epoch: int) -> int:
        """Note a start that is not lower than the one before. Return the start of the deleted topic if it is still
        needed, or -1.
        """
        previous, self.start_before = self.start_before, -1
        if offset > self.start or leader_epoch >= 0:
            self.start_epoch = leader_epoch
        self.start = offset
        self.lower_starts.release()
        return previous

    def lower_start(self, proof: Proof | None) -> int:
        """Replace the start by the lower one that was held back. Return the former start."""
        previous, offset = self.start, self.lower_starts.answered
        if proof is not None:
            self._cut(proof.end_offset)
        self.start, self.start_epoch = offset, UNDEFINED
        self.lower_starts.release()
        return previous

    # --- all answers ---

    def note_found(self, timestamp_ms: int, record: _Record) -> None:
        """Note the result of a look-up by timestamp."""
        self.found[timestamp_ms] = record
        self.found.move_to_end(timestamp_ms)
        while len(self.found) > MAX_TIMESTAMPS:
            self.found.popitem(last=False)

    def _cut(self, offset: int) -> None:
        """Drop remembered answers at or after this offset: the log has other records there now."""
        if self.start > offset:
            self.start, self.start_epoch = -1, UNDEFINED
            self.lower_starts.release()
        for timestamp in [timestamp for timestamp, record in self.found.items() if record.offset >= offset]:
            del self.found[timestamp]

    def is_former(self, topic_id: bytes | None, now: float) -> bool:
        """Note which topic an answer names. Return whether it is a deleted topic of this name."""
        if topic_id is None:
            return False
        if topic_id not in self.former_ids:
            self.former_named = None
            return False
        if topic_id != self.former_named:
            self.former_named, self.former_since = topic_id, now
        if now - self.former_since < FORMER_TOPIC_S:
            return True
        self.former_ids.remove(topic_id)
        self.former_named = None
        return False

    def identify(self, topic_id: bytes | None) -> bool:
        """Note the topic id. Return whether it changed, which voids all remembered answers."""
        if topic_id is None or topic_id == self.topic_id:
            return False
        old, self.topic_id = self.topic_id, topic_id
        if old is None:
            return False
        self.former_ids = [*self.former_ids[1 - MAX_FORMER_IDS :], old]
        # Keep the old end: the next end offset is compared with it, even if another look-up noticed the change.
        self.end_before = max(self.end, self.end_before) if self.recreated else self.end
        self.recreated = Proof(old_topic_id=old, topic_id=topic_id)
        self.start_before = max(self.start, self.start_before)
        self.end, self.start, self.start_epoch = -1, -1, UNDEFINED
        self.end_epoch = self.newest_epoch = UNDEFINED
        self.found.clear()
        self.lower_ends.release()
        self.lower_starts.release()
        return True


class EndOffsets:
    """Remembers answers and judges new ones. Pure: the time is an argument. Not thread-safe."""

    def __init__(self, *, hold_timeout_s: float = 30.0) -> None:
        """Start without remembered answers.

        Args:
            hold_timeout_s: How long a lower answer without epochs is held before it is reported as unproven.
        """
        self._hold_timeout_s = hold_timeout_s
        self._known: dict[Key, _Known] = {}

    def end_offset(self, key: Key) -> int | None:
        """The remembered end offset; None before the first answer."""
        known = self._known.get(key)
        return None if known is None else _or_none(known.end)

    def forget(self, key: Key) -> None:
        """Drop all answers for a key; for a partition that the caller no longer follows."""
        self._known.pop(key, None)

    # --- latest ---

    def observe(
        self,
        key: Key,
        offset: int,
        now: float,
        *,
        leader_epoch: int = UNDEFINED,
        topic_id: bytes | None = None,
    ) -> Result:
        """Judge an answer to a look-up of the latest offset (or a high watermark from another source).

        Args:
            key: The partition.
            offset: The offset in the answer.
            now: The time in seconds, by a monotonic clock.
            leader_epoch: The answer's, -1 when it has none.
            topic_id: Id of the topic that was asked, None when not known.

        Returns:
            Value: `offset` is the end. Held: the answer is not accepted; the remembered value stays valid. Regressed:
            the topic was recreated, and its end is lower. Unproven: answers have been lower for `hold_timeout_s`, and
            epochs cannot decide the case.

        Raises:
            ValueError: `offset` is negative.
        """
        if offset < 0:
            raise ValueError(f"an end offset cannot be {offset}")
        known = self._of(key)
        if known.is_former(topic_id, now):
            return Held(_or_none(known.end), offset, HeldReason.FORMER_TOPIC, refresh_metadata=True)
        known.identify(topic_id)
        if (proof := known.recreated) is not None:
            previous = known.begin_end(offset, leader_epoch)
            if offset < previous:
                return Regressed(offset, previous, RegressedReason.RECREATED, proof)
            return Value(offset, leader_epoch, recreated=True)
        if UNDEFINED < leader_epoch < known.newest_epoch:
            # Hold even a higher answer: that leader is deposed, and an unclean election may have truncated its records.
            return Held(_or_none(known.end), offset, HeldReason.FORMER_LEADER, refresh_metadata=True)
        known.see_epoch(leader_epoch)
        if offset >= known.end:
            known.raise_end(offset, leader_epoch)
            return Value(offset, leader_epoch)
        return self._hold(known, offset, now, leader_epoch)

    def unavailable(self, key: Key, code: int, now: float) -> Held:
        """Judge a refused look-up: the leader is not ready (78 or 5). Ask again.

        Raises:
            ValueError: The code means something else.
        """
        known = self._known.get(key, _Known())
        since_s = 0.0 if known.lower_ends.since is None else max(0.0, now - known.lower_ends.since)
        end = _or_none(known.end)
        if code == OFFSET_NOT_AVAILABLE:
            return Held(end, None, HeldReason.OFFSET_NOT_AVAILABLE, since_s)
        if code == LEADER_NOT_AVAILABLE:
            return Held(end, None, HeldReason.LEADER_NOT_AVAILABLE, since_s, refresh_metadata=True)
        raise ValueError(f"error code {code} does not say that an offset is not available yet")

    def _hold(self, known: _Known, offset: int, now: float, leader_epoch: int) -> Result:
        since_s = known.lower_ends.hold(offset, now)
        # A broker whose answer has no epoch cannot answer requests about epochs either.
        ask = known.end_epoch if known.end_epoch >= 0 and leader_epoch >= 0 else None
        if ask is None and since_s >= self._hold_timeout_s:
            return Unproven(known.end, offset, since_s)
        return Held(known.end, offset, HeldReason.LOWER, since_s, ask)

    def prove(
        self,
        key: Key,
        requested_epoch: int,
        reply_epoch: int,
        end_offset: int,
        now: float,
        *,
        leader_epoch: int = UNDEFINED,
    ) -> Result:
        """Judge the leader's response to OffsetForLeaderEpoch for `Held.ask_epoch`.

        Args:
            key: The partition.
            requested_epoch: The epoch that was asked about.
            reply_epoch: `leader_epoch` of the response.
            end_offset: `end_offset` of the response.
            now: The time in seconds, by a monotonic clock.
            leader_epoch: The answering leader's own epoch (the request's current leader epoch).

        Returns:
            Regressed: the log lost records. Held: the log lost none, or the response does not show it. Value: no answer
            is held.
        """
        known = self._of(key)
        if known.lower_ends.since is None:
            return Value(_or_none(known.end), known.end_epoch)
        since_s = known.lower_ends.age_s(now)
        if UNDEFINED < leader_epoch < known.newest_epoch:
            return Held(
                known.end,
                known.lower_ends.answered,
                HeldReason.FORMER_LEADER,
                since_s,
                known.end_epoch,
                refresh_metadata=True,
            )
        if requested_epoch != known.end_epoch or end_offset < 0 or not 0 <= reply_epoch <= requested_epoch:
            # The response is about another epoch, or undefined, which does not prove a loss.
            return Held(known.end, known.lower_ends.answered, HeldReason.LOWER, since_s, known.end_epoch)
        if end_offset >= known.end:
            return Held(
                known.end, known.lower_ends.answered, HeldReason.CATCHING_UP, since_s, known.end_epoch
            )
        known.see_epoch(leader_epoch)
        reason = (
            RegressedReason.UNCLEAN_ELECTION
            if known.newest_epoch > known.end_epoch
            else RegressedReason.TRUNCATED
        )
        proof = Proof(requested_epoch, reply_epoch, end_offset, known.newest_epoch)
        # The held answer may be too low as well: give up only the records that the proof shows to be lost.
        return self._lower(known, max(known.lower_ends.answered, end_offset), reason, proof)

    def accept(self, key: Key) -> Regressed | None:
        """Accept the lower answer that is held back. If nothing is proven, the caller decides whether to do this.

        Returns:
            None when no answer is held.
        """
        known = self._of(key)
        return (
            None
            if known.lower_ends.since is None
            else self._lower(known, known.lower_ends.answered, RegressedReason.ACCEPTED, None)
        )

    def _lower(self, known: _Known, offset: int, reason: RegressedReason, proof: Proof | None) -> Regressed:
        previous = known.lower_end(offset, proof)
        return Regressed(offset, previous, reason, proof)

    # --- earliest ---

    def observe_start(
        self,
        key: Key,
        offset: int,
        now: float = 0.0,
        *,
        leader_epoch: int = UNDEFINED,
        topic_id: bytes | None = None,
    ) -> Result:
        """Judge an answer to a look-up of the earliest offset.

        Each replica applies retention on its own, so a new leader's log may begin earlier than its predecessor's.
        The highest start stays valid as long as the log is the same.

        Args:
            key: The partition.
            offset: The offset in the answer.
            now: The time in seconds, by a monotonic clock.
            leader_epoch: Leader epoch of the answer: that of the first record. -1 when it has none.
            topic_id: Id of the topic that was asked, None when not known.

        Returns:
            Value: `offset` is the start; that of a recreated topic may be lower. Held: the answer is lower than before,
            or about a deleted topic. Unproven: answers have been lower for `hold_timeout_s`, and nothing can prove
            whether the log is the same.

        Raises:
            ValueError: `offset` is negative.
        """
        if offset < 0:
            raise ValueError(f"a start offset cannot be {offset}")
        known = self._of(key)
        if known.is_former(topic_id, now):
            return Held(_or_none(known.start), offset, HeldReason.FORMER_TOPIC, refresh_metadata=True)
        recreated = known.identify(topic_id)
        if offset < known.start:
            since_s = known.lower_starts.hold(offset, now)
            return self._hold_start(known, since_s, HeldReason.LOWER, _or_none(known.start_epoch))
        previous = known.raise_start(offset, leader_epoch)
        return Value(offset, leader_epoch, recreated=recreated or previous >= 0, previous=_or_none(previous))

    def prove_start(
        self,
        key: Key,
        requested_epoch: int,
        reply_epoch: int,
        end_offset: int,
        now: float = 0.0,
        *,
        leader_epoch: int = UNDEFINED,
    ) -> Result:
        """Judge the leader's response to OffsetForLeaderEpoch for the `Held.ask_epoch` of a start.

        Args:
            key: The partition.
            requested_epoch: The epoch that was asked about.
            reply_epoch: `leader_epoch` of the response, -1 where the broker does not return it.
            end_offset: `end_offset` of the response.
            now: The time in seconds, by a monotonic clock.
            leader_epoch: The answering leader's own epoch (the request's current leader epoch).

        Returns:
            Regressed: the log is another one. Held: the log is the same, or the response does not decide. Unproven: see
            `observe_start`. Value: no answer is held.
        """
        known = self._of(key)
        if known.lower_starts.since is None:
            return Value(_or_none(known.start), known.start_epoch)
        since_s = known.lower_starts.age_s(now)
        if UNDEFINED < leader_epoch < known.newest_epoch:
            return Held(
                known.start,
                known.lower_starts.answered,
                HeldReason.FORMER_LEADER,
                since_s,
                refresh_metadata=True,
            )
        if requested_epoch != known.start_epoch or end_offset < 0 or not 0 <= reply_epoch <= requested_epoch:
            return self._hold_start(known, since_s, HeldReason.LOWER, None)
        if end_offset >= known.start:
            if known.topic_id is not None:
                return Held(known.start, known.lower_starts.answered, HeldReason.NOT_DELETED, since_s)
            # Without topic ids, the topic may have been recreated: its epochs then count from 0 again.
            return self._hold_start(known, since_s, HeldReason.NOT_DELETED, None)
        newest = max(known.newest_epoch, known.start_epoch)
        reason = RegressedReason.UNCLEAN_ELECTION if leader_epoch > newest else RegressedReason.TRUNCATED
        return self._lower_start(known, reason, Proof(requested_epoch, reply_epoch, end_offset, leader_epoch))

    def accept_start(self, key: Key) -> Regressed | None:
        """Accept the lower start that is held back. If nothing is proven, the caller decides whether to do this.

        Unlike an end, a start that is too low does no harm: the leader has the records from there on. But if the log is
        another one, the former start hides records.

        Returns:
            None when no answer is held.
        """
        known = self._of(key)
        return (
            None
            if known.lower_starts.since is None
            else self._lower_start(known, RegressedReason.ACCEPTED, None)
        )

    def _hold_start(
        self, known: _Known, since_s: float, reason: HeldReason, ask_epoch: int | None
    ) -> Held | Unproven:
        if ask_epoch is None and since_s >= self._hold_timeout_s:
            return Unproven(known.start, known.lower_starts.answered, since_s)
        return Held(known.start, known.lower_starts.answered, reason, since_s, ask_epoch)

    @staticmethod
    def _lower_start(known: _Known, reason: RegressedReason, proof: Proof | None) -> Regressed:
        previous = known.lower_start(proof)
        return Regressed(known.start, previous, reason, proof)

    # --- by timestamp ---

    def observe_timestamp(
        self,
        key: Key,
        timestamp_ms: int,
        offset: int | None,
        now: float = 0.0,
        *,
        topic_id: bytes | None = None,
        leader_epoch: int = UNDEFINED,
        found_timestamp_ms: int = -1,
    ) -> Value | Held:
        """Judge an answer to a look-up by timestamp.

        Args:
            key: The partition.
            timestamp_ms: The requested timestamp.
            offset: First record at or after it; None if the broker found no such record (Kafka's -1).
            now: The time in seconds, by a monotonic clock.
            topic_id: Id of the topic that was asked, None when not known.
            leader_epoch: Leader epoch of the record that was found, -1 when not known.
            found_timestamp_ms: Timestamp of the record that was found, -1 when not known.

        Returns:
            Held if an earlier look-up found a record that this one does not find and retention cannot have removed, or
            if the answer is about a deleted topic.

        Raises:
            ValueError: `offset` is negative.
        """
        if offset is not None and offset < 0:
            raise ValueError(f"offset {offset}: a look-up that finds nothing is given as None")
        known = self._of(key)
        if known.is_former(topic_id, now):
            return _held(known.found.get(timestamp_ms), offset, HeldReason.FORMER_TOPIC)
        recreated = known.identify(topic_id)
        before = known.found.get(timestamp_ms)
        if offset is None:
            if before is not None and before.offset >= known.start:
                return _held(before, None, HeldReason.NOT_FOUND)
            return Value(None, recreated=recreated)
        known.note_found(timestamp_ms, _Record(offset, leader_epoch, found_timestamp_ms))
        return Value(offset, leader_epoch, recreated=recreated)

    # --- what all of them do ---

    def _of(self, key: Key) -> _Known:
        return self._known.setdefault(key, _Known())

    # --- as text ---

    def encode(self) -> str:
        """The remembered answers as JSON, for the next incarnation of the process. Held answers are not included."""
        rows = [
            {
                "topic": key.topic,
                "partition": key.partition,
                "isolation": int(key.isolation),
                "end": known.end,
                "end_epoch": known.end_epoch,
                "newest_epoch": known.newest_epoch,
                "start": known.start,
                "start_epoch": known.start_epoch,
                "topic_id": None if known.topic_id is None else known.topic_id.hex(),
                "former_ids": [former.hex() for former in known.former_ids],
            }
            for key, known in self._known.items()
        ]
        return seal(_KIND, _VERSION, rows)

    def restore(self, text: str) -> None:
        """Restore the text of `encode`; replaces the answers for the same partitions.

        Raises:
            BaselineFormatError: The text has another format, is damaged, or is of a newer version. Nothing was changed.
        """
        try:
            rows = unseal(_KIND, _VERSION, text)
        except SealError as error:
            raise BaselineFormatError(str(error)) from None
        self._known.update([_read(row) for row in rows])


_KIND: Final = "end offsets"
_VERSION: Final = 1


def _or_none(offset: int) -> int | None:
    return offset if offset >= 0 else None


def _held(record: _Record | None, answered: int | None, reason: HeldReason) -> Held:
    refresh = reason is HeldReason.FORMER_TOPIC
    if record is None:
        return Held(None, answered, reason, refresh_metadata=refresh)
    return Held(
        record.offset,
        answered,
        reason,
        refresh_metadata=refresh,
        leader_epoch=record.leader_epoch,
        timestamp_ms=record.timestamp_ms,
    )


def _read(row: Any) -> tuple[Key, _Known]:
    try:
        key = Key(row["topic"], _whole(row["partition"], 0), Isolation(row["isolation"]))
        known = _Known(
            end=_whole(row["end"], -1),
            end_epoch=_whole(row["end_epoch"], -1),
            newest_epoch=_whole(row["newest_epoch"], -1),
            topic_id=None if row["topic_id"] is None else bytes.fromhex(row["topic_id"]),
            start=_whole(row["start"], -1),
            # Files of older versions do not have it.
            start_epoch=_whole(row.get("start_epoch", UNDEFINED), UNDEFINED),
            former_ids=[bytes.fromhex(former) for former in row["former_ids"]],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise BaselineFormatError(f"malformed row: {type(error).__name__} {error} in {row!r}") from None
    if not isinstance(key.topic, str):
        raise BaselineFormatError(f"malformed row: the topic of {row!r} is not text")
    return key, known


def _whole(number: Any, least: int) -> int:
    if type(number) is not int or number < least:
        raise ValueError(f"{number!r} is not a whole number from {least}")
    return number
