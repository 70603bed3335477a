"""Checks that a client communicates with only one cluster."""

from __future__ import annotations

from collections.abc import Callable

import kafka.errors as kafka_errors

from kafkasafe.cluster.terms import safely
from kafkasafe.errors import WrongClusterError
from kafkasafe.logs import EventLog


class ClusterPin:
    """Stores which cluster a client may communicate with, and which cluster answered last.

    Attributes:
        pinned: Whether the broker of each new connection must prove that it belongs to the pinned cluster.
        cluster_id: Id of the cluster that answered last; None before the first answer, and if the broker reports no id.
    """

    __slots__ = ("_log", "_on_other_cluster", "_on_pinned_cluster", "_pinned", "cluster_id", "pinned")

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self.pinned = False
        self.cluster_id: str | None = None
        self._pinned: str | None = None
        """Id of the only cluster to which the brokers of a pinned client may belong; None until a broker has reported
        its cluster id.
        """
        self._on_other_cluster: Callable[[str], None] = lambda _: None
        self._on_pinned_cluster: Callable[[], None] = lambda: None

    def pin_cluster(
        self, *, on_other_cluster: Callable[[str], None], on_pinned_cluster: Callable[[], None]
    ) -> None:
        self.pinned = True
        self._on_other_cluster, self._on_pinned_cluster = on_other_cluster, on_pinned_cluster

    def repin(self, cluster_id: str) -> BaseException | None:
        """Pins another cluster. Returns the error with which to end all connections to the formerly pinned cluster.
        Returns None if `cluster_id` was pinned already.
        """
        former, self._pinned = self._pinned, cluster_id
        if former == cluster_id:
            return None
        return WrongClusterError(
            f"The brokers of cluster {former} are left for those of {cluster_id}: nothing more is sent to them"
        )

    def answered(self, cluster_id: str | None) -> str | None:
        """Stores and returns the cluster id of a metadata answer; None if the id is empty."""
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

    def refusal(self, cluster_id: str | None) -> BaseException | None:
        """Returns why a connection to this cluster must not be used; None if it may be used. Pins the first cluster id
        that a broker reports.
        """
        if not self.pinned:
            return None
        cluster_id = cluster_id or None
        if self._pinned is None:
            self._pinned = cluster_id
        if cluster_id == self._pinned:
            return None
        if cluster_id is None:
            unknown: BaseException = kafka_errors.KafkaConnectionError(
                f"The broker does not say that it belongs to cluster {self._pinned}"
            )
            return unknown
        safely(self._on_other_cluster, cluster_id)
        return WrongClusterError(
            f"This broker belongs to cluster {cluster_id}, not to {self._pinned}: nothing is sent to it"
        )

    def admitted(self) -> None:
        """Tells the listener that the broker of a new connection belongs to the pinned cluster."""
        if self.pinned:
            safely(self._on_pinned_cluster)
