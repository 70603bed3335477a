"""`kafkasafe spool show | export | repair`, and shell completion, without a broker."""

from __future__ import annotations

import base64
import errno
import json
import os
import re
import shutil
import subprocess
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest
from commands import run
from programs import python

from kafkasafe import SafeProducer, marks
from kafkasafe.cli.spool.contents import records_of
from kafkasafe.errors import SpoolCorruptError
from kafkasafe.record import batch
from kafkasafe.spool import inspection
from kafkasafe.spool.extent import LogEndClaim, encode_claim
from kafkasafe.spool.files import OsFiles
from kafkasafe.spool.inspection import inspect, read_lane
from kafkasafe.spool.lanes import SpoolDirectory
from kafkasafe.spool.rejected import RejectedStore
from kafkasafe.spool.rejected_format import Refused, encode
from kafkasafe.spool.spool import Spool
from kafkasafe.testing.fake import FakeCluster


def open_spool(path, on_corrupt="raise"):
    return Spool.open(
        path,
        files=OsFiles(),
        segment_bytes=1 << 20,
        sync="group",
        snapshot=list,
        on_corrupt=on_corrupt,
        clock_ms=lambda: 0,
    )


@pytest.fixture
def lane(tmp_path):
    """Batches of three records: committed, refused, in doubt, without an id, without a partition."""
    directory = SpoolDirectory.open(tmp_path / "spool", files=OsFiles())
    lock = directory.take_lane()
    spool, _ = open_spool(lock.path)
    values = [[b"%d.%d" % (n, i) for i in range(3)] for n in range(5)]
    values[2][1] = b"\xff\xfe"
    values[2][2] = None
    headers = {0: [("h", b"x"), ("kafkasafe.partition", b"4")]}
    data = [
        batch.encode([b"k"] * 3, v, timestamps=1000 + n, headers=headers if n == 4 else None)
        for n, v in enumerate(values)
    ]
    for n in range(3):
        batch.stamp_identity(data[n], 7, 0, 3 * n)
    declared = [
        marks.Destination(1, "orders", 2),
        marks.Destination(2, "new", -1),
        marks.State(1, 0, -1, -1, bytes(16)),
    ]
    positions = spool.write_group(declared, list(zip([1, 1, 1, 1, 2], data, strict=True)))
    spool.sync()
    folder = lock.path / "rejected"
    folder.mkdir()
    (folder / f"{positions[1]:020d}.log").write_bytes(data[1])
    spool.write_group(
        [marks.Committed(1, 0, ((positions[0], 50),)), marks.Rejected(positions[1], 10, "too large")], ()
    )
    spool.sync()
    # So that it is proven to have been durable.
    spool.write_group([], ())
    spool.sync()
    spool.close()
    lock.release()
    return SimpleNamespace(path=lock.path, positions=positions)


def damage(lane, number, at=70):
    """One bit of a batch; number -1: of the first group's own batch."""
    (segment,) = lane.path.glob("*.log")
    content = bytearray(segment.read_bytes())
    headers = [(start, h) for start, h in batch.iter_headers(content)]
    data = [start for start, header in headers if not header.is_control]
    begin = headers[0][0] if number < 0 else data[number]
    content[begin + at] ^= 1
    segment.write_bytes(content)
    return segment, bytes(content)


def test_show_says_what_is_known_of_each_batch(capsys, lane):
    directory = lane.path.parent
    code, out, err = run(capsys, "spool", "show", directory)
    assert (code, err) == (1, "")  # something was rejected
    a, b, c, d, e = lane.positions
    assert "not sent; step 1 of 4, prepared; prepared 1970-01-01T00:00:00.000+00:00" in out
    out = re.sub(r"(; [a-z ]+ 1970-01-01T\S+)+$", "", out, flags=re.MULTILINE)
    assert out.splitlines() == [
        f"lane-000 {b}: orders-2, 3 records, {out.splitlines()[0].split(', ')[2]}, producer id 7, epoch 0, sequence 3: rejected (too large (10))",
        f"lane-000 {c}: orders-2, 3 records, {out.splitlines()[1].split(', ')[2]}, producer id 7, epoch 0, sequence 6: in doubt; step 2 of 4, prepare acknowledged",
        f"lane-000 {d}: orders-2, 3 records, {out.splitlines()[2].split(', ')[2]}, no id: not sent; step 1 of 4, prepared",
        f"lane-000 {e}: new, no partition, 3 records, {out.splitlines()[3].split(', ')[3]}, no id: not sent; step 1 of 4, prepared",
    ]
    rows = json.loads(run(capsys, "spool", "show", directory, "--all", "--json")[1])
    assert (rows[0]["position"], rows[0]["status"], rows[0]["offset"]) == (a, "committed", 50)
    assert len(rows) == 5
    assert [(row["step"], row["step_name"]) for row in rows] == [
        (4, "commit_acknowledged"),
        (None, None),
        (2, "prepare_acknowledged"),
        (1, "prepared"),
        (1, "prepared"),
    ]
    rows = json.loads(run(capsys, "spool", "show", directory, "--position", c, "--json")[1])
    assert [record["value"] for record in rows[0]["content"]] == [
        "2.0",
        {"base64": base64.b64encode(b"\xff\xfe").decode()},
        None,
    ]


@pytest.mark.parametrize("command", ["spool ls", "spool show", "spool verify", "spool repair", "health"])
def test_marks_of_a_destination_whose_declaration_is_lost_end_no_command(capsys, lane, command):
    """Its batches are damage, because no name is known for them. Its marks ended each command with a traceback."""
    segment = next(lane.path.glob("*.log"))
    content = segment.read_bytes()
    segment.write_bytes(content.replace(b"orders", b"Orders", 1))
    code, out, err = run(capsys, *command.split(), lane.path.parent)
    assert (code, err) == (1, "")
    assert "amaged" in out or "DAMAGED" in out or "LEFT AS IT IS" in out


@pytest.mark.parametrize("command", ["commit", "abort"])
def test_a_lane_that_lost_its_end_may_have_had_more_atomic_batches(capsys, lane, command):
    """The commands said that no atomic batch was left, with exit code 0."""
    segment = next(lane.path.glob("*.log"))
    asked = ("spool", command, lane.path.parent, "-b", "127.0.0.1:9")
    assert run(capsys, *asked)[0] == 0
    segment.write_bytes(segment.read_bytes()[:-1])
    code, out, _ = run(capsys, *asked)
    assert (code, "lane-000 is DAMAGED" in out) == (1, True)
    assert json.loads(run(capsys, *asked, "--json")[1])["damaged_lanes"] == ["lane-000"]


def test_a_producer_starts_behind_a_lost_declaration_with_quarantine(tmp_path, fake_kafka):
    """1. The group that declares a partition is damaged. 2. Later groups have marks about this partition."""
    options = {"bootstrap_servers": fake_kafka.bootstrap_servers, "spool_dir": tmp_path, "client_id": "c"}
    with SafeProducer(**options) as producer:
        for number in range(3):
            producer.send("topic-a", b"%d" % number, partition=0).get(60)
    segment = next(tmp_path.glob("lane-000/*.log"))
    content = segment.read_bytes()
    for at in [found.start() for found in re.finditer(b"topic-a", content)][:2]:  # TOPIC and DESTINATION
        content = content[:at] + b"T" + content[at + 1 :]
    segment.write_bytes(content)
    with SafeProducer(**options, on_corrupt="quarantine") as producer:
        assert producer.send("topic-a", b"3", partition=0).get(60).offset == 3


def test_show_reads_the_steps_of_a_lane_once(capsys, lane, monkeypatch):
    """A lane may have millions of marks."""
    read = inspection.steps_of
    calls = []

    def counted(groups):
        calls.append(1)
        return read(groups)

    monkeypatch.setattr(inspection, "steps_of", counted)
    run(capsys, "spool", "show", lane.path.parent, "--all")
    assert len(calls) == 1


def rejected_files(lane, owner, *batches):
    """Files of rejected/, one for each list of (position, values)."""
    store = RejectedStore(OsFiles(), lane.path, owner)
    for each in batches:
        refused = [
            Refused(
                p,
                batch.encode([None] * len(v), v, timestamps=1000),
                29,
                "TOPIC_AUTHORIZATION_FAILED (29): no",
            )
            for p, v in each
        ]
        store.keep(refused, marks.Destination(3, "secret", 0), cluster_id="c", now_ms=1000)


def test_what_was_rejected_is_shown_with_its_reason_in_later_lives(capsys, lane):
    """Every command that looks at a spool names it and ends with 1; the log knows nothing of it any more."""
    directory = lane.path.parent
    rejected_files(lane, b"o" * 16, [(900, [b"1", b"2"]), (902, [b"3"])], [(903, [b"4"])])
    code, out, _ = run(capsys, "spool", "ls", directory)
    assert code == 1
    lines = out.splitlines()
    assert lines[0].endswith("9 records in 3 batches waiting; 7 records REJECTED")
    assert "  REJECTED secret-0: 4 records in 3 batches: TOPIC_AUTHORIZATION_FAILED (29): no" in lines
    assert "kafkasafe spool resend" in lines[-1]
    (row,) = json.loads(run(capsys, "spool", "ls", directory, "--json")[1])
    assert (row["rejected_records"], row["rejected_batches"]) == (7, 4)
    assert row["rejected"][1] == {
        "topic": "secret",
        "partition": 0,
        "code": 29,
        "reason": "TOPIC_AUTHORIZATION_FAILED (29): no",
        "batches": 3,
        "records": 4,
    }
    code, out, _ = run(capsys, "spool", "show", directory)
    assert code == 1
    assert "secret-0, 1 record," in out
    assert out.count("rejected (TOPIC_AUTHORIZATION_FAILED (29): no (29))") == 3
    code, out, _ = run(capsys, "doctor", directory)
    assert code == 1
    assert "REJECTED secret-0: 4 records in 3 batches" in out
    told = json.loads(run(capsys, "doctor", directory, "--json")[1])
    assert told["ok"] is False
    assert sum(each["records"] for each in told["lanes"][0]["rejected"]) == 7
    code, out, _ = run(capsys, "spool", "export", directory, "-o", "-", "--status", "rejected")
    assert [json.loads(line)["value"] for line in out.splitlines()][-4:] == ["1", "2", "3", "4"]


def test_a_half_written_file_in_rejected_locks_nothing(capsys, lane, tmp_path):
    """It is reported by every command, which otherwise do their work; export writes everything else."""
    directory = lane.path.parent
    (lane.path / "rejected" / "00000000000000000500.log").write_bytes(b"\0" * 100)
    for command in (("ls",), ("show",), ("verify",), ("export", "-o", tmp_path / "x.jsonl")):
        code, out, err = run(capsys, "spool", command[0], directory, *command[1:])
        assert (code, err) == (1, ""), command
        assert "00000000000000000500.log" in out
    assert len((tmp_path / "x.jsonl").read_text(encoding="utf-8").splitlines()) == 15
    assert (tmp_path / "x.jsonl").stat().st_mode & 0o777 == 0o600
    code, out, _ = run(capsys, "doctor", directory)
    assert code == 1
    assert "UNREADABLE rejected/00000000000000000500.log" in out
    assert "orders-2, 3 records" in out
    code, out, _ = run(capsys, "spool", "repair", directory)
    assert code == 1
    assert "LEFT AS IT IS: rejected/00000000000000000500.log: " in out


def test_what_left_rejected_is_not_called_rejected(capsys, lane):
    """Its mark is there as long as its segment is; its records are sent again, or were deleted by hand."""
    for path in (lane.path / "rejected").iterdir():
        path.unlink()
    code, out, _ = run(capsys, "spool", "show", lane.path.parent)
    assert (code, "rejected" in out) == (0, False)
    rows = json.loads(run(capsys, "spool", "show", lane.path.parent, "--all", "--json")[1])
    assert [row["status"] for row in rows] == ["committed", "resent", "in_doubt", "not_sent", "not_sent"]
    assert run(capsys, "spool", "ls", lane.path.parent)[0] == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("show", "--position", "1"), "no batch begins at position 1"),
        (("show", "--lane", "7"), "has no lane 7"),
        (("export", "-o", "-", "--status", "lost?"), "'lost?' is not one of"),
        (("export", "-o", "-", "--format", "parquet"), "Parquet needs a file"),
        (("drain", "-b", "here:there"), "'here:there' is not host:port"),
        (("drain",), "give the brokers as HOST:PORT"),
        (("drain", "-b", "127.0.0.1:9", "--timeout", "soon"), "'soon' is not a duration"),
        (("repair", "--lane", "x"), "has no lane x"),
    ],
)
def test_wrong_input_is_a_usage_error(capsys, lane, arguments, said):
    before = sorted(lane.path.parent.rglob("*"))
    command, *rest = arguments
    code, out, err = run(capsys, "spool", command, lane.path.parent, *rest)
    assert (code, out) == (2, "")
    assert said in " ".join(err.split())
    assert sorted(lane.path.parent.rglob("*")) == before


def on_directory(command, directory):
    """A command line that does something with a directory."""
    words = ("doctor",) if command == "doctor" else ("spool", command)
    servers = ("-b", "127.0.0.1:9")
    more = {"export": ("-o", directory.parent / "out"), "drain": servers, "commit": servers}.get(command, ())
    return *words, directory, *more


COMMANDS = ["ls", "verify", "show", "repair", "export", "drain", "doctor", "resend", "commit"]


@pytest.mark.parametrize("command", COMMANDS[:-2])
def test_a_directory_that_is_no_spool_is_a_usage_error_and_stays_as_it_is(capsys, tmp_path, command):
    code, out, err = run(capsys, *on_directory(command, tmp_path / "nothing"))
    assert (code, out) == (2, "")
    assert "is not a spool directory: it does not exist" in err
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_no_spool_is_told_from_an_empty_one_and_a_file(capsys, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "thesis.txt").touch()
    (tmp_path / "c").touch()
    said = {name: " ".join(run(capsys, "spool", "ls", tmp_path / name)[2].split()) for name in "abc"}
    assert "it is empty" in said["a"]
    assert "it has no file FORMAT, but contains 'thesis.txt'" in said["b"]
    assert "it is a file" in said["c"]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_loop_of_links_is_a_usage_error(capsys, tmp_path, command):
    """It was a traceback, with the exit code for damage."""
    (tmp_path / "loop").symlink_to("loop")
    code, out, err = run(capsys, *on_directory(command, tmp_path / "loop"))
    assert (code, out) == (2, "")
    assert "is not a spool directory: its symbolic links form a loop" in " ".join(err.split())


def test_a_deleted_current_directory_is_no_loop_of_links(capsys, tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    code, out, err = run(capsys, "spool", "ls", "some")
    assert code != 0
    assert out == ""
    assert "No such file or directory" in err
    assert "loop" not in err


@pytest.mark.parametrize("command", COMMANDS)
def test_a_spool_that_lost_its_format_is_told_with_what_it_holds_and_how_to_restore_it(capsys, lane, command):
    directory = lane.path.parent
    (directory / "FORMAT").unlink()
    before = sorted(directory.rglob("*"))
    code, out, err = run(capsys, *on_directory(command, directory))
    assert (code, out) == (3, "")
    assert "12 UNDELIVERED RECORDS" in err
    assert "holds lane-000, but no file FORMAT" in err
    assert "CLUSTER is missing as well" in err
    assert sorted(directory.rglob("*")) == before
    # As the message says.
    (directory / "CLUSTER").write_text("its-id\n")
    (directory / "FORMAT").unlink(missing_ok=True)
    _, _, err = run(capsys, *on_directory(command, directory))
    subprocess.run(err.partition("Restore it: ")[2].strip(), shell=True, check=True, timeout=60)
    assert SpoolDirectory.look(directory, files=OsFiles()).cluster_id() == "its-id"
    assert "9 records in 3 batches waiting; 3 records REJECTED" in run(capsys, "spool", "ls", directory)[1]
    # So does a producer.
    (directory / "FORMAT").unlink()
    SpoolDirectory.open(directory, files=OsFiles())
    assert (directory / "FORMAT").exists()


@pytest.mark.parametrize("content", [b"\x00\xff", b"", b"\n", b"an id\n", b"x" * 201, "clüster\n".encode()])
def test_a_damaged_file_of_the_cluster_is_called_damaged(capsys, lane, content):
    """It was printed as it is, as the id of another cluster; an empty one let any cluster have the records."""
    directory = lane.path.parent
    (directory / "CLUSTER").write_bytes(content)
    for command in ("ls", "verify", "doctor"):
        code, out, _ = run(capsys, *on_directory(command, directory))
        assert code == 1
        assert "CLUSTER is damaged: it contains " in out
        assert "in 3 batches" in out or command == "verify"
        assert out.isascii()
        assert out.replace("\n", "").isprintable()
    code, _, err = run(capsys, *on_directory("doctor", directory), "-b", "127.0.0.1:9")
    assert (code, "CLUSTER is damaged" in err) == (3, True)
    code, _, err = run(capsys, "spool", "resend", directory)
    assert (code, "CLUSTER is damaged" in err) == (3, True)
    # No cluster may have what waits; where nothing does, any may have the directory.
    known = SpoolDirectory.look(directory, files=OsFiles())
    with pytest.raises(SpoolCorruptError, match="CLUSTER is damaged"):
        known.bind_cluster("a", drained=lambda: False)
    assert (directory / "CLUSTER").read_bytes() == content
    assert known.bind_cluster("a", drained=lambda: True) == (None, True)
    assert known.cluster_id() == "a"


def test_secrets_of_a_connection_are_not_told(capsys, lane, tmp_path):
    for name, content in (
        ("a.toml", 'sasl_plain_password = "hunter2'),
        ("a.json", '{"sasl_plain_password": "hunter2"'),
        ("b.toml", 'bootstrap_servers = "x:1"\nsasl_plain_pasword = "hunter2"'),
        ("client.properties", "sasl.password=hunter2"),
        ("missing.toml", None),
    ):
        if content is not None:
            (tmp_path / name).write_text(content)
        code, out, err = run(capsys, "doctor", lane.path.parent, "--config", tmp_path / name)
        assert (code, out) == (2, "")
        assert "--config" in err
        assert "hunter2" not in err
        assert ("it is not TOML (a file named *.json may contain JSON)" in err) == (
            name in {"a.toml", "client.properties"}
        )


# -- export ------------------------------------------------------------------------------------------------------------


def test_export_to_json_lines(capsys, lane, tmp_path):
    code, out, err = run(capsys, "spool", "export", lane.path.parent, "-o", "-")
    assert code == 0
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["status"] for row in rows] == [
        *["committed"] * 3,
        *["rejected"] * 3,
        *["in_doubt"] * 3,
        *["not_sent"] * 6,
    ]
    assert [row["offset"] for row in rows[:4]] == [50, 51, 52, None]
    assert [row["value"] for row in rows[6:9]] == ["2.0", {"base64": "//4="}, None]
    assert [row["sequence"] for row in rows[6:9]] == [6, 7, 8]
    # A partition that was given though the topic is not known yet.
    assert [(row["topic"], row["partition"], row["headers"]) for row in rows[12:14]] == [
        ("new", 4, [["h", "x"]]),
        ("new", -1, []),
    ]
    assert "15 records: 3 committed, 3 in doubt, 6 not sent, 3 rejected" in err
    code, out, _ = run(
        capsys,
        "spool",
        "export",
        lane.path.parent,
        "-o",
        tmp_path / "x.jsonl",
        "--status",
        "in_doubt",
        "--json",
    )
    assert json.loads(out)["records"]["in_doubt"] == 3
    assert len((tmp_path / "x.jsonl").read_text().splitlines()) == 3
    # Never over something that is there.
    code, _, err = run(capsys, "spool", "export", lane.path.parent, "-o", tmp_path / "x.jsonl")
    assert (code, "exists already" in err) == (2, True)


def test_export_to_parquet(capsys, lane, tmp_path):
    assert run(capsys, "spool", "export", lane.path.parent, "-o", tmp_path / "x.parquet")[0] == 0
    rows = pq.read_table(tmp_path / "x.parquet").to_pylist()
    assert len(rows) == 15
    assert [row["value"] for row in rows[6:9]] == [b"2.0", b"\xff\xfe", None]
    assert (rows[0]["key"], rows[0]["offset"], rows[0]["status"]) == (b"k", 50, "committed")
    assert rows[12]["headers"] == [{"name": "h", "value": b"x"}]


def test_what_is_damaged_is_told_and_the_rest_exported(capsys, lane):
    damage(lane, 3)
    code, out, err = run(capsys, "spool", "export", lane.path.parent, "-o", "-")
    assert code == 1
    assert len(out.splitlines()) == 12
    assert "DAMAGE, not exported: lane-000: " in err


# -- repair ------------------------------------------------------------------------------------------------------------


def opens(lane):
    lock = SpoolDirectory.open(lane.path.parent, files=OsFiles()).take_lane(0)
    try:
        spool, entries = open_spool(lock.path)
        spool.close(closed_mark=False)
        return entries
    finally:
        lock.release()


def test_nothing_to_repair(capsys, lane):
    code, out, _ = run(capsys, "spool", "repair", lane.path.parent, "--apply")
    assert (code, out) == (0, "lane-000: nothing to repair\n")
    assert not list(lane.path.glob("repair-*"))


@pytest.mark.parametrize(
    ("number", "at", "what"),
    [
        # Base offset, length, leader epoch, magic, CRC: of a batch that is not delivered.
        (2, 3, "address"),
        (2, 10, "address"),
        (2, 13, "address"),
        (2, 16, "address"),
        (2, 18, "address"),
        # In the body of one that is.
        (0, 70, "quarantine"),
        (1, 70, "quarantine"),
    ],
)
def test_what_can_be_repaired_without_a_loss_is(capsys, lane, number, at, what):
    segment, broken = damage(lane, number, at)
    with pytest.raises(SpoolCorruptError):
        opens(lane)
    before = {path: path.read_bytes() for path in lane.path.rglob("*") if path.is_file()}
    code, out, _ = run(capsys, "spool", "repair", lane.path.parent, "--json")
    (row,) = json.loads(out)
    assert (code, [step["what"] for step in row["steps"]], row["left"]) == (0, [what], [])
    assert not row["applied"]
    assert {path: path.read_bytes() for path in lane.path.rglob("*") if path.is_file()} == before
    code, out, _ = run(capsys, "spool", "repair", lane.path.parent, "--apply")
    assert (code, "repaired" in out) == (0, True)
    (copies,) = lane.path.glob("repair-*")
    assert (copies / segment.name).read_bytes() == broken
    entries = opens(lane)
    positions = {entry.position for entry in entries if hasattr(entry, "header")}
    assert lane.positions[2] in positions
    if what == "address":
        assert inspect(lane.path, files=OsFiles()).damage == ()
        assert positions == set(lane.positions)
    # Once is enough.
    assert run(capsys, "spool", "repair", lane.path.parent)[1] == "lane-000: nothing to repair\n"


def test_a_damaged_batch_that_rejected_has_in_a_file_named_by_its_time_can_be_repaired(capsys, lane):
    """Such files have replaced those that are named by the position: nothing of them could be repaired."""
    (old,) = (lane.path / "rejected").iterdir()
    log = read_lane(lane.path, files=OsFiles())
    kept = Refused(lane.positions[1], bytearray(old.read_bytes()), 10, "too large")
    destination = marks.Destination(1, "orders", 2)
    pieces = encode([kept], destination, lane_id=log.lane_id, cluster_id="", now_ms=1000)
    old.with_name(f"{1_700_000_000_000_000_000:020d}.log").write_bytes(b"".join(pieces))
    old.unlink()
    damage(lane, 1)
    (row,) = json.loads(run(capsys, "spool", "repair", lane.path.parent, "--json")[1])
    assert ([step["what"] for step in row["steps"]], row["left"]) == (["quarantine"], [])


@pytest.mark.parametrize(("number", "at"), [(2, 70), (3, 70), (-1, 70)])
def test_what_would_lose_something_is_left_and_told(capsys, lane, number, at):
    damage(lane, number, at)
    before = {path: path.read_bytes() for path in lane.path.rglob("*.log")}
    code, out, _ = run(capsys, "spool", "repair", lane.path.parent, "--apply")
    assert code == 1
    assert "LEFT AS IT IS" in out
    assert {path: path.read_bytes() for path in lane.path.rglob("*.log")} == before
    with pytest.raises(SpoolCorruptError):
        opens(lane)


def test_two_damages_of_one_lane_one_is_repaired_the_other_told(capsys, lane):
    damage(lane, 0)
    damage(lane, 3)
    code, out, _ = run(capsys, "spool", "repair", lane.path.parent, "--apply", "--json")
    (row,) = json.loads(out)
    assert (code, row["applied"], len(row["steps"]), len(row["left"])) == (1, True, 1, 1)


def test_a_torn_tail_is_cut_and_kept(capsys, lane):
    (segment,) = lane.path.glob("*.log")
    whole = segment.read_bytes()
    beginning = whole[:50]  # of a group
    segment.write_bytes(whole + beginning)
    code, out, _ = run(capsys, "spool", "repair", lane.path.parent)
    assert (code, "cut" in out, "Nothing was changed; --apply applies the plan" in out) == (0, True, True)
    assert run(capsys, "spool", "repair", lane.path.parent, "--apply")[0] == 0
    assert segment.read_bytes() == whole
    (copies,) = lane.path.glob("repair-*")
    assert (copies / segment.name).read_bytes() == whole + beginning
    opens(lane)


def test_a_segment_without_one_intact_group_is_left_and_told(capsys, lane):
    (segment,) = lane.path.glob("*.log")
    segment.write_bytes(bytes(reversed(segment.read_bytes())))
    before = segment.read_bytes()
    code, out, _ = run(capsys, "spool", "repair", lane.path.parent, "--apply")
    assert (code, "LEFT AS IT IS" in out, "(15 records)" in out) == (1, True, True)
    # Without the extent, as after a power cut, nobody knows whether there was anything.
    (lane.path / "extent").unlink()
    code, out, _ = run(capsys, "spool", "repair", lane.path.parent, "--apply")
    assert (code, "without an intact group" in out) == (1, True)
    assert segment.read_bytes() == before
    assert not list(lane.path.glob("repair-*"))
    for command in (("spool", "show"), ("doctor",)):
        assert run(capsys, *command, lane.path.parent)[0] == 1
    code, _, err = run(capsys, "spool", "export", lane.path.parent, "-o", "-")
    assert (code, "has no intact group" in err) == (1, True)


@pytest.mark.parametrize("harm", ["missing", "damaged", "cut", "empty", "foreign"])
def test_a_lane_whose_extent_proves_nothing_is_named(capsys, lane, harm):
    """Nobody said that segments could vanish unnoticed from then on."""
    extent = lane.path / "extent"
    whole = extent.read_bytes()
    commands = (("spool", "ls"), ("spool", "verify"), ("doctor",))
    codes = {}
    for command in commands:
        codes[command], out, _ = run(capsys, *command, lane.path.parent)
        assert "extent" not in out
    match harm:
        case "missing":
            extent.unlink()
        case "damaged":
            extent.write_bytes(b"\xff" + whole[1:])
        case "cut":
            extent.write_bytes(whole[:1030])
        case "empty":
            extent.write_bytes(b"")
        case "foreign":
            extent.write_bytes(
                encode_claim(LogEndClaim(b"another lane's  ", 0, 1, 0)).ljust(len(whole), b"\0")
            )
    said = {"missing": "is missing", "foreign": "is of another lane"}.get(harm, "is damaged")
    for command in commands:
        code, out, _ = run(capsys, *command, lane.path.parent)
        assert (code, f"note: the file extent {said}" in out) == (codes[command], True), command
        as_json = run(capsys, *command, lane.path.parent, "--json")[1]
        assert f'"extent": "the file extent {said}' in as_json, command
    opens(lane)  # evidence, no state: nothing is refused for it


def test_a_lane_that_is_a_copy_of_another_one_is_named(capsys, lane):
    """Only a producer that opened both noticed it, and only while it ran."""
    directory = lane.path.parent
    shutil.copytree(lane.path, directory / "lane-004")
    SpoolDirectory.open(directory, files=OsFiles()).take_lane(
        2
    ).release()  # an empty lane is no copy of anything
    code, out, _ = run(capsys, "health", directory)
    assert code == 1
    assert "warning: copied: lane-004: it has the same lane id as lane-000" in out
    for command in (["spool", "verify"], ["doctor"]):
        before = {path: path.stat().st_mtime_ns for path in directory.rglob("*")}
        code, out, _ = run(capsys, *command, directory)
        assert code == 1
        for name, other in (("lane-000", "lane-004"), ("lane-004", "lane-000")):
            part = out[out.index(f"{name}:") :].split("\nlane-")[0]
            assert f"COPY it has the same lane id as {other}" in part, command
            assert "Move the copy out of the spool directory" in part
        _, out, _ = run(capsys, *command, directory, "--json")
        told = json.loads(out)
        rows = {
            row["lane"]: row["same_lane_id"] for row in (told["lanes"] if command == ["doctor"] else told)
        }
        assert rows == {"lane-000": ["lane-004"], "lane-002": [], "lane-004": ["lane-000"]}
        assert {path: path.stat().st_mtime_ns for path in directory.rglob("*")} == before
    shutil.rmtree(directory / "lane-004")
    for command in (["spool", "verify"], ["doctor"]):
        assert "COPY" not in run(capsys, *command, directory)[1]


def test_brokers_that_do_not_exist_are_not_waited_for(capsys, lane):
    """The doctor asked for a minute, and then said that no broker had answered."""
    code, _, err = run(capsys, "doctor", lane.path.parent, "-b", "nonsense.invalid:9092,[nonsense.invalid]")
    assert (code, "no address is known for 'nonsense.invalid'" in err) == (2, True)


def test_records_that_merely_wait_are_no_trouble(capsys, tmp_path):
    lock = SpoolDirectory.open(tmp_path / "spool", files=OsFiles()).take_lane()
    spool, _ = open_spool(lock.path)
    spool.write_group([marks.Destination(1, "orders", 2)], [(1, batch.encode(None, [b"x"], timestamps=1))])
    spool.close()
    lock.release()
    for command in (("doctor",), ("spool", "ls")):
        code, out, _ = run(capsys, *command, tmp_path / "spool")
        assert (code, "1 record in 1 batch" in out) == (0, True)


def test_a_segment_that_was_deleted_is_damage_for_every_command(capsys, lane):
    """A cleaner of *.log came by."""
    (segment,) = lane.path.glob("*.log")
    segment.unlink()
    for command in (
        ("spool", "ls"),
        ("spool", "show"),
        ("spool", "verify"),
        ("spool", "repair"),
        ("doctor",),
    ):
        code, out, _ = run(capsys, *command, lane.path.parent)
        assert code == 1, command
        assert ("missing" in out and "15 records" in out) or command[1] in {"ls", "show"}
    code, _, err = run(capsys, "spool", "export", lane.path.parent, "-o", "-")
    assert (code, "15 records" in err) == (1, True)
    code, out, err = run(capsys, "spool", "drain", lane.path.parent, "-b", "127.0.0.1:1", "--timeout", "1s")
    assert code in {1, 3}
    assert "0 left" not in out
    assert "15 records" in out + err
    with pytest.raises(SpoolCorruptError, match="15 records"):
        opens(lane)


def test_a_lane_that_cannot_be_read_is_named_and_the_others_are_shown(capsys, lane):
    """A file or a link in the place of a lane, a directory or a pipe in that of a segment."""
    spool = lane.path.parent
    (spool / "lane-001").symlink_to("nowhere")
    (spool / "lane-9999").write_text("a note")
    for number, make in ((2, Path.mkdir), (3, os.mkfifo)):
        (spool / f"lane-00{number}").mkdir()
        make(spool / f"lane-00{number}" / f"{0:020d}.log")
    bad = ("lane-001", "lane-002", "lane-003", "lane-9999")
    for command in (("spool", "ls"), ("spool", "verify"), ("spool", "show"), ("doctor",)):
        code, out, err = run(capsys, *command, spool)
        assert code == 1, out + err
        for name in bad:
            assert f"{name}: CANNOT BE READ: " in out, command
        assert "lane-003 cannot be read: [Errno 22] It is not a regular file" in out
        assert "lane-000" in out
        code, out, err = run(capsys, *command, spool, "--json")
        rows = json.loads(out)
        assert code == 1
        if command[-1] == "show":
            assert {row["lane"] for row in rows} == {"lane-000"}
            assert all(f"{name}: CANNOT BE READ: " in err for name in bad)
        else:
            found = {row["lane"]: row["error"] for row in (rows["lanes"] if command == ("doctor",) else rows)}
            assert found.pop("lane-000") is None
            assert sorted(name for name, reason in found.items() if reason) == list(bad)
    code, out, _ = run(capsys, "spool", "repair", spool)
    assert (code, out.count("not touched"), "lane-000: nothing to repair" in out) == (3, 4, True)
    # Nor do they keep a producer from starting, or lanes that were left behind from being adopted.
    directory = SpoolDirectory.open(spool, files=OsFiles())
    for lock in directory.dead_lanes():
        lock.release()
    directory.take_lane(client="a").release()


def test_a_lane_that_a_process_owns_is_left_alone(capsys, lane):
    damage(lane, 0)
    with_lock = SpoolDirectory.open(lane.path.parent, files=OsFiles()).take_lane(0)
    try:
        for more in ((), ("--apply",)):
            code, out, _ = run(capsys, "spool", "repair", lane.path.parent, *more)
            assert (code, f"process {os.getpid()}" in out) == (3, True)
    finally:
        with_lock.release()


# -- all ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        ("doctor",),
        ("offsets",),
        *(("spool", name) for name in ("ls", "verify", "show", "repair", "drain", "export")),
    ],
)
def test_exit_codes_and_json_are_documented(capsys, command):
    code, out, _ = run(capsys, *command, "--help")
    assert code == 0
    text = " ".join(out.split())
    assert "Exit codes: 0" in text
    assert "--json" in text


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_completes(shell):
    done = python(
        "-m", "kafkasafe.cli", env={**os.environ, "_KAFKASAFE_COMPLETE": f"source_{shell}"}, timeout=60
    )
    assert "_KAFKASAFE_COMPLETE" in done.stdout


@pytest.mark.parametrize("name", ["x.jsonl", "x.parquet"])
def test_an_export_that_finds_no_room_says_what_is_left(capsys, lane, tmp_path, monkeypatch, name):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("kafkasafe.cli.spool.export.records_of", full)
    code, out, err = run(capsys, "spool", "export", lane.path.parent, "-o", tmp_path / name)
    assert (code, out) == (3, "")
    assert err == (
        f"kafkasafe: {tmp_path / name} cannot be written: No space left on device. The spool stays as it is, and no part"
        f" of {name} is left\n"
    )
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize("name", ["x.jsonl", "x.parquet"])
def test_an_export_is_durable_before_somebody_discards_the_records(capsys, lane, tmp_path, monkeypatch, name):
    synced = {}
    sync = os.fsync

    def noted(handle):
        sync(handle)
        synced[os.fstat(handle).st_ino] = os.fstat(handle).st_size

    monkeypatch.setattr(os, "fsync", noted)
    code, _, _ = run(capsys, "spool", "export", lane.path.parent, "-o", tmp_path / name)
    assert code == 0
    found = (tmp_path / name).stat()
    assert found.st_size > 0
    assert synced[found.st_ino] == found.st_size
    assert list(synced)[-1] == tmp_path.stat().st_ino


@pytest.mark.parametrize("name", ["x.jsonl", "x.parquet"])
def test_an_export_that_is_killed_leaves_no_file_with_the_name(capsys, lane, tmp_path, name):
    """A part of the records looked like all of them, and the user may have discarded the rest."""
    script = f"""
        import os
        from kafkasafe.cli import main
        from kafkasafe.cli.spool import export

        records_of, batches = export.records_of, []

        def killed(*arguments, **settings):
            batches.append(1)
            if len(batches) == 3:
                os.kill(os.getpid(), 9)
            return records_of(*arguments, **settings)

        export.records_of = killed
        export._PAGE_RECORDS = 1
        main(["spool", "export", {str(lane.path.parent)!r}, "-o", {str(tmp_path / name)!r}])
    """
    assert python("-c", textwrap.dedent(script)).returncode == -9
    assert not (tmp_path / name).exists()
    assert run(capsys, "spool", "export", lane.path.parent, "-o", tmp_path / name)[0] == 0


@pytest.mark.parametrize("refusal", [errno.EPERM, errno.EOPNOTSUPP])
def test_an_export_needs_no_hard_links(capsys, lane, tmp_path, monkeypatch, refusal):
    def refuse(*_):
        raise OSError(refusal, os.strerror(refusal))

    monkeypatch.setattr(os, "link", refuse)
    assert run(capsys, "spool", "export", lane.path.parent, "-o", tmp_path / "x.jsonl")[0] == 0
    assert len((tmp_path / "x.jsonl").read_text().splitlines()) == 15
    assert {path.name for path in tmp_path.iterdir()} == {"spool", "x.jsonl"}


def test_an_export_does_not_replace_a_file_that_was_made_meanwhile(capsys, lane, tmp_path, monkeypatch):
    def late(*arguments, **settings):
        (tmp_path / "x.jsonl").write_text("mine")
        return records_of(*arguments, **settings)

    monkeypatch.setattr("kafkasafe.cli.spool.export.records_of", late)
    code, _, err = run(capsys, "spool", "export", lane.path.parent, "-o", tmp_path / "x.jsonl")
    assert (code, "File exists" in err) == (3, True)
    assert (tmp_path / "x.jsonl").read_text() == "mine"
    assert {path.name for path in tmp_path.iterdir()} == {"spool", "x.jsonl"}


@pytest.mark.parametrize("command", ["export", "show"])
def test_records_are_read_though_the_owner_deletes_their_segment_meanwhile(
    capsys, lane, monkeypatch, command
):
    """A producer that delivers at the same time released the segment between the list and the records."""

    def late(*arguments, **settings):
        for segment in lane.path.glob("*.log"):
            segment.unlink()
        return records_of(*arguments, **settings)

    monkeypatch.setattr(f"kafkasafe.cli.spool.{command}.records_of", late)
    before = len(list(Path("/proc/self/fd").iterdir()))
    how = ("-o", "-") if command == "export" else ("--position", lane.positions[2], "--json")
    code, out, err = run(capsys, "spool", command, lane.path.parent, *how)
    assert (code, len(out.splitlines()) >= 15) == (0, True), err
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize("name", ["x.csv", "records", "x.parq"])
def test_export_does_not_guess_a_format(capsys, lane, tmp_path, name):
    """JSON lines in a file called .csv were written without a word."""
    code, out, err = run(capsys, "spool", "export", lane.path.parent, "-o", tmp_path / name)
    assert (code, out) == (2, "")
    assert "must end in .jsonl, .ndjson, .json, .parquet" in err
    assert not (tmp_path / name).exists()
    code, _, _ = run(capsys, "spool", "export", lane.path.parent, "-o", tmp_path / name, "--format", "jsonl")
    assert code in {0, 1}
    assert (tmp_path / name).exists()


def test_doctor_sums_up_what_is_many(capsys, tmp_path):
    directory = SpoolDirectory.open(tmp_path / "spool", files=OsFiles())
    lock = directory.take_lane()
    spool, _ = open_spool(lock.path)
    data = [batch.encode(None, [b"x"] * 2, timestamps=1000) for _ in range(12)]
    for n in range(4):
        batch.stamp_identity(data[n], 7, 0, 2 * n)
    declared = [marks.Destination(1, "orders", 2), marks.State(1, 0, -1, -1, bytes(16))]
    spool.write_group(declared, [(1, each) for each in data])
    spool.sync()
    spool.close()
    lock.release()
    code, out, _ = run(capsys, "doctor", tmp_path / "spool")
    assert code == 0
    assert out.splitlines()[1:] == [
        "  orders-2: NOT KNOWN: 8 records in 4 batches: the cluster was not asked",
        "  orders-2: NEVER SENT: 16 records in 8 batches",
        "  --all shows each of the 12 batches, with the proof",
    ]
    assert run(capsys, "doctor", tmp_path / "spool", "--all")[1].count(" at position ") == 12


def test_doctor_says_why_the_outcome_of_many_batches_is_not_known(capsys, tmp_path):
    """Of a partition without a leader, only the numbers of records and batches were shown."""
    with FakeCluster(brokers=2) as cluster:
        cluster.create_topic("stuck", assignments={0: [2]})
        with SafeProducer(
            bootstrap_servers=cluster.bootstrap_servers, spool_dir=tmp_path, linger_ms=0
        ) as producer:
            producer.send("stuck", b"0").get(30)
            cluster.kill(2)
            for number in range(1, 13):
                producer.send("stuck", b"%d" % number).durable(30)
            servers = ",".join(cluster.bootstrap_servers)
            code, out, _ = run(capsys, "doctor", tmp_path, "-b", servers, "--timeout", "2s")
            cluster.start(2)
    assert code == 3
    (line,) = [line for line in out.splitlines() if "NOT KNOWN" in line]
    assert re.fullmatch(r"  stuck-0: NOT KNOWN: 12 records in 12 batches: .*stuck-0 has no leader.*", line)


def test_doctor_does_not_call_a_topic_missing_that_the_user_may_not_see(capsys, tmp_path):
    """Without DESCRIBE, it said that the cluster does not have the topic, and advised to create it."""
    with FakeCluster(brokers=1) as cluster:
        cluster.create_topic("hidden")
        for operation in ("describe", "write", "read"):
            cluster.deny(operation, topic="hidden")
        servers = cluster.bootstrap_servers
        with SafeProducer(bootstrap_servers=servers, spool_dir=tmp_path) as producer:
            producer.send("hidden", b"0").durable(30)
            code, out, _ = run(capsys, "doctor", tmp_path, "-b", ",".join(servers))
            for operation in ("describe", "write", "read"):
                cluster.deny(operation, topic="hidden", on=False)
    assert code == 0
    (line,) = [line for line in out.splitlines() if line.startswith("hidden: ")]
    assert "does not show it to this user" in line
    assert "grant DESCRIBE" in line


@pytest.mark.parametrize("where", ["topic", "cluster"])
def test_doctor_says_that_it_may_not_read_settings(capsys, tmp_path, where):
    """Without DESCRIBE_CONFIGS, a topic with unclean elections got no word and exit code 0."""
    with FakeCluster(brokers=3) as cluster:
        cluster.create_topic("orders", config={"unclean.leader.election.enable": "true"})
        cluster.deny("describe_configs", **({"topic": "orders"} if where == "topic" else {}))
        servers = cluster.bootstrap_servers
        cluster.deny("write", topic="orders")
        with SafeProducer(bootstrap_servers=servers, spool_dir=tmp_path) as producer:
            producer.send("orders", b"0").durable(30)
            code, out, _ = run(capsys, "doctor", tmp_path, "-b", ",".join(servers))
            cluster.deny("write", topic="orders", on=False)
    assert code == (0 if where == "topic" else 1)
    (line,) = [line for line in out.splitlines() if "DESCRIBE_CONFIGS" in line]
    who = "orders" if where == "topic" else "settings"
    assert line.startswith(f"{who}: note: settings: they cannot be read: ")
    assert line.endswith(f"Better: the permission DESCRIBE_CONFIGS on the {where}")


@pytest.mark.real
def test_a_password_that_others_can_read_is_warned_about(capsys, lane, tmp_path):
    config = tmp_path / "kafka.toml"
    config.write_text('bootstrap_servers = "127.0.0.1:9"\nsasl_plain_password = "hunter2"\n')
    arguments = ("doctor", lane.path.parent, "--timeout", "0.1s", "--config", config)
    config.chmod(0o644)
    err = run(capsys, *arguments)[2]
    assert "contains a password and other users can read or write it (mode 0644); run chmod 600" in err
    assert "hunter2" not in err
    config.chmod(0o600)
    assert "contains a password" not in run(capsys, *arguments)[2]


def test_a_drain_does_not_pass_over_damage_because_something_was_in_quarantine_before(
    capsys, tmp_path, fake_kafka
):
    """A torn tail of long ago made the directory: from then on a missing segment was "0 left", exit 0."""
    fake_kafka.create_topic("orders", 1)
    spool = tmp_path / "spool"
    producer = SafeProducer(bootstrap_servers="127.0.0.1:9", client_id="app", spool_dir=spool)
    for number in range(5):
        producer.send("orders", b"%d" % number, partition=0).durable(60)
    producer.close(timeout=0)
    lane = spool / "lane-000"
    (lane / "quarantine").mkdir()
    (lane / "quarantine" / "00000000000000000000-123.torn").write_bytes(b"of long ago")
    for segment in lane.glob("*.log"):
        segment.unlink()
    servers = ",".join(fake_kafka.bootstrap_servers)
    code, out, _ = run(capsys, "spool", "drain", spool, "-b", servers)
    assert (code, "lane-000 is damaged" in out) == (1, True)
    # What was given up is told no more.
    assert run(capsys, "spool", "drain", spool, "-b", servers, "--on-corrupt", "quarantine")[0] == 0
    assert run(capsys, "spool", "drain", spool, "-b", servers)[0] == 0


@pytest.mark.parametrize(
    "command",
    [
        ("drain", "-b", "127.0.0.1:1", "--timeout", "1s"),
        ("resend",),
        ("commit", "-b", "127.0.0.1:1", "--timeout", "1s"),
        ("abort", "-b", "127.0.0.1:1", "--timeout", "1s"),
        ("discard", "--apply"),
        ("repair", "--apply"),
    ],
    ids=lambda command: command[0],
)
def test_root_does_not_change_the_spool_of_another_user(lane, capsys, monkeypatch, command):
    """Files that root makes there could not be opened by the producers."""
    spool = lane.path.parent
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    if os.getuid() == 0:
        os.chown(spool / "FORMAT", 12345, -1)
    user = (spool / "FORMAT").stat().st_uid
    before = {path: path.is_file() and path.read_bytes() for path in spool.rglob("*")}
    code, out, err = run(capsys, "spool", command[0], spool, *command[1:])
    assert (code, out) == (3, "")
    assert f"belongs to user {user}" in err
    assert f"sudo -u '#{user}'" in err
    assert {path: path.is_file() and path.read_bytes() for path in spool.rglob("*")} == before
    assert run(capsys, "spool", "repair", spool)[0] != 3  # without --apply it only reads
