"""A compact JSON format for the marks of a topic with many partitions.

A mark is the position of one partition (`marks`). Spark writes all marks into its offset log for each micro-batch, so
their size matters.

```json
{"numbers": "0-999", "offsets": "42,17,…", "epochs": "eNo…", "read": "5,0,…", "lost": {"7": {"why": "retention", …}}}
```

- `numbers`: the partition numbers, as ranges. The other lists have the same order.
- `offsets`: the next offset of each partition. The field stays plain text so that people can read it.
- `epochs`: the leader epochs of each partition, deflated and in base64. Before deflation the text looks like
  `3:0,4:1200;;@17,3:0`. `;` separates partitions, and each entry is an epoch and its first offset. If a partition's
  epochs are known only up to offset 17, but its offset in `offsets` is higher, the partition's first entry is `@17`.
  The field is absent if no epochs are known.
- `read`: for each partition, the number of offsets in its range (`offset - begin`). If `begin` is above
  `offset`, the entry is `=` followed by `begin`. If the mark has no `begin`, the entry is empty. The field is absent if
  no mark has a `begin`.
- `first`: `Mark.first` in the format of `read`, with `?` for `UNRESOLVED`.
- `lost`: `why`, `lost_first` and `lost_last` of each partition that lost records.

If `offsets` and `epochs` together are longer than 12,000 characters, the following fields replace both (version 3 of
the checkpoint's format). `offsets` and `epochs` usually become that long if the partitions have had several leaders.

- `least` and `most`: the lowest and the highest of the partitions' next offsets.
- `dense`: a compact text (`_Dense`). For each partition, the text contains the next offset and the first offset of each
  epoch.
- `epochs`: as before, but without the first offsets; for example `3,4;;@17,3` before deflation. `dense` leaves out a
  first offset that is 0; instead, a colon follows the epoch: `3:,4`.
"""

from __future__ import annotations

import base64
import itertools
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from kafkasafe.history.epochs import Lineage
from kafkasafe.spark.marks import UNRESOLVED, Mark, offset_of

_EPOCHS: Final = 32  # number of epochs that are kept for each partition; older ones are dropped
_DENSE_FROM: Final = 12_000
_MAX_TEXT_BYTES: Final = 256 * 1024 * 1024  # limit for the inflated epochs, in case the data is malformed


def pack(marks: Mapping[int, Mark]) -> dict[str, Any]:
    """Packs the marks of a topic's partitions into JSON. Equal marks give equal JSON."""
    numbers = sorted(marks)
    found = [marks[number] for number in numbers]
    packed: dict[str, Any] = {
        "numbers": ",".join(_ranges(numbers)),
        "offsets": ",".join(str(mark.offset) for mark in found),
    }
    if any(mark.lineage.entries for mark in found):
        packed["epochs"] = _deflate(";".join(_history(mark) for mark in found))
    if len(packed["offsets"]) + len(packed.get("epochs", "")) > _DENSE_FROM:
        del packed["offsets"]
        packed |= _pack_densely(found)
    for name, field in (("read", "begin"), ("first", "first")):
        values = [(mark.offset, getattr(mark, field)) for mark in found]
        if any(value is not None for _, value in values):
            packed[name] = ",".join(_back(offset, value) for offset, value in values)
    lost = {
        str(number): {name: value for name, value in mark.encode().items() if name in _LOSS}
        for number, mark in zip(numbers, found, strict=True)
        if mark.why is not None or mark.lost is not None
    }
    return {**packed, **({"lost": lost} if lost else {})}


def unpack(packed: Mapping[str, Any]) -> dict[int, Mark]:
    """Unpacks the marks of a topic's partitions from JSON.

    Raises:
        KeyError, TypeError, AttributeError: A field is missing or has another type.
        ValueError: A field has an invalid value.
    """
    ranges = [_range(part) for part in packed["numbers"].split(",")]
    if sum(each.stop - each.start for each in ranges) > _MOST_PARTITIONS:
        raise ValueError(f"{packed['numbers']} are more than {_MOST_PARTITIONS} partitions")
    numbers = [number for each in ranges for number in each]
    histories = _inflate(packed["epochs"]).split(";") if "epochs" in packed else [""] * len(numbers)
    if is_dense(packed):
        offsets, histories = _unpack_densely(packed, histories)
    else:
        offsets = [offset_of(int(text)) for text in packed["offsets"].split(",")]
    begins = _column(packed, "read", offsets)
    firsts = _column(packed, "first", offsets)
    lost: Mapping[str, Any] = packed.get("lost", {})
    marks = {}
    for number, offset, begin, first, history in zip(
        numbers, offsets, begins, firsts, histories, strict=True
    ):
        loss = Mark.decode({"offset": offset, **lost.get(str(number), {})})
        marks[number] = Mark(
            offset,
            _lineage(history, offset),
            None if begin is None else offset_of(begin),
            loss.why,
            loss.lost,
            first if first in {None, UNRESOLVED} else offset_of(first),
        )
    return marks


def is_dense(packed: Mapping[str, Any]) -> bool:
    """Returns whether the marks are packed as in version 3."""
    return "dense" in packed


_LOSS: Final = frozenset({"why", "lost_first", "lost_last"})
_MOST_PARTITIONS: Final = 1_000_000
"""If a checkpoint lists more than this many partitions of a topic, it counts as damaged. The list would fill the
memory.
"""


def _ranges(numbers: Iterable[int]) -> Iterable[str]:
    for _, run in itertools.groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        members = [number for _, number in run]
        yield f"{members[0]}-{members[-1]}" if len(members) > 1 else str(members[0])


def _range(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def _back(offset: int, value: int | None) -> str:
    if value is None:
        return ""
    if value == UNRESOLVED:
        return "?"
    return str(offset - value) if value <= offset else f"={value}"


def _column(packed: Mapping[str, Any], name: str, offsets: Sequence[int]) -> list[int | None]:
    if name not in packed:
        return [None] * len(offsets)
    texts = packed[name].split(",")
    return [_forth(offset, text) for offset, text in zip(offsets, texts, strict=True)]


def _forth(offset: int, text: str) -> int | None:
    if not text:
        return None
    if text == "?":
        return UNRESOLVED
    return int(text[1:]) if text.startswith("=") else offset - int(text)


def _history(mark: Mark) -> str:
    lineage = mark.lineage
    if not lineage.entries:
        return ""
    end = [] if lineage.end_offset == mark.offset else [f"@{lineage.end_offset}"]
    return ",".join([*end, *(f"{epoch}:{start}" for epoch, start in _newest(lineage))])


def _newest(lineage: Lineage) -> Sequence[tuple[int, int]]:
    return lineage.entries[-_EPOCHS:]


def _lineage(text: str, offset: int) -> Lineage:
    if not text:
        return Lineage()
    parts = text.split(",")
    end = int(parts.pop(0)[1:]) if parts[0].startswith("@") else offset
    entries = [part.split(":") for part in parts]
    return Lineage([(int(epoch), int(start)) for epoch, start in entries], end)


# --- version 3 --------------------------------------------------------------------------------------------------------

# ASCII that JSON does not escape, without the comma.
_LETTERS: Final = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) not in '",\\')
_DIGITS: Final = [one + other for one in _LETTERS for other in _LETTERS]  # a digit is a pair of letters
_VALUES: Final = {digit: value for value, digit in enumerate(_DIGITS)}
_BASE: Final = len(_DIGITS)
_TOGETHER: Final = 64  # number of partitions whose values are encoded together, as one large number


class _Dense:
    """Encodes numbers with known bounds as digits of a mixed radix, so that a number below n takes only log2(n) bits.

    The first offset of an epoch is below the first offset of each later epoch, and below the partition's next offset.
    So the reader knows the bound of each number before it reads the number.

    Args:
        text: The digits, with a comma between groups of partitions.
    """

    def __init__(self, text: str) -> None:
        self._groups = text.split(",")[::-1]
        self._left = 0
        self._count = 0

    def begin(self) -> None:
        """Moves on to the next partition."""
        if self._count % _TOGETHER == 0:
            if not self._groups:
                raise ValueError("the offsets are damaged: there are too few")
            group = self._groups.pop()
            self._left = 0
            for at in range(0, len(group), 2):
                self._left = self._left * _BASE + _VALUES[group[at : at + 2]]
        self._count += 1

    def below(self, bound: int) -> int:
        """Reads a number from 0 to `bound` - 1."""
        if bound < 1:
            raise ValueError("the offsets are damaged: an epoch begins before offset 0")
        self._left, value = divmod(self._left, bound)
        return value

    @property
    def is_read(self) -> bool:
        """Whether all groups were read."""
        return not self._groups

    @staticmethod
    def write(partitions: Sequence[Sequence[tuple[int, int]]]) -> str:
        """Writes the numbers of each partition. A pair consists of a number and its bound: the number is less than the
        bound. A partition's numbers must be given in the order in which they will be read.
        """
        texts = []
        for at in range(0, len(partitions), _TOGETHER):
            whole = 0
            for part in partitions[at : at + _TOGETHER][::-1]:
                for number, bound in part[::-1]:
                    whole = whole * bound + number
            digits = []
            while whole:
                whole, digit = divmod(whole, _BASE)
                digits.append(_DIGITS[digit])
            texts.append("".join(digits[::-1]))
        return ",".join(texts)


def _pack_densely(found: Sequence[Mark]) -> dict[str, Any]:
    least, most = min(mark.offset for mark in found), max(mark.offset for mark in found)
    numbers, texts = [], []
    for mark in found:
        bound = mark.lineage.end_offset if mark.lineage.entries else 0
        entries = _newest(mark.lineage)
        pairs = [(mark.offset - least, most - least + 1)]
        for _, start in reversed(entries):
            if start:
                pairs.append((start - 1, bound))
                bound = start
        numbers.append(pairs)
        end = [f"@{mark.lineage.end_offset}"] if entries and mark.lineage.end_offset != mark.offset else []
        texts.append(",".join([*end, *(str(epoch) if start else f"{epoch}:" for epoch, start in entries)]))
    return {"least": least, "most": most, "dense": _Dense.write(numbers), "epochs": _deflate(";".join(texts))}


def _unpack_densely(packed: Mapping[str, Any], texts: Sequence[str]) -> tuple[list[int], list[str]]:
    """Returns the offsets, and the leader epochs in the format of version 2."""
    least, most = offset_of(packed["least"]), offset_of(packed["most"])
    if most < least:
        raise ValueError(f"the highest offset {most} is below the lowest one {least}")
    dense = _Dense(packed["dense"])
    offsets, histories = [], []
    for text in texts:
        dense.begin()
        offset = least + dense.below(most - least + 1)
        offsets.append(offset)
        epochs = text.split(",") if text else []
        end = [epochs.pop(0)] if text.startswith("@") else []
        bound = int(end[0][1:]) if end else offset
        parts = []
        for epoch in reversed(epochs):
            if epoch.endswith(":"):
                parts.append(f"{epoch}0")
            else:
                bound = dense.below(bound) + 1
                parts.append(f"{epoch}:{bound}")
        histories.append(",".join([*end, *reversed(parts)]))
    if not dense.is_read:
        raise ValueError("the offsets are damaged: there are too many")
    return offsets, histories


def _deflate(text: str) -> str:
    return base64.b64encode(zlib.compress(text.encode("ascii"), 9)).decode("ascii")


def _inflate(text: str) -> str:
    reader = zlib.decompressobj()
    try:
        found = reader.decompress(base64.b64decode(text, validate=True), _MAX_TEXT_BYTES)
    except zlib.error as wrong:
        raise ValueError(f"the histories of epochs are damaged: {wrong}") from None
    if not reader.eof:
        raise ValueError("the histories of epochs are damaged: the data is incomplete")
    return found.decode("ascii")
