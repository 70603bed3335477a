"""Where the spool stands: a producer keeps the directory that it opened, whatever becomes of its path."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import harness
import pytest
from kafka.errors import KafkaTimeoutError

from kafkasafe import SafeProducer
from kafkasafe.aio import SafeProducer as AsyncProducer
from kafkasafe.config import validate
from kafkasafe.errors import ConfigError, SpoolWriteError
from kafkasafe.events import SpoolDisplaced
from kafkasafe.spool.files import OsFiles
from kafkasafe.spool.inspection import inspect
from kafkasafe.spool.lanes import SpoolDirectory
from kafkasafe.testing import FakeCluster

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


@pytest.mark.parametrize("deletes", ["segments", "lane", "spool"])
def test_durable_looks_also_where_nothing_is_to_be_written(tmp_path, deletes):
    """
    1. A record is durable.
    2. Its file is deleted.
    3. `durable()` said yes at once, since nothing waited for the disk.
    4. A kill -9 before the next look, two seconds later, lost the record.
    """
    spool = tmp_path / "spool"
    with SafeProducer(bootstrap_servers=NO_BROKER, spool_dir=spool, **SMALL) as producer:
        producer.send("orders", b"1")
        producer.durable(30)
        lane = spool / "lane-000"
        for segment in lane.glob("*.log") if deletes == "segments" else ():
            segment.unlink()
        if deletes != "segments":
            shutil.rmtree(lane if deletes == "lane" else spool)
        producer.durable(30)
        copy = tmp_path / "copy"
        shutil.copytree(spool, copy)
        producer.close(timeout=0)
    (copy / "lane-000" / "lock").unlink()
    assert waiting(copy / "lane-000") == 1


def test_tasks_hear_the_same(tmp_path):
    spool = tmp_path / "spool"

    async def main() -> None:
        async with AsyncProducer(bootstrap_servers=NO_BROKER, spool_dir=spool, **SMALL) as producer:
            await producer.send("orders", b"1")
            await producer.durable(30)
            shutil.rmtree(spool)
            await producer.durable(30)
            shutil.copytree(spool, tmp_path / "copy")
            await producer.close(timeout=0)

    asyncio.run(main())
    (tmp_path / "copy" / "lane-000" / "lock").unlink()
    assert waiting(tmp_path / "copy" / "lane-000") == 1


def test_durable_does_not_say_yes_while_the_directory_cannot_be_made_again(tmp_path):
    spool = tmp_path / "parent" / "spool"
    with SafeProducer(bootstrap_servers=NO_BROKER, spool_dir=spool, **SMALL) as producer:
        producer.send("orders", b"1")
        producer.durable(30)
        shutil.rmtree(spool.parent)
        spool.parent.write_text("a file in its place")
        with pytest.raises(KafkaTimeoutError, match="not in the place where the next start looks for them"):
            producer.durable(0.5)
        spool.parent.unlink()
        producer.durable(30)
        producer.close(timeout=0)
    assert waiting(spool / "lane-000") == 1


def test_a_directory_that_is_deleted_just_before_the_first_contact_is_made_again(tmp_path, monkeypatch):
    """The producer's thread waited there for a directory that it would have had to make itself, for ever."""
    spool = tmp_path / "spool"
    bind = SpoolDirectory.bind_cluster

    def deleted(self, *arguments, **named):
        if not (tmp_path / "once").exists():
            (tmp_path / "once").touch()
            shutil.rmtree(spool)
        return bind(self, *arguments, **named)

    monkeypatch.setattr(SpoolDirectory, "bind_cluster", deleted)
    with FakeCluster() as cluster:
        with SafeProducer(bootstrap_servers=cluster.bootstrap_servers, spool_dir=spool, **SMALL) as producer:
            producer.send("orders", b"1").get(30)
        assert cluster.values("orders") == [b"1"]
    assert (spool / "CLUSTER").exists()


def test_a_producer_that_has_delivered_everything_closes_without_an_error_where_its_spool_is_gone(tmp_path):
    """`close()` raised SpoolCorruptError: "0 records that waited there are lost"."""
    spool = tmp_path / "parent" / "spool"
    with FakeCluster() as cluster:
        cluster.create_topic("orders")
        producer = SafeProducer(bootstrap_servers=cluster.bootstrap_servers, spool_dir=spool, **SMALL)
        producer.send("orders", b"1").get(30)
        shutil.rmtree(spool.parent)
        spool.parent.write_text("a file in its place")
        producer.close(timeout=30)


def until_displaced(producer: SafeProducer) -> None:
    harness.until(lambda: [each.name for each in producer.health().reasons] == ["spool_displaced"])


def test_where_a_deleted_directory_cannot_be_made_again_new_records_wait_in_memory(tmp_path):
    """What was on disk is delivered. A directory without a name takes no new files."""
    spool = tmp_path / "parent" / "spool"
    with FakeCluster() as cluster:
        cluster.create_topic("orders")
        with SafeProducer(bootstrap_servers=cluster.bootstrap_servers, spool_dir=spool, **SMALL) as producer:
            producer.send("orders", b"0").get(30)
            cluster.refuse()
            cluster.cut()
            producer.send("orders", b"1").durable(30)
            shutil.rmtree(spool.parent)
            spool.parent.write_text("a file in its place")
            until_displaced(producer)
            later = [producer.send("orders", b"%d" % number) for number in (2, 3)]
            cluster.recover()
            harness.until(lambda: cluster.values("orders") == [b"0", b"1"])
            with pytest.raises(KafkaTimeoutError, match="The spool takes nothing for now"):
                later[0].get(1)
            assert cluster.values("orders") == [b"0", b"1"]
            spool.parent.unlink()
            assert [future.get(30).offset for future in later] == [2, 3]
        assert cluster.values("orders") == [b"0", b"1", b"2", b"3"]


def test_a_directory_that_was_moved_away_takes_new_records_and_they_are_delivered(tmp_path):
    spool = tmp_path / "parent" / "spool"
    with FakeCluster() as cluster:
        cluster.create_topic("orders")
        with SafeProducer(bootstrap_servers=cluster.bootstrap_servers, spool_dir=spool, **SMALL) as producer:
            producer.send("orders", b"0").get(30)
            spool.parent.rename(tmp_path / "away")
            spool.parent.write_text("a file in its place")
            until_displaced(producer)
            assert [producer.send("orders", b"later").get(30).offset for _ in range(3)] == [1, 2, 3]


def test_records_that_were_never_on_disk_are_what_close_calls_lost(tmp_path):
    """`close()` raised SpoolCorruptError: "0 records that waited there are lost with this producer"."""
    spool = tmp_path / "parent" / "spool"
    with FakeCluster() as cluster:
        cluster.create_topic("orders")
        producer = SafeProducer(bootstrap_servers=cluster.bootstrap_servers, spool_dir=spool, **SMALL)
        producer.send("orders", b"0").get(30)
        shutil.rmtree(spool.parent)
        spool.parent.write_text("a file in its place")
        until_displaced(producer)
        producer.send("orders", b"1")
        with pytest.raises(SpoolWriteError, match=r"1 record was accepted and not durable .* It is lost"):
            producer.close(timeout=1)


def test_a_path_through_a_directory_that_does_not_exist_is_no_switched_link(tmp_path):
    """A WARNING said that the next start would not find the records, and it does."""
    given, seen = tmp_path / "release" / ".." / "spool", []
    with SafeProducer(
        bootstrap_servers=NO_BROKER, spool_dir=given, on_event=seen.append, **SMALL
    ) as producer:
        producer.send("orders", b"1")
        producer.durable(30)
        producer.close(timeout=0)
    assert waiting(tmp_path / "spool" / "lane-000") == 1
    assert not [event for event in seen if isinstance(event, SpoolDisplaced)]
