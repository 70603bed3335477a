"""The cluster to which a lane's offsets, ids and acknowledged batches belong, as recorded in the lane's own log.

The spool directory names a cluster as well, but for all of its lanes at once. Each lane needs its own record:

1. Producers on lanes 0 and 1 deliver to cluster A, and end.
2. Cluster B answers at their address. No batch waits in any lane, so the directory may change to B.
3. A producer on lane 0 meets B, and is killed right after the directory names B: its lane still has A's offsets.
4. Its next incarnation finds a directory that names B, and a lane of A. So does a producer that opens lane 1 later.
"""

from __future__ import annotations

from kafkasafe import marks as m

__all__ = ["Home"]


class Home:
    """The cluster that answered last, and the producer ids that it granted to this lane, as recorded in the log.

    Attributes:
        cluster_id: The cluster; empty while the log names none.
        producer_id: The id that the cluster granted to this incarnation, -1 while the journal needs a new one.
        epoch: The first epoch of this id.
        producer_ids: The producer ids that the log still names: no other producer writes under them.
    """

    __slots__ = ("cluster_id", "epoch", "producer_id", "producer_ids")

    def __init__(self) -> None:
        self.cluster_id = ""
        self.producer_id = self.epoch = -1
        self.producer_ids: set[int] = set()

    def is_other(self, cluster_id: str, assumed: str | None) -> bool:
        """Whether the lane's offsets and ids belong to another cluster.

        Args:
            cluster_id: Id of the cluster that answers.
            assumed: The lane's cluster if no mark names one. Then the lane has never met a cluster, or an earlier
                version, which lacked this mark, wrote the log.
        """
        return (self.cluster_id or assumed or cluster_id) != cluster_id

    def grant(self, producer_id: int, epoch: int) -> None:
        """Record that the cluster granted an id to this incarnation."""
        self.producer_id, self.epoch = producer_id, epoch
        self.producer_ids.add(producer_id)

    def withdraw(self) -> None:
        """Stop using this id: the journal needs a new one."""
        self.producer_id = -1

    def move(self, mark: m.Cluster, *, forgets: bool) -> None:
        """Set the lane's cluster.

        Args:
            mark: Names the cluster.
            forgets: Earlier offsets and ids belong to another cluster, whether or not the log names it.
        """
        if forgets:
            self.producer_ids.clear()
        self.cluster_id = mark.cluster_id
