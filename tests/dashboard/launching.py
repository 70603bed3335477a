"""Programs of examples/dashboard, run as a user runs them."""

from __future__ import annotations

import os
from pathlib import Path

import tools
from programs import python


def run_example(name: str, *arguments: str, temporary: Path) -> str:
    """What it says. It ends well, leaves no socket or file open, and puts what is temporary in this directory."""
    done = python(
        "-W",
        "error::ResourceWarning",
        tools.HERE / name,
        *arguments,
        timeout=890,
        env=os.environ | {"TMPDIR": str(temporary)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout
