"""`kafkasafe spool discard`: deletes rejected records."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

import typer

from kafkasafe.cli.common import (
    CODES,
    EXIT_BROKEN,
    NOT_APPLIED,
    Directory,
    Json,
    address_of,
    counted,
    lanes_of,
    open_directory,
)
from kafkasafe.cli.report import show
from kafkasafe.cli.spool.contents import LaneName
from kafkasafe.maintenance.discard import Discardable, discard, find_discardable

__all__ = ["DISCARD_CODES", "spool_discard"]

DISCARD_CODES: Final = CODES.format(broken="an unreadable file is left")


def spool_discard(
    directory: Directory,
    lane: LaneName = None,
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", metavar="TOPIC", help="Only records of this topic. May be repeated."),
    ] = None,
    unreadable: Annotated[
        bool, typer.Option("--unreadable", help="Also discard files of rejected/ that cannot be read.")
    ] = False,
    apply: Annotated[
        bool,
        typer.Option("--apply", help="Discard them. Without it, only print what would be discarded."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Delete rejected records for good, and record that in the spool.

    Export them first if you may need them: kafkasafe spool export --status rejected. If files were deleted by hand
    before, the command records that too. Until then, ls and verify report these files as MISSING. Producers may run at
    the same time.
    """
    lanes = open_directory(directory)
    numbers = [number for _, number in lanes_of(directory, lane)]
    with lanes.resending() if apply else contextlib.nullcontext():
        found = find_discardable(lanes, numbers, topic or ())
        wanted = [each for each in found if unreadable or not each.error]
        if apply:
            discard(lanes, wanted)
    show(Discarded(found, wanted, apply), as_json=as_json)


@dataclass(frozen=True, slots=True)
class Discarded:
    """Files of rejected/ that were deleted, or would be.

    Attributes:
        found: All files that were found.
        wanted: The files to delete.
        apply: Whether they were deleted.
    """

    found: Sequence[Discardable]
    wanted: Sequence[Discardable]
    apply: bool

    @property
    def records(self) -> int:
        """Number of records in these files."""
        return sum(each.records for each in self.wanted if not each.missing)

    @property
    def left(self) -> list[Discardable]:
        """Files that stay."""
        return [each for each in self.found if each not in self.wanted]

    @property
    def fields(self) -> dict[str, Any]:
        rows = [
            {
                "lane": each.lane.name,
                "file": each.name,
                "topic": None if each.topic == "?" else each.topic,
                "partition": each.partition,
                "records": each.records,
                "missing": each.missing,
                "error": each.error or None,
                "discarded": self.apply and each in self.wanted,
            }
            for each in self.found
        ]
        return {"applied": self.apply, "discarded_records": self.records, "files": rows}

    @property
    def exit_code(self) -> int:
        return EXIT_BROKEN if self.left else 0

    def lines(self) -> Iterator[str]:
        for each in self.wanted:
            what = "deleted by hand" if each.missing else each.error and f"UNREADABLE ({each.error})"
            where = "" if each.topic == "?" else f" of {address_of(each.topic, each.partition)}"
            yield f"{each.lane.name}: {each.name}: {counted(each.records, 'record')}{where}{what and f', {what}'}"
        for each in self.left:
            yield (
                f"{each.lane.name}: {each.name}: LEFT, it cannot be read: {each.error}; --unreadable discards it"
            )
        yield f"{counted(self.records, 'record')} {'' if self.apply else 'would be '}discarded"
        if self.wanted and not self.apply:
            yield NOT_APPLIED
