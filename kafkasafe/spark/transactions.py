"""The requests of a Kafka transaction. Each request has a method that blocks until the answer arrives.

KafkaProducer's own transactions belong to one process. With this module, any process that knows the transactional id,
the producer id and the epoch can take a step. So a driver can begin and end a transaction that tasks on other machines
fill.

Each method repeats its request until it succeeds, until `kafkasafe.classify` says that the error is permanent, or until
the deadline has passed. All requests can be repeated: until the coordinator grants a newer epoch, a repeated request
gets the same answer as the first request.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias, TypeVar

import tenacity
from kafka.errors import KafkaError

from kafkasafe.cluster.api import Cluster, Failure, MetadataRefreshed, ProducersDescribed, Reply, TopicCreated
from kafkasafe.cluster.backoff import PAUSES, Backoff
from kafkasafe.cluster.inquiry import coded
from kafkasafe.cluster.transactions import (
    OffsetCommitted,
    OffsetToCommit,
    PartitionsAdded,
    TransactionDescribed,
    TransactionEnded,
    TransactionIdentity,
    TransactionsInitialized,
)
from kafkasafe.codes.numbers import (
    CLUSTER_AUTHORIZATION_FAILED,
    CONCURRENT_TRANSACTIONS,
    GROUP_AUTHORIZATION_FAILED,
    INVALID_TXN_STATE,
    NONE,
    OPERATION_NOT_ATTEMPTED,
    PRODUCER_FENCED,
    TOPIC_ALREADY_EXISTS,
    TOPIC_AUTHORIZATION_FAILED,
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_OR_PARTITION,
    UNSUPPORTED_VERSION,
)
from kafkasafe.errors import WaitTimeoutError
from kafkasafe.process.wake_flag import WakeFlag
from kafkasafe.retry import RetryPolicy
from kafkasafe.spark.txn import WriterIdentity

TopicPartition: TypeAlias = tuple[str, int]
T = TypeVar("T")

_NO_OFFSET: Final = -1
_ADDS_ITSELF: Final = 2
# Back-off while the coordinator is still ending the previous transaction, which takes milliseconds.
_SOON: Final = Backoff(0.005, 0.4, least_s=0.0, jitter=0.0)
# If an attempt has at most this many seconds, a broker that works may be too slow to answer it.
_MOMENT_S: Final = 5.0


# Error code → (resource, {request: the permission that it needs}, the permission for all other requests)
_PERMISSIONS: Final[Mapping[int, tuple[str, Mapping[str, str], str]]] = {
    TOPIC_AUTHORIZATION_FAILED: (
        "the topic",
        {
            "AddPartitionsToTxn": "WRITE",
            "CreateTopics": "CREATE",
            "DescribeProducers": "READ",
            "TxnOffsetCommit": "READ",
        },
        "DESCRIBE",
    ),
    GROUP_AUTHORIZATION_FAILED: (
        "the group",
        {"FindCoordinator": "DESCRIBE", "OffsetFetch": "DESCRIBE"},
        "READ",
    ),
    CLUSTER_AUTHORIZATION_FAILED: ("the cluster", {"CreateTopics": "CREATE"}, "IDEMPOTENT_WRITE"),
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED: (
        "the transactional id",
        {"FindCoordinator": "DESCRIBE", "DescribeTransactions": "DESCRIBE"},
        "WRITE",
    ),
}


def _error(code: int, message: str) -> KafkaError:
    """Creates the error for an answer. `message` must begin with the name of the request."""
    if code in _PERMISSIONS:
        what, permissions, otherwise = _PERMISSIONS[code]
        permission = permissions.get(message.split(maxsplit=1)[0], otherwise)
        message += f": this user needs the permission {permission} on {what}"
    return coded(code, message)


def _identity(grant: WriterIdentity) -> TransactionIdentity:
    return TransactionIdentity(grant.transactional_id, grant.producer_id, grant.epoch, grant.protocol)


def identity_of(grant: WriterIdentity) -> TransactionIdentity | None:
    """Returns the identity that the batches of a transaction carry; None if there is no transaction."""
    return _identity(grant) if grant.transactional_id else None


class Pending:
    """A request that has been sent, and its answer once it has arrived.

    Args:
        send: Sends the request. The argument of `send` is a function to call with the answer.
    """

    def __init__(self, send: Callable[[Reply[Any]], None]) -> None:
        # Ctrl-C could leave the lock of a `threading.Event` taken, for which the network thread would wait for ever.
        self._wake = WakeFlag()
        self._answers: list[Any] = []
        send(self._reply)

    def _reply(self, answer: Any) -> None:
        self._answers.append(answer)
        self._wake.set()

    def wait(self, timeout_s: float) -> bool:
        """Waits for the answer, at most `timeout_s` seconds. Returns whether it arrived."""
        if not self._answers:
            self._wake.wait(max(0.0, timeout_s))
        return bool(self._answers)

    def answer(self, timeout_s: float) -> Any:
        """Waits for the answer and returns it.

        Raises:
            KafkaError: The error of the `Failure`; KafkaTimeoutError if no answer arrives within `timeout_s` seconds.
        """
        if not self.wait(timeout_s):
            raise WaitTimeoutError(f"No answer within {timeout_s:.1f} s")
        answer = self._answers[0]
        if isinstance(answer, Failure):
            raise answer.error
        return answer


def call(send: Callable[[Reply[Any]], None], timeout_s: float) -> Any:
    """Returns the answer to one request. Raises the errors of `Pending.answer`."""
    return Pending(send).answer(timeout_s)


def retry_for(timeout_s: float, attempt: Callable[[float], T], *, what: str, api: str) -> T:
    """Returns the result of `attempt`. Repeats the attempt while `classify` says that the error can be retried.

    Args:
        timeout_s: When to give up, in seconds from now.
        attempt: Makes one attempt. The argument of `attempt` is the remaining time in seconds.
        what: Name of the request, for error messages; for example "InitProducerId of x".
        api: Request kind, for `classify`.

    Raises:
        KafkaError: An error that is not retriable; or the last error, if the deadline has passed.
    """
    deadline = time.monotonic() + timeout_s

    def tried() -> T:
        return attempt(deadline - time.monotonic())

    tried.__qualname__ = what
    policy = RetryPolicy(deadline_ms=1000 * timeout_s, wait=_wait_s, api=api)
    return policy.call(tried)


def _wait_s(state: tenacity.RetryCallState) -> float:
    """Returns how many seconds to wait before a step of a transaction is repeated."""
    error = None if state.outcome is None else state.outcome.exception()
    pause_s = PAUSES(state)
    return min(_SOON(state), pause_s) if getattr(error, "errno", None) == CONCURRENT_TRANSACTIONS else pause_s


class TransactionRequests:
    """Sends requests about one transactional id, and about the consumer group with the same name. The group stores the
    marker.

    Not thread-safe.

    Args:
        transport: A started transport. The caller still owns it.
        transactional_id: Transactional id, and name of the group.
        timeout_s: Maximum duration of one call of a method, in seconds.
    """

    def __init__(self, transport: Cluster, transactional_id: str, *, timeout_s: float) -> None:
        self._transport = transport
        self._transactions = transport.transactions
        self._id = transactional_id
        self._timeout_s = timeout_s

    def _ask(
        self,
        api: str,
        send: Callable[[Reply[Any]], None],
        *,
        place: Callable[[Any], str] = lambda _: "",
        timeout_s: float | None = None,
    ) -> Any:
        """Repeats a request until an answer has no error code, and returns that answer. For error messages, `place`
        returns the partition to which an answer's error belongs, as text.
        """
        what = f"{api} of {self._id}"

        def attempt(left_s: float) -> Any:
            answer = call(send, left_s)
            if answer.error_code:
                raise _error(answer.error_code, what + place(answer))
            return answer

        return retry_for(self._timeout_s if timeout_s is None else timeout_s, attempt, what=what, api=api)

    # --- the transaction ---

    def fence(self, transaction_timeout_ms: int, *, timeout_s: float | None = None) -> WriterIdentity:
        """Fences all older holders of the transactional id, and ends their open transaction. Returns only after the
        open transaction has ended.

        Args:
            transaction_timeout_ms: Time in ms after which the cluster aborts a transaction that is still open.
            timeout_s: Maximum duration in seconds; None: the same as for other requests.
        """
        answer: TransactionsInitialized = self._ask(
            "InitProducerId",
            lambda reply: self._transactions.init_transactional_id(self._id, transaction_timeout_ms, reply),
            timeout_s=timeout_s,
        )
        identity = answer.identity
        assert identity is not None  # noqa: S101  # there is no error
        return WriterIdentity(self._id, identity.producer_id, identity.epoch, identity.protocol)

    def add_partitions(self, grant: WriterIdentity, partitions: Iterable[TopicPartition]) -> None:
        """Adds partitions to the transaction. The first partition begins it. Adding a partition again has no effect."""
        places = list(partitions)

        def place(answer: PartitionsAdded) -> str:
            # Name the partition that caused the failure. A partition that failed only because another partition failed
            # is sorted last.
            codes = sorted(answer.error_codes.items(), key=lambda item: item[1] == OPERATION_NOT_ATTEMPTED)
            return next((f", {topic}-{number}" for (topic, number), code in codes if code), "")

        self._ask(
            "AddPartitionsToTxn",
            lambda reply: self._transactions.add_partitions_to_transaction(_identity(grant), places, reply),
            place=place,
        )

    def partitions(self, grant: WriterIdentity) -> set[TopicPartition] | None:
        """The partitions that the transaction contains, according to the coordinator; None with brokers before 2.8
        (KIP-664).
        """
        try:
            answer: TransactionDescribed = self._ask(
                "DescribeTransactions",
                lambda reply: self._transactions.describe_transaction(self._id, reply),
            )
        except Exception as error:
            if getattr(error, "errno", None) == UNSUPPORTED_VERSION:
                return None
            raise
        if (answer.producer_id, answer.epoch) != (grant.producer_id, grant.epoch):
            raise _error(PRODUCER_FENCED, f"{self._id} has another owner (epoch {answer.epoch})")
        if answer.state != "Ongoing":
            raise _error(INVALID_TXN_STATE, f"The transaction of {self._id} is {answer.state}")
        return set(answer.partitions)

    def abort(self, grant: WriterIdentity, transaction_timeout_ms: int, *, timeout_s: float) -> None:
        """Aborts the transaction, and announces a new epoch to all leaders. The new epoch fences late batches of the
        transaction.

        With protocol 2, EndTxn aborts the transaction under a new epoch. With protocol 1, EndTxn would grant no new
        epoch. Without a new epoch, brokers before 3.6 would still append a late batch, and the next transaction on the
        partition would commit it. So with protocol 1, this method sends InitProducerId, which aborts the transaction
        and grants a new epoch. But InitProducerId alone would also abort the transaction of a driver that has taken
        over. So AddOffsetsToTxn is sent first, which the coordinator refuses if another driver has taken over. If
        another driver takes over between the two requests, InitProducerId fences the other driver, which fails.

        Args:
            grant: Grant of the transaction.
            transaction_timeout_ms: As for `fence`.
            timeout_s: Maximum duration of each of the requests, in seconds.
        """
        if grant.protocol >= _ADDS_ITSELF:
            self.end(grant, commit=False, timeout_s=timeout_s)
            return
        self._add_group(grant, timeout_s=timeout_s)
        self.fence(transaction_timeout_ms, timeout_s=timeout_s)

    def end(
        self, grant: WriterIdentity, *, commit: bool, timeout_s: float | None = None
    ) -> WriterIdentity | None:
        """Commits or aborts the transaction. If the request stays unanswered, call `fence`, and then read the marker,
        to find out the outcome.

        Returns:
            The grant for the next transaction. None with protocol 1, because the answer to EndTxn contains no epoch:
            only `fence` grants one.
        """
        ended: TransactionEnded = self._ask(
            "EndTxn",
            lambda reply: self._transactions.end_transaction(_identity(grant), commit, reply),
            timeout_s=timeout_s,
        )
        following = ended.identity
        if following is None or grant.protocol < _ADDS_ITSELF:
            return None
        number, epoch = following.producer_id, following.epoch
        # Ignore an epoch that is not newer than this transaction's: such an epoch would not fence this transaction's
        # tasks.
        if number < 0 or (number == grant.producer_id and epoch <= grant.epoch):
            return None
        return WriterIdentity(grant.transactional_id, number, epoch, grant.protocol)

    # --- the marker, stored as the committed offset of a group without members ---

    def commit_offset(self, grant: WriterIdentity, place: TopicPartition, offset: int, metadata: str) -> None:
        """Writes the group's offset for a partition as part of the transaction.

        With protocol 2 (KIP-890) the group's coordinator itself adds the group to the transaction, before it takes the
        offset. So AddOffsetsToTxn is for protocol 1 only.
        """
        identity = _identity(grant)
        if grant.protocol < _ADDS_ITSELF:
            self._add_group(grant)
        offsets = {place: OffsetToCommit(offset, metadata)}
        self._ask(
            "TxnOffsetCommit",
            lambda reply: self._transactions.commit_offsets_in_transaction(
                identity, self._id, offsets, reply
            ),
        )

    def _add_group(self, grant: WriterIdentity, *, timeout_s: float | None = None) -> None:
        """Adds the group to the transaction. Adding it again has no effect."""
        self._ask(
            "AddOffsetsToTxn",
            lambda reply: self._transactions.add_offsets_to_transaction(_identity(grant), self._id, reply),
            timeout_s=timeout_s,
        )

    def committed_offset(self, place: TopicPartition) -> tuple[int, str] | None:
        """Returns the group's offset for a partition, with its metadata. Waits while an open transaction may change the
        offset.
        """
        found: OffsetCommitted = self._ask(
            "OffsetFetch", lambda reply: self._transactions.committed_offset(self._id, *place, reply)
        )
        return None if found.offset == _NO_OFFSET else (found.offset, found.metadata)

    # --- topics ---

    def partition_count(self, name: str) -> int:
        """Returns the number of a topic's partitions. Waits until the topic exists and its leaders are known.

        Raises:
            KafkaError: The topic did not appear within the time limit (UnknownTopicOrPartitionError).
        """
        answered: KafkaError | None = None

        def attempt(left_s: float) -> int:
            nonlocal answered
            try:
                metadata: MetadataRefreshed = call(
                    lambda reply: self._transport.refresh_metadata([name], reply), left_s
                )
            except WaitTimeoutError:
                # The last attempt may get only a moment. A broker's earlier answer then says more than the time-out.
                if answered is None or left_s > _MOMENT_S:
                    raise
                raise answered from None
            info = metadata.topics.get(name)
            code = UNKNOWN_TOPIC_OR_PARTITION if info is None else info.error_code
            if info is None or code:
                answered = _error(code, name if info is None else f"Metadata of {name}")
                raise answered
            return len(info.partitions)

        return retry_for(self._timeout_s, attempt, what=f"Metadata of {name}", api="Metadata")

    def create_topic(self, name: str, *, partitions: int, config: Mapping[str, str]) -> None:
        """Creates a topic with the brokers' default replication. Does nothing if the topic exists."""

        def attempt(left_s: float) -> None:
            timeout_ms = int(min(30.0, left_s) * 1000)
            answer: TopicCreated = call(
                lambda reply: self._transport.create_topic(name, partitions, config, timeout_ms, reply),
                left_s,
            )
            if answer.error_code not in {NONE, TOPIC_ALREADY_EXISTS}:
                raise _error(answer.error_code, f"CreateTopics of {name}: {answer.error_message or ''}")

        retry_for(self._timeout_s, attempt, what=f"CreateTopics of {name}", api="CreateTopics")

    def producers(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, ProducersDescribed]:
        """Returns the producer states of partitions, as their leaders report them. Asks the leaders concurrently."""
        left = set(places)
        found: dict[TopicPartition, ProducersDescribed] = {}

        def attempt(left_s: float) -> None:
            arrived: dict[TopicPartition, Any] = {}
            all_there = WakeFlag()
            wanted = set(left)

            def reply(place: TopicPartition, answer: Any) -> None:
                arrived[place] = answer
                if len(arrived) == len(wanted):
                    all_there.set()

            for place in wanted:
                self._transport.describe_producers(
                    *place,
                    lambda answer, place=place: reply(place, answer),  # type: ignore[misc]
                )
            if wanted:
                all_there.wait(max(0.0, left_s))
            if len(arrived) < len(wanted):
                raise WaitTimeoutError(f"DescribeProducers: {len(arrived)} of {len(wanted)} leaders answered")
            failed: Exception | None = None
            for place, answer in arrived.items():
                if isinstance(answer, ProducersDescribed) and not answer.error_code:
                    found[place] = answer
                    left.discard(place)
                elif isinstance(answer, Failure):
                    failed = answer.error if isinstance(answer.error, Exception) else None
                else:
                    failed = _error(answer.error_code, f"DescribeProducers of {place[0]}-{place[1]}")
            if failed is not None:
                raise failed

        retry_for(self._timeout_s, attempt, what="DescribeProducers", api="DescribeProducers")
        return found
