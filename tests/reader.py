"""Programs of README and docs, run as a reader runs them: in a directory of their own, without rights elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
NOBODY = 65534
UNPRIVILEGED = (
    *("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"),
    # The code may lie in a home directory of root; a user's own installation would be readable.
    *("--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search"),
)
BLOCK = re.compile(
    r"^(?:<!-- not run: (?P<reason>.+) -->\n)?```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)


def blocks(page: Path) -> list[tuple[str, str, str | None]]:
    """(language, text, why it is not run) of each block of code."""
    found = BLOCK.finditer(page.read_text(encoding="utf-8"))
    return [(block["language"], block["text"], block["reason"]) for block in found]


def programs(page: Path) -> list[str]:
    """The Python that is run."""
    return [text for language, text, reason in blocks(page) if language == "python" and reason is None]


def prefix() -> tuple[str, ...]:
    return UNPRIVILEGED if os.getuid() == 0 and sys.platform == "linux" else ()


def give(directory: Path) -> Path:
    """The directory belongs to the reader."""
    if prefix():
        os.chown(directory, NOBODY, NOBODY)
    return directory


def run(program: str, directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*prefix(), sys.executable, "-c", program],
        cwd=directory,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(directory),
            "PYTHONPATH": str(ROOT),
            "PYTHONDONTWRITEBYTECODE": "1",
            "KAFKA_PASSWORD": "secret",
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
