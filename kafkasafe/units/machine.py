"""The interface of the package: takes events, and returns marks and actions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from kafkasafe import marks as m
from kafkasafe.codes.sets import FENCED_CODES
from kafkasafe.units.failures import FailurePolicy, RequestFailure
from kafkasafe.units.ids import TransactionalIds
from kafkasafe.units.order import Lines
from kafkasafe.units.outbox import UnitOutbox
from kafkasafe.units.readings import ReadingOrder
from kafkasafe.units.recovery import UnitReplay
from kafkasafe.units.requests import (
    Action,
    AddPartitions,
    CommitOffsets,
    DescribeTxn,
    EndTxn,
    FindOutcome,
    InitProducerId,
    Produce,
    Refuse,
    Request,
    RetryLater,
    UnitPause,
)
from kafkasafe.units.schedule import Schedule, adds_itself
from kafkasafe.units.terms import POOL, SUPERSEDED, Grant, GroupPartition, Member, Phase, Reading
from kafkasafe.units.together import MOST, Sharing
from kafkasafe.units.transitions import MOVED_ON, Transitions
from kafkasafe.units.unit import Transaction, Unit

BROKEN: Final = "an earlier atomic batch of the same consumer was dropped"


class Units:
    """The units of one lane, from their acceptance to their ends. See the package.

    Attributes:
        lines: The unfinished units, and their order for each partition and group offset.
        ids: The transactional ids of the lane.
        out: The decisions that are not carried out yet: which marks the journal must write to the log, and which units
            and transactions continue once these marks are durable.
        replay: Restores the units from the marks of earlier incarnations.

    Args:
        front: Returns True if nothing holds the batch back, and all batches before it in the queue of its partition
            belong to units.
        pool: Number of the lane's own transactional ids.
        most: Largest number of units that share a transaction.
        newest_reading: Returns the number of the newest reading (a consumer's run) in this process.
    """

    def __init__(
        self,
        front: Callable[[Member], bool],
        *,
        pool: int = POOL,
        most: int = MOST,
        newest_reading: Callable[[], int] = lambda: 0,
    ) -> None:
        self.out = UnitOutbox()
        self.lines = Lines()
        self.ids = TransactionalIds(self.out, pool)
        self._readings = ReadingOrder()
        self._transitions = Transitions(self.lines, self._readings, self.ids, self.out, newest_reading)
        self._failures = FailurePolicy(self.ids, self._transitions, self.out)
        self._schedule = Schedule(
            front,
            self.lines,
            self._readings,
            self.ids,
            Sharing(self.lines, most),
            self._transitions,
            self.out,
        )
        self.replay = UnitReplay(self.lines, self.ids, self._transitions, self.out)

    def name(self, prefix: str) -> None:
        """Set the prefix of the lane's own transactional ids."""
        self.ids.name(prefix)

    # -- state -----------------------------------------------------------------------------------------------------

    @property
    def unfinished(self) -> list[Unit]:
        """All unfinished units, in the order in which they were accepted. Any thread may call it."""
        return self.lines.all

    @property
    def aborts(self) -> bool:
        """See `TransactionalIds.aborts`. Any thread may call it."""
        return self.ids.aborts

    def held_up(self, unit: Unit) -> bool:
        """Whether `decide` also keeps this unit waiting: an earlier unit in one of its lines, or another unit of its
        transaction, is left unfinished.

        Any thread may call it.
        """
        return self._schedule.held_up(unit)

    # -- accepted --------------------------------------------------------------------------------------------------

    def seal(
        self,
        unit_id: bytes,
        transactional_id: str,
        offsets: tuple[m.GroupOffsets, ...],
        readings: Mapping[GroupPartition, Reading] = MappingProxyType({}),
    ) -> Unit:
        """Add a new unit after all earlier units. The caller adds the unit's batches, and then calls `closed`.

        Args:
            unit_id: The unit's id, 16 bytes.
            transactional_id: The user's transactional id; empty: the unit gets one of the lane's own ids.
            offsets: The offsets of consumer groups.
            readings: For each partition of a group: the reading (a consumer's run through the partition) from which the
                offset comes.
        """
        unit = self.lines.make(unit_id, transactional_id, offsets, readings)
        if readings:
            unit.note_readings()
        return unit

    def closed(self, unit: Unit) -> None:
        """Note that all batches of the unit are in the queues of their partitions."""
        self.lines.join(unit)
        if self._readings.is_broken(unit):
            self._transitions.drop(unit, SUPERSEDED, BROKEN)
        elif self._readings.is_superseded(unit):
            self._transitions.drop(unit, SUPERSEDED, MOVED_ON)

    def written(self, unit: Unit, position: int) -> None:
        """Note that the unit is durable."""
        unit.write(position)
        self.out.change()

    def divided(self, unit: Unit, batch: Member, parts: Sequence[Member]) -> None:
        """Note that one of the unit's batches was divided."""
        before = unit.destinations
        unit.divide(batch, parts)
        self.lines.move(unit, before)
        self.out.change()

    def moved(self) -> None:
        """Discard the grants of the former cluster, because another cluster is in use now."""
        self.ids.clear()
        self.ids.forget_producer_ids()

    def take_over(self, transactional_id: str) -> None:
        """Acquire a user's id, which fences the id's former producer and aborts that producer's open transaction."""
        tid = self.ids[transactional_id]
        if tid.is_free:
            tid.forget_former()
            self.ids.fence(tid)

    def vacate(self, destination: int, reason: str) -> bool:
        """Requeue the units of a partition before the engine checks the partition's log for losses. Returns False while
        the partition still has a transaction: the caller then calls this method again after each answer.
        """
        return self._schedule.abort_on_partition(destination, reason)

    def give_up(self, unit: Unit, code: int, reason: str) -> bool:
        """Give up a unit, unless it is committed. Returns False if the unit's fate is decided already."""
        return self._transitions.give_up(unit, code, reason)

    # -- answers ---------------------------------------------------------------------------------------------------

    def fenced(self, action: InitProducerId, grant: Grant) -> None:
        """Note the answer to InitProducerId: this producer holds the id, and no transaction is open under the id."""
        tid = action.tid
        if not _valid(action):
            return
        tid.give(grant)
        self.ids.note(tid.name, grant.producer_id)
        transaction = tid.transaction
        if transaction is not None and transaction.phase is Phase.ASKING:
            self.out.ask(FindOutcome(tid, tid.turn, transaction))
        else:
            tid.leave()
        self.out.change()

    def aborted(self, action: InitProducerId, code: int) -> bool | None:
        """Note the answer to EndTxn. The engine sends EndTxn before an InitProducerId request whose `keep` is set.
        Returns whether to send InitProducerId; None: not decided yet.

        While a transaction is open, the coordinator does not check the epoch of InitProducerId. So InitProducerId would
        also end an open transaction of a successor (a producer that took over the id). Therefore a producer does not
        send InitProducerId after a refused EndTxn. The exception is a producer that got no answer to an earlier
        InitProducerId, because the newer epoch may be its own.

        After a timeout, the engine sends EndTxn twice, with a pause in between. A successor's first InitProducerId gets
        CONCURRENT_TRANSACTIONS, but raises the epoch, just as a timeout does. Within a second, the successor repeats
        InitProducerId, and then the coordinator refuses EndTxn. So the second EndTxn shows whether there is a
        successor.
        """
        if not _valid(action) or (code in FENCED_CODES and not action.tid.unsure):
            return False
        tid = action.tid
        if action.timed_out and code not in FENCED_CODES and not tid.alone:
            tid.note_alone()
            self.out.ask(RetryLater(action, 1, None, "another producer may be taking it over", slow=True))
            return None
        tid.note_end(timed_out=action.timed_out)
        return True

    def unanswered(self, action: InitProducerId, *, ended: bool) -> None:
        """Note that EndTxn (`ended` is True) or InitProducerId got no answer. The coordinator may have carried out the
        request.
        """
        if not _valid(action):
            return
        if not ended:
            action.tid.note_unanswered()
        else:
            action.tid.note_end(timed_out=action.timed_out)

    def joined(self, action: AddPartitions) -> None:
        """Note that the partitions were added to the transaction."""
        if _valid(action):
            action.tid.note_open()
            action.transaction.move(Phase.APPENDING)
            self.out.change()

    def appended(self, action: Produce, base_offset: int, leader_epoch: int) -> None:
        """Note that a batch was appended."""
        if not _valid(action):
            return
        transaction = action.transaction
        action.tid.note_open()
        first = transaction.append(action.batch, base_offset, leader_epoch)
        if first and adds_itself(transaction):
            self._schedule.mark(transaction)
        self._schedule.stage_if_whole(transaction)

    def noted(self, action: CommitOffsets) -> None:
        """Note that the transaction contains the offsets of a group."""
        if not _valid(action):
            return
        transaction = action.transaction
        action.tid.note_open()
        if transaction.note(action.index):
            self.out.change()
        self._schedule.stage_if_whole(transaction)

    def staged(self, transaction: Transaction) -> None:
        """Note that the STAGED marks of the transaction's units are durable."""
        if transaction.phase is Phase.STAGING:
            transaction.move(Phase.STAGED)
            self.out.change()

    def ended(self, action: EndTxn, grant: Grant | None) -> None:
        """Note the answer to EndTxn: the transaction is committed.

        Args:
            action: The request.
            grant: The grant for the next transaction; None if unknown.
        """
        if not _valid(action):
            return
        tid = action.tid
        if grant is not None:
            self.ids.note(tid.name, grant.producer_id)
        tid.end(grant, sure=action not in tid.attempts)
        self._transitions.commit(action.transaction)

    def described(self, action: DescribeTxn, committed: bool | None) -> None:
        """Take the coordinator's description of a transaction. `committed` is None if the description does not show the
        outcome.
        """
        if not _valid(action):
            return
        if committed is None:
            self.ids.fence(action.tid)
        else:
            self._transitions.outcome(action.transaction, committed=committed)

    def outcome_found(self, action: FindOutcome, *, committed: bool | None) -> None:
        """Note the final outcome of a transaction. `committed` is None if the log does not have the transaction any
        more.
        """
        if not _valid(action):
            return
        if committed is None:
            # InitProducerId ends an open transaction of the id, and then the marker (a committed offset) shows the
            # outcome.
            action.transaction.forget_refused_end()
            action.tid.expire()
            self.ids.fence(action.tid)
        else:
            self._transitions.outcome(action.transaction, committed=committed)

    def over(self, unit: Unit) -> None:
        """Note that the unit's ENDED mark is durable."""
        unit.move(Phase.OVER)
        self.lines.pop(unit.unit_id)
        self.out.change()
        transaction = unit.transaction
        if transaction is None or transaction.tid is None:
            return
        is_its = transaction.tid.transaction is transaction
        if is_its and all(each.phase is Phase.OVER for each in transaction.units):
            self._transitions.release(transaction)

    def put_aside(self, unit: Unit, *, kept: bool, reason: str = "") -> None:
        """Note whether a refused unit's records are durable in `rejected/`. If not, try again after a pause."""
        if not kept:
            unit.fail()
            self.out.ask(RetryLater(UnitPause(unit), unit.tries, unit.code, reason, slow=True))
            return
        self._transitions.end_dropped(unit)

    def failed(
        self,
        action: Request,
        code: int | None,
        reason: str,
        *,
        sent: bool = True,
        lasting: bool = False,
        early_ms: int = 0,
    ) -> None:
        """Note that a request of a transaction failed.

        Args:
            action: The request.
            code: Kafka's error code; None without an answer.
            reason: Human-readable.
            sent: Whether the request may have reached a broker.
            lasting: Whether the request has failed with the same answer for longer than `blocked_timeout_ms`.
            early_ms: If the broker refused a batch because its timestamps are in the future: after how many
                milliseconds the broker will accept the batch. Otherwise 0.
        """
        if _valid(action):
            self._failures.failed(action, RequestFailure(code, reason, sent, lasting, early_ms))

    def again(self, action: Request | UnitPause) -> None:
        """Note that the pause of a RetryLater is over."""
        if isinstance(action, UnitPause):
            if action.unit.phase is Phase.REFUSED and not action.unit.resting:
                # Try again to save the unit's records. For a unit that was `resting` when it was refused, the engine is
                # already saving the records.
                self.out.ask(Refuse(action.unit))
            action.unit.wake()
            self.out.change()
        elif _valid(action):
            self.out.ask(action)

    # -- decisions -------------------------------------------------------------------------------------------------

    def advance(self) -> list[Action]:
        """Return the actions that are due, each only once."""
        self._schedule.advance()
        return self.out.take_actions()

    # -- recovery ----------------------------------------------------------------------------------------------------

    def decide(self, commit: frozenset[bytes] | None, abort: frozenset[bytes]) -> None:
        """Begin no units. Commit only the staged units in `commit` (None: all), and give up the units in `abort`."""
        self._schedule.pause(commit)
        for unit_id in abort:
            self.replay.give_up(unit_id)

    def recovered(self) -> None:
        """Finish recovery. If an earlier incarnation left a transaction open, the transaction ends before its
        transactional id is used again.
        """
        if self.lines.by_id:
            self.replay.recovered(paused=self._schedule.paused)
        else:
            self.ids.clear()


def _valid(action: Request) -> bool:
    """Whether the request belongs to its id's current turn. Only then does the answer count."""
    return action.turn == action.tid.turn
