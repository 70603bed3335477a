"""What a cluster tells, as values and errors. Public, as names of `kafkasafe.testing.broker`."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path

from kafkasafe.errors import KafkaSafeError, UsageError

__all__ = [
    "CONTROLLER",
    "DEFAULT_JAVA_OPTIONS",
    "ClusterError",
    "LostRecords",
    "PartitionState",
    "UnsupportedByVersionError",
    "log",
]

log = logging.getLogger("kafkasafe.testing.broker")

CONTROLLER = 1000
"""Node id of the dedicated controller (of the ZooKeeper before Kafka 3.3) of a cluster of several brokers."""

DEFAULT_JAVA_OPTIONS = ("-Xms64m", "-Xmx320m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""For a quick start: the optimising compiler is off. For throughput, pass options without the last one."""


class ClusterError(KafkaSafeError, RuntimeError):
    """The cluster did not do what was asked within the time given. The message names the log files.

    Attributes:
        log_dir: Directory with one log per node; it is kept.
    """

    def __init__(self, message: str, *, log_dir: Path | None = None) -> None:
        super().__init__(message)
        self.log_dir = log_dir


class UnsupportedByVersionError(UsageError, NotImplementedError):
    """This version of Kafka cannot do that. Nothing was changed."""


@dataclasses.dataclass(frozen=True, slots=True)
class PartitionState:
    """What a broker's metadata says of one partition.

    Attributes:
        leader: Node id, -1 while there is none.
        leader_epoch: -1 where the broker is too old to tell (before 2.1).
        replicas: Node ids, the preferred leader first.
        in_sync: Node ids of the in-sync replicas, sorted.
    """

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class LostRecords:
    """What a disaster made of one partition: which acknowledged records are gone.

    Read from the replicas' files while they were down, so it is exact also where somebody writes all the time.

    Attributes:
        topic: Topic name.
        partition: Its number.
        first_offset: First offset that is lost.
        end_offset: The offset behind the last lost one; equal to `first_offset` if nothing is lost.
        leader: Node id of the leader afterwards.
    """

    topic: str
    partition: int
    first_offset: int
    end_offset: int
    leader: int

    @property
    def offsets(self) -> range:
        """The lost offsets. Other records may have been written there since."""
        return range(self.first_offset, self.end_offset)


for _public in (ClusterError, UnsupportedByVersionError, PartitionState, LostRecords):
    # Pickles and pages name the public module.
    _public.__module__ = "kafkasafe.testing.broker"
