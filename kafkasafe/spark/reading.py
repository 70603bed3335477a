"""The code of the source's tasks. A task reads one range of one partition as Arrow batches.

A task keeps one fetch request in flight while it decodes the previous response and passes it to Spark. So the task
holds up to two responses and one decoded piece in memory. The size of a response is about `ReadOptions.fetch_bytes`, or
more if a single batch in the log is larger.

The log may be truncated between planning and reading:

1. The planner plans orders-0 up to offset 500. All planned records have leader epoch 3.
2. The leader fails. Broker B, whose log ends at 480, wins an unclean election, and producers append under epoch 4.
3. The task reads offset 480 and gets a record that differs from the planned record.

To detect records that differ from the plan, the task compares the leader epoch of each record with the epoch in the
plan. At the first difference, the task stops and reports a loss. The next plan finds the same divergence, and continues
at the offset of the first difference. The planner's own check is not enough, because the election may happen after the
check.
"""

from __future__ import annotations

import importlib
import itertools
import queue
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from kafkasafe.classification import classify
from kafkasafe.cluster.api import EARLIEST, LATEST, Cluster, Failure, RecordsFetched
from kafkasafe.cluster.inquiry import pause_s
from kafkasafe.codes.numbers import OFFSET_OUT_OF_RANGE
from kafkasafe.errors import DataLossError
from kafkasafe.events import SourceDataLost
from kafkasafe.history.epochs import UNDEFINED, Lineage
from kafkasafe.kafkapython.connect import connect
from kafkasafe.packages import pyarrow_for
from kafkasafe.record.arrow_decode import HEADERS, Decoder
from kafkasafe.record.batch import BatchHeader, CorruptBatchError, iter_headers
from kafkasafe.spark.brokers import SourceUnavailableError
from kafkasafe.spark.connections import kept
from kafkasafe.spark.notices import Notices
from kafkasafe.spark.option_values import error
from kafkasafe.spark.options import ReadOptions
from kafkasafe.spark.planner import Range

_arrow: Any = pyarrow_for("An Arrow table")
_compute: Any = importlib.import_module("pyarrow.compute")

_WAIT_MS: Final = 500
_PIECE_BYTES: Final = 8 * 1024 * 1024
_NEWEST_MS: Final = (2**63 - 1) // 1000  # Spark's type timestamp counts microseconds

COLUMNS: Final[Mapping[str, Any]] = {
    "key": _arrow.binary(),
    "value": _arrow.binary(),
    "topic": _arrow.string(),
    "partition": _arrow.int32(),
    "offset": _arrow.int64(),
    "timestamp": _arrow.timestamp("us", "UTC"),
    "timestampType": _arrow.int32(),
    "headers": HEADERS,
}
"""Spark's columns and their Arrow types."""

_DECODED: Final = {"timestampType": "timestamp_type"}


def read(options: ReadOptions, piece: Range, schema: Any, notices: Notices) -> Iterator[Any]:
    """Reads the records of a range.

    Args:
        options: Options of the reader.
        piece: The range to read.
        schema: The columns to return, as a pyarrow.Schema. Their names are keys of `COLUMNS`.
        notices: Receives the events, such as losses.

    Yields:
        Non-empty pyarrow.RecordBatch objects.

    Raises:
        DataLossError: Records of the range are lost, and `failOnDataLoss` is true.
        ConfigError: Spark cannot represent the timestamp of a record.
        SourceUnavailableError: The brokers sent nothing new for `kafkaConsumer.pollTimeoutMs`, or they sent an error
            that no retry can remedy.
    """
    rows = _Rows(piece, schema)
    for records in _Fetching(options, piece, rows.decoded, notices).run():
        yield rows.batch(records)


def read_at_once(
    transport: Cluster,
    options: ReadOptions,
    pieces: Sequence[Range],
    schema: Any,
    *,
    max_bytes: int,
    timeout_s: float,
) -> list[Any] | None:
    """Reads several small ranges. Sends one request for each range, all at the same time. If a request fails,
    `read_at_once` neither repeats it nor reports an event.

    Args:
        transport: The connections to use.
        options: Options of the reader.
        pieces: The ranges.
        schema: As for `read`.
        max_bytes: Largest size of all records together. A response may be larger, because a broker sends whole batches.
        timeout_s: How long to wait for all responses.

    Returns:
        The records as pyarrow.RecordBatch objects. If the result is None, call `read` for each range instead.
        `read_at_once` returns None for five reasons: the records are larger than `max_bytes`; a range needs more than
        one response; a response is damaged; a broker did not answer or reported an error; or a record's leader epoch is
        not the planned one.
    """
    deadline = time.monotonic() + timeout_s
    options = replace(options, fetch_bytes=min(options.fetch_bytes, max_bytes // len(pieces) + 1))
    silent = Notices(None)
    asked = []
    for piece in pieces:
        rows = _Rows(piece, schema)
        fetching = _Fetching(options, piece, rows.decoded, silent, transport)
        fetching.ask(piece.begin)
        asked.append((rows, fetching))
    found = []
    for rows, fetching in asked:
        parts = fetching.whole(deadline)
        if parts is None:
            return None
        found += [rows.batch(part) for part in parts]
    return found if sum(part.nbytes for part in found) <= max_bytes else None


def read_headers(options: ReadOptions, piece: Range, notices: Notices) -> Iterator[BatchHeader]:
    """Reads the batch headers of a range, including those of control batches. Arguments and errors are as for `read`.

    A batch belongs to the range in which it begins. So adjacent ranges yield each batch once.
    """
    for answer, _ in _Fetching(options, piece, set(), notices).answers():
        for _, header in iter_headers(answer.records):
            if piece.begin <= header.base_offset < piece.end:
                yield header


def _null_where_empty(headers: Any) -> Any:
    """Replaces empty lists of headers with null, as Spark's own source does."""
    lengths = _compute.list_value_length(headers)
    mask = _compute.equal(lengths, 0)
    return _arrow.ListArray.from_arrays(headers.offsets, headers.values, type=headers.type, mask=mask)


class _Rows:
    """Makes the rows of a range from decoded records.

    Attributes:
        decoded: The columns to decode.
    """

    def __init__(self, piece: Range, schema: Any) -> None:
        self._schema = schema
        self._place = f"{piece.topic}-{piece.partition}"
        values = {"topic": piece.topic, "partition": piece.partition}
        # The columns `topic` and `partition` have the same value in all records of a range.
        self._scalars = {
            name: _arrow.scalar(values[name], schema.field(name).type)
            for name in schema.names
            if name in values
        }
        self._made: dict[str, Any] = {}
        names = {_DECODED.get(name, name) for name in schema.names if name not in values}
        self.decoded = names | {"offset", "leader_epoch"}

    def batch(self, records: Any) -> Any:
        """Converts decoded records to a pyarrow.RecordBatch with the columns of the schema."""
        arrays = []
        for field in self._schema:
            if field.name in self._scalars:
                arrays.append(self._constant(field.name, records.num_rows))
            else:
                column = records.column(_DECODED.get(field.name, field.name))
                if field.name == "headers":
                    column = _null_where_empty(column)
                elif field.name == "timestamp":
                    self._check_times(records)
                arrays.append(column if column.type == field.type else column.cast(field.type))
        return _arrow.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _check_times(self, records: Any) -> None:
        """Raises ConfigError if Spark cannot represent the timestamp of a record."""
        times = records.column("timestamp").view(_arrow.int64()).to_numpy()
        wrong = np.flatnonzero((times > _NEWEST_MS) | (times < -_NEWEST_MS))
        if len(wrong):
            offset, time_ms = records.column("offset")[int(wrong[0])].as_py(), times[wrong[0]]
            raise error(
                "TIMESTAMP_OUT_OF_RANGE",
                f"{self._place} has a record at offset {offset} whose timestamp, {time_ms} ms, Spark's type timestamp"
                ' cannot represent: read the topic without the column timestamp, like .schema("key BINARY, value'
                ' BINARY, offset LONG").',
            )

    def _constant(self, name: str, rows: int) -> Any:
        made = self._made.get(name)
        if made is None or len(made) < rows:
            made = self._made[name] = _arrow.repeat(self._scalars[name], rows)
        return made.slice(0, rows)


def _connections(options: ReadOptions) -> Cluster:
    return kept({**options.connection, "allow_auto_create_topics": False}, connect)


class _Fetching:
    """Fetches a range from the brokers."""

    def __init__(
        self,
        options: ReadOptions,
        piece: Range,
        columns: set[str],
        notices: Notices,
        transport: Cluster | None = None,
    ) -> None:
        self._options = options
        self._piece = piece
        self._columns = columns
        self._notices = notices
        self._transport = _connections(options) if transport is None else transport
        self._lineage = Lineage.decode(piece.epochs) if piece.epochs else Lineage()
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._progress_at = time.monotonic()
        self._last_problem = ""

    def run(self) -> Iterator[Any]:
        """Yields the decoded records."""
        for answer, position in self.answers():
            for records in self._decoded(answer, position):
                if records is None:
                    return
                yield records

    def answers(self) -> Iterator[tuple[RecordsFetched, int]]:
        """Yields the brokers' responses, each with the first offset to use: a response may begin with records below
        this offset.
        """
        piece = self._piece
        position = piece.begin
        self.ask(position)
        failures = 0
        while position < piece.end:
            answer = self._answers.get()
            if isinstance(answer, Failure) or answer.error_code:
                position = self._after_error(answer, position, failures)
                failures += 1
                self.ask(position)
                continue
            if answer.diverging is not None:
                self._diverged(position, "the leader reports a divergence")
                return
            failures = 0
            if answer.next_offset <= position:
                # The leader does not have this record yet, or the record is still above the high watermark.
                self._last_problem = f"its end is {answer.high_watermark} for now"
                self._check_stall(position)
                self.ask(position)
                continue
            self._progress_at = time.monotonic()
            if answer.next_offset < piece.end:
                self.ask(answer.next_offset)
            yield answer, position
            # The time in which the caller processed the answer is not a stall of the brokers.
            self._progress_at = time.monotonic()
            position = answer.next_offset

    def ask(self, position: int) -> None:
        """Requests the records at `position` and after it."""
        epoch = self._lineage.epoch_at(position - 1) if position else None
        self._transport.fetch_records(
            self._piece.topic,
            self._piece.partition,
            position,
            self._options.fetch_bytes,
            self._answers.put,
            isolation_level=self._options.isolation,
            max_wait_ms=_WAIT_MS,
            last_fetched_epoch=UNDEFINED if epoch is None else epoch,
        )

    def whole(self, deadline: float) -> list[Any] | None:
        """Returns the decoded records of the range if a single response contains all of them; otherwise None."""
        try:
            answer = self._answers.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            return None
        if isinstance(answer, Failure) or answer.error_code or answer.diverging is not None:
            return None
        if answer.next_offset < self._piece.end:
            return None
        found = []
        try:
            for wanted, good in self._wanted(answer, self._piece.begin):
                if good < wanted.num_rows:
                    return None
                if good:
                    found.append(wanted)
        except CorruptBatchError:
            return None  # another answer may be intact
        return found

    def _decoded(self, answer: RecordsFetched, position: int) -> Iterator[Any]:
        """Decodes a response in pieces, up to the end of the range. Yields None if the log diverges from the plan."""
        for wanted, good in self._wanted(answer, position):
            if good:
                yield wanted.slice(0, good) if good < wanted.num_rows else wanted
            if good < wanted.num_rows:
                offset = int(wanted.column("offset")[good].as_py())
                self._diverged(offset, "the records have another leader epoch")
                yield None
                return

    def _wanted(self, answer: RecordsFetched, position: int) -> Iterator[tuple[Any, int]]:
        """Decodes a response in pieces, up to the end of the range.

        Yields pairs (piece, n). The first n records of the piece have the planned leader epoch. If there are more
        records in the piece, record n has another epoch.
        """
        decoder = Decoder(
            answer.records,
            from_offset=position,
            aborted=answer.aborted,
            read_committed=bool(self._options.isolation),
            columns=self._columns,
        )
        while (records := decoder.read(max_bytes=_PIECE_BYTES)) is not None:
            offsets = records.column("offset").to_numpy()
            wanted = records
            if offsets[-1] >= self._piece.end:
                wanted = records.slice(0, int(np.searchsorted(offsets, self._piece.end)))
            yield wanted, self._same(wanted)
            if wanted.num_rows < records.num_rows:
                return

    def _same(self, records: Any) -> int:
        """Counts the records before the first record whose leader epoch is not the planned one."""
        if not self._lineage.entries or not records.num_rows:
            return int(records.num_rows)
        epochs = records.column("leader_epoch").to_numpy()
        offsets = records.column("offset").to_numpy()
        begins = [0, *(np.flatnonzero(epochs[1:] != epochs[:-1]) + 1).tolist(), len(epochs)]
        for begin, end in itertools.pairwise(begins):
            for at in {begin, end - 1}:
                planned = self._lineage.epoch_at(int(offsets[at]))
                if planned not in {None, UNDEFINED, int(epochs[at])} and int(epochs[at]) != UNDEFINED:
                    return begin
        return int(records.num_rows)

    def _diverged(self, at: int, evidence: str) -> None:
        piece = self._piece
        lost = (at, piece.end - 1)
        if self._options.fail_on_data_loss:
            raise DataLossError(
                f"[KAFKASAFE.DATA_LOSS] {piece.topic}-{piece.partition} was planned to be read to {piece.end}, but"
                f" from {at} on its log now holds other records ({evidence}): an unclean leader election. Start the"
                ' query again with .option("failOnDataLoss", "false") to continue with the records that exist.',
                topic=piece.topic,
                partition=piece.partition,
                first_offset=lost[0],
                last_offset=lost[1],
            )
        # The next plan also compares epochs, and continues from the offset where the log diverges from this plan.
        self._notices.tell(SourceDataLost(piece.topic, piece.partition, "diverged", piece.begin, at, lost))

    def _after_error(self, answer: Any, position: int, failures: int) -> int:
        """Handles an error response, pauses, and returns the offset to continue from."""
        problem: Any = answer.error if isinstance(answer, Failure) else answer.error_code
        if (answer.code if isinstance(answer, Failure) else answer.error_code) == OFFSET_OUT_OF_RANGE:
            position = self._out_of_range(position)
        else:
            verdict = classify(problem, "fetch")
            self._last_problem = f"{verdict.name}: {verdict.explanation}"
            if not verdict.retriable and not isinstance(answer, Failure):
                raise SourceUnavailableError(
                    f"[KAFKASAFE.FETCH_REFUSED] {self._piece.topic}-{self._piece.partition} cannot be read:"
                    f" {self._last_problem}"
                )
        self._check_stall(position)
        time.sleep(pause_s(failures))
        return position

    def _out_of_range(self, position: int) -> int:
        piece = self._piece
        start = self._bound(EARLIEST)
        if start is None or start <= position:
            end = self._bound(LATEST)
            self._last_problem = (
                f"offset {position} is out of range, though the log reaches from {start} to {end}"
            )
            return position
        lost = (position, min(start, piece.end) - 1)
        if self._options.fail_on_data_loss:
            raise DataLossError(
                f"[KAFKASAFE.DATA_LOSS] {piece.topic}-{piece.partition}: retention or DeleteRecords removed offsets"
                f" {lost[0]} to {lost[1]} before they were read. Give the topic a longer retention, or start the"
                ' query again with .option("failOnDataLoss", "false") to continue after them.',
                topic=piece.topic,
                partition=piece.partition,
                first_offset=lost[0],
                last_offset=lost[1],
            )
        resumed_at = lost[1] + 1
        self._notices.tell(
            SourceDataLost(piece.topic, piece.partition, "retention", position, resumed_at, lost)
        )
        return resumed_at

    def _bound(self, which: int) -> int | None:
        replies: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._transport.list_offset(self._piece.topic, self._piece.partition, which, replies.put)
        answer = replies.get()
        return None if isinstance(answer, Failure) or answer.error_code else int(answer.offset)

    def _check_stall(self, position: int) -> None:
        if time.monotonic() - self._progress_at < self._options.stall_timeout_s:
            return
        piece = self._piece
        raise SourceUnavailableError(
            f"[KAFKASAFE.NO_RECORDS] {piece.topic}-{piece.partition} gave no records at offset {position} (to be read"
            f" to {piece.end}) for {self._options.stall_timeout_s:g} s: {self._last_problem}. Check that the partition"
            " has a leader that the executors can reach, or raise kafkaConsumer.pollTimeoutMs. Nothing was skipped."
        )
