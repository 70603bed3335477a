"""Which cluster a lane's offsets, ids and acknowledged batches are of: it is in the lane's own log.

The spool directory names a cluster as well, but for all of its lanes at once. The lane has to know by itself:

1. Producers on lanes 0 and 1 deliver to cluster A, and end.
2. Cluster B answers at their address. Nothing waits in any lane, so the directory may change to B.
3. A producer on lane 0 meets B, and is killed right after the directory names B: its lane still has what A has.
4. Its next incarnation finds a directory that names B, and a lane of A. So does a producer that opens lane 1 later.
"""

from __future__ import annotations

from kafkasafe._core import marks as m

__all__ = ["Home"]


class Home:
    """The cluster that answered last, and the producer ids that it granted to this lane, as the log says."""

    def __init__(self) -> None:
        self._cluster_id = ""
        self._ids: set[int] = set()

    @property
    def marks(self) -> list[m.Cluster]:
        """What a new segment repeats."""
        return [m.Cluster(self._cluster_id)] if self._cluster_id else []

    def names(self, cluster_id: str) -> bool:
        """Whether it is this one."""
        return self._cluster_id == cluster_id

    def is_other(self, cluster_id: str, assumed: str | None) -> bool:
        """Whether what the lane knows is of another cluster.

        Args:
            cluster_id: Of the cluster that answers.
            assumed: What to take it for where no mark names one: none was met, or by a version that wrote no mark.
        """
        return (self._cluster_id or assumed or cluster_id) != cluster_id

    @property
    def producer_ids(self) -> frozenset[int]:
        """Those that the log still names: no other producer writes under them."""
        return frozenset(self._ids)

    def granted(self, producer_id: int) -> None:
        """The cluster granted a producer id."""
        self._ids.add(producer_id)

    def move(self, mark: m.Cluster, *, forgets: bool) -> None:
        """It is this one from now on.

        Args:
            mark: Names it.
            forgets: What was known is of another one, whether or not the log says of which.
        """
        if forgets:
            self._ids.clear()
        self._cluster_id = mark.cluster_id
