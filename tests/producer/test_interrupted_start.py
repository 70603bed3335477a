"""Ctrl-C while a producer starts its threads."""

from __future__ import annotations

import threading
from typing import Any

from ctrl_c import CtrlC

from kafkasafe import SafeProducer
from kafkasafe.testing import FakeCluster


def test_ctrl_c_while_the_pump_starts_leaves_no_pump_that_uses_a_released_lane(tmp_path, monkeypatch):
    """1. Ctrl-C comes in `Thread.start`, after the pump's thread has begun. 2. The constructor releases the lane.
    3. The next producer takes the lane. The pump of the first one still ran, so two pumps used the same files.
    """
    begun: list[Any] = []
    running: list[Any] = []
    step = 0
    start = threading.Thread.start

    def interrupted(thread: Any) -> None:
        if not thread.name.startswith("kafkasafe-pump"):
            start(thread)
            return
        begun.append(thread)
        run = thread.run

        def runs() -> None:
            running.append(thread)
            run()

        thread.run = runs
        with at:
            start(thread)

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    cut = 0
    with FakeCluster() as cluster:
        options: dict[str, Any] = {
            "bootstrap_servers": cluster.bootstrap_servers,
            "spool_dir": tmp_path / "spool",
        }
        for step in range(0, 200, 3):
            at = CtrlC(step, {"threading"})
            try:
                producer = SafeProducer(**options)
            except (KeyboardInterrupt, RuntimeError):  # `Condition.wait` may raise the latter after Ctrl-C
                cut += 1
                # A thread that does not run may wait for ever for a lock of `threading` that Ctrl-C has left taken.
                if begun[-1] in running:
                    begun[-1].join(10)
                    assert not begun[-1].is_alive(), at.place
                while threading._active_limbo_lock._is_owned():  # on Python 3.14
                    threading._active_limbo_lock.release()
            else:
                assert producer._pump.lane == "lane-000", at.place
                producer.close()
            if not at.pressed:
                break
    assert cut > 5
