"""`kafkasafe.testing.tcp_proxy`, between a client and a server that echoes."""

from __future__ import annotations

import contextlib
import gc
import random
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from servers import Server
from waiting import until

from kafkasafe.testing.tcp_proxy import TcpProxy


class TestProxy:
    @pytest.fixture
    def echo(self) -> Iterator[Server]:
        def serve(conn: socket.socket) -> None:
            def run() -> None:
                with contextlib.suppress(OSError):
                    while data := conn.recv(65536):
                        conn.sendall(data)
                with contextlib.suppress(OSError):
                    conn.shutdown(socket.SHUT_WR)

            threading.Thread(target=run, daemon=True).start()

        with Server(serve) as server:
            yield server

    @staticmethod
    def connect(proxy: TcpProxy) -> socket.socket:
        conn = socket.create_connection(("127.0.0.1", proxy.port), 60)
        conn.settimeout(60)
        return conn

    @staticmethod
    def assert_ended(conn: socket.socket) -> None:
        with contextlib.suppress(ConnectionError):
            while conn.recv(65536):
                pass

    @staticmethod
    def read(conn: socket.socket, count: int) -> bytes:
        data = b""
        while len(data) < count:
            chunk = conn.recv(65536)
            if not chunk:
                break
            data += chunk
        return data

    def test_passes_everything_and_the_end(self, echo: Server) -> None:
        with TcpProxy(echo.port) as proxy, self.connect(proxy) as conn:
            payload = random.Random(2).randbytes(9_000_000)
            writer = threading.Thread(target=lambda: (conn.sendall(payload), conn.shutdown(socket.SHUT_WR)))
            writer.start()
            assert self.read(conn, len(payload)) == payload
            assert conn.recv(1) == b"", "the end comes through as well"
            writer.join()
            assert proxy.request_bytes == proxy.response_bytes == len(payload)
            assert proxy.accepted == 1
            assert "->" in repr(proxy)

    def test_its_port_is_known_before_its_target(self, echo: Server) -> None:
        proxy = TcpProxy()
        with proxy:
            # The reset may come before or after connecting has returned.
            with contextlib.suppress(ConnectionResetError), self.connect(proxy) as conn:
                self.assert_ended(conn)
            proxy.target_port = echo.port
            with self.connect(proxy) as conn:
                conn.sendall(b"x")
                assert conn.recv(1) == b"x"
        proxy.close()
        with pytest.raises(RuntimeError):
            proxy.cut()

    def test_its_thread_may_notice_its_end_before_it_is_woken(self) -> None:
        class Noticed(TcpProxy):
            def _wake(self) -> None:
                if self._closed:
                    with contextlib.suppress(ConnectionError):
                        socket.create_connection(("127.0.0.1", self.port), 60).close()
                    until(lambda: self._thread is not None and not self._thread.is_alive())
                super()._wake()

        with Noticed():
            pass

    def test_a_port_that_is_taken(self, echo: Server) -> None:
        with TcpProxy(echo.port) as proxy:
            for port in (echo.port, proxy.port):
                with pytest.raises(OSError, match="in use"):
                    TcpProxy(port=port)

    def test_a_proxy_never_started_leaves_nothing_open(self) -> None:
        TcpProxy().close()
        gc.collect()

    def test_drops(self, echo: Server) -> None:
        with TcpProxy(echo.port) as proxy, self.connect(proxy) as conn:
            proxy.drop_responses()
            conn.sendall(b"abc")
            until(lambda: proxy.dropped_bytes == 3)
            proxy.drop_responses(on=False)
            self.assert_ended(conn)
            with self.connect(proxy) as second:
                proxy.drop_requests()
                second.sendall(b"abcd")
                until(lambda: proxy.dropped_bytes == 7)
                assert proxy.response_bytes == 3

    def test_stall_and_delay(self, echo: Server) -> None:
        with TcpProxy(echo.port) as proxy, self.connect(proxy) as conn:
            proxy.stall()
            conn.sendall(b"abc")
            conn.settimeout(0.2)
            with pytest.raises(TimeoutError):
                conn.recv(1)
            assert "stalled" in repr(proxy)
            proxy.stall(on=False)
            conn.settimeout(60)
            assert self.read(conn, 3) == b"abc"
            proxy.delay(response_s=0.2, request_s=0.1)
            started = time.monotonic()
            conn.sendall(b"def")
            assert self.read(conn, 3) == b"def"
            assert 0.25 < time.monotonic() - started < 30

    def test_cuts(self, echo: Server) -> None:
        with TcpProxy(echo.port) as proxy:
            with self.connect(proxy) as conn:
                conn.sendall(b"a")
                assert conn.recv(1) == b"a"
                assert proxy.connections == 1
                assert proxy.cut() == 1
                self.assert_ended(conn)
            with self.connect(proxy) as conn:
                proxy.cut_after(5)
                conn.sendall(b"0123456789")
                self.assert_ended(conn)
            assert proxy.connections == 0

    def test_refuses(self, echo: Server) -> None:
        with TcpProxy(echo.port) as proxy:
            proxy.refuse()
            with pytest.raises(ConnectionRefusedError):
                self.connect(proxy)
            with socket.socket() as other, pytest.raises(OSError, match="in use"):
                other.bind(("127.0.0.1", proxy.port))  # it stays the proxy's
            proxy.restore()
            with self.connect(proxy) as conn:
                conn.sendall(b"a")
                assert conn.recv(1) == b"a"
