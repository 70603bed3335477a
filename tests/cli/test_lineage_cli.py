"""`kafkasafe lineage`: the document's examples, many pairs on standard input, errors that name the argument."""

from __future__ import annotations

import io
import json
import random
from types import SimpleNamespace

import commands
import pytest

ALTERNATING = (
    "--ours",
    "0:0,4:5,8:7",
    "--ours-end",
    "9",
    "--theirs",
    "0:0,2:3,6:6,10:9",
    "--theirs-end",
    "12",
)
SCENARIO_1 = ("--ours", "1:0,2:11", "--ours-end", "31", "--theirs", "1:0,3:21", "--theirs-end", "40")
UNCLEAN = ("--ours", "0:0,2:1", "--ours-end", "2", "--theirs", "1:0,3:1", "--theirs-end", "2")


@pytest.fixture
def run(capsys, monkeypatch):
    def run(*arguments, stdin=None):
        if stdin is not None:
            monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(stdin)))
        return commands.run(capsys, "lineage", *arguments)

    return run


def lines(*pairs):
    return b"".join(json.dumps(pair).encode() + b"\n" for pair in pairs)


def test_the_walk_is_told_step_by_step(run):
    code, out, err = run(*ALTERNATING)
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "1. Epoch 8? Epoch 6 ends at 9: truncate to 7, then ask about older epochs.",
        "2. Epoch 4? Epoch 2 ends at 6: truncate to 5, then ask about older epochs.",
        "3. Epoch 0? Epoch 0 ends at 3: truncate to 3.",
        "truncate to 3: offsets 3–8 differ; 3 round trips, 24 bytes of requests, 54 of responses",
    ]


def test_the_walk_as_json(run):
    code, out, _ = run(*ALTERNATING, "--json")
    assert code == 0
    assert json.loads(out) == {
        "strategy": "kip279",
        "truncate_to": 3,
        "round_trips": 3,
        "request_bytes": 24,
        "response_bytes": 54,
        "steps": [
            {"request_epoch": 8, "reply_epoch": 6, "reply_end_offset": 9, "truncate_to": 7, "reply": "end"},
            {"request_epoch": 4, "reply_epoch": 2, "reply_end_offset": 6, "truncate_to": 5, "reply": "end"},
            {"request_epoch": 0, "reply_epoch": 0, "reply_end_offset": 3, "truncate_to": 3, "reply": "end"},
        ],
    }


@pytest.mark.parametrize(
    ("pair", "strategy", "mark", "truncate_to", "rounds"),
    [
        (SCENARIO_1, "kip279", "11", 11, 1),
        (SCENARIO_1, "alt1", "11", 11, 2),
        (SCENARIO_1, "alt2", "11", 11, 1),
        (SCENARIO_1, "clean", "11", 11, 1),
        (UNCLEAN, "kip279", "0", 0, 2),
        (UNCLEAN, "alt1", "0", 0, 2),
        (UNCLEAN, "alt2", "0", 0, 2),
    ],
)
def test_the_document_s_examples(run, pair, strategy, mark, truncate_to, rounds):
    for given in ((), ("--high-watermark", mark))[strategy == "clean" :]:
        _, out, _ = run(*pair, "--strategy", strategy, "--json", *given)
        found = json.loads(out)
        assert (found["truncate_to"], found["round_trips"]) == (truncate_to, rounds)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            (*SCENARIO_1, "--strategy", "alt1"),
            "The leader knows none of them: truncate to 11, then ask about older epochs.",
        ),
        (
            (*SCENARIO_1, "--strategy", "alt2"),
            "Epochs 2 up to 31, 1 up to 11? The end is 11: truncate to 11.",
        ),
        (
            (*UNCLEAN, "--strategy", "alt2"),
            "2. Epochs 2 up to 2, 0 up to 1? The leader knows none of them: truncate to 0.",
        ),
        (
            (
                "--ours",
                "0:0",
                "--ours-end",
                "5",
                "--theirs",
                "",
                "--theirs-end",
                "5",
                "--high-watermark",
                "3",
            ),
            "1. Epoch 0? The leader does not know: truncate to 3.",
        ),
        (
            (*UNCLEAN, "--strategy", "alt2", "--sequence", "2"),
            "1. Epochs 2 up to 2, 0 up to 1? The leader knows none of them: truncate to 0.",
        ),
        (UNCLEAN, "All of the leader's epochs are newer, and its log begins at 0: truncate to 0."),
        (
            ("--ours", "0:0", "--ours-end", "5", "--theirs", "0:0", "--theirs-end", "5"),
            "nothing differs; 1 round trip,",
        ),
        (("--ours", "", "--ours-end", "5", "--theirs", "0:0", "--theirs-end", "5"), "0 round trips"),
    ],
)
def test_what_the_steps_say(run, arguments, says):
    code, out, _ = run(*arguments)
    assert code == 0
    assert says in out


def test_many_pairs_one_a_line(run):
    pair = {"ours": [[1, 0], [2, 11]], "ours_end": 31, "theirs": [[1, 0], [3, 21]], "theirs_end": 40}
    code, out, err = run(
        "--stdin",
        "--json",
        stdin=lines(
            pair, {**pair, "strategy": "alt1", "high_watermark": 11}, {**pair, "high_watermark": None}
        )
        + b"\n",
    )
    assert (code, err) == (0, "")
    found = [json.loads(line) for line in out.splitlines()]
    assert [(each["strategy"], each["truncate_to"], each["round_trips"]) for each in found] == [
        ("kip279", 11, 1),
        ("alt1", 11, 2),
        ("kip279", 11, 1),
    ]


def test_a_line_and_the_options_say_the_same(run):
    chance = random.Random(5)
    pairs = []
    for _ in range(50):
        pair = {}
        for name in ("ours", "theirs"):
            starts = sorted(chance.sample(range(30), chance.randint(1, 6)))
            pair[name] = [
                list(entry)
                for entry in zip(sorted(chance.sample(range(12), len(starts))), starts, strict=True)
            ]
            pair[f"{name}_end"] = 30 + chance.randint(0, 5)
        pairs.append(
            {
                **pair,
                "high_watermark": chance.randint(0, 30),
                "strategy": chance.choice(["kip279", "alt1", "alt2", "clean"]),
            }
        )
    _, out, _ = run("--stdin", "--json", stdin=lines(*pairs))
    for pair, line in zip(pairs[:15], out.splitlines()[:15], strict=True):
        arguments = []
        for name, value in pair.items():
            text = (
                ",".join(f"{epoch}:{start}" for epoch, start in value)
                if isinstance(value, list)
                else str(value)
            )
            arguments += [f"--{name.replace('_', '-')}", text]
        _, single, _ = run(*arguments, "--json")
        assert json.loads(single) == json.loads(line)
    # The options are the defaults of lines that say nothing.
    bare = [{name: value for name, value in pair.items() if name != "strategy"} for pair in pairs]
    _, out, _ = run("--stdin", "--json", "--strategy", "alt2", stdin=lines(*bare))
    assert {json.loads(line)["strategy"] for line in out.splitlines()} == {"alt2"}


@pytest.mark.parametrize(
    ("arguments", "named", "fix"),
    [
        ((), "--ours:", "give it, as in --ours 0:0,4:5,8:7"),
        (ALTERNATING[:2], "--ours-end:", "give it, as in --ours-end 9"),
        (ALTERNATING[:4], "--theirs:", "give it"),
        (ALTERNATING[:6], "--theirs-end:", "give it"),
        (
            (*ALTERNATING, "--ours", "0:0,x"),
            "--ours:",
            "'x' is not EPOCH:START; write for example 0:0,4:5,8:7",
        ),
        ((*ALTERNATING, "--theirs", "0:0,"), "--theirs:", "'' is not EPOCH:START"),
        ((*ALTERNATING, "--ours", "-1:0"), "--ours:", "is not EPOCH:START"),
        ((*ALTERNATING, "--ours", "4:0,4:5"), "--ours:", "epoch 4 comes after epoch 4: epochs must increase"),
        ((*ALTERNATING, "--theirs", "4:5,5:3"), "--theirs:", "epoch 5 starts at 3, before epoch 4 at 5"),
        ((*ALTERNATING, "--ours", "9999999999:5"), "--ours:", "from -1 to 2147483647"),
        (
            (*ALTERNATING, "--ours-end", "6"),
            "--ours-end:",
            "the end 6 is before the start of epoch 8, 7; give the log end",
        ),
        ((*ALTERNATING, "--theirs-end", "-1"), "--theirs-end:", "give the log end offset"),
        ((*ALTERNATING, "--ours-end", "many"), "'--ours-end':", "integer"),
        ((*ALTERNATING, "--high-watermark", "-1"), "--high-watermark:", "give 0 or more"),
        ((*ALTERNATING, "--strategy", "alt3"), "'--strategy':", "'kip279', 'alt1', 'alt2', 'clean'"),
        (
            (*ALTERNATING, "--strategy", "clean"),
            "--high-watermark:",
            "the strategy clean needs it",
        ),
        ((*ALTERNATING, "--sequence", "2"), "--sequence:", "choose the strategy alt2"),
        ((*ALTERNATING, "--strategy", "alt2", "--sequence", "2,x"), "--sequence:", "write for example 2,4"),
        ((*ALTERNATING, "--strategy", "alt2", "--sequence", "3,2"), "--sequence:", "must increase"),
        ((*ALTERNATING, "--stdin", "--json"), "--ours:", "cannot be combined with --stdin"),
        (("--stdin",), "--stdin:", "add --json"),
    ],
)
def test_a_wrong_command_line_names_the_argument_and_the_fix(run, arguments, named, fix):
    code, out, err = run(*arguments)
    assert code == 2
    assert json.loads(out)["code"] == 2 if "--json" in arguments else out == ""
    assert named in err
    assert fix in err
    assert "Traceback" not in err


GOOD = {"ours": [[0, 0]], "ours_end": 5, "theirs": [[0, 0]], "theirs_end": 5}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"{bad\n", "Expecting property name"),
        (b"\xff\n", "utf-8"),
        (b"[1, 2]\n", "a line must be one JSON object, not list"),
        (b"[" * 100_000, ""),
        (lines({**GOOD, "ours": None}), '"ours": missing'),
        (lines({name: GOOD[name] for name in ("ours", "theirs", "ours_end")}), '"theirs_end": missing'),
        (lines({**GOOD, "our": 5}), '"our": unknown member; use only ours, ours_end'),
        (lines({**GOOD, "ours": "0:0"}), '"ours": give a list of [epoch, start offset]'),
        (lines({**GOOD, "ours": [[0]]}), '"ours": give a list'),
        (lines({**GOOD, "ours": [[0, "0"]]}), '"ours": the start of epoch 0 must be a whole number'),
        (lines({**GOOD, "ours": [[True, 0]]}), '"ours": an epoch must be'),
        (lines({**GOOD, "ours": [[-1, 0]]}), '"ours": epoch -1 means that there is no epoch'),
        (lines({**GOOD, "theirs": [[2, 0], [1, 3]]}), '"theirs": epoch 1 comes after epoch 2'),
        (lines({**GOOD, "theirs_end": -1}), '"theirs_end": the end must be'),
        (lines({**GOOD, "ours_end": 5.5}), '"ours_end": the end must be'),
        (lines({**GOOD, "high_watermark": "5"}), "\"high_watermark\": '5' is not an offset"),
        (lines({**GOOD, "strategy": "alt9"}), "\"strategy\": 'alt9' is not one of kip279, alt1, alt2"),
    ],
)
def test_a_wrong_line_is_named(run, line, says):
    code, out, err = run("--stdin", "--json", stdin=lines(GOOD) + b"\n" + line)
    assert code == 2
    answer, error = map(json.loads, out.splitlines())
    assert "truncate_to" in answer, "what came before it is answered"
    assert (error["code"], says in error["error"]) == (2, True)
    assert "line 3: " in err
    assert says in err
    assert "Traceback" not in err


def test_help_and_exit_codes(run):
    code, out, _ = run("--help")
    assert code == 0
    assert "Exit codes: 0" in out
    assert all(
        name in out for name in ("--ours", "--theirs-end", "--high-watermark", "--strategy", "--stdin")
    )


def test_the_public_module_has_all_of_the_algorithms():
    from kafkasafe import lineage
    from kafkasafe.history import epochs

    assert set(lineage.__all__) == set(epochs.__all__)
    walk = lineage.EpochWalk(lineage.Lineage([(0, 0), (4, 5), (8, 7)], 9))
    leader = lineage.Leader(lineage.Lineage([(0, 0), (2, 3), (6, 6), (10, 9)], 12))
    while (epoch := walk.query()) is not None:
        reply = leader.live(epoch)
        walk.answer(reply.epoch, reply.end_offset)
    assert isinstance(walk.outcome, lineage.Diverged)
    assert (walk.outcome.divergent_offset, walk.outcome.rolled_back) == (3, (3, 8))
