"""asyncio: `SafeProducer` and `SafeConsumer` for programs with an event loop. See docs/aio.md.

The loop is never held up: what waits for a disk, a broker or another thread, and what takes long (encoding a batch),
is done by other threads.
"""

from kafkasafe.aio.atomic import AtomicBatch, BatchOutcome
from kafkasafe.aio.consumer import SafeConsumer
from kafkasafe.aio.fetched import UnassignedError
from kafkasafe.aio.futures import RecordFuture
from kafkasafe.aio.producer import SafeProducer

__all__ = ["AtomicBatch", "BatchOutcome", "RecordFuture", "SafeConsumer", "SafeProducer", "UnassignedError"]
