"""Prints the result of a command, and defines the exit codes. A result is complete before any of it is printed."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final, TextIO

import typer

EXIT_BROKEN: Final = 1
EXIT_USAGE: Final = 2
EXIT_FAILED: Final = 3
EXIT_INTERRUPTED: Final = 130
EXIT_BROKEN_PIPE: Final = 141
"""The shell's exit code for a process that SIGPIPE has ended. The process gets this signal when it writes to a pipe
whose reader has closed it.
"""


def print_result(
    fields: Any,
    lines: Iterable[str],
    *,
    as_json: bool,
    file: TextIO | None = None,
    indent: int | None = 1,
    ensure_ascii: bool = True,
    flush: bool = False,
) -> None:
    """Print a result, either as JSON (on one line if `indent` is None), or as readable lines."""
    if as_json:
        print(json.dumps(fields, indent=indent, ensure_ascii=ensure_ascii), file=file, flush=flush)
    else:
        for line in lines:
            print(line, file=file, flush=flush)


def show(fields: Any, lines: Iterable[str], exit_code: int = 0, **settings: Any) -> None:
    """Print a result, and end the command if its exit code is not 0."""
    print_result(fields, lines, **settings)
    if exit_code:
        raise typer.Exit(exit_code)
