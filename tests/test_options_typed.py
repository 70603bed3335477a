"""Options are typed: an editor completes them, a type checker finds the misspelt one; and none is forgotten."""

from __future__ import annotations

import subprocess
import sys
import typing
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer

from kafkasafe import config
from kafkasafe.errors import ConfigError
from kafkasafe.options import ConsumerOptions, ProducerOptions

PROGRAM = """
from kafkasafe import SafeConsumer, SafeProducer

SafeProducer(bootstrap_servers=["a:1"], spool_dir="spool", acks="all", linger_ms=5.0, compression_type="zstd")
SafeConsumer("orders", bootstrap_servers="a:1", group_id="g", on_divergence=lambda event: event.at)
SafeProducer(bootstrap_server="a:1")  # line 6
SafeProducer(spool_max_bytes=1.5)  # line 7
SafeProducer(acks=[])  # line 8
SafeConsumer("orders", security_protocol="ssl")  # line 9
SafeConsumer("orders", linger_ms=5)  # line 10
SafeProducer(spool_max_bytes="1GiB", retain_acked_bytes="64MiB", receive_buffer_bytes="32KiB")
SafeConsumer("orders", fetch_max_bytes="50MiB", bootstrap_timeout_ms=5000)
"""

WRONG = {
    # What a user may write: (client, option, value). The type checker is to find each, at its place.
    "SafeProducer": {
        "spool_path": "'spool'",
        "spool_size": "1024",
        "dlq_topic": "'dead'",
        "durable": "True",
        "exactly_once": "True",
        "retention": "60",
        "message_timeout_ms": "1000",
        "group_id": "'g'",
        "bootstrap_timeout_ms": "1000",
        "metric_reporters": "[]",
        "metrics_enabled": "False",
        "metrics_num_samples": "2",
        "metrics_sample_window_ms": "30000",
        "kafka_client": "object",
    },
    "SafeConsumer": {
        "spool_dir": "'spool'",
        "acks": "'all'",
        "offset_file": "'ends'",
        "enable_auto_comit": "True",
    },
}
"""Names that are none, or that the other client has, or that have no effect."""


def program_of_wrong_options() -> tuple[str, set[int]]:
    """A program with one wrong option on each line, and the numbers of those lines."""
    head = ["from kafkasafe import SafeConsumer, SafeProducer", "class Wrong: ...", ""]
    calls = [f"{client}({name}={value})" for client, names in WRONG.items() for name, value in names.items()]
    for client, options in (("SafeProducer", ProducerOptions), ("SafeConsumer", ConsumerOptions)):
        hints = typing.get_type_hints(options)
        calls += [f"{client}({name}=Wrong())" for name, kind in hints.items() if kind is not Any]
    return "\n".join([*head, *calls]) + "\n", set(range(len(head) + 1, len(head) + len(calls) + 1))


def test_every_option_has_a_type():
    heeded = config.DEFAULTS.keys() - config._WITHOUT_EFFECT.keys()
    assert typing.get_type_hints(ProducerOptions).keys() == heeded  # completion offers what has an effect
    ours = {**KafkaConsumer.DEFAULT_CONFIG, **config._CONSUMER}
    assert typing.get_type_hints(ConsumerOptions).keys() == ours.keys()


def lines_with_errors(program: str, tmp_path: Path) -> tuple[set[int], str]:
    (tmp_path / "program.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "program.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    said = done.stdout + done.stderr
    return {int(line.split(":")[1]) for line in said.splitlines() if line.startswith("program.py:")}, said


def test_a_type_checker_finds_what_run_time_would_refuse(tmp_path):
    lines, said = lines_with_errors(PROGRAM, tmp_path)
    assert lines == {6, 7, 8, 9, 10}, said


def test_a_type_checker_finds_each_wrong_option(tmp_path):
    program, wrong = program_of_wrong_options()
    assert len(wrong) > 100
    lines, said = lines_with_errors(program, tmp_path)
    assert lines == wrong, said


def test_run_time_refuses_the_same_names():
    for name in WRONG["SafeProducer"].keys() - config._WITHOUT_EFFECT.keys():
        with pytest.raises(ConfigError, match=f"Unknown option '{name}'"):
            config.validate({name: 1})
    for name in WRONG["SafeConsumer"]:
        with pytest.raises(ConfigError, match=f"Unknown option '{name}'"):
            config.validate_consumer({name: 1})
