"""If a consumer's batches are in several lanes (producers' logs), let only one lane at a time move the group's offsets.

A lane is the log of one producer in the spool. The package `kafkasafe.units` compares and orders the batches of one
lane, but not batches of different lanes. Without this module, a program could write records to its output twice:

1. A program closes its producer while a batch with the results of records 0 to 9 is in flight. The batch is left in the
   spool, and the consumer goes back to the group's offset, 0.
2. The program continues with a producer of another lane: a producer that was open already, or a producer with another
   `client_id` or `spool_dir`. The second producer's batch with records 0 to 9 is committed.
3. A producer, in this process or in another process, opens the first lane and delivers the first batch. The group would
   accept the offsets of the first batch, because they come from the same member in the same generation as the second
   batch. So records 0 to 9 would be in the output twice.

The following rules apply if the outcome of a batch is undecided, and the next batch goes to another lane:

- A consumer that is a member of a group leaves the group and joins it again. The consumer is then a new member in a new
  generation, so the group refuses the earlier batches (KIP-447). The consumer requests the group's offset only after it
  has joined again. The coordinator returns this offset only when all offsets that the group has already accepted are
  committed or aborted.
- A consumer with `assign` has no generation. So `send_offsets` refuses the next batch while the other lane has an
  undecided batch with offsets of the same partition. If the new producer uses the same directory and will adopt the
  other lane, `send_offsets` waits for the adoption, which takes seconds.
- If the producer of the undecided batch is still open, `send_offsets` waits for the outcome. The input of the next
  batch begins at the end of the undecided batch's input. So the next batch must be committed after the undecided batch,
  and must not be committed if the undecided batch is dropped.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Mapping, Sequence
from typing import Final

from kafka.structs import TopicPartition

from kafkasafe._consuming.ports import Group
from kafkasafe.delivery.readings import Carrier, Earlier, OffsetClaim, OffsetsFate, ProducerLane, ReadingRun
from kafkasafe.errors import UsageError, WaitTimeoutError
from kafkasafe.spool.own_lane import OwnLane

_LOOK_S: Final = 0.01
"""The pause between two checks for outcomes, in seconds."""
_READ_S: Final = 0.1
"""The pause between two reads of a lane, in seconds."""
_LEAVES: Final = (
    "the consumer's atomic batches now go to another producer,"
    " and a batch of the former producer is undecided"
)
_OPEN: Final = (
    "Another atomic batch that is still open has offsets of this consumer, and belongs to another producer. Commit or"
    " drop that batch first, and use one producer for all batches of a consumer"
)
_WAITS: Final = (
    "An atomic batch of another producer with offsets of this consumer has no outcome yet. Wait for its outcome, then"
    " call send_offsets() again; or use one producer for all batches of a consumer"
)
_LEFT: Final = (
    "An atomic batch with offsets of this consumer is left in {path}, because its producer was closed before the"
    " outcome. It may still be committed, and the records that were read again would be in the output twice. Open a"
    " producer with the former spool_dir and client_id, which delivers that batch, or run `kafkasafe spool drain`."
    " Then call send_offsets() again"
)


class Way(enum.Enum):
    """Whether batches of another lane (another producer's log) could still move the group's offsets."""

    WAS_FREE = "was free"
    """No other lane had an undecided batch."""
    IS_FREE = "is free"
    """All undecided batches of other lanes now have an outcome."""
    LEFT_GROUP = "left the group"
    """The consumer has left its group, to make the group refuse the other lane's batches. The consumer will read all of
    its partitions again.
    """


class OtherLanes:
    """Lets only one lane at a time move the group's offsets (see the module's docstring). Not thread-safe.

    Args:
        group: The consumer's group.
        timeout_ms: How long `make_way` may wait.
    """

    def __init__(self, group: Group, timeout_ms: float) -> None:
        self._group = group
        self._timeout_ms = timeout_ms
        self._earlier: Earlier[TopicPartition] = Earlier()

    def ended(self, tp: TopicPartition, claims: Sequence[OffsetClaim]) -> None:
        self._earlier.add(tp, claims)

    def make_way(self, readings: Mapping[TopicPartition, ReadingRun], mine: Carrier, group: str) -> Way:
        """Make sure that no batch of another lane (another producer's log) can still move the group's offsets in these
        partitions.

        Args:
            readings: The `ReadingRun` of each partition, which the next batch continues.
            mine: The lane that will deliver the next batch, and the consumer's present membership in the group.
            group: The consumer's group.

        Raises:
            UsageError: A batch of another producer is open, or its producer was closed before the outcome. The program
                has to commit, drop or deliver the other producer's batch first.
            WaitTimeoutError: A batch of another producer has no outcome yet.
        """
        before = [claim for run in readings.values() for claim in run.elsewhere(mine)]
        earlier = [(tp, claim) for tp in readings for claim in self._earlier.elsewhere(tp, mine)]
        if not before and not earlier:
            return Way.WAS_FREE
        deadline = time.monotonic() + self._timeout_ms / 1000
        _await_outcomes([*before, *(claim for _, claim in earlier)], deadline)
        way = Way.IS_FREE
        for tp, claim in earlier:
            if claim.fate() is not OffsetsFate.LEFT or claim.carrier is None:
                continue
            if claim.carrier.member is not None and claim.carrier.member == mine.member:
                way = Way.LEFT_GROUP
            else:
                _await_lane(claim.carrier.lane, mine.lane, (group, *tp), deadline)
                self._earlier.forget(tp, claim)
        if way is Way.LEFT_GROUP:
            self._group.leave(_LEAVES, self._timeout_ms)
        return way


def _await_outcomes(claims: Sequence[OffsetClaim], deadline: float) -> None:
    while True:
        fates = {claim.fate() for claim in claims}
        if OffsetsFate.OPEN in fates:
            raise UsageError(_OPEN)
        if OffsetsFate.WAITING not in fates:
            return
        if time.monotonic() >= deadline:
            raise WaitTimeoutError(_WAITS)
        time.sleep(_LOOK_S)


def _await_lane(lane: ProducerLane, mine: ProducerLane, line: tuple[str, str, int], deadline: float) -> None:
    """Wait until `lane` has no undecided batch that moves the offset of `line` (group, topic and partition).

    Raises:
        UsageError: The producer of the lane `mine` will not adopt `lane`, or the deadline has passed.
    """
    while isinstance(lane, OwnLane) and lane.may_move([line]):
        if not (isinstance(mine, OwnLane) and mine.adopts(lane)) or time.monotonic() >= deadline:
            raise UsageError(_LEFT.format(path=lane.path))
        time.sleep(_READ_S)
