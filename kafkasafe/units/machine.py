"""The machine: events in, actions out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from kafkasafe import marks as m
from kafkasafe.units.failures import Failure, Failures
from kafkasafe.units.ids import FENCED, TransactionalIds
from kafkasafe.units.order import Lines
from kafkasafe.units.outbox import Outbox
from kafkasafe.units.readings import ReadingOrder
from kafkasafe.units.recovery import UnitReplay
from kafkasafe.units.registry import UnitRegistry
from kafkasafe.units.requests import (
    Action,
    AddPartitions,
    Backoff,
    CommitOffsets,
    DescribeTxn,
    EndTxn,
    FindOutcome,
    InitProducerId,
    Produce,
    Refuse,
    Request,
    RetryLater,
)
from kafkasafe.units.schedule import Schedule, adds_itself
from kafkasafe.units.terms import POOL, SUPERSEDED, Grant, GroupPartition, Member, Phase, Reading
from kafkasafe.units.together import MOST, Sharing
from kafkasafe.units.transitions import MOVED_ON, Transitions
from kafkasafe.units.unit import Transaction, Unit

__all__ = ["Units"]

BROKEN: Final = "it goes on from an atomic batch of the same consumer that was dropped"


class Units:
    """The units of one lane, from the spool to their ends. See the package.

    Args:
        front: Whether nothing but batches of units stands before this one in the queue of its partition.
        pool: How many of the lane's own transactional ids there are.
        most: How many units share a transaction at most.
        newest_reading: Number of the reading that began last, in this process.
    """

    def __init__(
        self,
        front: Callable[[Member], bool],
        *,
        pool: int = POOL,
        most: int = MOST,
        newest_reading: Callable[[], int] = lambda: 0,
    ) -> None:
        self._out = Outbox()
        self._units = UnitRegistry()
        self._lines = Lines()
        self._readings = ReadingOrder()
        self._ids = TransactionalIds(self._out, pool)
        self._transitions = Transitions(
            self._units, self._lines, self._readings, self._ids, self._out, newest_reading
        )
        self._failures = Failures(self._ids, self._transitions, self._out)
        self._schedule = Schedule(
            front,
            self._units,
            self._lines,
            self._readings,
            self._ids,
            Sharing(self._lines, most),
            self._transitions,
            self._out,
        )
        self._replay = UnitReplay(self._units, self._lines, self._ids, self._transitions, self._out)

    def name(self, prefix: str) -> None:
        """What the lane's own transactional ids begin with."""
        self._ids.name(prefix)

    # -- what is there ---------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._units)

    @property
    def bare(self) -> int:
        """How many have no batch."""
        return self._units.bare

    @property
    def unfinished(self) -> list[Unit]:
        """All of them, in the order in which they were accepted. From any thread."""
        return self._units.all

    @property
    def pinned(self) -> Iterable[int]:
        """Spool positions that are still needed for units without a batch."""
        return self._units.pinned

    @property
    def earlier(self) -> Mapping[str, tuple[Unit, m.Ended]]:
        """Of each transactional id that a user gave, the unit that earlier incarnations ended last."""
        return self._replay.earlier

    def get(self, unit_id: bytes) -> Unit | None:
        """A unit without a fate."""
        return self._units.get(unit_id)

    def is_own(self, transactional_id: str) -> bool:
        """Whether it is one of the lane's own."""
        return self._ids.is_own(transactional_id)

    def granted(self, transactional_id: str) -> Grant | None:
        """What the id's holder has; None while it is not ours."""
        return self._ids.granted(transactional_id)

    def is_open(self, destination: int) -> bool:
        """Whether a transaction with the partition may be open, or its end is not durable."""
        return self._ids.is_open(destination)

    def held_up(self, unit: Unit) -> bool:
        """Whether it waits for one that is not brought to its end here (`decide`), or shares its transaction.

        From any thread.
        """
        return self._schedule.held_up(unit)

    # -- from the spool --------------------------------------------------------------------------------------------

    def seal(
        self,
        unit_id: bytes,
        transactional_id: str,
        offsets: tuple[m.GroupOffsets, ...],
        readings: Mapping[GroupPartition, Reading] = MappingProxyType({}),
    ) -> Unit:
        """A new unit, after all earlier ones; `closed` says that its batches are there.

        Args:
            unit_id: 16 bytes.
            transactional_id: Given by the user; empty: one of the lane's own.
            offsets: Of consumer groups.
            readings: Of which readings of consumers they are.
        """
        unit = self._units.make(unit_id, transactional_id, offsets, readings)
        if readings:
            unit.note_readings()
        return unit

    def closed(self, unit: Unit) -> None:
        """All its batches are in the queues of their partitions."""
        self._lines.join(unit)
        self._units.note_batches(unit)
        if self._readings.is_broken(unit):
            self._transitions.drop(unit, SUPERSEDED, BROKEN)
        elif self._readings.is_superseded(unit):
            self._transitions.drop(unit, SUPERSEDED, MOVED_ON)

    def written(self, unit: Unit, position: int) -> None:
        """It is durable."""
        unit.write(position)
        self._out.change()

    def divided(self, unit: Unit, batch: Member, parts: Sequence[Member]) -> None:
        """One of its batches was divided, by partition."""
        before = unit.destinations
        unit.divide(batch, parts)
        self._lines.move(unit, before)
        self._out.change()

    def look(self) -> None:
        """A batch before one of a unit was delivered, or given up."""
        self._out.change(changed=bool(self._units))

    def moved(self) -> None:
        """Another cluster is spoken to from now on: what this one granted means nothing there."""
        self._ids.clear()

    def forget(self, destination: int) -> None:
        """What was committed there is in another log than the one that is written to from now on."""
        self._lines.forget(destination)

    def take_over(self, transactional_id: str) -> None:
        """A name that the user gave becomes ours: its former producer is fenced, and what that left open is aborted."""
        tid = self._ids[transactional_id]
        if tid.is_free:
            tid.forget_former()
            self._ids.fence(tid)

    def vacate(self, destination: int, reason: str) -> bool:
        """Take units off a partition whose log is about to be compared; whether none is there. Else ask again later."""
        return self._schedule.abort_on_partition(destination, reason)

    def give_up(self, unit: Unit, code: int, reason: str) -> bool:
        """It is not to be delivered any more. Whether it was in time for that: what is committed already is."""
        return self._transitions.give_up(unit, code, reason)

    # -- answers ---------------------------------------------------------------------------------------------------

    def fenced(self, action: InitProducerId, grant: Grant) -> None:
        """InitProducerId was answered: the id is ours, and nothing of it is open."""
        tid = action.tid
        if not _valid(action):
            return
        tid.give(grant)
        transaction = tid.transaction
        if transaction is not None and transaction.phase is Phase.ASKING:
            self._out.ask(FindOutcome(tid, tid.turn, transaction))
        else:
            tid.leave()
        self._out.change()

    def aborted(self, action: InitProducerId, code: int) -> bool | None:
        """EndTxn, before InitProducerId with `keep`, was answered. Whether that is to be asked as well; None: not yet.

        InitProducerId ends what is open, whichever producer opened it: the coordinator looks at the epoch only where
        nothing is open. So a producer that is refused here goes no further, unless an earlier answer was lost: then the
        new epoch may be its own.

        After a time-out it is asked twice. A successor's first InitProducerId is answered 51 and leaves the epoch
        that a time-out leaves; it comes again within a second, and then that epoch is refused.
        """
        if not _valid(action) or (code in FENCED and not action.tid.unsure):
            return False
        tid = action.tid
        if action.timed_out and code not in FENCED and not tid.alone:
            tid.note_alone()
            self._out.ask(RetryLater(action, 1, None, "it may be another's soon", slow=True))
            return None
        tid.note_end(timed_out=action.timed_out)
        return True

    def unanswered(self, action: InitProducerId, *, ended: bool) -> None:
        """EndTxn (`ended`), or InitProducerId, may have been carried out, and no answer came."""
        if not _valid(action):
            return
        if not ended:
            action.tid.note_unanswered()
        else:
            action.tid.note_end(timed_out=action.timed_out)

    def joined(self, action: AddPartitions) -> None:
        """The partitions are part of the transaction."""
        if _valid(action):
            action.tid.note_open()
            action.transaction.move(Phase.APPENDING)
            self._out.change()

    def appended(self, action: Produce, base_offset: int, leader_epoch: int) -> None:
        """A batch is in its log."""
        if not _valid(action):
            return
        transaction = action.transaction
        action.tid.note_open()
        first = transaction.append(action.batch, base_offset, leader_epoch)
        if first and adds_itself(transaction):
            self._schedule.mark(transaction)
        self._schedule.stage_if_whole(transaction)

    def noted(self, action: CommitOffsets) -> None:
        """Offsets of a group are in the transaction."""
        if not _valid(action):
            return
        transaction = action.transaction
        action.tid.note_open()
        if transaction.note(action.index):
            self._out.change()
        self._schedule.stage_if_whole(transaction)

    def staged(self, transaction: Transaction) -> None:
        """The STAGED marks of its units are durable."""
        if transaction.phase is Phase.STAGING:
            transaction.move(Phase.STAGED)
            self._out.change()

    def ended(self, action: EndTxn, grant: Grant | None) -> None:
        """EndTxn was answered: it is committed.

        Args:
            action: What was asked for.
            grant: For the next transaction; None: not known.
        """
        if not _valid(action):
            return
        tid = action.tid
        tid.end(grant, sure=action not in tid.attempts)
        self._transitions.commit(action.transaction)

    def described(self, action: DescribeTxn, committed: bool | None) -> None:
        """What the coordinator says of a transaction; None: nothing that decides it."""
        if not _valid(action):
            return
        if committed is None:
            self._ids.fence(action.tid)
        else:
            self._transitions.outcome(action.transaction, committed=committed)

    def told(self, action: FindOutcome, *, committed: bool | None) -> None:
        """The outcome of a unit: nothing can change it any more. None: the log does not reach back that far."""
        if not _valid(action):
            return
        if committed is None:
            # The marker says it, once nothing is open under the id.
            action.transaction.forget_refused_end()
            action.tid.expire()
            self._ids.fence(action.tid)
        else:
            self._transitions.outcome(action.transaction, committed=committed)

    def over(self, unit: Unit) -> None:
        """Its ENDED mark is durable."""
        unit.move(Phase.OVER)
        self._units.pop(unit.unit_id)
        self._out.change()
        transaction = unit.transaction
        if transaction is None or transaction.tid is None:
            return
        is_its = transaction.tid.transaction is transaction
        if is_its and all(each.phase is Phase.OVER for each in transaction.units):
            self._transitions.release(transaction)

    def put_aside(self, unit: Unit, *, kept: bool, reason: str = "") -> None:
        """What it holds is durable in `rejected/`, or could not be kept, and is tried again after a pause."""
        if not kept:
            self._out.ask(RetryLater(Backoff(unit), unit.tries + 1, unit.code, reason, slow=True))
            return
        self._transitions.let_go(unit)

    def failed(
        self, action: Request, code: int | None, reason: str, *, sent: bool = True, lasting: bool = False
    ) -> None:
        """A request failed.

        Args:
            action: What was asked for.
            code: Kafka's error code, None: no answer came.
            reason: For people.
            sent: It may have reached a broker.
            lasting: It was answered so for as long as anything is waited for.
        """
        if _valid(action):
            self._failures.failed(action, Failure(code, reason, sent, lasting))

    def again(self, action: Request | Backoff) -> None:
        """The pause that a RetryLater asked for is over."""
        if isinstance(action, Backoff):
            if action.unit.phase is Phase.REFUSED and not action.unit.resting:
                # It could not be kept. Of what rested before it was refused, that is under way.
                self._out.ask(Refuse(action.unit))
            action.unit.wake()
            self._out.change()
        elif _valid(action):
            self._out.ask(action)

    # -- what to do now --------------------------------------------------------------------------------------------

    @property
    def at_rest(self) -> bool:
        """Whether there is nothing to be done or written until something happens."""
        return self._out.is_empty

    @property
    def staging(self) -> Sequence[Transaction]:
        """Whose STAGED marks are among the marks: `staged` takes each when they are durable."""
        return self._out.staging

    @property
    def ending(self) -> Sequence[Unit]:
        """Those whose ENDED mark is among the marks."""
        return self._out.ending

    @property
    def too_large(self) -> Sequence[tuple[Unit, Member]]:
        """Those of which the cluster finds a batch too large: it is divided, and all of it prepared again."""
        return self._out.too_large

    def clear_too_large(self) -> None:
        """The batches that the cluster finds too large are being divided."""
        self._out.too_large.clear()

    def clear_outcomes(self) -> None:
        """What follows from `staging` and `ending` is done."""
        self._out.staging.clear()
        self._out.ending.clear()

    def take_marks(self) -> list[m.Mark]:
        """What is to be persisted now."""
        return self._out.take_marks()

    def advance(self) -> list[Action]:
        """Everything that must be done now; each thing is given once."""
        self._schedule.advance()
        return self._out.take_actions()

    # -- what earlier incarnations left ----------------------------------------------------------------------------

    def recover(self, mark: m.Unit, position: int, accepted_at: int) -> Unit:
        """A UNIT mark; its batches follow."""
        return self._replay.recover(mark, position, accepted_at)

    def recover_readings(self, mark: m.Read) -> None:
        """A READ mark: its unit is known."""
        self._replay.recover_readings(mark)

    def recover_begun(self, mark: m.Begun) -> None:
        """A BEGUN mark: what an earlier STAGED mark says is void."""
        self._replay.recover_begun(mark)

    def recover_staged(self, mark: m.Staged) -> None:
        """A STAGED mark."""
        self._replay.recover_staged(mark)

    def recover_ended(self, mark: m.Ended) -> Unit | None:
        """An ENDED mark; the unit, if it is still there."""
        return self._replay.recover_ended(mark)

    def decide(self, commit: frozenset[bytes] | None, abort: frozenset[bytes]) -> None:
        """Nothing is prepared. What is staged is committed, if it is among these (None: all); others are given up."""
        self._schedule.pause(commit)
        for unit_id in abort:
            self._replay.give_up(unit_id)

    def recovered(self) -> None:
        """The log is read. What an earlier incarnation left open under an id is ended before that id is used again."""
        self._replay.recovered(paused=self._schedule.paused)


def _valid(action: Request) -> bool:
    """Whether the answer to it still means something."""
    return action.turn == action.tid.turn
