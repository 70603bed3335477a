"""kafka-python's connection manager, with another way of opening connections.

The manager looks up names on other threads, opens sockets, and closes the sockets of failed connections.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
from collections.abc import Mapping
from typing import Any

import kafka.errors as kafka_errors
from kafka.future import Future
from kafka.net.inet import KafkaNetSocket
from kafka.net.manager import KafkaConnectionManager

from kafkasafe.kafkapython.sockets import DirectPlainSocket, DirectTlsSocket, PlainSocket, TlsSocket
from kafkasafe.logs import apart


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


class suppress_closed:  # noqa: N801  # reads as contextlib.suppress
    """Suppresses the errors that a closed or crashed event loop raises."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: object, trace: object) -> bool:
        return isinstance(error, Exception)


class Manager(KafkaConnectionManager):
    """Makes connections without leaking sockets, and without letting the I/O thread wait for a name server.

    kafka-python 3.0.12 leaves the socket of a failed attempt to the garbage collector, looks up names on the I/O
    thread, and has no time limit for a TLS handshake.
    """

    plain: type[Any] = PlainSocket
    tls: type[Any] = TlsSocket

    async def _build_transport(self, node: Any, timeout_at: float | None = None) -> Any:
        sock = await self._open_socket(node.host, node.port, timeout_at)
        transport: Any = None
        kind: Any = self.tls if self.ssl_enabled else self.plain
        try:
            options = {key: value for key, value in self.config.items() if key.startswith("ssl_")}
            transport = kind(self._net, sock, host=node.host, **(options if self.ssl_enabled else {}))
            await transport.handshake(timeout_at)
        except BaseException as error:
            # Also handle GeneratorExit, with which a closing loop ends its tasks.
            if transport is not None:
                transport.close()
            sock.close()
            if isinstance(error, Exception):
                raise kafka_errors.KafkaConnectionError(f"Handshake failed: {error}") from error
            raise
        return transport

    async def _open_socket(self, host: str, port: int, timeout_at: float | None) -> Any:
        factory, addresses = await self._resolve(host, port, timeout_at)
        failure = kafka_errors.KafkaConnectionError(f"No address found for {host}")
        opened: list[socket.socket] = []
        make = factory.socket

        def recorded(*args: Any) -> Any:
            opened.append(make(*args))
            return opened[-1]

        factory.socket = recorded
        for address in addresses:
            try:
                return await factory.connect(
                    self._net, address, self.config["socket_options"], timeout_at=timeout_at
                )
            except BaseException as error:
                for sock in opened:
                    sock.close()
                opened.clear()
                if isinstance(error, kafka_errors.KafkaTimeoutError):
                    raise kafka_errors.KafkaConnectionError(
                        f"Connecting to {host}:{port} timed out"
                    ) from error
                if not isinstance(error, Exception):
                    raise
                failure = kafka_errors.KafkaConnectionError(f"{host}:{port}: {error}")
        raise failure

    async def _resolve(self, host: str, port: int, timeout_at: float | None) -> tuple[Any, list[Any]]:
        def look_up() -> tuple[Any, list[Any]]:
            factory = KafkaNetSocket(self.config["proxy_url"])
            return factory, factory.dns_lookup(host, port)

        if self.config["proxy_url"] is None and _is_address(host):
            return look_up()
        future = Future()

        def settle(result: Any) -> None:
            if not future.is_done:
                if isinstance(result, BaseException):
                    future.failure(result)
                else:
                    future.success(result)

        @apart()
        def work() -> None:
            try:
                result: Any = look_up()
            except Exception as error:
                result = kafka_errors.KafkaConnectionError(f"Looking up {host}: {error}")
            # If the loop was closed meanwhile, no caller waits for the answer.
            with suppress_closed():
                self._net.call_soon_threadsafe(lambda: settle(result))

        threading.Thread(target=work, name=f"kafkasafe-lookup-{host}", daemon=True).start()
        timer = None
        if timeout_at is not None:
            late = kafka_errors.KafkaConnectionError(f"Looking up {host} timed out")
            timer = self._net.call_at(timeout_at, lambda: settle(late))
        try:
            result: tuple[Any, list[Any]] = await future
        finally:
            if timer is not None:
                self._net.cancel(timer)
        return result


class DirectManager(Manager):
    """A connection manager for a `Loop`. It uses only the broker addresses that the client gives it."""

    plain = DirectPlainSocket
    tls = DirectTlsSocket

    def get_connection(self, node_id: Any, *args: Any, **options: Any) -> Any:
        """Like kafka-python's method, but the connection uses the API versions that its own broker supports now.

        kafka-python 3.0.12 asks only the first bootstrap broker for its API versions, when the client first connects,
        and never uses newer versions. So after an upgrade of the brokers, a client would use old versions until it is
        opened again, and could not use the transactions of `transaction.version` 2.
        """
        parent: Any = super()
        known = self._conns.get(node_id)
        conn = parent.get_connection(node_id, *args, **options)
        if conn is not known and self.config["api_version"] is None:
            conn.broker_version_data = None  # a new connection must ask its own broker
        return conn

    def take_brokers(self, brokers: dict[int, Any]) -> None:
        """Replaces the address book. Other threads see only complete answers, because the dict is replaced, and never
        changed.
        """
        self.cluster._brokers = brokers

    def known_brokers(self) -> Mapping[int, Any]:
        """Return the address book, by node id."""
        found: Mapping[int, Any] = self.cluster._brokers
        return found

    def refuse(self) -> None:
        """From now on, refuses to make connections."""
        self.closed = True
