"""Prevents looked-up offsets from decreasing without a proven reason (the client's side of KIP-207).

After a leader change, the new leader may briefly have a lower high watermark than its predecessor, and return an end
offset that is too low (measured: 10, then 0, then 10 again). Brokers since 2.2 refuse to answer until their high
watermark has caught up (OFFSET_NOT_AVAILABLE, 78; older clients get 5). Older brokers return the low offset.

So `EndOffsets` remembers the highest answer and *holds* a lower answer, which means that the remembered value stays
valid. Only a proof lowers the remembered value:

- the leader's epochs: if an OffsetForLeaderEpoch request for the epoch of the remembered offset returns an end offset
  below the remembered offset, the log has lost the records between the two offsets. If the leader has a newer epoch,
  the cause is an unclean election. If the requested epoch ends at or after the remembered offset, the log still has the
  records, and the leader had answered before its high watermark had caught up.
- another topic id: the topic was recreated.

Without epochs (old brokers), nothing shows whether records are lost or the leader has not caught up yet. If a lower
answer without epochs is repeated for `hold_timeout_s`, `EndOffsets` reports the answer as unproven, and the caller
decides which value to believe (`EndOffsets.accept`).

The same rule applies to the start of a log. To prove a lower start, the caller asks the leader for the end of one
epoch: the leader epoch of the record at the remembered start. If this epoch ends below the remembered start, the log
has lost the record at the remembered start: another log has replaced the log, and its start counts. Otherwise, the log
is the same, and the leader still has records that its predecessor had already deleted.

Topic ids have no order. `EndOffsets` assumes that an unknown id belongs to a newer topic, but it may belong to an older
topic:

1. The topic has the id A. The topic is deleted and created again with id B, and soon again with id C.
2. A broker with new metadata answers with id C: C replaces A.
3. A broker with older metadata answers with id B: B seems to replace C.
4. All later answers have id C. If C still counted as deleted, `EndOffsets` would hold all answers for ever.

So a topic that counts as deleted counts as existing again if all answers have had its id for
`remembered_offsets.FORMER_TOPIC_S` seconds. If only a broker with older metadata answers during this time, a deleted
topic wrongly counts as existing. Later, the same rule restores the topic that really exists.

One method per kind of answer: `EndOffsets.observe` (latest), `observe_start` (earliest), `observe_timestamp`.
"""

from __future__ import annotations

from typing import Final

from kafkasafe.codes.numbers import LEADER_NOT_AVAILABLE, OFFSET_NOT_AVAILABLE
from kafkasafe.history.offset_answers import (
    UNDEFINED,
    Held,
    HeldReason,
    Key,
    Proof,
    Regressed,
    RegressedReason,
    Result,
    Unproven,
    Value,
)
from kafkasafe.history.remembered_offsets import (
    BaselineFormatError,
    FoundRecord,
    RememberedOffsets,
    read_row,
    row_of,
)
from kafkasafe.history.sealed import SealError, seal, unseal


class EndOffsets:
    """Remembers answers and judges new ones. Pure: the time is an argument. Not thread-safe."""

    def __init__(self, *, hold_timeout_s: float = 30.0) -> None:
        """Start without remembered answers.

        Args:
            hold_timeout_s: How many seconds a lower answer without epochs is held before it is reported as unproven.
        """
        self._hold_timeout_s = hold_timeout_s
        self._known: dict[Key, RememberedOffsets] = {}

    def end_offset(self, key: Key) -> int | None:
        """The remembered end offset; None before the first answer."""
        known = self._known.get(key)
        return None if known is None else _or_none(known.end)

    def forget(self, key: Key) -> None:
        """Drop all answers for a key, because the caller no longer follows the partition."""
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
        """Judge an answer to a look-up of the latest offset, or a high watermark from another source.

        Args:
            key: The partition.
            offset: The offset in the answer.
            now: The time in seconds, by a monotonic clock.
            leader_epoch: Leader epoch of the answer, -1 when the answer has none.
            topic_id: Id of the topic that was asked about, None when not known.

        Returns:
            `Value`: `offset` is the end. `Held`: the answer is not accepted yet, and the remembered value stays valid.
            `Regressed`: the topic was recreated, and the new topic's end is lower. `Unproven`: for `hold_timeout_s`
            seconds, all answers were lower than the remembered value, and there are no epochs to prove the reason.

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
            # Hold even a higher answer of a former leader, because an unclean election may have truncated this leader's
            # records.
            return Held(_or_none(known.end), offset, HeldReason.FORMER_LEADER, refresh_metadata=True)
        known.see_epoch(leader_epoch)
        if offset >= known.end:
            known.raise_end(offset, leader_epoch)
            return Value(offset, leader_epoch)
        return self._hold(known, offset, now, leader_epoch)

    def unavailable(self, key: Key, code: int, now: float) -> Held:
        """Judge a look-up that the leader refused because it is not ready (error code 78 or 5). The caller asks again.

        Raises:
            ValueError: The code means something else.
        """
        known = self._known.get(key, RememberedOffsets())
        since_s = 0.0 if known.lower_ends.since is None else max(0.0, now - known.lower_ends.since)
        end = _or_none(known.end)
        if code == OFFSET_NOT_AVAILABLE:
            return Held(end, None, HeldReason.OFFSET_NOT_AVAILABLE, since_s)
        if code == LEADER_NOT_AVAILABLE:
            return Held(end, None, HeldReason.LEADER_NOT_AVAILABLE, since_s, refresh_metadata=True)
        raise ValueError(f"error code {code} does not say that an offset is not available yet")

    def _hold(self, known: RememberedOffsets, offset: int, now: float, leader_epoch: int) -> Result:
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
            requested_epoch: The epoch in the request.
            reply_epoch: `leader_epoch` of the response, -1 if the broker does not return this field.
            end_offset: `end_offset` of the response.
            now: The time in seconds, by a monotonic clock.
            leader_epoch: Epoch of the leader that answered: the `current_leader_epoch` of the request.

        Returns:
            `Regressed`: the log lost records. `Held`: the log lost no records, or the response does not show whether
            the log lost records. `Value`: no answer is held.
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
        if _proves_nothing(known.end_epoch, requested_epoch, reply_epoch, end_offset):
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
        # The held answer may be too low. Records before `end_offset` are not lost, because the log certainly has them.
        return self._lower(known, max(known.lower_ends.answered, end_offset), reason, proof)

    def accept(self, key: Key) -> Regressed | None:
        """Accept the held lower answer. Without a proof, the caller decides whether to accept the answer.

        Returns:
            None when no answer is held.
        """
        known = self._of(key)
        return (
            None
            if known.lower_ends.since is None
            else self._lower(known, known.lower_ends.answered, RegressedReason.ACCEPTED, None)
        )

    def _lower(
        self, known: RememberedOffsets, offset: int, reason: RegressedReason, proof: Proof | None
    ) -> Regressed:
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

        Each replica applies retention on its own, so a new leader's log may begin earlier than its predecessor's log.
        The highest start stays valid until another log replaces the log.

        Args:
            key: The partition.
            offset: The offset in the answer.
            now: The time in seconds, by a monotonic clock.
            leader_epoch: Leader epoch of the answer (the epoch of the first record), -1 when the answer has none.
            topic_id: Id of the topic that was asked about, None when not known.

        Returns:
            `Value`: `offset` is the start; the start of a recreated topic may be lower than before. `Held`: the answer
            is not accepted yet, because it is lower than before or about a deleted topic. `Unproven`: for
            `hold_timeout_s` seconds, all answers were lower than the remembered value, and nothing shows whether the
            log is still the same log.

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
        """Judge the leader's response to OffsetForLeaderEpoch for the `Held.ask_epoch` of `observe_start`.

        The arguments are those of `prove`.

        Returns:
            `Regressed`: another log has replaced the log. `Held`: the log is the same log, or the response does not
            show whether the log is the same. `Unproven`: see `observe_start`. `Value`: no answer is held.
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
        if _proves_nothing(known.start_epoch, requested_epoch, reply_epoch, end_offset):
            return self._hold_start(known, since_s, HeldReason.LOWER, None)
        if end_offset >= known.start:
            if known.topic_id is not None:
                return Held(known.start, known.lower_starts.answered, HeldReason.NOT_DELETED, since_s)
            # Without topic ids, the answer proves nothing: the topic may have been recreated unnoticed, and the new
            # topic's epochs begin at 0 again.
            return self._hold_start(known, since_s, HeldReason.NOT_DELETED, None)
        newest = max(known.newest_epoch, known.start_epoch)
        reason = RegressedReason.UNCLEAN_ELECTION if leader_epoch > newest else RegressedReason.TRUNCATED
        return self._lower_start(known, reason, Proof(requested_epoch, reply_epoch, end_offset, leader_epoch))

    def accept_start(self, key: Key) -> Regressed | None:
        """Accept the held lower start. Without a proof, the caller decides whether to accept the start.

        Unlike an end that is too low, a start that is too low hides no records. But if another log has replaced the
        log, keeping the higher start of the former log would hide records.

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
        self, known: RememberedOffsets, since_s: float, reason: HeldReason, ask_epoch: int | None
    ) -> Held | Unproven:
        if ask_epoch is None and since_s >= self._hold_timeout_s:
            return Unproven(known.start, known.lower_starts.answered, since_s)
        return Held(known.start, known.lower_starts.answered, reason, since_s, ask_epoch)

    @staticmethod
    def _lower_start(known: RememberedOffsets, reason: RegressedReason, proof: Proof | None) -> Regressed:
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
            offset: Offset of the first record at or after `timestamp_ms`; None if the broker found no such record
                (Kafka's -1).
            now: The time in seconds, by a monotonic clock.
            topic_id: Id of the topic that was asked about, None when not known.
            leader_epoch: Leader epoch of the record that was found, -1 when not known.
            found_timestamp_ms: Timestamp of the record that was found, -1 when not known.

        Returns:
            `Held` if the answer is about a deleted topic, or if this look-up finds no record although an earlier
            look-up found a record that retention cannot have removed. Otherwise `Value`.

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
        known.note_found(timestamp_ms, FoundRecord(offset, leader_epoch, found_timestamp_ms))
        return Value(offset, leader_epoch, recreated=recreated)

    # --- what all of them do ---

    def _of(self, key: Key) -> RememberedOffsets:
        return self._known.setdefault(key, RememberedOffsets())

    # --- as text ---

    def encode(self) -> str:
        """The remembered answers as JSON, for the next run of the program. Held answers are not included."""
        rows = [row_of(key, known) for key, known in self._known.items()]
        return seal(_KIND, _VERSION, rows)

    def restore(self, text: str) -> None:
        """Restore answers from a text that `encode` returned. The restored answers replace the present answers for the
        same partitions.

        Raises:
            BaselineFormatError: The text has another format, is damaged, or is of a newer version. Nothing was changed.
        """
        try:
            rows = unseal(_KIND, _VERSION, text)
        except SealError as error:
            raise BaselineFormatError(str(error)) from None
        self._known.update([read_row(row) for row in rows])


_KIND: Final = "end offsets"
_VERSION: Final = 1


def _proves_nothing(remembered_epoch: int, requested_epoch: int, reply_epoch: int, end_offset: int) -> bool:
    """Whether a response has no epoch, or answers a request about another epoch than the remembered epoch."""
    return requested_epoch != remembered_epoch or end_offset < 0 or not 0 <= reply_epoch <= requested_epoch


def _or_none(offset: int) -> int | None:
    return offset if offset >= 0 else None


def _held(record: FoundRecord | None, answered: int | None, reason: HeldReason) -> Held:
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
