"""Finds the first offset at which two logs differ, from leader epochs (KIP-101, KIP-279, KIP-320).

Each leader epoch has one leader, which appends in order. So a log is a sequence of runs, one per epoch. Two records
with the same epoch and offset are the same record, and the logs are equal up to this record (log matching). Hence two
logs first differ where the *largest epoch that both have* ends. If this epoch ends at different offsets in the two
logs, the logs first differ at the lower offset. `EpochWalk` and the protocols of `compare` search for the largest
common epoch, with different requests.

- `Lineage`: the first offset of each leader epoch, for the records that a consumer read (or for a replica's log).
- `EpochWalk`: the sequence of OffsetForLeaderEpoch requests that a consumer sends to a live leader. The leader answers
  with its largest epoch that is not above the requested epoch. If the answer names another epoch than the request, the
  leader has lost records that the consumer read, even if the leader's log is longer. So an end offset at or past the
  position does not prove that the logs are the same.
- `compare`: the protocols of KIP-279 between a follower and a leader, with their round trips and bytes.
- `BatchWalk`: for logs without epochs, and for brokers that do not report epochs. Compares the CRCs of the batches that
  were read with the CRCs of the leader's batches, one batch at a time; `first_difference` compares all batches
  together.

In this package, the offsets `*_end`, `end_offset` and `position` are exclusive. Ranges of offsets `(first, last)` are
inclusive.
"""

from kafkasafe.history.epochs.batches import BatchMark, BatchMemory, BatchWalk, first_difference
from kafkasafe.history.epochs.kip279 import Comparison, Leader, Reply, Strategy, compare
from kafkasafe.history.epochs.lineage import (
    UNDEFINED,
    Lineage,
    LineageError,
    decode_topic_id,
)
from kafkasafe.history.epochs.walk import (
    Diverged,
    EpochWalk,
    Outcome,
    ReplyKind,
    Same,
    Step,
    Unknown,
)

__all__ = [
    "UNDEFINED",
    "BatchMark",
    "BatchMemory",
    "BatchWalk",
    "Comparison",
    "Diverged",
    "EpochWalk",
    "Leader",
    "Lineage",
    "LineageError",
    "Outcome",
    "Reply",
    "ReplyKind",
    "Same",
    "Step",
    "Strategy",
    "Unknown",
    "compare",
    "decode_topic_id",
    "first_difference",
]
