"""The requests with which a consumer finds where a live leader's log differs from the records that were read."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from kafkasafe.history.epochs.lineage import MAX_EPOCH, UNDEFINED, Lineage, LineageError

# Bytes of one partition's fields in a message. KIP-279 counts only these fields.
PARTITION_BYTES: Final = 4
EPOCH_BYTES: Final = 4
OFFSET_BYTES: Final = 8
ERROR_BYTES: Final = 2
LIVE_REQUEST_BYTES: Final = PARTITION_BYTES + 2 * EPOCH_BYTES
"""Size of one partition in OffsetForLeaderEpoch v2 and later: partition, current leader epoch, requested epoch."""
LIVE_RESPONSE_BYTES: Final = ERROR_BYTES + PARTITION_BYTES + EPOCH_BYTES + OFFSET_BYTES


# --- a consumer and a live leader -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Same:
    """The leader's log contains every record that was read, at the same offset.

    Attributes:
        until: Offset after the last record that is known to be the same in both logs.
    """

    until: int


@dataclass(frozen=True, slots=True)
class Diverged:
    """The leader's log no longer contains records that were read.

    Attributes:
        divergent_offset: First differing offset.
        rolled_back: First and last offset (inclusive) of the records that were read and that the log has lost.
        replaced: First and last offset (inclusive) of the part of `rolled_back` where the log is known to have other
            records now. None if no other records are known, for example because the log only became shorter.
        common_epoch: The largest epoch that both logs have; None when no common epoch is known.
        rolled_back_epochs: Epochs of the rolled-back records, oldest first.
        exact: If False, the logs may already differ before `divergent_offset`, in records that were not read or have no
            epochs.
    """

    divergent_offset: int
    rolled_back: tuple[int, int]
    replaced: tuple[int, int] | None
    common_epoch: int | None
    rolled_back_epochs: tuple[int, ...]
    exact: bool = True


@dataclass(frozen=True, slots=True)
class Unknown:
    """The answers do not show whether the logs differ. Not a proof of a loss.

    Attributes:
        reason: Human-readable text.
        same_until: Offset (exclusive) up to which the logs are the same; None when nothing is known.
        log_start_offset: The leader's log start offset, if the leader has trimmed every record that was read; otherwise
            None.
    """

    reason: str
    same_until: int | None = None
    log_start_offset: int | None = None


Outcome = Same | Diverged | Unknown


class ReplyKind(enum.Enum):
    """The kinds of answers that a leader gives about an epoch, named as in KIP-279."""

    END = "end"
    """The end of an epoch, or, with `UNDEFINED` as epoch, the start of the leader's first epoch."""
    UNKNOWN = "unknown"
    """UNKNOWN_OFFSET_FOR_LEADER_EPOCH: the leader has epochs, but none of the requested epochs."""
    UNDEFINED = "undefined"
    """UNDEFINED_EPOCH_OFFSET: the leader has no epochs. The follower falls back to its high watermark immediately."""


@dataclass(frozen=True, slots=True)
class Step:
    """One round trip.

    Attributes:
        request: The (epoch, end offset) pairs in the request, newest first. Only Alternative 2 of KIP-279 sends end
            offsets and more than one pair.
        reply_epoch: The epoch in the answer, `UNDEFINED` when the leader knows no such epoch.
        reply_end_offset: The end offset of `reply_epoch` in the leader's log, `UNDEFINED` when the leader knows none.
        truncate_to: The offset to which our log would be truncated after this step.
        kind: The kind of answer. Brokers send the same response for `UNKNOWN` and `UNDEFINED`; `EpochWalk` stores both
            as `UNDEFINED`.
    """

    request: tuple[tuple[int, int], ...]
    reply_epoch: int
    reply_end_offset: int
    truncate_to: int
    kind: ReplyKind = ReplyKind.END

    @property
    def request_epoch(self) -> int:
        """The newest epoch in the request."""
        return self.request[0][0]


_TRIMMED: Final = "what was read is no longer in the leader's log"


class EpochWalk:
    """Asks the leader about one epoch after another, to find the first differing offset.

    The caller sends an OffsetForLeaderEpoch request for the epoch that `query()` returns and passes the response to
    `answer()`, until `query()` returns None and `outcome` is set. All responses must come from one leader. Put the
    current leader epoch into each request, so that another leader refuses the request. Begin a new walk when the leader
    changes. A walk takes at most as many rounds as the history has epochs. A failed request does not change the walk,
    and can be retried.
    """

    __slots__ = ("_asked", "_log_end", "_log_start", "_ours", "outcome", "steps")

    def __init__(
        self,
        lineage: Lineage,
        *,
        position: int | None = None,
        log_start_offset: int | None = None,
        log_end_offset: int | None = None,
    ) -> None:
        """Begin a walk. The history is copied.

        Args:
            lineage: The history of the records that were read.
            position: Next offset to read; the outcome covers only records before this offset. None: the history's end.
            log_start_offset: The leader's log start offset. The outcome does not cover records that the leader trimmed.
                Without this offset, trimmed records may count as equal, because the leader also answers about epochs
                whose records it has trimmed.
            log_end_offset: The leader's log end offset, if known. `Diverged.replaced` depends on this offset.
        """
        self._ours = lineage.copy()
        # Truncate even at the end of the history: this drops epochs without records.
        self._ours.truncate(lineage.end_offset if position is None else position)
        self._log_start = log_start_offset
        self._log_end = -1 if log_end_offset is None else log_end_offset
        self.steps: list[Step] = []
        self.outcome: Outcome | None = None
        self._asked = self._ours.floor(MAX_EPOCH)
        """Index of the entry for the next query; meaningless once `outcome` is set."""
        if not self._ours.entries:
            self.outcome = Unknown("nothing is known of what was read before")
        elif self._asked is None:
            self.outcome = Unknown("the records that were read have no leader epoch")

    def query(self) -> int | None:
        """The epoch to ask about; None once `outcome` is set. Does not change the walk."""
        if self.outcome is not None or self._asked is None:
            return None
        return self._ours.entries[self._asked][0]

    @property
    def round_trips(self) -> int:
        """Number of answered requests."""
        return len(self.steps)

    @property
    def request_bytes(self) -> int:
        """Total size of this partition in the requests (OffsetForLeaderEpoch v3)."""
        return len(self.steps) * LIVE_REQUEST_BYTES

    @property
    def response_bytes(self) -> int:
        """Total size of this partition in the responses (OffsetForLeaderEpoch v3)."""
        return len(self.steps) * LIVE_RESPONSE_BYTES

    def answer(self, epoch: int, end_offset: int) -> Outcome | None:
        """Take the leader's answer to the last query.

        Args:
            epoch: `leader_epoch` of the response: the leader's largest epoch that is not above the requested epoch.
            end_offset: `end_offset` of the response.

        Returns:
            The outcome, or None when another query is due.

        Raises:
            LineageError: The walk already has its outcome.
        """
        asked, requested = self._asked, self.query()
        if asked is None or requested is None:
            raise LineageError("an answer, but nothing was asked: the walk has its outcome")
        self._judge(asked, requested, epoch, end_offset)
        cut = self._ours.end_offset
        if isinstance(self.outcome, Diverged):
            cut = self.outcome.divergent_offset
        elif self.outcome is None and self._asked is not None:
            cut = self._ours.end_of(self._asked)
        kind = ReplyKind.UNDEFINED if end_offset < 0 else ReplyKind.END
        self.steps.append(Step(((requested, self._ours.end_of(asked)),), epoch, end_offset, cut, kind))
        return self.outcome

    def _judge(self, asked: int, requested: int, epoch: int, end_offset: int) -> None:
        ours = self._ours
        if end_offset < 0:
            # Not a proof of a loss: the requested epoch is newer than all of the leader's epochs (the leader's metadata
            # are old, or the topic was recreated), or the log has no epochs.
            self.outcome = Unknown(f"the leader has no answer about epoch {requested}")
            return
        if epoch > requested:
            self.outcome = Unknown(f"the leader was asked about epoch {requested} and answered about {epoch}")
            return
        self._log_end = max(self._log_end, end_offset)
        if self._log_start is not None and end_offset <= self._log_start:
            # All records in the leader's log have newer epochs than the requested epoch, even if the response names the
            # requested epoch with the log start as its end. So the leader has none of our records from the log start
            # on. It is unknown whether the leader had our records before the log start.
            if self._log_start < ours.end_offset:
                # Records that we read below the start of the leader's log may have differed, too, but can no longer be
                # compared.
                self._diverged(self._log_start, None, exact=self._log_start <= ours.start_offset)
            else:
                self.outcome = Unknown(_TRIMMED, log_start_offset=self._log_start)
            return
        if epoch < 0:
            # Brokers before 2.0 do not name the epoch of their answer. So only an end offset below the end offset in
            # our history proves a loss.
            if end_offset < ours.end_of(asked):
                self._diverged(end_offset, None, exact=False)
            else:
                self.outcome = Unknown("the broker does not say which epoch its answer is about")
            return
        at = ours.floor(epoch)
        if at is None:
            # The leader's log has none of our epochs. The answer does not cover records before our first epoch.
            cut = min(
                end_offset, next(start for ours_epoch, start in ours.entries if ours_epoch != UNDEFINED)
            )
            self._diverged(cut, None, exact=cut == 0)
            return
        if ours.entries[at][0] != epoch:
            # We have read no record of the epoch in the answer. Ask about the next older epoch of which we have read
            # records.
            self._asked = at
            return
        end, following = ours.end_of(at), self._following(at)
        if end_offset < end:
            self._diverged(end_offset, epoch)
        elif following is not None:
            # The log has all of our records of this epoch, but other records at the offsets of our newer records.
            cut = min(end_offset, ours.entries[following][1])
            self._diverged(cut, epoch, exact=following == at + 1)
        elif end < ours.end_offset:
            self.outcome = Unknown("the newest records that were read have no leader epoch", same_until=end)
        elif self._log_start is not None and self._log_start >= end:
            self.outcome = Unknown(_TRIMMED, log_start_offset=self._log_start)
        else:
            self.outcome = Same(end)

    def _following(self, at: int) -> int | None:
        """Index of the next entry with a defined epoch."""
        later = range(at + 1, len(self._ours.entries))
        return next((index for index in later if self._ours.entries[index][0] != UNDEFINED), None)

    def _diverged(self, at: int, common: int | None, *, exact: bool = True) -> None:
        ours = self._ours
        first, last = max(at, ours.start_offset), ours.end_offset - 1
        standing = min(self._log_end - 1, last)
        gone = [
            epoch
            for index, (epoch, start) in enumerate(ours.entries)
            if epoch != UNDEFINED and start < ours.end_of(index) and ours.end_of(index) > first
        ]
        self.outcome = Diverged(
            at, (first, last), (first, standing) if standing >= first else None, common, tuple(gone), exact
        )

    def __repr__(self) -> str:
        return f"<EpochWalk {self._ours!r} after {len(self.steps)} rounds: {self.outcome or 'asking'}>"
