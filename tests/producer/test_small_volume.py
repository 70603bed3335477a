"""A volume that is smaller than the spool may become is named at the start, not when it is full."""

from __future__ import annotations

import logging
import shutil

from kafkasafe import SafeProducer
from kafkasafe.testing import FakeCluster


def test_a_volume_with_less_room_than_the_spool_may_need_is_named_at_the_start(tmp_path, caplog):
    room = shutil.disk_usage(tmp_path).free
    with FakeCluster() as cluster, caplog.at_level(logging.WARNING, "kafkasafe"):

        def said(spool, limit):
            caplog.clear()
            options = {"spool_dir": tmp_path / spool, "spool_max_bytes": limit, "client_id": "shop"}
            with SafeProducer(bootstrap_servers=cluster.bootstrap_servers, **options):
                pass
            return [
                record for record in caplog.records if getattr(record, "event", "") == "spool_volume_small"
            ]

        (line,) = said("large", room * 4)
        assert (line.levelname, line.name, line.client_id) == ("WARNING", "kafkasafe.producer", "shop")
        assert line.path == str(tmp_path / "large")
        assert 0 < line.free_bytes < room * 4
        assert f"spool_max_bytes={room * 4}" in line.getMessage()
        # The second start finds a log there: what the lane has takes no more room.
        assert said("small", 64 * 1024 * 1024) == []
        assert said("small", 64 * 1024 * 1024) == []
