"""Python programs in processes of their own."""

from __future__ import annotations

import subprocess
import sys
from typing import Any


def python(*arguments: object, timeout: float = 120, check: bool = False, **more: Any):
    """Runs Python with these arguments. Returns its exit code, and what it printed as text."""
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=check,
        **more,
    )
