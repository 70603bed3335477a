"""Where the spool stands: a producer keeps the directory that it opened, whatever becomes of its path."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kafkasafe import SafeProducer
from kafkasafe._io.files import OsFiles
from kafkasafe._io.inspection import inspect
from kafkasafe.config import validate
from kafkasafe.errors import ConfigError

MIB = 1 << 20
NO_BROKER = "127.0.0.1:9"
SMALL = {"spool_max_bytes": 16 * MIB, "spool_segment_bytes": MIB, "max_request_size": 300_000}


def switch(link: Path, target: Path) -> None:
    """As a deploy does it: in one step."""
    beside = link.with_name("next")
    beside.symlink_to(target)
    beside.replace(link)


def waiting(lane: Path) -> int:
    """Records that the next owner of a lane finds; none of it is damaged."""
    found = inspect(lane, files=OsFiles())
    assert found.damage == ()
    assert found.torn_bytes == 0
    return sum(each.records for each in found.waiting)


def fill(producer: SafeProducer, records: int) -> None:
    """More than a segment, durably."""
    for _ in range(records):
        producer.send("orders", os.urandom(200_000))
    producer.durable(60)


def test_a_deploy_that_switches_a_link_leaves_each_producer_in_its_own_directory(tmp_path):
    """The next segment of the old release was created in the new one's lane, which it had no lock for."""
    link = tmp_path / "current"
    for release in ("1", "2"):
        (tmp_path / release).mkdir()
    link.symlink_to(tmp_path / "1")
    options = {"bootstrap_servers": NO_BROKER, "spool_dir": link / "spool", **SMALL}
    old = SafeProducer(**options)
    try:
        fill(old, 8)
        switch(link, tmp_path / "2")
        new = SafeProducer(**options)
        try:
            for _ in range(3):
                fill(old, 8)
                fill(new, 8)
        finally:
            new.close(timeout=0)
    finally:
        old.close(timeout=0)
    assert old.spool_dir == tmp_path / "1" / "spool"
    assert new.spool_dir == tmp_path / "2" / "spool"
    assert waiting(tmp_path / "1" / "spool" / "lane-000") == 32
    assert waiting(tmp_path / "2" / "spool" / "lane-000") == 24


def test_a_loop_of_links_is_no_spool_directory(tmp_path):
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(ConfigError, match="spool_dir"):
        validate({"spool_dir": tmp_path / "a" / "spool"})
