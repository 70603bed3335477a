"""One micro-batch, one Kafka transaction: what the driver does next, and what it may believe. Without I/O.

A micro-batch is named by (application id, batch id) and must reach its topics exactly once, though it may be computed
any number of times, by drivers and tasks that die anywhere. Its *marker*, the next batch id, is written in the same
transaction as its records: whoever comes later reads it and knows.

The order is the proof (docs/spark.md has the obligations and the crash table):

    FENCE        InitProducerId: older drivers and their tasks are locked out, their open transaction is ended
    READ_MARKER  only now: before the fence the marker could still change
    OPEN         the partitions and the marker's partition join the transaction
    WRITE        tasks append under the driver's (producer id, epoch), each partition by exactly one task
    VERIFY       the brokers' own count of each partition is what the tasks reported
    MARK         the marker, inside the transaction
    COMMIT       EndTxn

Any trouble from OPEN to MARK leads back to FENCE, which aborts what was written. After COMMIT was sent nothing is
aborted any more: it is repeated until it is answered, or left to the next driver, whose FENCE waits for its outcome.
"""

from __future__ import annotations

import enum
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

__all__ = [
    "TRANSITIONS",
    "Appended",
    "Event",
    "Grant",
    "IllegalEventError",
    "Marker",
    "MarkerLog",
    "MarkerVerdict",
    "MicroBatch",
    "Report",
    "Step",
    "judge_marker",
    "judge_partitions",
    "judge_version",
    "plan_digest",
]


class Step(enum.Enum):
    """What is to be done next; the last three are ends."""

    FENCE = "fence"
    READ_MARKER = "read marker"
    OPEN = "open"
    WRITE = "write"
    VERIFY = "verify"
    MARK = "mark"
    COMMIT = "commit"
    WRITTEN = "written"
    DUPLICATE = "duplicate"
    FAILED = "failed"


class Event(enum.Enum):
    """What came of a step."""

    DONE = "done"
    """The step succeeded."""
    KNOWN = "known"
    """READ_MARKER: the marker says that the batch is committed."""
    BROKEN = "broken"
    """The step failed in a way that a new transaction can mend: an attempt too many, a crash, a time-out."""
    REFUSED = "refused"
    """The step failed in a way that no repetition mends, or another driver has taken over."""
    UNKNOWN = "unknown"
    """COMMIT: no answer came. The outcome is asked for, never assumed."""


# An illegal event is a failed look-up.
TRANSITIONS: Final[Mapping[Step, Mapping[Event, Step]]] = {
    Step.FENCE: {Event.DONE: Step.READ_MARKER, Event.REFUSED: Step.FAILED},
    Step.READ_MARKER: {
        Event.DONE: Step.OPEN,
        Event.KNOWN: Step.DUPLICATE,
        Event.BROKEN: Step.FENCE,
        Event.REFUSED: Step.FAILED,
    },
    Step.OPEN: {Event.DONE: Step.WRITE, Event.BROKEN: Step.FENCE, Event.REFUSED: Step.FAILED},
    Step.WRITE: {Event.DONE: Step.VERIFY, Event.BROKEN: Step.FENCE, Event.REFUSED: Step.FAILED},
    Step.VERIFY: {Event.DONE: Step.MARK, Event.BROKEN: Step.FENCE, Event.REFUSED: Step.FAILED},
    Step.MARK: {Event.DONE: Step.COMMIT, Event.BROKEN: Step.FENCE, Event.REFUSED: Step.FAILED},
    # BROKEN: the coordinator said that this transaction is not there to be committed (it timed out). Even then the
    # fence and the marker decide, not this answer: an earlier try may have committed.
    Step.COMMIT: {
        Event.DONE: Step.WRITTEN,
        Event.UNKNOWN: Step.FENCE,
        Event.BROKEN: Step.FENCE,
        Event.REFUSED: Step.FAILED,
    },
}

ENDS: Final = frozenset({Step.WRITTEN, Step.DUPLICATE, Step.FAILED})


class IllegalEventError(RuntimeError):
    """A step cannot end like this: a bug of the caller."""


class MicroBatch:
    """Where one attempt of a driver to write one micro-batch stands.

    Args:
        max_restarts: How often it may go back to FENCE before it fails.
    """

    def __init__(self, max_restarts: int) -> None:
        self._max_restarts = max_restarts
        self._step = Step.FENCE
        self._restarts = 0
        self._commit_sent = False

    def __repr__(self) -> str:
        return f"<MicroBatch {self._step.name} restarts={self._restarts}>"

    @property
    def step(self) -> Step:
        """What is to be done next."""
        return self._step

    @property
    def restarts(self) -> int:
        """How often the transaction was begun again."""
        return self._restarts

    @property
    def resumed(self) -> bool:
        """Whether the end needed more than one transaction, or more than one look."""
        return self._restarts > 0

    @property
    def over(self) -> bool:
        """Whether there is nothing left to be done."""
        return self._step in ENDS

    def on(self, event: Event) -> Step:
        """The step that follows.

        Raises:
            IllegalEventError: The current step cannot end like this.
        """
        try:
            following = TRANSITIONS[self._step][event]
        except KeyError:
            raise IllegalEventError(f"{event.name} at {self._step.name}") from None
        if following is Step.FENCE:
            self._restarts += 1
            if self._restarts > self._max_restarts:
                following = Step.FAILED
        if self._step is Step.COMMIT:
            self._commit_sent = True
        self._step = following
        return following

    @property
    def committed_by_us(self) -> bool:
        """At DUPLICATE: whether it is our own commit, of which the answer was lost, that was found."""
        return self._step is Step.DUPLICATE and self._commit_sent


@dataclass(frozen=True, slots=True)
class Grant:
    """Under what the tasks of one transaction append.

    Attributes:
        transactional_id: Of the transaction.
        producer_id: Granted by the coordinator.
        epoch: Granted by the coordinator; a newer one shuts this one out.
    """

    transactional_id: str
    producer_id: int
    epoch: int


# --------------------------------------------------------------------------------------------------------------
# The marker


@dataclass(frozen=True, slots=True)
class Marker:
    """What is remembered of the last committed micro-batch.

    Attributes:
        next_batch_id: One more than its id.
        query_id: Of the Spark query that wrote it: batch ids of different queries say nothing about each other.
            Empty where there was none (batch use, Spark Connect).
        rows: How many it wrote; None in markers of version 1, which did not keep it.
        plan: `plan_digest` of it; empty: not known.
    """

    next_batch_id: int
    query_id: str = ""
    rows: int | None = None
    plan: str = ""

    def encode(self) -> str:
        """As text, for a group's offset metadata and for the marker topic."""
        fields = {
            "v": 2,
            "next": self.next_batch_id,
            "query": self.query_id,
            "rows": self.rows,
            "plan": self.plan,
        }
        return json.dumps(fields, separators=(",", ":"))

    @classmethod
    def decode(cls, text: str | None) -> Marker:
        """Reads `encode`'s text, and that of version 1.

        Raises:
            ValueError: It is none. Nobody may guess what was meant.
        """
        try:
            fields = json.loads(text or "")
            version, following, query = fields["v"], fields["next"], fields["query"]
            rows, plan = (fields["rows"], fields["plan"]) if version == 2 else (None, "")
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"Not a marker: {text!r}") from error
        if (
            version not in (1, 2)
            or type(following) is not int
            or following < 0
            or type(query) is not str
            or not (rows is None or (type(rows) is int and rows >= 0))
            or type(plan) is not str
        ):
            raise ValueError(f"Not a marker that this version can read: {text!r}")
        return cls(following, query, rows, plan)


class MarkerLog:
    """Finds one id's newest committed marker in the log of its partition, which is read whole, `read_uncommitted`.

    `read_committed` ends where another id's transaction is open. Those say nothing about this id, and its own were
    ended by the fence.

    Args:
        key: Of the id's records.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._open: dict[int, str] = {}
        self.content: str | None = None

    def record(
        self, producer_id: int, key: bytes | None, value: bytes | None, *, transactional: bool
    ) -> None:
        """The next record."""
        if key != self._key or value is None:
            return
        if transactional:
            self._open[producer_id] = value.decode()
        else:
            self.content = value.decode()

    def outcome(self, producer_id: int, *, committed: bool) -> None:
        """The next control record: the end of a producer's transaction."""
        content = self._open.pop(producer_id, None)
        if committed and content is not None:
            self.content = content

    @property
    def undecided(self) -> bool:
        """Whether a transaction of the id itself has no outcome yet."""
        return bool(self._open)


def plan_digest(entry: str) -> str:
    """What identifies one planning of a micro-batch: when Spark planned it, and where its sources end.

    The time belongs to it: offsets alone are not proof, since those of a source of files are positions in a list that
    the checkpoint keeps, and the same position may stand for other files after the checkpoint was restored.

    Args:
        entry: Of Spark's offset log: a version, a line of metadata, a line for each source.

    Returns:
        A digest; empty where `entry` is no such entry.
    """
    lines = entry.splitlines()
    try:
        planned_ms = json.loads(lines[1])["batchTimestampMs"]
    except (ValueError, TypeError, LookupError):
        return ""
    # The other metadata are settings, which another version of Spark may write in another way.
    return hashlib.blake2b(json.dumps([planned_ms, lines[2:]]).encode(), digest_size=16).hexdigest()


class MarkerVerdict(enum.Enum):
    """What the marker says of a batch."""

    WRITE = "write"
    DUPLICATE = "duplicate"
    """This very batch is committed."""
    COUNT = "count"
    """Its plan is not known, here or there: the number of rows is to decide."""
    MISSING = "missing"
    """None, though earlier batches must have written one."""
    OTHER_QUERY = "other query"
    """Written by another query: the checkpoint is not the one that belongs to this application id."""
    OTHER_ROWS = "other rows"
    """Other rows are committed under this batch id: the checkpoint lost its last batch, and Spark planned it again."""
    UNPROVEN = "unproven"
    """A batch of this id is committed, and nothing says whether it held these rows (a marker of version 1)."""
    GAP = "gap"
    """Batches before this one were never written here."""
    ROLLED_BACK = "rolled back"
    """Batches after this one are committed: the checkpoint is older than the topic."""


def judge_marker(
    marker: Marker | None,
    batch_id: int,
    query_id: str,
    *,
    strict: bool,
    plan: str = "",
    rows: int | None = None,
) -> MarkerVerdict:
    """Whether a streaming query's batch is to be written.

    Spark plans a batch durably before it runs it and repeats only the last one planned, with the same input. So in a
    healthy checkpoint the marker is the batch's id (not written yet) or one more (written, but Spark does not know).
    Anything else means that checkpoint and topic do not belong together, and both ways to go on could be wrong. "One
    more" is also what a checkpoint shows that was restored from a copy one batch old: Spark plans that batch again,
    with other rows. So a batch is skipped only if it is shown to be the committed one: by its entry in
    Spark's offset log, else by its number of rows.

    Args:
        marker: What was read after the fence; None for none.
        batch_id: Spark's.
        query_id: Spark's; empty: not known.
        strict: False: a marker that does not fit is replaced: everything is written that is not shown to be committed.
        plan: `plan_digest` of the batch; empty: not known.
        rows: How many rows the batch has; None: not counted.
    """
    verdict = _marker_fits(marker, batch_id, query_id, plan, rows)
    if strict or verdict in {MarkerVerdict.DUPLICATE, MarkerVerdict.COUNT}:
        return verdict
    return MarkerVerdict.WRITE


def _marker_fits(
    marker: Marker | None, batch_id: int, query_id: str, plan: str, rows: int | None
) -> MarkerVerdict:
    if marker is None:
        return MarkerVerdict.WRITE if batch_id == 0 else MarkerVerdict.MISSING
    if marker.query_id != query_id:
        return MarkerVerdict.OTHER_QUERY
    if marker.next_batch_id > batch_id + 1:
        return MarkerVerdict.ROLLED_BACK
    if marker.next_batch_id < batch_id:
        return MarkerVerdict.GAP
    if marker.next_batch_id == batch_id:
        return MarkerVerdict.WRITE
    if marker.plan and plan:
        # Not the rows: a query that is not deterministic may make another number of them out of the same input.
        return MarkerVerdict.DUPLICATE if marker.plan == plan else MarkerVerdict.OTHER_ROWS
    if marker.rows is None:
        return MarkerVerdict.UNPROVEN
    if rows is None:
        return MarkerVerdict.COUNT
    return MarkerVerdict.DUPLICATE if marker.rows == rows else MarkerVerdict.OTHER_ROWS


def judge_version(marker: Marker | None, version: int, *, strict: bool) -> MarkerVerdict:
    """Whether a batch query is to be written: as in Delta, unless its version or a later one is committed.

    Args:
        marker: What was read after the fence; None for none.
        version: The caller's `txnVersion`.
        strict: False: a streaming query's marker is replaced instead of refused.
    """
    if marker is not None and marker.query_id:
        return MarkerVerdict.OTHER_QUERY if strict else MarkerVerdict.WRITE
    if marker is None or marker.next_batch_id <= version:
        return MarkerVerdict.WRITE
    return MarkerVerdict.DUPLICATE


# --------------------------------------------------------------------------------------------------------------
# What tasks say, and what brokers say


@dataclass(frozen=True, slots=True)
class Report:
    """What one task appended to one partition.

    Attributes:
        topic: Topic name.
        partition: Partition number.
        rows: Records, ≥ 1.
        attempt: Number of the task's attempt, from 0.
    """

    topic: str
    partition: int
    rows: int
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class Appended:
    """What a partition's leader says of the transaction's producer id.

    Attributes:
        epoch: Newest epoch seen.
        last_sequence: Of the last record appended (inclusive), -1 if none.
    """

    epoch: int
    last_sequence: int


def judge_partitions(
    grant: Grant,
    reports: Iterable[Report],
    appended: Mapping[tuple[str, int], Appended | None],
) -> str:
    """Compares what tasks reported with what the logs hold; empty if they agree, else what is wrong.

    A transaction's sequences begin at 0 on each partition (its epoch is new), so n records end at sequence n - 1.

    Args:
        grant: Of the transaction.
        reports: Of all tasks.
        appended: By (topic, partition) for every partition of the transaction and of the reports: what its leader
            says of the producer id, None if it does not know it.
    """
    rows: dict[tuple[str, int], int] = {}
    for report in reports:
        place = report.topic, report.partition
        if place in rows:
            return f"{report.topic}-{report.partition} was written by two tasks"
        rows[place] = report.rows
    missing = rows.keys() - appended.keys()
    if missing:
        return f"Nothing was asked about {sorted(missing)}"
    for (topic, partition), state in appended.items():
        here = rows.get((topic, partition), 0)
        there = 0 if state is None or state.epoch != grant.epoch else state.last_sequence + 1
        # Sequences wrap; no transaction of a micro-batch gets there.
        if here != there:
            return f"{topic}-{partition} holds {there} records of this transaction, tasks reported {here}"
    return ""
