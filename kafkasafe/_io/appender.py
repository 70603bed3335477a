"""One task's appends to the partitions of an open transaction (or, without a transactional id, of none).

The task does not own the transaction, it only has a `Grant`. On each partition its batches go out one at a time, so
that a resent batch is always the newest that the leader knows, which it recognises even after a restart.

The claim. Sequences begin at 0 with every transaction, so two attempts of one task would both begin at 0, and a leader
takes a batch with the same sequences for a repetition *whatever is in it*: the second attempt would be told success for
bytes that were dropped. Speculation, a stage that is run again while its old tasks still live, and an executor that was
given up too early all make such attempts. So the first batch on each partition is a small one whose header holds a
number that only this attempt knows (its base timestamp: records' timestamps are stored relative to it, readers see no
difference). After its acknowledgement the header is read back from the log. If another number stands there, another
attempt was first, and this one ends before it has sent anything else.

Batches that are larger than the topic's `max.message.bytes` are divided, on the task's thread; what is refused once is
the size that later batches for the topic are divided to before they are sent.

Threads: `append` and `finish` belong to one thread; replies come on the network thread, which also sends the next batch
so that the wire does not wait for the task to encode.
"""

from __future__ import annotations

import collections
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from kafka.errors import ProducerFencedError, for_code

from kafkasafe._core import batch
from kafkasafe._core.arrow_pack import divide
from kafkasafe._core.txn import Grant, Report
from kafkasafe._io.inquiry import pause_s
from kafkasafe._io.transport import Transport
from kafkasafe.classification import classify
from kafkasafe.cluster.api import Failure, HeadersFetched, ProduceReply, ProduceRequest
from kafkasafe.errors import RejectedError, SparkError, WaitTimeoutError
from kafkasafe.logs import EventLog

__all__ = ["CLAIM_ROWS", "Appender", "FencedError", "RestartError", "claim_base"]

log = EventLog("spark")

CLAIM_ROWS: Final = 64
"""Records of a first batch: each costs five bytes more, and the batch is read back."""

_CLAIM_RANGE_MS: Final = 1 << 34
_FENCED: Final = frozenset({47, 90})
# OUT_OF_ORDER_SEQUENCE_NUMBER, DUPLICATE_SEQUENCE_NUMBER, INVALID_TXN_STATE, INVALID_PRODUCER_ID_MAPPING,
# UNKNOWN_PRODUCER_ID, TRANSACTION_ABORTABLE: this transaction is spoilt, the next one need not be.
_SPOILT: Final = frozenset({45, 46, 48, 49, 59, 120})
_TOO_LARGE: Final = 10
_POLL_S: Final = 0.5


class RestartError(SparkError):
    """This transaction cannot be filled any more. Nothing of it is visible; a new one can be begun."""


class FencedError(SparkError, ProducerFencedError):
    """A newer epoch of the transactional id was granted: another owner writes, or the transaction timed out."""


def claim_base(timestamp: int) -> int:
    """A base timestamp for a first batch, one that nobody else chooses."""
    return timestamp - 1 - random.randrange(_CLAIM_RANGE_MS)


@dataclass(slots=True)
class _Place:
    """A partition.

    Invariant: `sending` is the batch in flight, or in its pause, or being read back; the batches behind it wait.
    """

    topic: str
    partition: int
    waiting: collections.deque[bytearray] = field(default_factory=collections.deque)
    sending: bytearray | None = None
    in_flight: bool = False
    too_large: bool = False  # `sending` is to be divided first
    claimed: bool = False
    claim_at: int = -1  # where the first batch was acknowledged, until it has been read back
    sequence: int = 0
    failures: int = 0
    again_at: float = 0.0
    give_up_at: float = 0.0
    error: BaseException | None = None  # of the last try


class Appender:
    """Appends batches under a grant and reports what it appended.

    Args:
        transport: Started; stays the caller's.
        grant: Of the transaction. The partitions must be part of it. With an empty transactional id: an idempotent
            producer's own id and epoch, no transaction.
        attempt: Number of the task's attempt.
        delivery_timeout_s: How long one batch may take.
        request_timeout_ms: How long the broker may wait for its replicas.
        buffer_bytes: How many bytes may wait before `append` blocks.
        claims: False where nobody else can have the grant: nothing is read back, and any first batch will do.
        on_acked: Gets (topic, partition, offset of the first record) of each batch that is acknowledged, in order for
            each partition, on the network thread. With `claims` not of a partition's first. Those of a batch that was
            divided are several.
    """

    def __init__(
        self,
        transport: Transport,
        grant: Grant,
        *,
        attempt: int,
        delivery_timeout_s: float,
        request_timeout_ms: int,
        buffer_bytes: int,
        claims: bool = True,
        on_acked: Callable[[str, int, int], None] | None = None,
    ) -> None:
        self._transport = transport
        self._grant = grant
        self._attempt = attempt
        self._delivery_timeout_s = delivery_timeout_s
        self._request_timeout_ms = request_timeout_ms
        self._buffer_bytes = buffer_bytes
        self._claims = claims
        self._on_acked = on_acked
        # Guards everything below. Nothing is called while it is held but `notify`.
        self._changed = threading.Condition()
        self._places: dict[tuple[str, int], _Place] = {}
        self._buffered = 0
        self._most_bytes: dict[str, int] = {}  # by topic: of a batch, since a larger one was refused
        self._error: BaseException | None = None
        self.retries = 0
        self.bytes = 0

    def has(self, topic: str, partition: int) -> bool:
        """Whether something was appended to the partition: if not, the next batch is its claim."""
        return (topic, partition) in self._places

    def append(self, topic: str, partition: int, data: bytearray) -> None:
        """Takes a batch, in order; it goes out behind those that were taken before.

        Args:
            topic: Topic name.
            partition: Partition number.
            data: One batch, base offset 0; stamped here. The first one of a partition has a base timestamp of
                `claim_base`.

        Raises:
            RestartError: As `finish`; so do the others.
        """
        with self._changed:
            place = self._places.get((topic, partition))
            if place is None:
                place = self._places[topic, partition] = _Place(topic, partition, claimed=not self._claims)
            self.bytes += len(data)
        header = batch.read_header(data)
        batch.stamp_identity(
            data,
            self._grant.producer_id,
            self._grant.epoch,
            place.sequence,
            transactional=bool(self._grant.transactional_id),
        )
        place.sequence += header.count
        with self._changed:
            place.waiting.append(data)
            self._buffered += len(data)
        self._go_on(place)
        self._wait(lambda: self._buffered <= self._buffer_bytes)

    def finish(self) -> list[Report]:
        """Waits until everything is acknowledged by all in-sync replicas.

        Raises:
            RestartError: Another attempt writes to a partition, or the transaction is spoilt.
            FencedError: The grant is not valid any more.
            RejectedError: The cluster refuses a batch for good.
            KafkaError: Another error that no retry helps; KafkaTimeoutError after `delivery_timeout_s`.
        """
        self._wait(lambda: self._buffered == 0)
        return [
            Report(topic, partition, place.sequence, self._attempt)
            for (topic, partition), place in self._places.items()
        ]

    # --- on either thread ---

    def _go_on(self, place: _Place) -> None:
        """Sends what is due on the partition, if nothing is on its way."""
        with self._changed:
            if (
                self._error is not None
                or place.in_flight
                or place.too_large
                or time.monotonic() < place.again_at
            ):
                return
            if place.sending is None:
                if not place.waiting:
                    return
                place.sending = place.waiting.popleft()
                place.give_up_at = time.monotonic() + self._delivery_timeout_s
                if len(place.sending) > self._most_bytes.get(place.topic, len(place.sending)):
                    place.too_large = batch.read_header(place.sending).count > 1
                    if place.too_large:
                        self._changed.notify_all()
                        return
            place.in_flight = True
            data, claim_at = place.sending, place.claim_at
        if claim_at >= 0:
            self._transport.fetch_headers(
                place.topic, place.partition, claim_at, 1, lambda answer: self._on_claim(place, answer)
            )
            return
        self._transport.produce(
            [ProduceRequest(place, place.topic, place.partition, data)],
            -1,
            self._request_timeout_ms,
            self._on_reply,
            transactional_id=self._grant.transactional_id or None,
        )

    # --- on the network thread ---

    def _on_reply(self, place: _Place, reply: ProduceReply | Failure) -> None:
        with self._changed:
            place.in_flight = False
            if isinstance(reply, Failure):
                self._failed(place, reply.error, "produce")
            elif reply.error_code:
                error: Any = for_code(reply.error_code)(
                    f"{place.topic}-{place.partition}: {reply.error_message or 'Produce'}"
                )
                error.errno = reply.error_code
                self._failed(place, error, "produce")
            elif reply.base_offset < 0 and (self._on_acked is not None or not place.claimed):
                self._fail(RestartError(f"{place.topic}-{place.partition} did not say where a batch went"))
            elif place.claimed:
                if self._on_acked is not None:
                    self._on_acked(place.topic, place.partition, reply.base_offset)
                self._acked(place)
            else:
                place.claim_at, place.failures, place.again_at = reply.base_offset, 0, 0.0
        self._go_on(place)

    def _on_claim(self, place: _Place, answer: HeadersFetched | Failure) -> None:
        with self._changed:
            place.in_flight = False
            if isinstance(answer, Failure):
                self._failed(place, answer.error, "fetch")
            elif answer.error_code:
                error: Any = for_code(answer.error_code)(f"{place.topic}-{place.partition}: Fetch")
                error.errno = answer.error_code
                self._failed(place, error, "fetch")
            elif not answer.headers:
                # Acknowledged, but this leader's high watermark is not there yet (KIP-207).
                self._failed(place, for_code(78)(f"{place.topic}-{place.partition}: Fetch"), "fetch")
            else:
                self._judge_claim(place, answer.headers[0])
        self._go_on(place)

    # --- with the lock held ---

    def _judge_claim(self, place: _Place, found: batch.BatchHeader) -> None:
        assert place.sending is not None  # noqa: S101  # it is what was read back
        ours = batch.read_header(place.sending)
        where = f"{place.topic}-{place.partition}"
        if found.compression is not ours.compression:
            self._fail(
                RejectedError(
                    f"The broker recompresses {where} as {found.compression.name.lower()}: whose batch it is cannot"
                    " be seen then. Set kafka.compression.type to the topic's compression.type, or that to 'producer'."
                )
            )
        elif (found.producer_id, found.producer_epoch, found.base_sequence, found.base_timestamp) != (
            ours.producer_id,
            ours.producer_epoch,
            ours.base_sequence,
            ours.base_timestamp,
        ):
            self._fail(RestartError(f"Another attempt of this task writes to {where}"))
        else:
            place.claimed, place.claim_at = True, -1
            self._acked(place)

    def _acked(self, place: _Place) -> None:
        assert place.sending is not None  # noqa: S101  # it is what was acknowledged
        self._buffered -= len(place.sending)
        place.sending, place.failures, place.again_at, place.error = None, 0, 0.0, None
        self._changed.notify_all()

    def _failed(self, place: _Place, error: BaseException, api: str) -> None:
        code = getattr(error, "errno", None)
        where = f"{place.topic}-{place.partition}"
        verdict = classify(error, api)
        if code in _FENCED:
            self._fail(FencedError(f"{where}: {error}"))
        elif code in _SPOILT:
            self._fail(RestartError(f"{where}: {error}"))
        elif code == _TOO_LARGE and place.sending is not None and api == "produce":
            self._refused_size(place, place.sending)
        elif not verdict.retriable:
            self._fail(
                RejectedError(
                    f"{where}: {error}. {verdict.explanation}",
                    code=code if isinstance(code, int) else -1,
                    reason=str(error),
                )
                if isinstance(error, Exception)
                else error
            )
        else:
            self.retries += 1
            place.error = error
            place.again_at = time.monotonic() + pause_s(place.failures)
            place.failures += 1
            if verdict.refresh_metadata:
                self._transport.refresh_metadata([place.topic], lambda _: None)
            self._changed.notify_all()

    def _refused_size(self, place: _Place, data: bytearray) -> None:
        if batch.read_header(data).count == 1:
            self._fail(
                RejectedError(
                    f"{place.topic}-{place.partition}: a record of {len(data)} bytes, as it was sent, is larger than"
                    " the topic's max.message.bytes: raise that, or drop the row.",
                    code=_TOO_LARGE,
                    reason="larger than the topic's max.message.bytes",
                )
            )
            return
        half = len(data) // 2
        if self._most_bytes.setdefault(place.topic, half) == half:
            log.info(
                "Batches for %s are divided: its max.message.bytes is below their %d bytes. A kafka.batch.size that is"
                " not larger than that spares it.",
                place.topic,
                len(data),
                topic=place.topic,
                event="batch_divided",
            )
        self._most_bytes[place.topic] = min(half, self._most_bytes[place.topic])
        place.too_large = True
        self._changed.notify_all()

    def _fail(self, error: BaseException) -> None:
        self._error = self._error or error
        self._changed.notify_all()

    # --- on the task's thread ---

    def _wait(self, done: Any) -> None:
        while True:
            due: list[_Place] = []
            with self._changed:
                if self._error is not None:
                    raise self._error
                now = time.monotonic()
                for place in self._places.values():
                    if place.sending is None or place.in_flight:
                        continue
                    if now > place.give_up_at:
                        raise WaitTimeoutError(
                            f"{place.topic}-{place.partition} took no batch within {self._delivery_timeout_s:g} s"
                            f" (kafka.delivery.timeout.ms); last error: {place.error!r}"
                        )
                    if place.again_at <= now:
                        due.append(place)
                if not due:
                    if done():
                        return
                    pauses = [place.again_at - now for place in self._places.values() if place.again_at > now]
                    self._changed.wait(min([_POLL_S, *pauses]))
                    continue
            for place in due:
                if place.too_large:
                    self._divide(place)
                self._go_on(place)

    def _divide(self, place: _Place) -> None:
        data = place.sending
        assert data is not None  # noqa: S101  # only this thread takes it away
        most = self._most_bytes[place.topic]
        header = batch.read_header(data)
        parts = divide(data, max(2, -(-len(data) // most)))
        sequence = header.base_sequence
        for part in parts:
            batch.stamp_identity(
                part,
                self._grant.producer_id,
                self._grant.epoch,
                sequence,
                transactional=bool(self._grant.transactional_id),
            )
            sequence += batch.read_header(part).count
        with self._changed:
            place.waiting.extendleft(reversed(parts))
            self._buffered += sum(map(len, parts)) - len(data)
            place.sending, place.too_large = None, False
