"""The answers that `EndOffsets` remembers about one partition, and the stored form of these answers."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Final

from kafkasafe.history.offset_answers import UNDEFINED, Isolation, Key, Proof

MAX_TIMESTAMPS: Final = 64
"""How many look-ups by timestamp are remembered per key."""
MAX_FORMER_IDS: Final = 16
"""How many ids of deleted topics are remembered per key."""
FORMER_TOPIC_S: Final = 30.0
"""If all answers during this many seconds have the id of a topic that counts as deleted, the topic counts as existing
again.
"""


class BaselineFormatError(ValueError):
    """The stored answers cannot be read: they are damaged, or of a newer version."""


@dataclass(frozen=True, slots=True)
class FoundRecord:
    """The result of a look-up by timestamp."""

    offset: int
    leader_epoch: int
    timestamp_ms: int


@dataclass(slots=True)
class LowerAnswers:
    """Answers that are not accepted, because they are lower than the remembered answer.

    Attributes:
        since: Time of the first held answer; None when none is held.
        answered: The last held answer; -1 when none is held.
    """

    since: float | None = None
    answered: int = -1

    def hold(self, offset: int, now: float) -> float:
        """Store a lower answer. Return the seconds since the first held answer."""
        self.answered = offset
        return self.age_s(now)

    def age_s(self, now: float) -> float:
        """Return the seconds since the first held answer. If no answer is held yet, begin to count at `now`."""
        if self.since is None:
            self.since = now
        return max(0.0, now - self.since)

    def release(self) -> None:
        """Note that an answer was accepted."""
        self.since, self.answered = None, -1


@dataclass(slots=True)
class RememberedOffsets:
    """The remembered answers for one key.

    Attributes:
        end: Highest end offset; -1 before the first answer.
        end_epoch: Leader epoch of the answer that gave `end`.
        newest_epoch: Highest leader epoch of any answer; at or above `end_epoch`.
        start: Highest start offset of any answer; -1 before the first answer.
        start_epoch: Leader epoch of the record at `start`, -1 when not known.
        start_before: After a recreation of the topic: `start` of the deleted topic. -1 again as soon as the new topic's
            start is observed.
        lower_ends: Held answers about the end.
        lower_starts: Held answers about the start.
        found: Maps a requested timestamp to the first record at or after the timestamp.
        former_ids: Ids of deleted topics with the same name.
        former_named: The id in the latest answers, if a topic with this id counts as deleted; otherwise None.
        former_since: Time since which all answers have had the id `former_named`.
        recreated: After a recreation of the topic: the proof that it was recreated. None again as soon as the new
            topic's end offset is observed.
        end_before: `end` of the deleted topic, while `recreated` is set.
    """

    end: int = -1
    end_epoch: int = UNDEFINED
    newest_epoch: int = UNDEFINED
    topic_id: bytes | None = None
    start: int = -1
    start_epoch: int = UNDEFINED
    start_before: int = -1
    lower_ends: LowerAnswers = field(default_factory=LowerAnswers)
    lower_starts: LowerAnswers = field(default_factory=LowerAnswers)
    found: OrderedDict[int, FoundRecord] = field(default_factory=OrderedDict)
    former_ids: list[bytes] = field(default_factory=list)
    former_named: bytes | None = None
    former_since: float = 0.0
    recreated: Proof | None = None
    end_before: int = -1

    # --- the end ---

    def see_epoch(self, leader_epoch: int) -> None:
        """Note the leader epoch of an answer."""
        self.newest_epoch = max(self.newest_epoch, leader_epoch)

    def raise_end(self, offset: int, leader_epoch: int) -> None:
        """Store an end offset that is not below the previous end offset."""
        self.end, self.end_epoch = offset, leader_epoch
        self.lower_ends.release()

    def begin_end(self, offset: int, leader_epoch: int) -> int:
        """Note the first end offset of a recreated topic. Return the end offset of the deleted topic."""
        previous, self.recreated = self.end_before, None
        self.end, self.end_epoch, self.newest_epoch = offset, leader_epoch, leader_epoch
        return previous

    def lower_end(self, offset: int, proof: Proof | None) -> int:
        """Replace the end with this lower offset. Return the former end."""
        previous = self.end
        self.end, self.end_epoch = offset, self.newest_epoch
        # The new log may have grown past the offset at which it diverged from the old log.
        self._cut(offset if proof is None else proof.end_offset)
        self.lower_ends.release()
        return previous

    # --- the start ---

    def raise_start(self, offset: int, leader_epoch: int) -> int:
        """Store a start that is not below the previous start. Return the start of the deleted topic, if this is the
        first start of a recreated topic; otherwise -1.
        """
        previous, self.start_before = self.start_before, -1
        if offset > self.start or leader_epoch >= 0:
            self.start_epoch = leader_epoch
        self.start = offset
        self.lower_starts.release()
        return previous

    def lower_start(self, proof: Proof | None) -> int:
        """Replace the remembered log start with the lower start that was held back. Return the former start."""
        previous, offset = self.start, self.lower_starts.answered
        if proof is not None:
            self._cut(proof.end_offset)
        self.start, self.start_epoch = offset, UNDEFINED
        self.lower_starts.release()
        return previous

    # --- all answers ---

    def note_found(self, timestamp_ms: int, record: FoundRecord) -> None:
        """Note the result of a look-up by timestamp."""
        self.found[timestamp_ms] = record
        self.found.move_to_end(timestamp_ms)
        while len(self.found) > MAX_TIMESTAMPS:
            self.found.popitem(last=False)

    def _cut(self, offset: int) -> None:
        """Drop remembered answers at or after this offset, because the log now has other records at these offsets."""
        if self.start > offset:
            self.start, self.start_epoch = -1, UNDEFINED
            self.lower_starts.release()
        for timestamp in [timestamp for timestamp, record in self.found.items() if record.offset >= offset]:
            del self.found[timestamp]

    def is_former(self, topic_id: bytes | None, now: float) -> bool:
        """Note the topic id in an answer. Return whether the topic with this id counts as deleted."""
        if topic_id is None:
            return False
        if topic_id not in self.former_ids:
            self.former_named = None
            return False
        if topic_id != self.former_named:
            self.former_named, self.former_since = topic_id, now
        if now - self.former_since < FORMER_TOPIC_S:
            return True
        self.former_ids.remove(topic_id)
        self.former_named = None
        return False

    def identify(self, topic_id: bytes | None) -> bool:
        """Note the topic id. Return whether the topic id changed. A change voids all remembered answers."""
        if topic_id is None or topic_id == self.topic_id:
            return False
        old, self.topic_id = self.topic_id, topic_id
        if old is None:
            return False
        self.former_ids = [*self.former_ids[1 - MAX_FORMER_IDS :], old]
        # Keep the old end. A look-up of a start or of a timestamp may have found the new topic, and a later look-up of
        # the end then compares the new end with the old end.
        self.end_before = max(self.end, self.end_before) if self.recreated else self.end
        self.recreated = Proof(old_topic_id=old, topic_id=topic_id)
        self.start_before = max(self.start, self.start_before)
        self.end, self.start, self.start_epoch = -1, -1, UNDEFINED
        self.end_epoch = self.newest_epoch = UNDEFINED
        self.found.clear()
        self.lower_ends.release()
        self.lower_starts.release()
        return True


def row_of(key: Key, known: RememberedOffsets) -> dict[str, Any]:
    """Return the stored form of one key: the accepted end and start, the epochs and the topic ids. Held answers are not
    included.
    """
    return {
        "topic": key.topic,
        "partition": key.partition,
        "isolation": int(key.isolation),
        "end": known.end,
        "end_epoch": known.end_epoch,
        "newest_epoch": known.newest_epoch,
        "start": known.start,
        "start_epoch": known.start_epoch,
        "topic_id": None if known.topic_id is None else known.topic_id.hex(),
        "former_ids": [former.hex() for former in known.former_ids],
    }


def read_row(row: Any) -> tuple[Key, RememberedOffsets]:
    """Read what `row_of` has returned.

    Raises:
        BaselineFormatError: The row is malformed.
    """
    try:
        key = Key(row["topic"], _whole(row["partition"], 0), Isolation(row["isolation"]))
        known = RememberedOffsets(
            end=_whole(row["end"], -1),
            end_epoch=_whole(row["end_epoch"], -1),
            newest_epoch=_whole(row["newest_epoch"], -1),
            topic_id=None if row["topic_id"] is None else bytes.fromhex(row["topic_id"]),
            start=_whole(row["start"], -1),
            # Files of older versions do not have this field.
            start_epoch=_whole(row.get("start_epoch", UNDEFINED), UNDEFINED),
            former_ids=[bytes.fromhex(former) for former in row["former_ids"]],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise BaselineFormatError(f"malformed row: {type(error).__name__} {error} in {row!r}") from None
    if not isinstance(key.topic, str):
        raise BaselineFormatError(f"malformed row: the topic of {row!r} is not text")
    return key, known


def _whole(number: Any, least: int) -> int:
    if type(number) is not int or number < least:
        raise ValueError(f"{number!r} is not a whole number from {least}")
    return number
