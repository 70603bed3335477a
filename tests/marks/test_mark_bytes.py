"""The bytes of each mark stay as they are: tests/marks/mark_bytes.txt has them.

`REWRITE_GOLDEN=1` adds the bytes of a new example. It does not change those of an old one: the spools of users hold them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, get_args

import crc32c
import pytest

from kafkasafe import marks as m
from kafkasafe.record import batch

GOLDEN: Final = Path(__file__).with_name("mark_bytes.txt")
TOPIC_ID: Final = bytes(range(16))
UNIT_ID: Final = bytes(range(16, 32))
BEGUN: Final = m.Begun(UNIT_ID, "täglich", 4711, 3, 2)
GROUP: Final = m.Group(
    2,
    b"0123456789abcdef",
    100,
    90,
    True,
    False,
    True,
    (m.ManifestEntry(102, 1, 200, 0xDEADBEEF), m.ManifestEntry(105, 2, 300, 7)),
)
OFFSETS: Final = (
    m.GroupOffsets("g", "", -1, None, (m.Position("t", 3, 77), m.Position("ü", 0, 0, 9, "mine"))),
    m.GroupOffsets("h", "member", 5, "", ()),
    m.GroupOffsets("i", "", 0, "static", (m.Position("t", 1, 2**40, 1, ""),)),
)
EXAMPLES: Final[dict[str, m.Mark]] = {
    "topic": m.Topic("tö", TOPIC_ID, 6),
    "topic without an id": m.Topic("t", m.NO_TOPIC_ID, -1),
    "destination": m.Destination(3, "tö", 2**31 - 1),
    "destination without a partition": m.Destination(1, "t", -1),
    "state": m.State(3, 10, 11, 4, TOPIC_ID),
    "state, a reset": m.State(3, -1, -1, -1, m.NO_TOPIC_ID),
    "granted": m.Granted(2**40, 2**15 - 1),
    "identified": m.Identified(
        3, m.IdentityReason.REIDENTIFIED, 5, (m.Identity(6, 4711, 2, 30), m.Identity(9, 4711, 2, 33))
    ),
    "identified, only void": m.Identified(3, m.IdentityReason.FIRST, 0, ()),
    "committed": m.Committed(3, 4, ((1, 55), (2, -1))),
    "committed, one": m.Committed(3, -1, ((2**40, 2**41),)),
    "replaced": m.Replaced(4, 0, 2),
    "rejected": m.Rejected(3, -4, "too lärge"),
    "rejected, cut": m.Rejected(3, 10, "ä" * 20_000),
    "undecidable": m.Undecidable(2, "lone \ud800 surrogate"),
    "resolved": m.Resolved(2, m.Decision.SKIP),
    "revived": m.Revived(3, 50, (2, 1), (4,), ((3, 7), (5, 8))),
    "revived, without any": m.Revived(3, 50, ()),
    "resent": m.Resent("lane-003", "7.log"),
    "cluster": m.Cluster("Clüster"),
    "torn": m.Torn((4, 7)),
    "given": m.Given(1, ((0, 2, 5), (4, 1, 0))),
    "given, none": m.Given(0, ()),
    "quiet": m.Quiet(9, 5, TOPIC_ID, 3),
    "quiet, unknown": m.Quiet(-1, 5, m.NO_TOPIC_ID, 0),
    "after": m.After(40, (m.Debt(2, b"0123456789abcdef", 90), m.Debt(4, TOPIC_ID, 1))),
    "unit": m.Unit(UNIT_ID, 0, 2, "täglich", OFFSETS),
    "unit without offsets": m.Unit(UNIT_ID, 1, 1),
    "read": m.Read(UNIT_ID, ((4, -1), (5, 2**40))),
    "begun": BEGUN,
    "staged": m.Staged(BEGUN, (m.Placed(1, 102, 3, 0, 55), m.Placed(2, 105, 1, 2**31 - 1, -1))),
    "staged, nothing": m.Staged(BEGUN, ()),
    "ended": m.Ended(UNIT_ID, m.UnitOutcome.COMMITTED),
    "ended, dropped": m.Ended(UNIT_ID, m.UnitOutcome.DROPPED, "gründlich"),
    "moved": m.Moved((m.Move(99, 4, (5, 9)), m.Move(98, 98, (98,)))),
}


def encoded(mark: m.Mark) -> tuple[bytes, bytes]:
    """Key and value of the control record of a mark."""
    columns = batch.decode(m.encode_group(GROUP, [mark], 1_700_000_000_000))
    return columns.keys[1], columns.values[1]


def golden() -> dict[str, str]:
    """By name, the bytes of the examples in hexadecimal digits."""
    lines = GOLDEN.read_text(encoding="utf-8").splitlines() if GOLDEN.exists() else []
    return dict(line.split(": ") for line in lines)


def check(name: str, found: str) -> None:
    """Compare with the golden file; with `REWRITE_GOLDEN`, add what it lacks."""
    known = golden()
    if os.environ.get("REWRITE_GOLDEN") and name not in known:
        known[name] = found
        GOLDEN.write_text("".join(f"{key}: {known[key]}\n" for key in sorted(known)), encoding="utf-8")
    assert known[name] == found


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_bytes_of_a_mark_stay(name: str) -> None:
    key, value = encoded(EXAMPLES[name])
    size = f"{len(value)} bytes, CRC32C {crc32c.crc32c(value):08x}"
    check(name, f"{key.hex()} {value.hex() if len(value) < 300 else size}")


def test_the_bytes_of_a_control_batch_stay() -> None:
    """The GROUP record, and some marks in one batch."""
    marks = [EXAMPLES[name] for name in ("topic", "destination", "state", "committed", "unit", "staged")]
    manifest = (
        m.ManifestEntry(101 + len(marks), 1, 200, 0xDEADBEEF),
        m.ManifestEntry(110 + len(marks), 2, 300, 7),
    )
    group = m.Group(2, b"0123456789abcdef", 100, 90, True, True, False, manifest)
    buf = m.encode_group(group, marks, 1_700_000_000_000)
    assert m.decode_group(buf) == (group, marks)
    check("several in one control batch", f"{len(buf)} bytes, CRC32C {crc32c.crc32c(buf):08x}")


def test_each_mark_has_an_example() -> None:
    """The last test of this module, because with `REWRITE_GOLDEN` the others write the bytes."""
    assert {type(mark) for mark in EXAMPLES.values()} == set(get_args(m.Mark))
    assert golden().keys() == {*EXAMPLES, "several in one control batch"}
