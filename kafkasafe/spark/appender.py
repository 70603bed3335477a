"""Appends the batches of one task to partitions, in an open transaction or without a transaction.

The task does not own the transaction; it only has a `WriterIdentity`. If the identity has no transactional id, there is
no transaction. On each partition the task sends one batch at a time. A resent batch is therefore always the newest
batch of its producer in the leader's log, and the leader recognises the batch even after a restart.

The first batch of a task on a partition is its *claim* of the partition. The claim solves this problem:

1. Attempts 0 and 1 of one task run at the same time. Possible causes: speculation, a stage that Spark runs again while
   its old tasks are still running, or an executor that Spark gave up too early.
2. Sequences begin at 0 in every transaction, so both attempts begin at 0 on the same partition.
3. Attempt 0 appends its first batch.
4. Attempt 1 sends its first batch, with other records. The leader does not compare records: it treats the batch as a
   repetition, drops it, and answers with success.

So the claim is small, and its header holds a number that only this attempt knows. The number is the base timestamp: the
records' timestamps are stored relative to it, so readers see no difference. Once the claim is acknowledged, the task
reads the header back from the log. A different number shows that another attempt was first. Then this attempt ends
before it sends anything else.

A batch that is larger than the topic's `max.message.bytes` is divided on the task's thread. Once the broker has refused
a batch because of its size, later batches for the topic are divided into parts of at most half that size before they
are sent.

Threads: one thread calls `append` and `finish`. Replies arrive on the network thread, which also sends the next batch.
So the next batch does not wait while the task encodes.
"""

from __future__ import annotations

import collections
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from kafka.errors import ProducerFencedError

from kafkasafe.classification import classify
from kafkasafe.cluster.api import Failure, HeadersFetched, ProduceReply, ProduceRequest
from kafkasafe.cluster.client import Transport
from kafkasafe.cluster.inquiry import pause_s
from kafkasafe.codes.verdicts import FENCED_CODES, SPOILT_CODES
from kafkasafe.errors import RejectedError, SparkError, WaitTimeoutError
from kafkasafe.logs import EventLog
from kafkasafe.record import batch
from kafkasafe.record.arrow_pack import divide
from kafkasafe.spark.sink_options import SinkOptions
from kafkasafe.spark.transactions import coded, identity_of
from kafkasafe.spark.txn import Report, WriterIdentity

log = EventLog("spark")

CLAIM_ROWS: Final = 64
"""Largest number of records in a claim. Claims are kept small for two reasons: each record takes five bytes more in a
claim than in another batch, and the task reads the claim back.
"""

_CLAIM_RANGE_MS: Final = 1 << 34
_TOO_LARGE: Final = 10
_POLL_S: Final = 0.5


class RestartError(SparkError):
    """This transaction can take no more records. None of its records is visible, and a new transaction can begin."""


class FencedError(SparkError, ProducerFencedError):
    """The transactional id has a newer epoch: another owner writes, or the transaction timed out."""


def claim_base(timestamp: int) -> int:
    """Returns a random base timestamp for a claim. Other attempts almost certainly choose other base timestamps."""
    return timestamp - 1 - random.randrange(_CLAIM_RANGE_MS)


@dataclass(slots=True)
class _Place:
    """The state of one partition.

    Invariant: `sending` is the current batch. This batch is in flight, waits for a retry, or is being read back. Later
    batches are in `waiting`.
    """

    topic: str
    partition: int
    waiting: collections.deque[bytearray] = field(default_factory=collections.deque)
    sending: bytearray | None = None
    in_flight: bool = False
    too_large: bool = False  # `sending` must be divided before it is sent
    claimed: bool = False
    claim_at: int = -1  # offset of the claim, from its acknowledgement until it is read back
    sequence: int = 0
    failures: int = 0
    again_at: float = 0.0
    give_up_at: float = 0.0
    error: BaseException | None = None  # of the last attempt


class Appender:
    """Appends batches under a grant and reports what it appended.

    Args:
        transport: A started transport. The caller still owns it and closes it.
        grant: The transaction's grant. The transaction must already contain the partitions. If the grant's
            transactional id is empty, the appender uses no transaction, and the grant holds an idempotent producer's
            own id and epoch.
        options: Options of the sink or writer. The appender uses three of them: the time limit for one batch, the time
            limit for a broker's wait for its replicas, and the number of pending bytes above which `append` blocks.
        claims: False if no other attempt can have the grant. In that case the appender writes no claims, and reads no
            batch back.
        on_acked: Called on the network thread with (topic, partition, offset of the first record) of each acknowledged
            batch, in order for each partition. The function is not called for claims. For a divided batch, the function
            is called once for each part.
    """

    def __init__(
        self,
        transport: Transport,
        grant: WriterIdentity,
        options: SinkOptions,
        *,
        claims: bool = True,
        on_acked: Callable[[str, int, int], None] | None = None,
    ) -> None:
        self._transport = transport
        self._grant = grant
        self._options = options
        self._claims = claims
        self._on_acked = on_acked
        # Guards all fields below. `on_acked` is called while this lock is held.
        self._changed = threading.Condition()
        self._places: dict[tuple[str, int], _Place] = {}
        self._buffered = 0
        self._most_bytes: dict[str, int] = {}  # topic → size limit of batches, set after a refusal
        self._error: BaseException | None = None
        self.retries = 0
        self.bytes = 0

    def append(self, topic: str, partition: int, data: bytearray) -> None:
        """Queues a batch; the batches of a partition are sent in order.

        Args:
            topic: Topic name.
            partition: Partition number.
            data: One batch with base offset 0. `append` fills in the producer id, the epoch and the sequence. If the
                batch is a claim, its base timestamp must come from `claim_base`.

        Raises:
            RestartError: See `finish`. This method also raises all other errors that `finish` raises.
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
        self._wait(lambda: self._buffered <= self._options.buffer_bytes)

    def finish(self) -> list[Report]:
        """Waits until all in-sync replicas have acknowledged every batch.

        Raises:
            RestartError: Another attempt writes to a partition, or the transaction must be aborted.
            FencedError: The grant has become invalid.
            RejectedError: The cluster rejects a batch permanently.
            KafkaError: Another error that a retry cannot fix; KafkaTimeoutError after `delivery_timeout_s`.
        """
        self._wait(lambda: self._buffered == 0)
        return [Report(*key, place.sequence) for key, place in self._places.items()]

    # --- on either thread ---

    def _go_on(self, place: _Place) -> None:
        """Sends the partition's next request if it is due and none is in flight."""
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
                place.give_up_at = time.monotonic() + self._options.delivery_timeout_s
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
            [ProduceRequest(place, place.topic, place.partition, data, transaction=identity_of(self._grant))],
            -1,
            self._options.request_timeout_ms,
            self._on_reply,
        )

    # --- on the network thread ---

    def _on_reply(self, place: _Place, reply: ProduceReply | Failure) -> None:
        with self._changed:
            place.in_flight = False
            if isinstance(reply, Failure):
                self._failed(place, reply.error, "produce")
            elif reply.error_code:
                message = f"{place.topic}-{place.partition}: {reply.error_message or 'Produce'}"
                self._failed(place, coded(reply.error_code, message), "produce")
            elif reply.base_offset < 0 and (self._on_acked is not None or not place.claimed):
                self._fail(
                    RestartError(f"{place.topic}-{place.partition} acknowledged a batch without its offset")
                )
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
                message = f"{place.topic}-{place.partition}: Fetch"
                self._failed(place, coded(answer.error_code, message), "fetch")
            elif not answer.headers:
                # The batch is acknowledged, but this leader's high watermark has not reached the batch yet (KIP-207).
                self._failed(place, coded(78, f"{place.topic}-{place.partition}: Fetch"), "fetch")
            else:
                self._judge_claim(place, answer.headers[0])
        self._go_on(place)

    # --- with the lock held ---

    def _judge_claim(self, place: _Place, found: batch.BatchHeader) -> None:
        assert place.sending is not None  # noqa: S101  # the batch that was read back
        ours = batch.read_header(place.sending)
        where = f"{place.topic}-{place.partition}"
        if found.compression is not ours.compression:
            self._fail(
                RejectedError(
                    f"The broker recompresses {where} as {found.compression.name.lower()}, so the owner of a"
                    " batch cannot be recognised. Set kafka.compression.type to the topic's compression.type, or the"
                    " topic's compression.type to 'producer'."
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
        assert place.sending is not None  # noqa: S101  # the batch that was acknowledged
        self._buffered -= len(place.sending)
        place.sending, place.failures, place.again_at, place.error = None, 0, 0.0, None
        self._changed.notify_all()

    def _failed(self, place: _Place, error: BaseException, api: str) -> None:
        code = getattr(error, "errno", None)
        where = f"{place.topic}-{place.partition}"
        verdict = classify(error, api)
        if code in FENCED_CODES:
            self._fail(FencedError(f"{where}: {error}"))
        elif code in SPOILT_CODES:
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
                    f"{place.topic}-{place.partition}: a record of {len(data)} bytes, as sent, is larger than the"
                    " topic's max.message.bytes. Raise that limit, or drop the row.",
                    code=_TOO_LARGE,
                    reason="larger than the topic's max.message.bytes",
                )
            )
            return
        half = len(data) // 2
        if self._most_bytes.setdefault(place.topic, half) == half:
            log.info(
                "Batches for %s are divided: its max.message.bytes is below their %d bytes. Set kafka.batch.size to at"
                " most max.message.bytes to avoid this.",
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
                            f"{place.topic}-{place.partition} acknowledged no batch within"
                            f" {self._options.delivery_timeout_s:g} s (kafka.delivery.timeout.ms); last error:"
                            f" {place.error!r}"
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
        assert data is not None  # noqa: S101  # only this thread removes it
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
