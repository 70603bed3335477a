"""Describes requests as plain data, chooses their versions, and builds the requests of
`kafkasafe.cluster.transactions`.

A request has a name and fields. The fields of the answer are attributes of a Python object. All names come from Kafka's
protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

import kafka.errors as kafka_errors

from kafkasafe.cluster.api import Failure, ProducerIdGranted, Reply
from kafkasafe.cluster.transactions import (
    NO_MEMBER,
    GroupMember,
    OffsetCommitted,
    OffsetsCommitted,
    OffsetToCommit,
    PartitionsAdded,
    TopicPartition,
    TransactionAnswer,
    TransactionDescribed,
    TransactionEnded,
    TransactionIdentity,
    TransactionsInitialized,
)
from kafkasafe.codes.numbers import COORDINATOR_LOAD_IN_PROGRESS, OPERATION_NOT_ATTEMPTED
from kafkasafe.codes.sets import COORDINATOR_MOVED_CODES

Node: TypeAlias = tuple[int, str, int]
"""(node id, host, port)"""

GROUP: Final = 0
TRANSACTION: Final = 1

SOFTWARE: Final[Mapping[str, str]] = {"client_software_name": "kafkasafe", "client_software_version": "1"}
"""The client's name in ApiVersions requests."""

_FEATURE: Final = "transaction.version"
_PROTOCOL_2: Final = 2
_LAST_PRODUCE_1: Final = 11
_FIRST_PRODUCE_2: Final = 12
_LAST_PRODUCE_BY_NAME: Final = 12
_NEWEST: Final[Mapping[str, int]] = {
    "Produce": 13,
    "Fetch": 12,  # from v13 on, Fetch requests name topics by id
    "ListOffsets": 10,
    "Metadata": 13,
    "InitProducerId": 5,
    "OffsetForLeaderEpoch": 4,
    "DescribeProducers": 0,
}
"""The newest version of each request that kafkasafe speaks."""


def newest(name: str, maximum: int = 32767) -> int:
    """Returns the newest version in which a request may be sent.

    Args:
        name: Kafka's name of the request.
        maximum: The newest version in which the request has the meaning that the caller intends.
    """
    return min(maximum, _NEWEST.get(name, maximum))


def lowest_produce(identity: TransactionIdentity | None) -> int:
    """Returns the oldest version of Produce that is permitted for a batch. The version depends on the protocol (1 or 2)
    of the batch's transaction.
    """
    return _FIRST_PRODUCE_2 if identity is not None and identity.protocol >= _PROTOCOL_2 else 3


def highest_produce(identity: TransactionIdentity | None, *, by_id: bool = False) -> int:
    """Returns the newest version of Produce that is permitted for a batch. The version depends on the protocol (1 or 2)
    of the batch's transaction. `by_id` says whether the ids of all topics in the request are known (KIP-516).
    """
    if identity is not None and identity.protocol < _PROTOCOL_2:
        return newest("Produce", _LAST_PRODUCE_1)
    return newest("Produce") if by_id else newest("Produce", _LAST_PRODUCE_BY_NAME)


def versions_of(protocol: int) -> tuple[int, int]:
    """Returns the oldest and the newest version of EndTxn and TxnOffsetCommit for a version of the transaction
    protocol.

    In other versions of EndTxn and TxnOffsetCommit, the client and the coordinator would have different epochs.
    """
    return (5, 5) if protocol >= _PROTOCOL_2 else (0, 4)


def protocol_of(response: Any) -> int:
    """Returns the version of the transaction protocol that a coordinator supports, from its ApiVersions answer."""
    features = getattr(response, "finalized_features", None) or ()
    levels = {feature.name: feature.max_version_level for feature in features}
    return 2 if levels.get(_FEATURE, 0) >= _PROTOCOL_2 else 1


@dataclass(frozen=True, slots=True)
class Question:
    """One request, and how to parse its answer.

    Attributes:
        fields: The request's fields by name. Structs are dicts, and arrays of structs are lists of dicts.
        parse: Turns the answer, whose fields are attributes, into the result.
        minimum: Oldest usable version.
        maximum: Newest version that the caller can use. In later versions, the request may have another meaning.
    """

    name: str
    fields: Mapping[str, Any]
    parse: Callable[[Any], Any]
    minimum: int = 0
    maximum: int = 32767


def metadata_question(
    topics: Sequence[str] | None, parse: Callable[[Any], Any], *, create: bool = False
) -> Question:
    """A Metadata request for these topics (None: all topics). With `create`, brokers may create missing topics."""
    fields = {
        "topics": None if topics is None else [{"name": name} for name in topics],
        "allow_auto_topic_creation": create,
        "include_cluster_authorized_operations": False,
        "include_topic_authorized_operations": False,
    }
    # An empty list of topics means no topic since version 1, but all topics in version 0.
    return Question("Metadata", fields, parse, 1)


def producer_id_question() -> Question:
    """An InitProducerId request without a transactional id. Any broker answers it."""

    def parse(response: Any) -> ProducerIdGranted:
        code = response.error_code
        if code:
            raise kafka_errors.for_code(code)("InitProducerId")
        if not _has_id(response):
            raise kafka_errors.for_code(COORDINATOR_LOAD_IN_PROGRESS)("InitProducerId answered no id")
        return ProducerIdGranted(response.producer_id, response.producer_epoch)

    fields = {
        "transactional_id": None,
        "transaction_timeout_ms": 2**31 - 1,
        "producer_id": -1,
        "producer_epoch": -1,
    }
    return Question("InitProducerId", fields, parse, 0, 5)


class AskBroker(Protocol):
    """Sends a request to the broker `node`, or to any broker if `node` is None. `reply` gets the result of
    `Question.parse`, or `Failure`.
    """

    def __call__(self, question: Question, reply: Reply[Any], *, node: Node | None = None) -> None: ...


class CoordinatorQuestions:
    """Finds the coordinators of transactional ids and groups, and asks them. `Transactions` describes the methods.

    Args:
        ask: Sends a request.
    """

    def __init__(self, ask: AskBroker) -> None:
        self._ask = ask
        # Several threads read and write `_coordinators`; each access is atomic.
        self._coordinators: dict[tuple[int, str], Node] = {}

    # -- finding -----------------------------------------------------------------------------------------------------

    def _coordinator(self, kind: int, key: str, reply: Callable[[Node | int | Failure], None]) -> None:
        """Finds the coordinator of `key`. `reply` gets the broker, FindCoordinator's error code, or a `Failure`."""
        known = self._coordinators.get((kind, key))
        if known is not None:
            reply(known)
            return

        def parse(response: Any) -> Node | int:
            row = response.coordinators[0] if getattr(response, "coordinators", None) else response
            return int(row.error_code) or (row.node_id, row.host, row.port)

        def found(answer: Node | int | Failure) -> None:
            if isinstance(answer, tuple):
                self._coordinators[kind, key] = answer
            # `sent=False`, because only FindCoordinator may have been sent, not the request to the coordinator.
            reply(Failure(answer.error, sent=False) if isinstance(answer, Failure) else answer)

        fields = {"key": key, "key_type": kind, "coordinator_keys": [key]}
        self._ask(Question("FindCoordinator", fields, parse, 1, 4), found)

    def _through(
        self,
        kind: int,
        key: str,
        question: Question,
        reply: Reply[Any],
        of_code: Callable[[int], Any],
    ) -> None:
        """Asks the coordinator of `key`. If the outcome shows that the coordinator may have moved, the next call looks
        for the coordinator again.
        """

        def answered(answer: Any) -> None:
            if isinstance(answer, Failure) or answer.error_code in COORDINATOR_MOVED_CODES:
                self._coordinators.pop((kind, key), None)
            reply(answer)

        def found(node: Node | int | Failure) -> None:
            if isinstance(node, Failure):
                reply(node)
            elif isinstance(node, int):
                reply(of_code(node))
            else:
                self._ask(question, answered, node=node)

        self._coordinator(kind, key, found)

    # -- the transaction ---------------------------------------------------------------------------------------------

    def init_transactional_id(
        self,
        transactional_id: str,
        transaction_timeout_ms: int,
        reply: Reply[TransactionsInitialized],
        *,
        keep: TransactionIdentity | None = None,
    ) -> None:
        def level(response: Any) -> TransactionAnswer:
            protocols.append(protocol_of(response))
            return TransactionAnswer(response.error_code)

        protocols: list[int] = []

        def parse(response: Any) -> TransactionsInitialized:
            if response.error_code:
                return TransactionsInitialized(response.error_code)
            if not _has_id(response):
                return TransactionsInitialized(COORDINATOR_LOAD_IN_PROGRESS)
            identity = TransactionIdentity(
                transactional_id, response.producer_id, response.producer_epoch, protocols[-1]
            )
            return TransactionsInitialized(0, identity)

        init = Question(
            "InitProducerId",
            {
                "transactional_id": transactional_id,
                "transaction_timeout_ms": transaction_timeout_ms,
                "producer_id": -1 if keep is None else keep.producer_id,
                "producer_epoch": -1 if keep is None else keep.epoch,
            },
            parse,
            0 if keep is None else 3,
            5,
        )

        def asked(answer: TransactionAnswer | Failure) -> None:
            if isinstance(answer, Failure):
                reply(Failure(answer.error, sent=False))
            elif answer.error_code:
                reply(TransactionsInitialized(answer.error_code))
            else:
                self._through(TRANSACTION, transactional_id, init, reply, TransactionsInitialized)

        versions = Question("ApiVersions", SOFTWARE, level)
        self._through(TRANSACTION, transactional_id, versions, asked, TransactionAnswer)

    def add_partitions_to_transaction(
        self,
        identity: TransactionIdentity,
        partitions: Sequence[TopicPartition],
        reply: Reply[PartitionsAdded],
    ) -> None:
        topics = [{"name": name, "partitions": numbers} for name, numbers in _by_topic(partitions).items()]

        def parse(response: Any) -> PartitionsAdded:
            codes = {
                (topic.name, row.partition_index): row.partition_error_code
                for topic in response.results_by_topic_v3_and_below
                for row in topic.results_by_partition
            }
            first = sorted(filter(None, codes.values()), key=lambda code: code == OPERATION_NOT_ATTEMPTED)
            missing = [place for place in partitions if place not in codes]
            if missing:
                raise kafka_errors.KafkaProtocolError(f"AddPartitionsToTxn left {missing[0]} out")
            return PartitionsAdded(first[0] if first else 0, codes)

        fields = {
            "v3_and_below_transactional_id": identity.transactional_id,
            "v3_and_below_producer_id": identity.producer_id,
            "v3_and_below_producer_epoch": identity.epoch,
            "v3_and_below_topics": topics,
        }
        question = Question("AddPartitionsToTxn", fields, parse, 0, 3)
        self._through(TRANSACTION, identity.transactional_id, question, reply, PartitionsAdded)

    def add_offsets_to_transaction(
        self, identity: TransactionIdentity, group: str, reply: Reply[TransactionAnswer]
    ) -> None:
        question = Question(
            "AddOffsetsToTxn",
            _signed(identity) | {"group_id": group},
            lambda response: TransactionAnswer(response.error_code),
            0,
            3,
        )
        self._through(TRANSACTION, identity.transactional_id, question, reply, TransactionAnswer)

    def commit_offsets_in_transaction(
        self,
        identity: TransactionIdentity,
        group: str,
        offsets: Mapping[TopicPartition, OffsetToCommit],
        reply: Reply[OffsetsCommitted],
        *,
        member: GroupMember = NO_MEMBER,
    ) -> None:
        def row(topic: str, number: int) -> dict[str, Any]:
            wanted = offsets[topic, number]
            return {
                "partition_index": number,
                "committed_offset": wanted.offset,
                "committed_leader_epoch": wanted.leader_epoch,
                "committed_metadata": wanted.metadata,
            }

        def parse(response: Any) -> OffsetsCommitted:
            codes = {
                (topic.name, answer.partition_index): answer.error_code
                for topic in response.topics
                for answer in topic.partitions
            }
            missing = [place for place in offsets if place not in codes]
            if missing:
                raise kafka_errors.KafkaProtocolError(f"TxnOffsetCommit left {missing[0]} out")
            return OffsetsCommitted(next(filter(None, codes.values()), 0), codes)

        fields = _signed(identity) | {
            "group_id": group,
            "generation_id": member.generation_id,
            "member_id": member.member_id,
            "group_instance_id": member.group_instance_id,
            "topics": [
                {"name": topic, "partitions": [row(topic, number) for number in numbers]}
                for topic, numbers in _by_topic(offsets).items()
            ],
        }
        question = Question("TxnOffsetCommit", fields, parse, *versions_of(identity.protocol))
        self._through(GROUP, group, question, reply, OffsetsCommitted)

    def committed_offset(
        self,
        group: str,
        topic: str,
        partition: int,
        reply: Reply[OffsetCommitted],
        *,
        require_stable: bool = True,
    ) -> None:
        def parse(response: Any) -> OffsetCommitted:
            answer = response.groups[0] if getattr(response, "groups", None) else response
            if answer.error_code:
                return OffsetCommitted(answer.error_code)
            found = answer.topics[0].partitions[0]
            epoch = getattr(found, "committed_leader_epoch", None)
            return OffsetCommitted(
                found.error_code,
                found.committed_offset,
                found.metadata or "",
                -1 if epoch is None else epoch,
            )

        fields = {
            "group_id": group,
            "topics": [{"name": topic, "partition_indexes": [partition]}],
            "groups": [
                {
                    "group_id": group,
                    "member_id": None,
                    "member_epoch": -1,
                    "topics": [{"name": topic, "partition_indexes": [partition]}],
                }
            ],
            "require_stable": require_stable,
        }
        # OffsetFetch v7 is the first version with the field `require_stable` (KIP-447, Kafka 2.5).
        question = Question("OffsetFetch", fields, parse, 7 if require_stable else 2, 9)
        self._through(GROUP, group, question, reply, OffsetCommitted)

    def end_transaction(
        self, identity: TransactionIdentity, commit: bool, reply: Reply[TransactionEnded]
    ) -> None:
        second = identity.protocol >= _PROTOCOL_2

        def parse(response: Any) -> TransactionEnded:
            if response.error_code:
                return TransactionEnded(response.error_code)
            if not second:
                return TransactionEnded(0, identity)
            following = TransactionIdentity(
                identity.transactional_id, response.producer_id, response.producer_epoch, identity.protocol
            )
            return TransactionEnded(0, following)

        fields = _signed(identity) | {"committed": commit}
        question = Question("EndTxn", fields, parse, *versions_of(identity.protocol))
        self._through(TRANSACTION, identity.transactional_id, question, reply, TransactionEnded)

    def describe_transaction(self, transactional_id: str, reply: Reply[TransactionDescribed]) -> None:
        def parse(response: Any) -> TransactionDescribed:
            row = response.transaction_states[0]
            if row.error_code:
                return TransactionDescribed(row.error_code)
            places = frozenset((topic.topic, number) for topic in row.topics for number in topic.partitions)
            return TransactionDescribed(
                0,
                row.transaction_state,
                row.producer_id,
                row.producer_epoch,
                row.transaction_timeout_ms,
                places,
            )

        question = Question("DescribeTransactions", {"transactional_ids": [transactional_id]}, parse)
        self._through(TRANSACTION, transactional_id, question, reply, TransactionDescribed)


def _has_id(response: Any) -> bool:
    """Whether the answer to InitProducerId has a producer id. A broker that just started may answer producer id -1
    without an error code.
    """
    return bool(response.producer_id >= 0 and response.producer_epoch >= 0)


def _signed(identity: TransactionIdentity) -> dict[str, Any]:
    return {
        "transactional_id": identity.transactional_id,
        "producer_id": identity.producer_id,
        "producer_epoch": identity.epoch,
    }


def _by_topic(places: Sequence[TopicPartition] | Mapping[TopicPartition, Any]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic, partition in places:
        topics.setdefault(topic, []).append(partition)
    return topics
