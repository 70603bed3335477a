"""Questions and orders to the brokers, by kafka-python's admin client, past any proxy."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import KafkaError

from kafkasafe._io.admin import tidy_client
from kafkasafe.errors import KafkaSafeError
from kafkasafe.testing._real.places import Places
from kafkasafe.testing._real.values import ClusterError

__all__ = ["Asking", "open_admin"]

T = TypeVar("T")


class Asking(Places):
    """Part of `KafkaCluster`."""

    @contextlib.contextmanager
    def admin(self) -> Iterator[KafkaAdminClient]:
        """A kafka-python admin client connected directly (past any proxy) to the living brokers."""
        client = open_admin(self._bootstrap(), timeout_ms=10_000)
        try:
            yield client
        finally:
            client.close()

    def _bootstrap(self) -> list[str]:
        found = [f"127.0.0.1:{self._inner_ports[node]}" for node in self.brokers if self._lives(node)]
        if not found:
            raise ClusterError("no broker is running (paused ones cannot answer)", log_dir=self.log_dir)
        return found

    def _admin(self, work: Callable[[KafkaAdminClient], T], deadline: float, what: str) -> T:
        """Runs `work` on an admin client; again, on a new one, while the failure is one that passes."""
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
                    raise self._error(
                        f"could not {what} in time: {type(error).__name__}: {error}", []
                    ) from error
                time.sleep(0.2)

    def _alter(
        self, kind: ConfigResourceType, name: str, values: Mapping[str, str | None], deadline: float
    ) -> None:
        """Sets settings of a topic or broker; None takes one back to its default."""
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
                            f"could not set {dict(values)} on {name}: {result}", log_dir=self.log_dir
                        )

        self._admin(alter, deadline, f"set {dict(values)} on {name}")

    def _settings_of(
        self, kind: ConfigResourceType, name: str, deadline: float, which: str = "modified"
    ) -> dict[str, str]:
        resource = ConfigResource(kind, name)
        answer = self._admin(
            lambda admin: admin.describe_configs([resource], config_filter=which),
            deadline,
            f"read the settings of {name}",
        )
        return {key: row["value"] for rows in answer[kind.name.lower()].values() for key, row in rows.items()}


def open_admin(bootstrap_servers: Sequence[str], timeout_ms: int, **options: Any) -> KafkaAdminClient:
    """An admin client; one that cannot connect leaves no thread or socket behind, as its constructor would."""
    client: KafkaAdminClient = KafkaAdminClient.__new__(KafkaAdminClient)
    try:
        client.__init__(  # type: ignore[misc]
            **options,
            bootstrap_servers=list(bootstrap_servers),
            bootstrap_timeout_ms=timeout_ms,
            request_timeout_ms=timeout_ms,
            reconnect_backoff_max_ms=500,
            client_id="kafkasafe-testing",
            kafka_client=tidy_client,
        )
    except BaseException:
        if hasattr(client, "_net"):
            client._closed = False
            client.close()
        raise
    return client


def _is_final(error: BaseException) -> bool:
    """Whether trying again cannot help: the cluster understood and said no."""
    return getattr(error, "errno", None) is not None and not getattr(error, "retriable", False)
