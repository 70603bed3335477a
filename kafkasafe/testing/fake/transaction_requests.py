"""Requests of transactional producers, and those for producer ids. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kafkasafe.testing.fake.asking import Ask, Fields, Handler
from kafkasafe.testing.fake.checks import RefusedError
from kafkasafe.testing.fake.group_requests import offsets_of
from kafkasafe.testing.fake.groups import Group, Offset
from kafkasafe.testing.fake.transactions import INVALID_PRODUCER_EPOCH

__all__ = ["HANDLERS"]

NOT_COORDINATOR: Final = 16
ILLEGAL_GENERATION: Final = 22
PRODUCER_FENCED: Final = 90
TRANSACTIONAL_ID_NOT_FOUND: Final = 105

_NONE: Final[Fields] = {"producer_id": -1, "producer_epoch": -1}
_SECOND_PROTOCOL: Final = 5  # EndTxn, TxnOffsetCommit
_FENCED: Final = 2  # AddPartitionsToTxn, AddOffsetsToTxn, EndTxn: from this version on, error 90
_INIT_FENCED: Final = 4  # InitProducerId
_INIT_NAMED: Final = 3  # InitProducerId: from this version on, with the producer's id and epoch


def _answered(empty: Fields, work: Callable[[Ask], Fields]) -> Handler:
    """Makes a handler whose error codes are at the top level of the answer."""

    def handler(ask: Ask) -> Fields:
        try:
            return {"error_code": 0} | work(ask)
        except RefusedError as refused:
            return empty | {"error_code": refused.code}

    return handler


def _check(ask: Ask, name: str) -> None:
    """Checks whether clients may use this transactional id, and whether this broker coordinates it."""
    ask.centre.check_allowed("write", "transactional_id", name)
    if ask.transactions.coordinator(name) != ask.node:
        raise RefusedError(NOT_COORDINATOR)


def _old_epoch(ask: Ask, fenced: int = _FENCED) -> int:
    return PRODUCER_FENCED if ask.version >= fenced else INVALID_PRODUCER_EPOCH


def _identity(ask: Ask) -> tuple[int, int]:
    return ask.message.producer_id, ask.message.producer_epoch


def _granted(identity: tuple[int, int]) -> Fields:
    return {"producer_id": identity[0], "producer_epoch": identity[1]}


def _init_producer_id(ask: Ask) -> Fields:
    message = ask.message
    name = message.transactional_id
    if name is None:
        ask.centre.check_allowed("write", "cluster", "kafka-cluster")
        return _granted((ask.centre.new_producer_id(), 0))
    _check(ask, name)
    return _granted(
        ask.transactions.init(
            name,
            message.transaction_timeout_ms,
            _identity(ask) if ask.version >= _INIT_NAMED else (-1, -1),
            old_epoch=_old_epoch(ask, _INIT_FENCED),
            now_ms=ask.now_ms,
        )
    )


def _add_partitions(ask: Ask) -> Fields:
    """AddPartitionsToTxn as clients send it (up to version 3)."""
    message = ask.message
    name = message.v3_and_below_transactional_id
    wanted = [(topic.name, number) for topic in message.v3_and_below_topics for number in topic.partitions]
    try:
        _check(ask, name)
        codes = ask.transactions.add_partitions(
            name,
            (message.v3_and_below_producer_id, message.v3_and_below_producer_epoch),
            wanted,
            old_epoch=_old_epoch(ask),
            now_ms=ask.now_ms,
        )
    except RefusedError as refused:
        codes = dict.fromkeys(wanted, refused.code)
    return {
        "results_by_topic_v3_and_below": [
            {
                "name": topic.name,
                "results_by_partition": [
                    {"partition_index": number, "partition_error_code": codes[topic.name, number]}
                    for number in topic.partitions
                ],
            }
            for topic in message.v3_and_below_topics
        ]
    }


def _add_offsets(ask: Ask) -> Fields:
    message = ask.message
    _check(ask, message.transactional_id)
    ask.transactions.add_offsets(
        message.transactional_id,
        _identity(ask),
        message.group_id,
        old_epoch=_old_epoch(ask),
        now_ms=ask.now_ms,
    )
    return {}


def _offset_commit(ask: Ask) -> Fields:
    message = ask.message

    def check() -> Group:
        if ask.version >= 3 and message.generation_id >= 0:
            if ask.centre.profile.verifies_transactions and ask.groups.known(message.group_id) is None:
                raise RefusedError(ILLEGAL_GENERATION)
            return ask.groups.check_commit(
                message.group_id, message.member_id, message.generation_id, ask.now_ms
            )
        return ask.groups.get(message.group_id)

    def put(group: Group, where: tuple[str, int], offset: Offset) -> None:
        ask.transactions.put_offset(
            message.transactional_id,
            _identity(ask),
            group,
            where,
            offset,
            second=ask.version >= _SECOND_PROTOCOL,
            now_ms=ask.now_ms,
        )

    return offsets_of(ask, message.topics, check, put)


def _end(ask: Ask) -> Fields:
    message = ask.message
    _check(ask, message.transactional_id)
    second = ask.version >= _SECOND_PROTOCOL
    identity = ask.transactions.end(
        message.transactional_id,
        _identity(ask),
        commit=bool(message.committed),
        second=second,
        old_epoch=_old_epoch(ask),
        now_ms=ask.now_ms,
    )
    return _granted(identity) if second else {}


def _describe(ask: Ask) -> Fields:
    return {"transaction_states": [_state(ask, name) for name in ask.message.transactional_ids]}


def _state(ask: Ask, name: str) -> Fields:
    row: Fields = {"transactional_id": name, "topics": []} | _NONE
    if ask.transactions.coordinator(name) != ask.node:
        return row | {"error_code": NOT_COORDINATOR}
    known = ask.transactions.known(name)
    if known is None:
        return row | {"error_code": TRANSACTIONAL_ID_NOT_FOUND}
    topics: dict[str, list[int]] = {}
    for topic, number in sorted(known.partitions):
        topics.setdefault(topic, []).append(number)
    return row | {
        "error_code": 0,
        "transaction_state": known.state.value,
        "transaction_timeout_ms": known.timeout_ms,
        "transaction_start_time_ms": known.began_ms,
        "producer_id": known.producer_id,
        "producer_epoch": known.epoch,
        "topics": [{"topic": topic, "partitions": numbers} for topic, numbers in topics.items()],
    }


HANDLERS: Final[dict[str, Handler]] = {
    "InitProducerId": _answered(_NONE, _init_producer_id),
    "AddPartitionsToTxn": _add_partitions,
    "AddOffsetsToTxn": _answered({}, _add_offsets),
    "EndTxn": _answered(_NONE, _end),
    "TxnOffsetCommit": _offset_commit,
    "DescribeTransactions": _describe,
}
