"""Stores the markers of a sink in Kafka: in a compacted topic, and as offsets of a consumer group.

A marker names the next batch id. So a later driver knows which batches are committed.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable
from typing import Final

from kafka.errors import KafkaError

from kafkasafe.classification import classify
from kafkasafe.cluster.api import (
    EARLIEST,
    LATEST,
    Cluster,
    OffsetListed,
    ProduceReply,
    ProduceRequest,
    RecordsFetched,
    Reply,
)
from kafkasafe.cluster.inquiry import coded
from kafkasafe.codes.numbers import (
    OFFSET_NOT_AVAILABLE,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from kafkasafe.codes.sets import AUTHENTICATION_CODES
from kafkasafe.errors import CheckpointMismatchError, WaitTimeoutError
from kafkasafe.record import batch
from kafkasafe.spark.option_values import error
from kafkasafe.spark.sink_options import SinkOptions
from kafkasafe.spark.transactions import Pending, TransactionRequests, call, identity_of, retry_for
from kafkasafe.spark.txn import Marker, MarkerLog, WriterIdentity

_MARKER_PARTITIONS: Final = 8
_BRIEF_S: Final = 5.0
_FETCH_BYTES: Final = 1024 * 1024


class MarkerStore:
    """Reads and writes the marker of one application id.

    Args:
        transport: The driver's connections. `start` starts them.
        requests: Sends requests about the application id's transactional id, and about the consumer group with the same
            name.
        options: Options of the sink.
        app_id: The application id, for messages.
        transactional_id: Key of the markers in their topic.
    """

    def __init__(
        self,
        transport: Cluster,
        requests: TransactionRequests,
        options: SinkOptions,
        app_id: str,
        transactional_id: str,
    ) -> None:
        self._transport = transport
        self._requests = requests
        self._options = options
        self._app_id = app_id
        self._id = transactional_id
        self._started = False
        self._partition = 0

    @property
    def place(self) -> tuple[str, int]:
        """Topic and partition of the markers. Valid after `start`, which finds the partition."""
        return self._options.marker_topic, self._partition

    def start(self) -> None:
        """Connects to the cluster and finds or creates the marker topic. Later calls do nothing."""
        if self._started:
            return
        self._transport.start()
        topic = self._options.marker_topic
        try:
            count = self._found_or_created(topic)
        except KafkaError as failed:
            code = getattr(failed, "errno", None)
            if code in AUTHENTICATION_CODES:
                raise error(
                    "AUTHENTICATION_FAILED",
                    f"The brokers at {self._options.servers} rejected this user ({failed}): check kafka.sasl.* and"
                    " kafka.security.protocol.",
                ) from failed
            if isinstance(code, int) and code > 0 and not classify(failed).retriable:
                raise error(
                    "MARKER_TOPIC",
                    f"The marker topic {topic!r} cannot be created or described ({failed}): create it by hand with"
                    " cleanup.policy=compact, or set markerTopic to another topic.",
                ) from failed
            raise self._options.no_broker("the driver", failed) from failed
        self._partition = zlib.crc32(self._id.encode()) % count
        self._started = True

    def _found_or_created(self, topic: str) -> int:
        """Returns the number of the marker topic's partitions."""
        refused: KafkaError | None = None
        try:
            self._requests.create_topic(
                topic, partitions=_MARKER_PARTITIONS, config={"cleanup.policy": "compact"}
            )
        except KafkaError as failed:
            if getattr(failed, "errno", None) != TOPIC_AUTHORIZATION_FAILED:
                raise
            # Brokers refuse a user without the permission CREATE even if the topic exists.
            refused = failed
        try:
            return self._requests.partition_count(topic)
        except KafkaError as failed:
            if refused is not None and getattr(failed, "errno", None) == UNKNOWN_TOPIC_OR_PARTITION:
                raise refused from failed
            raise

    def read(self) -> Marker | None:
        """Reads the marker of the last committed batch. Call `read` only after `fence`: before the fence, the marker
        may change.

        Raises:
            CheckpointMismatchError: The marker cannot be decoded.
        """
        found = self._requests.committed_offset((self._options.marker_topic, 0))
        # The offsets of a group without members expire (offsets.retention.minutes). Then only the marker topic has the
        # marker.
        content = self._from_topic() if found is None else found[1]
        if content is None:
            return None
        try:
            return Marker.decode(content)
        except ValueError as failed:
            raise CheckpointMismatchError(
                f"[KAFKASAFE.CHECKPOINT_MISMATCH] The marker of txnAppId {self._app_id!r} cannot be read: {failed}."
                " Check whether a newer kafkasafe wrote it, or whether another program commits offsets for this group."
            ) from failed

    def write(self, grant: WriterIdentity, marker: Marker) -> None:
        """The step MARK: writes the marker in the transaction. Readers see the marker only if the transaction is
        committed.

        The method sends the marker to the marker topic and to the group at the same time, and waits for both answers.
        If the group refuses the marker, the method still waits a few seconds for the marker topic's answer. A request
        to the marker topic that arrives after the abort could begin a new transaction (before KIP-890).
        """
        send = self._send_to_topic(grant, marker)
        attempts = [Pending(send)]
        try:
            self.write_to_group(grant, marker)
        except BaseException:
            attempts[0].wait(_BRIEF_S)
            raise
        topic, number = self.place

        def append(left_s: float) -> None:
            answer: ProduceReply = (attempts.pop() if attempts else Pending(send)).answer(left_s)
            if answer.error_code:
                raise coded(answer.error_code, f"{topic}-{number}: {answer.error_message or 'Produce'}")

        retry_for(self._options.delivery_timeout_s, append, what=f"The marker in {topic}", api="produce")

    def write_to_group(self, grant: WriterIdentity, marker: Marker) -> None:
        """Writes the marker in the transaction, but only as a committed offset of the group. A committed offset
        expires.
        """
        self._requests.commit_offset(
            grant, (self._options.marker_topic, 0), marker.next_batch_id, marker.encode()
        )

    def _send_to_topic(self, grant: WriterIdentity, marker: Marker) -> Callable[[Reply[ProduceReply]], None]:
        """Returns a function that sends the marker to the marker topic. The function may be called several times."""
        topic, number = self.place
        data = batch.encode(
            [self._id.encode()], [marker.encode().encode()], timestamps=int(time.time() * 1000)
        )
        batch.stamp_identity(data, grant.producer_id, grant.epoch, 0, transactional=True)

        def send(reply: Reply[ProduceReply]) -> None:
            self._transport.produce(
                [ProduceRequest(None, topic, number, data, transaction=identity_of(grant))],
                -1,
                self._options.request_timeout_ms,
                lambda _, answer: reply(answer),
            )

        return send

    def _from_topic(self) -> str | None:
        """Returns the newest committed marker in the marker topic, or None."""
        topic, number = self.place
        found = MarkerLog(self._id.encode())
        end, at = self._bound_of_markers(LATEST), self._bound_of_markers(EARLIEST)
        while at < end:
            answer = self._fetch_markers(at)
            records = bytes(answer.records)
            for begin, header in batch.iter_headers(records):
                if header.base_offset >= end:
                    break
                if not header.count:
                    # An empty batch needs no work. Compaction keeps an empty batch in order to keep the newest epoch of
                    # its producer. An empty control batch means that compaction has already removed all records of its
                    # transaction.
                    continue
                columns = batch.decode(records, begin)
                if header.is_control:
                    kind = columns.keys[0]
                    found.outcome(header.producer_id, committed=kind is not None and kind[2:4] == b"\0\1")
                    continue
                for key, value in zip(columns.keys, columns.values, strict=True):
                    found.record(header.producer_id, key, value, transactional=header.is_transactional)
            at = answer.next_offset
        if found.undecided:
            raise WaitTimeoutError(
                f"{topic}-{number} holds a marker of {self._id} whose transaction was ended, but still has no outcome:"
                " another process uses this txnAppId. Try again after that process has ended."
            )
        return found.content

    def _fetch_markers(self, at: int) -> RecordsFetched:
        topic, number = self.place

        def attempt(left_s: float) -> RecordsFetched:
            answer: RecordsFetched = call(
                lambda reply: self._transport.fetch_records(
                    topic, number, at, _FETCH_BYTES, reply, max_wait_ms=100
                ),
                left_s,
            )
            if answer.error_code:
                raise coded(answer.error_code, f"Fetch of {topic}-{number}")
            if answer.next_offset <= at:
                # The high watermark of a new leader may still be too low.
                raise coded(OFFSET_NOT_AVAILABLE, f"{topic}-{number} returned no records at {at}")
            return answer

        return retry_for(
            self._options.api_timeout_s, attempt, what=f"The markers in {topic}-{number}", api="fetch"
        )

    def _bound_of_markers(self, which: int) -> int:
        def attempt(left_s: float) -> int:
            answer: OffsetListed = call(
                lambda reply: self._transport.list_offset(*self.place, which, reply), left_s
            )
            if answer.error_code:
                raise coded(answer.error_code, f"ListOffsets of {self._options.marker_topic}")
            return answer.offset

        return retry_for(
            self._options.api_timeout_s, attempt, what="The bounds of the marker topic", api="ListOffsets"
        )
