"""The history of a log that was read: leader epoch → first offset. Stored as text in the metadata of a committed
offset.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import Any, ClassVar, Final, Self

UNDEFINED: Final = -1
"""Kafka's UNDEFINED_EPOCH and UNDEFINED_EPOCH_OFFSET. This value alone never proves a loss."""

MAX_EPOCH: Final = 2**31 - 1
MAX_OFFSET: Final = 2**63 - 1

DEFAULT_LIMIT: Final = 1024
METADATA_BYTES: Final = 2048
"""Half of the brokers' default limit for the metadata of a committed offset (`offset.metadata.max.bytes`, 4096)."""
MIN_METADATA_BYTES: Final = 64


class LineageError(ValueError):
    """The given data is not a history of a log.

    Once a subclass is defined, every new `LineageError` is an instance of the subclass. `kafkasafe.errors` defines the
    subclass that users catch, because the subclass also inherits from `KafkaSafeError`, which this module must not
    import.
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
    """The history of the part of a log that was read: leader epoch → first offset, in offset order.

    A lineage keeps at most `limit` epochs, and drops the oldest. Not thread-safe.

    Invariant: defined epochs increase strictly, start offsets never decrease, no start exceeds the end. `UNDEFINED`
    entries (records in a message format before 2) may be between defined epochs, but never two in a row.
    """

    __slots__ = ("_end", "_epochs", "_limit", "_starts")

    def __init__(
        self, entries: Iterable[tuple[int, int]] = (), end: int | None = None, *, limit: int = DEFAULT_LIMIT
    ) -> None:
        """Start from a known history.

        Args:
            entries: (epoch, first offset), oldest first.
            end: Offset after the last record. None: the newest epoch has no records yet, so the history ends at the
                first offset of this epoch.
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
        """The history to assume for an offset that was committed without metadata: only the epoch of the record before
        the offset.
        """
        if position == 0 or epoch == UNDEFINED:
            return cls((), position)
        return cls([(epoch, position - 1)], position)

    @property
    def entries(self) -> tuple[tuple[int, int], ...]:
        """(epoch, first offset), oldest first."""
        return tuple(zip(self._epochs, self._starts, strict=True))

    @property
    def start_offset(self) -> int:
        """First offset that the history covers; `end_offset` when the history is empty."""
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
            epoch: The batch's partition leader epoch, `UNDEFINED` when the batch has none.
            offset: First offset of the batch. Compaction, or a seek forward, may leave a gap before this offset.
            next_offset: Offset after the batch's last record; `offset + 1` when not given.

        Returns:
            False if the batch contradicts the history, and so is from another log: a log's epochs never decrease, and
            an offset keeps its epoch. If False, the history stays unchanged, and the caller begins a walk. Idempotent.

        Raises:
            LineageError: `epoch` or `offset` is outside Kafka's number ranges, or `next_offset` is not greater than
                `offset`.
        """
        after = offset + 1 if next_offset is None else next_offset
        # Fast path for almost every batch.
        if self._epochs and epoch == self._epochs[-1] and after > offset >= self._end:
            self._end = after
            return True
        _check("an epoch", epoch, UNDEFINED, MAX_EPOCH)
        _check("an offset", offset, 0, MAX_OFFSET)
        _check("the offset after the batch", after, offset + 1, MAX_OFFSET)
        if not self._epochs or offset >= self._end:
            return self._append(epoch, offset, after)
        return self._again(epoch, offset, after)

    def _append(self, epoch: int, offset: int, after: int) -> bool:
        newest = self.newest_epoch
        if epoch != UNDEFINED and epoch < newest:
            return False
        if epoch == newest and epoch != UNDEFINED:
            # Epochs never decrease. So records without an epoch between two records of one epoch have this epoch.
            del self._epochs[-1], self._starts[-1]
        else:
            self._epochs.append(epoch)
            self._starts.append(offset)
        self._end = after
        self._shrink()
        return True

    def _again(self, epoch: int, offset: int, after: int) -> bool:
        """Note a batch that begins before the end of the history."""
        at = bisect_right(self._starts, offset) - 1
        known = self._epochs[at] if at >= 0 else None
        following = self._epochs[at + 1] if at + 1 < len(self._epochs) else None
        begun = self._epochs[at + 1 : bisect_left(self._starts, after)]
        if epoch != UNDEFINED and not {*begun} <= {epoch, UNDEFINED}:
            return False  # the history has another epoch within the batch
        if known == epoch:
            if following is None:
                self._end = max(self._end, after)
        elif known is None:
            oldest = next((each for each in self._epochs if each != UNDEFINED), UNDEFINED)
            if epoch > oldest != UNDEFINED:
                return False
            if epoch == oldest != following:
                # Epochs never decrease. So records without an epoch between two records of one epoch have this epoch.
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
            # The history has a gap before the start of the following epoch. The new batch shows that this epoch begins
            # earlier, within the gap.
            self._starts[at + 1] = offset
        else:
            return False
        return True

    def truncate(self, offset: int) -> None:
        """Drop the history from `offset` on: the position moved back, or the log was truncated there.

        Whatever `offset` is, also drop an epoch that begins at the end of the history, because it contains no record.
        An elected leader that wrote nothing leaves an entry for an empty epoch. A later `EpochWalk` would ask the
        leader about the empty epoch, although the next leader may never have seen it.
        """
        self._end = min(self._end, offset)
        keep = bisect_left(self._starts, self._end)
        del self._epochs[keep:], self._starts[keep:]

    def forget_before(self, offset: int) -> None:
        """Drop the history below `offset`, because retention removed these records. The epoch that covers `offset` then
        starts at `offset`.
        """
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
            max_bytes: Upper bound of the text's length, at least 64. If not all epochs fit, the text leaves out the
                oldest epochs.
            topic_id: Id of the topic that was read, 16 bytes; `decode_topic_id` reads it. None: the id is not known.

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
        after, above = self._end, MAX_EPOCH + 1
        # Begin with the newest epoch, so that the text lacks the oldest epochs if not all fit.
        for epoch, start in reversed(self.entries):
            entry = bytearray()
            _put(entry, 0 if epoch == UNDEFINED else above - epoch)
            _put(entry, after - start)
            if len(body) + len(entry) > room:
                break
            body += entry
            after, above = start, above if epoch == UNDEFINED else epoch
        sealed = bytes(body) + _checksum(prefix, body)
        return prefix + base64.urlsafe_b64encode(sealed).rstrip(b"=").decode("ascii")

    @classmethod
    def decode(cls, text: str) -> Lineage:
        """Read what `encode` wrote.

        Raises:
            LineageError: The text has another format, was damaged, or is of a newer version.
        """
        _, body = _unsealed(text)
        numbers = _numbers(body)
        if not len(numbers) % 2:
            raise LineageError("the history of epochs was damaged: it ends within an entry")
        end, above = numbers[0], MAX_EPOCH + 1
        after, entries = end, []
        for back, length in zip(numbers[1::2], numbers[2::2], strict=True):
            after -= length
            above -= back
            entries.append((above if back else UNDEFINED, after))
        return cls(reversed(entries), end, limit=max(DEFAULT_LIMIT, len(entries)))


def decode_topic_id(text: str) -> bytes | None:
    """The topic id (16 bytes) in the text of `Lineage.encode`; None if the text has no topic id.

    Raises:
        LineageError: The text has another format, was damaged, or is of a newer version.
    """
    return _unsealed(text)[0]


_PREFIX: Final = "ks1."
_PREFIX_WITH_ID: Final = "ks2."
"""The prefix of a text with a topic id, which comes before the numbers. Versions of kafkasafe that know only `ks1.`
treat a text with `ks2.` as the application's metadata, and use only the committed leader epoch.
"""
_ID_BYTES: Final = 16
_CRC_BYTES: Final = 4


def _checksum(prefix: str, body: bytes | bytearray) -> bytes:
    # For compatibility, the checksum of a text with `ks1.` does not cover the prefix: `ks1.` was once the only prefix.
    start = b"" if prefix == _PREFIX else prefix.encode("ascii")
    return zlib.crc32(start + body).to_bytes(_CRC_BYTES, "big")


def _unsealed(text: str) -> tuple[bytes | None, bytes]:
    """The topic id (None if the text has no id) and the encoded numbers."""
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
