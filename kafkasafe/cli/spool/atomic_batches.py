"""The atomic batches of a lane, with their steps and times."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from kafkasafe.cli.common import counted
from kafkasafe.maintenance.examination import LaneContent
from kafkasafe.spool.examine import ExchangeStep
from kafkasafe.spool.steps import BatchTimes, UnitLog


def unit_rows(content: LaneContent, *, every: bool = False) -> list[dict[str, Any]]:
    """The atomic batches of a lane, with their steps and times. Finished batches are included only with `every`."""
    by_position = {batch.position: batch for batch in content.batches}
    return [_row(content, log, by_position) for log in content.units if every or log.outcome is None]


def _row(content: LaneContent, log: UnitLog, by_position: Mapping[int, Any]) -> dict[str, Any]:
    members = [by_position[position] for position in log.positions if position in by_position]
    return {
        "lane": content.name,
        "batch_id": log.batch_id,
        "positions": [position for position in log.positions if position in by_position],
        "partitions": sorted({(batch.topic, batch.partition) for batch in members}),
        "groups": list(log.groups),
        "records": sum(batch.records for batch in members),
        "bytes": sum(batch.size_bytes for batch in members),
        "transactional_id": log.transactional_id,
        "producer_id": log.producer_id if log.producer_id >= 0 else None,
        "producer_epoch": log.producer_epoch if log.producer_id >= 0 else None,
        "step": None if log.step is None else log.step.number,
        "step_name": "dropped" if log.step is None else log.step.value,
        "reason": log.reason,
        "times": {
            ExchangeStep.PREPARED.value: _time(log.prepared_ms),
            ExchangeStep.PREPARE_ACKNOWLEDGED.value: _time(log.prepare_acknowledged_ms),
            ("dropped" if log.is_dropped else ExchangeStep.COMMIT_ACKNOWLEDGED.value): _time(log.ended_ms),
        },
    }


def _time(ms: int) -> str | None:
    return None if ms < 0 else datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")


def times_row(times: BatchTimes | None) -> dict[str, str | None]:
    """The times at which the spool recorded the steps of a batch that is not atomic."""
    if times is None:
        return {}
    return {
        ExchangeStep.PREPARED.value: _time(times.prepared_ms),
        ExchangeStep.PREPARE_ACKNOWLEDGED.value: _time(times.prepare_acknowledged_ms),
        ExchangeStep.COMMIT_ACKNOWLEDGED.value: _time(times.commit_acknowledged_ms),
    }


def unit_line(row: Mapping[str, Any]) -> str:
    """Returns the line of an atomic batch."""
    partitions = ", ".join(
        f"{topic}-{partition}" if partition >= 0 else f"{topic} (no partition yet)"
        for topic, partition in row["partitions"]
    )
    groups = "".join(f", offsets of {group}" for group in row["groups"])
    step = f"step {row['step']} of 4, " if row["step"] else ""
    times = "; ".join(f"{name.replace('_', ' ')} {at}" for name, at in row["times"].items() if at)
    return (
        f"  atomic batch {row['batch_id']}: {partitions}{groups}, {counted(row['records'], 'record')},"
        f" {counted(row['bytes'], 'byte')}; {step}{row['step_name'].replace('_', ' ')}; {times}"
    )
