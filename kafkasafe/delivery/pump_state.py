"""The state of a pump for metrics: gauges, offsets, refused destinations and atomic batches."""

from __future__ import annotations

import collections
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kafkasafe import units as u
from kafkasafe.delivery.engine.context import EngineContext
from kafkasafe.delivery.engine.engine import Engine
from kafkasafe.spool.refusals import RefusedDestination


@dataclass(frozen=True, slots=True)
class PumpState:
    """The state of a pump at one moment.

    Attributes:
        gauges: The values of the gauges, by name.
        last_acked_offsets: Offset of the last acknowledged record, by (topic, partition).
        refused: Destinations that the cluster refuses. A second answer has confirmed each refusal.
        units: Number of atomic batches without an outcome, by phase.
    """

    gauges: Mapping[str, float]
    last_acked_offsets: Mapping[tuple[str, int], int]
    refused: Sequence[RefusedDestination]
    units: Mapping[str, int]


def state_of(context: EngineContext, engine: Engine) -> PumpState:
    """The state at this moment. Callable from any thread. Numbers may be slightly out of date."""
    config, ledger = context.config, engine.ledger
    lanes = list(context.lanes)
    journals = [lane.journal for lane in lanes]
    today_ms = context.clock.wall_ms()
    gauges: dict[str, float] = {
        "spool_bytes": ledger.room.kept_bytes,
        "spool_capacity_bytes": config.spool_max_bytes,
        "connected": context.cluster.connected,
        "unfinished_batches": len(ledger.parcels),
        "undurable_batches": len(ledger.undurable),
        "spool_oldest_record_age_seconds": ledger.oldest_age_s(),
    }
    if math.isfinite(free := ledger.room.capacity.free_bytes):
        gauges["spool_volume_free_bytes"] = free
    identified = [stamp for journal in journals for stamp in journal.views.identified_since_ms()]
    gauges["producer_id_age_seconds"] = max((max(0, today_ms - s) / 1000 for s in identified), default=0.0)
    gauges["producer_id_expiration_seconds"] = config.state_age_s * 4
    gauges["spool_records"] = (
        0 if config.in_memory else sum(journal.views.spooled_records for journal in journals)
    )
    gauges["orphaned_spool_records"] = engine.surroundings.left_behind_records
    gauges["waiting_for_older_partitions"] = sum(len(journal.views.held_back()) for journal in journals)
    gauges["rejected_kept_records"] = sum(lane.rejected.records for lane in lanes)
    gauges["rejected_kept_bytes"] = sum(lane.rejected.size_bytes for lane in lanes)
    gauges["rejected_capacity_bytes"] = config.rejected_max_bytes
    gauges["spool_segments"] = sum(len(lane.spool.segments) for lane in lanes)
    gauges["spool_displaced_lanes"] = engine.places.displaced
    gauges["in_doubt_batches"] = sum(journal.views.in_doubt for journal in journals)
    offsets = dict(context.own.journal.views.last_acked_offsets())
    units = collections.Counter(unit.phase.value for journal in journals for unit in journal.units.unfinished)
    if units or context.stats.units:
        # Report 0 for each phase without atomic batches, so that the phase's time series has no gaps.
        units.update({phase.value: 0 for phase in u.Phase if phase is not u.Phase.OVER})
    refused = [each for each in engine.endings.refused() if each.confirmed]
    return PumpState(gauges, offsets, refused, units)
