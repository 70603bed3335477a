"""Where the spool stands, with one rule taken out each: an exact test must find every one of them.

`tests/mutants.txt` names the mutants; `test_place_mutants.py` compares.
"""

from __future__ import annotations

from mutation import Mutant, source

from kafkasafe.delivery.engine.disk import DiskWriter
from kafkasafe.delivery.engine.lane_keeper import LaneKeeper
from kafkasafe.delivery.engine.places import PlaceKeeper
from kafkasafe.delivery.engine.room import RoomKeeper
from kafkasafe.spool.lanes import SpoolDirectory
from kafkasafe.spool.segment_files import SegmentFiles
from kafkasafe.spool.segment_writer import SegmentWriter
from kafkasafe.spool.spool import Spool

_VOLUME = "test_another_volume_in_its_place_stops_promises_and_not_deliveries"
_LOCK = "test_a_lock_that_was_deleted_and_taken_ends_its_owner"
_AT_THAT_MOMENT = "test_what_is_called_durable_is_there_at_that_moment"
_SURVIVES = "test_what_was_promised_survives_whatever_becomes_of_the_files"
_CRASH = "test_a_crash_in_a_restoration_loses_nothing_without_a_word"
_CUT = "test_a_segment_that_is_cut_is_never_written_to_again"
_RESCUED = "test_what_is_in_memory_is_written_once_more_where_its_segment_was_cut"

MUTANTS: dict[str, Mutant] = {
    # What is noticed.
    "it is promised without a look": Mutant(
        source(PlaceKeeper, "confirm", "return self._restore(lane)", "return True"), _VOLUME
    ),
    "names of files are not looked at after a sync": Mutant(
        source(Spool, "sync", "self._segments.see_written(self.synced_position)", "pass"),
        _AT_THAT_MOMENT,
        {"way": "the newest segment"},
    ),
    "lanes are not looked at each second": Mutant(
        source(LaneKeeper, "adopt", "self._disk.look_at_places()", "pass"),
        _SURVIVES,
        {"way": "the first segment", "idle": True},
    ),
    "a directory without its files is no matter": Mutant(
        source(PlaceKeeper, "_problem", "if not whole:", "if False:"),
        _SURVIVES,
        {"way": "all files of the directory", "idle": True},
    ),
    "a file FORMAT that is cut stays so": Mutant(
        source(SpoolDirectory, "_make_again", "restore_format(", "make_format("),
        "test_a_file_format_that_is_cut_is_written_again",
        {"content": b""},
    ),
    "an extent that is gone is no matter": Mutant(
        source(PlaceKeeper, "_problem", "return None if in_place else", "return None if in_place or 1 else"),
        _SURVIVES,
        {"way": "extent", "idle": True},
    ),
    "a file that was cut is written to": Mutant(
        source(
            SegmentWriter,
            "write_out",
            "if self._files.size(self._handle) != self._unwritten_at:",
            "if False:",
        ),
        _CUT,
    ),
    "a file that was cut gets its length again": Mutant(
        source(SegmentWriter, "leave", "if self._files.size(handle) >= size:", "if True:"), _RESCUED
    ),
    # What follows.
    "what is elsewhere is promised": Mutant(
        source(
            DiskWriter,
            "_write_group",
            "self._places.confirm(lane)",
            "self._places.confirm(lane) or True",
        ),
        _VOLUME,
    ),
    "what was withheld is never promised": Mutant(
        source(DiskWriter, "look_at_place", "self._promise(", "len("), _VOLUME
    ),
    "an owner that lost its lane goes on": Mutant(
        source(PlaceKeeper, "_restore", "if lane.lock.lost:", "if False:"), _LOCK
    ),
    "an owner that lost its lane closes it": Mutant(
        source(LaneKeeper, "close_lane", "if lane.lock.lost:", "if False:"), _LOCK
    ),
    "a lane goes into the directory of another cluster": Mutant(
        source(SpoolDirectory, "_make_again", "elif found != cluster:", "elif False:"),
        "test_a_directory_of_another_cluster_in_its_place_gets_no_records",
    ),
    "a lane of a dead owner is taken for an empty one": Mutant(
        source(SpoolDirectory, "_begin_again", "<= {LOCK_NAME.name}", "or True"),
        "test_a_lane_of_another_owner_that_died_is_no_place_for_ours",
    ),
    "a lane that was fetched may be lost with power": Mutant(
        source(SpoolDirectory, "_fetch", "self._files.sync_directory(", "str("),
        _CRASH,
        {"way": "the lane is moved", "power": True},
    ),
    "what is written again is not synced": Mutant(
        source(SegmentFiles, "write_again", "self._files.sync_data(handle)", "pass"),
        _CRASH,
        {"way": "the lane", "power": True},
    ),
    "names of what is written again are not synced": Mutant(
        source(Spool, "restore", "self._files.sync_directory(self._lane)", "pass"),
        _CRASH,
        {"way": "the lane", "power": True},
    ),
    "what is missing is said after it was restored": Mutant(
        source(
            Spool,
            "restore",
            'self._extent.restore(self._segments, None if self._sync == "os" else self.synced_position)',
            "pass",
        ),
        _CRASH,
        {"way": "the lane", "power": False},
    ),
    "the files that are held are not read": Mutant(
        source(SegmentFiles, "_content", "return content if", "return b'' if"),
        _SURVIVES,
        {"way": "the lane", "idle": True},
    ),
    "what is only in memory stays there": Mutant(
        source(RoomKeeper, "keep", "self._rescue(lane)", "pass"), _RESCUED
    ),
    "a loss is not raised": Mutant(source(PlaceKeeper, "_tell", "self._ledger.errors.lose(", "str("), _CUT),
    "what is lost is not counted": Mutant(
        source(
            PlaceKeeper, "_tell", "if any(first <= batch.position < end for first, end in lost)", "if False"
        ),
        _CUT,
    ),
}
