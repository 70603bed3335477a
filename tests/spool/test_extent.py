"""The claims of a lane's `extent`, as docs/spool-format.md lays them out."""

from __future__ import annotations

import struct

import crc32c
from hypothesis import given
from hypothesis import strategies as st

from kafkasafe.spool.extent import (
    BEGIN_SLOTS,
    END_SLOT,
    EXTENT_BYTES,
    Extent,
    LogEndClaim,
    decode_extent,
    encode_claim,
)

LANE = b"0123456789abcdef"
OLDER, NEWER, END = (
    LogEndClaim(LANE, 6, 100, 40),
    LogEndClaim(LANE, 7, 200, 90),
    LogEndClaim(LANE, 0, 900, 400),
)


def content(first: LogEndClaim | None, second: LogEndClaim | None, end: LogEndClaim | None) -> bytes:
    file = bytearray(EXTENT_BYTES)
    for at, claim in zip((*BEGIN_SLOTS, END_SLOT), (first, second, end), strict=True):
        if claim is not None:
            file[at : at + 48] = encode_claim(claim)
    return bytes(file)


def test_the_layout_is_the_documented_one():
    body = b"KSX1" + LANE + struct.pack(">qqq", 7, 200, 90)
    assert encode_claim(NEWER) == body + struct.pack(">I", crc32c.crc32c(body))
    assert (BEGIN_SLOTS, END_SLOT) == ((0, 512), 1024)


def test_of_two_claims_about_the_beginning_the_newer_counts():
    assert decode_extent(content(OLDER, NEWER, END)) == Extent(NEWER, END)
    assert decode_extent(content(NEWER, OLDER, None)) == Extent(NEWER, None)


@given(st.integers(0, EXTENT_BYTES - 1), st.integers(0, 7))
def test_a_claim_that_is_damaged_is_none_and_leaves_the_others(byte, bit):
    damaged = bytearray(content(OLDER, NEWER, END))
    damaged[byte] ^= 1 << bit
    slot, inside = byte // 512, byte % 512 < 48
    begin = OLDER if inside and slot == 1 else NEWER
    assert decode_extent(bytes(damaged)) == Extent(begin, None if inside and slot == 2 else END)


@given(st.integers(0, EXTENT_BYTES))
def test_a_file_that_is_cut_short_claims_what_is_left(size):
    left = decode_extent(content(OLDER, NEWER, END)[:size])
    assert left in {
        Extent(),
        Extent(OLDER, None),
        Extent(NEWER, None),
        Extent(NEWER, END),
    }
    assert (left.end is not None) == (size >= END_SLOT + 48)


def test_claims_of_another_lane_say_nothing():
    other = b"fedcba9876543210"
    assert decode_extent(content(LogEndClaim(other, 9, 1, 1), None, END)) == Extent()
    assert decode_extent(content(OLDER, None, END)).of(other) == Extent()
    assert decode_extent(content(OLDER, None, END)).of(LANE) == Extent(OLDER, END)
