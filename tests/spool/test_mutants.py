"""Each safety step of the spool is taken out once: the tests must notice, or they prove nothing."""

from __future__ import annotations

import errno
import random

import pytest
from mutation import listed, source

from kafkasafe import marks as m
from kafkasafe.errors import KafkaSafeError
from kafkasafe.maintenance import discard as discarding
from kafkasafe.maintenance import resend
from kafkasafe.record import batch as codec
from kafkasafe.spool import extent_file, quarantine, recovery, segment_reader, spool
from kafkasafe.spool.files import DirectoryFiles
from kafkasafe.spool.lanes import SpoolDirectory
from kafkasafe.spool.segment_list import SegmentList
from kafkasafe.spool.spool import Spool
from kafkasafe.testing.disk import Disk

from . import test_crash, test_damage, test_discard, test_place, test_spool
from .model import Group, Owner, encode
from .test_crash import live, live_os


def crashes() -> None:
    for seed in range(108, 120):  # the first one finds each mutant
        live(seed, steps=8).check_crashes(samples=3, seed=seed, thorough=4)


def os_crashes() -> None:
    for seed in range(5):
        live_os(seed)


def failed_syncs() -> None:
    """Every commit's fsync fails once; then power goes."""
    for seed in range(5):
        rng = random.Random(seed)
        owner = Owner(Disk(), segment_bytes=1500)
        for _ in range(4):
            owner.disk.fail("sync_data", error=errno.EIO)
            owner.commit([owner.group(rng, batches=2, size=400)])
        owner.check_crashes(samples=8, seed=seed)


def deaths_after_failed_syncs() -> None:
    """The next process reads from the cache what the disk does not have."""
    for seed in range(3):
        rng = random.Random(seed)
        owner = Owner(Disk(), segment_bytes=1500)
        for _ in range(3):
            assert owner.write(owner.group(rng, batches=2, size=400))
            owner.disk.fail("sync_data")
            assert not owner.sync()
            owner.files.kill()
            owner.open()
            owner.commit([owner.group(rng)])
        owner.check_crashes(samples=6, seed=seed)


def cuts() -> None:
    for seed in range(8):
        test_crash.test_what_an_owner_cut_off_does_not_come_back_after_the_next_one_began(seed)


def atomic_groups() -> None:
    owner = Owner(Disk(), segment_bytes=8000)
    owner.declare([m.Destination(1, "topic", 1)])
    for number in range(4):
        batches = tuple((1, encode(10 * number + i, 1, 600)) for i in range(3))
        owner.commit([Group((), batches, atomic=number + 1)])
    owner.check_crashes(samples=8)


def flips() -> None:
    test_damage.test_every_flipped_bit_is_found_and_costs_what_it_hit(test_damage.closed_spool(0))


def short_segments() -> None:
    test_damage.test_groups_that_went_with_the_end_of_a_segment_are_told_as_lost_groups(
        test_damage.closed_spool(0)
    )


def open_ends() -> None:
    test_damage.test_damage_in_the_last_groups_of_a_killed_owner_is_no_torn_tail("goes")


def torn_ends() -> None:
    test_damage.test_what_is_cut_off_is_kept()


def strays() -> None:
    test_damage.test_a_segment_of_another_lane_is_damage_and_never_a_torn_tail(1)


def vanished() -> None:
    closed = test_damage.closed_spool(0)
    for which in ("first", "last", "all"):
        test_damage.test_a_segment_that_is_missing_is_damage(closed, which)
    for seed in range(3):
        test_damage.test_whatever_happened_before_a_segment_that_is_missing_is_damage(seed)


def streams() -> None:
    test_damage.test_damage_is_the_same_when_the_log_is_taken_while_it_is_read(test_damage.closed_spool(0))


def flips_at_the_end() -> None:
    for compression in (codec.Compression.NONE, codec.Compression.GZIP):
        test_damage.test_a_flipped_bit_in_the_last_group_is_damage_and_its_neighbours_are_kept(
            compression, "zeros"
        )


def discards() -> None:
    test_discard.test_a_crash_at_any_moment_of_a_discard_leaves_a_record_rejected_or_discarded()


MUTANTS = {
    "a new segment's name is not synced": (
        Spool, "_roll", "self._files.sync_directory(self._lane)", "pass", crashes),
    "a new segment begins without a snapshot": (
        Spool, "_roll", "self._append(control, (), (), end_position)", "pass",
        test_spool.test_every_segment_stands_alone_once_those_before_it_are_released),
    "the old segment is not synced before the new one": (
        Spool, "_roll", "self._to_disk()", "self._disk_position = self.next_position", crashes),
    "nothing is ever synced": (
        Spool, "_to_disk", "self._writer.sync()", "pass", crashes),
    "a failed fsync is tried again, and believed": (
        Spool, "_to_disk", "self._writer.sync()",
        "try: self._writer.sync()\n        except OSError: self._writer.sync()",
        failed_syncs),
    "a segment is written on after its failed fsync": (
        Spool, "_to_disk", "self._writer.sync()",
        "try: self._writer.sync()\n        except OSError: return",
        failed_syncs),
    "groups say that they are durable themselves": (
        Spool, "_group", "self._disk_position,", "self.next_position,", crashes),
    "an operating system's cache is taken for a disk": (
        Spool, "__init__", 'found.synced_position if sync == "os" else found.next_position',
        "found.next_position", os_crashes),
    "segments behind the promised end stay": (
        SegmentList, "delete_last", "self._unlink(segment)", "pass", crashes),
    "a release syncs the directory only once": (
        SegmentList, "sync_deletions", "self._files.sync_directory(self._lane)", "pass", crashes),
    "a segment whose deletion is not durable counts as missing": (
        SegmentList, "delete_first", "self._deletions_undurable = True", "self._files.sync_directory(self._lane)",
        test_damage.test_a_deletion_that_is_not_durable_yet_is_no_missing_segment),
    "a segment goes before its successor is durable": (
        Spool, "release", "min(before_position, self.synced_position - 1)", "before_position",
        test_spool.test_a_segment_is_not_released_before_what_replaces_it_is_durable),
    "a torn tail is not cut": (
        spool, "cut_tail", "files.truncate(handle, last.size_bytes)", "cut = 0", crashes),
    "a torn tail that an earlier owner cut is not synced": (
        spool, "cut_tail", "files.sync_data(handle)", "pass",
        cuts),
    "segments behind a torn tail stay": (
        spool, "cut_tail", "files.unlink(path)", "pass", crashes),
    "what recovery found is not made durable": (
        spool, "make_durable", "for segment in found.segments:", "for segment in ():", deaths_after_failed_syncs),
    "what recovery found is only synced again": (
        spool, "make_durable", "write_all(files, handle, [rest], segment.proven_bytes)", "pass",
        deaths_after_failed_syncs),
    "damage is not copied aside": (
        quarantine, "_set_aside", "write_whole(files, path, content)", "pass", flips),
    "half an atomic group counts": (
        recovery._Rest, "_group", "if new and item.group.atomic:", "if False:", atomic_groups),
    "what is not whole is taken while it is read": (
        recovery._Whole, "_is_whole", "if item.torn or any(header is None", "if False and any(header is None",
        flips),
    "what follows a front that is missing is taken while it is read": (
        test_damage, "scan", "whole.end()", "pass", streams),
    "what was taken while it was read does not count": (
        recovery._Whole, "_count", "self.between += records", "pass", streams),
    "the manifest's CRC is ignored": (
        segment_reader, "_batch_at", "header.size_bytes, header.crc)", "header.size_bytes, entry.crc)",
        test_damage.test_a_batch_put_in_the_place_of_another_is_damage),
    "the manifest's addresses are ignored": (
        segment_reader, "_batch_at", "found == promised and", "", flips),
    "groups behind a batch that is cut short are not missed": (
        segment_reader.SegmentReader, "segment", "(exact or more)", "exact", short_segments),
    "all damage is taken for a torn tail": (
        recovery._Rest, "_bad", "if item.position >= self._synced and item.torn:", "if True:", flips),
    "damage behind the last synced position is taken for a torn tail": (
        recovery._Rest, "_bad", "item.position >= self._synced and item.torn", "item.position >= self._synced", open_ends),
    "a damaged batch behind it is taken for a torn one": (
        segment_reader, "_may_be_torn", "if end > len(content):", "if True:", open_ends),
    "a sector that is missing is taken for damage": (
        segment_reader, "_may_be_torn", "if not any(", "if any(()) and not any(",
        test_damage.test_sectors_that_are_missing_are_a_torn_write),
    "a group of which only a beginning is there is taken for damage": (
        segment_reader, "_group_may_be_torn", "return end == len(content)", "return False", crashes),
    "what is cut off is not copied aside": (
        spool, "keep_torn", "_set_aside(files, kept, content)", "pass", torn_ends),
    "where the log begins is not durable before segments go": (
        extent_file.ExtentFile, "_write_begin", "self._files.sync_data(self._handle)", "pass", crashes),
    "claims that only the page cache has are built upon": (
        extent_file.ExtentFile, "_open", "self._write_claims()", "pass",
        test_crash.test_a_claim_that_only_the_page_cache_has_replaces_no_durable_one),
    "claims that are written again begin to count anew": (
        extent_file.ExtentFile, "restore", "if self._begin is None:", "self._begin = None\n        if True:",
        test_crash.test_claims_that_were_written_again_in_vain_outlive_a_loss_of_power),
    "segments go before the log is said to begin behind them": (
        Spool, "release", "self._extent.begins(self._segments, going)", "pass", crashes),
    "nothing is said of where the log ends": (
        Spool, "sync", "self._extent.ends(self.synced_position, self._segments)", "pass",
        vanished),
    "what is written is said to be durable": (
        Spool, "_append", "self.next_position = end_position",
        "self.next_position = end_position\n    self._extent.ends(end_position, self._segments)", crashes),
    "segments that are missing in front are not missed": (
        recovery, "_missing_front", "begin.position >= segments[0].first_position", "True", vanished),
    "segments that are missing at the end are not missed": (
        segment_reader.SegmentReader, "_bound", "end.position if", "None if", vanished),
    "positions of what is missing are given again": (
        recovery, "_judge", "next_position = max(next_position, extent.end.position)", "pass",
        flips_at_the_end),
    "the extent is not believed": (
        recovery, "_synced", "extent.end is None", "True",
        test_damage.test_looking_into_a_lane_tells_damage_and_torn_tails_and_changes_nothing),
    "the manifest's CRC does not prove a body": (
        segment_reader, "_batch_may_be_torn", "return _address_may_be_torn(", "return False and _address_may_be_torn(",
        lambda: test_damage.test_an_address_torn_at_a_sectors_end_is_no_damage_before_it_is_promised(range(4, 21))),
    "what is whole behind a torn batch is cut": (
        recovery, "_cut_at", "at > last", "True",
        test_damage.test_what_is_whole_behind_a_torn_batch_is_kept_and_the_torn_one_is_never_taken_for_damage),
    "a torn batch that was left out is not noted": (
        Spool, "_roll", "if self._torn:", "if False:",
        test_damage.test_what_is_whole_behind_a_torn_batch_is_kept_and_the_torn_one_is_never_taken_for_damage),
    "a lane is its path": (
        DirectoryFiles, "_find_place", "if text.startswith(self._below):", "if False:",
        lambda: test_place.test_two_owners_never_write_into_one_directory(0)),
    "a lock counts though its directory was moved": (
        SpoolDirectory, "_take", "if there == (", "if there or (",
        test_place.test_a_lane_that_is_moved_while_it_is_taken_is_not_owned_by_its_path),
    "a segment of another lane is taken for the next one": (
        spool, "scan", "if writer not in {None, lane_id}", "if False", strays),
    "a segment of another lane is no damage": (
        spool, "scan", "log.damage.extend(", "list(", strays),
    "a discard is not noted": (
        discarding, "discard", "mark_discarded(files, each.lane, each.name, each.records)", "pass", discards),
    "a discard deletes before it is noted for good": (
        discarding, "mark_discarded", "files.sync_directory(lane / FOLDER)", "pass", discards),
    "what was resent keeps its note": (
        resend, "retire", "forget(files, lane, mark.file)", "pass",
        test_discard.test_what_is_resent_is_not_missing_before_anything_else_is_done),
}  # fmt: skip


RARE = {
    "a release syncs the directory only once",
    "a torn tail is not cut",
    "segments behind the promised end stay",
}
"""These take many crashes to be found."""


@pytest.mark.parametrize(
    "mutant", [pytest.param(each, marks=pytest.mark.full) if each in RARE else each for each in MUTANTS]
)
def test_the_tests_find(mutant, monkeypatch):
    place, name, old, new, detector = MUTANTS[mutant]
    source(place, name, old, new)(monkeypatch)
    with pytest.raises((AssertionError, KafkaSafeError, OSError, pytest.fail.Exception)):
        detector()


def test_the_list_of_mutants_is_whole():
    assert listed("spool") == list(MUTANTS)


@pytest.mark.full
@pytest.mark.parametrize("detector", [os_crashes, failed_syncs, deaths_after_failed_syncs, atomic_groups])
def test_without_a_mutant_there_is_nothing_to_find(detector):
    detector()
