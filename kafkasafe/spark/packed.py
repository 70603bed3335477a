"""A compact JSON format for the marks of a topic with many partitions.

A mark is the position of one partition (`marks`). Spark writes all marks into its offset log for each micro-batch, so
their size matters.

```json
{"numbers": "0-999", "offsets": "42,17,…", "epochs": "eNo…", "read": "5,0,…", "lost": {"7": {"why": "retention", …}}}
```

- `numbers`: the partition numbers, as ranges. The other lists have the same order.
- `offsets`: the next offset of each partition. The field stays plain text so that people can read it.
- `epochs`: the leader epochs of each partition, deflated and in base64. Before deflation the text looks like
  `3:0,4:1200;;@17,3:0`. `;` separates partitions, and each entry is an epoch and its first offset. If the known epochs
  of a partition end at 17 instead of at its next offset, its first entry is `@17`. The field is absent if no epochs are
  known.
- `read`: for each partition, the number of offsets in its range (`offset - begin`). If `begin` is above
  `offset`, the entry is `=` followed by `begin`. If the mark has no `begin`, the entry is empty. The field is absent if
  no mark has a `begin`.
- `first`: `Mark.first` in the format of `read`, with `?` for `UNRESOLVED`.
- `lost`: `why`, `lost_first` and `lost_last` of each partition that lost records.
"""

from __future__ import annotations

import base64
import itertools
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from kafkasafe._core.epochs import Lineage
from kafkasafe.spark.marks import UNRESOLVED, Mark, offset_of

__all__ = ["pack", "unpack"]

_EPOCHS: Final = 32  # number of epochs that are kept for each partition; older ones are dropped
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
        text = ";".join(_history(mark) for mark in found)
        packed["epochs"] = base64.b64encode(zlib.compress(text.encode("ascii"), 9)).decode("ascii")
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
    numbers = [number for part in packed["numbers"].split(",") for number in _range(part)]
    offsets = [offset_of(int(text)) for text in packed["offsets"].split(",")]
    begins = _column(packed, "read", offsets)
    firsts = _column(packed, "first", offsets)
    histories = _inflate(packed["epochs"]).split(";") if "epochs" in packed else [""] * len(numbers)
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


_LOSS: Final = frozenset({"why", "lost_first", "lost_last"})


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
    newest = lineage.entries[-_EPOCHS:]
    return ",".join([*end, *(f"{epoch}:{start}" for epoch, start in newest)])


def _lineage(text: str, offset: int) -> Lineage:
    if not text:
        return Lineage()
    parts = text.split(",")
    end = int(parts.pop(0)[1:]) if parts[0].startswith("@") else offset
    entries = [part.split(":") for part in parts]
    return Lineage([(int(epoch), int(start)) for epoch, start in entries], end)


def _inflate(text: str) -> str:
    reader = zlib.decompressobj()
    try:
        found = reader.decompress(base64.b64decode(text, validate=True), _MAX_TEXT_BYTES)
    except zlib.error as wrong:
        raise ValueError(f"the histories of epochs are damaged: {wrong}") from None
    if not reader.eof:
        raise ValueError("the histories of epochs are damaged: the data is incomplete")
    return found.decode("ascii")
