"""The actions that the journal requests, as data: `Ready` and its parts, except groups and notices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kafkasafe import units as u
from kafkasafe.history.identity import BatchId
from kafkasafe.history.loss import AckedBatch, Released
from kafkasafe.journal.batch import Batch, BatchState, Fate
from kafkasafe.journal.groups import Persist
from kafkasafe.journal.notices import Notice

__all__ = [
    "Aside",
    "Ask",
    "Divide",
    "EpochCheck",
    "Packed",
    "Ready",
    "Resolution",
    "SurveyAsk",
    "Unpacked",
    "Wait",
]


@dataclass(frozen=True, slots=True)
class Ask:
    """A question to the cluster about one destination.

    Attributes:
        destination: Destination number.
        doubt: The batches in doubt, in order, of one producer id and epoch. Empty: the journal only needs the end
            offset (answer with `baseline`).
        from_offset: The lowest offset at which our batches can begin in the log; -1 when unknown.
        read_log: The producer state is not reliable (it may expire at any moment): read the log.
        fenced: A newer epoch of our id exists: a batch that the log does not have is undecidable.
        confirm: The broker refused the batch. The journal only needs the producer state, once: answer with `confirmed`.
        cut: The log may have been truncated below an acknowledged batch.
    """

    destination: int
    doubt: tuple[BatchId, ...]
    from_offset: int
    acked_before: bool
    read_log: bool
    fenced: bool
    cut: bool = False
    confirm: bool = False


@dataclass(frozen=True, slots=True)
class Wait:
    """A pause of one destination, after which the caller calls `retry()`.

    Attributes:
        destination: Destination number.
        attempt: How many failures there were in a row, at least 1.
        refresh_metadata: The leader may have moved.
        at_least_s: Shortest pause in seconds.
        reason: Human-readable text.
        refused: The cluster refuses the destination until an operator removes the cause: pauses may grow long.
    """

    destination: int
    attempt: int
    refresh_metadata: bool
    at_least_s: float
    reason: str
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Divide:
    """The batch must be divided: its topic's partitions are known now, or the broker refused it.

    Attributes:
        batch: The batch.
        refused: False: divide it by partition. True: the broker refused it; separate the `bad_records` that the broker
            named, or else divide it into halves.
    """

    batch: Batch
    refused: bool

    @property
    def is_due(self) -> bool:
        """Whether the batch still has to be divided. Since the request to divide it, the batch may have been sent
        again, or rejected as a whole.
        """
        return self.batch.state in {
            BatchState.REFUSED if self.refused else BatchState.SEALED,
            BatchState.JOINED,
        }


@dataclass(frozen=True, slots=True)
class Resolution:
    """A batch whose fate is final and durable.

    Attributes:
        batch: The batch; `base_offset` is -1 if it is in the log at an unknown offset.
        fate: How it ended.
    """

    batch: Batch
    fate: Fate


@dataclass(frozen=True, slots=True)
class EpochCheck:
    """Another leader acknowledges: does the former leader's epoch end after its last acknowledged offset?

    Call `suspect()` if it does not, or if the leader does not know that epoch although its log begins earlier.

    Attributes:
        destination: Destination number.
        leader_epoch: Epoch of the former leader.
        last_acked_offset: The last offset that it acknowledged (inclusive).
    """

    destination: int
    leader_epoch: int
    last_acked_offset: int


@dataclass(frozen=True, slots=True)
class SurveyAsk:
    """The log may have lost acknowledged batches: survey it. Answered by `surveyed()` or `survey_failed()`.

    Attributes:
        destination: Destination number.
        acked: The acknowledged batches that are remembered, oldest first.
        leader_epoch: Leader epoch of the last acknowledgement, -1 when unknown.
        from_offset: From here on the log may have changed, -1 when unknown. Acknowledged batches may have been appended
            again here.
        baseline_offset: The log has no batch of this lane before this offset; -1 when unknown.
        ours: Producer ids that only batches of this lane have.
        released: Offsets of batches that have left the spool and are not in `acked`.
    """

    destination: int
    acked: tuple[AckedBatch, ...]
    leader_epoch: int
    from_offset: int = -1
    baseline_offset: int = -1
    ours: frozenset[int] = frozenset()
    released: Released = field(default_factory=Released, compare=False)


@dataclass(frozen=True, slots=True)
class Aside:
    """Rejected batches: make them durable in `rejected/` before they are finished. Answered by `set_aside()`.

    Attributes:
        destination: Destination number.
        batches: In the order of the queue; each is in the spool. One fsync can make copies of all of them durable.
    """

    destination: int
    batches: tuple[Batch, ...]


@dataclass(frozen=True, slots=True)
class Packed:
    """The packed batches of a partition.

    Attributes:
        destination: Its number.
        first_number: The shell's number of the first batch.
        batches: How many.
        records: How many are in them.
        with_id: How many batches have an id.
    """

    destination: int
    first_number: int
    batches: int
    records: int
    with_id: int


@dataclass(frozen=True, slots=True)
class Unpacked:
    """The journal needs a packed batch again and unpacked it.

    Attributes:
        batch: The batch.
        number: The number that the shell passed to `pack`.
        sealed_at: The time that the shell passed to `pack`.
        next_number: Number of the destination's next packed batch, -1 for none.
    """

    batch: Batch
    number: int
    sealed_at: float
    next_number: int


@dataclass(slots=True)
class Ready:
    """The actions that are due now; see the package's contract."""

    persist: Persist
    sends: list[Batch]
    asks: list[Ask]
    surveys: list[SurveyAsk]
    checks: list[EpochCheck]
    waits: list[Wait]
    divides: list[Divide]
    asides: list[Aside]
    resolved: list[Resolution]
    notices: list[Notice]
    units: list[u.Action]
    ended: list[tuple[u.Unit, Fate]]
    wants_producer_id: bool
    unpacked: list[Unpacked] = field(default_factory=list)
    gathers: dict[int, Sequence[Batch]] = field(default_factory=dict)
    """By destination, consecutive small batches that wait: they may be merged, see `Journal.gathered`."""

    def want_producer_id(self, *, wanted: bool) -> None:
        """Whether batches wait for a producer id of this incarnation."""
        self.wants_producer_id = wanted

    def __bool__(self) -> bool:
        return bool(
            self.persist
            or self.sends
            or self.resolved
            or self.asks
            or self.surveys
            or self.checks
            or self.waits
            or self.divides
            or self.asides
            or self.notices
            or self.units
            or self.ended
            or self.unpacked
            or self.gathers
            or self.wants_producer_id
        )
