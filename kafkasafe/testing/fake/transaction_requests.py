"""Requests of transactional producers, and requests for producer ids. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kafkasafe.testing.fake.asking import Ask, Fields, Handler, refusal
from kafkasafe.testing.fake.checks import RefusedError
from kafkasafe.testing.fake.group_requests import NOT_COORDINATOR, offsets_of
from kafkasafe.testing.fake.groups import ILLEGAL_GENERATION, Group, Offset
from kafkasafe.testing.fake.producers import INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE
from kafkasafe.testing.fake.transactions import INVALID_PRODUCER_ID_MAPPING, TransactionMetadata, TxnState

OPERATION_NOT_ATTEMPTED: Final = 55
PRODUCER_FENCED: Final = 90
TRANSACTIONAL_ID_NOT_FOUND: Final = 105

_NONE: Final[Fields] = {"producer_id": -1, "producer_epoch": -1}
_SECOND_PROTOCOL: Final = 5  # EndTxn, TxnOffsetCommit
_FENCED: Final = 2  # first version with error 90 (AddPartitionsToTxn, AddOffsetsToTxn, EndTxn)
_INIT_FENCED: Final = 4  # InitProducerId
_INIT_NAMED: Final = 3  # InitProducerId: first version with the producer's id and epoch


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


def _current(known: TransactionMetadata | None, identity: tuple[int, int], code: int) -> TransactionMetadata:
    """Returns the state of a transactional id, after a check of the request's producer id and epoch."""
    if known is None:
        raise RefusedError(INVALID_PRODUCER_ID_MAPPING)
    known.check_identity(identity, code)
    return known


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
    identity = message.v3_and_below_producer_id, message.v3_and_below_producer_epoch
    try:
        _check(ask, name)
        known = _current(ask.transactions.known(name), identity, _old_epoch(ask))
        known.check_settled()
        codes = {
            place: refusal(ask.centre.check_allowed, "write", "topic", place[0])
            or refusal(ask.centre.partition, *place)
            for place in wanted
        }
        if any(codes.values()):
            # If one partition cannot be added, no partition is added.
            codes = {place: code or OPERATION_NOT_ATTEMPTED for place, code in codes.items()}
        else:
            known.open(ask.now_ms)
            known.add(*wanted)
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
    name, group = ask.message.transactional_id, ask.message.group_id
    _check(ask, name)
    known = _current(ask.transactions.known(name), _identity(ask), _old_epoch(ask))
    known.check_settled()
    known.open(ask.now_ms)
    known.add_group(group, ask.transactions.number_of(group))
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
        if ask.centre.profile.verifies_transactions:
            _check_offset(ask, group.name)
        ask.transactions.check_log_of_offsets(group.name, *_identity(ask))
        group.commit_later(message.producer_id, where, offset)

    return offsets_of(ask, message.topics, check, put)


def _check_offset(ask: Ask, group: str) -> None:
    """Checks whether the transaction may contain a group's offsets. With protocol 2, also adds the group to the
    transaction.
    """
    known = ask.transactions.known(ask.message.transactional_id)
    known = _current(known, _identity(ask), INVALID_PRODUCER_EPOCH)
    if ask.version >= _SECOND_PROTOCOL:
        known.check_settled()
        known.open(ask.now_ms, second=True)
        known.add_group(group, ask.transactions.number_of(group))
    elif known.state is not TxnState.ONGOING or group not in known.groups:
        raise RefusedError(INVALID_TXN_STATE)


def _end(ask: Ask) -> Fields:
    """EndTxn. With protocol 2, the answer grants a new epoch (KIP-890). So an EndTxn with the old epoch is a
    repetition.
    """
    name, commit, identity = ask.message.transactional_id, bool(ask.message.committed), _identity(ask)
    second = ask.version >= _SECOND_PROTOCOL
    _check(ask, name)
    known = ask.transactions.known(name)
    repeated = known is not None and second and known.previous == identity
    if known is not None and (repeated or known.identity == identity):
        known.check_settled()
    if known is None or not repeated:
        known = _current(known, identity, _old_epoch(ask))
    ended = known.state is (TxnState.COMMITTED if commit else TxnState.ABORTED)
    # With protocol 2, a client may abort without an open transaction, because it may not know whether one is open.
    needless = second and not commit and not ended
    if not repeated and (known.state is TxnState.ONGOING or needless):
        ask.transactions.end(known, commit=commit, bump=second, repeatable=second, now_ms=ask.now_ms)
    elif not ended:
        raise RefusedError(INVALID_TXN_STATE)
    return _granted(known.identity) if second else {}


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
