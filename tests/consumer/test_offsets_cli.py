"""`kafkasafe offsets` on a real broker."""

from __future__ import annotations

import json

import consuming
import pytest
from commands import run
from consuming import new_topic

pytestmark = pytest.mark.kafka


def test_one_shot_and_live(kafka, capsys):
    topic = new_topic(kafka, 2)
    consuming.produce(kafka, topic, [b"x"] * 10)
    servers = ",".join(kafka.bootstrap_servers)
    code, out, _ = run(capsys, "offsets", topic, "-b", servers)
    assert code == 0
    assert [line.split() for line in out.splitlines()] == [
        ["topic", "partition", "start", "end", "records/s"],
        [topic, "0", "0", "10", "–"],
        [topic, "1", "0", "0", "–"],
    ]
    code, out, _ = run(
        capsys,
        "offsets",
        f"{topic}:0",
        "-b",
        servers,
        "--watch",
        "--interval",
        "0.1s",
        "--rounds",
        "3",
        "--json",
    )
    rounds = [json.loads(line) for line in out.splitlines()]
    assert (code, [row["end_offset"] for (row,) in rounds]) == (0, [10, 10, 10])
    assert rounds[2][0]["records_per_s"] == 0


def test_a_topic_made_anew_is_a_loss_and_is_told_once(kafka, capsys, tmp_path):
    topic = new_topic(kafka)
    consuming.produce(kafka, topic, [b"x"] * 10)
    servers = ",".join(kafka.bootstrap_servers)
    more = ("-b", servers, "--baseline", tmp_path / "ends.json", "--json")
    assert json.loads(run(capsys, "offsets", topic, *more)[1])[0]["end_offset"] == 10
    kafka.delete_topic(topic)
    kafka.create_topic(topic)
    consuming.produce(kafka, topic, [b"x"] * 3)
    code, out, _ = run(capsys, "offsets", topic, *more)
    (row,) = json.loads(out)
    assert (code, row["end_offset"]) == (1, 3)
    assert row["note"] == "REGRESSED: offsets 3 to 9 are lost (recreated)"
    code, out, _ = run(capsys, "offsets", topic, *more)
    assert (code, json.loads(out)[0]["note"]) == (0, "")


def test_what_is_not_there_is_told_and_not_made(kafka, capsys):
    topic = new_topic(kafka)
    servers = ",".join(kafka.bootstrap_servers)
    missing = f"{topic}-missing"
    code, out, _ = run(capsys, "offsets", topic, missing, f"{topic}:7", "-b", servers, "--timeout", "5s")
    assert code == 3
    assert f"{topic}-missing" in out
    assert "the cluster does not have it" in out
    assert "it has no partition 7" in out
    with kafka.admin() as admin:
        assert missing not in admin.list_topics()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("a:b", "-b", "x:1"), "'a:b' is neither TOPIC nor TOPIC:PARTITION"),
        (("a",), "give the brokers as HOST:PORT"),
        (("a", "-b", "x:1", "--rounds", "3"), "only with --watch"),
        (("a", "-b", "x:1", "--baseline", "/does/not/exist/x"), "/does/not/exist is not a directory"),
        (("a", "-b", "x:1", "--interval", "-1"), "'-1' is not a duration"),
    ],
)
def test_wrong_input_is_a_usage_error(capsys, arguments, said):
    code, out, err = run(capsys, "offsets", *arguments)
    assert (code, out) == (2, "")
    assert said in " ".join(err.split())


def test_nobody_answers(capsys):
    code, _, err = run(capsys, "offsets", "a", "-b", "127.0.0.1:9", "--timeout", "1s")
    assert code == 3
    assert "Traceback" not in err
