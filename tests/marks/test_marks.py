"""Marks ⇄ control batches, as docs/spool-format.md lays them out."""

from __future__ import annotations

import dataclasses
import struct

import crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkasafe import marks
from kafkasafe.marks import (
    After,
    Cluster,
    Committed,
    Debt,
    Decision,
    Destination,
    Given,
    Granted,
    Group,
    Identified,
    Identity,
    IdentityReason,
    ManifestEntry,
    MarkError,
    Quiet,
    Rejected,
    Replaced,
    Resent,
    Resolved,
    Revived,
    State,
    Topic,
    Torn,
    Undecidable,
    UnknownFormatError,
)
from kafkasafe.record import batch

NOW = 1_700_000_000_000
LANE = b"0123456789abcdef"
TOPIC_ID = bytes(range(16))
GROUP = Group(1, LANE, 100, 90, False, False, False, ())

POSITION = st.integers(0, 2**62)
INT32 = st.integers(0, 2**31 - 1)
NUMBER = st.integers(1, 2**31 - 1)
OFFSET = st.integers(-1, 2**63 - 1)
EPOCH = st.integers(-1, 2**31 - 1)
ID = st.binary(min_size=16, max_size=16)
NAME = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
IDENTITY = st.builds(Identity, POSITION, OFFSET.map(abs), st.integers(0, 2**15 - 1), INT32)

MARKS = st.one_of(
    st.builds(Topic, NAME, ID, EPOCH),
    st.builds(Destination, NUMBER, NAME, EPOCH),
    st.builds(State, NUMBER, OFFSET, OFFSET, EPOCH, ID),
    st.builds(Granted, OFFSET.map(abs), st.integers(0, 2**15 - 1)),
    st.builds(
        Identified, NUMBER, st.sampled_from(IdentityReason), OFFSET, st.lists(IDENTITY, max_size=4).map(tuple)
    ),
    st.builds(Committed, NUMBER, EPOCH, st.lists(st.tuples(POSITION, OFFSET), max_size=4).map(tuple)),
    st.builds(Rejected, POSITION, st.integers(-(2**15), 2**15 - 1), TEXT),
    st.builds(Undecidable, POSITION, TEXT),
    st.builds(Cluster, NAME),
    st.builds(Resolved, POSITION, st.sampled_from(Decision)),
    st.builds(Revived, NUMBER, OFFSET.map(abs), st.just(()), st.just(()), st.just(())),
    st.builds(Torn, st.just((0,))),
    st.builds(Quiet, st.just(2**63 - 1), OFFSET.map(abs), ID, OFFSET.map(abs)),
    st.just(Quiet(-1, 0, bytes(16), 0)),
    st.builds(
        After,
        OFFSET.map(abs),
        st.lists(st.builds(Debt, st.integers(0, 999), ID, st.integers(1, 2**62)), min_size=1, max_size=4).map(
            tuple
        ),
    ),
)


@st.composite
def groups(draw):
    written = draw(st.lists(MARKS, max_size=8))
    position = draw(POSITION)
    manifest = []
    at = position + 1 + len(written) + (replaces := draw(st.booleans()))
    for _ in range(draw(st.integers(replaces, 4))):
        manifest.append(
            ManifestEntry(at, draw(NUMBER), draw(st.integers(62, 2**31 - 1)), draw(st.integers(0, 2**32 - 1)))
        )
        at += draw(st.integers(1, 10_000))
    group = Group(
        1,
        draw(ID),
        position + replaces,
        draw(st.integers(0, position)),
        draw(st.booleans()) or replaces,
        draw(st.booleans()),
        draw(st.booleans()),
        tuple(dataclasses.replace(entry, position=entry.position + replaces) for entry in manifest),
    )
    if manifest and draw(st.booleans()):
        runs, at = [], 0
        for _ in range(draw(st.integers(0, 3))):
            at += draw(st.integers(0, 5))
            runs.append((at, draw(st.integers(1, 9)), draw(st.integers(0, 2**31 - 1))))
            at += runs[-1][1]
        if written:
            written[draw(st.integers(0, len(written) - 1))] = Given(0, tuple(runs))
    if replaces:
        first = draw(st.integers(0, len(manifest) - 1))
        children = draw(st.integers(1, len(manifest) - first))
        written.insert(
            draw(st.integers(0, len(written))), Replaced(draw(st.integers(0, position)), first, children)
        )
    return group, written


def forge(*records, address=(100, 0), timestamp=NOW):
    """A control batch of any records, each (type, body)."""
    buf = batch.encode_control(
        [(struct.pack(">hh", 0, kind), body) for kind, body in records], timestamp=timestamp
    )
    batch.stamp_address(buf, *address)
    return buf


def group_body(version=1, lane=LANE, position=100, synced=90, flags=0, count=0, rest=b""):
    return struct.pack(">h16sqqii", version, lane, position, synced, flags, count) + rest


@given(groups())
@settings(deadline=None)
def test_what_is_written_is_read(data):
    group, written = data
    buf = marks.encode_group(group, written, NOW)
    assert marks.decode_group(buf) == (group, written)
    assert marks.decode_group(memoryview(bytes(buf) + b"data batches follow")) == (group, written)
    header = batch.verify(buf)
    assert header.is_control
    assert (header.base_offset, header.partition_leader_epoch) == (group.position, 0)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)
    assert header.count == 1 + len(written)


def test_the_bytes_are_those_of_the_format():
    group = Group(1, LANE, 7, 5, True, True, True, (ManifestEntry(25, 3, 200, 0xDEADBEEF),))
    written = [
        Topic("tö", TOPIC_ID, 6),
        Destination(3, "t", -1),
        State(3, 10, 11, 4, TOPIC_ID),
        Granted(4711, 2),
        Identified(3, IdentityReason.REIDENTIFIED, 5, (Identity(6, 4711, 2, 30),)),
        Committed(3, 4, ((1, 55), (2, -1))),
        Replaced(4, 0, 1),
        Rejected(3, 10, "too large"),
        Undecidable(2, "gone"),
        Resolved(2, Decision.SKIP),
        Revived(3, 50, (2, 1), (4,), ((3, 7),)),
        Torn((4, 7)),
        Resent("lane-003", "7.log"),
        Cluster("c"),
        Given(0, ((0, 2, 5), (4, 1, 0))),
        Quiet(9, 5, TOPIC_ID, 3),
        After(40, (Debt(2, LANE, 90), Debt(4, TOPIC_ID, 1))),
    ]
    columns = batch.decode(marks.encode_group(group, written, NOW))
    assert columns.keys == [struct.pack(">hh", 0, 0x4B00 + i) for i in (*range(13), 14, 15, 16, 17, 18)]
    assert columns.values == [
        struct.pack(">h16sqqii", 1, LANE, 7, 5, 7, 1) + struct.pack(">qiiI", 25, 3, 200, 0xDEADBEEF),
        b"\0\3t\xc3\xb6" + TOPIC_ID + struct.pack(">i", 6),
        struct.pack(">i", 3) + b"\0\1t" + struct.pack(">i", -1),
        struct.pack(">iqqi", 3, 10, 11, 4) + TOPIC_ID,
        struct.pack(">qh", 4711, 2),
        struct.pack(">ibqi", 3, 1, 5, 1) + struct.pack(">qqhi", 6, 4711, 2, 30),
        struct.pack(">iii", 3, 4, 2) + struct.pack(">qqqq", 1, 55, 2, -1),
        struct.pack(">qii", 4, 0, 1),
        struct.pack(">qh", 3, 10) + b"\0\x09too large",
        struct.pack(">q", 2) + b"\0\4gone",
        struct.pack(">qb", 2, 2),
        struct.pack(">iqiii", 3, 50, 2, 1, 1) + struct.pack(">qqqqq", 2, 1, 4, 3, 7),
        struct.pack(">iqq", 2, 4, 7),
        b"\0\x08lane-003\0\x057.log",
        b"\0\1c",
        struct.pack(">iiiiiiii", 0, 2, 0, 2, 5, 4, 1, 0),
        struct.pack(">qq", 9, 5) + TOPIC_ID + struct.pack(">q", 3),
        struct.pack(">qi", 40, 2)
        + struct.pack(">i", 2)
        + LANE
        + struct.pack(">qi", 90, 4)
        + TOPIC_ID
        + struct.pack(">q", 1),
    ]
    assert set(columns.timestamps) == {NOW}


def test_marks_keep_their_order():
    written = [
        Undecidable(9, "a"),
        Resolved(9, Decision.RESEND),
        Undecidable(9, "b"),
        Topic("t", TOPIC_ID, 1),
    ]
    assert marks.decode_group(marks.encode_group(GROUP, written, NOW))[1] == written


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("x" * 40_000, "x" * 32_767),
        ("ä" * 40_000, "ä" * 16_383),
        ("lone \ud800 surrogate", "lone \\ud800 surrogate"),
    ],
)
def test_free_text_is_made_to_fit(text, read):
    buf = marks.encode_group(GROUP, [Rejected(1, 2, text), Undecidable(1, text)], NOW)
    assert marks.decode_group(buf)[1] == [Rejected(1, 2, read), Undecidable(1, read)]


@pytest.mark.parametrize(
    "bad",
    [
        dataclasses.replace(GROUP, format_version=3),
        dataclasses.replace(GROUP, format_version=0),
        dataclasses.replace(GROUP, lane_id=b"short"),
        dataclasses.replace(GROUP, synced_position=101),
        dataclasses.replace(GROUP, synced_position=-1),
        dataclasses.replace(GROUP, manifest=(ManifestEntry(102, 1, 100, 0),)),
        dataclasses.replace(GROUP, manifest=(ManifestEntry(101, 0, 100, 0),)),
        dataclasses.replace(GROUP, manifest=(ManifestEntry(101, 1, 61, 0),)),
        dataclasses.replace(GROUP, manifest=(ManifestEntry(101, 1, 100, -1),)),
        dataclasses.replace(GROUP, manifest=(ManifestEntry(101, 1, 100, 0), ManifestEntry(101, 1, 100, 0))),
        Cluster(""),
        Revived(0, 50, ()),
        Revived(1, -1, ()),
        Revived(1, 50, (2, 2)),
        Revived(1, 50, (2,), (2,)),
        Revived(1, 50, (2,), (), ((2, 3),)),
        Revived(1, 50, (2,), (), ((3, -1),)),
        Revived(1, 50, (-1,)),
        Revived(1, 50, (1, 100)),
        Torn(()),
        Torn((-1,)),
        Quiet(4, 5, TOPIC_ID, 3),
        Quiet(9, 5, b"", 3),
        After(40, ()),
        After(-1, (Debt(2, LANE, 90),)),
        After(40, (Debt(2, b"short", 90),)),
        After(40, (Debt(2, LANE, 0),)),
        After(40, (Debt(-1, LANE, 90),)),
        Given(0, ()),
        Topic("", TOPIC_ID, 1),
        Topic("t", b"", 1),
        Topic("t", TOPIC_ID, -2),
        Topic("\ud800", TOPIC_ID, 1),
        Topic("x" * 32_768, TOPIC_ID, 1),
        Destination(0, "t", 0),
        Destination(1, "", 0),
        Destination(1, "t", -2),
        State(0, 0, 0, 0, TOPIC_ID),
        State(1, -2, 0, 0, TOPIC_ID),
        State(1, 0, -2, 0, TOPIC_ID),
        State(1, 0, 0, -2, TOPIC_ID),
        State(1, 0, 0, 0, b"17 bytes are too m"),
        Granted(-1, 0),
        Granted(1, -1),
        Granted(1, 2**15),
        Identified(0, IdentityReason.FIRST, -1, ()),
        Identified(1, IdentityReason.FIRST, -2, ()),
        Identified(1, IdentityReason.FIRST, -1, (Identity(1, 1, 1, -1),)),
        Committed(0, -1, ()),
        Committed(1, -2, ()),
        Committed(1, -1, ((-1, 0),)),
        Committed(1, -1, ((0, -2),)),
        Replaced(1, 0, 1),
        Rejected(-1, 0, ""),
        Rejected(1, 2**15, ""),
        Undecidable(-1, ""),
        Resolved(-1, Decision.SKIP),
    ],
    ids=repr,
)
def test_what_has_no_meaning_is_not_written(bad):
    group, written = (bad, []) if isinstance(bad, Group) else (GROUP, [bad])
    with pytest.raises(MarkError):
        marks.encode_group(group, written, NOW)


@pytest.mark.parametrize(
    "replaced",
    [
        Replaced(100, 0, 1),
        Replaced(-1, 0, 1),
        Replaced(1, 0, 0),
        Replaced(1, 0, 3),
        Replaced(1, -1, 2),
        Replaced(1, 2, 1),
    ],
)
def test_children_are_in_the_manifest_and_parents_in_the_past(replaced):
    manifest = (ManifestEntry(102, 1, 100, 0), ManifestEntry(105, 1, 100, 0))
    group = dataclasses.replace(GROUP, atomic=True, manifest=manifest)
    assert marks.decode_group(marks.encode_group(group, [Replaced(99, 1, 1)], NOW))[0] == group
    with pytest.raises(MarkError):
        marks.encode_group(group, [replaced], NOW)


MOVES = (marks.Move(99, 4, (5, 9)), marks.Move(98, 98, (98,)))


@pytest.mark.parametrize(
    "moves",
    [
        (),
        MOVES[:1],  # a batch that is said to be nothing
        (MOVES[0], MOVES[0]),
        (MOVES[0], marks.Move(100, 1, (1,))),
        (MOVES[0], marks.Move(98, 1, (100,))),
        (MOVES[0], marks.Move(98, 1, ())),
        (MOVES[0], marks.Move(98, -1, (1,))),
    ],
)
def test_moved_batches_stood_in_the_past(moves):
    manifest = (ManifestEntry(102, 1, 100, 0), ManifestEntry(105, 1, 100, 0))
    group = dataclasses.replace(GROUP, atomic=True, manifest=manifest)
    buf = marks.encode_group(group, [marks.Moved(MOVES)], NOW)
    assert marks.decode_group(buf) == (group, [marks.Moved(MOVES)])
    body = struct.pack(">iqqiqqqqiq", 2, 99, 4, 2, 5, 9, 98, 98, 1, 98)
    assert batch.decode(buf).values[1] == body
    assert batch.decode(buf).keys[1] == struct.pack(">hh", 0, 0x4B14)
    with pytest.raises(MarkError):
        marks.encode_group(group, [marks.Moved(moves)], NOW)
    with pytest.raises(MarkError):
        marks.encode_group(dataclasses.replace(group, atomic=False), [marks.Moved(MOVES)], NOW)


@pytest.mark.parametrize("runs", [((0, 0, 1),), ((-1, 1, 1),), ((0, 1, -1),), ((0, 2, 1), (1, 1, 1))])
def test_given_partitions_are_of_records_that_can_be(runs):
    group = dataclasses.replace(GROUP, manifest=(ManifestEntry(102, 1, 100, 0),))
    good = [Given(0, ((0, 2, 1), (2, 1, 0)))]
    assert marks.decode_group(marks.encode_group(group, good, NOW)) == (group, good)
    with pytest.raises(MarkError):
        marks.encode_group(group, [Given(0, runs)], NOW)


def test_a_timestamp_that_is_none():
    with pytest.raises(MarkError, match="does not fit"):
        marks.encode_group(GROUP, [], 2**63)


@pytest.mark.parametrize(
    "buf",
    [
        forge((0x4B00, group_body(version=3) + b"whatever came later")),
        forge((0x4B00, group_body(version=3)[:2])),
        forge((0x4B00, group_body(flags=8))),
        forge((0x4B00, group_body()), (0x4B1F, b"")),
        forge((0x4B00, group_body()), (0x4B0D, b"")),
        forge((0x4B00, group_body()), (0, b"")),
    ],
)
def test_a_newer_format_is_told_apart_from_damage(buf):
    with pytest.raises(UnknownFormatError, match=r"newer|upgrade"):
        marks.decode_group(buf)


def test_a_newer_key_version():
    buf = batch.encode_control([(b"\0\1\x4b\0", group_body())], timestamp=NOW)
    with pytest.raises(UnknownFormatError):
        marks.decode_group(buf)


@pytest.mark.parametrize(
    ("buf", "message"),
    [
        (forge((0x4B00, group_body()), address=(101, 0)), "has the address 101"),
        (forge((0x4B00, group_body()), address=(100, 1)), "destination 1"),
        (forge((0x4B01, b"\0\1t" + TOPIC_ID + bytes(4))), "does not begin with a group"),
        (forge((0x4B00, group_body()), (0x4B00, group_body())), "second group"),
        (forge((0x4B00, group_body(version=0))), "no meaning"),
        (forge((0x4B00, b"")), "too short"),
        (forge((0x4B00, group_body()[:-1])), "too short"),
        (forge((0x4B00, group_body() + b"\0")), "1 bytes too many"),
        (forge((0x4B00, group_body(count=-1))), "-1 entries"),
        (forge((0x4B00, group_body(count=2**31 - 1))), "too short"),
        (forge((0x4B00, group_body()), (0x4B01, b"\xff\xff")), "text of -1 bytes"),
        (forge((0x4B00, group_body()), (0x4B01, b"\0\7t")), "too short"),
        (forge((0x4B00, group_body()), (0x4B09, bytes(8) + b"\0\1\xff")), "not UTF-8"),
        (forge((0x4B00, group_body()), (0x4B04, bytes(11))), "1 bytes too many"),
        (
            forge((0x4B00, group_body()), (0x4B05, struct.pack(">ibqi", 1, 2, -1, 0))),
            "unknown IdentityReason 2",
        ),
        (forge((0x4B00, group_body()), (0x4B0A, struct.pack(">qb", 1, 0))), "unknown Decision 0"),
        (forge((0x4B00, group_body()), (0x4B0A, struct.pack(">qb", -1, 1))), "no meaning"),
        (
            forge((0x4B00, group_body(flags=1)), (0x4B16, struct.pack(">16siihi", LANE, 0, 0, 0, -1))),
            "UNIT mark with -1 entries",
        ),
    ],
)
def test_damage_behind_a_right_crc_is_named(buf, message):
    with pytest.raises(MarkError, match=message) as raised:
        marks.decode_group(buf)
    assert not isinstance(raised.value, UnknownFormatError)


def test_other_batches_are_no_groups():
    key = struct.pack(">hh", 0, 0x4B00)
    data = batch.encode([key], [group_body()], timestamps=NOW)
    identified = forge((0x4B00, group_body()))
    batch.stamp_identity(identified, 1, 0, 0)
    headed = batch.encode([key], [group_body()], timestamps=NOW, headers={0: [("h", None)]})
    compressed = batch.encode([key], [group_body()], timestamps=NOW, compression=batch.Compression.ZSTD)
    holes = forge((0x4B00, group_body()))
    empty = forge((0x4B00, group_body()))[:61]
    struct.pack_into(">i", empty, 8, 49)
    struct.pack_into(">i", empty, 57, 0)
    for buf in (headed, compressed):
        buf[22] |= 0x20
    for count in (1,):
        at = holes.index(key) - 2  # the offset delta
        assert holes[at : at + 2] == bytes([0, 4 * 2 * count])
        holes[at] = 2
        struct.pack_into(">i", holes, 23, 1)
    for buf in (data, identified, headed, compressed, holes, empty):
        struct.pack_into(">I", buf, 17, crc32c.crc32c(memoryview(buf)[21:]))
        with pytest.raises(MarkError, match="is not a control batch of a spool"):
            marks.decode_group(buf)


@pytest.mark.parametrize(
    ("key", "value"), [(None, b""), (b"", b""), (b"\0\0\x4b", b""), (b"\0\0\x4b\0", None)]
)
def test_records_that_are_no_control_records(key, value):
    buf = batch.encode_control([(key, value)], timestamp=NOW)
    with pytest.raises(MarkError, match="Not a control record"):
        marks.decode_group(buf)


def test_every_flipped_bit_and_every_truncation_is_noticed():
    group = dataclasses.replace(GROUP, manifest=(ManifestEntry(104, 1, 100, 7),))
    written = [Topic("t", TOPIC_ID, 1), Granted(5, 0), Committed(1, 2, ((3, 4),))]
    buf = bytes(marks.encode_group(group, written, NOW))
    for bit in range(8 * len(buf)):
        damaged = bytearray(buf)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(MarkError):
            marks.decode_group(damaged)
    for size in range(len(buf)):
        with pytest.raises(MarkError):
            marks.decode_group(buf[:size])


@given(st.sampled_from(range(0x4B00, 0x4B11)), st.binary(max_size=60))
def test_any_body(kind, body):
    buf = forge((0x4B00, group_body()), (kind, body))
    try:
        group, written = marks.decode_group(buf)
    except MarkError:
        return
    assert marks.encode_group(group, written, NOW) == buf
