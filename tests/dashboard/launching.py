"""Programs of examples/dashboard, run as a user runs them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import tools


def run_example(name: str, *arguments: str, temporary: Path) -> str:
    """What it says. It ends well, leaves no socket or file open, and puts what is temporary in this directory."""
    done = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", str(tools.HERE / name), *arguments],
        capture_output=True,
        text=True,
        timeout=890,
        check=False,
        env=os.environ | {"TMPDIR": str(temporary)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout
