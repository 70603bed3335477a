"""Functions that change the bytes of simulated files, and the errors that calls raise."""

from __future__ import annotations

import os
from pathlib import Path


def put(content: bytearray, offset: int, data: bytes) -> None:
    """Writes data into a file. Skipped bytes become zeros."""
    if data:
        if offset > len(content):
            resize(content, offset)
        content[offset : offset + len(data)] = data


def resize(content: bytearray, size: int) -> None:
    """Sets the size of a file. New bytes are zeros."""
    del content[size:]
    content.extend(bytes(size - len(content)))


def failure(code: int, path: Path | None = None) -> OSError:
    """Returns the error with which a call fails."""
    return OSError(code, os.strerror(code), *(() if path is None else (str(path),)))
