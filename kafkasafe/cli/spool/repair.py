"""`kafkasafe spool repair`: repairs what can be repaired without losing a durable record."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

import typer

from kafkasafe.cli.common import (
    CODES,
    Directory,
    Json,
    inspected,
    lanes_of,
    open_directory,
    refuse_as_root,
)
from kafkasafe.cli.report import EXIT_BROKEN, EXIT_FAILED, Report, show
from kafkasafe.cli.spool.contents import LaneName
from kafkasafe.errors import SpoolError
from kafkasafe.maintenance.repair import Plan, carry_out, plan_repair

REPAIR_CODES: Final = CODES.format(
    broken="some damage cannot be repaired without a loss (nothing is skipped)"
)


def spool_repair(
    directory: Directory,
    lane: LaneName = None,
    apply: Annotated[
        bool, typer.Option("--apply", help="Apply the plan. Without --apply, only print the plan.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Repair what can be repaired without losing a record that was reported durable, and report the rest.

    A torn tail (incomplete bytes at the end) is cut off, unless a later group shows that these bytes were durable. If a
    batch is damaged only in its first 21 bytes, these bytes are restored from the manifest of the batch's group. If a
    damaged batch has already been delivered, rejected or divided, the damaged bytes are copied to quarantine/, and the
    lane opens again. All other damaged batches stay as they are: restore the file from a copy, or give the batch up
    with on_corrupt="quarantine". Before any change, the affected files are copied to repair-TIME/ in the lane. If a
    process owns a lane, the lane is not changed.
    """
    plans: list[tuple[str, Plan, Path | None]] = []
    if apply:
        open_directory(directory)
        refuse_as_root(directory)
    for lanes, number in lanes_of(directory, lane):
        path = lanes.lane_path(number)
        if not apply:
            owner = lanes.owners.seems_owned(number)
            try:
                plan = (
                    Plan(f"it belongs to process {owner}") if owner else plan_repair(path, files=lanes.files)
                )
            except SpoolError as error:
                plan = Plan(str(error))
            plans.append((path.name, plan, None))
            continue
        try:
            lock = lanes.take_lane(number)
        except SpoolError as error:
            plans.append((path.name, Plan(str(error)), None))
            continue
        try:
            plan = plan_repair(path, files=lock.files)
            kept = carry_out(path, plan, files=lock.files) if plan.steps else None
            plans.append((path.name, plan, kept))
        except SpoolError as error:
            plans.append((path.name, Plan(str(error)), None))
        finally:
            lock.release(drained=False)
    unreadable = {
        lanes.lane_path(number).name: found.rejected_unreadable
        for lanes, number, found in inspected(directory, [])
    }
    plans = [
        (name, dataclasses.replace(plan, left=(*plan.left, *map(_restore, unreadable.get(name, ())))), kept)
        for name, plan, kept in plans
    ]
    fields = [
        {
            "lane": name,
            "refused": plan.refused,
            "steps": [dataclasses.asdict(step) for step in plan.steps],
            "left": list(plan.left),
            "applied": kept is not None,
            "copies": None if kept is None else str(kept),
        }
        for name, plan, kept in plans
    ]
    lines = [line for name, plan, kept in plans for line in _plan_lines(name, plan, kept)]
    if not apply and any(plan.steps for _, plan, _ in plans):
        lines.append("Nothing was changed; --apply applies the plan")
    exit_code = EXIT_BROKEN if any(plan.left for _, plan, _ in plans) else 0
    if any(plan.refused for _, plan, _ in plans):
        exit_code = EXIT_FAILED
    show(Report(fields, lines, exit_code), as_json=as_json)


def _restore(unreadable: str) -> str:
    return f"{unreadable}; restore it from a copy, or give it up with kafkasafe spool discard --unreadable"


def _plan_lines(name: str, plan: Plan, kept: Path | None) -> Iterator[str]:
    if plan.refused:
        yield f"{name}: not touched: {plan.refused}"
        return
    if not plan.steps and not plan.left:
        yield f"{name}: nothing to repair"
    for step in plan.steps:
        yield f"{name}: {step.what}: {step.segment}, bytes {step.start} to {step.end}: {step.reason}"
    for left in plan.left:
        yield f"{name}: LEFT AS IT IS: {left}"
    if kept is not None:
        yield f"{name}: repaired; copies of the original files are in {kept}"
