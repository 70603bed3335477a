"""kafka-python's admin client, for reading settings; closed to the last socket, also when it cannot connect."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType

from kafkasafe._io.transport import Manager

__all__ = ["open_admin", "settings_of", "tidy_client"]


@contextlib.contextmanager
def open_admin(options: Mapping[str, Any]) -> Iterator[KafkaAdminClient]:
    """An admin client of these options of KafkaProducer's; what does not concern it is passed over.

    Raises:
        KafkaError: No broker answers.
    """
    known = KafkaAdminClient.DEFAULT_CONFIG
    client: KafkaAdminClient = KafkaAdminClient.__new__(KafkaAdminClient)
    try:
        given = {key: value for key, value in options.items() if key in known}
        client.__init__(**{**given, "kafka_client": tidy_client})  # type: ignore[misc]
    except BaseException:
        if hasattr(client, "_net"):
            client._closed = False
            client.close()
        raise
    try:
        yield client
    finally:
        client.close()


def settings_of(
    admin: KafkaAdminClient, topics: Sequence[str]
) -> tuple[dict[str, dict[str, str | None]], dict[str, str | None], dict[str, int]]:
    """Settings of topics, those of a broker, and each topic's fewest replicas.

    A topic that is not there is left out.

    Raises:
        KafkaError: They cannot be read.
    """
    described = [row for row in admin.describe_topics(list(topics)) if not row.get("error_code")]
    replicas = {
        row["name"]: min((len(p["replica_nodes"]) for p in row["partitions"]), default=0) for row in described
    }
    resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in replicas]
    for row in admin.describe_cluster()["brokers"][:1]:
        # Called one or the other, as the broker's version has it.
        number = row["broker_id"] if "broker_id" in row else row["node_id"]
        resources.append(ConfigResource(ConfigResourceType.BROKER, str(number)))
    if not resources:
        return {}, {}, {}
    answer = admin.describe_configs(resources, config_filter="all")
    found = {
        kind: {name: {key: row["value"] for key, row in rows.items()} for name, rows in by_name.items()}
        for kind, by_name in answer.items()
    }
    broker: dict[str, str | None] = next(iter(found.get("broker", {}).values()), {})
    return found.get("topic", {}), broker, replicas


def tidy_client(**options: Any) -> Any:
    """What kafka-python's clients stand on, but with connections that close their socket when they fail.

    Its own leave that to the garbage collector, whose ResourceWarning fails somebody's test later on; and
    connections do fail, for the metadata goes on naming a killed broker for a while.
    """
    make: Any = KafkaAdminClient.DEFAULT_CONFIG["kafka_client"]
    client = make(manager=False, **options)  # not None: it must not make one of its own
    client._manager = Manager(client._net, **options)  # type: ignore[no-untyped-call]
    return client
