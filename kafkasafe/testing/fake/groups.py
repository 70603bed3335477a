"""Consumer groups of the classic protocol: members, generations, committed offsets. Pure.

A group is EMPTY, PREPARING (members are joining), COMPLETING (the leader divides the partitions) or STABLE. Callers
pass all times, in ms; `advance` removes members whose session has timed out.

Not modelled, and refused with an error: static members (`group.instance.id`) and the newer protocol of KIP-848.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from kafkasafe.testing.fake.checks import RefusedError

if TYPE_CHECKING:
    from kafkasafe.testing.fake.centre import Centre

__all__ = ["Group", "GroupState", "Groups", "Member", "Offset", "coordinator", "numbered"]

ILLEGAL_GENERATION: Final = 22
INCONSISTENT_GROUP_PROTOCOL: Final = 23
INVALID_GROUP_ID: Final = 24
UNKNOWN_MEMBER_ID: Final = 25
INVALID_SESSION_TIMEOUT: Final = 26
REBALANCE_IN_PROGRESS: Final = 27
NON_EMPTY_GROUP: Final = 68
GROUP_ID_NOT_FOUND: Final = 69
MEMBER_ID_REQUIRED: Final = 79


class GroupState(enum.Enum):
    """The state of a group."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True)
class Offset:
    """A committed offset.

    Attributes:
        offset: Offset of the next record to read.
        leader_epoch: Leader epoch of the record before this offset; -1 if unknown.
        metadata: Text stored with it.
        place: Place in the log of offsets. The offset that is later in this log counts, even if it was committed
            earlier.
    """

    offset: int
    leader_epoch: int
    metadata: str
    place: int = 0


@dataclass(slots=True)
class Member:
    """One consumer of a group."""

    member_id: str
    client_id: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: list[tuple[str, bytes]]
    heard_ms: int
    assignment: bytes = b""
    joined: bool = False
    """Whether the member has joined the generation that is being prepared."""
    waiting: bool = False
    """Whether the member waits for an answer. While it waits, its session stays alive."""


@dataclass(slots=True)
class Group:
    """One group."""

    name: str
    state: GroupState = GroupState.EMPTY
    generation: int = 0
    protocol_type: str = ""
    protocol: str = ""
    leader: str = ""
    members: dict[str, Member] = field(default_factory=dict)
    promised: set[str] = field(default_factory=set)
    """Member ids that were granted, but with which no client has joined yet."""
    rebalance_by_ms: int = 0
    others_until_ms: int = 0
    """The time until which members of a new group wait for others (`group.initial.rebalance.delay.ms`); 0: no wait."""
    others_left_ms: int = 0
    """The time in ms by which the end of this wait may still be postponed if other members join."""
    others_came: bool = False
    offsets: dict[tuple[str, int], Offset] = field(default_factory=dict)
    pending: dict[int, dict[tuple[str, int], Offset]] = field(default_factory=dict)
    """Offsets of open transactions, by producer id."""
    places: int = 0

    def append(self, offset: Offset) -> Offset:
        """Adds an offset to the log, and returns it with its place."""
        self.places += 1
        return replace(offset, place=self.places)


class Groups:
    """All groups of a cluster."""

    def __init__(self, centre: Centre) -> None:
        self._centre = centre
        self._groups: dict[str, Group] = {}
        self._members = 0

    def coordinator(self, name: str) -> int:
        """Node id of the broker that coordinates a group; -1 if there is none."""
        return coordinator(self._centre, name, "offsets.topic.num.partitions")

    def all(self) -> Mapping[str, Group]:
        """All groups, by name."""
        return self._groups

    def get(self, name: str) -> Group:
        """Returns a group, and creates it if it does not exist.

        Raises:
            RefusedError: 24 or 30.
        """
        if not name:
            raise RefusedError(INVALID_GROUP_ID)
        self._centre.check_allowed("read", "group", name)
        return self._groups.setdefault(name, Group(name))

    def known(self, name: str) -> Group | None:
        """Returns a group; None if it does not exist."""
        return self._groups.get(name)

    # -- Time --------------------------------------------------------------------------------------------------------

    def advance(self, now_ms: int) -> None:
        """Removes members whose session has timed out, and continues rebalances that waited for them."""
        for group in self._groups.values():
            for member in list(group.members.values()):
                if not member.waiting and now_ms - member.heard_ms >= member.session_timeout_ms:
                    self._remove(group, member.member_id, now_ms)
            if group.others_until_ms and now_ms >= group.others_until_ms:
                if group.others_came:
                    self._wait_for_others(group, now_ms)
                if not group.others_until_ms or now_ms >= group.others_until_ms:
                    self._complete_join(group, now_ms)
            if group.state is GroupState.PREPARING and now_ms >= group.rebalance_by_ms:
                for member in list(group.members.values()):
                    if not member.joined:
                        del group.members[member.member_id]
                self._complete_join(group, now_ms)
            elif group.state is GroupState.COMPLETING and now_ms >= group.rebalance_by_ms:
                for member in list(group.members.values()):
                    if not member.waiting:
                        self._remove(group, member.member_id, now_ms)

    def next_due_ms(self) -> int | None:
        """When `advance` next has something to do."""
        if not self._groups:
            return None
        due = [
            member.heard_ms + member.session_timeout_ms
            for group in self._groups.values()
            for member in group.members.values()
            if not member.waiting
        ]
        joining = {GroupState.PREPARING, GroupState.COMPLETING}
        due += [group.rebalance_by_ms for group in self._groups.values() if group.state in joining]
        due += [group.others_until_ms for group in self._groups.values() if group.others_until_ms]
        return min(due, default=None)

    # -- Members -----------------------------------------------------------------------------------------------------

    def join(
        self,
        name: str,
        member_id: str,
        client_id: str,
        protocol_type: str,
        protocols: list[tuple[str, bytes]],
        *,
        session_timeout_ms: int,
        rebalance_timeout_ms: int,
        needs_id: bool,
        now_ms: int,
    ) -> Member | str:
        """Adds a member. `joined` says when the generation is complete.

        Returns:
            The member; or an id with which the client must join again (KIP-394).

        Raises:
            RefusedError: 23, 24, 25, 26 or 30.
        """
        group = self.get(name)
        settings = self._centre.settings
        least = int(settings["group.min.session.timeout.ms"])
        most = int(settings["group.max.session.timeout.ms"])
        if not least <= session_timeout_ms <= most:
            raise RefusedError(INVALID_SESSION_TIMEOUT)
        if group.members and (
            protocol_type != group.protocol_type
            or not self._common(group, {p for p, _ in protocols}, member_id)
        ):
            raise RefusedError(INCONSISTENT_GROUP_PROTOCOL)
        if not member_id:
            self._members += 1
            made = f"{client_id}-{self._members}"
            if needs_id:
                group.promised.add(made)
                return made
            member_id = made
        elif member_id not in group.members and member_id not in group.promised:
            raise RefusedError(UNKNOWN_MEMBER_ID)
        group.promised.discard(member_id)
        member = group.members.get(member_id)
        if member is None:
            member = Member(member_id, client_id, session_timeout_ms, rebalance_timeout_ms, protocols, now_ms)
            group.members[member_id] = member
            group.others_came = True
            group.protocol_type = protocol_type
            unchanged = False
        else:
            # In a stable group, only the leader, or a member with changed metadata, starts a rebalance.
            unchanged = (
                group.state is GroupState.STABLE
                and member.protocols == protocols
                and member_id != group.leader
            ) or (group.state is GroupState.COMPLETING and member.protocols == protocols)
            member.protocols = protocols
            member.session_timeout_ms = session_timeout_ms
            member.rebalance_timeout_ms = rebalance_timeout_ms
        member.heard_ms = now_ms
        if unchanged:
            return member
        self._prepare(group, now_ms)
        member.joined = member.waiting = True
        self._complete_join(group, now_ms)
        return member

    @staticmethod
    def _common(group: Group, wanted: set[str], member_id: str) -> set[str]:
        for member in group.members.values():
            if member.member_id != member_id:
                wanted = wanted & {name for name, _ in member.protocols}
        return wanted

    def _prepare(self, group: Group, now_ms: int) -> None:
        if group.state is GroupState.PREPARING:
            return
        if group.state is GroupState.EMPTY:
            group.others_left_ms = max((m.rebalance_timeout_ms for m in group.members.values()), default=0)
            self._wait_for_others(group, now_ms)
        group.state = GroupState.PREPARING
        for member in group.members.values():
            member.joined = False
            member.assignment = b""
        self._give_time(group, now_ms)

    @staticmethod
    def _give_time(group: Group, now_ms: int) -> None:
        longest = max((member.rebalance_timeout_ms for member in group.members.values()), default=0)
        group.rebalance_by_ms = now_ms + longest

    def _wait_for_others(self, group: Group, now_ms: int) -> None:
        delay_ms = min(int(self._centre.settings["group.initial.rebalance.delay.ms"]), group.others_left_ms)
        group.others_left_ms -= delay_ms
        group.others_until_ms = now_ms + delay_ms if delay_ms else 0
        group.others_came = False

    def _complete_join(self, group: Group, now_ms: int) -> None:
        if group.others_until_ms:
            if now_ms < group.others_until_ms:
                return
            group.others_until_ms = 0
        if group.state is not GroupState.PREPARING or not all(m.joined for m in group.members.values()):
            return
        group.generation += 1
        if not group.members:
            group.state, group.leader, group.protocol = GroupState.EMPTY, "", ""
            return
        if group.leader not in group.members:
            group.leader = next(iter(group.members))
        first = next(iter(group.members.values()))
        common = self._common(group, {name for name, _ in first.protocols}, first.member_id)
        group.protocol = next(name for name, _ in first.protocols if name in common)
        group.state = GroupState.COMPLETING
        self._give_time(group, now_ms)
        for member in group.members.values():
            member.waiting = False
            member.heard_ms = now_ms

    def check_member(self, group: Group, member_id: str, generation: int | None) -> Member:
        """Returns a member of the current generation.

        Raises:
            RefusedError: 22 or 25.
        """
        member = group.members.get(member_id)
        if member is None:
            raise RefusedError(UNKNOWN_MEMBER_ID)
        if generation is not None and generation != group.generation:
            raise RefusedError(ILLEGAL_GENERATION)
        return member

    def sync(
        self, name: str, member_id: str, generation: int, assignments: Mapping[str, bytes], now_ms: int
    ) -> Callable[[], bytes | None]:
        """A member requests its assignment. The leader sends all assignments.

        Returns:
            A function that returns the assignment, or None while the leader has not sent it. It raises `RefusedError`
            if another rebalance has begun.

        Raises:
            RefusedError: 22, 24, 25, 27 or 30.
        """
        group = self.get(name)
        member = self.check_member(group, member_id, generation)
        if group.state is GroupState.PREPARING:
            raise RefusedError(REBALANCE_IN_PROGRESS)
        member.heard_ms = now_ms
        if group.state is GroupState.COMPLETING:
            member.waiting = True
            if member_id == group.leader:
                for other in group.members.values():
                    other.assignment = assignments.get(other.member_id, b"")
                    other.waiting = False
                    other.heard_ms = now_ms
                group.state = GroupState.STABLE

        def look() -> bytes | None:
            self.check_member(group, member_id, generation)
            if group.state is GroupState.STABLE:
                return member.assignment
            if group.state is GroupState.PREPARING:
                member.waiting = False
                raise RefusedError(REBALANCE_IN_PROGRESS)
            return None

        return look

    def heartbeat(self, name: str, member_id: str, generation: int, now_ms: int) -> None:
        """Extends a member's session.

        Raises:
            RefusedError: 22, 24, 25, 27 or 30.
        """
        group = self.get(name)
        member = self.check_member(group, member_id, generation)
        member.heard_ms = now_ms
        if group.state is GroupState.PREPARING:
            raise RefusedError(REBALANCE_IN_PROGRESS)

    def leave(self, name: str, member_id: str, now_ms: int) -> None:
        """Removes a member.

        Raises:
            RefusedError: 24, 25 or 30.
        """
        group = self.get(name)
        if member_id in group.promised:
            group.promised.discard(member_id)
            return
        self.check_member(group, member_id, None)
        self._remove(group, member_id, now_ms)

    def _remove(self, group: Group, member_id: str, now_ms: int) -> None:
        del group.members[member_id]
        if group.leader == member_id:
            group.leader = ""
        if group.state in {GroupState.STABLE, GroupState.COMPLETING}:
            self._prepare(group, now_ms)
        self._complete_join(group, now_ms)

    # -- Offsets -----------------------------------------------------------------------------------------------------

    def check_commit(self, name: str, member_id: str, generation: int, now_ms: int) -> Group:
        """Checks whether this member, or a client outside of any generation (-1), may commit offsets.

        Raises:
            RefusedError: 22, 24, 25, 27 or 30.
        """
        group = self.get(name)
        if generation < 0:
            if group.members:
                raise RefusedError(UNKNOWN_MEMBER_ID)
            return group
        member = self.check_member(group, member_id, generation)
        if group.state is GroupState.COMPLETING:
            raise RefusedError(REBALANCE_IN_PROGRESS)
        member.heard_ms = now_ms
        return group

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        """Commits or discards the offsets of a transaction."""
        for group in self._groups.values():
            offsets = group.pending.pop(producer_id, {})
            for place, offset in offsets.items() if commit else ():
                before = group.offsets.get(place)
                if before is None or before.place < offset.place:
                    group.offsets[place] = offset

    def topic_deleted(self, topic: str) -> None:
        """Removes the committed offsets of a deleted topic."""
        for group in self._groups.values():
            for offsets in (group.offsets, *group.pending.values()):
                for place in [place for place in offsets if place[0] == topic]:
                    del offsets[place]

    def delete(self, name: str) -> None:
        """Removes a group with its offsets.

        Raises:
            RefusedError: 68 or 69.
        """
        group = self._groups.get(name)
        if group is None:
            raise RefusedError(GROUP_ID_NOT_FOUND)
        if group.members:
            raise RefusedError(NON_EMPTY_GROUP)
        del self._groups[name]


def coordinator(centre: Centre, key: str, partitions: str) -> int:
    """Node id of the broker that coordinates a key: always the same one among the running brokers."""
    able = [node for node in centre.brokers if centre.able(node)]
    if not able:
        return -1
    return able[numbered(centre, key, partitions) % len(able)]


def numbered(centre: Centre, key: str, partitions: str) -> int:
    """The partition of the internal topic for a key. `partitions` is the setting with the number of partitions."""
    return sum(key.encode()) % int(centre.settings[partitions])
