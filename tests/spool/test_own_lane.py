"""What a consumer finds out about the lane of another producer."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from kafkasafe.spool.own_lane import OwnLane


@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO, errno.ESTALE])
def test_a_lane_that_cannot_be_seen_may_still_commit_offsets(tmp_path, monkeypatch, code):
    """The user may not enter the spool directory any more, or its disk or server fails."""
    lane = tmp_path / "lane-000"
    lane.mkdir()
    real = os.stat

    def stat(path, *arguments, **more):
        if not isinstance(path, int) and Path(os.fsdecode(path)) == lane:
            raise OSError(code, os.strerror(code), str(path))
        return real(path, *arguments, **more)

    monkeypatch.setattr(os, "stat", stat)
    assert OwnLane(b"1" * 16, lane, in_memory=False).may_move([("group", "t", 0)])


def test_a_lane_that_does_not_exist_commits_nothing(tmp_path):
    lane = OwnLane(b"1" * 16, tmp_path / "lane-000", in_memory=False)
    assert not lane.may_move([("group", "t", 0)])
