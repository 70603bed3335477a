"""The protocols of KIP-279 between a follower and a leader, with their round trips and bytes.

No client uses these protocols: `kafkasafe lineage` compares them.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kafkasafe.history.epochs.lineage import UNDEFINED, Lineage
from kafkasafe.history.epochs.walk import (
    EPOCH_BYTES,
    ERROR_BYTES,
    OFFSET_BYTES,
    PARTITION_BYTES,
    ReplyKind,
    Step,
)

# --- the leader's side ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reply:
    """A leader's answer: an epoch and its end. Either can be `UNDEFINED`; `kind` says what the answer means."""

    epoch: int
    end_offset: int
    kind: ReplyKind = ReplyKind.END


_UNDEFINED: Final = Reply(UNDEFINED, UNDEFINED, ReplyKind.UNDEFINED)
_UNKNOWN: Final = Reply(UNDEFINED, UNDEFINED, ReplyKind.UNKNOWN)


class Leader:
    """Simulates a leader with this history, by the rules of each protocol."""

    __slots__ = ("_log",)

    def __init__(self, history: Lineage) -> None:
        self._log = history

    def kip279(self, epoch: int) -> Reply:
        """The largest epoch not above `epoch`, and its end.

        If all of the leader's epochs are newer, the answer is `UNDEFINED` and the start of the leader's first epoch. If
        the leader has no epochs, the answer is `UNDEFINED` twice.
        """
        index = self._log.floor(epoch)
        if index is not None:
            return Reply(self._log.entries[index][0], self._log.end_of(index))
        return Reply(UNDEFINED, self._log.start_offset) if self._log.entries else _UNDEFINED

    def kip101(self, epoch: int) -> Reply:
        """The answer before KIP-279: the start offset of the next newer epoch. The answer names no epoch.

        For the leader's newest epoch, the answer is the log end. For an epoch that is newer or older than all of the
        leader's epochs, the answer is `UNDEFINED` (Kafka 1.1, LeaderEpochFileCache.endOffsetFor).
        """
        entries = self._log.entries
        index = self._log.floor(epoch)
        if not entries or index is None or epoch > entries[-1][0]:
            return _UNDEFINED
        return Reply(epoch, self._log.end_of(index))

    def alternative1(self, epoch: int) -> Reply:
        """The end of `epoch`; UNKNOWN if the leader has other epochs only, UNDEFINED if the leader has no epochs."""
        if not self._log.entries:
            return _UNDEFINED
        index = self._log.floor(epoch)
        if index is None or self._log.entries[index][0] != epoch:
            return _UNKNOWN
        return Reply(epoch, self._log.end_of(index))

    def alternative2(self, sequence: Sequence[tuple[int, int]]) -> Reply:
        """Returns the newest epoch that is both in `sequence` (newest epoch first) and in the leader's log. If the
        epoch ends at different offsets there, returns the lower end offset.
        """
        for epoch, end in sequence:
            reply = self.alternative1(epoch)
            if reply.kind is ReplyKind.END:
                return Reply(epoch, min(end, reply.end_offset))
        return _UNKNOWN if self._log.entries else _UNDEFINED

    def live(self, epoch: int) -> Reply:
        """The answer of brokers since 2.1 to OffsetForLeaderEpoch.

        It differs from KIP-279 in two cases. For an epoch newer than all of the leader's epochs, the answer is
        "undefined". For an epoch older than all of the leader's epochs, the answer is the start of the log.
        """
        entries = self._log.entries
        if not entries or epoch < 0 or epoch > entries[-1][0]:
            return _UNDEFINED
        reply = self.kip279(epoch)
        return reply if reply.epoch != UNDEFINED else Reply(epoch, reply.end_offset)


# --- the four protocols ---------------------------------------------------------------------------------------------


class Strategy(enum.Enum):
    """The protocols of KIP-279 between a follower and a leader: the accepted protocol and its alternatives."""

    KIP279 = "kip279"
    """The accepted protocol: the response contains an end offset, and the epoch that ends there."""
    ALTERNATIVE1 = "alt1"
    """The leader returns an error for an epoch that it does not have; the follower asks about the next older epoch."""
    ALTERNATIVE2 = "alt2"
    """The follower sends a sequence of epochs and their ends; the leader answers with the first epoch of the sequence
    that is in the leader's log.
    """
    CLEAN_ONLY = "clean"
    """One request, about the epoch of the follower's high watermark. Correct only if all elections were clean."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of one run of a protocol, and the number of bytes.

    Attributes:
        truncate_to: First differing offset, to which the follower would truncate its log. If the logs do not differ,
            the end offset of the follower's log.
        request_bytes: Bytes of the partition in all requests, counted as in KIP-279.
        response_bytes: Bytes of the partition in all responses, counted as in KIP-279.
    """

    strategy: Strategy
    truncate_to: int
    request_bytes: int
    response_bytes: int
    steps: tuple[Step, ...]

    @property
    def round_trips(self) -> int:
        """Number of answered requests."""
        return len(self.steps)


def compare(
    strategy: Strategy,
    ours: Lineage,
    theirs: Lineage,
    high_watermark: int | None = None,
    *,
    lengths: Sequence[int] = (),
) -> Comparison:
    """Run one protocol, from the first request to the result.

    Args:
        strategy: The protocol.
        ours: The follower's history; all epochs defined.
        theirs: The leader's history.
        high_watermark: The follower's high watermark. The follower truncates to the high watermark when the leader
            knows none of the follower's epochs. In Alternative 2, the first sequence goes back to the high watermark.
            None: the high watermark is not known, and the follower keeps only records that the leader certainly has.
            `CLEAN_ONLY` needs a value.
        lengths: Numbers of epochs that Alternative 2 sends in the first round, in the second round, and so on. Each
            number must be larger than the previous number. After these rounds, Alternative 2 doubles the number of
            epochs in each round. Empty: `_first_width` gives the first length.

    Raises:
        ValueError: `CLEAN_ONLY` without a high watermark, a length below 1, or a length that is not larger than the
            previous length.
    """
    if strategy is Strategy.CLEAN_ONLY and high_watermark is None:
        raise ValueError(
            "the clean-only protocol asks about the epoch of the high watermark, which is not given"
        )
    if any(after <= before for before, after in itertools.pairwise((0, *lengths))):
        raise ValueError(f"lengths of the sequence must increase from 1 or more, not {list(lengths)}")
    leader = Leader(theirs)
    steps: list[Step] = []
    requests = responses = 0
    fallback = min(ours.start_offset if high_watermark is None else high_watermark, ours.end_offset)
    index: int | None = len(ours.entries) - 1
    if strategy is Strategy.CLEAN_ONLY:
        # Ask about the epoch of the last record below the high watermark, if there is such a record.
        index = max((at for at, (_, start) in enumerate(ours.entries) if start < fallback), default=None)
    if not ours.entries or index is None:
        return Comparison(strategy, fallback, 0, 0, ())
    width = 1
    if strategy is Strategy.ALTERNATIVE2:
        width = min(lengths[0] if lengths else _first_width(ours, high_watermark), len(ours.entries))
    while index is not None:
        request = tuple((ours.entries[at][0], ours.end_of(at)) for at in range(index, index - width, -1))
        requests += _request_bytes(strategy, width)
        responses += _RESPONSE_BYTES[strategy]
        if strategy is Strategy.KIP279:
            reply = leader.kip279(request[0][0])
            cut, following = _follow_kip279(ours, reply, fallback, high_watermark)
        elif strategy is Strategy.ALTERNATIVE1:
            reply = leader.alternative1(request[0][0])
            cut, following = _follow_alternative1(ours, index, reply, fallback)
        elif strategy is Strategy.CLEAN_ONLY:
            reply = leader.kip101(request[0][0])
            cut, following = _follow_clean_only(ours, index, reply, fallback), None
        else:
            reply = leader.alternative2(request)
            longer = lengths[len(steps) + 1] if len(steps) + 1 < len(lengths) else 2 * width
            cut, width = _follow_alternative2(ours, width, longer, reply, fallback)
            following = index if width else None
        steps.append(Step(request, reply.epoch, reply.end_offset, cut, reply.kind))
        index = following
    return Comparison(strategy, cut, requests, responses, tuple(steps))


# KIP-279 counts 32 additional bits for the epoch in the response of its accepted protocol. For Alternative 2, KIP-279
# counts 64 additional bits in the request with one pair, and 160 bits with two pairs. A pair has 96 bits. So the
# request has pairs in place of one epoch (32 bits), and has no length field.
_RESPONSE_BYTES: Final = {
    Strategy.KIP279: ERROR_BYTES + PARTITION_BYTES + EPOCH_BYTES + OFFSET_BYTES,
    Strategy.ALTERNATIVE1: ERROR_BYTES + PARTITION_BYTES + OFFSET_BYTES,
    Strategy.ALTERNATIVE2: ERROR_BYTES + PARTITION_BYTES + OFFSET_BYTES,
    Strategy.CLEAN_ONLY: ERROR_BYTES + PARTITION_BYTES + OFFSET_BYTES,
}


def _request_bytes(strategy: Strategy, pairs: int) -> int:
    if strategy is Strategy.ALTERNATIVE2:
        return PARTITION_BYTES + pairs * (EPOCH_BYTES + OFFSET_BYTES)
    return PARTITION_BYTES + EPOCH_BYTES


def _follow_kip279(
    ours: Lineage, reply: Reply, fallback: int, high_watermark: int | None
) -> tuple[int, int | None]:
    """The offset to which the follower truncates, and the index of the next entry to ask about."""
    if reply.kind is not ReplyKind.END:
        return fallback, None
    if reply.epoch == UNDEFINED:
        # Every epoch of the leader is newer than the requested epoch. So the leader's log has none of the follower's
        # records from the start of the leader's first epoch on.
        cut = min(reply.end_offset, ours.end_offset)
        return (cut if high_watermark is None else min(cut, high_watermark)), None
    at = ours.floor(reply.epoch)
    if at is None:
        return min(reply.end_offset, ours.start_offset), None
    if ours.entries[at][0] == reply.epoch:
        return min(reply.end_offset, ours.end_of(at)), None
    return ours.end_of(at), at


def _follow_alternative1(ours: Lineage, index: int, reply: Reply, fallback: int) -> tuple[int, int | None]:
    if reply.kind is ReplyKind.END:
        return min(reply.end_offset, ours.end_of(index)), None
    if not index or reply.kind is ReplyKind.UNDEFINED:
        return fallback, None
    return ours.end_of(index - 1), index - 1


def _follow_clean_only(ours: Lineage, index: int, reply: Reply, fallback: int) -> int:
    """The offset to which the follower truncates: drop all newer epochs, and the records of this epoch that the leader
    does not have.
    """
    if reply.kind is not ReplyKind.END:
        return fallback
    return min(reply.end_offset, ours.end_of(index))


def _first_width(ours: Lineage, high_watermark: int | None) -> int:
    """How many epochs the first sequence has; KIP-279 leaves this to tuning.

    The sequence begins with the newest epoch and goes back to the epoch at the high watermark, or to the first gap
    between epoch numbers. After a gap, the follower does not know the leaders in between; clean elections leave no
    gaps. If the high watermark is None, the sequence has at most two epochs. After clean elections, two epochs are
    enough.
    """
    entries, width = ours.entries, 1
    while width < len(entries):
        older, newer = entries[-width - 1], entries[-width]
        if older[0] + 1 != newer[0] or (width >= 2 if high_watermark is None else newer[1] < high_watermark):
            break
        width += 1
    return width


def _follow_alternative2(
    ours: Lineage, width: int, longer: int, reply: Reply, fallback: int
) -> tuple[int, int]:
    """The offset to which the follower truncates, and how many epochs to send next (0: finished)."""
    if reply.kind is ReplyKind.END:
        return reply.end_offset, 0
    if width == len(ours.entries) or reply.kind is ReplyKind.UNDEFINED:
        return fallback, 0
    cut = ours.entries[-width][1]
    return cut, min(longer, len(ours.entries))
