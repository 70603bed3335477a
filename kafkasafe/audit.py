"""Count the records in the log of a topic to check that none is missing or repeated, as Uber's Chaperone does.

`audit` always counts the sequence numbers of idempotent producers, for which it reads only batch headers. With `ids`,
`audit` also counts ids that the records themselves contain. `audit` counts in this process or, for large topics, in
tasks of a SparkSession.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kafkasafe.cluster.api import EARLIEST, LATEST
from kafkasafe.errors import ConfigError, UsageError
from kafkasafe.history.audit import IdCount, Producer, SequenceRun, judge, runs
from kafkasafe.packages import pyarrow_for
from kafkasafe.spark.connections import close_connections
from kafkasafe.spark.notices import Notices
from kafkasafe.spark.options import FETCH_BYTES, Offsets, ReadOptions, Subscribe
from kafkasafe.spark.planner import Planner, Range
from kafkasafe.spark.reading import COLUMNS, read, read_headers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "PLOTS",
    "Audit",
    "IdCount",
    "IdSource",
    "NoSuchTopicError",
    "PartitionAudit",
    "audit",
    "draw",
]

_arrow: Any = pyarrow_for("kafkasafe.audit")

MAX_IDS: Final = 5_000_000
"""Largest number of distinct ids that are counted without Spark, in a few hundred megabytes of memory."""
_EXAMPLES: Final = 10
_DIGITS: Final = 4000
"""An id with more digits than this does not count as a number, because Python refuses to convert very long numbers."""
PLOTS: Final = (".png", ".svg", ".pdf", ".html")
"""File name suffixes that `draw` accepts."""


class NoSuchTopicError(UsageError):
    """The cluster does not have the topic."""


@dataclass(frozen=True, slots=True)
class IdSource:
    """Where a record carries its id.

    Attributes:
        kind: `key`, `value`, `header` or `json`.
        name: Name of the header; or name of the field, if the value is a JSON object.
    """

    kind: str
    name: str = ""

    @classmethod
    def parse(cls, text: str) -> IdSource:
        """Parse one of the texts `key`, `value`, `header:NAME` and `json:FIELD`.

        Raises:
            ConfigError: The text is not one of these.
        """
        kind, _, name = text.partition(":")
        if (kind in {"key", "value"} and not name) or (kind in {"header", "json"} and name):
            return cls(kind, name)
        raise ConfigError(
            f"{text!r} does not name the place of an id: give key, value, header:NAME or json:FIELD"
        )

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}" if self.name else self.kind

    @property
    def column(self) -> str:
        """Name of the column that holds the id."""
        return {"key": "key", "header": "headers"}.get(self.kind, "value")

    def of(self, records: Any) -> list[str | None]:
        """Return the ids of the records in a pyarrow.RecordBatch that contains `column`; None for a record without an
        id.
        """
        column = records.column(self.column).to_pylist()
        match self.kind:
            case "header":
                return [_header(headers, self.name) for headers in column]
            case "json":
                return [_json_field(value, self.name) for value in column]
            case _:
                return [None if value is None else _text(value) for value in column]


@dataclass(frozen=True, slots=True)
class PartitionAudit:
    """The counts of one partition.

    Attributes:
        partition: Partition number.
        log_start: First offset of the log.
        log_end: End offset of the log (exclusive).
        producers: Counts by producer id. The key -1 stands for all producers without idempotence.
    """

    partition: int
    log_start: int
    log_end: int
    producers: Mapping[int, Producer]


@dataclass(frozen=True, slots=True)
class Audit:
    """The counts of a topic.

    Attributes:
        topic: Topic name.
        partitions: The counts of each partition.
        ids: The count of the records' ids; None if they were not counted.
    """

    topic: str
    partitions: Sequence[PartitionAudit]
    ids: IdCount | None = None

    @property
    def records(self) -> int:
        """Number of records in the log, including those of aborted transactions."""
        return sum(producer.records for part in self.partitions for producer in part.producers.values())

    @property
    def missing(self) -> int:
        """Number of sequence numbers that are missing from the log."""
        return sum(p.missing_records for part in self.partitions for p in part.producers.values())

    @property
    def repeated(self) -> int:
        """Number of sequence numbers that are repeated in the log."""
        return sum(p.repeated_records for part in self.partitions for p in part.producers.values())

    @property
    def whole(self) -> bool:
        """Whether the counts show that nothing is missing and nothing is repeated."""
        ids = self.ids
        return not (self.missing or self.repeated or (ids and (ids.repeated or ids.missing)))

    def as_dict(self) -> dict[str, Any]:
        """Return the counts as objects that JSON can represent."""
        return {
            "topic": self.topic,
            "whole": self.whole,
            "records": self.records,
            "missing_sequences": self.missing,
            "repeated_sequences": self.repeated,
            "partitions": [
                {
                    "partition": part.partition,
                    "log_start": part.log_start,
                    "log_end": part.log_end,
                    "producers": [_producer_dict(producer) for producer in part.producers.values()],
                }
                for part in self.partitions
            ],
            "ids": None if self.ids is None else {**asdict(self.ids), "repeated": self.ids.repeated},
        }


def audit(
    topic: str,
    connection: Mapping[str, Any],
    *,
    ids: IdSource | None = None,
    committed: bool = False,
    timeout_s: float = 120.0,
    spark: SparkSession | None = None,
    on_progress: Callable[[float, float], None] = lambda _done, _total: None,
) -> Audit:
    """Count the records of a topic, from the first one to the current end of the log.

    Args:
        topic: Topic name.
        connection: kafka-python's connection options.
        ids: Where each record carries an id. If given, the ids are counted as well.
        committed: Whether to count the ids of committed records only. The count of sequence numbers always includes the
            records of aborted transactions.
        timeout_s: Give up if the brokers send nothing new for this many seconds.
        spark: Run the count as tasks of this SparkSession.
        on_progress: Called with (number of offsets counted so far, number of all offsets). Not called with Spark.

    Raises:
        NoSuchTopicError: The cluster does not have the topic, even after `timeout_s`.
        UsageError: There are too many distinct ids to count them without Spark (`MAX_IDS`).
        KafkaError: The brokers do not answer, or the log was truncated during the count.
    """
    options = _whole_log(
        topic,
        connection,
        min_partitions=0 if spark is None else 2 * spark.sparkContext.defaultParallelism,
        include_headers=ids is not None and ids.kind == "header",
        stall_timeout_s=timeout_s,
    )
    notices = Notices(None)
    pieces, bounds = _planned(topic, options, notices)
    counted = None
    if spark is not None:
        from kafkasafe.spark.audit import count_ids, find_runs

        found = find_runs(spark, options, pieces)
        if ids is not None:
            counted = count_ids(spark, options, ids, committed=committed)
    else:
        try:
            found = _find_runs(options, pieces, notices, on_progress)
            if ids is not None:
                if committed:
                    # Leave out the records of open transactions: it is not decided yet whether they will be committed.
                    options = replace(options, isolation=1)
                    pieces, _ = _planned(topic, options, notices)
                counted = _count_ids(options, pieces, ids)
        finally:
            close_connections()
    partitions = [
        PartitionAudit(number, start, end, judge(found.get(number, []), start))
        for (_, number), (start, end) in sorted(bounds.items())
    ]
    return Audit(topic, partitions, counted)


def _whole_log(
    topic: str,
    connection: Mapping[str, Any],
    *,
    min_partitions: int,
    include_headers: bool,
    stall_timeout_s: float,
) -> ReadOptions:
    """The options with which the Spark source reads a whole topic, including aborted transactions."""
    return ReadOptions(
        connection=dict(connection),
        what=Subscribe((topic,)),
        starting=Offsets(everywhere=EARLIEST),
        ending=Offsets(everywhere=LATEST),
        time_without_record="latest",
        min_partitions=min_partitions,
        max_records=0,
        max_offsets=0,
        min_offsets=0,
        max_trigger_delay_s=0.0,
        fail_on_data_loss=True,
        include_headers=include_headers,
        isolation=0,
        stall_timeout_s=stall_timeout_s,
        fetch_bytes=FETCH_BYTES,
        inline_bytes=0,
        on_event=None,
    )


def _planned(
    topic: str, options: ReadOptions, notices: Notices
) -> tuple[Sequence[Range], Mapping[tuple[str, int], tuple[int, int]]]:
    """The ranges to read, and the start and end of each partition's log."""
    planner = Planner(options, notices)
    try:
        return planner.batch(), planner.bounds()
    except ConfigError as error:
        if "[KAFKASAFE.TOPIC_NOT_FOUND]" not in str(error):
            raise
        raise NoSuchTopicError(f"The cluster does not have the topic {topic}") from error
    finally:
        planner.close()


def _find_runs(
    options: ReadOptions,
    pieces: Sequence[Range],
    notices: Notices,
    on_progress: Callable[[float, float], None],
) -> dict[int, list[SequenceRun]]:
    total = sum(piece.end - piece.begin for piece in pieces)
    done = 0
    found: dict[int, list[SequenceRun]] = {}
    for piece in pieces:
        found.setdefault(piece.partition, []).extend(runs(read_headers(options, piece, notices)))
        done += piece.end - piece.begin
        on_progress(done, total)
    return found


def _count_ids(options: ReadOptions, pieces: Sequence[Range], ids: IdSource) -> IdCount:
    counts: Counter[str | None] = Counter()
    for found in _ids(options, pieces, ids):
        counts.update(found)
        if len(counts) > MAX_IDS:
            raise UsageError(f"There are more than {MAX_IDS:,} distinct ids: count them with Spark (--spark)")
    without = counts.pop(None, 0)
    named: Counter[str] = Counter({name: count for name, count in counts.items() if name is not None})
    examples = [(name, count) for name, count in named.most_common(_EXAMPLES) if count > 1]
    return IdCount(str(ids), named.total(), without, len(named), _missing(named) if named else None, examples)


def _ids(options: ReadOptions, pieces: Sequence[Range], ids: IdSource) -> Iterator[list[str | None]]:
    schema = _arrow.schema([_arrow.field(ids.column, COLUMNS[ids.column])])
    for piece in pieces:
        for records in read(options, piece, schema, Notices(None)):
            yield ids.of(records)


def _missing(names: Iterable[str]) -> int | None:
    """Return how many numbers are missing between the smallest and the largest id; None if an id is not a number."""
    numbers = set()
    for name in names:
        if not name.removeprefix("-").isdecimal() or len(name) > _DIGITS:
            return None
        numbers.add(int(name))
    return max(numbers) - min(numbers) + 1 - len(numbers)


def _text(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")


def _header(headers: Sequence[Mapping[str, Any]] | None, name: str) -> str | None:
    for header in headers or ():
        if header["key"] == name and header["value"] is not None:
            return _text(header["value"])
    return None


def _json_field(value: bytes | None, name: str) -> str | None:
    try:
        found = json.loads(value or b"null")
    except (ValueError, RecursionError):
        return None
    entry = found.get(name) if isinstance(found, dict) else None
    if entry is None or isinstance(entry, (dict, list)):
        return None
    return entry if isinstance(entry, str) else json.dumps(entry)


def _producer_dict(producer: Producer) -> dict[str, Any]:
    report = asdict(producer)
    report["gaps"] = [{**asdict(gap), "records": gap.records} for gap in producer.gaps]
    report["repeats"] = [{**asdict(repeat), "records": repeat.records} for repeat in producer.repeats]
    return {
        **report,
        "missing_records": producer.missing_records,
        "repeated_records": producer.repeated_records,
    }


def draw(found: Audit, path: Path) -> None:
    """Draw the log of each partition, with the offsets of each producer and the missing and repeated records.

    Args:
        found: The counts.
        path: File to write: .png, .svg or .pdf; .html for a page with an SVG.

    Raises:
        UsageError: matplotlib is not installed, or the suffix of the file is unknown.
        OSError: The file could not be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UsageError("A plot needs matplotlib: pip install 'kafkasafe[plot]'") from None
    kind = path.suffix.lower().removeprefix(".")
    if f".{kind}" not in PLOTS:
        raise UsageError(f"{path} must end in {', '.join(PLOTS)}")
    lanes = [(part, producer) for part in found.partitions for producer in part.producers.values()]
    figure = Figure(figsize=(10, max(2.0, 0.35 * len(lanes) + 1.2)), layout="constrained")
    axes = figure.subplots()
    for row, (_, producer) in enumerate(lanes):
        length = producer.last_offset - producer.first_offset + 1
        axes.barh(row, length, left=producer.first_offset, height=0.5, color="#8fb8de")
        # Missing records have no offsets, so mark each gap at the offset of the first record after it.
        gaps = [gap.before_offset for gap in producer.gaps]
        again = [repeat.at_offset for repeat in producer.repeats]
        axes.scatter(gaps, [row] * len(gaps), marker="|", s=160, color="#c0392b", zorder=3)
        axes.scatter(again, [row] * len(again), marker="x", s=40, color="#e67e22", zorder=3)
    names = [
        f"{part.partition} / {'no id' if producer.producer_id < 0 else producer.producer_id}"
        for part, producer in lanes
    ]
    axes.set_yticks(range(len(lanes)), names)
    axes.invert_yaxis()
    axes.set_xlabel("offset")
    axes.set_ylabel("partition / producer id")
    axes.set_title(
        f"{found.topic}: {found.records:,} records, {found.missing:,} sequences missing (red),"
        f" {found.repeated:,} repeated (orange)"
    )
    if kind != "html":
        figure.savefig(path)
        return
    import html
    import io

    image = io.StringIO()
    figure.savefig(image, format="svg")
    title = html.escape(f"Audit of {found.topic}")
    path.write_text(
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><body><h1>{title}</h1>'
        f"{image.getvalue()[image.getvalue().index('<svg') :]}"
        f"<pre>{html.escape(json.dumps(found.as_dict(), indent=1))}</pre></body></html>",
        encoding="utf-8",
    )
