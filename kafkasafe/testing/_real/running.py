"""Nodes stop and start, and it is waited for what that is good for."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from kafka.errors import KafkaError

from kafkasafe.testing._real.asking import open_admin
from kafkasafe.testing._real.defining import Defining
from kafkasafe.testing._real.node import POLL_S, SESSION_TIMEOUT_MS, Node
from kafkasafe.testing._real.processes import listens, port_free, spawn
from kafkasafe.testing._real.values import ClusterError

__all__ = ["Running"]


class Running(Defining):
    """Part of `KafkaCluster`."""

    def kill(self, node: int) -> None:
        """SIGKILL; returns when the process is gone. Does nothing to a node that is not running."""
        self._kill([self._node(node)])

    def kill_all(self, *, controller: bool = False) -> None:
        """SIGKILL to all brokers at once (with `controller=True` to the controller too). Data stays."""
        self._kill([node for node in self._nodes.values() if node.serves or controller])

    def stop(self, node: int, timeout_s: float = 30.0) -> None:
        """Orderly shutdown (SIGTERM): leaders are moved away first, and the log is closed cleanly.

        Raises:
            ClusterError: Not down after `timeout_s`; it is killed then.
        """
        found = self._node(node)
        if found.paused:
            self.resume(node)
        if found.process is None or found.process.poll() is not None:
            self._kill([found])
            return
        found.process.send_signal(signal.SIGTERM)
        try:
            found.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._kill([found])
            raise self._error(
                f"{found.name} was not down {timeout_s:g} s after SIGTERM; killed", [found]
            ) from None
        found.process = None
        found.killed_at = 0.0

    def start(self, node: int, timeout_s: float = 60.0, *, wait: bool = True) -> None:
        """Starts a node on the data it left. Does nothing to one that runs.

        Args:
            node: Its id.
            timeout_s: Seconds it may take.
            wait: Return only when the broker serves requests (`wait_ready`); else at once.

        Raises:
            ClusterError: It ended or did not serve in time.
        """
        self._start([self._node(node)], time.monotonic() + timeout_s, wait=wait)

    def start_all(self, timeout_s: float = 60.0, *, wait: bool = True) -> None:
        """Starts, together, all nodes that are not running, as `start` does."""
        down = [node for node in self._nodes.values() if not node.running]
        self._start(down, time.monotonic() + timeout_s, wait=wait)

    def restart(self, node: int, timeout_s: float = 60.0, *, hard: bool = False) -> None:
        """`stop` (with `hard=True` `kill`) and `start`; returns when the broker serves again."""
        if hard:
            self.kill(node)
        else:
            self.stop(node, timeout_s)
        self.start(node, timeout_s)

    def pause(self, node: int) -> None:
        """SIGSTOP: connections stay open and nothing answers. Returns when the process has stopped.

        After 2 s the controller takes the broker for dead and its partitions move.
        """
        pid = self.pid(node)
        os.kill(pid, signal.SIGSTOP)
        self._node(node).paused = True
        self._until(
            lambda: _process_state(pid) in "TtZX", 5.0, f"{self._node(node).name} did not stop on SIGSTOP"
        )

    def resume(self, node: int) -> None:
        """SIGCONT after `pause`. Does nothing to a node that is not paused."""
        found = self._node(node)
        if found.paused and found.running:
            os.kill(self.pid(node), signal.SIGCONT)
        found.paused = False

    def wait_ready(self, nodes: Iterable[int] | None = None, timeout_s: float = 60.0) -> None:
        """Returns when the given brokers (default: all that run and are not paused) are up and in the metadata.

        Raises:
            ClusterError: Not within `timeout_s`, or a process ended; holds the end of its log.
        """
        chosen = (
            [node for node in self._nodes.values() if node.serves and node.running and not node.paused]
            if nodes is None
            else [self._node(node) for node in nodes]
        )
        self._wait_ready(chosen, time.monotonic() + timeout_s)

    def _kill(self, nodes: Iterable[Node]) -> None:
        victims = [node for node in nodes if node.process is not None]
        for node in victims:
            if node.process is not None:
                node.process.kill()
        for node in victims:
            if node.process is not None:
                node.process.wait()
                self._resources.processes.discard(node.process)
            node.process, node.paused, node.killed_at = None, False, time.monotonic()

    def _start(self, nodes: Sequence[Node], deadline: float, *, wait: bool) -> None:
        fresh = [node for node in nodes if not node.running]
        for node in fresh:
            for port in node.ports:
                if not port_free(port):
                    raise self._error(
                        f"port {port} of {node.name} is taken by another process: end that one (`ss -ltnp` names it),"
                        " or make a new KafkaCluster, which takes other ports",
                        [],
                    )
        if self._zookeeper:
            self._start_zookeeper_first(fresh, deadline)
        for node in fresh:
            self._spawn(node)
        if wait:
            self._wait_ready(nodes, deadline)

    def _start_zookeeper_first(self, fresh: Sequence[Node], deadline: float) -> None:
        """A broker gives up when ZooKeeper is not there, or still holds the session of its killed former life."""
        for node in fresh:
            if node.kind == "zookeeper":
                self._spawn(node)
                self._wait_listening(node, deadline)
        died = max((node.killed_at for node in fresh if node.serves), default=0.0)
        if died:
            time.sleep(max(0.0, died + SESSION_TIMEOUT_MS / 1000 + 1.5 - time.monotonic()))

    def _spawn(self, node: Node) -> None:
        if node.running:
            return
        node.paused = False
        node.process = spawn(node.command, node.directory, node.log)
        self._resources.processes.add(node.process)

    def _wait_ready(self, nodes: Sequence[Node], deadline: float) -> None:
        for node in nodes:
            self._wait_listening(node, deadline)
        wanted = {node.id for node in nodes if node.serves}
        if not wanted:
            return
        # Asked of a broker just started: another one may still know the registration of its former life.
        servers = [f"127.0.0.1:{self._inner_ports[node]}" for node in sorted(wanted)]
        answer = "no answer"
        while time.monotonic() < deadline:
            self._check_alive(nodes)
            try:
                admin = open_admin(servers, timeout_ms=5000)
                try:
                    while time.monotonic() < deadline:
                        self._check_alive(nodes)
                        # Not `describe_cluster`, which fails on the answer of Kafka 2.8 to 3.6. Brokers that are
                        # fenced (registered, but not caught up) are not in the metadata.
                        cluster = admin._manager.run(admin._get_cluster_metadata, [])
                        self._check_cluster(cluster["cluster_id"])
                        up = {broker["node_id"] for broker in cluster["brokers"]}
                        if wanted <= up:
                            return
                        answer = f"the metadata has only the brokers {sorted(up)}"
                        time.sleep(POLL_S)
                finally:
                    admin.close()
            except (KafkaError, OSError) as error:
                if isinstance(error, ClusterError):
                    raise
                answer = f"{type(error).__name__}: {error}"
                time.sleep(POLL_S)
        raise self._error(f"brokers {sorted(wanted)} were not ready in time: {answer}", nodes)

    def _check_cluster(self, cluster_id: str) -> None:
        if self._zookeeper and not self._cluster_id:
            self._cluster_id = cluster_id  # made by the first broker
        if cluster_id != self._cluster_id:
            raise ClusterError(
                f"a broker of another cluster ({cluster_id}) answers on our port", log_dir=self.log_dir
            )

    def _check_alive(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            if not node.running:
                code = node.process.returncode if node.process is not None else "unknown"
                raise self._error(f"{node.name} ended while it was waited for (exit code {code})", [node])

    def _wait_listening(self, node: Node, deadline: float) -> None:
        while time.monotonic() < deadline:
            self._check_alive([node])
            if all(listens(port) for port in node.ports):
                return
            time.sleep(POLL_S)
        raise self._error(f"{node.name} did not listen in time", [node])


def _process_state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"
