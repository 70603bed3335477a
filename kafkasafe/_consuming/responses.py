"""Decide whether kafka-python may use a partition's fetch response, and how the consumer reacts to an error in the
response.
"""

from __future__ import annotations

import time
from typing import Any

import kafka.errors as kafka_errors
from kafka.structs import TopicPartition

from kafkasafe._consuming.followers import Followers
from kafkasafe._consuming.log_checks import code_error
from kafkasafe._consuming.moves import Moves
from kafkasafe._consuming.partition import AssignedPartition
from kafkasafe._consuming.parts import AssignedPartitions
from kafkasafe._consuming.pauses import Pauses
from kafkasafe._consuming.ports import Metadata
from kafkasafe._consuming.position_table import PositionEvent
from kafkasafe.codes.numbers import NOT_LEADER_OR_FOLLOWER, OFFSET_OUT_OF_RANGE, TOPIC_AUTHORIZATION_FAILED
from kafkasafe.codes.sets import OTHER_TOPIC_CODES
from kafkasafe.codes.verdicts import classify_code
from kafkasafe.limits.fetch_ahead import AheadOffset


class Responses:
    """Inspects a consumer's fetch responses before kafka-python does. Only the polling thread calls this object."""

    __slots__ = ("_followers", "_metadata", "_moves", "_parts", "_pauses")

    def __init__(
        self,
        metadata: Metadata,
        parts: AssignedPartitions,
        moves: Moves,
        pauses: Pauses,
        followers: Followers[TopicPartition],
    ) -> None:
        self._metadata = metadata
        self._parts = parts
        self._moves = moves
        self._pauses = pauses
        self._followers = followers

    def accept(self, completed: Any) -> bool:
        """Return whether kafka-python may use a fetch response of one partition."""
        tp, data = completed.topic_partition, completed.partition_data
        part = self._parts.of(tp)
        code: int = data.error_code
        if part is None or _is_outdated(part, completed):
            return code == 0  # outdated; kafka-python discards it
        if isinstance(ahead := completed.fetched_offset, AheadOffset) and ahead.checked is not part.checked:
            # The consumer has checked the position since it sent this fetch. So the response may come from a former
            # leader.
            return False
        if code:
            if not self._followers.is_late(data):
                self._on_failed(tp, part, data)
            return False
        if part.failures.count:
            self._pauses.ended(tp, part)
            if _is_outdated(part, completed):
                return True  # the application's event hook has moved the position
        diverging = data.diverging_epoch
        contradicts = diverging is not None and diverging.end_offset >= 0
        if not contradicts and data.records:
            # Remember the checksums of batches only if the broker reports no leader epoch or no topic id. With epochs
            # and ids, logs can be compared without checksums.
            marked = part.checked is None or part.checked[2] < 0 or part.history.topic_id is None
            contradicts = not part.history.observe(data.records, int(completed.fetched_offset), marked=marked)
        if contradicts:
            self._moves.on(tp, part, PositionEvent.CONTRADICTED)
        return not contradicts

    def _on_failed(self, tp: TopicPartition, part: AssignedPartition, data: Any) -> None:
        code: int = data.error_code
        position: int = part.state.position.offset
        if part.state.clear_preferred_read_replica() is not None:
            # The error came from a follower. The leader may not have this problem, so fetch from the leader at once.
            self._followers.leave([tp], time.monotonic())
            if code != OFFSET_OUT_OF_RANGE and classify_code(code, "fetch").refresh_metadata:
                self._metadata.request()
            return
        if code == OFFSET_OUT_OF_RANGE:
            part.place(position)
            self._moves.on(tp, part, PositionEvent.OUT_OF_RANGE)
            return
        if code == TOPIC_AUTHORIZATION_FAILED:
            raise kafka_errors.TopicAuthorizationFailedError({tp.topic})
        verdict = classify_code(code, "fetch")
        if not verdict.retriable:
            raise code_error(code, f"{tp.topic}-{tp.partition} at {position}: {verdict.explanation}")
        if code == NOT_LEADER_OR_FOLLOWER:
            # This broker is not the leader any more. If this broker soon becomes the leader again, the metadata may
            # never show that another broker was the leader.
            part.doubt_leader()
        self._metadata.learn_leader(tp, data)
        if code in OTHER_TOPIC_CODES:
            self._moves.on(tp, part, PositionEvent.OTHER_TOPIC)
        if verdict.refresh_metadata:
            self._metadata.request()
        self._pauses.begin(tp, part, code, verdict.name, verdict.explanation)


def _is_outdated(part: AssignedPartition, completed: Any) -> bool:
    """Return whether a response is for a former position, or for a partition that must not be fetched now."""
    return not part.state.is_fetchable() or part.state.position.offset != completed.fetched_offset
