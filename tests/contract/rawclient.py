"""A client that sends exactly the request it is told to, and returns the answer as it came."""

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
