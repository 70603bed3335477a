"""Decides which step the driver takes next in the transaction of a micro-batch, and which answers it may trust. This
module does no I/O.

A micro-batch is identified by (application id, batch id). Each micro-batch must reach its topics exactly once. But
drivers and tasks may die at any point, and Spark may compute the same micro-batch any number of times. The transaction
that holds the micro-batch's records also holds a *marker*, which is the next batch id. A later driver reads the marker
to see whether the micro-batch was committed.

The order of the steps guarantees exactly-once delivery (docs/spark-guarantees.md has the six properties and the crash
tables):

    FENCE        InitProducerId locks older drivers and their tasks out and ends their open transaction
    READ_MARKER  reads the marker; before the fence the marker could still change
    OPEN         adds the partitions and the marker's partition to the transaction
    WRITE        tasks append under the driver's (producer id, epoch), each partition by exactly one task
    VERIFY       compares the brokers' own count of each partition with the tasks' reports
    MARK         writes the marker inside the transaction
    COMMIT       EndTxn

If a step from OPEN to MARK fails, but a new transaction may succeed, the driver returns to FENCE. FENCE aborts the open
transaction. Once EndTxn was sent, the driver never aborts. The driver repeats EndTxn until the coordinator answers. If
the driver gives up, the FENCE of the next driver waits for the outcome.

After its own commit, a driver may begin the next micro-batch at OPEN. With the brokers' protocol 2 (KIP-890) the answer
to EndTxn grants the epoch of the next transaction. So FENCE and READ_MARKER would give the driver no new information:

1. Driver A commits batch 6. The answer says that the transaction has ended, and grants epoch 8.
2. All tasks of batch 6 have epoch 7. After the commit, the coordinator and the leaders refuse epoch 7, as after FENCE.
3. No driver can commit under this id without FENCE, and each FENCE grants an epoch above 8. So while epoch 8 is valid,
   no marker is newer than A's marker.
4. Driver B takes over before A begins batch 7. Then the coordinator refuses A's OPEN, because B's epoch is newer. A
   does not know what B wrote, so A goes back to FENCE and reads the marker (`Event.LAPSED`).

`may_go_on` says when a driver may begin at OPEN.
"""

from __future__ import annotations

import enum
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final


class Step(enum.Enum):
    """A step of an attempt. WRITTEN, DUPLICATE and FAILED end the attempt."""

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
    """The outcome of a step."""

    DONE = "done"
    """The step succeeded."""
    KNOWN = "known"
    """READ_MARKER: the marker says that the batch is committed."""
    BROKEN = "broken"
    """The step failed because of a second attempt of a task, a crash or a time-out. A new transaction may succeed."""
    REFUSED = "refused"
    """The step failed in a way that no repetition can fix, or another driver has taken over."""
    UNKNOWN = "unknown"
    """COMMIT: no answer came. The driver has to find out the outcome, and must not assume one."""
    LAPSED = "lapsed"
    """OPEN as the first step: the epoch that the last commit granted is no longer valid."""


# If the current step has no entry for an event, the event is illegal.
TRANSITIONS: Final[Mapping[Step, Mapping[Event, Step]]] = {
    Step.FENCE: {Event.DONE: Step.READ_MARKER, Event.REFUSED: Step.FAILED},
    Step.READ_MARKER: {
        Event.DONE: Step.OPEN,
        Event.KNOWN: Step.DUPLICATE,
        Event.BROKEN: Step.FENCE,
        Event.REFUSED: Step.FAILED,
    },
    Step.OPEN: {
        Event.DONE: Step.WRITE,
        Event.BROKEN: Step.FENCE,
        Event.REFUSED: Step.FAILED,
        Event.LAPSED: Step.FENCE,
    },
    Step.WRITE: {Event.DONE: Step.VERIFY, Event.BROKEN: Step.FENCE, Event.REFUSED: Step.FAILED},
    Step.VERIFY: {Event.DONE: Step.MARK, Event.BROKEN: Step.FENCE, Event.REFUSED: Step.FAILED},
    Step.MARK: {Event.DONE: Step.COMMIT, Event.BROKEN: Step.FENCE, Event.REFUSED: Step.FAILED},
    # BROKEN: the coordinator answered that this transaction cannot be committed, because it timed out. BROKEN does not
    # prove that the batch is not committed, because an earlier attempt may have committed the batch. Only the
    # marker, read after FENCE, shows whether the batch is committed.
    Step.COMMIT: {
        Event.DONE: Step.WRITTEN,
        Event.UNKNOWN: Step.FENCE,
        Event.BROKEN: Step.FENCE,
        Event.REFUSED: Step.FAILED,
    },
}

ENDS: Final = frozenset({Step.WRITTEN, Step.DUPLICATE, Step.FAILED})


class IllegalEventError(RuntimeError):
    """The current step cannot have this outcome, so the caller has a bug."""


class MicroBatch:
    """The state of one driver's attempt to write one micro-batch.

    Args:
        max_restarts: How often the attempt may return to the step FENCE before it fails.
        goes_on: Whether the attempt begins at the step OPEN, with the epoch that the coordinator granted in its answer
            to the driver's last commit.

    Attributes:
        step: The next thing to do.
        restarts: How often the attempt returned to FENCE for a new transaction.
        is_carried: Whether the transaction uses the epoch that the coordinator granted in its answer to the driver's
            last commit.
    """

    def __init__(self, max_restarts: int, *, goes_on: bool = False) -> None:
        self._max_restarts = max_restarts
        self.step = Step.OPEN if goes_on else Step.FENCE
        self.is_carried = goes_on
        self.restarts = 0
        self._commit_sent = False

    def __repr__(self) -> str:
        return f"<MicroBatch {self.step.name} restarts={self.restarts}>"

    @property
    def resumed(self) -> bool:
        """Whether the attempt returned to FENCE at least once, for a new transaction or to ask for the outcome."""
        return self.restarts > 0

    @property
    def over(self) -> bool:
        """Whether the attempt is over: its step is one of `ENDS`."""
        return self.step in ENDS

    def on(self, event: Event) -> Step:
        """Takes an outcome and returns the next step.

        Raises:
            IllegalEventError: The current step has no such outcome.
        """
        try:
            following = TRANSITIONS[self.step][event]
        except KeyError:
            raise IllegalEventError(f"{event.name} at {self.step.name}") from None
        if event is Event.LAPSED and not self.is_carried:
            raise IllegalEventError(f"{event.name} at {self.step.name} of an epoch that FENCE granted")
        if following is Step.FENCE:
            self.is_carried = False
            # LAPSED does not count as a restart, because this attempt has not begun any transaction yet.
            self.restarts += event is not Event.LAPSED
            if self.restarts > self._max_restarts:
                following = Step.FAILED
        if self.step is Step.COMMIT:
            self._commit_sent = True
        self.step = following
        return following

    @property
    def committed_by_us(self) -> bool:
        """Only at DUPLICATE: whether this attempt itself committed the batch, but got no answer to its commit."""
        return self.step is Step.DUPLICATE and self._commit_sent


@dataclass(frozen=True, slots=True)
class WriterIdentity:
    """The identity under which the tasks of one transaction append their records.

    Attributes:
        transactional_id: Transactional id of the transaction.
        producer_id: Producer id that the coordinator granted.
        epoch: Epoch that the coordinator granted; a newer epoch fences this one.
        protocol: The brokers' transaction protocol: 1, or 2 (KIP-890).
    """

    transactional_id: str
    producer_id: int
    epoch: int
    protocol: int = 1


# --------------------------------------------------------------------------------------------------------------
# The marker


@dataclass(frozen=True, slots=True)
class Marker:
    """The durable record of the last committed micro-batch.

    Attributes:
        next_batch_id: The micro-batch's id plus one.
        query_id: Id of the Spark query that wrote the micro-batch; empty if none exists (batch use, Spark Connect).
            Batch ids of different queries cannot be compared.
        rows: Number of rows of the micro-batch; None in markers of version 1, which do not have this field.
        plan: The micro-batch's `plan_digest`; empty if it is not known.
    """

    next_batch_id: int
    query_id: str = ""
    rows: int | None = None
    plan: str = ""

    def encode(self) -> str:
        """The marker as text, for a group's offset metadata and for the marker topic."""
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
        """Decodes the text that `encode` returns. Also decodes markers of version 1.

        Raises:
            ValueError: The text is not a marker. The caller must not treat an invalid text as a missing marker.
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
    """Finds one application id's newest committed marker in a partition's log. The caller reads the whole log with
    `read_uncommitted`.

    `read_committed` would stop at an open transaction of another application id. Such a transaction does not matter,
    because it contains no marker of this id. The fence has already ended all transactions of this id.

    Args:
        key: Key of this id's records.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._open: dict[int, str] = {}
        self.content: str | None = None

    def record(
        self, producer_id: int, key: bytes | None, value: bytes | None, *, transactional: bool
    ) -> None:
        """Processes the next record of the log."""
        if key != self._key or value is None:
            return
        if transactional:
            self._open[producer_id] = value.decode()
        else:
            self.content = value.decode()

    def outcome(self, producer_id: int, *, committed: bool) -> None:
        """Processes the next control record of the log, which ends a producer's transaction."""
        content = self._open.pop(producer_id, None)
        if committed and content is not None:
            self.content = content

    @property
    def undecided(self) -> bool:
        """Whether a transaction of this application id has no outcome yet."""
        return bool(self._open)


def plan_digest(entry: str) -> str:
    """Returns a digest of a micro-batch's plan. The digest covers the time at which Spark planned the micro-batch, and
    the end of each source.

    The offsets alone do not identify the input, so the time is part of the digest. For example, an offset of a file
    source is a position in a list of files in the checkpoint. In a checkpoint that was restored from a copy, the list
    may differ, and the same position may stand for other files.

    Args:
        entry: An entry of Spark's offset log: a version, a line of metadata, a line for each source.

    Returns:
        The digest; empty if `entry` has another format.
    """
    lines = entry.splitlines()
    try:
        planned_ms = json.loads(lines[1])["batchTimestampMs"]
    except (ValueError, TypeError, LookupError):
        return ""
    # Leave out the other metadata: they are settings, and another version of Spark may write them differently.
    return hashlib.blake2b(json.dumps([planned_ms, lines[2:]]).encode(), digest_size=16).hexdigest()


class MarkerVerdict(enum.Enum):
    """What the marker says about a batch."""

    WRITE = "write"
    DUPLICATE = "duplicate"
    """This batch is committed."""
    COUNT = "count"
    """The plan of the batch or the plan in the marker is not known. So the number of rows must show whether this
    batch is committed.
    """
    MISSING = "missing"
    """The marker is missing, though earlier batches must have written one."""
    OTHER_QUERY = "other query"
    """Another query wrote the marker: the checkpoint does not belong to this application id."""
    OTHER_ROWS = "other rows"
    """This batch id is committed with other rows: the checkpoint lost its last batch, and Spark planned it again."""
    UNPROVEN = "unproven"
    """This batch id is committed, but perhaps with other rows: a marker of version 1 does not show this."""
    GAP = "gap"
    """Batches before this one were never written to this topic."""
    ROLLED_BACK = "rolled back"
    """Batches after this batch are committed: the checkpoint is older than the topic."""


def judge_marker(
    marker: Marker | None,
    batch_id: int,
    query_id: str,
    *,
    strict: bool,
    plan: str = "",
    rows: int | None = None,
) -> MarkerVerdict:
    """Decides whether to write a streaming query's batch.

    Spark stores the plan of a batch durably before it runs the batch. Spark repeats only the last planned batch, with
    the same input. So if the checkpoint is intact, the marker has two possible values: the batch's id (the batch is not
    written yet), or that id plus one (the batch is written, but Spark has not recorded this). Any other value means
    that the checkpoint and the topic do not belong together: then both writing the batch and skipping it could be
    wrong.

    But the marker is also the batch id plus one if the checkpoint was restored from a copy that is one batch old. Spark
    then plans that batch again, with other rows. So the driver skips a batch only if it is proven to be the committed
    batch: by its entry in Spark's offset log or, if that is not possible, by its number of rows.

    Args:
        marker: The marker that was read after the fence, or None.
        batch_id: Spark's batch id.
        query_id: Spark's query id; empty if it is not known.
        strict: If False, a marker that does not match the checkpoint is replaced, and each batch is written unless it
            is proven to be committed.
        plan: The batch's `plan_digest`; empty if it is not known.
        rows: Number of rows in the batch; None if they were not counted.
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
        # Do not compare the numbers of rows: a query that is not deterministic may produce another number from the same
        # input.
        return MarkerVerdict.DUPLICATE if marker.plan == plan else MarkerVerdict.OTHER_ROWS
    if marker.rows is None:
        return MarkerVerdict.UNPROVEN
    if rows is None:
        return MarkerVerdict.COUNT
    return MarkerVerdict.DUPLICATE if marker.rows == rows else MarkerVerdict.OTHER_ROWS


def may_go_on(marker: Marker, batch_id: int, query_id: str, *, plan: str = "") -> bool:
    """Whether a driver may begin a batch at the step OPEN. The batch then uses the epoch that the driver got in the
    answer to its last commit.

    Otherwise the driver begins the batch at FENCE, then reads the marker and calls `judge_marker`.

    Args:
        marker: The marker that this driver committed last.
        batch_id: As in `judge_marker`.
        query_id: As in `judge_marker`.
        plan: As in `judge_marker`.
    """
    return judge_marker(marker, batch_id, query_id, strict=True, plan=plan) is MarkerVerdict.WRITE


def judge_version(marker: Marker | None, version: int, *, strict: bool) -> MarkerVerdict:
    """Decides whether to write a batch query. As in Delta, the rows are written unless `version` or a higher version
    has already been committed.

    Args:
        marker: The marker that was read after the fence, or None.
        version: The caller's `txnVersion`.
        strict: What to do if a streaming query wrote the marker. True: refuse the batch. False: write the batch and
            replace the marker.
    """
    if marker is not None and marker.query_id:
        return MarkerVerdict.OTHER_QUERY if strict else MarkerVerdict.WRITE
    if marker is None or marker.next_batch_id <= version:
        return MarkerVerdict.WRITE
    return MarkerVerdict.DUPLICATE


# --------------------------------------------------------------------------------------------------------------
# Reports of the tasks, and answers of the brokers


@dataclass(frozen=True, slots=True)
class Report:
    """The records that one task appended to one partition.

    Attributes:
        topic: Topic name.
        partition: Partition number.
        rows: Number of records, ≥ 1.
    """

    topic: str
    partition: int
    rows: int


@dataclass(frozen=True, slots=True)
class AppendState:
    """The state that a partition's leader stores for the transaction's producer id.

    Attributes:
        epoch: The newest epoch of the producer id.
        last_sequence: Sequence of the last appended record (inclusive), or -1.
    """

    epoch: int
    last_sequence: int


def judge_partitions(
    grant: WriterIdentity,
    reports: Iterable[Report],
    appended: Mapping[tuple[str, int], AppendState | None],
) -> str:
    """Compares the tasks' reports with the logs. Returns the first difference as text, or an empty string if there is
    none.

    Each transaction has a new epoch, so its sequences begin at 0 on each partition. After n records, the last sequence
    is n - 1.

    Args:
        grant: The grant of the transaction.
        reports: The reports of all tasks.
        appended: For each (topic, partition) that is in the transaction or that a task reported: the leader's state of
            the producer id. None if the leader does not know the producer id.
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
        # Sequences wrap at 2**31. The transaction of a micro-batch never contains that many records.
        if here != there:
            return f"{topic}-{partition} holds {there} records of this transaction, tasks reported {here}"
    return ""
