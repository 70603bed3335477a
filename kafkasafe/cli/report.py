"""Prints the result of a command, and defines the exit codes. A result is complete before any of it is printed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple, TextIO

import typer

EXIT_BROKEN: Final = 1
EXIT_USAGE: Final = 2
EXIT_FAILED: Final = 3
EXIT_INTERRUPTED: Final = 130
EXIT_BROKEN_PIPE: Final = 141
"""The shell's exit code for a process that SIGPIPE has ended. A process gets SIGPIPE when it writes to a pipe whose
reader has closed it.
"""


class Report(NamedTuple):
    """The result of a command.

    Attributes:
        fields: The result as JSON.
        lines: The result as text.
        exit_code: The command's exit code.
    """

    fields: Any
    lines: Iterable[str]
    exit_code: int = 0


def show(
    report: Report,
    *,
    as_json: bool,
    indent: int | None = 1,
    ensure_ascii: bool = True,
    file: TextIO | None = None,
    flush: bool = False,
) -> None:
    """Print a report, either as JSON (on one line if `indent` is None), or as readable lines. End the command if the
    report's exit code is not 0.
    """
    if as_json:
        print(json.dumps(report.fields, indent=indent, ensure_ascii=ensure_ascii), file=file, flush=flush)
    else:
        for line in report.lines:
            print(line, file=file, flush=flush)
    if report.exit_code:
        raise typer.Exit(report.exit_code)


def show_each(
    reports: Iterable[Report], *, as_json: bool, draw: Callable[[Report], None] | None = None
) -> None:
    """Print each report as soon as it is known, JSON on one line. End the command if the exit code of the last report
    is not 0.

    Args:
        reports: The reports.
        as_json: Whether to print JSON.
        draw: Draws a report on a terminal; None: print the report.
    """
    exit_code = 0
    for report in reports:
        exit_code = report.exit_code
        if draw is None:
            show(report._replace(exit_code=0), as_json=as_json, indent=None, flush=True)
        else:
            draw(report)
    if exit_code:
        raise typer.Exit(exit_code)


def write_json(report: Report, path: Path) -> None:
    """Write a report into a file, as JSON."""
    path.write_text(json.dumps(report.fields, indent=1) + "\n", encoding="utf-8")
