"""What a consumer remembers: batches compared one by one, and the file in which it outlives the process."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkasafe._consuming.lineage_file import LineageMemory
from kafkasafe.errors import LineageFileError
from kafkasafe.history.epochs import (
    BatchMark,
    BatchWalk,
    Diverged,
    Lineage,
    LineageError,
    Same,
    Unknown,
    first_difference,
)
from kafkasafe.history.epochs.batches import MAX_REWRITTEN
from kafkasafe.history.memory import Remembered, decode, encode
from kafkasafe.history.sealed import SealError, seal
from kafkasafe.testing.disk import Disk

# --- batches --------------------------------------------------------------------------------------------------------


def compare(ours, theirs, *, position=None, start=0, end=None):
    """Plays a walk against a log."""
    end = theirs[-1].last_offset + 1 if end is None and theirs else end or start
    position = ours[-1].last_offset + 1 if position is None else position
    walk = BatchWalk(ours, position=position, log_start_offset=start, log_end_offset=end)
    while (offset := walk.query()) is not None:
        assert start <= offset < end
        found = next(mark for mark in theirs if mark.last_offset >= offset)
        walk.answer(found.last_offset, found.crc)
        assert walk.round_trips <= 2 + math.log2(len(ours))
    return walk.outcome


def batches(sizes, first, crc):
    found, base = [], first
    for size in sizes:
        crc += 1
        found.append(BatchMark(base, base + size - 1, crc))
        base += size
    return found


SIZES = st.lists(st.integers(1, 3), max_size=12)


@given(SIZES.filter(len), SIZES, SIZES, st.integers(0, 12), st.integers(0, 20))
def test_the_first_missing_batch_is_found(common, mine, yours, forgotten, back):
    """As comparing all of them does; with few questions."""
    shared = batches(common, 0, 0)
    behind = shared[-1].last_offset + 1
    ours, theirs = shared + batches(mine, behind, 100), shared + batches(yours, behind, 200)
    end, ours = theirs[-1].last_offset + 1, ours[min(forgotten, len(ours) - 1) :]
    position = max(ours[0].base_offset + 1, ours[-1].last_offset + 1 - back)
    found = compare(ours, theirs, position=position)
    read = [mark for mark in ours if mark.base_offset < position]
    expected = first_difference(read, theirs, theirs_start=0, theirs_end=end)
    assert type(found) is type(expected)
    if isinstance(expected, Diverged):
        assert isinstance(found, Diverged)
        assert found.divergent_offset == expected.divergent_offset
        assert found.rolled_back == (found.divergent_offset, position - 1)
        true = next((mark.base_offset for mark in batches(mine, behind, 100)), None)
        if found.exact:
            assert found.divergent_offset == true
        assert (found.replaced is None) == (end <= found.divergent_offset)
    else:
        assert found == Same(position)


@given(SIZES.filter(len), st.integers(0, 30))
def test_what_is_trimmed_or_compacted_is_never_called_gone(sizes, start):
    theirs = batches(sizes, 0, 0)
    end = theirs[-1].last_offset + 1
    walk = BatchWalk(theirs, position=end, log_start_offset=min(start, end), log_end_offset=end)
    while walk.query() is not None:
        walk.answer(end + 5, 77, rewritten=True)
        assert walk.round_trips <= MAX_REWRITTEN + 1
    assert isinstance(walk.outcome, Unknown)
    with pytest.raises(LineageError):
        walk.answer(1, 1)


def test_one_batch_that_compaction_rewrote_is_passed_over():
    ours = batches([1, 1, 1], 0, 0)
    walk = BatchWalk(ours, position=3, log_start_offset=0, log_end_offset=3)
    assert walk.query() == 2
    walk.answer(2, 99, rewritten=True)
    assert walk.query() == 1
    assert walk.answer(1, ours[1].crc) == Same(2)
    assert "Same" in repr(walk)


# --- the file -------------------------------------------------------------------------------------------------------

LINEAGE = Lineage([(0, 0), (4, 5), (-1, 9)], 12)
KNOWN = Remembered(
    b"i" * 16, LINEAGE, (BatchMark(9, 10, 4_000_000_000), BatchMark(11, 11, 5)), ((2, 4), (6, 8))
)
TEXT = encode({("orders", 3): KNOWN, ("a", 0): Remembered(None, Lineage([(7, 7)], 8))})


def test_what_is_remembered_comes_back():
    found = decode(TEXT)
    assert found["orders", 3].lineage == LINEAGE
    assert found["orders", 3] == KNOWN
    assert found["a", 0].topic_id is None
    long = Lineage([(epoch * 3, epoch * 1000) for epoch in range(1024)], 2_000_000)
    assert decode(encode({("t", 0): Remembered(None, long)}))["t", 0].lineage == long


def test_a_file_of_an_earlier_version_names_no_skipped_ranges():
    rows = json.loads(TEXT)["partitions"]
    for each in rows:
        del each["skipped"]
    assert decode(seal("lineage", 1, rows))["orders", 3] == dataclasses.replace(KNOWN, skipped=())


def row(**changed):
    return seal("lineage", 1, [json.loads(TEXT)["partitions"][0] | changed])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        TEXT[:-20],
        TEXT.replace('"partition": 3', '"partition": 2'),
        TEXT.replace("4000000000", "4000000001"),
        seal("lineage", 2, []),
        seal("end offsets", 1, []),
        seal("lineage", 1, [{}]),
        seal("lineage", 1, [None]),
        row(topic=5),
        row(partition=-1),
        row(partition=True),
        row(topic_id="xy"),
        row(lineage="ks1.AAAA"),
        row(batches=[[1, 2]]),
        row(batches=[[1, 2, "3"]]),
        row(skipped=[[1]]),
        row(skipped=[[1, -2]]),
        row(skipped=None),
    ],
)
def test_a_damaged_file_is_refused_and_kept(tmp_path, text):
    with pytest.raises(SealError):
        decode(text)
    path = tmp_path / "lineage.json"
    path.write_text(text)
    with pytest.raises(
        LineageFileError, match=r"lineage\.json cannot be used: .* Replace it by an intact copy"
    ):
        LineageMemory(path)
    assert path.read_text() == text


@given(st.data())
def test_no_flipped_bit_passes(data):
    content = bytearray(TEXT.encode())
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        text = content.decode()
        found = decode(text)
    except ValueError:
        return
    # White space between JSON's tokens means nothing.
    assert found == decode(TEXT)


def remembering(disk, path, end=None):
    memory = LineageMemory(path, disk.process())
    if end is not None:
        memory.keep("t", 0, Remembered(None, Lineage([(0, 0)], end)))
        assert memory.save()
        assert not memory.save()  # nothing new
    return memory


def ends(disk, path):
    disk.process().make_directory(path.parent)  # it may have gone with the power
    memory = remembering(disk, path)
    known = memory.get("t", 0)
    memory.close()
    return None if known is None else known.lineage.end_offset


def test_a_loss_of_power_leaves_the_old_file_or_the_new_one():
    disk, path = Disk(), Path("/var/lineage.json")
    disk.process().make_directory(path.parent)
    saved = []
    for end in (10, 12):
        remembering(disk, path, end).close()
        saved.append(len(disk.operations))
    for state in disk.crash_states(samples=8):
        promised = 12 if state.at >= saved[1] else 10 if state.at >= saved[0] else None
        assert ends(state.disk, path) in {promised, 12 if state.at > saved[0] else 10}, state.how


@pytest.mark.parametrize("operation", ["open", "writev", "sync_data", "rename", "truncate"])
def test_a_failed_save_leaves_the_former_file(operation):
    disk, path = Disk(), Path("/var/lineage.json")
    disk.process().make_directory(path.parent)
    memory = remembering(disk, path, 10)
    memory.keep("t", 0, Remembered(None, Lineage([(0, 0)], 12)))
    disk.fail(operation)
    with pytest.raises(OSError, match="Input/output error"):
        memory.save()
    memory.close()
    assert not memory.save()  # closed
    assert ends(disk, path) == 10


def test_one_consumer_at_a_time(tmp_path):
    path = tmp_path / "lineage.json"
    one = LineageMemory(path)
    with pytest.raises(LineageFileError, match="in use by another consumer"):
        LineageMemory(path)
    one.close()
    one.close()
    LineageMemory(path).close()
    nowhere = LineageMemory(None)
    nowhere.keep("t", 0, KNOWN)
    assert nowhere.get("t", 0) is KNOWN
    assert not nowhere.save()


def test_a_forked_child_does_not_keep_the_file_in_use(tmp_path):
    """A worker process may live longer than the consumer that was open when the worker was forked."""
    path = tmp_path / "lineage.json"
    one = LineageMemory(path)
    ready, is_ready = os.pipe()
    waits, over = os.pipe()
    child = os.fork()
    if not child:
        os.close(over)
        os.write(is_ready, b".")
        os.read(waits, 1)
        os._exit(0)
    os.close(waits)
    try:
        assert os.read(ready, 1)
        with pytest.raises(LineageFileError, match="in use by another consumer"):
            LineageMemory(path)
        one.close()
        LineageMemory(path).close()
    finally:
        for pipe in (ready, is_ready, over):
            os.close(pipe)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
