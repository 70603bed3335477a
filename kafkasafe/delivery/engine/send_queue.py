"""Holds batches that are ready to be sent, until the connection to their partition leader has room.

The journal counts held batches as sent. The send queue holds a batch, without its bytes, until three conditions are
met: the leader is reachable, the connection to the leader has room, and the producer's memory has room. Batches of a
partition leave the queue in the order in which they entered it. Partitions of a broker take turns.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from kafkasafe import journal as j
from kafkasafe.cluster import api as t
from kafkasafe.delivery.engine.context import EngineContext
from kafkasafe.delivery.engine.disk import DiskWriter
from kafkasafe.delivery.engine.lane import Lane
from kafkasafe.delivery.engine.messages import LinkAnswered
from kafkasafe.limits.uplink import MEMORY_BYTES, Ticket, UplinkBudget

Address: TypeAlias = tuple[str, int]
QueuedBatch: TypeAlias = tuple[Lane, j.Batch]

_NOWHERE = -1


class SendQueue:
    """See the module.

    Invariant: while the queue holds batches for a broker, a call of `Cluster.reach` is unanswered, or a batch is in
    flight to the broker.
    """

    def __init__(self, context: EngineContext, disk: DiskWriter) -> None:
        self._context = context
        self._disk = disk
        self._links: dict[int, UplinkBudget] = {}
        self._held: dict[Address, collections.deque[QueuedBatch]] = {}
        # Maps a broker to the partitions with held batches, in the order of their turns.
        self._turns: dict[int, collections.OrderedDict[Address, None]] = {}
        self._reaching: set[int | Address] = set()
        self.read_bytes = 0
        """Bytes in flight that were read from disk to be sent."""
        self.reads = 0
        """Number of batches in flight that were read from disk."""

    @property
    def held(self) -> int:
        """Number of held batches."""
        return sum(map(len, self._held.values()))

    @property
    def memory_bytes(self) -> int:
        """Bytes of durable batches that are in memory, including batches in flight."""
        return self._disk.memory + self.read_bytes

    def hold(self, address: Address, leader: t.PartitionInfo | None, lane: Lane, batch: j.Batch) -> None:
        """Hold a batch for the leader, after the held batches of the same partition."""
        queue = self._held.get(address)
        if queue is None:
            queue = self._held[address] = collections.deque()
            self._line_up(address, leader)
        queue.append((lane, batch))

    def _line_up(self, address: Address, leader: t.PartitionInfo | None) -> None:
        node = _NOWHERE if leader is None else leader.leader
        self._turns.setdefault(node, collections.OrderedDict())[address] = None

    def _link(self, node: int) -> UplinkBudget:
        link = self._links.get(node)
        if link is None:
            link = self._links[node] = UplinkBudget(self._context.config.request_timeout_s)
        return link

    def find_leaders(self) -> None:
        """Assign held batches to the partition leaders in the new metadata."""
        turns, self._turns = self._turns, {}
        for address in itertools.chain.from_iterable(turns.values()):
            self._line_up(address, self._context.leader(*address))  # in the order of their turns

    def due(self) -> Iterator[tuple[Address, QueuedBatch, int]]:
        """Yields each (partition, batch, id of the broker) to send now. The caller must call `sent` before taking the
        next item.
        """
        for node in list(self._turns):
            turns = self._turns[node]
            link = self._link(node)
            while turns:
                address = next(iter(turns))
                lane, batch = held = self._held[address][0]
                if node == _NOWHERE or not link.ready:
                    for each in [address] if node != _NOWHERE else list(turns):
                        self._reach(node, each)
                    break
                if not link.has_room(batch.size_bytes) or not self._may_read(lane, batch):
                    break
                self._pop(address)
                if address in self._held:
                    turns.move_to_end(address)
                else:
                    del turns[address]
                yield address, held, node
            if not turns:
                self._turns.pop(node, None)

    def _pop(self, address: Address) -> None:
        queue = self._held[address]
        queue.popleft()
        if not queue:
            del self._held[address]

    def _may_read(self, lane: Lane, batch: j.Batch) -> bool:
        parcel = lane.parcels.get(batch.handle)
        if parcel is None or parcel.data is not None or not self.read_bytes:
            return True
        most_bytes = MEMORY_BYTES + self._disk.more_memory_bytes - batch.size_bytes
        if self.memory_bytes > most_bytes:
            self._disk.leave_room()
        return self.memory_bytes <= most_bytes

    def sent(self, node: int, size_bytes: int, *, read: bool, timeouts: int) -> tuple[Ticket, float]:
        """Note that a batch from `due` is sent. Returns the batch's ticket, and the extra time, in seconds, that the
        answer may take.
        """
        link = self._link(node)
        patience_s = link.patience_s(size_bytes, timeouts)
        read_bytes = size_bytes if read else 0
        self.read_bytes += read_bytes
        self.reads += read
        return link.send(node, size_bytes, read_bytes, self._context.clock.monotonic()), patience_s

    def answered(self, ticket: Ticket, failure: t.Failure | None, *, timed_out: bool) -> None:
        """Note that a request was answered or failed."""
        link = self._link(ticket.node)
        self.read_bytes -= ticket.read_bytes
        self.reads -= bool(ticket.read_bytes)
        if failure is None:
            link.answered(ticket, self._context.clock.monotonic())
        else:
            link.failed(ticket, timed_out=timed_out)

    def take_back(self, address: Address) -> Sequence[QueuedBatch]:
        """Remove and return all held batches of a partition, so that they are not sent."""
        held = self._held.pop(address, ())
        if held:
            for turns in self._turns.values():
                turns.pop(address, None)
        return held

    def _reach(self, node: int, address: Address) -> None:
        key = address if node == _NOWHERE else node
        if key in self._reaching:
            return
        self._reaching.add(key)
        self._context.cluster.reach(*address, _posting(self._context, node, address))

    def reached(self, message: LinkAnswered) -> Sequence[Address]:
        """Handle the answer of `Cluster.reach`. Returns the partitions that cannot be reached."""
        address, node = (message.topic, message.partition), message.node
        self._reaching.discard(address if node == _NOWHERE else node)
        if isinstance(message.answer, t.Reached):
            self._link(message.answer.node).open()
            self._disk.can_send()
            self.find_leaders()
            return ()
        if node == _NOWHERE:
            return [address] if address in self._held else ()
        self._link(node).close()
        if not any(link.ready for link in self._links.values()):
            self._disk.cannot_send()
        return list(self._turns.get(node, ()))


def _posting(context: EngineContext, node: int, address: Address) -> Callable[[t.Reached | t.Failure], None]:
    return lambda answer: context.post(LinkAnswered(node, *address, answer))
