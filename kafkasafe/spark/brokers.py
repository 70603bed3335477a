"""Asks brokers on behalf of the source's driver. Holds the connections, starts look-ups, and waits for answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from kafkasafe.cluster.api import EARLIEST, Cluster, OffsetListed, TopicInfo, in_words
from kafkasafe.cluster.inquiry import ProcedureRunner, RunningProcedure
from kafkasafe.cluster.lookups import LookUps
from kafkasafe.cluster.procedures import Procedure
from kafkasafe.codes.numbers import UNKNOWN_TOPIC_OR_PARTITION
from kafkasafe.errors import RemoteStorageNotReadyError, SparkError
from kafkasafe.kafkapython.connect import connect
from kafkasafe.offsets import EndOffsetTracker, IsolationLevel
from kafkasafe.spark.marks import Mark
from kafkasafe.spark.notices import Notices
from kafkasafe.spark.options import ReadOptions
from kafkasafe.spark.positions import Partition
from kafkasafe.stats import ConsumerStats

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

# A topic counts as missing only after this number of seconds, because brokers answer UNKNOWN_TOPIC_OR_PARTITION even
# for existing topics shortly after their start.
MISSING_TOPIC_S: Final = 5.0
# A plan first asks each leader about all its partitions with one request. After this number of seconds, the plan asks
# separately about each partition for which no answer has arrived.
_AT_ONCE_S: Final = 5.0


class SourceUnavailableError(SparkError, TimeoutError):
    """The brokers did not answer in time. Nothing was read or skipped, so the query can be started again."""


class PartitionGoneError(Exception):
    """A topic or partition was deleted while a plan asked about it. This error never leaves a plan."""


class Brokers:
    """Asks brokers for the offsets and epochs that plans need. Connects on first use. Not thread-safe.

    Args:
        options: Options of the reader.
        notices: Receives the events of the look-ups.

    Attributes:
        stats: Counts retries.
        lookups: Looks up offsets and epochs.
    """

    def __init__(self, options: ReadOptions, notices: Notices) -> None:
        self._connection = options.connection
        self._stall_timeout_s = options.stall_timeout_s
        self._isolation: IsolationLevel = "read_committed" if options.isolation else "read_uncommitted"
        self._transport: Cluster | None = None
        self._tracker = EndOffsetTracker()
        self._last_problem: Exception | None = None
        self.stats = ConsumerStats()
        self.lookups = LookUps(
            self.network, self._tracker, self.stats, notices.tell, options.isolation, self.note
        )

    def close(self) -> None:
        """Closes the connections. A later call opens them again."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.close(10.0)

    @property
    def is_open(self) -> bool:
        """Whether there are connections, or attempts to connect."""
        return self._transport is not None

    @property
    def servers(self) -> str:
        """The bootstrap servers as text, for messages."""
        return ",".join(self._connection["bootstrap_servers"])

    def network(self) -> Cluster:
        """Returns the connections. Opens them if they are closed."""
        if self._transport is None:
            self._transport = connect({**self._connection, "allow_auto_create_topics": False})
            self._transport.start()
        return self._transport

    def note(self, problem: Exception) -> None:
        """Remembers why an attempt failed. The message of a later time-out names this error."""
        self._last_problem = problem

    def watch(self, partition: Partition) -> Callable[[Exception], None]:
        """Returns a function that receives the errors of look-ups about one partition, and passes them to `note`.

        A plan uses metadata that may be a few seconds old. Old metadata may still contain a deleted topic. A look-up
        for a deleted topic would repeat its request until the plan's time is over. So the function raises
        PartitionGoneError if brokers answer UNKNOWN_TOPIC_OR_PARTITION and the partition has been absent from the
        metadata for `MISSING_TOPIC_S` seconds.
        """
        since: float | None = None

        def note(problem: Exception) -> None:
            nonlocal since
            self.note(problem)
            info = self.topic(partition[0])
            if getattr(problem, "errno", None) != UNKNOWN_TOPIC_OR_PARTITION or (
                info is not None and partition[1] in info.partitions
            ):
                since = None
                return
            since = time.monotonic() if since is None else since
            if time.monotonic() - since >= MISSING_TOPIC_S:
                raise PartitionGoneError

        return note

    def topic(self, topic: str) -> TopicInfo | None:
        """Returns the metadata of a topic; None if the topic is unknown or does not exist."""
        info = self.network().topic(topic)
        return None if info is None or info.error_code == UNKNOWN_TOPIC_OR_PARTITION else info

    def observe(self, partition: Partition, was: Mark, topic_id: bytes | None) -> None:
        """Gives the checkpoint's offset to the tracker of end offsets, which is empty after a restart of the driver."""
        known = self._tracker.end_offset(*partition, isolation_level=self._isolation)
        if known is None or known < was.offset:
            self._tracker.observe(
                *partition,
                was.offset,
                leader_epoch=was.lineage.newest_epoch,
                topic_id=topic_id,
                isolation_level=self._isolation,
            )

    def gather(self, procedures: Mapping[K, Procedure[T]], began: float | None = None) -> dict[K, T]:
        """Runs the procedures (generators that ask brokers) concurrently and returns their results under the same keys.

        Args:
            procedures: The procedures.
            began: Moment from which the timeout counts; None: now.

        Raises:
            SourceUnavailableError: A procedure did not finish in time.
            Exception: The error of the first procedure that failed.
        """
        runner = ProcedureRunner()
        self._last_problem = None
        deadline = (time.monotonic() if began is None else began) + self._stall_timeout_s
        inquiries = dict(zip(procedures, runner.begin_all(procedures.values()), strict=True))
        if not _all_done(runner, inquiries.values(), deadline):
            open_keys = [str(key) for key, inquiry in inquiries.items() if not inquiry.done]
            for inquiry in inquiries.values():
                inquiry.cancel()
            raise self._too_late(open_keys)
        for inquiry in inquiries.values():
            if inquiry.error is not None:
                raise inquiry.error
        results: Any = {key: inquiry.result for key, inquiry in inquiries.items()}
        found: dict[K, T] = results
        return found

    def starts(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Returns the first offset of each partition's log. Raises as `gather`."""
        found = self.gather(
            {partition: self.lookups.listed(*partition, EARLIEST) for partition in partitions}
        )
        return {partition: answer.offset for partition, answer in found.items()}

    def ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Returns the end of each partition's log. Raises as `gather`."""
        found = self.gather({partition: self.lookups.end(*partition) for partition in partitions})
        return {partition: end.offset for partition, end in found.items()}

    def at_once(self, partitions: Sequence[Partition], timestamp: int) -> Mapping[Partition, OffsetListed]:
        """Asks each leader for the `timestamp` offset (such as EARLIEST) of all its partitions, with one request.
        Returns the answers that came in time.
        """
        runner = ProcedureRunner()
        inquiry = runner.begin(self.lookups.ask_at_once(partitions, timestamp))
        deadline = time.monotonic() + min(_AT_ONCE_S, self._stall_timeout_s / 4)
        if not _all_done(runner, [inquiry], deadline):
            inquiry.cancel()
        return inquiry.result or {}

    def _too_late(self, waiting: list[str]) -> SourceUnavailableError:
        places = ", ".join(waiting[:5]) + (", ..." if len(waiting) > 5 else "")
        problem = self._last_problem
        last = f" The last answer was {in_words(problem)}." if problem else ""
        connected = self._transport is not None and self._transport.connected
        if connected and isinstance(problem, RemoteStorageNotReadyError):
            return SourceUnavailableError(
                f"[KAFKASAFE.REMOTE_STORAGE_NOT_READY] No reliable answer about {places} within"
                f" {self._stall_timeout_s:g} s: {problem}. An answer that ignores the remote part of the log"
                " would leave out records. Check the brokers' remote log manager, or raise"
                " kafkaConsumer.pollTimeoutMs. Nothing was skipped."
            )
        if connected:
            return SourceUnavailableError(
                f"[KAFKASAFE.NO_ANSWER] No usable answer about {places} within"
                f" {self._stall_timeout_s:g} s.{last} Check that these partitions have leaders, or raise"
                " kafkaConsumer.pollTimeoutMs. Nothing was skipped."
            )
        return SourceUnavailableError(
            f"[KAFKASAFE.BROKERS_UNREACHABLE] No broker at {self.servers} answered within"
            f" {self._stall_timeout_s:g} s.{last} Check kafka.bootstrap.servers, kafka.security.protocol and"
            " the network between Spark's driver and the brokers' advertised listeners. Nothing was skipped."
        )


def _all_done(runner: ProcedureRunner, inquiries: Collection[RunningProcedure[Any]], deadline: float) -> bool:
    """Runs procedures until all of them are done, or until the deadline. Returns whether all are done."""
    while any(not inquiry.done for inquiry in inquiries):
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        runner.wait(min(left, 1.0))
        runner.work()
    return True
