"""Find where two logs differ, by their leader epochs (KIP-101, KIP-279, KIP-320). Works with any Kafka client.

```python
ours = Lineage([(0, 0), (4, 5), (8, 7)], 9)  # (epoch, first offset) of the records read, and the next offset
walk = EpochWalk(ours)
while (epoch := walk.query()) is not None:  # ask the leader by OffsetForLeaderEpoch
    walk.answer(*ask(epoch))  # (leader epoch, end offset) of the answer
match walk.outcome:
    case Diverged(divergent_offset=first, rolled_back=rolled_back): ...
    case Same(until=offset): ...
    case Unknown(reason=reason): ...
```

`compare` takes a follower's and a leader's history, runs one of the protocols that KIP-279 discusses, and counts its
round trips and bytes. `BatchWalk` and `first_difference` compare checksums of batches, for logs without leader epochs.
docs/epochs.md explains each protocol. This module is pure: no I/O, no clock.
"""

from kafkasafe.errors import LineageError
from kafkasafe.history.epochs import (
    UNDEFINED,
    BatchMark,
    BatchMemory,
    BatchWalk,
    Comparison,
    Diverged,
    EpochWalk,
    Leader,
    Lineage,
    Outcome,
    Reply,
    ReplyKind,
    Same,
    Step,
    Strategy,
    Unknown,
    compare,
    decode_topic_id,
    first_difference,
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
