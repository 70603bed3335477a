"""Which cluster a client speaks to, and whether another one answers: the same for every `Cluster`."""

from __future__ import annotations

from collections.abc import Callable

import kafka.errors as kafka_errors

from kafkasafe.cluster.terms import safely
from kafkasafe.errors import WrongClusterError
from kafkasafe.logs import EventLog

__all__ = ["ClusterPin"]


class ClusterPin:
    """The ids of a client's cluster.

    Args:
        log: Gets a warning when the cluster changes.

    Attributes:
        guarded: Each new connection must prove that it leads to the home cluster.
        cluster_id: Id of the cluster that answered last; None before the first answer and from old brokers.
    """

    __slots__ = ("_home", "_log", "_on_home", "_on_stranger", "cluster_id", "guarded")

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self.guarded = False
        self.cluster_id: str | None = None
        self._home: str | None = None
        """The cluster that connections of a guarded client must lead to, None until a broker has said its own."""
        self._on_stranger: Callable[[str], None] = lambda _: None
        self._on_home: Callable[[], None] = lambda: None

    def guard(self, *, on_stranger: Callable[[str], None], on_home: Callable[[], None]) -> None:
        """See `Cluster`."""
        self.guarded = True
        self._on_stranger, self._on_home = on_stranger, on_home

    def move(self, cluster_id: str) -> None:
        """From now on this is the home cluster."""
        self._home = cluster_id

    def answered(self, cluster_id: str | None) -> str | None:
        """An answer about metadata names its cluster; returns the id."""
        answered = cluster_id or None
        if self.cluster_id is not None and answered is not None and answered != self.cluster_id:
            self._log.warning(
                "Another cluster answers: %s, until now %s",
                answered,
                self.cluster_id,
                event="cluster_changed",
            )
        self.cluster_id = answered
        return answered

    def stranger(self, cluster_id: str | None) -> BaseException | None:
        """Why a connection that leads to this cluster must not be used; None where it may."""
        if not self.guarded:
            return None
        cluster_id = cluster_id or None
        if self._home is None:
            self._home = cluster_id
        if cluster_id == self._home:
            return None
        if cluster_id is None:
            unknown: BaseException = kafka_errors.KafkaConnectionError(
                f"The broker does not say that it belongs to cluster {self._home}"
            )
            return unknown
        safely(self._on_stranger, cluster_id)
        return WrongClusterError(
            f"This broker belongs to cluster {cluster_id}, not to {self._home}: nothing is sent to it"
        )

    def admitted(self) -> None:
        """A new connection leads where it should."""
        if self.guarded:
            safely(self._on_home)
