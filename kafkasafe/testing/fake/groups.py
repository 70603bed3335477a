"""Consumer groups of the classic protocol: members, generations, committed offsets. Pure.

A group is EMPTY, PREPARING (members are joining), COMPLETING (the leader assigns the partitions) or STABLE. Callers
pass the current time in ms. `advance` removes members whose session has timed out.

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
        metadata: Text that was committed with the offset.
        place: Place in the log of offsets. The last of several committed offsets in the log wins, regardless of the
            order in which the transactions were committed.
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
    """Whether the member waits for an answer. The session of a waiting member does not time out."""

    @property
    def expires_ms(self) -> int | None:
        """When the member's session times out; None while the member waits for an answer."""
        return None if self.waiting else self.heard_ms + self.session_timeout_ms

    def heard(self, now_ms: int) -> None:
        """Extends the session: the member has sent a request."""
        self.heard_ms = now_ms

    def answered(self, now_ms: int) -> None:
        """Ends the wait with an answer, and restarts the session timeout."""
        self.waiting, self.heard_ms = False, now_ms

    def stop_waiting(self) -> None:
        """Ends the wait with an error."""
        self.waiting = False

    def wait(self) -> None:
        """Begins to wait for the assignment."""
        self.waiting = True

    def joins(self) -> None:
        """Joins the generation that is being prepared, and waits until the generation is complete."""
        self.joined = self.waiting = True

    def must_join(self) -> None:
        """Marks the member as not joined, because another generation is being prepared. The member has to join it."""
        self.joined, self.assignment = False, b""

    def assign(self, assignment: bytes, now_ms: int) -> None:
        """Takes the assignment that the group's leader sent for this member."""
        self.assignment = assignment
        self.answered(now_ms)

    def change(
        self, protocols: list[tuple[str, bytes]], session_timeout_ms: int, rebalance_timeout_ms: int
    ) -> None:
        """Takes the protocols and timeouts that the member sent when it joined again."""
        self.protocols = protocols
        self.session_timeout_ms, self.rebalance_timeout_ms = session_timeout_ms, rebalance_timeout_ms


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
    """Member ids that were granted to clients. No client has joined with them yet."""
    rebalance_by_ms: int = 0
    others_until_ms: int = 0
    """Time in ms at which the wait of a new group for more members ends (`group.initial.rebalance.delay.ms`); 0: no
    wait.
    """
    others_left_ms: int = 0
    """Number of ms by which the wait for more members may still be extended."""
    others_came: bool = False
    offsets: dict[tuple[str, int], Offset] = field(default_factory=dict)
    pending: dict[int, dict[tuple[str, int], Offset]] = field(default_factory=dict)
    """Offsets of open transactions, by producer id."""
    places: int = 0

    @property
    def due_ms(self) -> list[int]:
        """Times in ms at which a session, the wait for more members or the rebalance ends."""
        due = [at for member in self.members.values() if (at := member.expires_ms) is not None]
        if self.state in {GroupState.PREPARING, GroupState.COMPLETING}:
            due.append(self.rebalance_by_ms)
        return [*due, self.others_until_ms] if self.others_until_ms else due

    def advance(self, now_ms: int, delay_ms: int) -> None:
        """Removes members whose session has timed out, and continues a rebalance that waited for them."""
        for member in list(self.members.values()):
            if member.expires_ms is not None and now_ms >= member.expires_ms:
                self.remove(member.member_id, now_ms)
        if self.others_until_ms and now_ms >= self.others_until_ms:
            if self.others_came:
                self._wait_for_others(now_ms, delay_ms)
            if not self.others_until_ms or now_ms >= self.others_until_ms:
                self._complete_join(now_ms)
        if self.state is GroupState.PREPARING and now_ms >= self.rebalance_by_ms:
            self.members = {name: member for name, member in self.members.items() if member.joined}
            self._complete_join(now_ms)
        elif self.state is GroupState.COMPLETING and now_ms >= self.rebalance_by_ms:
            for member in list(self.members.values()):
                if not member.waiting:
                    self.remove(member.member_id, now_ms)

    # -- Members -----------------------------------------------------------------------------------------------------

    def member(self, member_id: str, generation: int | None) -> Member:
        """Returns a member of the current generation.

        Raises:
            RefusedError: With code 22 or 25.
        """
        member = self.members.get(member_id)
        if member is None:
            raise RefusedError(UNKNOWN_MEMBER_ID)
        if generation is not None and generation != self.generation:
            raise RefusedError(ILLEGAL_GENERATION)
        return member

    def common(self, wanted: set[str], member_id: str) -> set[str]:
        """Returns the protocols in `wanted` that all members other than `member_id` have."""
        for member in self.members.values():
            if member.member_id != member_id:
                wanted = wanted & {name for name, _ in member.protocols}
        return wanted

    def add(self, member: Member, protocol_type: str) -> None:
        """Adds a member, which has not joined a generation yet."""
        self.members[member.member_id] = member
        self.others_came = True
        self.protocol_type = protocol_type

    def rebalances_for(self, member: Member, protocols: list[tuple[str, bytes]]) -> bool:
        """Whether a member that joins again starts a rebalance, or joins a rebalance that is being prepared.

        In a stable group, only the leader and members with changed metadata start a rebalance.
        """
        if member.protocols != protocols:
            return True
        leads = member.member_id == self.leader
        return self.state is not GroupState.COMPLETING and (self.state is not GroupState.STABLE or leads)

    def join(self, member: Member, now_ms: int, delay_ms: int) -> None:
        """Lets a member join the next generation. The first members of a group wait for more members."""
        if self.state is GroupState.EMPTY:
            self.others_left_ms = max((m.rebalance_timeout_ms for m in self.members.values()), default=0)
            self._wait_for_others(now_ms, delay_ms)
        self._prepare(now_ms)
        member.joins()
        self._complete_join(now_ms)

    def assign(self, assignments: Mapping[str, bytes], now_ms: int) -> None:
        """Takes the leader's assignments. With them, the generation is complete."""
        for member in self.members.values():
            member.assign(assignments.get(member.member_id, b""), now_ms)
        self.state = GroupState.STABLE

    def remove(self, member_id: str, now_ms: int) -> None:
        """Removes a member. Starts a rebalance if the remaining members are in a generation."""
        del self.members[member_id]
        if self.leader == member_id:
            self.leader = ""
        if self.state in {GroupState.STABLE, GroupState.COMPLETING}:
            self._prepare(now_ms)
        self._complete_join(now_ms)

    def _prepare(self, now_ms: int) -> None:
        if self.state is GroupState.PREPARING:
            return
        self.state = GroupState.PREPARING
        for member in self.members.values():
            member.must_join()
        self._give_time(now_ms)

    def _give_time(self, now_ms: int) -> None:
        longest = max((member.rebalance_timeout_ms for member in self.members.values()), default=0)
        self.rebalance_by_ms = now_ms + longest

    def _wait_for_others(self, now_ms: int, delay_ms: int) -> None:
        delay_ms = min(delay_ms, self.others_left_ms)
        self.others_left_ms -= delay_ms
        self.others_until_ms = now_ms + delay_ms if delay_ms else 0
        self.others_came = False

    def _complete_join(self, now_ms: int) -> None:
        if self.others_until_ms:
            if now_ms < self.others_until_ms:
                return
            self.others_until_ms = 0
        if self.state is not GroupState.PREPARING or not all(m.joined for m in self.members.values()):
            return
        self.generation += 1
        if not self.members:
            self.state, self.leader, self.protocol = GroupState.EMPTY, "", ""
            return
        if self.leader not in self.members:
            self.leader = next(iter(self.members))
        first = next(iter(self.members.values()))
        common = self.common({name for name, _ in first.protocols}, first.member_id)
        self.protocol = next(name for name, _ in first.protocols if name in common)
        self.state = GroupState.COMPLETING
        self._give_time(now_ms)
        for member in self.members.values():
            member.answered(now_ms)

    # -- Offsets -----------------------------------------------------------------------------------------------------

    def commit(self, where: tuple[str, int], offset: Offset) -> None:
        """Commits an offset: adds it to the log of offsets."""
        self.offsets[where] = self._append(offset)

    def commit_later(self, producer_id: int, where: tuple[str, int], offset: Offset) -> None:
        """Adds an offset to the log of offsets. The offset counts only if the producer's transaction is committed."""
        self.pending.setdefault(producer_id, {})[where] = self._append(offset)

    def _append(self, offset: Offset) -> Offset:
        self.places += 1
        return replace(offset, place=self.places)

    def undecided(self, where: tuple[str, int]) -> bool:
        """Whether an open transaction contains an offset for this partition."""
        return any(where in offsets for offsets in self.pending.values())

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        """Commits or discards the offsets of a transaction."""
        offsets = self.pending.pop(producer_id, {})
        for where, offset in offsets.items() if commit else ():
            before = self.offsets.get(where)
            if before is None or before.place < offset.place:
                self.offsets[where] = offset

    def topic_deleted(self, topic: str) -> None:
        """Removes the offsets of a deleted topic."""
        for offsets in (self.offsets, *self.pending.values()):
            for where in [where for where in offsets if where[0] == topic]:
                del offsets[where]


class Groups:
    """All groups of a cluster."""

    def __init__(self, centre: Centre) -> None:
        self._centre = centre
        self._groups: dict[str, Group] = {}
        self._members = 0

    def coordinator(self, name: str) -> int:
        """Node id of the broker that coordinates a group, or -1."""
        return coordinator(self._centre, name, "offsets.topic.num.partitions")

    def all(self) -> Mapping[str, Group]:
        return self._groups

    def get(self, name: str) -> Group:
        """Returns a group, and creates it if it does not exist.

        Raises:
            RefusedError: With code 24 or 30.
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
            group.advance(now_ms, self._delay_ms)

    @property
    def _delay_ms(self) -> int:
        return int(self._centre.settings["group.initial.rebalance.delay.ms"])

    def next_due_ms(self) -> int | None:
        return min((at for group in self._groups.values() for at in group.due_ms), default=None)

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
        """Adds a member, or lets a member join again. While `Member.waiting` is true, the generation is not complete.

        Returns:
            The member; or a member id with which the client must join again (KIP-394).

        Raises:
            RefusedError: With code 23, 24, 25, 26 or 30.
        """
        group = self.get(name)
        settings = self._centre.settings
        least = int(settings["group.min.session.timeout.ms"])
        most = int(settings["group.max.session.timeout.ms"])
        if not least <= session_timeout_ms <= most:
            raise RefusedError(INVALID_SESSION_TIMEOUT)
        if group.members and (
            protocol_type != group.protocol_type or not group.common({p for p, _ in protocols}, member_id)
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
            group.add(member, protocol_type)
            rebalances = True
        else:
            rebalances = group.rebalances_for(member, protocols)
            member.change(protocols, session_timeout_ms, rebalance_timeout_ms)
        member.heard(now_ms)
        if rebalances:
            group.join(member, now_ms, self._delay_ms)
        return member

    def sync(
        self, name: str, member_id: str, generation: int, assignments: Mapping[str, bytes], now_ms: int
    ) -> Callable[[], bytes | None]:
        """Handles a member's request for its assignment. The leader's request contains all assignments.

        Returns:
            A function that returns the assignment, or None if the leader has not sent the assignment yet. The function
            raises `RefusedError` if another rebalance has begun.

        Raises:
            RefusedError: With code 22, 24, 25, 27 or 30.
        """
        group = self.get(name)
        member = group.member(member_id, generation)
        if group.state is GroupState.PREPARING:
            raise RefusedError(REBALANCE_IN_PROGRESS)
        member.heard(now_ms)
        if group.state is GroupState.COMPLETING:
            member.wait()
            if member_id == group.leader:
                group.assign(assignments, now_ms)

        def look() -> bytes | None:
            group.member(member_id, generation)
            if group.state is GroupState.STABLE:
                return member.assignment
            if group.state is GroupState.PREPARING:
                member.stop_waiting()
                raise RefusedError(REBALANCE_IN_PROGRESS)
            return None

        return look

    def heartbeat(self, name: str, member_id: str, generation: int, now_ms: int) -> None:
        """Extends a member's session.

        Raises:
            RefusedError: With code 22, 24, 25, 27 or 30.
        """
        group = self.get(name)
        group.member(member_id, generation).heard(now_ms)
        if group.state is GroupState.PREPARING:
            raise RefusedError(REBALANCE_IN_PROGRESS)

    def leave(self, name: str, member_id: str, now_ms: int) -> None:
        """Removes a member.

        Raises:
            RefusedError: With code 24, 25 or 30.
        """
        group = self.get(name)
        if member_id in group.promised:
            group.promised.discard(member_id)
            return
        group.member(member_id, None)
        group.remove(member_id, now_ms)

    # -- Offsets -----------------------------------------------------------------------------------------------------

    def check_commit(self, name: str, member_id: str, generation: int, now_ms: int) -> Group:
        """Checks whether this member may commit offsets. A client that is not a member has generation -1.

        Raises:
            RefusedError: With code 22, 24, 25, 27 or 30.
        """
        group = self.get(name)
        if generation < 0:
            if group.members:
                raise RefusedError(UNKNOWN_MEMBER_ID)
            return group
        member = group.member(member_id, generation)
        if group.state is GroupState.COMPLETING:
            raise RefusedError(REBALANCE_IN_PROGRESS)
        member.heard(now_ms)
        return group

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        for group in self._groups.values():
            group.end_transaction(producer_id, commit=commit)

    def topic_deleted(self, topic: str) -> None:
        for group in self._groups.values():
            group.topic_deleted(topic)

    def delete(self, name: str) -> None:
        """Removes a group with its offsets.

        Raises:
            RefusedError: With code 68 or 69.
        """
        group = self._groups.get(name)
        if group is None:
            raise RefusedError(GROUP_ID_NOT_FOUND)
        if group.members:
            raise RefusedError(NON_EMPTY_GROUP)
        del self._groups[name]


def coordinator(centre: Centre, key: str, partitions: str) -> int:
    """Node id of the broker that coordinates a key; -1 if no broker is available. The result depends only on the key
    and on the available brokers.
    """
    able = [node for node in centre.brokers if centre.able(node)]
    if not able:
        return -1
    return able[numbered(centre, key, partitions) % len(able)]


def numbered(centre: Centre, key: str, partitions: str) -> int:
    """Number of the internal topic's partition in which a key is stored. `partitions` is the name of the broker's
    setting for the topic's number of partitions.
    """
    return sum(key.encode()) % int(centre.settings[partitions])
