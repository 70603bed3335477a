"""The command line with standard streams that are closed, full, or have no reader."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from kafkasafe import SafeProducer
from kafkasafe.spool.files import OsFiles
from kafkasafe.spool.lanes import SpoolDirectory


@pytest.fixture
def shell(tmp_path):
    """Runs a line of a shell, in which `kafkasafe` is the command; returns exit code, output and errors."""
    SpoolDirectory.open(tmp_path / "spool", files=OsFiles()).take_lane().release()

    def run(line):
        script = f'kafkasafe() {{ "{sys.executable}" -m kafkasafe "$@"; }}; cd "{tmp_path}"; {line}'
        done = subprocess.run(
            ["bash", "-c", script],
            # It would hide the errors of the last flush.
            env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    return run


@pytest.mark.parametrize("command", ["spool ls spool", "classify --all", "--help"])
def test_a_reader_that_has_ended_is_not_taken_for_damage(shell, command):
    code, _, err = shell(f'kafkasafe {command} | sh -c "exec <&-; sleep 1"; exit "${{PIPESTATUS[0]}}"')
    assert code == 141
    assert "BrokenPipe" not in err


def test_a_reader_that_has_ended_is_reported_without_standard_error_too(shell):
    line = 'kafkasafe classify --all 2>&- | sh -c "exec <&-; sleep 1"; exit "${PIPESTATUS[0]}"'
    assert shell(line) == (141, "", "")


@pytest.mark.parametrize("command", ["spool ls spool", "spool ls spool --json", "classify --all", "--help"])
def test_a_full_volume_below_the_output_is_named(shell, command):
    code, out, err = shell(f"kafkasafe {command} >/dev/full")
    assert (code, out, err.count("\n")) == (3, "", 1)
    assert re.fullmatch(r"kafkasafe: .* No space left on device\n", err)


def test_an_error_keeps_its_exit_code_if_it_cannot_be_printed(shell):
    assert shell("kafkasafe spool ls nothing 2>/dev/full") == (2, "", "")
    assert shell("kafkasafe doctor spool -b 127.0.0.1:1 --timeout 0.1s 2>/dev/full") == (3, "", "")
    for into in (">/dev/full", '| sh -c "exec <&-; sleep 1"; exit "${PIPESTATUS[0]}"'):
        code, out, err = shell(f"kafkasafe spool ls nothing --json {into}")
        assert (code, out, "it does not exist" in err, "Exception ignored" in err) == (2, "", True, False)


def test_a_closed_output_is_not_taken_for_a_finished_export(shell):
    code, _, err = shell("kafkasafe spool export spool -o - >&-")
    assert (code, "Invalid value for --output: standard output is closed" in err) == (2, True)
    assert shell("kafkasafe spool ls spool >&-") == (0, "", "")


@pytest.mark.parametrize("command", ["classify --stdin", "lineage --json --stdin"])
def test_a_closed_input_is_a_usage_error(shell, command):
    code, _, err = shell(f"kafkasafe {command} <&-")
    assert (code, "Traceback" in err) == (2, False)
    assert "Invalid value for --stdin: standard input is closed" in err


def test_no_file_takes_the_number_of_a_closed_stream(shell):
    """What a library writes to the closed stream would be written into that file, say of the spool."""
    look = "import os; print(sorted(os.path.realpath(f'/proc/self/fd/{n}') for n in (0, 2)))"
    line = f"""'{sys.executable}' -c "from kafkasafe import cli
try: cli.main(['version'])
except SystemExit: {look}" <&- 2>&-"""
    code, out, _ = shell(line)
    assert (code, out.splitlines()[-1]) == (0, "['/dev/null', '/dev/null']")


@pytest.mark.parametrize("encoding", ["ascii", "latin1"])
def test_json_is_json_on_a_stream_that_cannot_show_all_characters(shell, tmp_path, encoding):
    value = "né 😀"
    with SafeProducer(bootstrap_servers="127.0.0.1:1", spool_dir=tmp_path / "spool") as producer:
        producer.send("t", value.encode()).durable(60)
        producer.close(0)
    code, out, _ = shell(
        f"PYTHONIOENCODING={encoding} kafkasafe spool export spool -o - | iconv -f {encoding}"
    )
    assert (code, json.loads(out)["value"]) == (0, value)
    code, out, _ = shell(
        f"PYTHONIOENCODING={encoding} kafkasafe spool ls né😀 --json 2>/dev/null | iconv -f {encoding}"
    )
    assert "né😀 is not a spool directory" in json.loads(out)["error"]


def _ended_by(signal_name, into):
    """A program that exports a spool, and gets a signal when it has written the first record."""
    return f"""'{sys.executable}' -c "
import os, signal
from kafkasafe import cli
from kafkasafe.cli.spool import export
one_line = export.one_line
def interrupted(row):
    os.kill(os.getpid(), signal.{signal_name})
    return one_line(row)
export.one_line = interrupted
cli.main(['spool', 'export', 'spool', '-o', '{into}'])
" """


@pytest.mark.parametrize(("signal_name", "code"), [("SIGTERM", 143), ("SIGHUP", 129), ("SIGINT", 130)])
def test_a_command_that_is_ended_by_a_signal_leaves_no_partial_file(shell, tmp_path, signal_name, code):
    with SafeProducer(bootstrap_servers="127.0.0.1:1", spool_dir=tmp_path / "spool") as producer:
        producer.send("t", b"value").durable(60)
        producer.close(0)
    found, _, err = shell(_ended_by(signal_name, "out.jsonl"))
    assert (found, (tmp_path / "out.jsonl").exists(), "Traceback" in err) == (code, False, False)


def test_a_signal_that_the_caller_ignores_stays_ignored(shell, tmp_path):
    """As with nohup."""
    with SafeProducer(bootstrap_servers="127.0.0.1:1", spool_dir=tmp_path / "spool") as producer:
        producer.send("t", b"value").durable(60)
        producer.close(0)
    code, _, _ = shell("trap '' HUP; " + _ended_by("SIGHUP", "out.jsonl"))
    assert (code, (tmp_path / "out.jsonl").exists()) == (0, True)
