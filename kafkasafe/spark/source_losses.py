"""Reports lost records, which the query has read or should have read, as errors or as events."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from kafkasafe.errors import DataLossError
from kafkasafe.events import SourceDataLost
from kafkasafe.spark.leader_logs import LogState
from kafkasafe.spark.marks import Why as Loss
from kafkasafe.spark.notices import Notices
from kafkasafe.spark.positions import Partition, partition_names
from kafkasafe.spark.query_topics import QueryTopics

_WORDS: Final[Mapping[Loss, str]] = {
    "retention": "{was}, but its log now begins at {now}: retention or DeleteRecords removed {lost} unread",
    "diverged": "{was}, but the log differs from {now} on: it no longer holds {lost} (unclean leader election)",
    "truncated": "{was}, but the log now ends at {now}: {lost} are lost",
    "recreated": "{was}, but the topic was deleted and created again since then; it begins at {now}",
    "new_partition": "is new, but its first records are already removed: {lost}",
    "missing": "{was}, but does not exist any more",
}
_NOT_WANTED: Final = (
    "{was}, but the query does not read it any more (subscribe, subscribePattern or assign was changed)"
)


class SourceLosses:
    """Reports losses as errors or as events, depending on `failOnDataLoss`. Not thread-safe.

    Args:
        topics: The topics that the query reads.
        notices: Receives the events.
        fail_on_data_loss: Whether a loss ends the query.
    """

    def __init__(self, topics: QueryTopics, notices: Notices, *, fail_on_data_loss: bool) -> None:
        self._fail_on_data_loss = fail_on_data_loss
        self._topics = topics
        self._notices = notices
        self._gone: set[Partition] = set()  # missing partitions whose loss is already reported

    def tell(
        self, positions: Mapping[Partition, int], found: Mapping[Partition, LogState], *, is_first: bool
    ) -> None:
        """Reports the losses that were found: raises one error for all of them, or reports each as an event.

        Args:
            positions: Next offset to read, by partition; new partitions have no entry.
            found: State of each partition.
            is_first: Whether the query is new: it begins at `positions`, and has not read any record yet.
        """
        lost = {partition: state for partition, state in found.items() if state.why is not None}
        self._gone -= {partition for partition, state in found.items() if state.exists}
        if not lost:
            return
        if self._fail_on_data_loss:
            unwanted = {partition for partition in lost if not self._topics.is_wanted(partition)}
            raise _data_loss(positions, lost, unwanted, is_first=is_first)
        for partition, state in sorted(lost.items()):
            if not state.exists:
                if partition in self._gone:
                    continue
                self._gone.add(partition)
            position = positions.get(partition, 0)
            assert state.why is not None  # noqa: S101  # `lost` holds only such states
            self._notices.tell(SourceDataLost(*partition, state.why, position, state.begin, state.lost))

    def tell_one(
        self, partition: Partition, why: Loss, position: int, resumed_at: int, lost: tuple[int, int] | None
    ) -> None:
        """Reports a loss that was found while a batch query was planned, as an error or as an event."""
        if self._fail_on_data_loss:
            raise _loss_error([(partition, why, position, resumed_at, lost)], is_first=True)
        self._notices.tell(SourceDataLost(*partition, why, position, resumed_at, lost))


def _data_loss(
    positions: Mapping[Partition, int],
    lost: Mapping[Partition, LogState],
    unwanted: Collection[Partition],
    *,
    is_first: bool,
) -> DataLossError:
    losses = []
    for partition, state in sorted(lost.items()):
        assert state.why is not None  # noqa: S101  # `lost` holds only such states
        now = state.begin if state.log_start is None else state.log_start
        losses.append((partition, state.why, positions.get(partition, 0), now, state.lost))
    return _loss_error(losses, unwanted, is_first=is_first)


def _loss_error(
    lost: list[tuple[Partition, Loss, int, int, tuple[int, int] | None]],
    unwanted: Collection[Partition] = (),
    *,
    is_first: bool,
) -> DataLossError:
    sentences = []
    for partition, why, position, now, gone in lost:
        offsets = "some records" if gone is None else f"offsets {gone[0]} to {gone[1]}"
        was = f"was to be read from {position}" if is_first else f"was read to {position}"
        words = _NOT_WANTED if partition in unwanted else _WORDS[why]
        sentences.append(f"{partition_names([partition])} {words.format(was=was, now=now, lost=offsets)}.")
    partition, _, _, _, gone = lost[0]
    return DataLossError(
        f"[KAFKASAFE.DATA_LOSS] {' '.join(sentences)} To continue with the records that exist, start the query again"
        ' with .option("failOnDataLoss", "false"): each loss is then logged, given to onEvent, and written into the'
        " checkpoint.",
        topic=partition[0],
        partition=partition[1],
        first_offset=-1 if gone is None else gone[0],
        last_offset=-1 if gone is None else gone[1],
    )
