"""Starts, stops, kills and pauses the processes of a cluster, and waits until they serve."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from kafka.errors import KafkaError

from kafkasafe.errors import UsageError
from kafkasafe.kafkapython.admin import cluster_metadata
from kafkasafe.testing._real.admin_client import open_admin
from kafkasafe.testing._real.layout import Layout
from kafkasafe.testing._real.node import POLL_S, SESSION_TIMEOUT_MS, Node
from kafkasafe.testing._real.processes import Resources, listens, port_free
from kafkasafe.testing._real.values import ClusterError
from kafkasafe.testing._real.workspace import Workspace


class Nodes:
    """Starts, stops, kills and pauses the processes of a cluster, and waits until brokers answer requests.

    Methods without a docstring do what the `KafkaCluster` methods of the same name do.

    Attributes:
        zookeeper: Whether the controller is a ZooKeeper.
        cluster_id: Kafka's id of the cluster; empty while unknown.
    """

    def __init__(
        self,
        layout: Layout,
        workspace: Workspace,
        resources: Resources,
        *,
        zookeeper: bool,
        controller_port: int,
    ) -> None:
        self.zookeeper = zookeeper
        self.controller_port = controller_port
        self.cluster_id = ""
        self._layout = layout
        self._workspace = workspace
        self._resources = resources
        self._nodes: dict[int, Node] = {}

    def add(self, node: Node) -> None:
        """Adds a node, without starting it."""
        self._nodes[node.id] = node

    def all(self) -> list[Node]:
        """All nodes, in the order in which they were added."""
        return list(self._nodes.values())

    def identify(self, cluster_id: str) -> None:
        """Sets the id that the cluster will have. If `identify` is not called, `cluster_id` is taken from the first
        answer of a broker.
        """
        self.cluster_id = cluster_id

    def replace_zookeeper(self, controller: Node) -> None:
        """Replaces ZooKeeper with a KRaft controller. ZooKeeper may still be running."""
        self.zookeeper = False
        self._nodes[controller.id] = controller
        (self.controller_port,) = controller.ports

    def kill(self, node: int) -> None:
        self.kill_together([self.find(node)])

    def kill_all(self, *, controller: bool = False) -> None:
        self.kill_together([node for node in self._nodes.values() if node.serves or controller])

    def stop(self, node: int, timeout_s: float = 30.0) -> None:
        found = self.find(node)
        if found.paused:
            self.resume(node)
        if found.process is None or found.process.poll() is not None:
            self.kill_together([found])
            return
        found.process.send_signal(signal.SIGTERM)
        try:
            found.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill_together([found])
            raise self._workspace.error(
                f"{found.name} was not down {timeout_s:g} s after SIGTERM; killed", [found]
            ) from None
        found.stopped()

    def start(self, node: int, timeout_s: float = 60.0, *, wait: bool = True) -> None:
        self.start_together([self.find(node)], time.monotonic() + timeout_s, wait=wait)

    def start_all(self, timeout_s: float = 60.0, *, wait: bool = True) -> None:
        down = [node for node in self._nodes.values() if not node.running]
        self.start_together(down, time.monotonic() + timeout_s, wait=wait)

    def restart(self, node: int, timeout_s: float = 60.0, *, hard: bool = False) -> None:
        if hard:
            self.kill(node)
        else:
            self.stop(node, timeout_s)
        self.start(node, timeout_s)

    def pause(self, node: int) -> None:
        pid = self.pid(node)
        os.kill(pid, signal.SIGSTOP)
        self.find(node).set_paused(True)
        self._workspace.until(
            lambda: _process_state(pid) in "TtZX", 5.0, f"{self.find(node).name} did not stop on SIGSTOP"
        )

    def resume(self, node: int) -> None:
        found = self.find(node)
        if found.paused and found.running:
            os.kill(self.pid(node), signal.SIGCONT)
        found.set_paused(False)

    def recover(self, timeout_s: float = 60.0) -> None:
        for node in self._nodes.values():
            if node.paused:
                self.resume(node.id)
        if not all(node.running for node in self._nodes.values()):
            self.start_all(timeout_s)

    def wait_ready(self, nodes: Iterable[int] | None = None, timeout_s: float = 60.0) -> None:
        chosen = (
            [node for node in self._nodes.values() if node.serves and node.running and not node.paused]
            if nodes is None
            else [self.find(node) for node in nodes]
        )
        self._wait_ready(chosen, time.monotonic() + timeout_s)

    def data_dir(self, node: int) -> Path:
        return self.find(node).directory / "data"

    def pid(self, node: int) -> int:
        process = self.find(node).process
        if process is None or process.poll() is not None:
            raise ClusterError(f"{self.find(node).name} is not running", log_dir=self._workspace.log_dir)
        return process.pid

    def is_running(self, node: int) -> bool:
        return self.find(node).running

    def find(self, node: int) -> Node:
        """Returns the node with this id; raises `UsageError` if it does not exist."""
        self._workspace.directory  # noqa: B018 - raises when not open
        if node not in self._nodes:
            raise UsageError(f"there is no node {node}; there are {sorted(self._nodes)}")
        return self._nodes[node]

    def lives(self, node: int) -> bool:
        """Whether a node runs and is not paused."""
        found = self._nodes.get(node)
        return found is not None and found.running and not found.paused

    def kill_together(self, nodes: Iterable[Node]) -> None:
        """Sends SIGKILL to all of these nodes, then waits for each of them."""
        victims = [node for node in nodes if node.process is not None]
        for node in victims:
            if node.process is not None:
                node.process.kill()
        for node in victims:
            if node.process is not None:
                node.process.wait()
                self._resources.processes.discard(node.process)
            node.killed()

    def start_together(self, nodes: Sequence[Node], deadline: float, *, wait: bool) -> None:
        """Starts, concurrently, the nodes that are not running."""
        fresh = [node for node in nodes if not node.running]
        for node in fresh:
            for port in node.ports:
                if not port_free(port):
                    raise self._workspace.error(
                        f"port {port} of {node.name} is used by another process: end that process"
                        " (`ss -ltnp` names it), or make a new KafkaCluster, which takes other ports",
                        [],
                    )
        if self.zookeeper:
            self._start_zookeeper_first(fresh, deadline)
        for node in fresh:
            self.spawn(node)
        if wait:
            self._wait_ready(nodes, deadline)

    def _start_zookeeper_first(self, fresh: Sequence[Node], deadline: float) -> None:
        """Starts ZooKeeper, and returns when the brokers can start. A broker exits if ZooKeeper is down, or if
        ZooKeeper still has a session of the broker's former process.
        """
        for node in fresh:
            if node.kind == "zookeeper":
                self.spawn(node)
                self.wait_listening(node, deadline)
        died = max((node.killed_at for node in fresh if node.serves), default=0.0)
        if died:
            time.sleep(max(0.0, died + SESSION_TIMEOUT_MS / 1000 + 1.5 - time.monotonic()))

    def spawn(self, node: Node) -> None:
        """Starts the process of a node that is not running."""
        if node.running:
            return
        self._resources.processes.add(node.spawn())

    def _wait_ready(self, nodes: Sequence[Node], deadline: float) -> None:
        for node in nodes:
            self.wait_listening(node, deadline)
        wanted = {node.id for node in nodes if node.serves}
        if not wanted:
            return
        # Ask the brokers that were just started. Other brokers may list a restarted broker although only its
        # previous process has registered.
        servers = [f"127.0.0.1:{self._layout.inner_ports[node]}" for node in sorted(wanted)]
        answer = "no answer"
        while time.monotonic() < deadline:
            self._check_alive(nodes)
            try:
                admin = open_admin(servers, timeout_ms=5000)
                try:
                    while time.monotonic() < deadline:
                        self._check_alive(nodes)
                        # Fenced brokers are registered, but not in the metadata, because they have not caught up.
                        cluster = cluster_metadata(admin)
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
        raise self._workspace.error(f"brokers {sorted(wanted)} were not ready in time: {answer}", nodes)

    def _check_cluster(self, cluster_id: str) -> None:
        if self.zookeeper and not self.cluster_id:
            self.cluster_id = cluster_id  # the first broker has chosen it
        if cluster_id != self.cluster_id:
            raise ClusterError(
                f"a broker of another cluster ({cluster_id}) answers on our port",
                log_dir=self._workspace.log_dir,
            )

    def _check_alive(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            if not node.running:
                code = node.process.returncode if node.process is not None else "unknown"
                raise self._workspace.error(
                    f"{node.name} ended while it was waited for (exit code {code})", [node]
                )

    def wait_listening(self, node: Node, deadline: float) -> None:
        """Returns when the node listens on all its ports."""
        while time.monotonic() < deadline:
            self._check_alive([node])
            if all(listens(port) for port in node.ports):
                return
            time.sleep(POLL_S)
        raise self._workspace.error(f"{node.name} did not listen in time", [node])


def _process_state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"
