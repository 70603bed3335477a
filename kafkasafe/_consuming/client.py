"""The connections that KafkaConsumer stands on: which broker is asked, and how a cluster that moved is found again."""

from __future__ import annotations

import random
import sys
from typing import Any, Final

import kafka.errors as kafka_errors
from kafka import KafkaConsumer

from kafkasafe._io.metadata import Metadata
from kafkasafe._io.transport import Manager
from kafkasafe.logs import as_own_thread, limit_foreign

__all__ = ["OURS"]


class _ReachingManager(Manager):
    """Finds the way back when all brokers that the metadata name are gone: by the bootstrap servers (KIP-899).

    Attributes:
        last_failure: Why the last connection, or question for metadata, failed.
    """

    def __init__(self, net: Any, **configs: Any) -> None:
        self.last_failure: BaseException | None = None
        parent: Any = super()
        parent.__init__(net, **configs)
        name = (
            "allow_auto_create_topics"  # an option that KafkaConsumer of kafka-python 3.0 forgets on the way
        )
        self.cluster = Metadata(**{**self.cluster.config, name: configs.get(name, True)})
        attach: Any = self.cluster.attach
        attach(self)

    @property
    def has_connection(self) -> bool:
        """Whether a connection to a broker stands. From any thread."""
        return any(conn.connected for conn in list(self._conns.values()))

    def update_backoff(self, node_id: Any) -> Any:
        # KafkaConnectionManager calls it where it handles the error, which it only logs.
        failure = sys.exc_info()[1]
        late = (kafka_errors.KafkaTimeoutError, kafka_errors.RequestTimedOutError)
        cut_short = isinstance(failure, late) or isinstance(getattr(failure, "__cause__", None), late)
        # The last try ends with the time there is, which says nothing of why the tries before it failed.
        if failure is not None and not (cut_short and self.last_failure is not None):
            self.last_failure = failure
        parent: Any = super()
        return parent.update_backoff(node_id)

    def least_loaded_node(self) -> Any:
        parent: Any = super()
        node = parent.least_loaded_node()
        if node is not None or self.has_connection:
            return node
        brokers = [broker.node_id for broker in self.cluster.bootstrap_brokers()]
        able = [node_id for node_id in brokers if parent.connection_delay(node_id) <= 0]
        return random.choice(able) if able else None


def _tidy_client(**options: Any) -> Any:
    """What KafkaConsumer stands on, but with our connections: they close their socket when they fail, and look names
    up on a thread of their own.
    """
    make: Any = KafkaConsumer.DEFAULT_CONFIG["kafka_client"]
    client = make(manager=False, **options)  # not None: it must not make one of its own
    manager: Any = _ReachingManager
    client._manager = manager(client._net, **options)
    limit_foreign()
    client._net.run_forever = as_own_thread(client._net.run_forever)
    return client


# KafkaConsumer's options, where the default is another: a cluster that comes back is to be noticed soon.
OURS: Final[dict[str, Any]] = {"kafka_client": _tidy_client, "reconnect_backoff_max_ms": 1000}
