"""What the journal wants done, as data: `Ready`, and what is in it but for groups and notices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kafkasafe._core import units as u
from kafkasafe._core.identity import BatchId
from kafkasafe._core.journal.groups import Persist
from kafkasafe._core.journal.notices import Notice
from kafkasafe._core.journal.states import Batch, Fate
from kafkasafe._core.loss import AckedBatch, Released

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
        doubt: The batches in doubt, in order, of one producer id and epoch; empty: only the end offset is wanted
            (answer with `baseline`).
        from_offset: Where our batches can begin in the log; -1 when not even that is known.
        read_log: The producer state must not be believed (it may expire any moment): read the log.
        fenced: A newer epoch of our id is there: what the log does not show is undecidable.
        confirm: The broker refused it. Only its state is wanted, once: answer with `confirmed`.
        cut: The log was seen to end before what was acknowledged.
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
    """A destination wants `retry()` after a pause.

    Attributes:
        destination: Destination number.
        attempt: How many failures in a row, ≥ 1.
        refresh_metadata: The leader may have moved.
        at_least_s: Shortest pause in seconds.
        reason: For people.
        refused: It waits for somebody to mend what the cluster refuses it for: pauses may grow long.
    """

    destination: int
    attempt: int
    refresh_metadata: bool
    at_least_s: float
    reason: str
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Divide:
    """The batch must become several: its partitions are known now, or the broker finds it too large.

    Attributes:
        batch: The batch.
        refused: False: by partition. True: the broker refused it; `bad_records` it named, or halves.
    """

    batch: Batch
    refused: bool


@dataclass(frozen=True, slots=True)
class Resolution:
    """A batch whose fate is final and durable.

    Attributes:
        batch: The batch; `base_offset` is -1 where it is only known to be in the log.
        fate: How it ended.
    """

    batch: Batch
    fate: Fate


@dataclass(frozen=True, slots=True)
class EpochCheck:
    """Another leader acknowledges: does the log of the one before end behind what that one acknowledged?

    The answer "no", or "nobody knows that leader epoch, though the log begins before", goes to `suspect()`.

    Attributes:
        destination: Destination number.
        leader_epoch: Of the leader before.
        last_acked_offset: How far it acknowledged (inclusive).
    """

    destination: int
    leader_epoch: int
    last_acked_offset: int


@dataclass(frozen=True, slots=True)
class SurveyAsk:
    """Acknowledged batches may be gone: what does the log hold? Answered by `surveyed()` or `survey_failed()`.

    Attributes:
        destination: Destination number.
        acked: What is known to have been acknowledged, oldest first.
        leader_epoch: Of the last acknowledgement, -1 when unknown.
        from_offset: From here on the log is not what it was, -1 when unknown: what was acknowledged may be here again.
        baseline_offset: Before this there is nothing of ours, -1 when unknown.
        ours: Producer ids that only batches of this lane have.
        released: Where batches are that are not in `acked`.
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
    """Rejected batches: to be made durable in `rejected/` before they are finished. Answered by `set_aside()`.

    Attributes:
        destination: Destination number.
        batches: In the order of the queue; each is in the spool. Not more than is written with one fsync.
    """

    destination: int
    batches: tuple[Batch, ...]


@dataclass(frozen=True, slots=True)
class Packed:
    """What is packed of a partition.

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
    """A batch that was packed is needed again.

    Attributes:
        batch: The batch.
        number: What the shell gave to `pack`.
        sealed_at: The same.
        next_number: That of the next one of the destination that is packed, -1 for none.
    """

    batch: Batch
    number: int
    sealed_at: float
    next_number: int


@dataclass(slots=True)
class Ready:
    """What must be done now; see the module's contract."""

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
    """By destination, small batches that wait one behind the other: they may become one, see `Journal.gathered`."""

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
