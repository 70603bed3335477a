"""The version of Kafka that a cluster runs, and the commands that run it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from kafkasafe.testing import jars
from kafkasafe.testing._real.values import ClusterError, UnsupportedByVersionError
from kafkasafe.testing._real.workspace import Workspace


class Release:
    """The version of Kafka with its jars, and the Java that runs them. An upgrade changes version and jars together."""

    def __init__(self, version: str, java_options: Sequence[str], extra: Sequence[str]) -> None:
        self.version = version
        self.number = jars.version_tuple(version)
        self.java = Path()
        self._java_options = tuple(java_options)
        self._extra = tuple(extra)
        self._classpath = ""
        self._boot_options: list[str] = []

    def open(self) -> Path:
        """Finds Java and the jars. Returns the jars' directory."""
        self.java = jars.find_java()
        directory = self.resolve(self.version)
        self._classpath = jars.classpath(directory)
        return directory

    def resolve(self, version: str) -> Path:
        """Returns the directory with the jars of a version."""
        return jars.resolve(version, extra=self._extra)

    def boot_with(self, options: Sequence[str]) -> None:
        """Sets options of Java that speed up the start with this release's jars."""
        self._boot_options = list(options)

    def change(self, version: str, directory: Path) -> None:
        """Changes to another version, whose jars are in `directory`."""
        self.version, self.number = version, jars.version_tuple(version)
        self._classpath = jars.classpath(directory)
        # The old class data archive does not fit the new jars.
        self._boot_options = []

    def require(self, version: tuple[int, ...], what: str) -> None:
        """Raises `UnsupportedByVersionError` for a release before `version`."""
        if self.number < version:
            raise UnsupportedByVersionError(
                f"{what} needs Kafka {'.'.join(map(str, version))} or later; this is {self.version}"
            )

    def server_command(self, properties: Path) -> list[str]:
        """The command that runs a broker or a controller."""
        return [*self.java_command("info"), "kafka.Kafka", str(properties)]

    def tool_command(self, main_class: str) -> list[str]:
        """The command of one of Kafka's tools, without the main class and its arguments."""
        tools = f"org.apache.kafka:kafka-tools:{self.version}"
        if not main_class.startswith("org.apache.kafka.tools.") or tools in self._extra:
            return self.java_command("warn")
        directory = jars.resolve(self.version, extra=(*self._extra, tools))
        # Do not use the class data archive, because it works only with the brokers' class path.
        return self.java_command("warn", jars.classpath(directory), boot=False)

    def java_command(self, level: str, classpath: str | None = None, *, boot: bool = True) -> list[str]:
        """The command line of Java: its options and class path, without the main class and the arguments."""
        return [
            str(self.java),
            *self._java_options,
            *(self._boot_options if boot else ()),
            f"-Dorg.slf4j.simpleLogger.defaultLogLevel={level}",
            "-Dorg.slf4j.simpleLogger.showDateTime=true",
            "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
            # ZooKeeper 3.4 would register JMX beans for a version of log4j that is not in use.
            "-Dzookeeper.jmx.log4j.disable=true",
            "-cp",
            self._classpath if classpath is None else classpath,
        ]

    def run_tool(
        self, space: Workspace, main_class: str, args: Sequence[str | os.PathLike[str]], timeout_s: float
    ) -> str:
        space.directory  # noqa: B018 - raises when not open
        command = [*self.tool_command(main_class), main_class, *(os.fspath(arg) for arg in args)]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                stdin=subprocess.DEVNULL,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise ClusterError(
                f"{main_class} took longer than {timeout_s:g} s", log_dir=space.log_dir
            ) from error
        if done.returncode != 0:
            end = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
            raise ClusterError(
                f"{main_class} ended with exit code {done.returncode}:\n{end}", log_dir=space.log_dir
            )
        return done.stdout
