"""asyncio: `SafeProducer` and `SafeConsumer` for programs with an event loop. See docs/aio.md.

Nothing here blocks the event loop: other threads do all work that waits for a disk, a broker or another thread, and all
work that takes long, such as encoding a batch.
"""

from kafkasafe.aio.atomic import AtomicBatch, BatchOutcome
from kafkasafe.aio.consumer import SafeConsumer
from kafkasafe.aio.fetched import UnassignedError
from kafkasafe.aio.futures import RecordFuture
from kafkasafe.aio.producer import SafeProducer

__all__ = ["AtomicBatch", "BatchOutcome", "RecordFuture", "SafeConsumer", "SafeProducer", "UnassignedError"]
