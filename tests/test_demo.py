"""The demo's audit, and the demo itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import commands
import numpy as np
import psutil
import pytest
from programs import python

from kafkasafe.demo.audit import Run, audit, read_topic
from kafkasafe.demo.ledger import CLIENTS, DURABLE_CLIENTS, Ledger
from kafkasafe.demo.run import FAULTS, Demo


@pytest.fixture
def ledger(tmp_path):
    """Ten records, all promised to everybody and acknowledged."""
    made = Ledger(tmp_path / "ledger", 10)
    for plane in ("attempted", "accepted", "durable", "acked"):
        made[plane][:] = 1
    return made


def logs(*numbers, partitions=2):
    return {p: np.array([n for n in numbers if n % partitions == p], np.int64) for p in range(partitions)}


def judge(ledger, found, client="kafkasafe", first=0, end=10):
    return audit(client, "leader", ledger, found, first, end)


def test_a_ledger_is_the_same_for_everybody_who_opens_the_file(tmp_path):
    ours = Ledger(tmp_path / "ledger", 10)
    theirs = Ledger(tmp_path / "ledger")
    assert theirs.records == 10
    ours.set_limit(7)
    theirs.settle(5)
    ours.ask_stop()
    theirs["attempted"][:4] = 1
    assert (theirs.limit, ours.settled, theirs.stop, ours.next_number()) == (7, 5, True, 4)
    assert abs(ours.settled_at - time.monotonic()) < 60


def test_everything_there_once_and_in_order_keeps_the_promise(ledger):
    run = judge(ledger, logs(*range(10)))
    assert (run.sent, run.acked, run.spooled, run.in_log) == (10, 10, 10, 10)
    assert run.kept_its_promise


def test_a_missing_record_is_lost(ledger):
    ledger["acked"][4] = 0
    run = judge(ledger, logs(0, 1, 2, 3, 5, 6, 8, 9))
    assert (run.sent, run.in_log, run.lost, run.acked_lost) == (10, 8, 2, 1)
    assert not run.kept_its_promise


def test_surplus_copies_are_duplicates_and_not_out_of_order_as_well(ledger):
    run = judge(ledger, logs(0, 1, 2, 3, 0, 2, 2, 4, 5, 6, 7, 8, 9))
    assert (run.in_log, run.lost, run.duplicated, run.out_of_order) == (10, 0, 3, 0)
    assert not run.kept_its_promise


def test_a_record_behind_a_later_one_of_its_partition_is_out_of_order(ledger):
    run = judge(ledger, logs(1, 0, 4, 2, 3, 5, 6, 8, 7, 9))
    # Partition 0 has 0 4 2 6 8; partition 1 has 1 3 5 7 9: what is late in the list above is in order there.
    assert (run.lost, run.duplicated, run.out_of_order) == (0, 0, 1)
    assert not run.kept_its_promise


def test_what_was_not_promised_may_be_there_or_not_but_only_once(ledger):
    for plane in ("durable", "acked"):
        ledger[plane][6:] = 0
    run = judge(ledger, logs(0, 1, 2, 3, 4, 5, 6, 8))
    assert (run.sent, run.in_log, run.lost, run.unpromised, run.unpromised_in_log) == (6, 6, 0, 4, 2)
    assert run.kept_its_promise
    twice = judge(ledger, logs(0, 1, 2, 3, 4, 5, 6, 6))
    assert (twice.duplicated, twice.kept_its_promise) == (1, False)


def test_an_acknowledged_record_is_promised_even_if_it_was_never_on_disk(ledger):
    ledger["durable"][3] = 0
    assert judge(ledger, logs(0, 1, 2)).lost == 7


def test_the_controls_promise_what_send_accepted(ledger):
    ledger["durable"][:] = ledger["acked"][:] = 0
    ledger["accepted"][9] = 0
    run = judge(ledger, logs(0, 1, 2, 3), client="kafka-python")
    assert (run.sent, run.acked, run.lost, run.acked_lost, run.unpromised) == (9, 0, 5, 0, 1)


def test_faults_are_judged_apart(ledger):
    found = logs(0, 1, 2, 3, 2, 5, 4, 6, 9)
    first, second = judge(ledger, found, end=5), judge(ledger, found, first=5)
    assert (first.sent, first.lost, first.duplicated) == (5, 0, 1)
    assert (second.sent, second.lost, second.duplicated) == (5, 2, 0)


def test_nothing_at_all_in_the_topic(ledger):
    assert judge(ledger, logs()).lost == 10


def test_an_outbox_promises_what_it_committed(ledger):
    ledger["durable"][7:] = ledger["acked"][5:] = 0
    run = judge(ledger, logs(0, 1, 2, 3, 4, 5, 6, 5), client="outbox")
    assert (run.sent, run.spooled, run.lost, run.duplicated, run.unpromised) == (7, 7, 0, 1, 3)


def test_an_outbox_whose_relay_dies_before_it_deletes_sends_the_rows_again(fake_kafka, tmp_path):
    program = """
import os, sqlite3, sys, time
from pathlib import Path
from kafkasafe.demo.clients import open_client
from kafkasafe.demo.ledger import Ledger

class Dying(sqlite3.Connection):
    def executemany(self, text, rows):
        if text.startswith("DELETE"):
            os._exit(9)
        return super().executemany(text, rows)

folder, servers, dies = Path(sys.argv[1]), sys.argv[2], len(sys.argv) > 3
connect = sqlite3.connect
sqlite3.connect = lambda *a, **k: connect(*a, **k, **({"factory": Dying} if dies else {}))
ledger = Ledger(folder / "ledger")
client = open_client("outbox", [servers], "orders", ledger, 1, str(folder / "outbox"))
if dies:
    for number in range(10):
        ledger["attempted"][number] = ledger["accepted"][number] = client.send(number, 0, b"%012d" % number)
    client.observe()
while not client.flushed(0.2): pass
client.close()
"""
    fake_kafka.create_topic("orders", 1)
    ledger = Ledger(tmp_path / "ledger", 10)
    for dies in (["dies"], []):
        command = [sys.executable, "-c", program, str(tmp_path), fake_kafka.bootstrap_servers[0], *dies]
        assert subprocess.run(command, check=False, timeout=60).returncode == (9 if dies else 0)
    found = read_topic(fake_kafka.bootstrap_servers, "orders")
    run = audit("outbox", "producer", ledger, found, 0, 10)
    assert (run.sent, run.acked, run.lost, run.duplicated, run.out_of_order) == (10, 10, 0, 10, 0)


def test_a_result_that_cannot_be_written_is_shown(capsys, monkeypatch):
    class Done(Demo):
        def run(self):
            return [Run("kafkasafe", "leader", 123456, *[0] * 10, 1.0)]

    monkeypatch.setattr("kafkasafe.demo.run.Demo", Done)
    code, out, err = commands.run(capsys, "demo", "--json", "/dev/full")
    assert (code, "No space left on device" in err) == (3, True)
    assert "123,456" in out


@pytest.mark.kafka
@pytest.mark.crash
@pytest.mark.timeout(400)
def test_the_quick_demo_shows_nothing_lost_within_its_time(tmp_path):
    started = time.monotonic()
    done = python(
        "-m",
        "kafkasafe.cli",
        "demo",
        "--quick",
        "--json",
        tmp_path / "runs.json",
        timeout=380,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )
    seconds = time.monotonic() - started
    assert done.returncode == 0, done.stdout + done.stderr
    runs = json.loads((tmp_path / "runs.json").read_text())
    assert [(run["client"], run["fault"]) for run in runs] == [(c, f) for c in CLIENTS for f in FAULTS]
    ours = [run for run in runs if run["client"] == "kafkasafe"]
    for run in ours:
        assert (run["lost"], run["duplicated"], run["out_of_order"]) == (0, 0, 0)
        assert run["sent"] == run["acked"] == run["in_log"]
        assert run["sent"] + run["unpromised"] == 3000
    # What the demo is there to show: without a copy on disk a dying process takes records with it, ...
    others = [run for run in runs if run["client"] not in DURABLE_CLIENTS]
    assert all(run["lost"] for run in others if run["fault"] == "everything")
    # ... and a copy alone does not say which records Kafka has already. How many are twice depends on the moment.
    assert not sum(run["lost"] for run in runs if run["client"] == "outbox")
    assert "0 lost, 0 duplicated, 0 out of order" in done.stdout
    assert "\x1b" not in done.stdout  # plain where there is no terminal
    # It cleans up; which ports are taken is known to all clusters of a machine, and stays.
    left = {path.name for path in tmp_path.iterdir() if not path.name.startswith("kafkasafe-ports")}
    assert left == {"runs.json"}
    # 40 s on two idle cores; the machine of the tests may be busy with much else.
    assert seconds < 240


@pytest.mark.kafka
@pytest.mark.crash
@pytest.mark.timeout(300)
def test_when_the_demo_is_killed_its_brokers_and_producers_die_with_it(tmp_path):
    parent = subprocess.Popen(
        [sys.executable, "-m", "kafkasafe.cli", "demo", "--quick", "--no-controls"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )
    try:
        me = psutil.Process(parent.pid)
        deadline = time.monotonic() + 180
        # Four JVMs and one producer.
        while len(children := me.children()) < 5 or any("--ledger" in c.cmdline() for c in children) is False:
            assert time.monotonic() < deadline, children
            assert parent.poll() is None
            time.sleep(0.1)
    finally:
        parent.kill()
        parent.wait()
    _, alive = psutil.wait_procs(children, timeout=60)
    assert not alive
