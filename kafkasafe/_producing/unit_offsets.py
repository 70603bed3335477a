"""The consumers' offsets that an atomic batch commits."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from kafka import TopicPartition

from kafkasafe import marks as m
from kafkasafe import units as u
from kafkasafe._producing.opening import ProducerParts
from kafkasafe.config.values import as_text, sendable
from kafkasafe.delivery.batch_offsets import BatchFate, check_settings
from kafkasafe.delivery.first_decision import FirstDecision
from kafkasafe.delivery.readings import OffsetClaim
from kafkasafe.errors import UsageError

_INT32: Final = 0x7FFF_FFFF
_INT64: Final = 0x7FFF_FFFF_FFFF_FFFF


@dataclass(frozen=True, slots=True)
class _Source:
    """The offsets of one group from one source: a consumer, or the program itself.

    Attributes:
        fate: The outcome of the batch for these offsets.
        claims: For each partition, the offset to which the batch moves the group if the batch is committed.
        offsets: The offsets; None if the consumer has not moved since its last batch.
        readings: For each (group, topic, partition): the reading that the batch continues. A reading is one run of a
            consumer through the partition.
    """

    fate: BatchFate
    claims: list[OffsetClaim]
    offsets: m.GroupOffsets | None
    readings: Mapping[u.GroupPartition, u.Reading]


class UnitOffsets:
    """Keeps the consumers' offsets that one atomic batch commits, by group."""

    def __init__(self, parts: ProducerParts, decision: FirstDecision[Any]) -> None:
        self._parts = parts
        self._decision = decision
        self._sources: dict[tuple[str, Hashable], _Source] = {}
        """Maps (group, giver) to the offsets that the giver added for the group. A giver is a consumer or the program
        (see `claim`). The entries are in the order in which the offsets were added.
        """
        self._replaced: list[OffsetClaim] = []
        """The claims (`OffsetClaim`) of offsets that were added to the batch and then replaced by later offsets. The
        batch may contain output that was computed from records before the replaced offsets. So if a consumer voids one
        of these claims, the whole batch is void.
        """

    def __bool__(self) -> bool:
        return any(source.offsets is not None for source in self._sources.values())

    @property
    def groups(self) -> Mapping[str, m.GroupOffsets]:
        """Maps a group to the offsets that the batch commits for it."""
        found: dict[str, m.GroupOffsets] = {}
        for (group, _), source in self._sources.items():
            if source.offsets is not None:
                found[group] = _joined(found[group], source.offsets) if group in found else source.offsets
        return found

    @property
    def readings(self) -> Mapping[u.GroupPartition, u.Reading]:
        """For each (group, topic, partition): the reading (a consumer's run through the partition) that the batch
        continues. If the reading is not known, the partition is left out.
        """
        return {
            line: reading for source in self._sources.values() for line, reading in source.readings.items()
        }

    @property
    def is_void(self) -> bool:
        """Whether a consumer went back to an earlier offset, or lost its partitions, after its offsets were added to
        this batch.
        """
        current = (source.claims for source in self._sources.values())
        return any(claim.void for claims in (self._replaced, *current) for claim in claims)

    def miss(self) -> None:
        """Inform each consumer whose offsets are in this batch that the batch was too late and does not commit the
        offsets (see `BatchFate.miss`).
        """
        for source in self._sources.values():
            source.fate.miss()

    def claim(self, group: str, giver: Hashable) -> BatchFate:
        """Discard the earlier offsets of the same giver and group, which new offsets will replace. Return a `BatchFate`
        for the new offsets.

        Args:
            group: The group.
            giver: Identifies the SafeConsumer that adds the offsets. None if the program itself or a KafkaConsumer adds
                the offsets.
        """
        former = self._sources.pop((group, giver), None)
        if former is not None:
            former.fate.forget()
            self._replaced += former.claims
        return BatchFate(self._decision, self)

    def give(self, given: m.GroupOffsets, *, informed: bool) -> None:
        """Add offsets of the program itself or of a KafkaConsumer to the offsets of earlier calls of this method.

        Raises:
            BatchDroppedError: See `GivenOffsets.offer`.
        """
        earlier = self._sources.get((given.group, None))
        if earlier is not None and earlier.offsets is not None:
            given = _joined(earlier.offsets, given)
        fate = self.claim(given.group, None)
        readings, claims = self._parts.given_offsets.offer(fate, given, informed=informed)
        self._sources[given.group, None] = _Source(fate, claims, given, readings)

    def take(
        self,
        giver: Hashable,
        fate: BatchFate,
        positions: Mapping[TopicPartition, Any],
        group: Any,
        readings: Mapping[TopicPartition, u.Reading],
        claims: list[OffsetClaim],
    ) -> None:
        """Add the offsets of a SafeConsumer. `Rereading.offer` has made the `claims` already."""
        name = str(group.group_id)
        self._sources[name, giver] = _Source(fate, claims, None, {})
        if not positions:
            return
        for at in positions:
            self._parts.admission.check_topic(at.topic)
        of_group = {(name, *at): reading for at, reading in readings.items()}
        self._sources[name, giver] = _Source(fate, claims, positions_of(positions, group), of_group)


def positions_of(offsets: Any, group: Any) -> m.GroupOffsets:
    """Return the group and the offsets from the arguments of `send_offsets`: a dict of offsets, or a consumer. Raises
    the errors of `AtomicBatch.send_offsets`.
    """
    if isinstance(offsets, Mapping):
        if group is None:
            raise UsageError(
                "send_offsets({...}) needs the group: pass consumer.group_metadata(), or a group's name"
            )
        for at, given in offsets.items():
            if not (hasattr(at, "topic") and hasattr(at, "partition")):
                raise TypeError(f"send_offsets: {at!r} is not a TopicPartition")
            if not (isinstance(given, int) or (hasattr(given, "offset") and hasattr(given, "metadata"))):
                raise TypeError(f"send_offsets: {given!r} is neither an OffsetAndMetadata nor a number")
        if not (isinstance(group, str) or hasattr(group, "group_id")):
            raise TypeError(f"send_offsets: {group!r} is neither group_metadata() nor the name of a group")
        if not (group if isinstance(group, str) else group.group_id):
            raise ValueError("send_offsets: the name of the group is empty")
        found = {
            at: (given, "", -1)
            if isinstance(given, int)
            else (
                given.offset,
                given.metadata or "",
                -1 if (e := getattr(given, "leader_epoch", -1)) is None else e,
            )
            for at, given in offsets.items()
        }
    else:
        consumer = offsets
        if not all(
            hasattr(consumer, each) for each in ("config", "group_metadata", "assignment", "position")
        ):
            raise TypeError(f"send_offsets: {offsets!r} is neither a consumer nor a dict of offsets")
        check_settings(consumer)
        group = consumer.group_metadata()
        found = {at: (consumer.position(at), "", -1) for at in consumer.assignment()}
    positions = tuple(
        m.Position(
            text_of("a topic", at.topic),
            _number("a partition", at.partition, most=_INT32),
            _number("an offset", offset, most=_INT64),
            _number("a leader epoch", epoch, most=_INT32, least=-1),
            text_of("the metadata of an offset", metadata),
        )
        for at, (offset, metadata, epoch) in sorted(found.items())
    )
    if isinstance(group, str):
        return m.GroupOffsets(text_of("group", group), "", -1, None, positions)
    return m.GroupOffsets(
        text_of("group_id", group.group_id),
        text_of("member_id", group.member_id or ""),
        _number("generation_id", group.generation_id, most=_INT32, least=-1),
        None if group.group_instance_id is None else text_of("group_instance_id", group.group_instance_id),
        positions,
    )


def _joined(earlier: m.GroupOffsets, later: m.GroupOffsets) -> m.GroupOffsets:
    """Combine the offsets that two calls added for one group. If both calls added an offset for a partition, the later
    call's offset counts.

    If the calls name different generations, the result names the lower generation and its member. So a group with a
    newer generation refuses all of the offsets. The group must refuse them: partitions of the older generation may now
    belong to another member, which may read the same records again.
    """
    found = {(each.topic, each.partition): each for each in (*earlier.positions, *later.positions)}
    members = [each for each in (earlier, later) if each.generation_id >= 0]
    member = min(members, key=lambda each: each.generation_id, default=later)
    return replace(member, positions=tuple(position for _, position in sorted(found.items())))


def is_out(offsets: Any, given: m.GroupOffsets) -> bool:
    """Return whether the offsets come from a consumer that has fallen out of its group, or has not joined it yet.

    Kafka accepts offsets without a generation from any client, even while other members own the partitions.
    """
    if isinstance(offsets, Mapping) or given.generation_id >= 0:
        return False
    return hasattr(offsets, "subscription") and offsets.subscription() is not None


def text_of(what: str, given: Any) -> str:
    """Return `given` if it is a string that the spool can store and a request can carry; otherwise raise an error. For
    a member of an enum of strings, return its text.

    Raises:
        TypeError: `given` is not a string.
        ConfigError: `given` is too long, or cannot be encoded.
    """
    if not isinstance(given, str):
        raise TypeError(f"{what}: must be a string, not {given!r}")
    return sendable(what, as_text(given))


def _number(what: str, given: Any, *, most: int, least: int = 0) -> int:
    if type(given) is not int:
        raise TypeError(f"{what}: must be an int, not {given!r}")
    if not least <= given <= most:
        raise ValueError(f"{what}: must be from {least} to {most}, not {given}")
    return given
