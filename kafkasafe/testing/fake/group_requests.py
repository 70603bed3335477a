"""Requests of consumer groups. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from kafkasafe.testing.fake.asking import Ask, Fields, Handler, Later, NotModelledError, refusal
from kafkasafe.testing.fake.centre import UNKNOWN_TOPIC_ID
from kafkasafe.testing.fake.checks import RefusedError
from kafkasafe.testing.fake.groups import (
    GROUP_ID_NOT_FOUND,
    MEMBER_ID_REQUIRED,
    Group,
    GroupState,
    Member,
    Offset,
)

OFFSET_METADATA_TOO_LARGE: Final = 12
NOT_COORDINATOR: Final = 16
UNSTABLE_OFFSET_COMMIT: Final = 88

_LONGEST_METADATA: Final = 4096  # offset.metadata.max.bytes
_NEEDS_ID: Final = 4  # JoinGroup
_MANY_GROUPS: Final = 8  # OffsetFetch
_BY_ID: Final = 10  # OffsetCommit, OffsetFetch
_NOT_FOUND: Final = 6  # DescribeGroups: first version in which a missing group is an error


def _checked(empty: Fields, work: Handler) -> Handler:
    """Makes a handler for requests that only the group's coordinator answers. Error codes are at the top level of the
    answer.
    """

    def handler(ask: Ask) -> Fields | Later | None:
        if getattr(ask.message, "group_instance_id", None) is not None:
            raise NotModelledError("Static members (group.instance.id) of consumer groups")
        if ask.groups.coordinator(ask.message.group_id) != ask.node:
            return empty | {"error_code": NOT_COORDINATOR}
        try:
            return work(ask)
        except RefusedError as refused:
            return empty | {"error_code": refused.code}

    return handler


_NO_JOIN: Final[Fields] = {
    "generation_id": -1,
    "protocol_type": None,
    "protocol_name": "",
    "leader": "",
    "member_id": "",
    "members": [],
}


def _join(ask: Ask) -> Fields | Later:
    message = ask.message
    answer = ask.groups.join(
        message.group_id,
        message.member_id,
        ask.client_id,
        message.protocol_type,
        [(protocol.name, bytes(protocol.metadata)) for protocol in message.protocols],
        session_timeout_ms=message.session_timeout_ms,
        rebalance_timeout_ms=message.rebalance_timeout_ms if ask.version > 0 else message.session_timeout_ms,
        needs_id=ask.version >= _NEEDS_ID,
        now_ms=ask.now_ms,
    )
    if isinstance(answer, str):
        return _NO_JOIN | {"error_code": MEMBER_ID_REQUIRED, "member_id": answer}
    group = ask.groups.get(message.group_id)

    def look(_: int) -> Fields | None:
        if group.members.get(answer.member_id) is not answer:
            return _NO_JOIN | {"error_code": 25, "member_id": answer.member_id}
        return None if answer.waiting else _joined(group, answer)

    return look(ask.now_ms) or Later(look, None)


def _joined(group: Group, member: Member) -> Fields:
    leads = group.leader == member.member_id
    return {
        "error_code": 0,
        "generation_id": group.generation,
        "protocol_type": group.protocol_type,
        "protocol_name": group.protocol,
        "leader": group.leader,
        "skip_assignment": False,
        "member_id": member.member_id,
        "members": [
            {"member_id": one.member_id, "metadata": dict(one.protocols)[group.protocol]}
            for one in group.members.values()
        ]
        if leads
        else [],
    }


_NO_SYNC: Final[Fields] = {"protocol_type": None, "protocol_name": None, "assignment": b""}


def _sync(ask: Ask) -> Fields | Later:
    message = ask.message
    shares = {one.member_id: bytes(one.assignment) for one in message.assignments}
    share = ask.groups.sync(message.group_id, message.member_id, message.generation_id, shares, ask.now_ms)
    group = ask.groups.get(message.group_id)

    def look(_: int) -> Fields | None:
        try:
            mine = share()
        except RefusedError as refused:
            return _NO_SYNC | {"error_code": refused.code}
        if mine is None:
            return None
        named = {"protocol_type": group.protocol_type, "protocol_name": group.protocol}
        return named | {"error_code": 0, "assignment": mine}

    return look(ask.now_ms) or Later(look, None)


def _heartbeat(ask: Ask) -> Fields:
    message = ask.message
    ask.groups.heartbeat(message.group_id, message.member_id, message.generation_id, ask.now_ms)
    return {"error_code": 0}


def _leave(ask: Ask) -> Fields:
    message = ask.message
    if ask.version < 3:
        ask.groups.leave(message.group_id, message.member_id, ask.now_ms)
        return {"error_code": 0}
    rows = [
        {
            "member_id": one.member_id,
            "group_instance_id": None,
            "error_code": refusal(ask.groups.leave, message.group_id, one.member_id, ask.now_ms),
        }
        for one in message.members
    ]
    return {"error_code": 0, "members": rows}


# -- Offsets -----------------------------------------------------------------------------------------------------------


def offsets_of(
    ask: Ask, topics: list[Any], check: Callable[[], Group], put: Callable[[Group, Any, Any], None]
) -> Fields:
    """The answer to OffsetCommit and TxnOffsetCommit: one code for each partition."""
    code = 0
    group: Group | None = None
    if ask.groups.coordinator(ask.message.group_id) != ask.node:
        code = NOT_COORDINATOR
    else:
        try:
            group = check()
        except RefusedError as refused:
            code = refused.code
    rows: list[Fields] = []
    for topic in topics:
        parts: list[Fields] = []
        name, named = _named(ask, topic)
        rows.append(named | {"partitions": parts})
        for part in topic.partitions:
            row_code = code
            if group is not None:
                try:
                    if name is None:
                        raise RefusedError(UNKNOWN_TOPIC_ID)
                    ask.centre.check_allowed("read", "topic", name)
                    ask.centre.partition(name, part.partition_index)
                    if len((part.committed_metadata or "").encode()) > _LONGEST_METADATA:
                        raise RefusedError(OFFSET_METADATA_TOO_LARGE)
                    offset = Offset(
                        part.committed_offset, part.committed_leader_epoch, part.committed_metadata or ""
                    )
                    put(group, (name, part.partition_index), offset)
                except RefusedError as refused:
                    row_code = refused.code
            parts.append({"partition_index": part.partition_index, "error_code": row_code})
    return {"topics": rows}


def _named(ask: Ask, topic: Any) -> tuple[str | None, Fields]:
    topic_id = getattr(topic, "topic_id", None)
    if topic_id is None or not topic_id.int:
        return topic.name, {"name": topic.name}
    try:
        return ask.centre.topic_by_id(topic_id).name, {"topic_id": topic_id}
    except RefusedError:
        return None, {"topic_id": topic_id}


def _commit(ask: Ask) -> Fields:
    message = ask.message
    if message.group_instance_id is not None:
        raise NotModelledError("Static members (group.instance.id) of consumer groups")

    return offsets_of(
        ask,
        message.topics,
        lambda: ask.groups.check_commit(
            message.group_id, message.member_id, message.generation_id_or_member_epoch, ask.now_ms
        ),
        Group.commit,
    )


def _offset_fetch(ask: Ask) -> Fields:
    message = ask.message
    if ask.version >= _MANY_GROUPS:
        return {"groups": [_fetched(ask, one.group_id, one.topics) for one in message.groups]}
    found = _fetched(ask, message.group_id, message.topics)
    del found["group_id"]
    return found


def _fetched(ask: Ask, name: str, topics: list[Any] | None) -> Fields:
    here = ask.groups.coordinator(name) == ask.node
    code = refusal(ask.centre.check_allowed, "describe", "group", name) if here else NOT_COORDINATOR
    if code:
        return {"group_id": name, "topics": [], "error_code": code}
    group = ask.groups.known(name)
    rows: list[Fields] = []
    if topics is None:
        places = sorted(group.offsets) if group is not None else []
        for topic in sorted({topic for topic, _ in places}):
            known = ask.centre.topics.get(topic)
            named: Fields = {"name": topic}
            if known is not None and ask.version >= _BY_ID:
                named["topic_id"] = known.topic_id
            numbers = [number for other, number in places if other == topic]
            rows.append(named | {"partitions": [_offset_row(ask, group, topic, n) for n in numbers]})
    for topic in topics or ():
        found, named = _named(ask, topic)
        rows.append(
            named | {"partitions": [_offset_row(ask, group, found, n) for n in topic.partition_indexes]}
        )
    return {"group_id": name, "topics": rows, "error_code": 0}


def _offset_row(ask: Ask, group: Group | None, topic: str | None, number: int) -> Fields:
    nothing: Fields = {
        "partition_index": number,
        "committed_offset": -1,
        "committed_leader_epoch": -1,
        "metadata": "",
        "error_code": 0,
    }
    if topic is None:
        return nothing | {"error_code": UNKNOWN_TOPIC_ID}
    if group is None:
        return nothing
    if group.undecided((topic, number)) and ask.version >= 7 and ask.message.require_stable:
        return nothing | {"error_code": UNSTABLE_OFFSET_COMMIT}
    found = group.offsets.get((topic, number))
    if found is None:
        return nothing
    return nothing | {
        "committed_offset": found.offset,
        "committed_leader_epoch": found.leader_epoch,
        "metadata": found.metadata,
    }


# -- Looking -----------------------------------------------------------------------------------------------------------


def _describe(ask: Ask) -> Fields:
    def row(name: str) -> Fields:
        if ask.groups.coordinator(name) != ask.node:
            return {"group_id": name, "error_code": NOT_COORDINATOR}
        group = ask.groups.known(name)
        if group is None:
            code = GROUP_ID_NOT_FOUND if ask.version >= _NOT_FOUND else 0
            return {"group_id": name, "error_code": code, "group_state": GroupState.DEAD.value}
        return {
            "group_id": name,
            "error_code": 0,
            "group_state": group.state.value,
            "protocol_type": group.protocol_type,
            "protocol_data": group.protocol,
            "members": [
                {
                    "member_id": one.member_id,
                    "client_id": one.client_id,
                    "client_host": "/127.0.0.1",
                    "member_metadata": dict(one.protocols).get(group.protocol, b""),
                    "member_assignment": one.assignment,
                }
                for one in group.members.values()
            ],
        }

    return {"groups": [row(name) for name in ask.message.groups]}


def _list(ask: Ask) -> Fields:
    return {
        "error_code": 0,
        "groups": [
            {
                "group_id": group.name,
                "protocol_type": group.protocol_type,
                "group_state": group.state.value,
                "group_type": "classic",
            }
            for group in ask.groups.all().values()
            if ask.groups.coordinator(group.name) == ask.node
        ],
    }


def _delete(ask: Ask) -> Fields:
    def code(name: str) -> int:
        here = ask.groups.coordinator(name) == ask.node
        return refusal(ask.groups.delete, name) if here else NOT_COORDINATOR

    return {"results": [{"group_id": name, "error_code": code(name)} for name in ask.message.groups_names]}


HANDLERS: Final[dict[str, Handler]] = {
    "JoinGroup": _checked(_NO_JOIN, _join),
    "SyncGroup": _checked(_NO_SYNC, _sync),
    "Heartbeat": _checked({}, _heartbeat),
    "LeaveGroup": _checked({"members": []}, _leave),
    "OffsetCommit": _commit,
    "OffsetFetch": _offset_fetch,
    "DescribeGroups": _describe,
    "ListGroups": _list,
    "DeleteGroups": _delete,
}
