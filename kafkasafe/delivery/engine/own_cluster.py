"""The cluster that the accepted records are for."""

from __future__ import annotations

from kafkasafe.errors import WrongClusterError

__all__ = ["OwnCluster"]


class OwnCluster:
    """See the module. `Binding` changes it; any thread may read it.

    Attributes:
        cluster_id: Its id; None as long as neither the spool directory nor the brokers have named it.
        stranger: Set if another cluster answers, and the accepted records are not for it: the producer ends.
    """

    def __init__(self) -> None:
        self.cluster_id: str | None = None
        self.stranger: WrongClusterError | None = None

    def bind(self, cluster_id: str) -> None:
        """Record that the brokers and the spool directory belong to this cluster."""
        self.cluster_id = cluster_id

    def meet_stranger(self, error: WrongClusterError) -> None:
        """End the producer: the brokers belong to a different cluster than the spool directory."""
        self.stranger = error
