"""What a committing process tells the listener, and what nobody may tell it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path

import pytest

from kafkasafe.spark import stats
from kafkasafe.spark.outcomes import Inbox, tell
from kafkasafe.spark.session import Outcome

WRITTEN = Outcome("written", 10, 1, 0.5)
# Another driver, which says when it listens.
DRIVER = """
import sys, time
from kafkasafe.spark.outcomes import Inbox
inbox = Inbox()
inbox.expect(sys.argv[1], "run")
print("listening", flush=True)
time.sleep(float(sys.argv[2]))
"""


@pytest.fixture
def directory(monkeypatch):
    # A socket's address is short, pytest's own directories are not.
    with tempfile.TemporaryDirectory(prefix="ks") as short:
        monkeypatch.setattr(tempfile, "tempdir", short)
        yield Path(short) / f"kafkasafe-spark-{os.getuid()}"


@pytest.fixture
def inbox(directory):
    made = Inbox()
    yield made
    made.close()


@pytest.fixture
def query():
    return str(uuid.uuid4())


def say(query, outcome=WRITTEN, *, restarts=1, retries=0):
    tell(query, outcome, restarts=restarts, retries=retries, bytes=100)


def told(query):
    return {
        "written": stats.batches[query, "written"],
        "failed": stats.batches[query, "failed"],
        "rows": stats.rows[query],
        "restarts": stats.restarts[query],
        "retries": stats.retries[query],
        "bytes": stats.sent_bytes[query],
    }


def drive(directory, query, seconds):
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, query, str(seconds)],
        env={**os.environ, "TMPDIR": str(directory.parent)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert driver.stdout.readline() == "listening\n"
    return driver


def test_what_is_told_is_counted_once(inbox, directory, query):
    inbox.expect(query, "run")
    inbox.expect(query, "run")  # another listener
    say(query, retries=2)
    inbox.hear()
    inbox.hear()
    say(query, None, restarts=5, retries=1)
    inbox.stop_expecting(query, "run")
    inbox.stop_expecting(query, "run")
    assert told(query) == {
        "written": 1,
        "failed": 1,
        "rows": 10,
        "restarts": 6,
        "retries": 3,
        "bytes": 200,
    }
    assert not (directory / query).is_symlink()


def test_more_than_the_kernel_holds_is_counted_although_nobody_asks(inbox, query):
    inbox.expect(query, "run")
    for _ in range(2000):
        say(query)
    inbox.stop_expecting(query, "run")
    assert told(query)["written"] == 2000


def test_a_directory_that_was_cleaned_away_is_made_again(inbox, directory, query):
    inbox.expect(str(uuid.uuid4()), "run")
    shutil.rmtree(directory)
    say(query)
    inbox.expect(query, "run")
    say(query)
    inbox.stop_expecting(query, "run")
    assert told(query)["written"] == 1


def test_after_a_cleaning_the_next_start_reaches_the_running_queries_too(inbox, directory, query):
    """Their links were gone with the directory, and nothing of these queries was counted any more."""
    inbox.expect(query, "run")
    inbox.expect_sources(os.getpid())
    shutil.rmtree(directory)
    inbox.expect(str(uuid.uuid4()), "run")
    say(query)
    assert (directory / f"jvm-{os.getpid()}").is_symlink()
    inbox.stop_expecting(query, "run")
    assert told(query)["written"] == 1


def test_nobody_listens_and_nothing_is_made(inbox, directory, query):
    say(query)
    assert not directory.exists()
    inbox.expect(query, "run")
    inbox.stop_expecting(query, "run")
    say(query)
    inbox.hear()
    assert told(query)["written"] == 0
    inbox.close()
    assert list(directory.iterdir()) == []


def test_an_end_that_is_told_after_the_next_start_takes_nothing_away(inbox, query):
    inbox.expect(query, "first")
    inbox.expect(query, "second")
    inbox.stop_expecting(query, "first")
    say(query)
    inbox.stop_expecting(query, "second")
    assert told(query)["written"] == 1


def test_a_driver_that_is_replaced_takes_nothing_from_its_successor(inbox, directory, query):
    old = Inbox()
    old.expect(query, "old")
    inbox.expect(query, "new")
    old.stop_expecting(query, "old")
    old.close()
    say(query)
    inbox.stop_expecting(query, "new")
    assert told(query)["written"] == 1


@pytest.mark.crash
def test_what_a_killed_driver_left_holds_nobody_up_and_is_removed_by_the_next(inbox, directory, query):
    driver = drive(directory, query, 60)
    driver.kill()
    driver.wait(30)
    driver.stdout.close()
    assert len(list(directory.iterdir())) == 2
    say(query)
    inbox.expect(str(uuid.uuid4()), "run")
    assert not (directory / query).is_symlink()
    assert len(list(directory.iterdir())) == 2  # a socket and a link of ours


def test_a_driver_that_ends_leaves_nothing(directory, query):
    driver = drive(directory, query, 0)
    assert driver.wait(30) == 0
    driver.stdout.close()
    assert list(directory.iterdir()) == []


def test_a_driver_that_hangs_holds_a_commit_up_briefly(directory, query):
    driver = drive(directory, query, 60)
    os.kill(driver.pid, signal.SIGSTOP)
    try:
        deadline, slowest = time.monotonic() + 60, 0.0
        while slowest < 0.1:  # until the kernel holds no more
            assert time.monotonic() < deadline
            began = time.monotonic()
            say(query)
            slowest = time.monotonic() - began
        assert slowest < 30
    finally:
        driver.kill()
        driver.wait(30)
        driver.stdout.close()


def test_what_is_not_understood_is_left_out(inbox, directory, query):
    inbox.expect(query, "run")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        for line in (
            b"",
            b'{"outc',
            b"[]",
            b'{"query": "a"}',
            b'{"query": "a", "outcome": 1e999}',
            b"[" * 4000,
        ):
            sender.sendto(line, str(directory / (directory / query).readlink()))
    say(query)
    inbox.stop_expecting(query, "run")
    assert told(query)["written"] == 1


@pytest.mark.parametrize("mode", [0o777, 0o755])
def test_a_directory_that_others_can_reach_is_not_used(inbox, directory, query, mode, caplog):
    elsewhere = Inbox()
    elsewhere.expect(query, "run")
    directory.chmod(mode)
    say(query)
    elsewhere.hear()
    assert told(query)["written"] == 0
    inbox.expect(query, "run")
    assert "are not counted" in caplog.text
    directory.chmod(0o700)
    elsewhere.close()


@pytest.mark.parametrize("name", ["../x", "", "a/b", "a" * 65])
def test_a_query_id_that_is_no_file_name_is_refused(inbox, directory, query, name):
    inbox.expect(query, "run")
    before = sorted(directory.parent.rglob("*"))
    inbox.expect(name, "run")
    assert sorted(directory.parent.rglob("*")) == before
    (directory / ".." / "x").symlink_to((directory / query).readlink())
    say(name)
    inbox.hear()
    assert told(name)["written"] == 0


def test_nothing_that_goes_wrong_reaches_who_tells_or_listens(inbox, query, monkeypatch, caplog):
    monkeypatch.setattr(tempfile, "gettempdir", lambda: "/proc/none")
    say(query)
    inbox.expect(query, "run")
    assert "are not counted" in caplog.text
    inbox.hear()
    inbox.stop_expecting(query, "run")

    def none():
        raise FileNotFoundError("No usable temporary directory")

    monkeypatch.setattr(tempfile, "gettempdir", none)
    say(query)
    inbox.expect(query, "run")
    inbox.stop_expecting(query, "run")


def test_the_thread_ends_with_the_inbox(inbox, query):
    def threads():
        return {one for one in threading.enumerate() if one.name == "kafkasafe-outcomes"}

    others = threads()  # of the inbox that this process's listeners have
    inbox.expect(query, "run")
    (own,) = threads() - others
    inbox.close()
    own.join(60)
    assert not own.is_alive()


DAEMON = "import subprocess, sys; subprocess.run([sys.executable, '-c', *sys.argv[1:]], check=True)"
SOURCE = """
import sys
from kafkasafe.events import EndOffsetHeld, EndOffsetRegressed, SourceDataLost
from kafkasafe.spark.notices import Notices
tell, topic = Notices(None).tell, sys.argv[1]
tell(EndOffsetHeld(topic, 0, 10, 7, "catching_up"))
tell(EndOffsetRegressed(topic, 0, 7, 10, "unclean_election"))
tell(SourceDataLost(topic, 0, "retention", 20, 30, (20, 29)))
tell(SourceDataLost(topic, 1, "retention", 20, 25, (20, 24)))
tell(SourceDataLost(topic, 1, "missing", 25, 25, None))
"""


def notice(topic):
    """In a process of a process of ours, as PySpark's workers are of their daemon's."""
    done = subprocess.run(
        [sys.executable, "-c", DAEMON, SOURCE, topic],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def noticed(topic):
    events = {key[1:]: number for key, number in stats.source_events.items() if key[0] == topic}
    return events, {key[1]: number for key, number in stats.source_lost_records.items() if key[0] == topic}


def test_what_a_source_notices_in_another_process_is_counted_by_its_driver(
    inbox, directory, query, monkeypatch
):
    monkeypatch.setenv("TMPDIR", str(directory.parent))
    notice(query)
    inbox.expect_sources(os.getpid())
    notice(query)
    inbox.hear()
    assert noticed(query) == (
        {
            ("held", "catching_up"): 1,
            ("regressed", "unclean_election"): 1,
            ("lost", "retention"): 2,
            ("lost", "missing"): 1,
        },
        {"retention": 15, "missing": 0},
    )


def test_a_source_of_another_driver_is_not_counted(inbox, directory, query, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(directory.parent))
    stranger = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        inbox.expect_sources(stranger.pid)
        notice(query)
        inbox.hear()
        assert noticed(query) == ({}, {})
        inbox.close()
        assert list(directory.iterdir()) == []
    finally:
        stranger.communicate(b"\n", timeout=60)
