"""Offsets as JSON, and how ranges are divided."""

from __future__ import annotations

import base64
import json
import random
import zlib
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkasafe.errors import ConfigError
from kafkasafe.history.epochs import Lineage
from kafkasafe.spark import packed
from kafkasafe.spark.listener import _offsets
from kafkasafe.spark.marks import UNRESOLVED, Mark
from kafkasafe.spark.packed import pack, unpack
from kafkasafe.spark.positions import INITIAL, Positions, Recent, divide, ranges_between, share

marks = st.builds(
    lambda offset, lineage, loss, first: Mark(offset, lineage, *loss, first=first),
    st.integers(0, 2**62),
    st.sampled_from([Lineage(), Lineage([(0, 0), (3, 7)], 12), Lineage([(9, 4)], 4_000_000_000)]),
    st.sampled_from([(None, None, None), (5, None, None), (5, "retention", (1, 4)), (0, "recreated", None)]),
    st.sampled_from([None, UNRESOLVED, 0, 7]),
)
partitions = st.tuples(st.sampled_from(["orders", "version", "kafkasafe", "ä"]), st.integers(0, 300))


def same(one: Positions, other: Positions) -> bool:
    return (dict(one.marks), dict(one.topic_ids), one.initial) == (
        dict(other.marks),
        dict(other.topic_ids),
        other.initial,
    )


@given(st.dictionaries(partitions, marks, max_size=8), st.booleans())
def test_positions_survive_sparks_json(found: dict[Any, Mark], initial: bool) -> None:
    positions = Positions(found, {topic: b"\x01\xff" for topic, _ in found}, initial)
    written = json.dumps(positions.encode())
    read = Positions.decode(json.loads(written))
    assert same(read, positions)
    assert json.dumps(read.encode()) == written


@given(
    st.dictionaries(st.integers(0, 3000), marks, min_size=1, max_size=30),
    st.integers(0, 3),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_topics_of_any_size_survive_sparks_json(
    found: dict[int, Mark], run: int, is_large: bool, initial: bool, is_dense: bool
) -> None:
    marks = {("other", 1): Mark(5, Lineage([(0, 0)], 5))}
    marks |= {("t", number): Mark(number) for number in range(run * 7, run * 7 + (150 if is_large else 10))}
    marks |= {("t", number): mark for number, mark in found.items()}
    positions = Positions(marks, {"t": b"\x01\xff"}, initial)
    with pytest.MonkeyPatch.context() as patched:
        if is_dense:
            patched.setattr(packed, "_DENSE_FROM", 0)
        written = json.dumps(positions.encode())
        read = Positions.decode(json.loads(written))
        assert same(read, positions)
        assert json.dumps(read.encode()) == written
    number_of = sum(topic == "t" for topic, _ in marks)
    assert json.loads(written)["kafkasafe"] == (1 if number_of < 100 else 3 if is_dense else 2)
    assert _offsets(written) == {(topic, str(number)): mark.offset for (topic, number), mark in marks.items()}


def entry_bytes(count: int, epochs: int, *, is_first: bool) -> int:
    """Of an entry of the offset log, as Spark has it."""
    rng = random.Random(1)
    found = {}
    for number in range(count):
        offset = rng.randrange(10**7, 10**10)
        starts = [0, *sorted(rng.sample(range(offset), epochs - 1))]
        lineage = Lineage([(3 * epoch, start) for epoch, start in enumerate(starts)], offset)
        found["orders", number] = Mark(offset, lineage, begin=offset - 20 if is_first else None)
    positions = Positions(found, {"orders": bytes(range(16))})
    assert same(Positions.decode(json.loads(json.dumps(positions.encode()))), positions)
    return len(json.dumps(positions.encode()))


def test_an_entry_of_a_thousand_partitions_is_small() -> None:
    """In version 1 it was 55 kB and more."""
    assert entry_bytes(1000, 1, is_first=False) < 15_000
    assert entry_bytes(1000, 1, is_first=True) < 15_000
    # 27 kB in version 2. The offsets alone, as text, take 11 kB.
    assert entry_bytes(1000, 3, is_first=False) < 15_000


def test_the_latest_entries_are_not_decoded_again() -> None:
    recent = Recent()
    first, second, third = (
        Positions({("t", number): Mark(number) for number in range(size)}) for size in (99, 100, 101)
    )
    texts = [json.dumps(recent.encode(positions)) for positions in (first, second)]
    assert [recent.decode(json.loads(text)) for text in texts] == [first, second]
    assert recent.decode(json.loads(texts[0])) is first
    assert recent.decode(json.loads(texts[1])) is second
    other = recent.decode(third.encode())
    assert other is not third
    assert other == third
    assert recent.decode(third.encode()) is other
    again = recent.decode(json.loads(texts[0]))
    assert again is not first
    assert again == first


def test_version_1_of_a_thousand_partitions_is_read() -> None:
    found = {("t", number): Mark(10**9 + number, Lineage([(0, 0)], 10**9 + number)) for number in range(1000)}
    entries = {str(number): mark.encode() for (_, number), mark in found.items()}
    old = {"kafkasafe": 1, "topics": {"t": {"partitions": entries}}}
    assert len(json.dumps(old)) > 55_000
    assert same(Positions.decode(old), Positions(found))


def test_the_connectors_checkpoints_are_read() -> None:
    read = Positions.decode({"orders": {"0": 42, "11": 0}})
    assert same(read, Positions({("orders", 0): Mark(42), ("orders", 11): Mark(0)}))


PACKED: dict[str, Any] = pack(
    {number: Mark(number + 1, Lineage([(0, 0)], number + 1)) for number in range(3)}
)


DENSE: dict[str, Any] = pack(
    {
        number: Mark(10**12 + number, Lineage([(0, 0), (7, 10**11 - number)], 10**12 + number))
        for number in range(1000)
    }
)


def test_what_is_packed_densely_is_as_documented() -> None:
    assert set(DENSE) == {"numbers", "least", "most", "dense", "epochs"}
    assert (DENSE["numbers"], DENSE["least"], DENSE["most"]) == ("0-999", 10**12, 10**12 + 999)
    assert zlib.decompress(base64.b64decode(DENSE["epochs"])) == b";".join([b"0:,7"] * 1000)
    assert json.dumps(DENSE["dense"]) == f'"{DENSE["dense"]}"'
    assert unpack(DENSE)[999].lineage.entries == ((0, 0), (7, 10**11 - 999))


def test_what_is_packed_is_as_documented() -> None:
    assert {**PACKED, "epochs": ""} == {"numbers": "0-2", "offsets": "1,2,3", "epochs": ""}
    assert zlib.decompress(base64.b64decode(PACKED["epochs"])) == b"0:0;0:0;0:0"
    loss = Mark(9, Lineage([(2, 3)], 8), 4, "retention", (1, 3))
    told = pack({0: Mark(5), 7: loss, 8: Mark(6, first=UNRESOLVED), 9: Mark(7, first=2)})
    assert zlib.decompress(base64.b64decode(told.pop("epochs"))) == b";@8,2:3;;"
    assert told == {
        "numbers": "0,7-9",
        "offsets": "5,9,6,7",
        "read": ",5,,",
        "first": ",,?,5",
        "lost": {"7": {"why": "retention", "lost_first": 1, "lost_last": 3}},
    }


@pytest.mark.parametrize(
    "other",
    [
        {"kafkasafe": 4, "topics": {}},
        {"kafkasafe": 2, "topics": {"orders": {"packed": DENSE}}},
        {"kafkasafe": 3, "topics": {"orders": {"packed": {**DENSE, "dense": DENSE["dense"][1:]}}}},
        {"kafkasafe": 3, "topics": {"orders": {"packed": {**DENSE, "dense": DENSE["dense"] + ",!!"}}}},
        {"kafkasafe": 3, "topics": {"orders": {"packed": {**DENSE, "dense": DENSE["dense"].split(",")[0]}}}},
        {"kafkasafe": 3, "topics": {"orders": {"packed": {**DENSE, "most": DENSE["least"] - 1}}}},
        {"kafkasafe": 3, "topics": {"orders": {"packed": {**DENSE, "numbers": "0-7"}}}},
        {"kafkasafe": 3, "topics": {"orders": {"packed": {**DENSE, "epochs": PACKED["epochs"]}}}},
        {"kafkasafe": 1, "topics": {"orders": {"packed": PACKED}}},
        {"kafkasafe": 2, "topics": {"orders": {"packed": {**PACKED, "offsets": "1,2"}}}},
        {"kafkasafe": 2, "topics": {"orders": {"packed": {**PACKED, "offsets": "1,2,-3"}}}},
        {"kafkasafe": 2, "topics": {"orders": {"packed": {**PACKED, "numbers": "0-2,7"}}}},
        {"kafkasafe": 2, "topics": {"orders": {"packed": {**PACKED, "read": "0,0"}}}},
        {"kafkasafe": 2, "topics": {"orders": {"packed": {**PACKED, "read": "0,0,9"}}}},
        {"kafkasafe": 2, "topics": {"orders": {"packed": {**PACKED, "epochs": PACKED["epochs"][:-8]}}}},
        {"kafkasafe": 2, "topics": {"orders": {"packed": {**PACKED, "epochs": "AAAA"}}}},
        {"kafkasafe": 2, "topics": {"orders": {"packed": {**PACKED, "epochs": "?"}}}},
        {"kafkasafe": 2, "topics": {"orders": {"packed": {"numbers": "0-2"}}}},
        # It would fill the memory.
        {"kafkasafe": 2, "topics": {"orders": {"packed": {"numbers": "0-99999999999", "offsets": "1"}}}},
        {"index": 5},
        5,  # of Spark's rate source
        ["orders"],
        {"orders": {"0": "x"}},
        {"orders": {"a": 5}},
        {"kafkasafe": 1, "topics": {"orders": {"partitions": {"0": {"offset": -1}}}}},
        {"kafkasafe": 1, "topics": {"orders": {"partitions": {"0": {"offset": 1, "epochs": "?"}}}}},
        {"kafkasafe": 1, "topics": {"orders": {"partitions": {"0": {"offset": 1, "first": -2}}}}},
    ],
)
def test_other_checkpoints_are_refused(other: Any) -> None:
    with pytest.raises(ConfigError, match=r"KAFKASAFE\.CHECKPOINT"):
        Positions.decode(other)


def test_a_range_never_goes_back() -> None:
    start = Positions({("t", 0): Mark(10), ("t", 1): Mark(10), ("t", 3): Mark(1)})
    end = Positions({("t", 0): Mark(10), ("t", 1): Mark(8, begin=5), ("t", 2): Mark(4, begin=1)})
    assert list(ranges_between(start, end)) == [(("t", 0), 10, 10), (("t", 1), 5, 8), (("t", 2), 1, 4)]
    # What an earlier batch skipped or went back to is not read again by the next one.
    assert [begin == last for _, begin, last in ranges_between(end, end)] == [True] * 3
    assert list(ranges_between(Positions(end.marks, {"t": b"1"}), Positions(end.marks, {"t": b"2"})))[1][
        1:
    ] == (5, 8)
    with pytest.raises(ConfigError, match="OFFSETS_GO_BACK"):
        list(ranges_between(start, Positions({("t", 0): Mark(9)})))


def test_an_id_that_is_known_only_by_now_makes_no_range_twice() -> None:
    """Brokers give topics ids once they are upgraded, and the first batch has noted where its ranges begin."""
    start = Positions({("t", 0): Mark(10, begin=0), ("t", 1): Mark(10, begin=0)})
    end = Positions({("t", 0): Mark(10, begin=0), ("t", 1): Mark(12)}, {"t": b"1"})
    assert list(ranges_between(start, end)) == [(("t", 0), 10, 10), (("t", 1), 10, 12)]


def test_a_first_range_begins_where_its_end_says() -> None:
    at = ("t", 0)
    end = {
        "it says so": (Mark(15, begin=10), 10),
        "nothing is in it": (Mark(15, begin=15), 15),
        "of a run": (Mark(15, first=12), 12),
        "it does not": (Mark(15), 3),
        "nobody knew": (Mark(15, first=UNRESOLVED), 3),
    }
    for name, (mark, begin) in end.items():
        # Whatever the starting options mean by now, and also where that looks like the end.
        for offset in (3, *([15, 99] if begin != 3 else [])):
            start = Positions({at: Mark(offset)}, initial=True)
            assert list(ranges_between(start, Positions({at: mark}))) == [(at, begin, 15)], name
        assert list(ranges_between(INITIAL, Positions({at: mark}))) == [(at, 0 if begin == 3 else begin, 15)]
    # `first` is of a new query only.
    after = Positions({at: Mark(14)})
    assert list(ranges_between(after, Positions({at: Mark(15, first=99)}))) == [(at, 14, 15)]
    same = Positions({at: Mark(15, begin=10)})
    assert list(ranges_between(same, same)) == [(at, 15, 15)]


@given(
    st.dictionaries(partitions, st.integers(0, 10**12), min_size=1, max_size=9),
    st.integers(1, 10**6),
    st.integers(0, 100),
)
def test_shares_keep_the_limit_and_leave_nothing_over(sizes: dict[Any, int], limit: int, turn: int) -> None:
    shares = share(sizes, limit, turn)
    assert shares.keys() == sizes.keys()
    assert all(0 <= shares[partition] <= size for partition, size in sizes.items())
    assert sum(shares.values()) == min(limit, sum(sizes.values()))
    if limit >= sum(size > 0 for size in sizes.values()):
        assert all(shares[partition] > 0 for partition, size in sizes.items() if size)


def test_everybody_has_his_turn() -> None:
    sizes = {("t", number): 100 for number in range(5)}
    served = {partition for turn in range(5) for partition, n in share(sizes, 2, turn).items() if n}
    assert served == set(sizes)


@given(
    st.dictionaries(
        partitions, st.tuples(st.integers(0, 10**9), st.integers(1, 10**4)), min_size=1, max_size=6
    ),
    st.integers(0, 40),
    st.integers(0, 5000),
)
def test_pieces_are_the_ranges(found: dict[Any, tuple[int, int]], at_least: int, most: int) -> None:
    ranges = [(partition, begin, begin + size) for partition, (begin, size) in found.items()]
    if most and any(size // most > 300 for _, size in found.values()):
        most = 0
    pieces = list(divide(ranges, at_least=at_least, max_records=most))
    for partition, begin, end in ranges:
        mine = [(first, last) for where, first, last in pieces if where == partition]
        assert mine[0][0] == begin
        assert mine[-1][1] == end
        assert all(one[1] == two[0] for one, two in pairwise(mine))
        assert all(first < last for first, last in mine)
        assert not most or all(last - first <= most for first, last in mine)
