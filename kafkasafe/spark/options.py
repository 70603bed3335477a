"""Options of `format("kafkasafe")`, under Spark's names. All options are checked before connecting.

Spark passes options as text and ignores the case of their names. As in Spark's connector, `kafka.*` are Kafka's own
options.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from kafkasafe.cluster.api import EARLIEST, LATEST
from kafkasafe.spark.kafka_options import kafka_options
from kafkasafe.spark.option_table import OptionTable, OptionValues, QueryOption
from kafkasafe.spark.option_values import (
    INT32,
    INT64,
    anything,
    boolean,
    duration,
    error,
    function,
    one_of,
    text,
    whole,
)


@dataclass(frozen=True, slots=True)
class Subscribe:
    """All partitions of the given topics."""

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pattern:
    """All partitions of the topics whose whole name matches a regular expression."""

    pattern: str


@dataclass(frozen=True, slots=True)
class Assign:
    """The given partitions."""

    partitions: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Offsets:
    """Offsets, each given as `EARLIEST`, `LATEST` or a number.

    Either `everywhere` holds one offset for all partitions, or `each` maps each partition to its own offset.
    """

    everywhere: int | None = None
    each: Mapping[tuple[str, int], int] | None = None


@dataclass(frozen=True, slots=True)
class Times:
    """Times in ms since the epoch. A time selects the first record that has this timestamp or a later one.

    The fields have the same meaning as in `Offsets`.
    """

    everywhere: int | None = None
    each: Mapping[tuple[str, int], int] | None = None


Bound: TypeAlias = Offsets | Times


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Validated options of a reader. Can be pickled.

    Attributes:
        connection: kafka-python's options.
        what: The partitions to read.
        starting: Where a query begins if it has no checkpoint.
        ending: Where a batch query ends (exclusive).
        time_without_record: What to do if the starting time is after the last record.
        min_partitions: Minimum number of tasks; ranges are divided to reach it. 0: one task for each partition.
        max_records: Maximum number of records for a task; 0: no limit.
        max_offsets: Maximum number of offsets in a micro-batch; 0: no limit.
        min_offsets: A micro-batch waits until this number of offsets is available; 0: micro-batches do not wait.
        max_trigger_delay_s: Maximum time that a micro-batch waits for `min_offsets`, counted from the previous
            micro-batch.
        fail_on_data_loss: Whether lost records end the query. If false, kafkasafe reports the loss and the query
            continues.
        include_headers: Whether rows have the column `headers`.
        isolation: 1 for read_committed, 0 for read_uncommitted.
        stall_timeout_s: Maximum time that a task or a plan waits while the brokers send nothing new.
        fetch_bytes: Approximate size of a fetch response.
        inline_bytes: Largest size, in bytes, of a micro-batch whose records the driver itself reads and passes to
            Spark; 0: the driver never reads records.
        on_event: `package.module:function`, called with each event; None: no function is called.
    """

    connection: Mapping[str, Any]
    what: Subscribe | Pattern | Assign
    starting: Bound
    ending: Bound
    time_without_record: Literal["error", "latest"]
    min_partitions: int
    max_records: int
    max_offsets: int
    min_offsets: int
    max_trigger_delay_s: float
    fail_on_data_loss: bool
    include_headers: bool
    isolation: int
    stall_timeout_s: float
    fetch_bytes: int
    inline_bytes: int
    on_event: str | None


_WHAT: Final = ("subscribe", "subscribePattern", "assign")
_LEVELS: Final = ("read_uncommitted", "read_committed")

FETCH_BYTES: Final = 4 * 1024 * 1024
STALL_TIMEOUT_MS: Final = 120_000
INLINE_BYTES: Final = 1024 * 1024

SOURCE: Final = OptionTable(
    'format("kafkasafe") for reading',
    QueryOption(
        "subscribe",
        text,
        help="Topics, separated by commas. Give exactly one of `subscribe`, `subscribePattern` and `assign`. The topics"
        " must exist.",
    ),
    QueryOption(
        "subscribePattern",
        text,
        help="A regular expression (Python's) for whole names of topics. If it matches no topic, a batch query reads"
        " no rows, and a stream waits.",
    ),
    QueryOption(
        "assign", text, help='Partitions, as JSON such as `{"orders":[0,1]}`. The partitions must exist.'
    ),
    QueryOption(
        "startingOffsets",
        text,
        shown="`latest`; batch `earliest`",
        help='or JSON for all partitions: `{"orders":{"0":23,"1":-2}}` (-2 earliest, -1 latest)',
    ),
    QueryOption(
        "startingTimestamp",
        whole(),
        help="Begin with the first record at or after this time (ms since the epoch). This option"
        " overrides `startingOffsetsByTimestamp`, which overrides `startingOffsets`.",
    ),
    QueryOption(
        "startingOffsetsByTimestamp",
        text,
        help='such times for all partitions, as JSON: `{"orders":{"0":1735689600000}}`',
    ),
    QueryOption(
        "startingOffsetsByTimestampStrategy",
        one_of("error", "latest"),
        "error",
        help="what to do about partitions without a record at or after the starting time: raise an error, or begin at"
        " their end",
    ),
    QueryOption(
        "endingOffsets",
        text,
        shown="`latest`",
        help="as `startingOffsets`. Batch queries only. An end before the start is an error.",
    ),
    QueryOption("endingTimestamp", whole(), help="as `startingTimestamp`. Batch queries only."),
    QueryOption(
        "endingOffsetsByTimestamp", text, help="as `startingOffsetsByTimestamp`. Batch queries only."
    ),
    QueryOption(
        "maxOffsetsPerTrigger",
        whole(1),
        0,
        shown="all",
        help="the largest number of offsets in a micro-batch, including offsets of transaction markers and of"
        " records that compaction removed. Like `trigger(availableNow=True)`, the option needs PySpark 4.2 or later.",
    ),
    QueryOption(
        "minOffsetsPerTrigger",
        whole(1),
        0,
        shown="none",
        help="A micro-batch begins only when this number of offsets is available, or `maxTriggerDelay` after the"
        " previous micro-batch. The first micro-batch of a run does not wait. The option needs PySpark 4.2 or later."
        " As in Spark's connector, the option has no effect with `availableNow` and `once`.",
    ),
    QueryOption(
        "maxTriggerDelay",
        duration,
        900.0,
        shown="`15m`",
        help="how long a micro-batch waits for `minOffsetsPerTrigger`, counted from the previous micro-batch",
    ),
    QueryOption(
        "minPartitions",
        whole(1, 1_000_000),
        0,
        shown="one task per partition",
        help="The source divides ranges of offsets, so that a micro-batch has at least this number of tasks.",
    ),
    QueryOption(
        "maxRecordsPerPartition",
        whole(1),
        0,
        shown="no limit",
        help="The source divides ranges of offsets, so that no task has more than this number of offsets.",
    ),
    QueryOption(
        "failOnDataLoss",
        boolean,
        True,
        help="`true` ends the query when records are lost; `false` reports the loss and continues"
        " ([details](spark-guarantees.md#the-source))",
    ),
    QueryOption("includeHeaders", boolean, False, help="whether rows have the column `headers`"),
    QueryOption(
        "isolationLevel",
        one_of(*_LEVELS),
        shown="`read_uncommitted`",
        help="`read_committed` reads up to the last stable offset, and leaves out aborted records",
    ),
    QueryOption(
        "kafka.isolation.level", one_of(*_LEVELS), _LEVELS[0], help="another name for `isolationLevel`"
    ),
    QueryOption(
        "kafkaConsumer.pollTimeoutMs",
        whole(1, INT32),
        STALL_TIMEOUT_MS,
        help="how long a task, or the planning on the driver, waits for a usable answer from the brokers",
    ),
    QueryOption(
        "kafka.max.partition.fetch.bytes",
        whole(1, INT32),
        FETCH_BYTES,
        shown="4 MiB",
        help="size of a Fetch response. A task needs memory for two responses, and for one decoded piece of about"
        " 8 MiB.",
    ),
    QueryOption(
        "kafka.fetch.max.bytes",
        whole(1, INT32),
        INT32,
        shown="",
        help="an upper bound for `kafka.max.partition.fetch.bytes`",
    ),
    QueryOption(
        "inlineBytes",
        whole(0, 64 * 1024 * 1024),
        INLINE_BYTES,
        shown="1 MiB",
        help="Largest micro-batch, in bytes, whose records the driver itself reads; a single task then gets all"
        " records ([below](#small-micro-batches)); 0: never. The option needs PySpark 4.2 or later.",
    ),
    QueryOption(
        "onEvent",
        function,
        help="The source calls this function with each event, in the process that noticed it.",
    ),
    QueryOption("kafka.fetch.min.bytes", whole(1, INT32)),
    QueryOption("kafka.fetch.max.wait.ms", whole(0, INT32)),
    QueryOption("kafka.group.id", text, help="accepted without effect, as the source has no consumer group"),
    QueryOption(
        "groupIdPrefix", anything, help="accepted without effect, as the source has no consumer group"
    ),
    QueryOption("fetchOffset.numRetries", whole()),
    QueryOption("fetchOffset.retryIntervalMs", whole()),
)
"""The options of a reader, except those of the connection."""


def read_options(options: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    """Checks and converts the options of a reader.

    Args:
        options: The options as given by the user.
        streaming: Whether the options are for a streaming query, which begins at "latest" by default and has no end.

    Raises:
        ConfigError: An option is unknown, missing, invalid, or contradicts another one.
    """
    SOURCE.check_known(options)
    connection, kafka = kafka_options(options, SOURCE)
    given = SOURCE.values(options)
    level = given["isolationLevel"]
    if level is not None and "kafka.isolation.level" in kafka and kafka["kafka.isolation.level"] != level:
        raise error(
            "INVALID_OPTION", "isolationLevel and kafka.isolation.level contradict each other: give only one."
        )
    what = _what(given)
    if streaming and (
        ending := given.first_given("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
    ):
        raise error(
            "INVALID_OPTION",
            f"{ending} is for batch queries: for a streaming query that ends, use trigger(availableNow=True).",
        )
    if not streaming and (
        limit := given.first_given("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
    ):
        raise error("INVALID_OPTION", f"{limit} is for streaming queries: use endingOffsets.")
    max_offsets = given["maxOffsetsPerTrigger"]
    min_offsets = given["minOffsetsPerTrigger"]
    if 0 < max_offsets < min_offsets:
        raise error(
            "INVALID_OPTION",
            "minOffsetsPerTrigger is above maxOffsetsPerTrigger, so no batch could satisfy both: correct one of them.",
        )
    for name in ("fetchOffset.numRetries", "fetchOffset.retryIntervalMs"):
        _ = given[name]  # no effect, but an invalid value is still an error
    starting = _bound(given, "starting", LATEST if streaming else EARLIEST)
    ending_bound = _bound(given, "ending", LATEST)
    if not streaming:
        _refuse(starting, LATEST, "startingOffsets", "latest", "there would be nothing to read")
        _refuse(ending_bound, EARLIEST, "endingOffsets", "earliest", "there would be nothing to read")
    return ReadOptions(
        connection=connection,
        what=what,
        starting=starting,
        ending=ending_bound,
        time_without_record=given["startingOffsetsByTimestampStrategy"],
        min_partitions=given["minPartitions"],
        max_records=given["maxRecordsPerPartition"],
        max_offsets=max_offsets,
        min_offsets=min_offsets,
        max_trigger_delay_s=given["maxTriggerDelay"],
        fail_on_data_loss=given["failOnDataLoss"],
        include_headers=given["includeHeaders"],
        isolation=int((level or kafka["kafka.isolation.level"]) == _LEVELS[1]),
        stall_timeout_s=given["kafkaConsumer.pollTimeoutMs"] / 1000,
        fetch_bytes=min(kafka["kafka.max.partition.fetch.bytes"], kafka["kafka.fetch.max.bytes"]),
        inline_bytes=given["inlineBytes"],
        on_event=given["onEvent"],
    )


def _what(given: OptionValues) -> Subscribe | Pattern | Assign:
    named = [name for name in _WHAT if name in given]
    if len(named) != 1:
        which = f"{' and '.join(named)} are given" if named else "None of them is given"
        raise error(
            "INVALID_OPTION",
            f"One of subscribe (topics), subscribePattern (a regular expression) and assign (partitions) says what"
            f' to read. {which}: give exactly one, like .option("subscribe", "orders,payments").',
        )
    value = given[named[0]]
    if named[0] == "subscribe":
        topics = tuple(dict.fromkeys(topic.strip() for topic in value.split(",") if topic.strip()))
        if not topics:
            raise error(
                "INVALID_OPTION", f"subscribe is {value!r}: it must be a list of topics like orders,payments."
            )
        return Subscribe(topics)
    if named[0] == "subscribePattern":
        try:
            with warnings.catch_warnings():
                # Python warns about nested character sets, which have another meaning in Java's regular expressions.
                warnings.simplefilter("error", FutureWarning)
                re.compile(value)
        except (re.error, FutureWarning) as wrong:
            raise error(
                "INVALID_OPTION",
                f"subscribePattern {value!r} is not a Python regular expression: {wrong}. Use Python's syntax, which"
                " differs from Java's in places.",
            ) from None
        return Pattern(value)
    shape = '{"orders":[0,1]}'
    found = _json("assign", value, shape)
    partitions: dict[tuple[str, int], None] = {}
    for topic, numbers in found.items():
        for number in numbers if isinstance(numbers, list) else [None]:
            if type(number) is not int or number < 0:
                raise error("INVALID_OPTION", f"assign is {value!r}: it must be JSON like {shape}.")
            partitions[topic, number] = None
    if not partitions:
        raise error(
            "INVALID_OPTION", f"assign is {value!r}, which names no partition: give JSON like {shape}."
        )
    return Assign(tuple(partitions))


def _bound(given: OptionValues, which: str, default: int) -> Bound:
    """Parses the options of one bound. `which` is `starting` or `ending`.

    If several options are given, Spark's precedence applies. A single time for all partitions overrides separate times
    for each partition. A time overrides an offset.
    """
    moment = given[f"{which}Timestamp"]
    if moment is not None:
        return Times(everywhere=moment)
    name = f"{which}OffsetsByTimestamp"
    moments = given[name]
    if moments is not None:
        return Times(each=_by_partition(name, moments, '{"orders":{"0":1735689600000}}', least=0))
    name = f"{which}Offsets"
    value = given[name]
    if value is None:
        return Offsets(everywhere=default)
    word = {"earliest": EARLIEST, "latest": LATEST}.get(value.lower())
    if word is not None:
        return Offsets(everywhere=word)
    return Offsets(
        each=_by_partition(
            name,
            value,
            '{"orders":{"0":23,"1":-1},"payments":{"0":-2}} (-2 earliest, -1 latest), or the word earliest or latest',
            least=EARLIEST,
        )
    )


def _refuse(bound: Bound, special: int, name: str, word: str, why: str) -> None:
    if isinstance(bound, Offsets) and (bound.everywhere == special or special in (bound.each or {}).values()):
        raise error("INVALID_OPTION", f"{name} cannot be {word} ({special}) in a batch query: {why}.")


def _by_partition(name: str, value: str, shape: str, *, least: int) -> dict[tuple[str, int], int]:
    found: dict[tuple[str, int], int] = {}
    for topic, numbers in _json(name, value, shape).items():
        for partition, number in numbers.items() if isinstance(numbers, dict) else [("", None)]:
            if not (partition.isdecimal() and type(number) is int and least <= number <= INT64):
                raise error(
                    "INVALID_OPTION",
                    f"{name} is {value!r}: it must be JSON like {shape}.",
                )
            if (topic, int(partition)) in found:  # as "0" and "00"
                raise _not_like(name, value, shape)
            found[topic, int(partition)] = number
    if not found:
        raise error(
            "INVALID_OPTION", f"{name} is {value!r}, which names no partition: give JSON like {shape}."
        )
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Makes a dict from a JSON object, and rejects repeated names. Python's own parser silently drops the first value
    of a repeated name.
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name is there twice")
    return found


def _json(name: str, value: str, shape: str) -> dict[str, Any]:
    try:
        found = json.loads(value, object_pairs_hook=_once)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise _not_like(name, value, shape)
    return found


def _not_like(name: str, value: str, shape: str) -> Exception:
    return error(
        "INVALID_OPTION", f"{name} is {value!r}: it must be JSON like {shape}, and name nothing twice."
    )
