"""Which batches the engine keeps in memory."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

from kafkasafe.delivery.engine.disk import DiskWriter
from kafkasafe.delivery.engine.parcels import Parcel


def test_the_bytes_of_a_batch_stay_in_memory_until_they_are_written():
    """A batch that joins durable ones counts as durable before it is in the spool itself."""
    parcel = Parcel("t", 0, bytearray(100), 100, 1, 0, durable=True)
    parcel.batch = SimpleNamespace(durable=False)
    context = SimpleNamespace(
        log=None,
        config=SimpleNamespace(run_ahead_bytes=None, in_memory=False),
        lanes=[SimpleNamespace(parcels={1: parcel})],
        clock=SimpleNamespace(monotonic=lambda: 1.0),
    )
    ahead = SimpleNamespace(expire=lambda: None, silent={("t", 0)})
    disk = DiskWriter(context, SimpleNamespace(lock=contextlib.nullcontext(), ahead=ahead), None)
    disk.memory = 1000
    disk._drop_silent()
    disk.cannot_send()
    assert parcel.data is not None
    parcel.batch.durable = True
    disk.cannot_send()
    assert parcel.data is None
    assert disk.memory == 900
