"""Options are typed: an editor completes them, a type checker finds the misspelt one; and none is forgotten."""

from __future__ import annotations

import subprocess
import sys
import typing

from kafka import KafkaConsumer

from kafkasafe import config
from kafkasafe.options import ConsumerOptions, ProducerOptions

PROGRAM = """
from kafkasafe import SafeConsumer, SafeProducer

SafeProducer(bootstrap_servers=["a:1"], spool_dir="spool", acks="all", linger_ms=5.0, compression_type="zstd")
SafeConsumer("orders", bootstrap_servers="a:1", group_id="g", on_divergence=lambda event: event.at)
SafeProducer(bootstrap_server="a:1")  # line 6
SafeProducer(spool_max_bytes="1 GiB")  # line 7
SafeProducer(acks=[])  # line 8
SafeConsumer("orders", security_protocol="ssl")  # line 9
SafeConsumer("orders", linger_ms=5)  # line 10
"""


def test_every_option_has_a_type():
    assert typing.get_type_hints(ProducerOptions).keys() == config.DEFAULTS.keys()
    ours = {**KafkaConsumer.DEFAULT_CONFIG, **config._CONSUMER}
    assert typing.get_type_hints(ConsumerOptions).keys() == ours.keys()


def test_a_type_checker_finds_what_run_time_would_refuse(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "program.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    lines = {int(line.split(":")[1]) for line in done.stdout.splitlines() if line.startswith("program.py:")}
    assert lines == {6, 7, 8, 9, 10}, done.stdout + done.stderr
