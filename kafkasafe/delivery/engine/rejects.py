"""Saves a copy of each batch that the engine gives up: in `rejected/`, or in `quarantine/` if the batch is damaged. The
batch counts as finished in the lane's log only once the copy is durable.
"""

from __future__ import annotations

import logging

from kafkasafe import journal as j
from kafkasafe import marks as m
from kafkasafe.delivery.engine.context import EngineContext
from kafkasafe.delivery.engine.disk import DiskWriter
from kafkasafe.delivery.engine.lane import Lane
from kafkasafe.delivery.engine.ledger import Ledger
from kafkasafe.delivery.engine.messages import AsideDue, Chore, ChoreDue
from kafkasafe.errors import SpoolCorruptError, SpoolError
from kafkasafe.spool.refusals import counted, place_of
from kafkasafe.spool.rejected_format import Refused, is_full, most_bytes


class Rejects:
    """See the module."""

    def __init__(self, context: EngineContext, ledger: Ledger, disk: DiskWriter) -> None:
        self._context = context
        self._log = context.log
        self._config = context.config
        self._ledger = ledger
        self._disk = disk

    def put_aside(self, lane: Lane, aside: j.Aside) -> None:
        """Write rejected batches durably to `rejected/`, before their REJECTED marks are written to the lane's log. If
        the write fails, the batches wait.
        """
        if self._config.in_memory:
            # With `spool="never"`, only the futures and the dead-letter handler get the rejected batches.
            lane.rejections.keep((batch.handle for batch in aside.batches), None)
            self._set_aside(lane, aside, len(aside.batches))
            return
        topic, partition = lane.journal.views.address(aside.destination)
        destination = m.Destination(aside.destination, topic, partition)
        kept, reason = 0, ""
        while kept < len(aside.batches) and not reason:
            used = lane.rejected.size_bytes
            size = 0
            portion: list[Refused] = []
            handles = []
            damaged = False
            try:
                for batch in aside.batches[kept:]:
                    size += most_bytes(batch)
                    if used + size > self._config.rejected_max_bytes:
                        break
                    try:
                        refused = self.read(lane, batch)
                    except SpoolCorruptError as error:
                        if portion:
                            break  # write the batches before it first
                        damaged = self.damaged(lane, batch, error)
                        reason = "" if damaged else f"they are damaged on disk: {error}"
                        break
                    portion.append(refused)
                    handles.append(batch.handle)
                if damaged or reason:
                    kept += damaged
                    continue
                if not portion:
                    reason = is_full(used, self._config.rejected_max_bytes)
                    break
                path = lane.rejected.keep(
                    portion,
                    destination,
                    cluster_id=self._context.own_cluster.cluster_id or "",
                    now_ms=self._context.clock.wall_ms(),
                )
            except (OSError, SpoolError) as error:
                reason = f"rejected/ cannot be written: {error}"
                lane.disown()
                break
            lane.rejections.keep(handles, path)
            kept += len(portion)
        if reason:
            self._context.stats.rejected_not_kept.add()
            waiting = aside.batches[kept:]
            records = sum(batch.count for batch in waiting)
            self._log.limited(
                logging.ERROR,
                "rejected_not_kept",
                f"{topic}-{partition}",
                "%s: %s rejected (%s) but could not be copied to rejected/ yet, so %s in the log: %s",
                place_of(topic, partition),
                f"{counted(records, 'record')} {'was' if records == 1 else 'were'}",
                waiting[0].fault.message,
                "it stays" if records == 1 else "they stay",
                reason,
                lane=lane.name,
                topic=topic,
                partition=partition,
                records=records,
                code=waiting[0].fault.code,
            )
        self._set_aside(lane, aside, kept, reason)

    def _set_aside(self, lane: Lane, aside: j.Aside, kept: int, reason: str = "") -> None:
        if lane.journal.set_aside(aside, kept, reason):
            # Use a timer, so that the engine first handles other partitions and new batches of callers.
            self._context.timer(0.0, AsideDue(lane, aside.destination))

    def read(self, lane: Lane, batch: j.Batch) -> Refused:
        """Read a batch from the spool, to copy it to a file in `rejected/`.

        Raises:
            SpoolCorruptError: The batch is damaged on disk.
            SpoolError: The disk does not answer.
        """
        data = bytearray(self._disk.bytes_of(lane, lane.parcels[batch.handle], batch))
        return Refused(batch.position, data, batch.fault.code, batch.fault.message, batch.given)

    def damaged(self, lane: Lane, batch: j.Batch, error: SpoolCorruptError) -> bool:
        """Handle a damaged batch. Returns True if the batch was copied to `quarantine/` and will not be sent, or False
        if the batch's partition waits.
        """
        if batch.handle in lane.rejections:
            return True
        address = lane.journal.views.address(batch.destination)
        if self._config.on_corrupt == "quarantine":
            try:
                lane.rejections.keep_damaged(batch.handle, lane.spool.quarantine(batch.position))
            except SpoolError as failure:
                error = SpoolCorruptError(f"{error}; {failure}", damage=error.damage)
            else:
                self._context.stats.corrupt.add()
                return True
        lane.rejections.stop(batch.destination, self._context.clock.monotonic() + 1.0)
        self._context.timer(1.0, ChoreDue(Chore.LOOK_AGAIN))
        self._log.limited(
            logging.ERROR,
            "batch_damaged",
            f"{address[0]}-{address[1]}",
            "%s-%d waits, because %d of its records are damaged on disk: %s",
            *address,
            batch.count,
            error,
            lane=lane.name,
            topic=address[0],
            partition=address[1],
            records=batch.count,
            position=batch.position,
        )
        self._ledger.errors.block(lane, address, error)
        return False
