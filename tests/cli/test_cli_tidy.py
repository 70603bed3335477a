"""`kafkasafe spool discard | prune | ls --tree`, without a broker."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import run

from kafkasafe import SafeProducer, marks
from kafkasafe.cli.common import is_gone
from kafkasafe.cli.spool import tree
from kafkasafe.cli.spool.opened import OpenSpool
from kafkasafe.errors import SpoolFormatError
from kafkasafe.maintenance.prune import find_prunable
from kafkasafe.record import batch
from kafkasafe.spool.files import OsFiles
from kafkasafe.spool.lanes import SpoolDirectory
from kafkasafe.spool.rejected import RejectedStore
from kafkasafe.spool.rejected_format import Refused
from kafkasafe.spool.spool import Spool


def encoded(*values):
    return batch.encode([None] * len(values), list(values), timestamps=1000)


def fill(path, *, waiting=0, rejected=(), lanes=1, cluster=None):
    """A spool directory: in each lane so many records that wait, and for each list of values a rejected file."""
    directory = SpoolDirectory.open(path, files=OsFiles())
    if cluster is not None:
        directory.bind_cluster(cluster, drained=lambda: True)
    locks = [directory.take_lane(number) for number in range(lanes)]
    for lock in locks:
        spool, _ = Spool.open(
            lock.path,
            files=OsFiles(),
            segment_bytes=1 << 20,
            sync="group",
            snapshot=list,
            clock_ms=lambda: 0,
        )
        values = [b"%d" % number for number in range(waiting)]
        spool.write_group([marks.Destination(1, "orders", 2)], [(1, encoded(value)) for value in values])
        spool.sync()
        store = RejectedStore(OsFiles(), lock.path, spool.lane_id)
        for number, values in enumerate(rejected):
            refused = [Refused(900 + number, encoded(*values), 10, "too large")]
            to = marks.Destination(3 + number, f"secret-{number}", 0)
            store.keep(refused, to, cluster_id="c", now_ms=1000)
        spool.close(closed_mark=True)
        lock.release()
    return directory


# -- discard -----------------------------------------------------------------------------------------------------------


def test_discarded_records_are_told_from_those_that_something_deleted(capsys, tmp_path):
    fill(tmp_path / "spool", waiting=1, rejected=[[b"1", b"2"], [b"3"]])
    lane = tmp_path / "spool" / "lane-000"
    files = sorted((lane / "rejected").iterdir())
    code, out, _ = run(capsys, "spool", "discard", tmp_path / "spool", "--topic", "secret-0")
    assert (code, out.splitlines()) == (
        0,
        [
            f"lane-000: {files[0].name}: 2 records of secret-0-0",
            "2 records would be discarded",
            "Nothing was changed. Add --apply to carry this out",
        ],
    )
    assert sorted((lane / "rejected").iterdir()) == files
    code, out, _ = run(
        capsys, "spool", "discard", tmp_path / "spool", "--topic", "secret-0", "--apply", "--json"
    )
    told = json.loads(out)
    assert (code, told["applied"], told["discarded_records"]) == (0, True, 2)
    assert [(row["file"], row["topic"], row["discarded"]) for row in told["files"]] == [
        (files[0].name, "secret-0", True)
    ]
    assert sorted((lane / "rejected").iterdir()) == files[1:]
    code, out, _ = run(capsys, "spool", "ls", tmp_path / "spool")
    assert (code, "2 rejected records discarded" in out, "1 record REJECTED" in out) == (1, True, True)

    files[1].unlink()
    for command in (["spool", "ls"], ["spool", "verify"], ["doctor"]):
        code, out, _ = run(capsys, *command, tmp_path / "spool")
        assert code == 1
        said = f"MISSING rejected/{files[1].name}: 1 record deleted, neither resent nor discarded"
        assert said in out
    (row,) = json.loads(run(capsys, "spool", "ls", tmp_path / "spool", "--json")[1])
    assert (len(row["rejected_missing"]), row["rejected_discarded_records"]) == (1, 2)
    (told,) = json.loads(run(capsys, "doctor", tmp_path / "spool", "--json")[1])["lanes"]
    assert told["rejected_missing"] == row["rejected_missing"]

    assert run(capsys, "spool", "discard", tmp_path / "spool", "--apply")[0] == 0
    for command in (["spool", "ls"], ["spool", "verify"], ["doctor"]):
        code, out, _ = run(capsys, *command, tmp_path / "spool")
        assert (code, "MISSING" in out) == (0, False)
    assert "3 rejected records discarded" in run(capsys, "spool", "ls", tmp_path / "spool")[1]


def test_a_file_that_cannot_be_read_is_discarded_only_when_that_is_said(capsys, tmp_path):
    fill(tmp_path, rejected=[[b"1"]])
    broken = tmp_path / "lane-000" / "rejected" / "00000000000000000500.log"
    broken.write_bytes(b"\0" * 100)
    code, out, _ = run(capsys, "spool", "discard", tmp_path, "--apply")
    assert (code, broken.exists()) == (1, True)
    assert f"{broken.name}: LEFT, it cannot be read: " in out
    assert "1 record discarded" in out
    code, out, _ = run(capsys, "spool", "discard", tmp_path, "--unreadable", "--apply")
    assert (code, broken.exists()) == (0, False)
    assert run(capsys, "spool", "verify", tmp_path)[0] == 0


def test_a_drain_tells_records_rejected_earlier_from_those_it_rejects_itself(capsys, tmp_path, fake_kafka):
    """A cron job or an init container: rejected records of another day made `spool drain` exit with 1 for ever."""
    spool, servers = tmp_path / "spool", ",".join(fake_kafka.bootstrap_servers)
    fill(spool, rejected=[[b"1", b"2"]])
    drain = ("spool", "drain", spool, "-b", servers)
    assert run(capsys, *drain)[0] == 1
    code, out, _ = run(capsys, *drain, "--ignore-rejected")
    assert (code, "2 records in rejected/, not delivered" in out) == (0, True)
    # What is rejected meanwhile counts.
    fake_kafka.create_topic("small", partitions=1, config={"max.message.bytes": 1000})
    with SafeProducer(bootstrap_servers="127.0.0.1:9", spool_dir=spool) as producer:
        producer.send("small", os.urandom(5000)).durable(60)
        producer.close(0)
    code, out, _ = run(capsys, *drain, "--ignore-rejected", "--json")
    told = json.loads(out)
    assert (code, told["rejected_records"], told["newly_rejected_records"]) == (1, 3, 1)
    assert run(capsys, *drain, "--ignore-rejected")[0] == 0
    # So does a file that cannot be read.
    next((spool / "lane-000" / "rejected").iterdir()).write_bytes(b"?")
    assert run(capsys, *drain, "--ignore-rejected")[0] == 1


@pytest.mark.parametrize(
    "command", [("discard",), ("discard", "--apply"), ("resend", "--dry-run"), ("resend",)]
)
def test_a_folder_of_rejected_records_that_cannot_be_listed_is_not_taken_for_an_empty_one(
    capsys, tmp_path, command
):
    """The commands ended with 0 and "0 records", while `spool ls` reported the folder."""
    fill(tmp_path / "spool", rejected=[[b"1"]])
    folder = tmp_path / "spool" / "lane-000" / "rejected"
    folder.rename(tmp_path / "moved")
    folder.write_text("")
    assert run(capsys, "spool", "ls", tmp_path / "spool")[0] == 1
    code, out, err = run(capsys, "spool", *command, tmp_path / "spool")
    assert (code, out) == (3, "")
    assert err == (
        f"kafkasafe: {tmp_path / 'spool'} cannot be read: [Errno 20] Not a directory: '{folder}'. Nothing was changed\n"
    )


def test_a_drain_counts_no_records_that_another_process_delivers(capsys, tmp_path, fake_kafka, monkeypatch):
    """Of two drains at once, each said that it had delivered everything."""
    fill(tmp_path / "spool", waiting=3, lanes=2)
    fake_kafka.create_topic("orders", partitions=3)
    hold = (
        "import pathlib, sys; from kafkasafe.spool.files import OsFiles; from kafkasafe.spool.lanes import SpoolDirectory\n"
        "lock = SpoolDirectory.open(pathlib.Path(sys.argv[1]), files=OsFiles()).take_lane(1); print(flush=True); input()"
    )
    others = []

    def opened(*arguments):
        command = [sys.executable, "-c", hold, str(tmp_path / "spool")]
        others.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        assert others[0].stdout.readline() == b"\n"
        return OpenSpool(*arguments)

    monkeypatch.setattr("kafkasafe.cli.spool.delivery.OpenSpool", opened)
    code, out, _ = run(
        capsys, "spool", "drain", tmp_path / "spool", "-b", ",".join(fake_kafka.bootstrap_servers)
    )
    others[0].communicate(b"\n", timeout=60)
    assert (code, out.splitlines()) == (
        0,
        ["3 records delivered, 0 left", "lane-001 belongs to a running process, which delivers it"],
    )


def test_only_one_lane_is_discarded(capsys, tmp_path):
    fill(tmp_path, rejected=[[b"1"]], lanes=2)
    assert run(capsys, "spool", "discard", tmp_path, "--lane", "1", "--apply")[0] == 0
    rows = json.loads(run(capsys, "spool", "ls", tmp_path, "--json")[1])
    assert [row["rejected_records"] for row in rows] == [1, 0]


def test_while_records_are_resent_nothing_is_discarded(capsys, tmp_path):
    directory = fill(tmp_path, rejected=[[b"1"]])
    with directory.resending():
        code, _, err = run(capsys, "spool", "discard", tmp_path, "--apply")
    assert (code, "Another process resends" in err) == (3, True)
    assert run(capsys, "spool", "ls", tmp_path)[0] == 1


# -- ls --tree ---------------------------------------------------------------------------------------------------------


def test_all_directories_of_a_user_are_summed_up(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    root = tmp_path / "kafkasafe"
    assert run(capsys, "spool", "ls", "--tree")[:2] == (0, f"No spool directory below {root}\n")
    fill(root / "a-1", waiting=2, lanes=2, cluster="c1")
    fill(root / "b-2", cluster="c2")
    code, out, _ = run(capsys, "spool", "ls", "--tree")
    lines = out.splitlines()
    assert code == 0, "records that wait are no trouble"
    assert lines[0].startswith(f"{root}/a-1: 2 lanes, ")
    assert lines[0].endswith("; 4 records waiting")
    assert lines[1].endswith("; 0 records waiting")
    assert lines[2].startswith("2 directories, 3 lanes, ")
    assert lines[2].endswith(": 4 records waiting in 1 directory, 0 rejected, 0 damaged ranges")
    told = json.loads(run(capsys, "spool", "ls", "--tree", root, "--json")[1])
    assert [(row["directory"], row["cluster_id"], row["waiting_records"]) for row in told["directories"]] == [
        (f"{root}/a-1", "c1", 4),
        (f"{root}/b-2", "c2", 0),
    ]
    totals = told["totals"]
    assert (totals["directories"], totals["lanes"], totals["waiting_records"]) == (2, 3, 4)
    # A directory by itself is a tree of one.
    assert json.loads(run(capsys, "spool", "ls", root / "b-2", "--tree", "--json")[1])["totals"]["lanes"] == 1


def test_in_a_tree_each_trouble_is_named_and_the_rest_is_shown(capsys, tmp_path):
    fill(tmp_path / "deep" / "er" / "good", waiting=1)
    fill(tmp_path / "damaged", waiting=3, cluster="c")
    (segment,) = (tmp_path / "damaged" / "lane-000").glob("*.log")
    content = bytearray(segment.read_bytes())
    content[content.index(b"orders") + 1] ^= 1
    segment.write_bytes(content)
    fill(tmp_path / "lost", waiting=5)
    (tmp_path / "lost" / "FORMAT").unlink()
    fill(tmp_path / "newer")
    (tmp_path / "newer" / "FORMAT").write_text("kafkasafe-spool 7\n")
    fill(tmp_path / "rejected", rejected=[[b"1"]])
    fill(tmp_path / "unknown", cluster="c")
    (tmp_path / "unknown" / "CLUSTER").write_bytes(b"\0")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "FORMAT").write_text("of something else\n")
    (tmp_path / "foreign" / "pipe").mkdir()
    os.mkfifo(tmp_path / "foreign" / "pipe" / "FORMAT")
    code, out, _ = run(capsys, "spool", "ls", "--tree", tmp_path)
    assert code == 1
    assert "DAMAGED RANGE" in out
    assert "1 record REJECTED" in out
    assert "but no file FORMAT" in out
    assert "upgrade kafkasafe" in out
    assert "CLUSTER is damaged" in out
    assert "foreign" not in out
    assert out.splitlines()[-1].startswith("6 directories, 5 lanes, ")
    told = json.loads(run(capsys, "spool", "ls", "--tree", tmp_path, "--json")[1])
    waiting = {row["directory"].rpartition("/")[2]: row["waiting_records"] for row in told["directories"]}
    assert (waiting["lost"], waiting["good"]) == (5, 1), "what lost its FORMAT is not absent"
    assert len(told["totals"]["troubles"]) == 3


@pytest.mark.parametrize("content", [b"", b"kafkasafe-spool 1", bytes(18)])
def test_a_directory_whose_format_is_damaged_is_in_the_tree_and_its_remedy_is_named(
    capsys, tmp_path, content
):
    """The tree left it out, with its undelivered records, and a producer was told to use another directory."""
    fill(tmp_path / "damaged", waiting=3)
    (tmp_path / "damaged" / "FORMAT").write_bytes(content)
    code, out, _ = run(capsys, "spool", "ls", "--tree", tmp_path)
    assert code == 1
    remedy = f"echo 'kafkasafe-spool 1' > {tmp_path}/damaged/FORMAT"
    assert remedy in out
    code, _, err = run(capsys, "spool", "ls", tmp_path / "damaged")
    assert (code, remedy in err) == (3, True)
    with pytest.raises(SpoolFormatError, match=r"holds lane-000, so the file is damaged\..*Restore it"):
        SafeProducer(bootstrap_servers="127.0.0.1:9", spool_dir=tmp_path / "damaged")
    subprocess.run(remedy, shell=True, check=True)
    assert run(capsys, "spool", "ls", tmp_path / "damaged")[0] == 0


def test_a_tree_that_is_not_there_is_a_usage_error(capsys, tmp_path):
    for arguments in ((), ("--tree", tmp_path / "nothing")):
        code, out, _ = run(capsys, "spool", "ls", *arguments)
        assert (code, out) == (2, "")


# -- prune -------------------------------------------------------------------------------------------------------------


def age(path, days=30):
    """As if nothing had used it since."""
    for each in [path, *path.rglob("*")]:
        os.utime(each, (time.time() - days * 86_400,) * 2)


def test_lanes_and_directories_that_hold_nothing_are_pruned(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    root = tmp_path / "kafkasafe"
    fill(root / "empty-1", lanes=3, cluster="c")
    fill(root / "mixed-2", waiting=2, lanes=2)
    fill(root / "rejected-3", rejected=[[b"1"]])
    age(root)
    fill(root / "new-4", cluster="c")
    code, out, _ = run(capsys, "spool", "prune", "--tree")
    assert code == 0
    lines = out.splitlines()
    assert lines[:4] == [f"{root}/empty-1/lane-{number:03d}: nothing in it" for number in range(3)] + [
        f"{root}/empty-1: nothing in it"
    ]
    assert f"{root}/mixed-2/lane-001: kept: 2 records not delivered" in lines
    assert f"{root}/new-4/lane-000: kept: it was used lately" in lines
    assert f"{root}/rejected-3/lane-000: kept: 1 record rejected" in lines
    assert lines[-2].startswith("3 lanes and 1 directory, ")
    assert lines[-1] == "Nothing was changed. Add --apply to carry this out"
    assert (root / "empty-1" / "lane-002").is_dir()

    told = json.loads(run(capsys, "spool", "prune", "--tree", "--apply", "--json")[1])
    assert (told["applied"], told["troubles"]) == (True, [])
    assert told["freed_bytes"] > 0
    assert sorted(path.name for path in root.iterdir()) == ["mixed-2", "new-4", "rejected-3"]
    assert run(capsys, "spool", "prune", root / "new-4", "--older-than", "0", "--apply")[0] == 0
    assert not (root / "new-4").exists()
    assert json.loads(run(capsys, "spool", "ls", root / "mixed-2", "--json")[1])[1]["waiting_records"] == 2


@pytest.mark.parametrize("command", [("prune", "--apply"), ("ls",)])
def test_another_prune_that_deletes_a_directory_meanwhile_ends_no_command(
    capsys, tmp_path, monkeypatch, command
):
    """Two scheduled commands may overlap. The one ended with 3, and did not look at the other directories."""
    for name in ("a", "b"):
        fill(tmp_path / name)
        age(tmp_path / name)
    below = tree.spools_below

    def and_gone(*arguments):
        for path in below(*arguments):
            if path.name == "a":
                shutil.rmtree(path)
            yield path

    monkeypatch.setattr("kafkasafe.cli.spool.tree.spools_below", and_gone)
    monkeypatch.setattr("kafkasafe.cli.spool.prune.spools_below", and_gone)
    code, out, err = run(capsys, "spool", command[0], "--tree", tmp_path, *command[1:])
    assert (code, err) == (0, "")
    assert f"{tmp_path}/b" in out
    assert f"{tmp_path}/a" not in out


@pytest.mark.parametrize("command", ["ls", "show", "verify"])
def test_a_lane_that_a_prune_deletes_meanwhile_is_no_trouble(capsys, tmp_path, monkeypatch, command):
    fill(tmp_path, lanes=2)
    lanes = SpoolDirectory.lanes

    def and_gone(self):
        there = lanes(self)
        shutil.rmtree(tmp_path / "lane-001", ignore_errors=True)
        return there

    monkeypatch.setattr(SpoolDirectory, "lanes", and_gone)
    code, out, err = run(capsys, "spool", command, tmp_path)
    assert (code, "lane-001" in out + err) == (0, False)


def test_a_lane_in_use_damage_and_quarantine_are_kept(capsys, tmp_path):
    directory = fill(tmp_path, lanes=4)
    lock = directory.take_lane(1)
    (tmp_path / "lane-002" / "quarantine").mkdir()
    (tmp_path / "lane-002" / "quarantine" / "x").write_bytes(b"x")
    for segment in (tmp_path / "lane-003").glob("*.log"):
        segment.unlink()
    (tmp_path / "theirs.txt").write_text("x")
    code, out, _ = run(capsys, "spool", "prune", tmp_path, "--older-than", "0", "--apply")
    lock.release()
    assert code == 0
    assert out.splitlines()[:4] == [
        f"{tmp_path}/lane-000: nothing in it",
        f"{tmp_path}/lane-001: kept: in use by process {os.getpid()}",
        f"{tmp_path}/lane-002: kept: quarantine/ holds damaged bytes",
        f"{tmp_path}/lane-003: kept: it is damaged",
    ]
    assert sorted(path.name for path in tmp_path.glob("lane-*")) == ["lane-001", "lane-002", "lane-003"]


def test_a_lane_that_cannot_be_read_is_trouble_for_a_prune_unless_it_has_just_gone(capsys, tmp_path):
    """docs/cli.md says so. A scheduled prune said that all was well."""
    directory = fill(tmp_path, lanes=3)
    found = find_prunable(directory, 0)
    assert next(found).kept == ""
    shutil.rmtree(tmp_path / "lane-001")  # another prune
    assert [(each.number, each.kept, each.is_unread) for each in found] == [(2, "", False)]
    (tmp_path / "lane-001").touch()
    code, out, _ = run(capsys, "spool", "prune", tmp_path, "--older-than", "0", "--apply", "--json")
    told = json.loads(out)
    assert (code, len(told["troubles"])) == (1, 1)
    assert told["troubles"][0].startswith(f"{tmp_path}/lane-001: it cannot be read: ")
    assert sorted(path.name for path in tmp_path.glob("lane-*")) == ["lane-001"]


def test_a_crash_in_the_middle_of_a_prune_leaves_no_damaged_lane(capsys, tmp_path, monkeypatch):
    fill(tmp_path / "spool", lanes=2)

    def fails(path):
        raise OSError(5, "Input/output error", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", fails)
        code, out, _ = run(capsys, "spool", "prune", tmp_path / "spool", "--older-than", "0", "--apply")
    assert (code, "cannot be deleted" in out) == (1, True)
    assert run(capsys, "spool", "verify", tmp_path / "spool")[0] == 0
    assert run(capsys, "spool", "prune", tmp_path / "spool", "--older-than", "0", "--apply")[0] == 0
    assert not (tmp_path / "spool").exists()


def test_a_producer_that_starts_while_its_directory_is_pruned_makes_it_again(tmp_path):
    """1. It waits for the lock of FORMAT. 2. The prune ends. 3. The lock that it gets is of a deleted file."""
    from kafkasafe.maintenance.prune import prune_directory

    path = tmp_path / "spool"
    pruning = SpoolDirectory.open(path, files=OsFiles())
    done = []

    class LateFiles(OsFiles):
        def lock(self, handle):
            if not done:
                done.append(prune_directory(pruning))
            return super().lock(handle)

    starting = SpoolDirectory.open(path, files=LateFiles())
    taken = starting.take_lane(client="orders")
    assert done == [True]
    assert (path / "FORMAT").read_bytes().startswith(b"kafkasafe-spool ")
    assert taken.path == path / "lane-000"
    taken.release()


def test_a_lane_that_this_user_may_not_see_is_not_gone(tmp_path, monkeypatch):
    """The user may list the spool directory, but not enter it. What is wrong with the lane is reported."""
    lane = tmp_path / "lane-000"
    lane.mkdir()
    real = os.stat

    def stat(path, *arguments, **more):
        if not isinstance(path, int) and Path(os.fsdecode(path)) == lane:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return real(path, *arguments, **more)

    monkeypatch.setattr(os, "stat", stat)
    assert not is_gone(lane)
    assert is_gone(tmp_path / "lane-001")
