"""What a committing process tells the listener, and what nobody may tell it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import uuid

import pytest

from kafkasafe.spark import outcomes, stats
from kafkasafe.spark.session import Outcome

WRITTEN = Outcome("written", 10, 1, 0.5)


@pytest.fixture
def directory(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"kafkasafe-spark-{os.getuid()}"


@pytest.fixture
def query():
    return str(uuid.uuid4())


def told(query):
    return {
        "written": stats.batches[query, "written"],
        "failed": stats.batches[query, "failed"],
        "rows": stats.rows[query],
        "restarts": stats.restarts[query],
        "retries": stats.retries[query],
    }


def test_what_is_told_is_counted_once_and_the_file_is_emptied(directory, query):
    outcomes.expect(query, "run")
    outcomes.expect(query, "run")  # another listener
    outcomes.tell(query, WRITTEN, retries=2, bytes=100)
    outcomes.hear(query)
    outcomes.hear(query)
    assert (directory / query).stat().st_size == 0
    outcomes.tell(query, None, retries=1, bytes=0)
    outcomes.stop_expecting(query, "run")
    outcomes.stop_expecting(query, "run")
    assert told(query) == {"written": 1, "failed": 1, "rows": 10, "restarts": 1, "retries": 3}
    assert list(directory.iterdir()) == []


def test_nobody_listens_and_nothing_is_written(directory, query):
    outcomes.tell(query, WRITTEN, retries=0, bytes=0)
    assert not directory.exists()
    outcomes.expect(query, "run")
    outcomes.stop_expecting(query, "run")
    outcomes.tell(query, WRITTEN, retries=0, bytes=0)
    assert list(directory.iterdir()) == []


def test_an_end_that_is_told_after_the_next_start_takes_nothing_away(directory, query):
    outcomes.expect(query, "first")
    outcomes.expect(query, "second")
    outcomes.stop_expecting(query, "first")
    outcomes.tell(query, WRITTEN, retries=0, bytes=0)
    outcomes.stop_expecting(query, "second")
    assert told(query)["written"] == 1


def test_lines_of_a_driver_that_died_are_not_counted(directory, query):
    directory.mkdir(0o700)
    (directory / query).write_text('{"outcome": "written", "rows": 5}\n')
    outcomes.expect(query, "run")
    outcomes.stop_expecting(query, "run")
    assert told(query)["written"] == 0


def test_a_line_that_is_damaged_is_left_out(directory, query):
    outcomes.expect(query, "run")
    with (directory / query).open("a") as file:
        file.write('{"outc\n[]\n{"outcome": "written", "rows": 5}\n')
    outcomes.tell(query, WRITTEN, retries=0, bytes=0)
    outcomes.stop_expecting(query, "run")
    assert told(query) == {"written": 1, "failed": 0, "rows": 10, "restarts": 1, "retries": 0}


@pytest.mark.parametrize("mode", [0o777, 0o755])
def test_a_directory_that_others_can_reach_is_not_used(directory, query, mode, caplog):
    directory.mkdir()
    directory.chmod(mode)
    outcomes.expect(query, "run")
    assert "is not counted" in caplog.text
    (directory / query).touch()
    outcomes.tell(query, WRITTEN, retries=0, bytes=0)
    assert (directory / query).stat().st_size == 0


def test_a_link_to_somewhere_is_not_followed(directory, query, tmp_path):
    outcomes.expect(query, "run")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.touch()
    (directory / query).unlink()
    (directory / query).symlink_to(elsewhere)
    outcomes.tell(query, WRITTEN, retries=0, bytes=0)
    assert elsewhere.stat().st_size == 0


@pytest.mark.parametrize("name", ["../x", "", "a/b", "a" * 65])
def test_a_query_id_that_is_no_file_name_is_refused(directory, tmp_path, name):
    outcomes.expect(name, "run")
    outcomes.tell(name, WRITTEN, retries=0, bytes=0)
    assert not directory.exists()


def test_a_process_that_ends_leaves_no_file(directory, query, tmp_path):
    code = f"from kafkasafe.spark import outcomes; outcomes.expect({query!r}, 'run')"
    subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "TMPDIR": str(tmp_path)}, check=True, timeout=120
    )
    assert list(directory.iterdir()) == []
