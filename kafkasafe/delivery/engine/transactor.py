"""Carries out what `kafkasafe.units` decides about a lane's units (atomic batches): sends their batches and offsets in
transactions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

from kafka.errors import for_code

from kafkasafe import journal as j
from kafkasafe import units as u
from kafkasafe.cluster import api as t
from kafkasafe.cluster import transactions as x
from kafkasafe.codes.numbers import INVALID_TIMESTAMP, NONE, OPERATION_NOT_ATTEMPTED
from kafkasafe.codes.sets import DESTINATION_CODES, GONE_CODES, LOST_TRANSACTION_CODES, REFUSED_ID_CODES
from kafkasafe.codes.verdicts import Scope, classify_code, classify_produce
from kafkasafe.delivery.engine.context import EngineContext, text
from kafkasafe.delivery.engine.disk import DiskWriter
from kafkasafe.delivery.engine.lane import Lane
from kafkasafe.delivery.engine.ledger import Ledger
from kafkasafe.delivery.engine.messages import UnitAnswer, UnitAnswered
from kafkasafe.delivery.engine.names import RefusedNames
from kafkasafe.delivery.engine.rejects import Rejects
from kafkasafe.delivery.engine.unit_endings import UnitEndings
from kafkasafe.delivery.engine.unit_pauses import UnitPauses
from kafkasafe.errors import SpoolCorruptError, SpoolError
from kafkasafe.record import batch as codec

_OURS: Final = "kafkasafe-"
_EVIDENCE_BYTES: Final = 64 * 1024
_OVER: Final = LOST_TRANSACTION_CODES | {NONE}
_NOT_REFUSED: Final = frozenset({NONE, OPERATION_NOT_ATTEMPTED})
"""With these error codes, AddPartitionsToTxn did not refuse the partition itself. OPERATION_NOT_ATTEMPTED means that
the coordinator refused another partition of the request.
"""


def marker_group(transactional_id: str) -> str:
    """The consumer group whose committed offset is the marker of a transactional id. The prefix separates this group
    from a user's groups.
    """
    return transactional_id if transactional_id.startswith(_OURS) else f"{_OURS}marker-{transactional_id}"


_CAPITAL: Final = re.compile(r"(?<!^)(?=[A-Z])")


class Transactor:
    """See the module."""

    def __init__(
        self,
        context: EngineContext,
        ledger: Ledger,
        disk: DiskWriter,
        rejects: Rejects,
        endings: UnitEndings,
    ) -> None:
        self._context = context
        self._log = context.log
        self._config = context.config
        self._ledger = ledger
        self._disk = disk
        self._rejects = rejects
        self._endings = endings
        self._names = RefusedNames(context)
        self.pauses = UnitPauses(context)

    def carry_out(self, lane: Lane, actions: Sequence[u.Action]) -> None:
        """Send the requests of these actions. Their answers arrive as `UnitAnswered`."""
        appends: list[u.Produce] = []
        for action in actions:
            if isinstance(action, u.Produce):
                appends.append(action)
                continue
            if appends:
                self._append(lane, appends)
                appends = []
            match action:
                case u.InitProducerId():
                    self._fence(lane, action)
                case u.AddPartitions():
                    places = [
                        lane.journal.views.address(number) for number in action.transaction.destinations
                    ]
                    self._context.cluster.transactions.add_partitions_to_transaction(
                        self._identity(action), places, self._then(lane, action, "joined")
                    )
                case u.CommitOffsets():
                    self._note(lane, action)
                case u.EndTxn():
                    self._context.cluster.transactions.end_transaction(
                        self._identity(action), True, self._then(lane, action, "ended")
                    )
                case u.DescribeTxn():
                    self._context.stats.atomic_batches_asked.add()
                    self._context.cluster.transactions.describe_transaction(
                        action.tid.name, self._then(lane, action, "described")
                    )
                case u.FindOutcome():
                    self._ask(lane, action)
                case u.Refuse(unit):
                    self._endings.refuse(lane, unit)
                case u.RetryLater():
                    self.pauses.begin(lane, action)
        if appends:
            self._append(lane, appends)

    def _then(self, lane: Lane, action: u.Request, step: str) -> Callable[[UnitAnswer | t.Failure], None]:
        return lambda answer: self._context.post(UnitAnswered(lane, action, step, answer))

    def _identity(
        self, action: u.AddPartitions | u.CommitOffsets | u.EndTxn | u.Produce
    ) -> x.TransactionIdentity:
        grant = action.transaction.grant
        return x.TransactionIdentity(action.tid.name, grant.producer_id, grant.epoch, grant.protocol)

    def _fence(self, lane: Lane, action: u.InitProducerId) -> None:
        kept = action.keep
        if kept is None:
            self._init(lane, action, None)
            return
        # Abort the lane's own open transaction with EndTxn. InitProducerId would also abort the transaction, but would
        # raise the epoch, as if another producer had taken over the id.
        keep = x.TransactionIdentity(action.tid.name, kept.producer_id, kept.epoch, kept.protocol)
        self._context.cluster.transactions.end_transaction(keep, False, self._then(lane, action, "aborted"))

    def _aborted(self, lane: Lane, action: u.InitProducerId, answer: x.TransactionEnded) -> None:
        """Continue after EndTxn. The answer to InitProducerId shows whether another producer has taken over the id in
        the meantime.
        """
        kept, after, code = action.keep, answer.identity, answer.error_code
        goes_on = False if kept is None or code not in _OVER else lane.journal.units.aborted(action, code)
        if goes_on is None:
            return
        if kept is None or not goes_on:
            self._failed(lane, action, code, f"{classify_code(code).name} ({code})")
        elif after is not None and after.protocol >= 2:
            # EndTxn has already returned a new epoch.
            lane.journal.units.fenced(action, u.Grant(after.producer_id, after.epoch, after.protocol))
        else:
            self._init(
                lane,
                action,
                x.TransactionIdentity(action.tid.name, kept.producer_id, kept.epoch, kept.protocol),
            )

    def _init(self, lane: Lane, action: u.InitProducerId, keep: x.TransactionIdentity | None) -> None:
        self._context.cluster.transactions.init_transactional_id(
            action.tid.name,
            self._config.transaction_timeout_ms,
            self._then(lane, action, "fenced"),
            keep=keep,
        )

    def _append(self, lane: Lane, appends: Sequence[u.Produce]) -> None:
        requests: list[t.ProduceRequest[u.Produce]] = []
        for action in appends:
            batch = action.batch
            topic, partition = lane.journal.views.address(batch.destination)
            if not isinstance(batch, j.Batch):
                continue  # a journal's units only have `j.Batch`
            try:
                # Stamp a copy: the bytes for the disk and for `rejected/` must not contain a transaction's producer id.
                data = bytearray(self._disk.bytes_of(lane, lane.parcels[batch.handle], batch))
            except SpoolCorruptError as error:
                if self._rejects.damaged(lane, batch, error):
                    lane.journal.damaged(batch, str(error))
                else:
                    self._failed(lane, action, None, str(error), sent=False)
                continue
            except SpoolError as error:
                self._failed(lane, action, None, str(error), sent=False)
                continue
            identity = self._identity(action)
            codec.stamp_identity(
                data, identity.producer_id, identity.epoch, action.base_sequence, transactional=True
            )
            self.pauses.tries(topic)
            batch.send_in_unit()
            self._context.stats.sent_batches.add()
            if batch.tries > 1:
                self._context.stats.resent_batches.add()
            requests.append(t.ProduceRequest(action, topic, partition, data, transaction=identity))
        if requests:
            self._context.cluster.produce(
                requests,
                -1,
                int(self._config.request_timeout_s * 1000),
                lambda action, answer: self._context.post(UnitAnswered(lane, action, "appended", answer)),
            )

    # -- offsets of groups, the marker among them ------------------------------------------------------------------

    def _note(self, lane: Lane, action: u.CommitOffsets) -> None:
        identity = self._identity(action)
        if identity.protocol < 2:
            self._context.cluster.transactions.add_offsets_to_transaction(
                identity, self._group(action), self._then(lane, action, "added")
            )
        else:
            self._commit_offsets(lane, action)

    @staticmethod
    def _group(action: u.CommitOffsets) -> str:
        if action.index < 0:
            return marker_group(action.tid.name)
        return action.transaction.offsets[action.index].group

    def _commit_offsets(self, lane: Lane, action: u.CommitOffsets) -> None:
        transaction = action.transaction
        member = x.NO_MEMBER
        if action.index < 0:
            place = self._marker_place(lane, transaction)
            if place is None:
                raise AssertionError(f"{transaction} has nothing to be delivered")
            offsets = {place: x.OffsetToCommit(0, transaction.unit_id.hex())}
        else:
            given = transaction.offsets[action.index]
            offsets = {
                (at.topic, at.partition): x.OffsetToCommit(at.offset, at.metadata, at.leader_epoch)
                for at in given.positions
            }
            member = x.GroupMember(given.member_id, given.generation_id, given.group_instance_id)
        self._context.cluster.transactions.commit_offsets_in_transaction(
            self._identity(action),
            self._group(action),
            offsets,
            self._then(lane, action, "noted"),
            member=member,
        )

    @staticmethod
    def _refused_offset(answer: x.OffsetsCommitted) -> tuple[int, str]:
        """Choose the refused offset to report. An error of the whole group takes precedence over an error of one
        partition.
        """
        refused = {place: code for place, code in answer.error_codes.items() if code}
        (topic, partition), code = next(
            ((place, code) for place, code in refused.items() if code not in DESTINATION_CODES),
            next(iter(refused.items())),
        )
        return code, f"the offset of {topic}-{partition}"

    @staticmethod
    def _marker_place(lane: Lane, transaction: u.Transaction) -> tuple[str, int] | None:
        """The partition of the marker's offset; None if the transaction has no partition. The marker is a committed
        offset, and an offset can be committed only for a partition that exists.
        """
        if transaction.batches:
            return lane.journal.views.address(transaction.batches[0].destination)
        first = next((at for each in transaction.offsets for at in each.positions), None)
        return None if first is None else (first.topic, first.partition)

    # -- the outcome -----------------------------------------------------------------------------------------------

    def _ask(self, lane: Lane, action: u.FindOutcome) -> None:
        if action.by_log:
            self._look_into_log(lane, action)
            return
        place = self._marker_place(lane, action.transaction)
        if place is None:
            # Give up a transaction whose batches are all damaged on disk, because its outcome cannot be determined.
            lane.journal.units.outcome_found(action, committed=False)
            return
        self._context.cluster.transactions.committed_offset(
            marker_group(action.tid.name), *place, self._then(lane, action, "marker")
        )

    @staticmethod
    def _outcome(action: u.DescribeTxn, answer: x.TransactionDescribed) -> bool | None:
        """The outcome. None if the answer does not show it (for example, before Kafka 3.0); the engine then fences the
        transactional id and reads the marker.
        """
        grant = action.transaction.grant
        if answer.error_code:
            return None
        own = not action.transaction.transactional_id
        return u.outcome_of(grant, answer.state, answer.producer_id, answer.epoch, own=own)

    def _look_into_log(self, lane: Lane, action: u.FindOutcome) -> bool:
        """Read the log to find the outcome, because the marker may have expired (`offsets.retention.minutes`).

        Returns False if no batch's offset is known.
        """
        transaction, places = action.transaction, action.transaction.places
        batch = next((each for each in transaction.batches if places.get(each.handle, -1) >= 0), None)
        if batch is None:
            return False
        topic, partition = lane.journal.views.address(batch.destination)
        self._context.cluster.fetch_records(
            topic,
            partition,
            places[batch.handle],
            _EVIDENCE_BYTES,
            self._then(lane, action, "log"),
            isolation_level=1,
        )
        return True

    def _judge_log(self, lane: Lane, action: u.FindOutcome, answer: t.RecordsFetched) -> None:
        transaction, grant = action.transaction, action.transaction.grant
        places = transaction.places
        batch = next(each for each in transaction.batches if places.get(each.handle, -1) >= 0)
        place = places[batch.handle]
        ours = aborted = False
        found = next(codec.iter_headers(bytes(answer.records)), None)
        if found is not None:
            header = found[1]
            it = (grant.producer_id, grant.epoch, transaction.sequences.get(batch.handle, -1), place)
            ours = it == (
                header.producer_id,
                header.producer_epoch,
                header.base_sequence,
                header.base_offset,
            )
            aborted = any(number == grant.producer_id and first <= place for number, first in answer.aborted)
        committed = ours and not aborted
        if action.by_log and not ours:
            if found is None and answer.log_start_offset <= place:
                self._failed(lane, action, None, "an earlier transaction of the partition is open")
            else:
                lane.journal.units.outcome_found(action, committed=None)
            return
        if committed and not action.by_log:
            self._log.warning(
                "The log of a partition shows that a staged atomic batch is committed, although its marker is missing",
                lane=lane.name,
                event="marker_gone",
            )
        lane.journal.units.outcome_found(action, committed=committed)

    # -- answers ---------------------------------------------------------------------------------------------------

    def answered(self, lane: Lane, action: u.Request, step: str, answer: UnitAnswer | t.Failure) -> None:
        """Handle the answer to a request."""
        units = lane.journal.units
        if isinstance(answer, t.Failure):
            self._unanswered(lane, action, step, answer)
            return
        match action, answer:
            case u.DescribeTxn(), x.TransactionDescribed():
                units.described(action, self._outcome(action, answer))
            case u.InitProducerId(), x.TransactionEnded():
                self._aborted(lane, action, answer)
            case u.FindOutcome(), t.RecordsFetched():
                self._look_at_log(lane, action, answer)
            case _ if answer.error_code:
                self._refused_by_broker(lane, action, answer)
            case _:
                if not isinstance(answer, x.TransactionAnswer):
                    # A `TransactionAnswer` (AddOffsetsToTxn) does not show whether the group accepts the offsets.
                    self._names.accepted(lane, action)
                is_first_grant = isinstance(action, u.InitProducerId) and action.tid.former is None
                self._succeeded(lane, action, answer)
                if is_first_grant or (
                    isinstance(action, (u.AddPartitions, u.Produce, u.CommitOffsets))
                    and lane.unit_progress.goes_further(action.transaction)
                ):
                    self._context.progress.note()
        if isinstance(action, u.InitProducerId) and self._ledger.waiters:
            self._ledger.waiters.notify_all()  # `close` may wait until the transaction of a given-up batch is aborted

    def _unanswered(self, lane: Lane, action: u.Request, step: str, failure: t.Failure) -> None:
        units = lane.journal.units
        if isinstance(action, u.DescribeTxn):
            units.described(action, None)
            return
        if isinstance(action, u.InitProducerId) and failure.sent:
            units.unanswered(action, ended=step == "aborted")
        code = None if failure.sent else failure.code
        self._failed(lane, action, code, text(failure.error), sent=failure.sent)

    def _refused_by_broker(self, lane: Lane, action: u.Request, answer: UnitAnswer) -> None:
        code = answer.error_code
        message = classify_code(code).name
        refused: dict[tuple[str, int], int] = {}
        messages: Sequence[str] = ()
        match answer:
            case t.ProduceReply():
                message = answer.error_message or message
                messages = [each for _, each in answer.record_errors]
            case x.OffsetsCommitted() if answer.error_codes:
                # `error_codes` is empty if the request could not find the group's coordinator.
                code, message = self._refused_offset(answer)
            case x.PartitionsAdded():
                refused = {at: each for at, each in answer.error_codes.items() if each not in _NOT_REFUSED}
                if refused:
                    message = ", ".join(f"{topic}-{partition}" for topic, partition in refused)
            case _:
                pass
        reason = f"{classify_code(code).name} ({code}): {message}"
        self._failed(lane, action, code, reason, refused=refused, messages=messages)

    def _succeeded(self, lane: Lane, action: u.Request, answer: UnitAnswer) -> None:
        units = lane.journal.units
        match action, answer:
            case u.InitProducerId(), x.TransactionsInitialized(identity=granted) if granted is not None:
                units.fenced(action, u.Grant(granted.producer_id, granted.epoch, granted.protocol))
                self._ledger.name_answered(action.tid.name)
            case u.AddPartitions(), x.PartitionsAdded():
                units.joined(action)
            case u.Produce(), t.ProduceReply():
                topic, partition = lane.journal.views.address(action.batch.destination)
                if isinstance(action.batch, j.Batch):
                    parcel = lane.parcels.get(action.batch.handle)
                    if parcel is not None:
                        parcel.stamp_append_time(answer.log_append_time)
                units.appended(action, answer.base_offset, self._context.leader_epoch(topic, partition))
            case u.CommitOffsets(), x.TransactionAnswer():
                self._commit_offsets(lane, action)
            case u.CommitOffsets(), x.OffsetsCommitted():
                units.noted(action)
            case u.EndTxn(), x.TransactionEnded(identity=after):
                grant = None if after is None else u.Grant(after.producer_id, after.epoch, after.protocol)
                units.ended(action, grant)
            case u.FindOutcome(), x.OffsetCommitted():
                ours = answer.offset >= 0 and answer.metadata == action.transaction.unit_id.hex()
                if ours or not self._look_into_log(lane, action):
                    units.outcome_found(action, committed=ours)
            case _:
                raise AssertionError(f"{answer} is not an answer to {action}")

    def _look_at_log(self, lane: Lane, action: u.FindOutcome, answer: t.RecordsFetched) -> None:
        self._names.accepted(lane, action)
        code = answer.error_code
        if not code:
            self._judge_log(lane, action, answer)
        elif not action.by_log:
            # The marker is missing, and the log cannot be read. A committed transaction would have a marker, so this
            # transaction was not committed.
            lane.journal.units.outcome_found(action, committed=False)
        elif code in GONE_CODES:
            lane.journal.units.outcome_found(action, committed=None)
        else:
            self._failed(lane, action, code, f"{classify_code(code).name} ({code})")

    def _failed(
        self,
        lane: Lane,
        action: u.Request,
        code: int | None,
        reason: str,
        *,
        sent: bool = True,
        refused: Collection[tuple[str, int]] = (),
        messages: Iterable[str] = (),
    ) -> None:
        name = _CAPITAL.sub("_", type(action).__name__).lower()
        self._context.stats.unit_failures[name] += 1
        self._context.stats.errors["transaction", "none" if code is None else classify_code(code).name] += 1
        lasting = self._names.failed(lane, action, code, reason)
        if isinstance(action, u.InitProducerId):
            self._name_failed(action.tid.name, code, reason)
        early_ms = 0
        if isinstance(action, u.Produce) and code == INVALID_TIMESTAMP:
            early_ms = self._early_ms(lane, action, messages)
            if early_ms and not action.transaction.is_shared:
                # The broker refuses each batch of the partition. All these refusals count as refusals of the first
                # batch, because each change of the refused batch would start the duration again.
                at, now = action.batch.destination, self._context.now()
                first = next(each for each in action.transaction.batches if each.destination == at)
                lasting = lane.journal.deny_unit(at, code, reason, now, handle=first.handle)
        if isinstance(action, (u.Produce, u.AddPartitions)) and code is not None:
            # If units (atomic batches) share a transaction, they are first retried one by one, to find the unit whose
            # destination causes the error.
            alone = not action.transaction.is_shared
            if alone and (code in DESTINATION_CODES or classify_produce(code).scope is Scope.DESTINATION):
                for destination in self._refused(lane, action, refused):
                    lasting = (
                        lane.journal.deny_unit(destination, code, reason, self._context.now()) or lasting
                    )
            if classify_code(code).refresh_metadata:
                self._context.refresh_topics(
                    lane.journal.views.address(number)[0] for number in action.transaction.destinations
                )
        lane.journal.units.failed(action, code, reason, sent=sent, lasting=lasting, early_ms=early_ms)

    def _early_ms(self, lane: Lane, action: u.Produce, messages: Iterable[str]) -> int:
        """See `Answers.early_ms`."""
        if not isinstance(action.batch, j.Batch):
            return 0
        return lane.journal.early_ms(action.batch, messages, self._context.clock.wall_ms())

    @staticmethod
    def _refused(
        lane: Lane, action: u.Produce | u.AddPartitions, refused: Collection[tuple[str, int]]
    ) -> Sequence[int]:
        """The destinations that caused the error. `send` still accepts records for the other partitions of the unit
        (atomic batch).
        """
        if isinstance(action, u.Produce):
            return [action.batch.destination]
        destinations = list(action.transaction.destinations)
        return [each for each in destinations if lane.journal.views.address(each) in refused] or destinations

    def _name_failed(self, name: str, code: int | None, reason: str) -> None:
        """Report permanent refusals of a user's transactional id to callers."""
        if code in REFUSED_ID_CODES:
            error: BaseException = for_code(code)(f"{reason}. {classify_code(code).explanation}")
            self._ledger.name_answered(name, error)
        else:
            self._ledger.name_answered(name, trouble=f" ({reason})")
