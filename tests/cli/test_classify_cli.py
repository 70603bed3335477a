"""`kafkasafe classify`: one code, all, JSON lines; wrong input is one line and exit code 2."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import commands
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkasafe import ConfigError
from kafkasafe.cli import classify as classify_command
from kafkasafe.codes.rows import BY_API

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.pages import kafka_codes

FLAGS = {"code", "name", "retriable", "refresh_metadata", "action", "note"}


def run(capsys, *arguments, stdin: bytes | None = None, monkeypatch=None):
    if stdin is not None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
    return commands.run(capsys, "classify", *arguments)


@pytest.mark.parametrize(
    "code", ["59", "UNKNOWN_PRODUCER_ID", "unknown-producer-id", "UnknownProducerIdError"]
)
def test_one_code_is_explained(capsys, code):
    status, out, err = run(capsys, code)
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "UNKNOWN_PRODUCER_ID (59)"
    assert lines[1].split() == ["action", "ask_broker"]
    assert "data at risk      yes" in out


def test_minus_one_is_a_code_and_no_option(capsys):
    assert "UNKNOWN_SERVER_ERROR (-1)" in run(capsys, "-1")[1]


def test_an_error_without_a_code_has_none(capsys):
    """It read "KafkaTimeoutError (None)"."""
    assert run(capsys, "KafkaTimeoutError")[1].splitlines()[0] == "KafkaTimeoutError"


def test_the_request_kind_may_change_it(capsys):
    assert "read the batch headers" in run(capsys, "35", "--api", "DescribeProducers")[1].lower()
    assert json.loads(run(capsys, "5", "--api", "list_offsets", "--json")[1])["api"] == "list_offsets"


def test_a_code_of_the_future_is_no_mistake(capsys):
    status, out, _ = run(capsys, "4711")
    assert (status, out.splitlines()[0]) == (0, "ERROR_4711 (4711)")


def test_all_as_json_is_one_list_with_a_row_per_code(capsys):
    status, out, _ = run(capsys, "--all", "--json")
    rows = json.loads(out)
    assert status == 0
    assert [row["code"] for row in rows] == list(range(-1, 134))
    assert all(row.keys() >= FLAGS for row in rows)


def test_all_in_words_is_a_line_per_code(capsys):
    _, out, _ = run(capsys, "--all")
    assert len(out.splitlines()) == 135


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["UNKNOWN_PRODUCR_ID"], "did you mean 'UNKNOWN_PRODUCER_ID'?"),
        (["59", "--api", "ListOffset"], "did you mean 'list_offsets'?"),
        (["--apii"], "did you mean --api?"),
        (["--zzz"], "unknown option --zzz"),
        (["-x"], "unknown option -x"),
        ([], "give exactly one of"),
        (["59", "--all"], "give exactly one of"),
        (["--all", "--stdin"], "give exactly one of"),
        (["59", "60"], "60"),
        (["--api"], "--api"),
        (["9" * 5000], "unknown Kafka error"),
    ],
)
def test_a_wrong_command_line_is_exit_code_2_with_the_nearest_name(capsys, arguments, says):
    status, out, err = run(capsys, *arguments)
    assert (status, out) == (2, "")
    assert says in err
    assert "Traceback" not in err
    assert "ConfigError" not in err


def test_lines_are_answered_line_by_line(capsys, monkeypatch):
    asked = [
        {"code": 59, "api": "produce", "last_acked_offset": 1000, "log_start_offset": 1001, "resend": False},
        {"code": 59, "api": "produce", "last_acked_offset": 1000, "log_start_offset": 999, "resend": False},
        {"code": 59, "api": "produce", "last_acked_offset": None, "log_start_offset": 999, "resend": False},
        {"code": 59, "api": "produce", "last_acked_offset": 1000, "log_start_offset": -1, "resend": False},
        {"code": 45, "api": "produce", "resend": True},
        {"code": "OFFSET_OUT_OF_RANGE", "api": "Fetch", "tiered": True, "position": 5, "log_start_offset": 0},
        {"code": 4711, "api": None},
    ]
    lines = "".join(json.dumps(each) + "\n" for each in asked) + "\n  \n"
    status, out, err = run(capsys, "--stdin", "--json", stdin=lines.encode(), monkeypatch=monkeypatch)
    assert (status, err) == (0, "")
    assert [json.loads(line)["action"] for line in out.splitlines()] == [
        "reset_sequence",
        "fatal",
        "reset_sequence",
        "retry",
        "ask_broker",
        "retry",
        "retry_after_refresh",
    ]


def test_lines_may_be_answered_in_words_and_take_the_request_from_the_command_line(capsys, monkeypatch):
    _, out, _ = run(
        capsys, "--stdin", "--api", "list_offsets", stdin=b'{"code": 78}\n', monkeypatch=monkeypatch
    )
    assert out.startswith("  78 OFFSET_NOT_AVAILABLE: retry.")
    assert "KIP-207" in out


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b'{"code": 59', "line 2: "),
        (b"{'code': 59}", "line 2: "),
        (b"59", "line 2: give one JSON object, not int"),
        (b"{}", 'line 2: "code" is missing'),
        (b'{"code": null}', "line 2: An error must be a number"),
        (b'{"code": 5.5}', "line 2: An error must be a number"),
        (b'{"code": true}', "line 2: True is not an error code"),
        (b'{"code": NaN}', "line 2: An error must be a number"),
        (b'{"code": 59, "last_acked": 3}', "did you mean 'last_acked_offset'?"),
        (b'{"code": 59, "last_acked_offset": "3"}', "line 2: last_acked_offset must be an integer"),
        (b'{"code": 59, "resend": 0}', "line 2: resend must be true or false"),
        (b'{"code": 59, "api": 3}', "line 2: '3' is not a Kafka request"),
        (b'{"code": 59, "api": "produc"}', "did you mean 'produce'?"),
        (b'{"code": ' + b"9" * 5000 + b"}", "line 2: "),
        (b"[" * 100_000, "line 2: "),
        (b"\xff\xfe{", "line 2: "),
        (b"\x00", "line 2: "),
    ],
)
def test_a_line_that_is_wrong_is_named_after_those_before_it_are_answered(capsys, monkeypatch, line, says):
    status, out, err = run(
        capsys,
        "--stdin",
        "--json",
        stdin=b'{"code": 0}\n' + line + b'\n{"code": 0}\n',
        monkeypatch=monkeypatch,
    )
    assert status == 2
    assert says in err
    assert len(err) < 1000
    assert "Traceback" not in err
    answer, error = map(json.loads, out.splitlines())
    assert (answer["code"], error["code"], says in error["error"]) == (0, 2, True)


@given(st.binary(max_size=40) | st.text(max_size=40).map(str.encode))
def test_no_line_makes_it_fail_otherwise(line):
    try:
        verdict = classify_command._verdict_on_line(line, None)
    except (ConfigError, ValueError, RecursionError):
        return
    assert verdict.explanation


def test_a_reader_that_goes_away_is_no_traceback():
    # A pipe into head, from a process of its own.
    done = subprocess.run(
        f"{sys.executable} -m kafkasafe.cli classify --all | head -1",
        shell=True,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        check=False,
    )
    assert done.stdout.startswith("  -1 UNKNOWN_SERVER_ERROR")
    assert "Traceback" not in done.stderr


def test_every_request_with_cells_of_its_own_is_in_the_document():
    text = kafka_codes.text()
    assert all(f"| {api} | {code} " in text for api, code in BY_API)
