"""Kafka's own DumpLogSegments."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

from kafkasafe.testing import jars

VERSION = "4.3.0"


def dumped(segments: Iterable[Path], *flags: str) -> Iterator[tuple[str, dict[str, str]]]:
    """The lines that it prints about segments, and the fields of each."""
    # It is not among the jars that a broker needs.
    directory = jars.resolve(VERSION, extra=(f"org.apache.kafka:kafka-tools:{VERSION}",))
    tool = [jars.find_java(), "-cp", jars.classpath(directory), "org.apache.kafka.tools.DumpLogSegments"]
    done = subprocess.run(
        [*tool, *flags, "--files", ",".join(map(str, segments))],
        capture_output=True,
        timeout=120,
        check=True,
        encoding="latin-1",
    )
    for line in done.stdout.splitlines():
        yield line, dict(re.findall(r"(\w+): (\S*)", line))
