"""Checks whether partitions still have all acknowledged records. Reports lost records and their restoration."""

from __future__ import annotations

from kafkasafe import events
from kafkasafe import journal as j
from kafkasafe.cluster import api as t
from kafkasafe.delivery.engine.context import DeletedTopics, EngineContext, another_topic
from kafkasafe.delivery.engine.end_check import EndCheck
from kafkasafe.delivery.engine.intake import Intake
from kafkasafe.delivery.engine.lane import Lane
from kafkasafe.delivery.engine.ledger import Ledger
from kafkasafe.delivery.engine.messages import Chore, ChoreDue
from kafkasafe.delivery.engine.parcels import Parcel
from kafkasafe.delivery.engine.sequence_errors import SequenceErrors
from kafkasafe.errors import DataLossError, SpoolCorruptError
from kafkasafe.spool.refusals import counted


class LossWatch:
    """See the module."""

    def __init__(
        self,
        context: EngineContext,
        ledger: Ledger,
        intake: Intake,
        sequence_errors: SequenceErrors,
        deleted: DeletedTopics,
    ) -> None:
        self._context = context
        self._log = context.log
        self._config = context.config
        self._ledger = ledger
        self._intake = intake
        self._sequence_errors = sequence_errors
        self._deleted = deleted

    def acked_loss(self, lane: Lane, loss: j.AckedLoss) -> None:
        """Handle a loss of acknowledged records: count and report it, and let callers wait again for the batches to
        send again.
        """
        topic, partition = lane.journal.views.address(loss.destination)
        self._context.stats.losses[loss.cause.value] += 1
        self._sequence_errors.lost((topic, partition))
        self._context.stats.lost_records[topic] += loss.records
        message = (
            f"{topic}-{partition}: {loss.records} acknowledged records are gone from the log, offsets"
            f" {loss.first_offset} to {loss.last_offset} (noticed by {loss.cause.value}): {loss.evidence}"
        )
        if loss.revived:
            fate = f"{loss.revived} of them are in the spool and are sent again"
        elif (
            loss.recreated
            and self._config.on_data_loss == "restore"
            and not self._config.restore_recreated_topics
        ):
            fate = "Nothing is sent again into a topic that may have been recreated (restore_recreated_topics=False)"
        elif self._config.on_data_loss == "restore" and self._config.in_memory:
            fate = "With spool='never' no copy of them is left"
        elif self._config.on_data_loss == "restore":
            fate = (
                "The spool no longer has them; retain_acked_bytes and retain_acked_ms say how many it keeps"
            )
        else:
            fate = f"Nothing is sent again (on_data_loss={self._config.on_data_loss!r})"
        self._log.error(
            "%s. %s",
            message,
            fate,
            lane=lane.name,
            topic=topic,
            partition=partition,
            records=loss.records,
            first_offset=loss.first_offset,
            last_offset=loss.last_offset,
            reason=loss.cause.value,
            event="data_lost",
        )
        for at, number, batch in lane.journal.views.batches():
            if batch.handle not in lane.parcels and (at, number) == (topic, partition):
                parcel = Parcel(
                    topic, partition, None, batch.size_bytes, batch.count, batch.max_timestamp, durable=True
                )
                parcel.restart(self._context.clock.monotonic())
                self._intake.register(lane, parcel, batch)
                if lane.own:
                    self._ledger.parcels.revive(parcel)
        self._context.emit(
            events.DataLost(
                topic,
                partition,
                loss.first_offset,
                loss.last_offset,
                loss.records,
                loss.cause.value,
                loss.evidence,
                loss.revived,
            )
        )
        if self._config.on_data_loss == "raise" and loss.records:
            self._raise_later(topic, partition, message, loss.first_offset, loss.last_offset, loss.records)
        elif self._config.on_data_loss == "restore" and loss.gone[2]:
            first_offset, last_offset, records = loss.gone
            what = f"{message}. {fate}"
            if loss.revived:
                what += f"; {counted(records, 'record')}, offsets {first_offset} to {last_offset}, cannot be sent again"
            self._raise_later(topic, partition, what, first_offset, last_offset, records)

    def _raise_later(
        self, topic: str, partition: int, message: str, first_offset: int, last_offset: int, records: int
    ) -> None:
        """Make the next `send`, `flush` or `close` raise an error about the loss, once."""
        error = DataLossError(
            f"{message}. This error is raised once. If send() raises it, that call's record was not accepted",
            topic=topic,
            partition=partition,
            first_offset=first_offset,
            last_offset=last_offset,
            records=records,
        )
        self._ledger.errors.lose(error)

    def publish_doubted(self, lane: Lane) -> None:
        """Publish which partitions may lack acknowledged records. `flush` does not return until the cluster has
        answered the engine's questions about these partitions.
        """
        doubted = lane.journal.views.doubted
        if lane.own and (doubted or self._ledger.doubted):
            self._ledger.doubt([lane.journal.views.address(number) for number in doubted])

    def missing(self, lane: Lane, hole: j.Hole) -> None:
        """Report records that are missing from the spool, although no damage was found when the lane was opened."""
        topic, partition = lane.journal.views.address(hole.destination)
        message = (
            f"{topic}-{partition}: {counted(hole.records, 'record')} of {lane.name} that precede its pending records"
            f" are neither in the log of the cluster nor in the spool, and no damage explains it: {hole.evidence}."
            " Segments were deleted, or an older copy was restored. The pending records are delivered, in order"
        )
        self._context.stats.spool_missing_records.add(hole.records)
        self._log.error(
            "%s",
            message,
            lane=lane.name,
            topic=topic,
            partition=partition,
            records=hole.records,
            event="spool_records_missing",
        )
        self._context.emit(
            events.SpoolRecordsMissing(lane.name, topic, partition, hole.records, hole.evidence)
        )
        if self._config.on_corrupt == "raise":
            self._ledger.errors.lose(SpoolCorruptError(f"{message}. Raised once", damage=(message,)))

    def is_back(self, lane: Lane, batch: j.Batch) -> None:
        """Note that a lost batch is in the log again, because the engine has resent it."""
        self._context.stats.healed_records[lane.journal.views.address(batch.destination)[0]] += batch.count

    def comes_not_back(self, lane: Lane, batch: j.Batch) -> None:
        """Note that a lost batch was rejected when the engine resent it."""
        topic, partition = lane.journal.views.address(batch.destination)
        path = lane.rejections.path(batch.handle)
        last_offset = batch.place + batch.count - 1
        message = (
            f"{topic}-{partition}: {counted(batch.count, 'acknowledged record')} that the cluster had lost, offsets"
            f" {batch.place} to {last_offset}, rejected when sent again: {batch.fault.message};"
            f" {'kept nowhere' if path is None else f'kept in {path}'}"
        )
        self._raise_later(topic, partition, message, batch.place, last_offset, batch.count)

    def healed(self, lane: Lane, healed: j.Healed) -> None:
        """Report that all lost batches that were sent again are in the log."""
        topic, partition = lane.journal.views.address(healed.destination)
        self._log.warning(
            "%s-%d: %d lost records are in the log again",
            topic,
            partition,
            healed.records,
            lane=lane.name,
            topic=topic,
            partition=partition,
            records=healed.records,
            event="lost_records_restored",
        )
        self._context.emit(
            events.LostRecordsRestored(
                topic, partition, healed.records, healed.first_offset, healed.last_offset
            )
        )

    def check_acked(self) -> None:
        """Check idle partitions for losses of acknowledged records. If a partition is active, the answers to its
        Produce requests already reveal losses.
        """
        self._context.timer(self._config.data_loss_check_s, ChoreDue(Chore.CHECK_ACKED))
        if not self._context.own_cluster.answered:
            return  # the brokers may belong to another cluster
        # Only the metadata reveal that a topic was created again, because all other requests name topics without their
        # ids.
        topics = {
            lane.journal.views.address(number)[0]
            for lane in self._context.lanes
            for number in lane.journal.views.acknowledged()
        }
        if topics:
            self._context.refresh_topics(topics)
        for lane in self._context.lanes:
            for destination, last_acked_offset in lane.journal.views.idle():
                if lane.journal.views.address(destination)[0] not in self._deleted:
                    self._check_end(lane, destination, last_acked_offset)

    def _check_end(
        self, lane: Lane, destination: int, last_acked_offset: int, *, elected: bool = False
    ) -> None:
        """Check whether the log of an idle partition still has the last acknowledged record."""
        epoch = lane.journal.views.leader_epoch(destination)
        check = j.EpochCheck(destination, epoch, last_acked_offset)
        EndCheck(self._context, self._deleted, lane, check, idle=True, elected=elected).begin()

    def check_epoch(self, lane: Lane, check: j.EpochCheck) -> None:
        """After a newly elected leader has acknowledged a batch, check whether its log lacks records that were
        acknowledged before the election.
        """
        EndCheck(self._context, self._deleted, lane, check, idle=False, elected=True).begin()

    def look_again(self, refreshed: t.MetadataRefreshed) -> None:
        """Check partitions after new metadata: with a new leader or topic id, acknowledged records may be lost."""
        for lane in self._context.lanes:
            for destination in lane.journal.views.acknowledged():
                info = refreshed.topics.get(lane.journal.views.address(destination)[0])
                self.compare_topic(lane, destination, info)
            for destination, last_acked_offset in lane.journal.views.idle():
                topic, partition = lane.journal.views.address(destination)
                info = refreshed.topics.get(topic)
                if info is None or info.error_code or partition not in info.partitions:
                    continue
                epoch = info.partitions[partition].leader_epoch
                if lane.checks.see_leader(destination, epoch):
                    elected = 0 <= lane.journal.views.leader_epoch(destination) < epoch
                    self._check_end(lane, destination, last_acked_offset, elected=elected)

    @staticmethod
    def compare_topic(lane: Lane, destination: int, info: t.TopicInfo | None) -> None:
        """Notify the journal if the topic id has changed, because the new topic lacks the acknowledged records."""
        known = lane.journal.views.topic_id(destination)
        if (
            info is not None
            and not info.error_code
            and another_topic(known, info.topic_id)
            and destination in lane.journal.views.acknowledged()
        ):
            evidence = f"topic id {known.hex()} became {info.topic_id.hex()}"
            lane.journal.recreated(destination, evidence)
