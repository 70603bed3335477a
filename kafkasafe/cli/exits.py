"""Exit codes of the commands."""

from __future__ import annotations

from typing import Final

__all__ = ["EXIT_BROKEN", "EXIT_BROKEN_PIPE", "EXIT_FAILED", "EXIT_INTERRUPTED", "EXIT_USAGE"]

EXIT_BROKEN: Final = 1
EXIT_USAGE: Final = 2
EXIT_FAILED: Final = 3
EXIT_INTERRUPTED: Final = 130
EXIT_BROKEN_PIPE: Final = 141
"""The exit code that a shell shows for a process that SIGPIPE has ended, because the reader of its output has closed
the pipe.
"""
