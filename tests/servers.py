"""A server that treats its connections as a test says."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable


class Server:
    """Accepts connections and treats each as `behaviour` says."""

    def __init__(self, behaviour: Callable[[socket.socket], None]) -> None:
        self.accepted = 0
        self._behaviour = behaviour
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Server:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5)
        for conn in self._open:
            conn.close()

    def _run(self) -> None:
        while True:
            try:
                conn, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            self._open.append(conn)
            with contextlib.suppress(OSError):
                self._behaviour(conn)
