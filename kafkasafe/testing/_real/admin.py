"""Sends requests to the brokers with kafka-python's admin client, not through proxies."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import KafkaError

from kafkasafe.errors import KafkaSafeError
from kafkasafe.testing._real.admin_client import open_admin
from kafkasafe.testing._real.layout import Layout
from kafkasafe.testing._real.nodes import Nodes
from kafkasafe.testing._real.values import ClusterError
from kafkasafe.testing._real.workspace import Workspace

T = TypeVar("T")


class Admin:
    """Sends an admin client's requests to the brokers that are running."""

    def __init__(self, layout: Layout, workspace: Workspace, nodes: Nodes) -> None:
        self._layout = layout
        self._workspace = workspace
        self._nodes = nodes

    @contextlib.contextmanager
    def client(self) -> Iterator[KafkaAdminClient]:
        client = open_admin(self._bootstrap(), timeout_ms=10_000)
        try:
            yield client
        finally:
            client.close()

    def _bootstrap(self) -> list[str]:
        found = [
            f"127.0.0.1:{self._layout.inner_ports[node]}"
            for node in self._layout.brokers
            if self._nodes.lives(node)
        ]
        if not found:
            raise ClusterError(
                "no broker is running (paused ones cannot answer)", log_dir=self._workspace.log_dir
            )
        return found

    def run(self, work: Callable[[KafkaAdminClient], T], deadline: float, what: str) -> T:
        """Runs `work` with an admin client. After a retriable failure, tries again with a new client until `deadline`.

        At the deadline, raises an error with the message "could not `what` in time".
        """
        while True:
            try:
                client = open_admin(self._bootstrap(), timeout_ms=5000)
                try:
                    return work(client)
                finally:
                    client.close()
            except (KafkaError, OSError) as error:
                if isinstance(error, KafkaSafeError) or _is_final(error):
                    raise
                if time.monotonic() > deadline:
                    raise self._workspace.error(
                        f"could not {what} in time: {type(error).__name__}: {error}", []
                    ) from error
                time.sleep(0.2)

    def alter(
        self, kind: ConfigResourceType, name: str, values: Mapping[str, str | None], deadline: float
    ) -> None:
        """Changes settings of a topic or broker. The value None resets a setting to its default."""
        settings = {key: value for key, value in values.items() if value is not None}
        defaults = [key for key, value in values.items() if value is None]

        def alter(admin: KafkaAdminClient) -> None:
            answers = []
            if settings:
                answers.append(
                    admin.alter_configs([ConfigResource(kind, name, settings)], raise_on_unknown=False)
                )
            if defaults:
                answers.append(
                    admin.reset_configs([ConfigResource(kind, name, defaults)], raise_on_unknown=False)
                )
            for answer in answers:
                for result in answer[kind.name.lower()].values():
                    if result != "OK":
                        raise ClusterError(
                            f"could not set {dict(values)} on {name}: {result}",
                            log_dir=self._workspace.log_dir,
                        )

        self.run(alter, deadline, f"set {dict(values)} on {name}")

    def settings_of(
        self, kind: ConfigResourceType, name: str, deadline: float, which: str = "modified"
    ) -> dict[str, str]:
        """Returns settings of a topic or broker. With `which="modified"`, only the settings that differ from the
        defaults.
        """
        resource = ConfigResource(kind, name)
        answer = self.run(
            lambda admin: admin.describe_configs([resource], config_filter=which),
            deadline,
            f"read the settings of {name}",
        )
        return {key: row["value"] for rows in answer[kind.name.lower()].values() for key, row in rows.items()}


def _is_final(error: BaseException) -> bool:
    """Whether the cluster understood the request and refused it. If so, a retry is useless."""
    return getattr(error, "errno", None) is not None and not getattr(error, "retriable", False)
