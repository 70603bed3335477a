"""Appends the batches of one task to partitions, in an open transaction or without a transaction.

The driver owns the transaction; a task only has its `WriterIdentity` (producer id and epoch). If the `WriterIdentity`
has no transactional id, there is no transaction. On each partition the task sends one batch at a time. So if a resent
batch is in the leader's log already, it is the newest batch of its producer there, and the leader recognises the
duplicate even after a restart.

The first batch of a task on a partition is its *claim* of the partition. The claim solves this problem:

1. Attempts 0 and 1 of one task run at the same time. Spark starts a second attempt on speculation, when it repeats a
   stage, or when it gave up an executor too early.
2. Sequences begin at 0 in every transaction, so both attempts begin at 0 on the same partition.
3. Attempt 0 appends its first batch.
4. Attempt 1 sends its first batch, with other records. The leader does not compare records: it treats the batch as a
   repetition, drops it, and answers with success.

So the claim is small, and its batch header holds a random base timestamp that only this attempt knows. The records'
timestamps are stored relative to the base timestamp, so readers see no difference. Once the claim is acknowledged, the
task reads the header back from the log. If the base timestamp differs, another attempt was first, and this attempt ends
before it sends anything else.

A batch that is larger than the topic's `max.message.bytes` or `segment.bytes` is divided on the task's thread. After a
broker has refused a batch because of its size, the appender divides later batches for this topic into parts of at most
half that size.

Threads: one thread calls `append` and `finish`. Replies arrive on the network thread, which sends the next batch even
while the task's thread encodes records.
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
from kafkasafe.cluster.api import Cluster, Failure, HeadersFetched, ProduceReply, ProduceRequest
from kafkasafe.cluster.inquiry import coded, pause_s
from kafkasafe.codes.numbers import MESSAGE_TOO_LARGE, OFFSET_NOT_AVAILABLE
from kafkasafe.codes.sets import FENCED_CODES, SPOILT_CODES, TOO_LARGE_CODES
from kafkasafe.errors import RejectedError, SparkError, WaitTimeoutError
from kafkasafe.logs import EventLog
from kafkasafe.record import batch
from kafkasafe.record.arrow_pack import divide
from kafkasafe.spark.sink_options import SinkOptions
from kafkasafe.spark.transactions import identity_of
from kafkasafe.spark.txn import Report, WriterIdentity

log = EventLog("spark")

CLAIM_ROWS: Final = 64
"""Largest number of records in a claim. Claims are kept small for two reasons: each record takes five bytes more in a
claim than in another batch, and the task reads the claim back.
"""

_CLAIM_RANGE_MS: Final = 1 << 34
_POLL_S: Final = 0.5


class RestartError(SparkError):
    """The transaction accepts no more records. None of its records is visible, and the driver can begin a new
    transaction.
    """


class FencedError(SparkError, ProducerFencedError):
    """The transactional id has a newer epoch: another owner writes, or the transaction timed out."""


def claim_base(timestamp: int) -> int:
    """Returns a random base timestamp for a claim. Other attempts almost certainly choose other base timestamps."""
    return timestamp - 1 - random.randrange(_CLAIM_RANGE_MS)


@dataclass(slots=True)
class _Place:
    """The state of one partition. All methods but `stamp` are called with the appender's lock held.

    Invariant: `sending` is the current batch: it is in flight, waits for a retry, or is a claim that the task reads
    back. Later batches are in `waiting`.
    """

    topic: str
    partition: int
    claimed: bool
    sequence: int = 0
    waiting: collections.deque[bytearray] = field(default_factory=collections.deque)
    sending: bytearray | None = None
    in_flight: bool = False
    too_large: bool = False  # `sending` must be divided before it is sent
    claim_at: int = -1  # offset of an acknowledged claim; -1 after the task has read the claim back
    failures: int = 0
    again_at: float = 0.0
    give_up_at: float = 0.0
    error: BaseException | None = None  # of the last attempt

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def current(self) -> bytearray:
        """The current batch. Must not be used while `sending` is None."""
        assert self.sending is not None  # noqa: S101
        return self.sending

    def stamp(self, data: bytearray, grant: WriterIdentity) -> None:
        """Gives a new batch its batch id. Only the task's thread calls this method."""
        self.sequence = _stamp(data, grant, self.sequence)

    def queue(self, data: bytearray) -> None:
        self.waiting.append(data)

    def take_next(self, give_up_at: float, most_bytes: int | None) -> None:
        """Makes the next batch in `waiting` the current batch, unless `sending` already holds one."""
        if self.sending is None and self.waiting:
            self.sending, self.give_up_at = self.waiting.popleft(), give_up_at
            self.too_large = (
                most_bytes is not None
                and len(self.sending) > most_bytes
                and batch.read_header(self.sending).count > 1
            )

    def is_idle(self, now: float) -> bool:
        """Whether no request is in flight, and the pause before a retry is over."""
        return not self.in_flight and self.again_at <= now

    def sent(self) -> None:
        self.in_flight = True

    def answered(self) -> None:
        self.in_flight = False

    def appended_claim(self, offset: int) -> None:
        """Stores the offset of the acknowledged claim (a task's first batch on a partition), which the task must read
        back.
        """
        self.claim_at, self.failures, self.again_at = offset, 0, 0.0

    def judge_claim(self, found: batch.BatchHeader) -> Exception | None:
        """Compares the claim (a task's first batch on a partition) with the batch header that is at its offset. Returns
        an error if they differ.
        """
        ours = batch.read_header(self.current)
        if found.compression is not ours.compression:
            return RejectedError(
                f"The broker recompresses {self} as {found.compression.name.lower()}, so the owner of a"
                " batch cannot be recognised. Set kafka.compression.type to the topic's compression.type, or the"
                " topic's compression.type to 'producer'."
            )
        if (found.producer_id, found.producer_epoch, found.base_sequence, found.base_timestamp) != (
            ours.producer_id,
            ours.producer_epoch,
            ours.base_sequence,
            ours.base_timestamp,
        ):
            return RestartError(f"Another attempt of this task writes to {self}")
        self.claimed, self.claim_at = True, -1
        return None

    def acked(self) -> int:
        """The current batch is finished. Returns its size."""
        size = len(self.current)
        self.sending, self.failures, self.again_at, self.error = None, 0, 0.0, None
        return size

    def failed(self, error: BaseException, now: float) -> None:
        """Notes that the last request failed. The request is repeated after a pause."""
        self.error, self.again_at = error, now + pause_s(self.failures)
        self.failures += 1

    def refused_size(self) -> None:
        self.too_large = True

    def divide(self, parts: list[bytearray]) -> int:
        """Replaces the current batch by its parts. Returns how many bytes more they have."""
        more = sum(map(len, parts)) - len(self.current)
        self.waiting.extendleft(reversed(parts))
        self.sending, self.too_large = None, False
        return more


def _stamp(data: bytearray, grant: WriterIdentity, sequence: int) -> int:
    """Writes a batch id into a batch. Returns the next batch's sequence."""
    transactional = bool(grant.transactional_id)
    batch.stamp_identity(data, grant.producer_id, grant.epoch, sequence, transactional=transactional)
    return sequence + batch.read_header(data).count


class Appender:
    """Appends batches under a grant (a producer id and epoch), and reports how many records it appended.

    Args:
        transport: A started transport. The caller still owns it and closes it.
        grant: The transaction's grant. The transaction must already contain the partitions. If the grant's
            transactional id is empty, the appender uses no transaction, and the grant holds an idempotent producer's
            own id and epoch.
        options: Options of the sink or writer. The appender uses `delivery_timeout_s`, `request_timeout_ms` and
            `buffer_bytes`.
        claims: Whether the first batch on each partition is a claim: a small batch that the appender reads back. Not
            needed if no other process has this grant.
        on_acked: Called on the network thread with (topic, partition, offset of the first record) of each acknowledged
            batch, in order for each partition. The function is not called for claims. For a divided batch, the function
            is called once for each part.
    """

    def __init__(
        self,
        transport: Cluster,
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
        self._most_bytes: dict[str, int] = {}  # topic → size limit of batches, once a broker refused one
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
            RestartError: See `finish`. `append` also raises all other errors that `finish` raises.
        """
        with self._changed:
            place = self._places.get((topic, partition))
            if place is None:
                place = self._places[topic, partition] = _Place(topic, partition, claimed=not self._claims)
            self.bytes += len(data)
        place.stamp(data, self._grant)
        with self._changed:
            place.queue(data)
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
            now = time.monotonic()
            if self._error is not None or not place.is_idle(now):
                return
            place.take_next(now + self._options.delivery_timeout_s, self._most_bytes.get(place.topic))
            if place.too_large:
                self._changed.notify_all()  # the task's thread divides the batch
                return
            if place.sending is None:
                return
            place.sent()
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
            place.answered()
            if isinstance(reply, Failure):
                self._failed(place, reply.error, "produce")
            elif reply.error_code:
                message = f"{place}: {reply.error_message or 'Produce'}"
                self._failed(place, coded(reply.error_code, message), "produce")
            elif reply.base_offset < 0 and (self._on_acked is not None or not place.claimed):
                self._fail(RestartError(f"{place} acknowledged a batch without its offset"))
            elif place.claimed:
                if self._on_acked is not None:
                    self._on_acked(place.topic, place.partition, reply.base_offset)
                self._acked(place)
            else:
                place.appended_claim(reply.base_offset)
        self._go_on(place)

    def _on_claim(self, place: _Place, answer: HeadersFetched | Failure) -> None:
        with self._changed:
            place.answered()
            if isinstance(answer, Failure):
                self._failed(place, answer.error, "fetch")
            elif answer.error_code:
                self._failed(place, coded(answer.error_code, f"{place}: Fetch"), "fetch")
            elif not answer.headers:
                # The batch is acknowledged, but this leader's high watermark has not reached the batch yet (KIP-207).
                self._failed(place, coded(OFFSET_NOT_AVAILABLE, f"{place}: Fetch"), "fetch")
            elif (error := place.judge_claim(answer.headers[0])) is not None:
                self._fail(error)
            else:
                self._acked(place)
        self._go_on(place)

    # --- with the lock held ---

    def _acked(self, place: _Place) -> None:
        self._buffered -= place.acked()
        self._changed.notify_all()

    def _failed(self, place: _Place, error: BaseException, api: str) -> None:
        code = getattr(error, "errno", None)
        verdict = classify(error, api)
        if code in FENCED_CODES:
            self._fail(FencedError(f"{place}: {error}"))
        elif code in SPOILT_CODES:
            self._fail(RestartError(f"{place}: {error}"))
        elif code in TOO_LARGE_CODES and api == "produce":
            self._refused_size(place, code)
        elif not verdict.retriable:
            self._fail(
                RejectedError(
                    f"{place}: {error}. {verdict.explanation}",
                    code=code if isinstance(code, int) else -1,
                    reason=str(error),
                )
                if isinstance(error, Exception)
                else error
            )
        else:
            self.retries += 1
            place.failed(error, time.monotonic())
            if verdict.refresh_metadata:
                self._transport.refresh_metadata([place.topic], lambda _: None)
            self._changed.notify_all()

    def _refused_size(self, place: _Place, code: int) -> None:
        data = place.current
        limit = "max.message.bytes" if code == MESSAGE_TOO_LARGE else "segment.bytes"
        if batch.read_header(data).count == 1:
            self._fail(
                RejectedError(
                    f"{place}: a record of {len(data)} bytes, as sent, is larger than the"
                    f" topic's {limit}. Raise that limit, or drop the row.",
                    code=code,
                    reason=f"larger than the topic's {limit}",
                )
            )
            return
        half = len(data) // 2
        if self._most_bytes.setdefault(place.topic, half) == half:
            log.info(
                "Batches for %s are divided: the topic's %s is below the batches' %d bytes. Set kafka.batch.size to at"
                " most this limit to avoid the division.",
                place.topic,
                limit,
                len(data),
                topic=place.topic,
                event="batch_divided",
            )
        self._most_bytes[place.topic] = min(half, self._most_bytes[place.topic])
        place.refused_size()
        self._changed.notify_all()

    def _fail(self, error: BaseException) -> None:
        self._error = self._error or error
        self._changed.notify_all()

    # --- on the task's thread ---

    def _wait(self, done: Any) -> None:
        while True:
            with self._changed:
                if self._error is not None:
                    raise self._error
                now = time.monotonic()
                due = self._due(now)
                if not due:
                    if done():
                        return
                    self._changed.wait(self._pause_s(now))
            for place in due:
                if place.too_large:
                    self._divide(place)
                self._go_on(place)

    def _due(self, now: float) -> list[_Place]:
        """The partitions whose current batch can be sent now.

        Raises:
            WaitTimeoutError: A partition has acknowledged no batch within the time limit.
        """
        due = []
        for place in self._places.values():
            if place.sending is None or place.in_flight:
                continue
            if now > place.give_up_at:
                raise WaitTimeoutError(
                    f"{place} acknowledged no batch within {self._options.delivery_timeout_s:g} s"
                    f" (kafka.delivery.timeout.ms); last error: {place.error!r}"
                )
            if place.is_idle(now):
                due.append(place)
        return due

    def _pause_s(self, now: float) -> float:
        pauses = [place.again_at - now for place in self._places.values() if place.again_at > now]
        return min([_POLL_S, *pauses])

    def _divide(self, place: _Place) -> None:
        data = place.current  # only this thread removes it
        parts = divide(data, max(2, -(-len(data) // self._most_bytes[place.topic])))
        sequence = batch.read_header(data).base_sequence
        for part in parts:
            sequence = _stamp(part, self._grant, sequence)
        with self._changed:
            self._buffered += place.divide(parts)
