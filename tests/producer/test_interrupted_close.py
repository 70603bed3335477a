"""close() that Ctrl-C interrupts before it has begun to wait."""

from __future__ import annotations

import contextlib
from typing import Final

from ctrl_c import CtrlC

from kafkasafe import SafeProducer
from kafkasafe.testing import FakeCluster

CLOSING: Final = {"kafkasafe._producing.shutdown", "kafkasafe._producing.lifecycle"}


def test_ctrl_c_at_the_steps_before_close_waits_ends_the_producer(tmp_path):
    """A later close() did nothing, and neither did the end of the process: what was accepted was in memory only."""
    steps = 0
    with FakeCluster() as cluster:
        cluster.create_topic("orders")
        for step in range(40, 100, 6):
            producer = SafeProducer(
                bootstrap_servers=cluster.bootstrap_servers, spool_dir=tmp_path / "spool", linger_ms=60_000
            )
            future = producer.send("orders", b"x")
            with contextlib.suppress(KeyboardInterrupt), CtrlC(step, CLOSING) as ctrl_c:
                producer.close()
            producer.close()
            assert producer._pump.ended(), ctrl_c.place
            assert future.is_done, ctrl_c.place
            if "_seal_for_good" in ctrl_c.place or not ctrl_c.pressed:
                break
            steps += 1
    assert steps > 3
