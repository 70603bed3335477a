"""The values that a cluster's methods return, and the errors that they raise.

`kafkasafe.testing.broker` exports these names.
"""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path

from kafkasafe.errors import KafkaSafeError, UsageError

log = logging.getLogger("kafkasafe.testing.broker")

CONTROLLER = 1000
"""Node id of the dedicated controller process; before Kafka 3.3, of the ZooKeeper process."""

DEFAULT_JAVA_OPTIONS = ("-Xms64m", "-Xmx320m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""Options for a fast start. The last option switches off Java's optimising compiler, so omit it for high throughput."""


class ClusterError(KafkaSafeError, RuntimeError):
    """The cluster did not carry out the request within the time limit. The message names the log files.

    Attributes:
        log_dir: Directory with one log per node, which is kept after the test. None if no cluster was open when the
            error occurred.
    """

    def __init__(self, message: str, *, log_dir: Path | None = None) -> None:
        super().__init__(message)
        self.log_dir = log_dir


class UnsupportedByVersionError(UsageError, NotImplementedError):
    """This version of Kafka does not support the call. Nothing was changed."""


@dataclasses.dataclass(frozen=True, slots=True)
class PartitionState:
    """The state of one partition in a broker's metadata.

    Attributes:
        leader: Node id; -1 while the partition has no leader.
        leader_epoch: Leader epoch; -1 if the broker is too old to report it (before 2.1).
        replicas: Node ids, the preferred leader first.
        in_sync: Node ids of the in-sync replicas, sorted.
    """

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class LostRecords:
    """The acknowledged records that a disaster has removed from one partition.

    The offsets were read from the replicas' files while the brokers were down, so they are exact even if clients kept
    writing.

    Attributes:
        topic: Topic name.
        partition: Partition number.
        first_offset: First lost offset.
        end_offset: End of the lost offsets (exclusive); equal to `first_offset` if nothing is lost.
        leader: Node id of the leader after the disaster.
    """

    topic: str
    partition: int
    first_offset: int
    end_offset: int
    leader: int

    @property
    def offsets(self) -> range:
        """The lost offsets. Since the loss, other records may have been written at these offsets."""
        return range(self.first_offset, self.end_offset)


for _public in (ClusterError, UnsupportedByVersionError, PartitionState, LostRecords):
    # Let pickles and the documentation refer to the public module.
    _public.__module__ = "kafkasafe.testing.broker"
