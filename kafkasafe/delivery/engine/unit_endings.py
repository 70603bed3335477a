"""Ends atomic batches: saves rejected batches in `rejected/`, and reports outcomes to callers, hooks and logs."""

from __future__ import annotations

from collections.abc import Sequence

from kafkasafe import events
from kafkasafe import journal as j
from kafkasafe import marks as m
from kafkasafe import units as u
from kafkasafe.delivery.engine.context import EngineContext
from kafkasafe.delivery.engine.lane import Lane
from kafkasafe.delivery.engine.ledger import Ledger
from kafkasafe.delivery.engine.rejects import Rejects
from kafkasafe.errors import BatchDroppedError, SpoolCorruptError, SpoolError
from kafkasafe.spool.refusals import counted
from kafkasafe.spool.rejected_format import is_full, most_bytes


class UnitEndings:
    """See the module."""

    def __init__(self, context: EngineContext, ledger: Ledger, rejects: Rejects) -> None:
        self._context = context
        self._log = context.log
        self._config = context.config
        self._ledger = ledger
        self._rejects = rejects

    def refuse(self, lane: Lane, unit: u.Unit) -> None:
        """Write the batches of a unit (atomic batch) durably to `rejected/`, before the unit's ENDED mark is written to
        the lane's log.
        """
        batches = [batch for batch in unit.batches if isinstance(batch, j.Batch)]
        left = [batch for batch in batches if batch.handle not in lane.rejections]
        if self._config.in_memory:
            lane.rejections.keep((batch.handle for batch in left), None)
            left = []
        if any(batch.position < 0 for batch in left):
            # 1. A batch was divided, because its topic's partitions are known now.
            # 2. In the same turn, the engine finds another batch of the unit damaged, and gives up the unit.
            # 3. A file in `rejected/` names the positions of the parts, but the parts get positions only at the end of
            #    the turn.
            lane.journal.units.put_aside(unit, kept=False, reason="Parts of it are not on disk yet")
            return
        for destination in dict.fromkeys(batch.destination for batch in left):
            topic, partition = lane.journal.views.address(destination)
            portion = []
            handles = []
            mine = [batch for batch in left if batch.destination == destination]
            used = lane.rejected.size_bytes
            if used + sum(map(most_bytes, mine)) > self._config.rejected_max_bytes:
                reason = is_full(used, self._config.rejected_max_bytes)
                lane.journal.units.put_aside(unit, kept=False, reason=reason)
                return
            try:
                for batch in mine:
                    try:
                        refused = self._rejects.read(lane, batch)
                    except SpoolCorruptError as error:
                        if self._rejects.damaged(lane, batch, error):
                            continue  # its bytes are in quarantine/
                        raise
                    portion.append(refused)
                    handles.append(batch.handle)
                if not portion:
                    continue
                path = lane.rejected.keep(
                    portion,
                    m.Destination(destination, topic, partition),
                    cluster_id=self._context.own_cluster.cluster_id or "",
                    now_ms=self._context.clock.wall_ms(),
                )
            except (OSError, SpoolError) as error:
                lane.disown()
                lane.journal.units.put_aside(unit, kept=False, reason=str(error))
                return
            lane.rejections.keep(handles, path)
        lane.journal.units.put_aside(unit, kept=True)

    def resolve(self, lane: Lane, ended: Sequence[tuple[u.Unit, j.Fate]]) -> None:
        """Finish the units (atomic batches) in `ended`, whose outcome is final and durable. Their single batches are
        already finished.
        """
        for unit, fate in ended:
            self._context.progress.note()
            lane.unit_progress.end(unit.unit_id)
            records = sum(batch.count for batch in unit.batches)
            outcome = fate.value
            self._context.stats.units[outcome] += 1
            if fate is j.Fate.COMMITTED:
                self._context.emit(
                    events.AtomicBatchCommitted(
                        unit.unit_id.hex(), unit.transactional_id, records, len(unit.destinations)
                    )
                )
            else:
                self._log.error(
                    "%s: an atomic batch of %s is %s: %s",
                    lane.name,
                    counted(records, "record"),
                    outcome,
                    unit.reason,
                    lane=lane.name,
                    records=records,
                    code=unit.code,
                    event="atomic_batch_dropped",
                )
                self._context.emit(
                    events.AtomicBatchDropped(
                        unit.unit_id.hex(), unit.transactional_id, records, unit.code, unit.reason
                    )
                )
            for head in lane.heads.pop(unit.unit_id, ()):
                if head.unit_handle is not None:
                    head.unit_handle.end(fate)
                if fate is not j.Fate.COMMITTED:
                    head.fail(
                        BatchDroppedError(
                            f"The atomic batch was {outcome}. Readers of committed records see none of its records:"
                            f" {unit.reason}",
                            code=unit.code,
                        )
                    )
                with self._ledger.lock:
                    self._ledger.durable(head)
                self._ledger.finish(head)
