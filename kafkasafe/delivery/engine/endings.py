"""Ends batches that are committed, rejected, undecidable or too late, and reports the outcome to callers, hooks and
logs.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

from kafkasafe import events
from kafkasafe import journal as j
from kafkasafe.cluster import api as t
from kafkasafe.codes.sets import MISSING_CODES
from kafkasafe.codes.verdicts import classify_code
from kafkasafe.delivery.engine.context import EngineContext
from kafkasafe.delivery.engine.disk import SPILL_EVERY_S, DiskWriter
from kafkasafe.delivery.engine.lane import Lane
from kafkasafe.delivery.engine.ledger import Ledger
from kafkasafe.delivery.engine.losses import LossWatch
from kafkasafe.delivery.engine.messages import Chore, ChoreDue
from kafkasafe.delivery.engine.names import refused_names, topics_beside
from kafkasafe.delivery.engine.parcels import UNCHOSEN, Parcel, given_partitions
from kafkasafe.errors import (
    BatchDroppedError,
    DeliveryTimeoutError,
    RejectedError,
    SpoolCorruptError,
    SpoolError,
    UndecidableError,
)
from kafkasafe.record import batch as codec
from kafkasafe.spool.refusals import RefusedDestination, counted, place_of, refused
from kafkasafe.spool.rejected import data_of


class Endings:
    """See the module."""

    def __init__(self, context: EngineContext, ledger: Ledger, disk: DiskWriter, losses: LossWatch) -> None:
        self._context = context
        self._log = context.log
        self._config = context.config
        self._ledger = ledger
        self._disk = disk
        self._losses = losses
        self._began = context.clock.monotonic()
        self.refused_topics: Mapping[str, RefusedDestination] = {}
        """Topics that the cluster refuses as a whole: topic name → refusal. Any thread may read the mapping, because
        the engine replaces it and never changes it.
        """
        self.refused_partitions: Mapping[tuple[str, int], RefusedDestination] = {}
        """Refused partitions of topics that the cluster otherwise accepts: (topic, partition) → refusal. Any thread may
        read this mapping too, because the engine replaces it and never changes it.
        """

    def resolve(self, lane: Lane, resolutions: Sequence[j.Resolution]) -> None:
        """Give callers the results of batches whose outcome is final and durable."""
        finished = []
        for resolution in resolutions:
            batch = resolution.batch
            if resolution.fate is j.Fate.COMMITTED and batch.revived:
                self._losses.is_back(lane, batch)
            parcel = lane.parcels.pop(batch.handle, None)
            if parcel is None:
                continue  # the batch was divided, so its parts report the outcome
            match resolution.fate:
                case j.Fate.COMMITTED:
                    self._deliver(lane, batch, parcel)
                case j.Fate.REJECTED if lane.rejections.is_damaged(batch.handle):
                    self._context.stats.records[parcel.topic, "damaged"] += batch.count
                    parcel.fail(_damage_error(batch, lane.rejections.finish(batch.handle)))
                case j.Fate.REJECTED:
                    self._context.stats.records[parcel.topic, "rejected"] += batch.count
                    parcel.fail(self._rejection_error(lane, batch))
                    self._dead_letter(lane, batch, parcel)
                case j.Fate.DROPPED:
                    self._context.stats.records[parcel.topic, "dropped"] += batch.count
                    parcel.fail(_drop_error(batch))
                case j.Fate.REPLACED:
                    continue
            self._disk.drop(parcel)
            finished.append(parcel)
        with self._ledger.lock:
            self._context.progress.note()
            for parcel in finished:
                self._ledger.durable(parcel)
            given_up = _any_done(finished)
        # `Ledger.finish` wakes no callers for a batch that already failed with `delivery_timeout_ms`, so wake these
        # callers here.
        if given_up and self._ledger.waiters:
            self._ledger.waiters.notify_all()
        for parcel in finished:
            self._ledger.finish(parcel)

    def _deliver(self, lane: Lane, batch: j.Batch, parcel: Parcel) -> None:
        """Note that the cluster has a batch."""
        parcel.deliver(batch.base_offset)
        self._context.stats.records[parcel.topic, "committed"] += batch.count
        now = self._context.clock.monotonic()
        for each in parcel.parents or (parcel,):
            if each.sealed_at:
                self._context.stats.ack.observe(now - each.sealed_at, each.count)
        topic, partition = lane.journal.views.address(batch.destination)
        if self._config.on_event is not None:
            self._context.emit(events.RecordsCommitted(topic, partition, batch.base_offset, batch.count))

    def _rejection_error(self, lane: Lane, batch: j.Batch) -> RejectedError:
        kept_where = (
            "With spool='never' no copy is kept: the program has to"
            if self._config.in_memory
            else f"It is kept in the spool directory under {lane.name}/rejected; kafkasafe spool resend"
        )
        again = "send it again, after the cause is removed" if self._config.in_memory else "sends it again"
        what = (
            "The cluster rejected the record"
            if batch.unit is None
            else "The record was part of an atomic batch that was rejected as a whole"
        )
        return RejectedError(
            f"{what}: {batch.fault.message}. {kept_where} {again}",
            code=batch.fault.code,
            reason=batch.fault.message,
        )

    def expire(self) -> None:
        """Fail futures whose `delivery_timeout_ms` is over. The records of these futures stay in the spool and are
        still delivered. For records of an earlier incarnation, the timeout begins at the start of this incarnation.
        """
        limit = self._config.delivery_timeout_s
        if limit is None:
            return
        before = self._context.clock.monotonic() - limit
        safe_where = (
            "in memory, as long as this producer lives," if self._config.in_memory else "safe in the spool"
        )
        with self._ledger.lock:
            late = list(self._late(before))
            for parcel in late:
                parcel.expire()
        for parcel in late:
            self._context.stats.records[parcel.topic, "timed_out"] += parcel.count
            self._context.stats.exhausted["produce"] += 1
            network = self._context.cluster.last_error
            parcel.fail(
                DeliveryTimeoutError(
                    f"Not acknowledged within delivery_timeout_ms={limit * 1000:.0f}. The record is {safe_where} and"
                    " is delivered when the cluster accepts it: do not send it again"
                    + ("" if network is None else f". Brokers cannot be used yet ({t.in_words(network)})")
                )
            )
            self._ledger.finish(parcel)
        self._context.timer(SPILL_EVERY_S, ChoreDue(Chore.EXPIRE))

    def _late(self, before: float) -> Iterator[Parcel]:
        for parcel in self._ledger.parcels.open.values():
            if (parcel.sealed_at or self._began) > before:
                break
            if not parcel.expired and (parcel.durable or self._config.in_memory):
                yield parcel

    def notice(self, lane: Lane, notice: j.Notice) -> None:
        """Report a notice of the journal to logs, hooks and callers."""
        match notice:
            case j.AckedLoss():
                self._losses.acked_loss(lane, notice)
            case j.Healed():
                self._losses.healed(lane, notice)
            case j.Hole():
                self._losses.missing(lane, notice)
            case j.Undecidable(batch, evidence):
                self._park(lane, batch, evidence)
            case j.Refusal(batch):
                self._rejected(lane, batch)
            case j.Denied(destination, denial):
                self._denied(lane, destination, denial)
            case j.Relented(destination, denial, accepted):
                self._relented(lane, destination, denial, accepted=accepted)

    def _denied(self, lane: Lane, destination: int, denial: j.Denial) -> None:
        """Report that the cluster keeps refusing the batches of a destination."""
        self.publish_refused()
        topic, partition = lane.journal.views.address(destination)
        waiting = [each for each in lane.journal.views.denials() if each[0] == destination]
        if not waiting:
            return  # rejected already
        _, _, batches, records = waiting[0]
        limit_s = self._config.blocked_timeout_s
        self._log.limited(
            logging.ERROR,
            "topic_blocked",
            topic,
            "%s: blocked by the cluster: %s. Pending records (%s) are delivered as soon as the cluster accepts"
            " them%s. %s",
            place_of(topic, partition),
            denial.reason,
            counted(records, "record"),
            ""
            if limit_s is None or denial.asking
            else f", and are rejected if it refuses for {limit_s:.0f} s",
            classify_code(denial.code).explanation,
            lane=lane.name,
            topic=topic,
            partition=partition,
            code=denial.code,
            records=records,
            batches=batches,
        )
        self._context.emit(
            events.TopicBlocked(topic, partition, denial.code, denial.reason, batches, records)
        )

    def _relented(self, lane: Lane, destination: int, denial: j.Denial, *, accepted: bool) -> None:
        self.publish_refused()
        if not accepted:
            return  # rejected: each batch is reported
        topic, partition = lane.journal.views.address(destination)
        seconds = self._context.now() - denial.since
        self._log.limited(
            logging.WARNING,
            "topic_unblocked",
            topic,
            "%s: the cluster accepts records again, after %.0f s of error %d",
            place_of(topic, partition),
            seconds,
            denial.code,
            lane=lane.name,
            topic=topic,
            partition=partition,
            code=denial.code,
        )
        self._context.emit(events.TopicUnblocked(topic, partition, denial.code, seconds))

    def publish_refused(self) -> None:
        """Publish which topics and partitions the cluster refuses, because `send` reads these mappings."""
        topics: dict[str, RefusedDestination] = {}
        partitions: dict[tuple[str, int], RefusedDestination] = {}
        for each in self.refused():
            if not (each.confirmed and each.whole):
                continue
            if self._is_of_topic(each):
                topics.setdefault(each.topic, each)
            else:
                partitions.setdefault((each.topic, each.partition), each)
        self.refused_topics, self.refused_partitions = topics, partitions

    def _is_of_topic(self, refused: RefusedDestination) -> bool:
        """Whether the cluster refuses the whole topic. False if the topic exists and only the partition is missing."""
        if refused.partition == UNCHOSEN or refused.code not in MISSING_CODES:
            return True
        info = self._context.cluster.topic(refused.topic)
        return info is None or bool(info.error_code)

    def look_again(self) -> None:
        """After new metadata, publish the refusals again. The cluster may now refuse a whole topic of which only a
        partition was missing before, or the reverse.
        """
        if self.refused_topics or self.refused_partitions:
            self.publish_refused()

    def refused(self, topic: str | None = None) -> list[RefusedDestination]:
        """Refused destinations with pending records, oldest first. If `topic` is given, the result has only
        destinations that make records of this topic wait.

        Any thread may call this method.
        """
        lanes = list(self._context.lanes)
        found = refused([lane.journal for lane in lanes])
        if topic is not None:
            together = topics_beside(lanes, topic)
            found = [each for each in found if each.topic in together]
        return sorted((*found, *refused_names(lanes, topic)), key=lambda each: each.since)

    def _park(self, lane: Lane, batch: j.Batch, evidence: str) -> None:
        topic, partition = lane.journal.views.address(batch.destination)
        self._context.stats.undecidable_batches.add()
        self._context.emit(events.RecordsUndecidable(topic, partition, batch.count, batch.position, evidence))
        policy = self._config.on_undecidable
        where = "in memory" if self._config.in_memory else f"safe in {lane.name} at position {batch.position}"
        message = (
            f"{topic}-{partition}: whether a batch of {counted(batch.count, 'record')} is in the log cannot be known:"
            f" {evidence}. The batch is {where}; the partition waits. Decide with resolve_undecidable(resend=True) (its"
            " records may then be twice in the log) or resolve_undecidable(resend=False), or open the producer with"
            " on_undecidable='resend' or 'skip'"
        )
        log = self._log.bind(
            lane=lane.name,
            topic=topic,
            partition=partition,
            records=batch.count,
            position=batch.position,
        )
        if policy == "raise":
            log.error("%s", message, event="records_undecidable")
            error = UndecidableError(message, evidence=evidence)
            self._ledger.errors.ask_about(lane, batch, error)
            return
        log.warning(
            "%s-%d: undecidable batch, policy %r: %s",
            topic,
            partition,
            policy,
            evidence,
            event="records_undecidable",
        )
        lane.journal.decide(batch, resend=policy == "resend")

    def _rejected(self, lane: Lane, batch: j.Batch) -> None:
        """Report a rejected batch, once its copy is durable in `rejected/`."""
        if batch.fault.code == j.DAMAGED:
            return
        topic, partition = lane.journal.views.address(batch.destination)
        path = lane.rejections.path(batch.handle)
        self._log.limited(
            logging.ERROR,
            "records_rejected",
            f"{topic}-{partition} {batch.fault.code}",
            "%s: %s rejected: %s; %s",
            place_of(topic, partition),
            counted(batch.count, "record"),
            batch.fault.message,
            "no copy is kept (spool='never')" if path is None else f"kept in {path}",
            lane=lane.name,
            topic=topic,
            partition=partition,
            records=batch.count,
            code=batch.fault.code,
            path=str(path or ""),
        )
        kept = str(path or "")
        self._context.emit(
            events.RecordsRejected(topic, partition, batch.count, batch.fault.code, batch.fault.message, kept)
        )
        if batch.revived:
            self._losses.comes_not_back(lane, batch)

    def _dead_letter(self, lane: Lane, batch: j.Batch, parcel: Parcel) -> None:
        handler = self._config.on_rejected
        path = lane.rejections.finish(batch.handle)
        if handler is None:
            return
        topic, partition = lane.journal.views.address(batch.destination)
        try:
            try:
                data = self._disk.bytes_of(lane, parcel, batch)
            except SpoolError:  # its segment may be deleted already
                if path is None:
                    raise
                data = data_of(lane.lock.files, path, batch.position)
        except (OSError, ValueError, SpoolError) as error:
            self._log.error(
                "The dead-letter handler cannot be called for %s. The copy: %s. The reason: %s",
                counted(batch.count, "record"),
                path or "none",
                error,
                topic=topic,
                partition=partition,
                records=batch.count,
                event="on_rejected_failed",
            )
            return
        columns = codec.decode(data)
        if partition == UNCHOSEN:
            given_partitions(columns, batch.given)
        rejected = cast("BaseException", parcel.error)
        for index in range(columns.header.count):
            try:
                handler(
                    topic=topic,
                    partition=partition,
                    key=columns.keys[index],
                    value=columns.values[index],
                    headers=columns.headers.get(index, []),
                    timestamp_ms=columns.timestamps[index],
                    error=rejected,
                )
            except BaseException as error:
                self._context.raise_interrupt(error)
                # The user's handler failed; the records are still in `rejected/`.
                self._log.exception(
                    "The dead-letter handler failed; the copy of the record is %s",
                    "not kept (spool='never')" if path is None else "in the spool directory",
                    topic=topic,
                    partition=partition,
                    event="on_rejected_failed",
                )


def _damage_error(batch: j.Batch, kept: Path | None) -> SpoolCorruptError:
    return SpoolCorruptError(
        f"The record was damaged on disk before it was delivered: {batch.fault.message}. The remains of its batch are"
        f" in {kept}",
        damage=(batch.fault.message,),
    )


def _drop_error(batch: j.Batch) -> BatchDroppedError:
    return BatchDroppedError(
        "The record was part of an atomic batch that was dropped. Readers of committed records see none of its"
        f" records: {'' if batch.unit is None else batch.unit.reason}",
        code=0 if batch.unit is None else batch.unit.code,
    )


def _any_done(parcels: Sequence[Parcel]) -> bool:
    return any(parcel.done for parcel in parcels)
