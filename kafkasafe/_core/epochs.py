"""Finds the first offset at which two logs differ, from leader epochs (KIP-101, KIP-279, KIP-320).

Each leader epoch has one leader, which appends in order. So a log is a sequence of runs, one per epoch. Two records
with the same epoch and offset are the same record, and everything before them is equal too (log matching). Hence the
first differing offset of two logs is where the *largest epoch that both have* ends first. All walks below search for
that epoch; they differ in what one request carries.

- `Lineage`: the history, epoch → first offset, of the records that a consumer read (or of a replica's log).
- `EpochWalk`: the sequence of OffsetForLeaderEpoch requests that a consumer sends to a live leader. A response whose
  end offset is at or past the position does **not** end the walk: the leader answers about its largest epoch not above
  the requested one. If that is a different epoch, the leader has lost records that the consumer read, even if its log
  is longer.
- `compare`: the protocols of KIP-279 between a follower and a leader, with their round trips and bytes.
- `BatchWalk`: without epochs, or where brokers do not report them, compares the CRCs of the batches that were read with
  the leader's, one batch at a time; `first_difference` compares all at once.

Offsets here: `*_end`, `end_offset` and `position` are exclusive, ranges of offsets `(first, last)` inclusive.
"""

from __future__ import annotations

import base64
import binascii
import enum
import itertools
import zlib
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Self

__all__ = [
    "LIVE_REQUEST_BYTES",
    "LIVE_RESPONSE_BYTES",
    "UNDEFINED",
    "BatchMark",
    "BatchMemory",
    "BatchWalk",
    "Comparison",
    "Diverged",
    "EpochWalk",
    "Leader",
    "Lineage",
    "LineageError",
    "Outcome",
    "Reply",
    "ReplyKind",
    "Same",
    "Step",
    "Strategy",
    "Unknown",
    "compare",
    "decode_topic_id",
    "first_difference",
]

UNDEFINED: Final = -1
"""Kafka's UNDEFINED_EPOCH and UNDEFINED_EPOCH_OFFSET. On its own it never proves a loss."""

MAX_EPOCH: Final = 2**31 - 1
MAX_OFFSET: Final = 2**63 - 1

DEFAULT_LIMIT: Final = 1024
METADATA_BYTES: Final = 2048
"""Half of the brokers' default limit for the metadata of a committed offset (`offset.metadata.max.bytes`, 4096)."""
MIN_METADATA_BYTES: Final = 64

# Bytes of one partition in a message; KIP-279 compares nothing else.
_PARTITION: Final = 4
_EPOCH: Final = 4
_OFFSET: Final = 8
_ERROR: Final = 2
LIVE_REQUEST_BYTES: Final = _PARTITION + 2 * _EPOCH
"""Of one partition in OffsetForLeaderEpoch v2 and later: partition, current leader epoch, epoch asked for."""
LIVE_RESPONSE_BYTES: Final = _ERROR + _PARTITION + _EPOCH + _OFFSET


class LineageError(ValueError):
    """The given data is not a history of a log.

    Once a subclass is defined, every `LineageError` is made as an instance of it. `kafkasafe.errors` defines the one
    that users catch: its other base class must not be imported here.
    """

    _raised: ClassVar[type[LineageError] | None] = None

    def __init_subclass__(cls) -> None:
        LineageError._raised = cls

    def __new__(cls, message: str) -> Self:
        """Make an instance of the registered subclass."""
        kind: Any = LineageError._raised or cls
        made: Self = super().__new__(kind, message)
        return made


# --- the history ----------------------------------------------------------------------------------------------------


class Lineage:
    """Leader epoch → first offset, for the part of a log that was read; in offset order.

    Bounded: beyond `limit` epochs, the oldest are dropped. Not thread-safe.

    Invariant: defined epochs increase strictly, start offsets never decrease, no start exceeds the end. `UNDEFINED`
    entries (records in a message format before 2) may occur between them, but never two in a row.
    """

    __slots__ = ("_end", "_epochs", "_limit", "_starts")

    def __init__(
        self, entries: Iterable[tuple[int, int]] = (), end: int | None = None, *, limit: int = DEFAULT_LIMIT
    ) -> None:
        """Start from a known history.

        Args:
            entries: (epoch, first offset), oldest first.
            end: Offset after the last record. None: the start of the newest epoch, which then holds no records.
            limit: How many epochs are kept.

        Raises:
            LineageError: The entries are out of order, outside Kafka's number ranges, or begin after the end.
        """
        if limit < 1:
            raise LineageError(f"a history of {limit} epochs holds nothing: limit must be 1 or more")
        self._limit = limit
        self._epochs: list[int] = []
        self._starts: list[int] = []
        newest = UNDEFINED
        for epoch, start in entries:
            _check("an epoch", epoch, UNDEFINED, MAX_EPOCH)
            _check(f"the start of epoch {epoch}", start, 0, MAX_OFFSET)
            if epoch == UNDEFINED:
                if self._epochs and self._epochs[-1] == UNDEFINED:
                    raise LineageError(f"two entries without an epoch follow each other (at offset {start})")
            elif epoch <= newest:
                raise LineageError(f"epoch {epoch} comes after epoch {newest}: epochs must increase")
            else:
                newest = epoch
            if self._starts and start < self._starts[-1]:
                raise LineageError(
                    f"epoch {epoch} starts at {start}, before epoch {self._epochs[-1]} at {self._starts[-1]}"
                )
            self._epochs.append(epoch)
            self._starts.append(start)
        if end is None:
            end = self._starts[-1] if self._starts else 0
        _check("the end", end, 0, MAX_OFFSET)
        if self._starts and end < self._starts[-1]:
            raise LineageError(
                f"the end {end} is before the start of epoch {self._epochs[-1]}, {self._starts[-1]}"
            )
        self._end = end
        self._shrink()

    @classmethod
    def resumed(cls, epoch: int, position: int) -> Lineage:
        """The history that a committed offset without metadata implies: the epoch of the record before it."""
        if position == 0 or epoch == UNDEFINED:
            return cls((), position)
        return cls([(epoch, position - 1)], position)

    @property
    def entries(self) -> tuple[tuple[int, int], ...]:
        """(epoch, first offset), oldest first."""
        return tuple(zip(self._epochs, self._starts, strict=True))

    @property
    def start_offset(self) -> int:
        """First offset that the history covers; `end_offset` when it is empty."""
        return self._starts[0] if self._starts else self._end

    @property
    def end_offset(self) -> int:
        """Offset after the last record that was read."""
        return self._end

    @property
    def newest_epoch(self) -> int:
        """The last defined epoch; `UNDEFINED` if no epoch is defined."""
        return next((epoch for epoch in reversed(self._epochs) if epoch != UNDEFINED), UNDEFINED)

    def observe(self, epoch: int, offset: int, next_offset: int | None = None) -> bool:
        """Note a batch (or record) that was read.

        Args:
            epoch: Its partition leader epoch, `UNDEFINED` when it has none.
            offset: Its first offset. Gaps are allowed: compaction, or a seek forward.
            next_offset: Offset after its last record; `offset + 1` when not given.

        Returns:
            False if the batch contradicts the history (a log's epochs never decrease, and an offset keeps its epoch),
            so it comes from another log. The history is then unchanged; begin a walk. Observing a batch twice has no
            further effect.

        Raises:
            LineageError: Not an epoch or offset, or `next_offset` is not greater than `offset`.
        """
        behind = offset + 1 if next_offset is None else next_offset
        # Fast path: taken for almost every batch.
        if self._epochs and epoch == self._epochs[-1] and behind > offset >= self._end:
            self._end = behind
            return True
        _check("an epoch", epoch, UNDEFINED, MAX_EPOCH)
        _check("an offset", offset, 0, MAX_OFFSET)
        _check("the offset behind the batch", behind, offset + 1, MAX_OFFSET)
        if not self._epochs or offset >= self._end:
            return self._append(epoch, offset, behind)
        return self._again(epoch, offset, behind)

    def _append(self, epoch: int, offset: int, behind: int) -> bool:
        newest = self.newest_epoch
        if epoch != UNDEFINED and epoch < newest:
            return False
        if epoch == newest and epoch != UNDEFINED:
            # Epochs never decrease: what had none in between had this one.
            del self._epochs[-1], self._starts[-1]
        else:
            self._epochs.append(epoch)
            self._starts.append(offset)
        self._end = behind
        self._shrink()
        return True

    def _again(self, epoch: int, offset: int, behind: int) -> bool:
        """A batch below the end."""
        at = bisect_right(self._starts, offset) - 1
        known = self._epochs[at] if at >= 0 else None
        following = self._epochs[at + 1] if at + 1 < len(self._epochs) else None
        if known == epoch:
            if following is None:
                self._end = max(self._end, behind)
        elif known is None:
            oldest = next((each for each in self._epochs if each != UNDEFINED), UNDEFINED)
            if epoch > oldest != UNDEFINED:
                return False
            if epoch == oldest != following:
                # Epochs never decrease: what had none in between had this one.
                del self._epochs[0], self._starts[0]
                following = epoch
            if epoch != following:
                self._epochs.insert(0, epoch)
                self._starts.insert(0, offset)
                self._shrink()
            else:
                self._starts[0] = offset
        elif UNDEFINED in {known, epoch}:
            pass  # nothing to compare with
        elif epoch == following and offset > self._starts[at]:
            # The recorded start was the epoch's first offset *seen*, after a gap. The epoch begins earlier.
            self._starts[at + 1] = offset
        else:
            return False
        return True

    def truncate(self, offset: int) -> None:
        """Drop the history from `offset` on: the position moved back, or the log was truncated there.

        This also drops an epoch that begins at the end of the log and so holds no record, even when `offset` is at or
        after the end. A leader that was elected and wrote nothing leaves such an entry. A later walk would ask about it
        although the next leader may never have seen that epoch.
        """
        self._end = min(self._end, offset)
        keep = bisect_left(self._starts, self._end)
        del self._epochs[keep:], self._starts[keep:]

    def forget_before(self, offset: int) -> None:
        """Drop the history below `offset`, which retention removed. The epoch that covers `offset` starts there."""
        if offset <= self.start_offset:
            return
        if offset >= self._end:
            self._epochs, self._starts, self._end = [], [], offset
            return
        at = bisect_right(self._starts, offset) - 1
        del self._epochs[:at], self._starts[:at]
        self._starts[0] = offset

    def epoch_at(self, offset: int) -> int | None:
        """The epoch of the record at `offset`; None where nothing is known."""
        if not self._starts or not self._starts[0] <= offset < self._end:
            return None
        return self._epochs[bisect_right(self._starts, offset) - 1]

    def end_of(self, index: int) -> int:
        """Offset after the last record of entry number `index`."""
        return self._starts[index + 1] if index + 1 < len(self._starts) else self._end

    def floor(self, epoch: int) -> int | None:
        """Index of the entry with the largest defined epoch not above `epoch`; None if no entry qualifies."""
        best = None
        for index, ours in enumerate(self._epochs):
            if ours != UNDEFINED and ours <= epoch:
                best = index
        return best

    def copy(self) -> Lineage:
        """An independent copy."""
        return Lineage(self.entries, self._end, limit=self._limit)

    def _shrink(self) -> None:
        if (over := len(self._epochs) - self._limit) > 0:
            del self._epochs[:over], self._starts[:over]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Lineage) and (self.entries, self._end) == (other.entries, other._end)

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __repr__(self) -> str:
        runs = ",".join(f"{epoch}:{start}" for epoch, start in self.entries)
        return f"<Lineage {runs or 'empty'} end {self._end}>"

    # --- as text ---

    def encode(self, max_bytes: int = METADATA_BYTES, *, topic_id: bytes | None = None) -> str:
        """The history as ASCII text for the metadata of a committed offset.

        Args:
            max_bytes: Upper bound of its length, at least 64. The oldest epochs that do not fit are left out.
            topic_id: Id of the topic that was read, 16 bytes; `decode_topic_id` reads it. None: it is not known.

        Raises:
            LineageError: `max_bytes` is below 64, or the id does not have 16 bytes.
        """
        if max_bytes < MIN_METADATA_BYTES:
            raise LineageError(f"max_bytes is {max_bytes}; it must be {MIN_METADATA_BYTES} or more")
        if topic_id is not None and len(topic_id) != _ID_BYTES:
            raise LineageError(f"a topic id has {_ID_BYTES} bytes, not {len(topic_id)}")
        prefix = _PREFIX if topic_id is None else _PREFIX_WITH_ID
        room = (max_bytes - len(prefix)) * 3 // 4 - _CRC_BYTES
        body = bytearray(topic_id or b"")
        _put(body, self._end)
        behind, above = self._end, MAX_EPOCH + 1
        # Newest first, so that the oldest epochs are the ones left out.
        for epoch, start in reversed(self.entries):
            entry = bytearray()
            _put(entry, 0 if epoch == UNDEFINED else above - epoch)
            _put(entry, behind - start)
            if len(body) + len(entry) > room:
                break
            body += entry
            behind, above = start, above if epoch == UNDEFINED else epoch
        sealed = bytes(body) + _checksum(prefix, body)
        return prefix + base64.urlsafe_b64encode(sealed).rstrip(b"=").decode("ascii")

    @classmethod
    def decode(cls, text: str) -> Lineage:
        """Read what `encode` wrote.

        Raises:
            LineageError: It is something else, was damaged, or is of a newer version.
        """
        _, body = _unsealed(text)
        numbers = _numbers(body)
        if not len(numbers) % 2:
            raise LineageError("the history of epochs was damaged: it ends within an entry")
        end, above = numbers[0], MAX_EPOCH + 1
        behind, entries = end, []
        for back, length in zip(numbers[1::2], numbers[2::2], strict=True):
            behind -= length
            above -= back
            entries.append((above if back else UNDEFINED, behind))
        return cls(reversed(entries), end, limit=max(DEFAULT_LIMIT, len(entries)))


def decode_topic_id(text: str) -> bytes | None:
    """The topic id in what `Lineage.encode` wrote, 16 bytes; None where it has none.

    Raises:
        LineageError: It is something else, was damaged, or is of a newer version.
    """
    return _unsealed(text)[0]


_PREFIX: Final = "ks1."
_PREFIX_WITH_ID: Final = "ks2."
"""The topic id comes before the numbers. Versions of kafkasafe that only know `ks1.` take such a text for metadata of
the application: they go by the committed leader epoch alone."""
_ID_BYTES: Final = 16
_CRC_BYTES: Final = 4


def _checksum(prefix: str, body: bytes | bytearray) -> bytes:
    # `ks1.` came before there was another one, so its checksum leaves it out.
    start = b"" if prefix == _PREFIX else prefix.encode("ascii")
    return zlib.crc32(start + body).to_bytes(_CRC_BYTES, "big")


def _unsealed(text: str) -> tuple[bytes | None, bytes]:
    """The topic id, if it has one, and the numbers."""
    prefix = text[: len(_PREFIX)]
    if prefix not in {_PREFIX, _PREFIX_WITH_ID}:
        raise LineageError(
            f"{text[:20]!r} is not a history of epochs: it does not begin with {_PREFIX!r} or {_PREFIX_WITH_ID!r}"
        )
    try:
        coded = text[len(prefix) :].encode("ascii")
        sealed = base64.b64decode(coded + b"=" * (-len(coded) % 4), altchars=b"-_", validate=True)
    except (UnicodeEncodeError, binascii.Error) as error:
        raise LineageError(f"the history of epochs was damaged: {error}") from None
    body, crc = sealed[:-_CRC_BYTES], sealed[-_CRC_BYTES:]
    if _checksum(prefix, body) != crc:
        raise LineageError("the history of epochs was damaged: its checksum does not match")
    if prefix == _PREFIX:
        return None, body
    if len(body) < _ID_BYTES:
        raise LineageError("the history of epochs was damaged: it ends within the topic id")
    return body[:_ID_BYTES], body[_ID_BYTES:]


def _check(what: str, number: int, least: int, most: int) -> None:
    if type(number) is not int or not least <= number <= most:
        raise LineageError(f"{what} must be a whole number from {least} to {most}, not {number!r}")


def _put(into: bytearray, number: int) -> None:
    while number > 0x7F:
        into.append(number & 0x7F | 0x80)
        number >>= 7
    into.append(number)


def _numbers(body: bytes) -> list[int]:
    found, number, shift = [], 0, 0
    for byte in body:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            found.append(number)
            number, shift = 0, 0
    if shift:
        raise LineageError("the history of epochs was damaged: it ends within a number")
    return found


# --- a consumer and a live leader -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Same:
    """The leader's log contains every record that was read, at the same offset.

    Attributes:
        until: Offset after the last record for which this is known.
    """

    until: int


@dataclass(frozen=True, slots=True)
class Diverged:
    """The leader's log no longer contains records that were read.

    Attributes:
        divergent_offset: First differing offset.
        rolled_back: First and last offset (inclusive) of the records that were read and are no longer in the log.
        replaced: First and last offset (inclusive), within `rolled_back`, that are known to hold other records now.
            None: no such offsets are known, for instance because the log became shorter.
        common_epoch: The largest epoch that both logs have; None when they are not known to share one.
        rolled_back_epochs: Epochs of the rolled-back records, oldest first.
        exact: False: the logs may already differ before `divergent_offset`, among records that were not read or have
            no epochs.
    """

    divergent_offset: int
    rolled_back: tuple[int, int]
    replaced: tuple[int, int] | None
    common_epoch: int | None
    rolled_back_epochs: tuple[int, ...]
    exact: bool = True


@dataclass(frozen=True, slots=True)
class Unknown:
    """The answers do not decide whether the logs differ. This is not a loss.

    Attributes:
        reason: Human-readable text.
        same_until: Up to here (exclusive) the logs are the same; None when nothing is known.
        log_start_offset: Where the leader's log begins, if the leader has trimmed every record that was read.
    """

    reason: str
    same_until: int | None = None
    log_start_offset: int | None = None


Outcome = Same | Diverged | Unknown


class ReplyKind(enum.Enum):
    """The kinds of answers that a leader gives about an epoch, named as in KIP-279."""

    END = "end"
    """Where an epoch ends, or, with `UNDEFINED` as epoch, where the leader's first epoch begins."""
    UNKNOWN = "unknown"
    """UNKNOWN_OFFSET_FOR_LEADER_EPOCH: the leader has epochs, but not the requested ones."""
    UNDEFINED = "undefined"
    """UNDEFINED_EPOCH_OFFSET: the leader has no epochs. The follower falls back to its high watermark at once."""


@dataclass(frozen=True, slots=True)
class Step:
    """One round trip.

    Attributes:
        request: (epoch, end offset) asked about, newest first. Only Alternative 2 sends more than one, and end offsets.
        reply_epoch: The epoch that the answer is about, `UNDEFINED` when the leader knows none.
        reply_end_offset: Where that epoch ends in the leader's log, `UNDEFINED` when it knows none.
        truncate_to: Where our log would be cut after this step.
        kind: The kind of answer. Brokers send the same response for `UNKNOWN` and `UNDEFINED`; a live walk records both
            as `UNDEFINED`.
    """

    request: tuple[tuple[int, int], ...]
    reply_epoch: int
    reply_end_offset: int
    truncate_to: int
    kind: ReplyKind = ReplyKind.END

    @property
    def request_epoch(self) -> int:
        """The newest epoch asked about."""
        return self.request[0][0]


_TRIMMED: Final = "what was read is no longer in the leader's log"


class EpochWalk:
    """Finds the first differing offset by asking the leader about one epoch after the other.

    Send an OffsetForLeaderEpoch request for the epoch that `query()` returns and pass the response to `answer()`, until
    `query()` returns None; then `outcome` is set. All responses must come from one leader: put the current leader epoch
    into each request, so that another leader refuses it, and begin a new walk when the leader changes. A walk takes at
    most as many rounds as the history has epochs. A failed request does not change the walk: retry it.
    """

    __slots__ = ("_asked", "_log_end", "_log_start", "_ours", "outcome", "steps")

    def __init__(
        self,
        lineage: Lineage,
        *,
        position: int | None = None,
        log_start_offset: int | None = None,
        log_end_offset: int | None = None,
    ) -> None:
        """Begin a walk. The history is copied.

        Args:
            lineage: The history of the records that were read.
            position: Next offset to read; the outcome covers only records before it. None: the history's end.
            log_start_offset: The leader's. The outcome does not cover records that the leader trimmed. Without this
                offset, trimmed records may count as equal, because the leader also answers about epochs that it no
                longer has.
            log_end_offset: The leader's end offset, when known: decides which lost records were replaced.
        """
        self._ours = lineage.copy()
        # Also without a position: this drops an epoch without records, which has nothing to lose.
        self._ours.truncate(lineage.end_offset if position is None else position)
        self._log_start = log_start_offset
        self._log_end = -1 if log_end_offset is None else log_end_offset
        self.steps: list[Step] = []
        self.outcome: Outcome | None = None
        self._asked = self._ours.floor(MAX_EPOCH)
        """Index of the entry that is asked about; meaningless once `outcome` is set."""
        if not self._ours.entries:
            self.outcome = Unknown("nothing is known of what was read before")
        elif self._asked is None:
            self.outcome = Unknown("the records that were read have no leader epoch")

    def query(self) -> int | None:
        """The epoch to ask about; None once `outcome` is set. Does not change the walk."""
        if self.outcome is not None or self._asked is None:
            return None
        return self._ours.entries[self._asked][0]

    @property
    def round_trips(self) -> int:
        """Number of answered requests."""
        return len(self.steps)

    @property
    def request_bytes(self) -> int:
        """Of this partition, in OffsetForLeaderEpoch v3."""
        return len(self.steps) * LIVE_REQUEST_BYTES

    @property
    def response_bytes(self) -> int:
        """Of this partition, in OffsetForLeaderEpoch v3."""
        return len(self.steps) * LIVE_RESPONSE_BYTES

    def answer(self, epoch: int, end_offset: int) -> Outcome | None:
        """Take the leader's answer to the last query.

        Args:
            epoch: `leader_epoch` of the response: the largest epoch of the leader not above the one asked for.
            end_offset: `end_offset` of the response.

        Returns:
            The outcome, or None when another query is due.

        Raises:
            LineageError: The walk already has its outcome.
        """
        asked, requested = self._asked, self.query()
        if asked is None or requested is None:
            raise LineageError("an answer, but nothing was asked: the walk has its outcome")
        self._judge(asked, requested, epoch, end_offset)
        cut = self._ours.end_offset
        if isinstance(self.outcome, Diverged):
            cut = self.outcome.divergent_offset
        elif self.outcome is None and self._asked is not None:
            cut = self._ours.end_of(self._asked)
        kind = ReplyKind.UNDEFINED if end_offset < 0 else ReplyKind.END
        self.steps.append(Step(((requested, self._ours.end_of(asked)),), epoch, end_offset, cut, kind))
        return self.outcome

    def _judge(self, asked: int, requested: int, epoch: int, end_offset: int) -> None:
        ours = self._ours
        if end_offset < 0:
            # Not a loss: the requested epoch is newer than all of the leader's (the leader's metadata is old, or the
            # topic was recreated), or the log has no epochs.
            self.outcome = Unknown(f"the leader has no answer about epoch {requested}")
            return
        if epoch > requested:
            self.outcome = Unknown(f"the leader was asked about epoch {requested} and answered about {epoch}")
            return
        self._log_end = max(self._log_end, end_offset)
        if self._log_start is not None and end_offset <= self._log_start:
            # The leader's whole log is newer than the requested epoch (the response may still name that epoch, with
            # the log start as its end). So the log holds none of our records; those before its start are unknown.
            if self._log_start < ours.end_offset:
                # Records that were read below the log start may differ as well, but can no longer be compared.
                self._diverged(self._log_start, None, exact=self._log_start <= ours.start_offset)
            else:
                self.outcome = Unknown(_TRIMMED, log_start_offset=self._log_start)
            return
        if epoch < 0:
            # Brokers before 2.0 do not name the epoch of their answer: only an end offset below ours proves a loss.
            if end_offset < ours.end_of(asked):
                self._diverged(end_offset, None, exact=False)
            else:
                self.outcome = Unknown("the broker does not say which epoch its answer is about")
            return
        at = ours.floor(epoch)
        if at is None:
            # The leader's log has none of our epochs. Records before our first epoch are unknown here.
            cut = min(
                end_offset, next(start for ours_epoch, start in ours.entries if ours_epoch != UNDEFINED)
            )
            self._diverged(cut, None, exact=cut == 0)
            return
        if ours.entries[at][0] != epoch:
            self._asked = at  # the leader named an epoch that we never read: ask about our next older one
            return
        end, following = ours.end_of(at), self._following(at)
        if end_offset < end:
            self._diverged(end_offset, epoch)
        elif following is not None:
            # The log holds all our records of this epoch and none of our newer ones, although it is at least as long.
            cut = min(end_offset, ours.entries[following][1])
            self._diverged(cut, epoch, exact=following == at + 1)
        elif end < ours.end_offset:
            self.outcome = Unknown("the newest records that were read have no leader epoch", same_until=end)
        elif self._log_start is not None and self._log_start >= end:
            self.outcome = Unknown(_TRIMMED, log_start_offset=self._log_start)
        else:
            self.outcome = Same(end)

    def _following(self, at: int) -> int | None:
        """Index of the next entry with a defined epoch."""
        behind = range(at + 1, len(self._ours.entries))
        return next((index for index in behind if self._ours.entries[index][0] != UNDEFINED), None)

    def _diverged(self, at: int, common: int | None, *, exact: bool = True) -> None:
        ours = self._ours
        first, last = max(at, ours.start_offset), ours.end_offset - 1
        standing = min(self._log_end - 1, last)
        gone = [
            epoch
            for index, (epoch, start) in enumerate(ours.entries)
            if epoch != UNDEFINED and start < ours.end_of(index) and ours.end_of(index) > first
        ]
        self.outcome = Diverged(
            at, (first, last), (first, standing) if standing >= first else None, common, tuple(gone), exact
        )

    def __repr__(self) -> str:
        return f"<EpochWalk {self._ours!r} after {len(self.steps)} rounds: {self.outcome or 'asking'}>"


# --- the leader's side ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reply:
    """A leader's answer: an epoch and its end offset, or `UNDEFINED`; `kind` says why."""

    epoch: int
    end_offset: int
    kind: ReplyKind = ReplyKind.END


_UNDEFINED: Final = Reply(UNDEFINED, UNDEFINED, ReplyKind.UNDEFINED)
_UNKNOWN: Final = Reply(UNDEFINED, UNDEFINED, ReplyKind.UNKNOWN)


class Leader:
    """Answers from a leader's history, by the rules of each protocol."""

    __slots__ = ("_log",)

    def __init__(self, history: Lineage) -> None:
        self._log = history

    def kip279(self, epoch: int) -> Reply:
        """The largest epoch not above `epoch`, and its end.

        If all of the leader's epochs are newer: `UNDEFINED` and the start of its first one. Without epochs: `UNDEFINED`
        twice.
        """
        index = self._log.floor(epoch)
        if index is not None:
            return Reply(self._log.entries[index][0], self._log.end_of(index))
        return Reply(UNDEFINED, self._log.start_offset) if self._log.entries else _UNDEFINED

    def kip101(self, epoch: int) -> Reply:
        """As before KIP-279: the start of the next newer epoch, without naming the epoch that ends there.

        For the newest epoch, the leader's log end. `UNDEFINED` for an epoch newer or older than all of the leader's
        (Kafka 1.1, LeaderEpochFileCache.endOffsetFor).
        """
        entries = self._log.entries
        index = self._log.floor(epoch)
        if not entries or index is None or epoch > entries[-1][0]:
            return _UNDEFINED
        return Reply(epoch, self._log.end_of(index))

    def alternative1(self, epoch: int) -> Reply:
        """The end of `epoch`; UNKNOWN if the leader has only other epochs, UNDEFINED if it has no epochs."""
        if not self._log.entries:
            return _UNDEFINED
        index = self._log.floor(epoch)
        if index is None or self._log.entries[index][0] != epoch:
            return _UNKNOWN
        return Reply(epoch, self._log.end_of(index))

    def alternative2(self, sequence: Sequence[tuple[int, int]]) -> Reply:
        """For the first epoch of the sequence (newest first) that the leader has: the lower of the two end offsets."""
        for epoch, end in sequence:
            reply = self.alternative1(epoch)
            if reply.kind is ReplyKind.END:
                return Reply(epoch, min(end, reply.end_offset))
        return _UNKNOWN if self._log.entries else _UNDEFINED

    def live(self, epoch: int) -> Reply:
        """The answer of brokers since 2.1 to OffsetForLeaderEpoch.

        It differs from KIP-279 in two cases: an epoch newer than all of the leader's is undefined, and an epoch older
        than all of them ends where the log starts.
        """
        entries = self._log.entries
        if not entries or epoch < 0 or epoch > entries[-1][0]:
            return _UNDEFINED
        reply = self.kip279(epoch)
        return reply if reply.epoch != UNDEFINED else Reply(epoch, reply.end_offset)


# --- the four protocols ---------------------------------------------------------------------------------------------


class Strategy(enum.Enum):
    """The protocols of KIP-279 between a follower and a leader: the accepted one and its alternatives."""

    KIP279 = "kip279"
    """The accepted one: the response says which epoch it is about."""
    ALTERNATIVE1 = "alt1"
    """The leader returns an error for an epoch that it does not have; the follower asks about the next older one."""
    ALTERNATIVE2 = "alt2"
    """The follower sends a sequence of epochs and their ends; the leader takes the first that it has."""
    CLEAN_ONLY = "clean"
    """One request, about the epoch of the follower's high watermark. Correct only if all elections were clean."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of a protocol, with its costs.

    Attributes:
        truncate_to: First differing offset, to which the follower would truncate its log. The follower's log end if
            the logs do not differ.
        request_bytes: Bytes of the partition in all requests, counted as in KIP-279.
        response_bytes: The same for the responses.
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
    """Play one protocol to its end.

    Args:
        strategy: The protocol.
        ours: The follower's history; all epochs defined.
        theirs: The leader's.
        high_watermark: The follower's. The follower truncates to it when the leader knows none of its epochs, and the
            first sequence of Alternative 2 reaches back to it. None: not known; the follower then truncates everything
            that the leader does not know. `CLEAN_ONLY` needs it.
        lengths: How many epochs Alternative 2 sends in each round, increasing. After the last of them, each round sends
            twice as many as the one before. Empty: `_first_width` gives the first length.

    Raises:
        ValueError: `CLEAN_ONLY` without a high watermark, or lengths that do not increase from 1 or more.
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
        # The epoch of the last record below the high watermark. Without such a record there is no epoch to ask about.
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


# KIP-279's "32 bits more" of the response are its epoch. Alternative 2 "adds 64 bits" with one pair and 160 with
# two: pairs without a length, in place of the epoch.
_RESPONSE_BYTES: Final = {
    Strategy.KIP279: _ERROR + _PARTITION + _EPOCH + _OFFSET,
    Strategy.ALTERNATIVE1: _ERROR + _PARTITION + _OFFSET,
    Strategy.ALTERNATIVE2: _ERROR + _PARTITION + _OFFSET,
    Strategy.CLEAN_ONLY: _ERROR + _PARTITION + _OFFSET,
}


def _request_bytes(strategy: Strategy, pairs: int) -> int:
    if strategy is Strategy.ALTERNATIVE2:
        return _PARTITION + pairs * (_EPOCH + _OFFSET)
    return _PARTITION + _EPOCH


def _follow_kip279(
    ours: Lineage, reply: Reply, fallback: int, high_watermark: int | None
) -> tuple[int, int | None]:
    """Where to cut, and the entry to ask about next."""
    if reply.kind is not ReplyKind.END:
        return fallback, None
    if reply.epoch == UNDEFINED:
        # All of the leader's epochs are newer: from the start of its first one, the log holds none of our records.
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
    """Where to cut: drop all newer epochs, and the records of this epoch that the leader does not have."""
    if reply.kind is not ReplyKind.END:
        return fallback
    return min(reply.end_offset, ours.end_of(index))


def _first_width(ours: Lineage, high_watermark: int | None) -> int:
    """How many epochs the first sequence has; KIP-279 leaves this to tuning.

    The epochs between high watermark and log end that follow each other without a gap. A gap means that leaders in
    between wrote nothing that we have, so the elections were not clean. Without a high watermark: at most two, which
    suffices for clean elections.
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
    """Where to cut, and how many epochs to send next (0: finished)."""
    if reply.kind is ReplyKind.END:
        return reply.end_offset, 0
    if width == len(ours.entries) or reply.kind is ReplyKind.UNDEFINED:
        return fallback, 0
    cut = ours.entries[-width][1]
    return cut, min(longer, len(ours.entries))


# --- without epochs -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BatchMark:
    """The offsets and checksum of a batch that was read.

    Attributes:
        last_offset: Inclusive.
        crc: Its CRC32C, which covers neither offset nor leader epoch.
    """

    base_offset: int
    last_offset: int
    crc: int


class BatchMemory:
    """The newest batches that were read, oldest first. Bounded; not thread-safe."""

    __slots__ = ("_marks",)

    def __init__(self, limit: int = DEFAULT_LIMIT) -> None:
        self._marks: deque[BatchMark] = deque(maxlen=limit)

    @property
    def marks(self) -> tuple[BatchMark, ...]:
        """Oldest first."""
        return tuple(self._marks)

    def observe(self, mark: BatchMark) -> None:
        """Note a batch that was read. Drops remembered batches that it overlaps or precedes."""
        self.truncate(mark.base_offset)
        self._marks.append(mark)

    def truncate(self, offset: int) -> None:
        """Drop batches that end at or after `offset`."""
        while self._marks and self._marks[-1].last_offset >= offset:
            self._marks.pop()


def first_difference(
    ours: Sequence[BatchMark], theirs: Sequence[BatchMark], *, theirs_start: int, theirs_end: int
) -> Outcome:
    """Compare remembered batches with those of the leader.

    Args:
        ours: The batches that were read, in offset order.
        theirs: The headers of all of the leader's batches in the range, in offset order.
        theirs_start: First offset of the range: the log start, or where the reading began.
        theirs_end: Offset after the last one in the range; the log end, if the reading reached it.

    Returns:
        Same, up to the last batch compared. Diverged at the first batch that the leader does not have with the same
        offsets and CRC; inexact unless the leader's log ends there or the batch has one record, since the leader may
        still have the first records of that batch. Unknown if no batch starts at or after `theirs_start`. Batches that
        compaction or another compression rewrote count as different.
    """
    standing = {mark.base_offset: mark for mark in theirs}
    compared = [mark for mark in ours if mark.base_offset >= theirs_start]
    if not compared:
        return Unknown("no batch that was read is in the range to compare")
    last = compared[-1].last_offset
    for mark in compared:
        if standing.get(mark.base_offset) == mark:
            continue
        at = mark.base_offset
        # Exact if the leader's log ends here, or if the batch has a single record.
        exact = theirs_end <= at or mark.last_offset == at
        known = min(theirs_end - 1, last)
        return Diverged(at, (at, last), (at, known) if known >= at else None, None, (), exact)
    return Same(last + 1)


MAX_REWRITTEN: Final = 16
"""A walk gives up after more than this many batches that compaction rewrote."""

_COMPACTED: Final = "the log was compacted: what was read cannot be compared"


class BatchWalk:
    """Finds the first batch that was read and is not in the leader's log, by fetching single batches.

    Fetch the batch that contains the offset `query()` and pass it to `answer()`, until `query()` returns None. The walk
    starts with the newest batch: if the leader has it, the leader also has the batches before it, as far as a client
    can determine. (Only a writer that resends the same bytes to the same offset, after different batches, breaks this.)
    Otherwise a binary search finds the first missing batch: at most 2 + log2 of the remembered batches, plus one round
    for each batch that compaction rewrote.
    """

    __slots__ = ("_bad", "_good", "_log_end", "_marks", "_position", "_skipped", "outcome", "round_trips")

    def __init__(
        self, marks: Iterable[BatchMark], *, position: int, log_start_offset: int, log_end_offset: int
    ) -> None:
        """Begin.

        Args:
            marks: The batches that were read, in offset order.
            position: Next offset to read; the outcome covers only records before it.
            log_start_offset: The leader's; batches before it are not compared.
            log_end_offset: The leader's; batches that reach past it are missing.
        """
        self._marks = [m for m in marks if m.base_offset >= log_start_offset and m.base_offset < position]
        self._position, self._log_end = position, log_end_offset
        self._good = -1
        """Invariant: the leader has the batches up to this index, and does not have those from `_bad` on."""
        self._bad = next(
            (at for at, mark in enumerate(self._marks) if mark.last_offset >= log_end_offset),
            len(self._marks),
        )
        self._skipped = 0
        self.round_trips = 0
        self.outcome: Outcome | None = None
        if not self._marks:
            self.outcome = Unknown("no batch that was read is remembered and still in the log")
        self._conclude()

    def query(self) -> int | None:
        """An offset in the batch to fetch; None once `outcome` is set."""
        return None if self.outcome is not None else self._marks[self._asked].last_offset

    @property
    def _asked(self) -> int:
        newest = self._bad - 1
        return newest if self._good < 0 and self._bad == len(self._marks) else (self._good + self._bad) // 2

    def answer(self, last_offset: int, crc: int, *, rewritten: bool = False) -> Outcome | None:
        """Take the leader's batch at the queried offset, or the next one after it.

        Args:
            last_offset: Offset of its last record.
            crc: Its CRC.
            rewritten: Compaction rewrote the batch, so it cannot be compared.

        Raises:
            LineageError: The walk already has its outcome.
        """
        if self.outcome is not None:
            raise LineageError("an answer, but nothing was asked: the walk has its outcome")
        self.round_trips += 1
        at = self._asked
        mark = self._marks[at]
        if (mark.last_offset, mark.crc) == (last_offset, crc):
            self._good = at
        elif rewritten:
            del self._marks[at]
            self._bad -= 1
            self._skipped += 1
        else:
            self._bad = at
        self._conclude()
        return self.outcome

    def _conclude(self) -> None:
        if self.outcome is not None:
            return
        if self._skipped > MAX_REWRITTEN:
            self.outcome = Unknown(_COMPACTED)
            return
        if self._bad - self._good > 1:
            return
        if self._bad < len(self._marks):
            mark = self._marks[self._bad]
            at = mark.base_offset
            # Exact only if the batch before was compared. The leader may also have the first of several records.
            adjoining = at == 0 or (self._good >= 0 and self._marks[self._good].last_offset + 1 == at)
            exact = adjoining and not self._skipped and (self._log_end <= at or mark.last_offset == at)
            last = self._position - 1
            standing = min(self._log_end - 1, last)
            self.outcome = Diverged(
                at, (at, last), (at, standing) if standing >= at else None, None, (), exact
            )
        elif self._marks:
            self.outcome = Same(min(self._marks[-1].last_offset + 1, self._position))
        else:
            self.outcome = Unknown(_COMPACTED)

    def __repr__(self) -> str:
        return f"<BatchWalk of {len(self._marks)} batches after {self.round_trips} rounds: {self.outcome or 'asking'}>"
