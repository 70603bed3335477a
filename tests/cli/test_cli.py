"""The command line without a broker: help, versions, errors that are one line, exit codes."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import traceback
from importlib.metadata import version
from pathlib import Path

import pytest
import typer
from commands import run
from programs import python

import kafkasafe
from kafkasafe import cli, marks
from kafkasafe.demo import run as demo
from kafkasafe.record import batch
from kafkasafe.spool.files import OsFiles
from kafkasafe.spool.lanes import SpoolDirectory
from kafkasafe.spool.spool import Spool
from kafkasafe.testing.jars import JarError


def commands_of(group, names=()):
    """The commands of a group and of the groups in it: the words of each."""
    for name, command in group.commands.items():
        inner = hasattr(command, "commands")
        yield from commands_of(command, (*names, name)) if inner else [(*names, name)]


COMMANDS = list(commands_of(typer.main.get_command(cli.app)))


def test_the_installed_command_prints_its_version():
    done = python("-m", "kafkasafe", "version", timeout=60, check=True)
    assert done.stdout.splitlines()[0] == f"kafkasafe {version('kafkasafe')}"
    assert done.stderr == ""


def test_the_version_alone(capsys):
    assert run(capsys, "--version") == (0, f"kafkasafe {version('kafkasafe')}\n", "")
    assert kafkasafe.__version__ == version("kafkasafe")


def test_what_applications_name_is_at_the_top_level():
    names = {name for name in kafkasafe.errors.__all__ if isinstance(getattr(kafkasafe.errors, name), type)}
    assert names <= set(kafkasafe.__all__)
    assert all(issubclass(getattr(kafkasafe, name), BaseException) for name in names)
    assert issubclass(kafkasafe.BaselineError, ValueError)


def test_events_are_in_their_module_only():
    assert len(kafkasafe.events.__all__) > 30
    assert not set(kafkasafe.events.__all__) & {*kafkasafe.__all__, *vars(kafkasafe)}


def test_an_error_does_not_say_its_name_twice():
    error = kafkasafe.ConfigError("it cannot be")
    assert traceback.format_exception_only(error) == ["kafkasafe.errors.ConfigError: it cannot be\n"]


def test_without_arguments_the_commands_are_listed(capsys):
    _, out, err = run(capsys)
    assert all(name in out + err for name in ("demo", "spool", "version"))


@pytest.mark.parametrize("command", [(), ("spool",), *COMMANDS], ids=" ".join)
def test_every_command_has_help(capsys, command):
    code, out, _ = run(capsys, *command, "--help")
    assert code == 0
    assert "Usage: kafkasafe" in out


@pytest.mark.parametrize("command", [each for each in COMMANDS if each != ("version",)], ids=" ".join)
def test_exit_codes_are_documented(capsys, command):
    assert "Exit codes: 0" in run(capsys, *command, "--help")[1]


def test_a_wrong_command_is_a_usage_error_with_the_nearest_name(capsys):
    code, out, err = run(capsys, "dem")
    assert (code, out) == (2, "")
    assert "demo" in err.splitlines()[-1]


@pytest.mark.parametrize(
    "arguments",
    [
        ("--records", "1"),
        ("--records", "many"),
        ("--json", "/does/not/exist/x.json"),
        # The runs took minutes, and then their result was lost.
        ("--json", "/"),
    ],
)
def test_a_wrong_option_of_demo_is_told_before_anything_starts(capsys, fake_demo, arguments):
    ran = fake_demo(result())
    code, out, err = run(capsys, "demo", *arguments)
    assert (code, out) == (2, "")
    assert arguments[0] in err
    assert "Traceback" not in err
    assert not ran.called


@pytest.fixture
def fake_demo(mocker):
    """Its runs, or what ends it, without brokers; the mock."""

    def fake(*runs, error=None):
        def run(self):
            self._say("FAULT producer: not really [at all]")
            if error is not None:
                raise error
            return list(runs)

        return mocker.patch.object(demo.Demo, "run", autospec=True, side_effect=run)

    return fake


def result(client="kafkasafe", **changes):
    counts = dict.fromkeys(
        ("lost", "acked_lost", "duplicated", "out_of_order", "unpromised", "unpromised_in_log", "failed"), 0
    )
    values = {
        "fault": "leader",
        "sent": 100,
        "acked": 100,
        "spooled": 100,
        "in_log": 100,
        "seconds": 1.5,
        **counts,
    }
    return demo.Run(client=client, **(values | changes))


def test_demo_writes_its_runs_as_json_and_ends_with_0(capsys, fake_demo, tmp_path):
    fake_demo(result(), result("kafka-python", in_log=90, lost=10))
    code, out, _ = run(capsys, "demo", "--json", str(tmp_path / "runs.json"))
    assert code == 0
    assert "0 lost, 0 duplicated, 0 out of order" in out
    assert "not really [at all]" in out
    rows = json.loads((tmp_path / "runs.json").read_text())
    assert [row["client"] for row in rows] == ["kafkasafe", "kafka-python"]
    wanted = {"client", "fault", "sent", "acked", "in_log", "lost", "duplicated", "out_of_order", "seconds"}
    assert all(wanted <= row.keys() for row in rows)


@pytest.mark.parametrize("broken", ["lost", "duplicated", "out_of_order"])
def test_demo_ends_with_1_when_kafkasafe_broke_its_promise_and_the_json_is_written_all_the_same(
    capsys, fake_demo, tmp_path, broken
):
    fake_demo(result(), result(fault="brokers", **{broken: 1}))
    code, out, _ = run(capsys, "demo", "--json", str(tmp_path / "runs.json"))
    assert code == 1
    assert "broke its promise" in out
    assert json.loads((tmp_path / "runs.json").read_text())[1][broken] == 1


def test_demo_options_reach_the_settings(capsys, fake_demo):
    ran = fake_demo(result())
    assert run(capsys, "demo", "--quick", "--no-controls", "--records", "4000", "--seed", "7")[0] == 0
    (made,) = ran.call_args.args
    assert (made.settings.records, made.settings.clients, made.settings.seed) == (4000, ("kafkasafe",), 7)
    assert made.settings.stream_s < demo.Settings().stream_s


@pytest.mark.parametrize(
    ("arguments", "code", "error", "hint"),
    [
        (
            ("spool", "ls", "{}/nothing"),
            2,
            "{}/nothing is not a spool directory: it does not exist",
            "spool ls",
        ),
        (("spool", "drain", "{}/spool"), 2, "give the brokers as HOST:PORT", "spool drain --help"),
        (("offsets", "orders", "--no-such-option"), 2, "No such option: --no-such-option", "offsets --help"),
        (("offsets", "orders", "-b", "no.such.host.invalid:1"), 2, "no address is known", "offsets --help"),
        (("doctor",), 2, "Missing argument 'DIR'", "doctor --help"),
        (("dem",), 2, "No such command 'dem'", "kafkasafe --help"),
        (("classify", "no such thing"), 2, "no such thing", "classify --help"),
        (("spool", "ls", "{}/lost"), 3, "no file FORMAT", "echo 'kafkasafe-spool 1' > {}/lost/FORMAT"),
        (
            ("doctor", "{}/spool", "-b", "127.0.0.1:1", "--timeout", "0.1s"),
            3,
            "No broker at 127.0.0.1:1 answered within 0.1 s",
            None,
        ),
        (
            ("audit", "t", "-b", "127.0.0.1:1", "--timeout", "0.1s"),
            3,
            "No broker at 127.0.0.1:1 answered within 0.1 s",
            None,
        ),
    ],
)
def test_an_error_is_one_json_object_where_json_was_asked_for(
    capsys, spool, tmp_path, monkeypatch, arguments, code, error, hint
):
    monkeypatch.setattr("socket.getaddrinfo", unknown(socket.getaddrinfo))
    (tmp_path / "lost" / "lane-000").mkdir(parents=True)
    given = [each.format(tmp_path) for each in arguments]
    found, out, err = run(capsys, *given, "--json")
    told = json.loads(out)
    assert (found, told["code"], list(told)) == (code, code, ["error", "code", "hint"])
    assert error.format(tmp_path) in " ".join(told["error"].split())
    assert told["hint"] is hint is None or hint.format(tmp_path) in told["hint"]
    assert out.count("\n") == 1
    # People read the same, but for what a broker that is not there answered in so short a time.
    again = run(capsys, *given)
    assert again[:2] == (code, "")
    last = re.compile(r" The last answer was .*? (?=Check )")
    assert last.sub(" ", again[2]) == last.sub(" ", err)


def unknown(resolve):
    """A name server that knows no name of `.invalid` (RFC 6761); one that cannot be asked says something else."""

    def resolved(host, *rest, **options):
        if str(host).endswith(".invalid"):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return resolve(host, *rest, **options)

    return resolved


@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_a_directory_whose_name_is_no_text(tmp_path, locale):
    name = os.fsencode(tmp_path) + b"/\xff\xc3\xa4"
    SpoolDirectory.open(Path(os.fsdecode(name)), files=OsFiles())
    done = subprocess.run(
        [os.fsencode(sys.executable), b"-m", b"kafkasafe", b"spool", b"ls", name],
        env={"LC_ALL": locale, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.endswith(b" has no lanes\n")


def test_where_records_go_to_standard_output_an_error_goes_beside_them(capsys, tmp_path):
    code, out, err = run(capsys, "spool", "export", str(tmp_path / "x"), "-o", "-", "--json")
    assert (code, out) == (2, "")
    assert json.loads(err.splitlines()[-1])["code"] == 2


@pytest.mark.parametrize(
    "error", [demo.DemoError("it hung"), JarError("no jars"), OSError(28, "No space left")]
)
def test_what_cannot_be_carried_out_is_one_line_and_exit_code_3(capsys, fake_demo, error):
    fake_demo(error=error)
    code, _, err = run(capsys, "demo")
    assert code == 3
    assert err == f"kafkasafe: {error}\n"


def test_a_baseline_that_cannot_be_used_is_not_taken_for_lost_records(capsys, tmp_path):
    baseline = tmp_path / "ends.json"
    baseline.write_text("hi")
    code, out, err = run(capsys, "offsets", "orders", "-b", "127.0.0.1:9", "--baseline", str(baseline))
    assert (code, out) == (3, "")  # 1 says that an end offset went back
    assert err.startswith(f"kafkasafe: {baseline} cannot be used: ")
    assert err.count("\n") == 1
    assert baseline.read_text() == "hi"


def test_a_baseline_that_is_a_directory_is_a_usage_error(capsys, tmp_path):
    code, out, err = run(capsys, "offsets", "orders", "-b", "127.0.0.1:9", "--baseline", str(tmp_path))
    assert (code, out) == (2, "")
    assert f"Invalid value for --baseline: offsets_path: {tmp_path} is a directory" in err


def test_ctrl_c_is_exit_code_130(capsys, fake_demo):
    fake_demo(error=KeyboardInterrupt())
    code, _, err = run(capsys, "demo")
    assert code == 130
    assert "Traceback" not in err


@pytest.fixture
def spool(tmp_path):
    """One lane: two batches of three records for a partition, one of which has an id, and one without a partition."""
    directory = SpoolDirectory.open(tmp_path / "spool", files=OsFiles())
    lock = directory.take_lane()
    log, _ = Spool.open(
        lock.path, files=OsFiles(), segment_bytes=1 << 20, sync="group", snapshot=list, clock_ms=lambda: 0
    )
    data = [batch.encode(None, [b"v"] * 3, timestamps=0) for _ in range(3)]
    batch.stamp_identity(data[0], 7, 0, 0)
    log.write_group(
        [
            marks.Destination(1, "orders", 2),
            # The partition's end is noted: from here on, what has an id may be sent.
            marks.State(1, 0, -1, 0, bytes(16)),
            marks.Destination(2, "new", -1),
        ],
        list(zip([1, 1, 2], data, strict=True)),
    )
    log.sync()
    log.close()
    yield lock
    lock.release()


def test_spool_ls_says_what_waits_and_whose_it_is(capsys, spool):
    code, out, err = run(capsys, "spool", "ls", str(spool.path.parent))
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        out.splitlines()[0],
        "  new, no partition yet: 3 records in 1 batch, 0 of them may have been sent",
        "  orders, partition 2: 6 records in 2 batches, 1 of them may have been sent",
    ]
    assert f"lane-000: owned by process {os.getpid()}; 1 segment" in out
    spool.release()
    (row,) = json.loads(run(capsys, "spool", "ls", "--json", str(spool.path.parent))[1])
    assert (row["lane"], row["owner_pid"], row["waiting_records"]) == ("lane-000", None, 9)


def test_spool_verify_finds_one_flipped_bit_and_ends_with_1(capsys, spool):
    directory = str(spool.path.parent)
    code, out, _ = run(capsys, "spool", "verify", directory)
    assert code == 0
    assert out.endswith("3 batches, 9 records: ok\n")
    (segment,) = spool.path.glob("*.log")
    content = bytearray(segment.read_bytes())
    at = content.index(bytes([0, 0, 0, 0, 0, 0, 0, 7, 0, 0])) + 40  # in the records of the first batch
    content[at] ^= 1
    segment.write_bytes(content)
    for command in ("verify", "ls"):
        code, out, _ = run(capsys, "spool", command, "--json", directory)
        assert code == 1
        assert json.loads(out)[0]["damage" if command == "verify" else "damaged_ranges"]
    code, out, _ = run(capsys, "spool", "verify", directory)
    assert (code, "1 DAMAGED RANGE" in out, f"{segment.name}: bytes" in out) == (1, True, True)
    assert segment.read_bytes() == content


def test_a_newer_spool_is_refused(capsys, spool):
    (spool.path.parent / "FORMAT").write_text("kafkasafe-spool 2\n")
    code, _, err = run(capsys, "spool", "ls", str(spool.path.parent))
    assert code == 3
    assert "upgrade kafkasafe" in err
