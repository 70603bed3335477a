"""The result of a command, and the functions that print it: `print_report`, and `show`, which also ends the command."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Protocol, TextIO

import typer

__all__ = ["Report", "print_report", "show"]


class Report(Protocol):
    """The result of a command. A report is complete before anything is printed."""

    @property
    def fields(self) -> Any:
        """The JSON output, as values that `json.dumps` accepts."""

    @property
    def exit_code(self) -> int:
        """The exit code of the command: 0 if all is well."""

    def lines(self) -> Iterator[str]:
        """Yield the output for people, line by line."""


def print_report(
    report: Report,
    *,
    as_json: bool,
    file: TextIO | None = None,
    indent: int | None = 1,
    ensure_ascii: bool = True,
    flush: bool = False,
) -> None:
    """Print a report.

    Args:
        report: The report.
        as_json: Whether to print JSON in place of lines.
        file: Where to print; by default standard output.
        indent: Indentation of the JSON; None prints it on one line.
        ensure_ascii: Whether the JSON escapes non-ASCII characters.
        flush: Whether to flush the output, so that a reader sees the report before the command ends.
    """
    if as_json:
        print(json.dumps(report.fields, indent=indent, ensure_ascii=ensure_ascii), file=file, flush=flush)
    else:
        for line in report.lines():
            print(line, file=file, flush=flush)


def show(report: Report, **settings: Any) -> None:
    """Print a report, and end the command if its exit code is not 0.

    Args:
        report: The report.
        **settings: See `print_report`.

    Raises:
        Exit: With the report's exit code.
    """
    print_report(report, **settings)
    if report.exit_code:
        raise typer.Exit(report.exit_code)
