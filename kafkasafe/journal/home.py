"""The cluster that holds a lane's acknowledged batches, and the producer ids that this cluster granted.

The lane's own log contains the cluster's id and the producer ids. `sealing` decides when to give ids, and when to take
them back.

The spool directory also names a cluster, but one for all of its lanes. A lane must store the id of its own cluster, as
this scenario shows:

1. Producers on lanes 0 and 1 deliver records to cluster A, and close.
2. Cluster B now answers at the same bootstrap address. No batch waits in any lane, so the directory may change to B.
3. A producer on lane 0 gets an answer from B, and changes the directory's cluster to B. The producer is killed right
   after that, so lane 0 still has A's offsets.
4. The next incarnation of lane 0 finds that the directory names B, but that the lane has A's offsets. A producer that
   later opens lane 1 finds A's offsets there, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kafkasafe import marks as m
from kafkasafe.history.identity import BatchId, add_sequence

_MAX_EPOCH: Final = 2**15 - 2


class Home:
    """The cluster that answered last, and the producer ids that it granted to this lane, according to the lane's log.

    Attributes:
        cluster_id: The id of the cluster; empty while the lane's log names no cluster.
        producer_id: The id that the cluster granted to this incarnation, -1 while the journal needs a new one.
        epoch: The epoch that the cluster granted together with `producer_id`.
        producer_ids: The producer ids that the lane's log still names. No other producer writes under these ids.
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
            assumed: The cluster to assume for the lane if its log names none. Logs of early versions of kafkasafe, and
                of lanes to which no cluster has answered yet, do not name a cluster.
        """
        return (self.cluster_id or assumed or cluster_id) != cluster_id

    def grant(self, producer_id: int, epoch: int) -> None:
        """Note that the cluster granted a producer id to this incarnation (run of the producer)."""
        self.producer_id, self.epoch = producer_id, epoch
        self.read_grant(producer_id)

    def read_grant(self, producer_id: int) -> None:
        """Note a producer id that the cluster granted to this or an earlier incarnation (run of the producer). Only
        `grant` makes an id the current one: two producers on copies of the same spool must not both use an earlier id.
        """
        self.producer_ids.add(producer_id)

    def withdraw(self) -> None:
        """Stop using the current id. The journal then needs a new one."""
        self.producer_id = -1

    def move(self, mark: m.Cluster, *, forgets: bool) -> None:
        """Set the lane's cluster.

        Args:
            mark: Names the cluster.
            forgets: Earlier offsets and ids belong to another cluster, even if the lane's log names no cluster.
        """
        if forgets:
            self.producer_ids.clear()
        self.cluster_id = mark.cluster_id


@dataclass(slots=True)
class IdSequence:
    """Gives ids to the batches of one partition, with ascending sequences.

    Attributes:
        producer_id: Producer id of the last batch that got an id, -1 before the first one.
        epoch: Producer epoch of the last batch that got an id.
        next_sequence: Base sequence of the next batch under `producer_id` and `epoch`.
        stale: The batches that are not in the log need new ids, once no broker can append a request under the old ids.
    """

    producer_id: int = -1
    epoch: int = -1
    next_sequence: int = 0
    stale: bool = False

    def take(self, home: Home, count: int) -> BatchId:
        """Take the id for the next batch. The batch has `count` records."""
        if self.producer_id != home.producer_id:
            self.producer_id, self.epoch, self.next_sequence = home.producer_id, home.epoch, 0
        identity = BatchId(self.producer_id, self.epoch, self.next_sequence, count)
        self.next_sequence = add_sequence(self.next_sequence, count)
        return identity

    def expire(self) -> None:
        """Note that the batches that are not in the log need new ids."""
        self.stale = True

    def renew(self, home: Home) -> None:
        """Start the next epoch at sequence 0. The caller removes the ids of the batches that are not in the log.

        A producer id of an earlier incarnation gets no new epoch, because otherwise two copies of a spool could give
        the same batch ids to different batches.
        """
        self.stale = False
        if self.producer_id != home.producer_id:
            return
        self.next_sequence = 0
        if self.epoch >= _MAX_EPOCH:
            home.withdraw()
        else:
            self.epoch += 1

    def forget(self) -> None:
        """Start over, because the lane writes to another cluster, which knows no batch of this lane."""
        self.producer_id = self.epoch = -1
        self.stale = False
