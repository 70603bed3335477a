"""Finds or installs Debian packages, and runs a Prometheus that ends with this process."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import yaml

from kafkasafe.testing._real.processes import reserve_port, spawn

HERE = Path(__file__).parent
BOARDS = (HERE / "overview.json", HERE / "internals.json")
_POLICY = Path("/usr/sbin/policy-rc.d")


class MissingPackageError(RuntimeError):
    """A program is missing, and cannot be installed."""


def find(program: str, package: str) -> str:
    """Returns the path of a program. If the program is missing and this process runs as root, installs its Debian
    package.

    Does not start or enable a service of the package, and does not install recommended packages.

    Raises:
        MissingPackageError: The program is missing, and this process is not root or apt-get is missing.
    """
    found = shutil.which(program)
    if found is None:
        if os.geteuid() != 0 or shutil.which("apt-get") is None:
            raise MissingPackageError(
                f"{program} is not installed: apt-get install --no-install-recommends {package} (as root), or put"
                f" {program} into PATH"
            )
        _install(package)
        found = shutil.which(program)
    if found is None:
        raise MissingPackageError(f"Debian's package {package} is installed and holds no {program}")
    return found


def fetch(command: Sequence[str], **options: Any) -> None:
    """Runs a command that fetches a package. `options` are options of `subprocess.run`.

    Raises:
        MissingPackageError: The command failed. The message contains the end of the command's output.
    """
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        **options,
    )
    if done.returncode:
        raise MissingPackageError(f"{' '.join(command)}:\n{done.stdout[-3000:]}")


def start(work: Callable[[], None], failures: list[Exception]) -> threading.Thread:
    """Runs a function on a thread, and appends its error to `failures`. The caller can raise the error later."""

    def run() -> None:
        try:
            work()
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def exit_code(work: Callable[[], None]) -> int:
    """Calls `work` and returns 0. If a check failed, prints the error and returns 1; if a program is missing, returns
    3.
    """
    try:
        work()
    except MissingPackageError as error:
        print(error, file=sys.stderr)
        return 3
    except (AssertionError, TimeoutError) as error:
        print(f"failed: {error}", file=sys.stderr)
        return 1
    return 0


def _install(package: str) -> None:
    print(f"installing Debian's package {package}", flush=True)
    apt = ["apt-get", "--quiet", "--yes", "-o", "DPkg::Lock::Timeout=300"]
    with _no_service():
        # The package lists may be empty (on a new machine) or name files that no longer exist.
        for command in (
            [*apt, "update"],
            [*apt, "install", "--no-install-recommends", package],
        ):
            fetch(command, env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"}, timeout=600)
    if package == "prometheus" and shutil.which("systemctl"):
        # `systemctl disable` only removes a link, which also works without a running systemd.
        subprocess.run(
            ["systemctl", "disable", "prometheus.service"], capture_output=True, timeout=60, check=False
        )


@contextlib.contextmanager
def _no_service() -> Iterator[None]:
    """Prevents packages from starting their services, by the script `_POLICY`, which packages ask for permission."""
    if _POLICY.exists():
        # Keep an existing policy: in containers, the policy already forbids services.
        yield
        return
    _POLICY.write_text("#!/bin/sh\nexit 101\n")
    _POLICY.chmod(0o755)
    try:
        yield
    finally:
        _POLICY.unlink()


def rules(*, patient: bool = True) -> dict[str, Any]:
    """Returns the content of rules.yml. Unless `patient`, reduces the waiting time of each alert to a second."""
    loaded: dict[str, Any] = yaml.safe_load((HERE / "rules.yml").read_text())
    if not patient:
        for group in loaded["groups"]:
            for rule in group["rules"]:
                if "for" in rule:
                    rule["for"] = "1s"
    return loaded


def panels(board: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields the panels of a Grafana board that have queries, including panels in collapsed rows."""
    for panel in board["panels"]:
        if "targets" in panel:
            yield panel
        yield from panel.get("panels", ())


class Prometheus:
    """A real Prometheus on 127.0.0.1 that scrapes one endpoint. A context manager.

    Prometheus is a child process that the kernel kills together with this process. The child has its own port, and a
    temporary directory.

    Args:
        target: `host:port` of the endpoint.
        every_s: Seconds between two scrapes.
        patient: Whether alerts have the waiting times of rules.yml. If false, they wait for a second.
    """

    def __init__(self, target: str, *, every_s: int = 1, patient: bool = False) -> None:
        self._target = target
        self.every_s = every_s
        self._patient = patient
        self._binary = find("prometheus", "prometheus")

    def __enter__(self) -> Self:
        self._directory = tempfile.TemporaryDirectory(prefix="kafkasafe-prometheus-")
        here = Path(self._directory.name)
        self._port, self._port_lock = reserve_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self.console = f"{self.url}/consoles/console.html?seconds=120&window=15s"
        (here / "rules.yml").write_text(yaml.safe_dump(rules(patient=self._patient)))
        (here / "consoles").mkdir()
        shutil.copy(HERE / "console.html", here / "consoles")
        config = {
            "global": {"scrape_interval": f"{self.every_s}s", "evaluation_interval": f"{self.every_s}s"},
            "rule_files": ["rules.yml"],
            "scrape_configs": [{"job_name": "kafkasafe", "static_configs": [{"targets": [self._target]}]}],
        }
        (here / "prometheus.yml").write_text(yaml.safe_dump(config))
        self._log = here / "prometheus.log"
        self._process = spawn(
            [
                self._binary,
                "--config.file=prometheus.yml",
                "--storage.tsdb.path=data",
                f"--web.listen-address=127.0.0.1:{self._port}",
                "--web.console.templates=consoles",
                # Prometheus's default is a directory that may not exist.
                "--web.console.libraries=consoles",
            ],
            here,
            self._log,
        )
        try:
            self._wait_ready()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends Prometheus."""
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._port_lock)
        self._directory.cleanup()

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + 60
        while True:
            try:
                with urllib.request.urlopen(f"{self.url}/-/ready", timeout=10):
                    return
            except urllib.error.HTTPError as error:
                error.close()
            except OSError:
                pass
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(
                    f"Prometheus does not serve:\n{self._log.read_text(errors='replace')[-3000:]}"
                )
            time.sleep(0.1)

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Samples of an instant query.

        Raises:
            ValueError: Prometheus rejects the expression.
        """
        url = f"{self.url}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                data = json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            with error:
                raise ValueError(f"{expression}: {error.read().decode()}") from None
        if data["resultType"] == "scalar":
            return [{"metric": {}, "value": data["result"]}]
        return list(data["result"])

    def alerts(self, state: str = "firing") -> set[tuple[str, str]]:
        """Returns (alert, client id) of the alerts in a state. Alerts of Spark have a query or topic instead of a
        client id.
        """
        found = self.query(f'ALERTS{{alertstate="{state}"}}')
        whose = ("client_id", "query", "topic")
        return {
            (labels["alertname"], next((labels[name] for name in whose if name in labels), ""))
            for labels in (sample["metric"] for sample in found)
        }
