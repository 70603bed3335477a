"""The requests of a Kafka transaction: one method for each, which blocks until there is an answer.

KafkaProducer's own transactions belong to one process. Here, any process that knows the transactional id, the producer
id and the epoch can take a step. So a driver can begin and end a transaction that tasks on other machines fill.

Each method repeats its request as long as `kafkasafe.classify` says so and the deadline has not passed. All requests
are repeatable: the coordinator answers a request that was already carried out as it did before, until it grants a newer
epoch.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias, TypeVar

import tenacity
from kafka.errors import for_code

from kafkasafe._core.txn import Grant
from kafkasafe._io.backoff import PAUSES, Backoff
from kafkasafe._io.retry import RetryPolicy
from kafkasafe._io.transport import Transport
from kafkasafe.classification import classify
from kafkasafe.cluster.api import Failure, MetadataRefreshed, ProducersDescribed, Reply, TopicInfo
from kafkasafe.cluster.coordinators import SOFTWARE, protocol_of, versions_of
from kafkasafe.cluster.transactions import TransactionIdentity
from kafkasafe.errors import WaitTimeoutError
from kafkasafe.kafkapython import requests
from kafkasafe.kafkapython.requests import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    CreateTopicsRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    OffsetFetchRequest,
    TxnOffsetCommitRequest,
)

__all__ = ["Coordinator", "TopicPartition", "call", "identity_of", "insist"]

TopicPartition: TypeAlias = tuple[str, int]
T = TypeVar("T")

_GROUP: Final = 0
_TRANSACTION: Final = 1
_NOT_COORDINATOR: Final = frozenset({15, 16})
_TOPIC_ALREADY_EXISTS: Final = 36
_NO_OFFSET: Final = -1
_CONCURRENT: Final = 51
_ADDS_ITSELF: Final = 2
# The coordinator is still ending the previous transaction, which takes milliseconds.
_SOON: Final = Backoff(0.005, 0.4, least_s=0.0, jitter=0.0)


# Which permission a request needs: error code → (what the permission is for, by request, otherwise).
_PERMISSIONS: Final[Mapping[int, tuple[str, Mapping[str, str], str]]] = {
    29: (
        "the topic",
        {
            "AddPartitionsToTxn": "WRITE",
            "CreateTopics": "CREATE",
            "DescribeProducers": "READ",
            "TxnOffsetCommit": "READ",
        },
        "DESCRIBE",
    ),
    30: ("the group", {"FindCoordinator": "DESCRIBE", "OffsetFetch": "DESCRIBE"}, "READ"),
    31: ("the cluster", {"CreateTopics": "CREATE"}, "IDEMPOTENT_WRITE"),
    53: (
        "the transactional id",
        {"FindCoordinator": "DESCRIBE", "DescribeTransactions": "DESCRIBE"},
        "WRITE",
    ),
}


def _error(code: int, message: str) -> Exception:
    """The error of an answer. `message` begins with the request's name."""
    if code in _PERMISSIONS:
        what, permissions, otherwise = _PERMISSIONS[code]
        permission = permissions.get(message.split(maxsplit=1)[0], otherwise)
        message += f": this user needs the permission {permission} on {what}"
    error: Any = for_code(code)(message)
    error.errno = code  # kafka-python has no class for some codes; keep the number for those too
    told: Exception = error
    return told


def identity_of(grant: Grant) -> TransactionIdentity | None:
    """What the batches of a grant's transaction are sent under; None if it has no transaction."""
    if not grant.transactional_id:
        return None
    return TransactionIdentity(grant.transactional_id, grant.producer_id, grant.epoch, grant.protocol)


def call(send: Callable[[Reply[Any]], None], timeout_s: float) -> Any:
    """Returns the answer to one request.

    Raises:
        KafkaError: The error of the `Failure`; KafkaTimeoutError if there was no answer in time.
    """
    arrived = threading.Event()
    answers: list[Any] = []

    def reply(answer: Any) -> None:
        answers.append(answer)
        arrived.set()

    send(reply)
    if not arrived.wait(max(0.0, timeout_s)):
        raise WaitTimeoutError(f"No answer within {timeout_s:.1f} s")
    answer = answers[0]
    if isinstance(answer, Failure):
        raise answer.error
    return answer


def insist(attempt: Callable[[float], T], *, deadline: float, what: str, api: str | None = None) -> T:
    """Returns the result of `attempt`. Repeats it as long as the verdict on its error says to retry.

    Args:
        attempt: Makes one attempt. Gets the remaining seconds.
        deadline: When to give up, in the time of `time.monotonic`.
        what: Name of the request for the message, "InitProducerId of x".
        api: Request kind, for the verdict.

    Raises:
        KafkaError: An error that is not retriable, or the last error after the deadline.
    """

    def tried() -> T:
        return attempt(deadline - time.monotonic())

    tried.__qualname__ = what
    policy = RetryPolicy(deadline_ms=1000 * max(0.0, deadline - time.monotonic()), wait=_wait_s, api=api)
    return policy.call(tried)


def _wait_s(state: tenacity.RetryCallState) -> float:
    """Seconds to wait before repeating a step of a transaction."""
    error = None if state.outcome is None else state.outcome.exception()
    pause_s = PAUSES(state)
    return min(_SOON(state), pause_s) if getattr(error, "errno", None) == _CONCURRENT else pause_s


class Coordinator:
    """The requests for one transactional id, and for a group of the same name that holds its marker.

    Not thread-safe.

    Args:
        transport: A started transport. The caller still owns it.
        transactional_id: Transactional id, and name of the group.
        timeout_s: Maximum duration of one method, in seconds.
    """

    def __init__(self, transport: Transport, transactional_id: str, *, timeout_s: float) -> None:
        self._transport = transport
        self._id = transactional_id
        self._timeout_s = timeout_s
        self._nodes: dict[int, tuple[int, str, int]] = {}

    # --- finding coordinators and sending requests ---

    def _find(self, kind: int, left_s: float) -> tuple[int, str, int]:
        known = self._nodes.get(kind)
        if known is not None:
            return known

        def parse(response: Any) -> tuple[int, str, int]:
            answer = response.coordinators[0] if response.API_VERSION >= 4 else response
            if answer.error_code:
                raise _error(answer.error_code, f"FindCoordinator of {self._id}")
            return answer.node_id, answer.host, answer.port

        request = FindCoordinatorRequest(key=self._id, key_type=kind, coordinator_keys=[self._id])
        node: tuple[int, str, int] = call(
            lambda reply: self._transport.ask(request, parse, reply, minimum=1, maximum=4), left_s
        )
        self._nodes[kind] = node
        return node

    def _ask(
        self,
        kind: int,
        make: Callable[[], Any],
        parse: Callable[[Any], T],
        *,
        api: str,
        minimum: int = 0,
        maximum: int = 32767,
        timeout_s: float | None = None,
    ) -> T:
        def attempt(left_s: float) -> T:
            try:
                node = self._find(kind, left_s)
                result: T = call(
                    lambda reply: self._transport.ask(
                        make(), parse, reply, node=node, minimum=minimum, maximum=maximum
                    ),
                    left_s,
                )
            except Exception as error:
                code = getattr(error, "errno", None)
                # A coordinator that does not answer may have moved as well.
                if code in _NOT_COORDINATOR or code is None or code < 0 or classify(error).refresh_metadata:
                    self._nodes.pop(kind, None)
                raise
            return result

        deadline = time.monotonic() + (self._timeout_s if timeout_s is None else timeout_s)
        return insist(attempt, deadline=deadline, what=f"{api} of {self._id}", api=api)

    def _checked(self, api: str) -> Callable[[Any], None]:
        def parse(response: Any) -> None:
            if response.error_code:
                raise _error(response.error_code, f"{api} of {self._id}")

        return parse

    # --- the transaction ---

    def fence(self, transaction_timeout_ms: int) -> Grant:
        """Fences every older holder of the transactional id, and ends its transaction. Returns when it has ended.

        Args:
            transaction_timeout_ms: Time after which the cluster aborts a transaction that is not ended, ms.
        """

        def level(response: Any) -> int:
            if response.error_code:
                raise _error(response.error_code, f"ApiVersions of {self._id}")
            return protocol_of(response)

        deadline = time.monotonic() + self._timeout_s
        protocol = self._ask(
            _TRANSACTION, lambda: requests.made("ApiVersions", SOFTWARE), level, api="ApiVersions"
        )

        def parse(response: Any) -> Grant:
            if response.error_code:
                raise _error(response.error_code, f"InitProducerId of {self._id}")
            if response.producer_id < 0 or response.producer_epoch < 0:
                raise _error(14, "InitProducerId answered no id")
            return Grant(self._id, response.producer_id, response.producer_epoch, protocol)

        return self._ask(
            _TRANSACTION,
            lambda: InitProducerIdRequest(
                transactional_id=self._id,
                transaction_timeout_ms=transaction_timeout_ms,
                producer_id=-1,
                producer_epoch=-1,
            ),
            parse,
            api="InitProducerId",
            maximum=5,
            timeout_s=max(0.0, deadline - time.monotonic()),
        )

    def add_partitions(self, grant: Grant, partitions: Iterable[TopicPartition]) -> None:
        """Adds partitions to the transaction. The first one begins it."""
        topics: dict[str, list[int]] = {}
        for topic, partition in partitions:
            topics.setdefault(topic, []).append(partition)

        def make() -> Any:
            request = AddPartitionsToTxnRequest
            return request(
                v3_and_below_transactional_id=grant.transactional_id,
                v3_and_below_producer_id=grant.producer_id,
                v3_and_below_producer_epoch=grant.epoch,
                v3_and_below_topics=[
                    request.AddPartitionsToTxnTopic(name=topic, partitions=numbers)
                    for topic, numbers in topics.items()
                ],
            )

        def parse(response: Any) -> None:
            codes = {
                (topic.name, answer.partition_index): answer.partition_error_code
                for topic in response.results_by_topic_v3_and_below
                for answer in topic.results_by_partition
            }
            # 55 OPERATION_NOT_ATTEMPTED marks partitions that failed only because of another one.
            for (topic, partition), code in sorted(codes.items(), key=lambda item: item[1] == 55):
                if code:
                    raise _error(code, f"AddPartitionsToTxn of {self._id}, {topic}-{partition}")

        self._ask(_TRANSACTION, make, parse, api="AddPartitionsToTxn", maximum=3)

    def partitions(self, grant: Grant) -> set[TopicPartition] | None:
        """The partitions of the transaction, as the coordinator knows them; None for brokers before 2.8 (KIP-664)."""

        def parse(response: Any) -> set[TopicPartition]:
            state = response.transaction_states[0]
            if state.error_code:
                raise _error(state.error_code, f"DescribeTransactions of {self._id}")
            if (state.producer_id, state.producer_epoch) != (grant.producer_id, grant.epoch):
                raise _error(90, f"{self._id} has another owner (epoch {state.producer_epoch})")
            if state.transaction_state != "Ongoing":
                raise _error(48, f"The transaction of {self._id} is {state.transaction_state}")
            return {(topic.topic, number) for topic in state.topics for number in topic.partitions}

        try:
            return self._ask(
                _TRANSACTION,
                lambda: DescribeTransactionsRequest(transactional_ids=[self._id]),
                parse,
                api="DescribeTransactions",
            )
        except Exception as error:
            if getattr(error, "errno", None) == 35:
                return None
            raise

    def end(self, grant: Grant, *, commit: bool, timeout_s: float | None = None) -> Grant | None:
        """Commits or aborts. If the request stays unanswered, only a later `fence` shows whether it was carried out.

        Returns:
            The grant for the next transaction. None with protocol 1, where only `fence` grants one.
        """
        minimum, maximum = versions_of(grant.protocol)

        def parse(response: Any) -> Grant | None:
            if response.error_code:
                raise _error(response.error_code, f"EndTxn of {self._id}")
            number, epoch = getattr(response, "producer_id", -1), getattr(response, "producer_epoch", -1)
            # An epoch that is not newer would not lock out the tasks of this transaction.
            if (
                response.API_VERSION < 5
                or number < 0
                or (number == grant.producer_id and epoch <= grant.epoch)
            ):
                return None
            return Grant(grant.transactional_id, number, epoch, grant.protocol)

        return self._ask(
            _TRANSACTION,
            lambda: EndTxnRequest(
                transactional_id=grant.transactional_id,
                producer_id=grant.producer_id,
                producer_epoch=grant.epoch,
                committed=commit,
            ),
            parse,
            api="EndTxn",
            minimum=minimum,
            maximum=maximum,
            timeout_s=timeout_s,
        )

    # --- the marker: an offset of a group without members ---

    def commit_offset(self, grant: Grant, place: TopicPartition, offset: int, metadata: str) -> None:
        """Writes the group's offset of a partition as part of the transaction.

        With protocol 2 (KIP-890) the group's coordinator itself adds the group to the transaction, before it takes the
        offset. So AddOffsetsToTxn is for protocol 1 only.
        """
        if grant.protocol < _ADDS_ITSELF:
            self._ask(
                _TRANSACTION,
                lambda: AddOffsetsToTxnRequest(
                    transactional_id=grant.transactional_id,
                    producer_id=grant.producer_id,
                    producer_epoch=grant.epoch,
                    group_id=self._id,
                ),
                self._checked("AddOffsetsToTxn"),
                api="AddOffsetsToTxn",
                maximum=3,
            )

        def make() -> Any:
            request = TxnOffsetCommitRequest
            topic = request.TxnOffsetCommitRequestTopic
            return request(
                transactional_id=grant.transactional_id,
                group_id=self._id,
                producer_id=grant.producer_id,
                producer_epoch=grant.epoch,
                generation_id=-1,
                member_id="",
                group_instance_id=None,
                topics=[
                    topic(
                        name=place[0],
                        partitions=[
                            topic.TxnOffsetCommitRequestPartition(
                                partition_index=place[1],
                                committed_offset=offset,
                                committed_leader_epoch=-1,
                                committed_metadata=metadata,
                            )
                        ],
                    )
                ],
            )

        def parse(response: Any) -> None:
            for topic in response.topics:
                for answer in topic.partitions:
                    if answer.error_code:
                        raise _error(answer.error_code, f"TxnOffsetCommit of {self._id}")

        minimum, maximum = versions_of(grant.protocol)
        self._ask(_GROUP, make, parse, api="TxnOffsetCommit", minimum=minimum, maximum=maximum)

    def committed_offset(self, place: TopicPartition) -> tuple[int, str] | None:
        """The group's offset of a partition, with its metadata. Waits until no open transaction would change it."""

        def make() -> Any:
            request = OffsetFetchRequest
            old, group = request.OffsetFetchRequestTopic, request.OffsetFetchRequestGroup
            new = group.OffsetFetchRequestTopics
            name, number = place
            return request(
                group_id=self._id,
                topics=[old(name=name, partition_indexes=[number])],
                groups=[group(group_id=self._id, topics=[new(name=name, partition_indexes=[number])])],
                require_stable=True,
            )

        def parse(response: Any) -> tuple[int, str] | None:
            answer = response.groups[0] if response.API_VERSION >= 8 else response
            if answer.error_code:
                raise _error(answer.error_code, f"OffsetFetch of {self._id}")
            found = answer.topics[0].partitions[0]
            if found.error_code:
                raise _error(found.error_code, f"OffsetFetch of {self._id}")
            if found.committed_offset == _NO_OFFSET:
                return None
            return found.committed_offset, found.metadata or ""

        # v7 is the first version that can wait for open transactions (KIP-447, Kafka 2.5).
        return self._ask(_GROUP, make, parse, api="OffsetFetch", minimum=7, maximum=9)

    # --- topics ---

    def topics(self, names: Sequence[str]) -> Mapping[str, TopicInfo]:
        """Metadata of topics. Waits until all exist and their leaders are known.

        Raises:
            KafkaError: One does not exist in time (UnknownTopicOrPartitionError).
        """

        def attempt(left_s: float) -> Mapping[str, TopicInfo]:
            told: MetadataRefreshed = call(
                lambda reply: self._transport.refresh_metadata(list(names), reply), left_s
            )
            for name in names:
                info = told.topics.get(name)
                if info is None:
                    raise _error(3, name)
                if info.error_code:
                    raise _error(info.error_code, f"Metadata of {name}")
            return {name: told.topics[name] for name in names}

        deadline = time.monotonic() + self._timeout_s
        return insist(attempt, deadline=deadline, what=f"Metadata of {', '.join(names)}", api="Metadata")

    def create_topic(self, name: str, *, partitions: int, config: Mapping[str, str]) -> None:
        """Creates a topic with the brokers' default replication. Does nothing if it exists."""

        def parse(response: Any) -> None:
            answer = response.topics[0]
            if answer.error_code not in (0, _TOPIC_ALREADY_EXISTS):
                raise _error(answer.error_code, f"CreateTopics of {name}: {answer.error_message or ''}")

        def attempt(left_s: float) -> None:
            request = CreateTopicsRequest
            topic = request.CreatableTopic
            made = request(
                topics=[
                    topic(
                        name=name,
                        num_partitions=partitions,
                        replication_factor=-1,
                        assignments=[],
                        configs=[
                            topic.CreatableTopicConfig(name=key, value=value) for key, value in config.items()
                        ],
                    )
                ],
                timeout_ms=int(min(30.0, left_s) * 1000),
                validate_only=False,
            )
            call(lambda reply: self._transport.ask(made, parse, reply, minimum=4), left_s)

        deadline = time.monotonic() + self._timeout_s
        insist(attempt, deadline=deadline, what=f"CreateTopics of {name}", api="CreateTopics")

    def producers(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, ProducersDescribed]:
        """The states of producers that the leaders of partitions remember. Asks the leaders concurrently."""
        left = set(places)
        found: dict[TopicPartition, ProducersDescribed] = {}

        def attempt(left_s: float) -> None:
            arrived: dict[TopicPartition, Any] = {}
            all_there = threading.Event()
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
            if wanted and not all_there.wait(max(0.0, left_s)):
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

        deadline = time.monotonic() + self._timeout_s
        insist(attempt, deadline=deadline, what="DescribeProducers", api="DescribeProducers")
        return found
