"""A client that sends exactly the request it is told to, and returns the answer as it came."""

import contextlib
import itertools
import socket
import struct

from kafkasafe.kafkapython import frames
from kafkasafe.record import batch


class Raw:
    """One connection to one broker."""

    def __init__(self, host, port):
        self.sock = socket.create_connection((host, port), timeout=60)
        self._numbers = itertools.count(1)

    def close(self):
        self.sock.close()

    def ask(self, name, version, **fields):
        """The answer's message."""
        known = frames.api(name)
        self.send(name, version, **fields)
        frame = self._exactly(struct.unpack(">i", self._exactly(4))[0])
        return frames.parse_response(known, version, frame).message

    def send(self, name, version, **fields):
        self.sock.sendall(frames.request_frame(frames.api(name), version, next(self._numbers), fields))

    def _exactly(self, size):
        parts = bytearray()
        while len(parts) < size:
            data = self.sock.recv(size - len(parts))
            if not data:
                raise ConnectionError("The broker closed the connection")
            parts += data
        return bytes(parts)


def ask(address, name, version, **fields):
    """The answer to a request over a connection of its own."""
    with contextlib.closing(Raw(*address)) as raw:
        return raw.ask(name, version, **fields)


def fetch(
    ask,
    topic,
    offset,
    *,
    version=12,
    partition=0,
    leader_epoch=-1,
    last_epoch=-1,
    isolation_level=0,
    max_bytes=1 << 20,
    max_wait_ms=0,
    **more,
):
    """What `ask(name, version, **fields)` gets of one partition."""
    part = {
        "partition": partition,
        "current_leader_epoch": leader_epoch,
        "fetch_offset": offset,
        "last_fetched_epoch": last_epoch,
        "log_start_offset": -1,
        "partition_max_bytes": max_bytes,
    }
    answer = ask(
        "Fetch",
        version,
        replica_id=-1,
        max_wait_ms=max_wait_ms,
        min_bytes=1 if max_wait_ms else 0,
        max_bytes=max_bytes,
        isolation_level=isolation_level,
        session_id=0,
        session_epoch=-1,
        topics=[{"topic": topic, "partitions": [part]}],
        forgotten_topics_data=[],
        **more,
    )
    return answer.responses[0].partitions[0]


def make_batch(
    *values, pid=-1, epoch=-1, seq=-1, timestamp=None, now_ms=None, transactional=False, compression=0
):
    """One batch's bytes."""
    made = batch.encode(
        [None] * len(values),
        [value if isinstance(value, bytes) else str(value).encode() for value in values],
        timestamps=now_ms if timestamp is None else timestamp,
        compression=batch.Compression(compression),
    )
    batch.stamp_identity(made, pid, epoch, seq, transactional=transactional)
    return bytes(made)
