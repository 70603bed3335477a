"""The objects of a started producer."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from kafkasafe import producer as threads
from kafkasafe._producing.opening import ProducerParts
from kafkasafe.aio.futures import DoneCallbacks, DueBatches, waits_of
from kafkasafe.aio.gate import SendGate
from kafkasafe.aio.threads import Worker, running_loop
from kafkasafe.delivery.awaiting import LoopWaits

__all__ = ["Opened"]


@dataclass(frozen=True)
class Opened:
    """The objects of a producer between `start` and its end.

    Attributes:
        producer: The inner producer.
        parts: The objects of the inner producer.
        loop: The loop on which the producer was started.
        worker: Thread that encodes batches.
        gate: Accepts records.
        waits: The object with which coroutines of `loop` wait.
        due_batches: Open batches for which tasks wait.
        callbacks: Callbacks of futures.
    """

    producer: threads.SafeProducer
    parts: ProducerParts
    loop: asyncio.AbstractEventLoop
    worker: Worker
    gate: SendGate
    waits: LoopWaits
    due_batches: DueBatches
    callbacks: DoneCallbacks

    @classmethod
    def of(cls, producer: threads.SafeProducer, loop: asyncio.AbstractEventLoop) -> Opened:
        """Make the objects for an inner producer. Called on its loop."""
        parts = producer.parts
        worker = Worker(f"kafkasafe-aio-{producer.client_id}")
        gate = SendGate(parts, worker, loop)
        return cls(
            producer, parts, loop, worker, gate, waits_of(parts), DueBatches(parts), DoneCallbacks(loop)
        )

    def waits_here(self) -> LoopWaits:
        """Return the object with which coroutines of the running loop wait for the producer.

        The running loop may differ from the producer's loop, because a future may be awaited after the producer's loop
        has ended.
        """
        return self.waits if running_loop() is self.loop else waits_of(self.parts)
