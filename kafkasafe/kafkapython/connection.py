"""A connection of kafka-python that implements the client's interface `kafkasafe.cluster.network.Connection`."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any, Final

import kafka.errors as kafka_errors

from kafkasafe.cluster.network import ManyOffsets, ProduceBatches, Sendable, Written
from kafkasafe.cluster.terms import NodeId
from kafkasafe.kafkapython import requests
from kafkasafe.kafkapython.offsets_wire import OffsetsHeader, encode_offsets
from kafkasafe.kafkapython.wire import Frame, ProduceHeader, encode_produce

_NEVER_MS: Final = 1e12


class DirectConnection:
    """A connection to a broker, which is not established yet when the constructor returns. `Connection` describes the
    methods.

    Raises:
        KafkaError: The broker is unknown, or an option is unusable.
    """

    __slots__ = ("_conn", "_versions")

    def __init__(self, manager: Any, node_id: NodeId) -> None:
        # Undo kafka-python's back-off, because the client has its own. kafka-python 3.0.12 resets its back-off too
        # early, before a connection is initialised, and never tries a broker again after one failed authentication.
        manager.reset_backoff(node_id)
        manager._auth_failures.pop(node_id, None)
        self._conn: Any = manager.get_connection(node_id, refresh_metadata_on_err=False)
        self._versions: dict[tuple[str, int, int], int] = {}

    def watch(self, on_ready: Callable[[], None], on_closed: Callable[[BaseException | None], None]) -> None:
        self._conn.init_future.add_callback(lambda _: on_ready())
        self._conn.close_future.add_both(
            lambda error: on_closed(error if isinstance(error, BaseException) else None)
        )

    @property
    def connected(self) -> bool:
        connected: bool = self._conn.connected
        return connected

    @property
    def closed(self) -> bool:
        closed: bool = self._conn.closed
        return closed

    @property
    def resumes_at(self) -> float | None:
        """See `Connection`. The connection pauses while the broker throttles it, or while it authenticates again
        (KIP-368).
        """
        conn = self._conn
        if not conn.paused and not conn._reauth.is_reauthenticating:
            return None
        found: float = conn._throttle_time or 0.0
        return found

    @property
    def last_read(self) -> float:
        transport = self._conn.transport
        read: float = time.monotonic() if transport is None else transport.last_read
        return read

    @property
    def last_write(self) -> float:
        transport = self._conn.transport
        written: float = time.monotonic() if transport is None else transport.last_write
        return written

    def version(self, name: str, minimum: int, maximum: int) -> int:
        wanted = name, minimum, maximum
        known = self._versions.get(wanted)
        if known is None:
            try:
                known = self._conn.broker_version_data.api_version(
                    requests.kind(name), min_version=minimum, max_version=maximum
                )
            except kafka_errors.IncompatibleBrokerVersion as error:
                raise kafka_errors.UnsupportedVersionError(str(error)) from error
            self._versions[wanted] = known
        return known

    def send(
        self,
        request: Sendable,
        written: Written,
        answered: Callable[[Any], None],
        failed: Callable[[BaseException, bool], None],
    ) -> None:
        conn = self._conn
        frame: Frame | None = None
        try:
            frame = _frame(request)
            # Give kafka-python no time limit: the time would begin now, not when the request is written.
            future = conn.send_request(frame, request_timeout_ms=_NEVER_MS)
            if frame.encoded and conn.transport is not None:
                if frame.rest:
                    conn.transport.writelines(frame.rest)
                    frame.rest.clear()
                conn.transport.mark(written)
        except Exception as error:  # every caller must get an answer
            failed(error, frame is not None and frame.encoded)
            return

        def ended(error: BaseException) -> None:
            if isinstance(error, kafka_errors.Cancelled):
                error = kafka_errors.KafkaConnectionError("The connection was closed")
            failed(error, frame.encoded)

        # One call of `_add_cb_eb` is cheaper than calls of `add_callback` and `add_errback`.
        future._add_cb_eb(answered, ended)

    def close(self, error: BaseException | None = None) -> None:
        conn = self._conn
        if error is None and conn.transport is not None:
            # In kafka-python 3.0.12, a closed transport stays open until all its bytes are written, so a hanging broker
            # would keep the transport open for ever.
            conn.transport._write_buffer.clear()
        conn.close(error)


def _frame(request: Sendable) -> Frame:
    version = request.version
    if isinstance(request, ProduceBatches):
        what = f"ProduceRequest({len(request.batches)} batches)"
        return Frame(what, version, functools.partial(_produce, request))
    if isinstance(request, ManyOffsets):
        return Frame("ListOffsetsRequest", version, functools.partial(_offsets, request))
    made = requests.made(request.name, request.fields)

    def encoder(correlation_id: int, client_id: str) -> tuple[Any, list[Any]]:
        made.API_VERSION = version
        made.with_header(correlation_id=correlation_id, client_id=client_id)
        return made.header, [made.encode(framed=True, header=True)]

    return Frame(f"{request.name}Request", version, encoder)


def _produce(request: ProduceBatches, correlation_id: int, client_id: str) -> tuple[Any, list[Any]]:
    parts = encode_produce(
        request.version,
        correlation_id,
        client_id,
        request.acks,
        request.timeout_ms,
        request.batches,
        request.transactional_id,
        request.topic_ids,
    )
    request.batches.clear()
    return ProduceHeader(request.version, correlation_id, request.topic_ids), parts


def _offsets(request: ManyOffsets, correlation_id: int, client_id: str) -> tuple[Any, list[Any]]:
    encoded = encode_offsets(
        request.version,
        correlation_id,
        client_id,
        request.numbers,
        request.timestamp,
        request.isolation_level,
        request.timeout_ms,
    )
    return OffsetsHeader(request.version, correlation_id), [encoded]
