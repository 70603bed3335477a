"""kafka-python's admin client, for reading settings. Closes all sockets, even if the client cannot connect."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType

from kafkasafe.kafkapython.manager import Manager


@contextlib.contextmanager
def open_admin(options: Mapping[str, Any]) -> Iterator[KafkaAdminClient]:
    """Make an admin client with these options of KafkaProducer. Options that the admin client does not have are
    ignored.

    Raises:
        KafkaError: No broker answers.
    """
    known = KafkaAdminClient.DEFAULT_CONFIG
    client = make_admin({key: value for key, value in options.items() if key in known})
    try:
        yield client
    finally:
        client.close()


def make_admin(options: Mapping[str, Any]) -> KafkaAdminClient:
    """Make an admin client. The caller must close it.

    If the client cannot connect, the constructor of kafka-python 3.0.12 leaks a thread and sockets. This function ends
    the thread and closes the sockets.

    Raises:
        KafkaError: No broker answers.
    """
    client: KafkaAdminClient = KafkaAdminClient.__new__(KafkaAdminClient)
    try:
        client.__init__(**{**options, "kafka_client": tidy_client})  # type: ignore[misc]
    except BaseException:
        if hasattr(client, "_net"):
            client._closed = False
            client.close()
        raise
    return client


def cluster_metadata(admin: KafkaAdminClient) -> dict[str, Any]:
    """Return the cluster id and the brokers, from the metadata.

    This function does not use `describe_cluster`, which fails in kafka-python 3.0.12 with Kafka 2.8 to 3.6.
    """
    client: Any = admin
    found: dict[str, Any] = client._manager.run(client._get_cluster_metadata, [])
    return found


def settings_of(
    admin: KafkaAdminClient, topics: Sequence[str]
) -> tuple[dict[str, dict[str, str | None]], dict[str, str | None], dict[str, int]]:
    """Return the settings of the topics, the settings of one broker, and the replication factor of each topic. If the
    partitions of a topic have different numbers of replicas, the replication factor is the smallest of these numbers.

    Topics that do not exist are left out. Settings are empty if the user may not read them: a broker answers with an
    error for the topic or broker, which kafka-python leaves out.

    Raises:
        KafkaError: The settings cannot be read.
    """
    described = [row for row in admin.describe_topics(list(topics)) if not row.get("error_code")]
    replicas = {
        row["name"]: min((len(p["replica_nodes"]) for p in row["partitions"]), default=0) for row in described
    }
    resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in replicas]
    for row in admin.describe_cluster()["brokers"][:1]:
        # The name of the node id's field depends on the broker's version.
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
    """Make the network client of kafka-python's clients, but with connections that close their sockets when they fail.

    kafka-python leaves the sockets of failed connections to the garbage collector, which reports them with a
    ResourceWarning, so that a later test fails. Connections often fail in tests, because the metadata names a killed
    broker for a while.
    """
    make: Any = KafkaAdminClient.DEFAULT_CONFIG["kafka_client"]
    client = make(manager=False, **options)  # with None, the client would make a manager
    client._manager = Manager(client._net, **options)  # type: ignore[no-untyped-call]
    return client
