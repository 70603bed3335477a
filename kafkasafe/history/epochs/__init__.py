"""Finds the first offset at which two logs differ, from leader epochs (KIP-101, KIP-279, KIP-320).

Each leader epoch has one leader, which appends in order. So a log is a sequence of runs, one per epoch. Two records
with the same epoch and offset are the same record, and everything before them is equal too (log matching). Hence two
logs first differ where the *largest epoch that both have* ends. If it ends at different offsets in the two logs, the
lower offset counts. `EpochWalk` and the protocols of `compare` search for that epoch; they differ in what one request
carries.

- `Lineage`: the first offset of each leader epoch, for the records that a consumer read (or for a replica's log).
- `EpochWalk`: the sequence of OffsetForLeaderEpoch requests that a consumer sends to a live leader. The leader answers
  about its largest epoch that is not above the requested one. If that is a different epoch, the leader has lost records
  that the consumer read, even if the leader's log is longer. So an end offset at or past the position does not prove
  that the logs are the same.
- `compare`: the protocols of KIP-279 between a follower and a leader, with their round trips and bytes.
- `BatchWalk`: for logs without epochs, and for brokers that do not report epochs. It compares the CRCs of the batches
  that were read with those of the leader's batches, one batch at a time; `first_difference` compares all batches
  together.

Offsets here: `*_end`, `end_offset` and `position` are exclusive. Ranges of offsets `(first, last)` are inclusive.
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
