"""Options of the sink, under the names of Spark's Kafka sink and of Delta. All options are checked before
connecting.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kafkasafe.errors import ConfigError
from kafkasafe.record.batch import Compression
from kafkasafe.spark.kafka_options import kafka_options
from kafkasafe.spark.option_table import OptionTable, QueryOption
from kafkasafe.spark.option_values import INT32, anything, boolean, error, one_of, text, whole


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Validated options of a sink. Can be pickled.

    Attributes:
        connection: kafka-python's options.
        topic: Topic for all rows; None: the column `topic` holds the topic of each row.
        app_id: `txnAppId`; None: derived from the query's id and the topic.
        version: `txnVersion`, which a batch query uses in place of a batch id; None: it was not given.
        strict: Whether a marker that does not fit the checkpoint is an error (`onMarkerMismatch`).
        marker_topic: Compacted topic that stores the markers.
        exchange: Whether Spark moves rows between tasks before they are sent; None: the columns, the number of
            partitions and Spark's speculation decide.
        max_restarts: Maximum number of restarts of a micro-batch's transaction.
        compression: Compression codec of the batches.
        compression_level: Level of the codec; None: the codec's default.
        batch_bytes: Maximum size of a batch before compression.
        max_record_bytes: Maximum size of a record.
        buffer_bytes: Maximum number of bytes that a task buffers if brokers are slower than the task.
        delivery_timeout_s: Maximum time to deliver a batch.
        request_timeout_ms: Maximum time for a broker to answer a request.
        transaction_timeout_ms: Time after which the cluster aborts the transaction of a dead driver.
        api_timeout_s: Maximum time for a step of the driver.
        inline_bytes: Maximum total size of the batches that one task sends directly to the driver.
        staging_topic: Topic to which a writer's task writes its batches if they are larger than `inline_bytes`.
    """

    connection: Mapping[str, Any]
    topic: str | None
    app_id: str | None
    version: int | None
    strict: bool
    marker_topic: str
    exchange: bool | None
    max_restarts: int
    compression: Compression
    compression_level: int | None
    batch_bytes: int
    max_record_bytes: int
    buffer_bytes: int
    delivery_timeout_s: float
    request_timeout_ms: int
    transaction_timeout_ms: int
    api_timeout_s: float
    inline_bytes: int
    staging_topic: str

    @property
    def servers(self) -> str:
        """The bootstrap servers as text, for messages."""
        return ",".join(self.connection["bootstrap_servers"])

    def no_broker(self, who: str, failed: BaseException) -> ConfigError:
        """Creates the error for a cluster that does not answer. `who` is "the driver" or "executors"."""
        return error(
            "NO_BROKER",
            f"No broker of kafka.bootstrap.servers={self.servers} answered within {self.api_timeout_s:g} s"
            f" ({failed}): check host and port, kafka.security.protocol, and that {who} can reach the brokers.",
        )


def unknown_topic(topic: str) -> ConfigError:
    """Creates the error for a topic that does not exist."""
    return error(
        "UNKNOWN_TOPIC", f"Topic {topic!r} does not exist and the brokers do not create it: create it."
    )


SINK: Final = OptionTable(
    "the kafkasafe sink",
    QueryOption(
        "topic",
        text,
        help="or the first argument of `foreach_batch_sink` and `write_batch`. Without this option, the column `topic`"
        " names the topic of each row.",
    ),
    QueryOption(
        "txnAppId",
        text,
        shown="query id and topic",
        help="names the marker. Set this option with Spark Connect, and for a second sink on the same topic in one"
        " query.",
    ),
    QueryOption("txnVersion", whole(0, 2**53), help="batch jobs only, with `txnAppId`"),
    QueryOption(
        "onMarkerMismatch",
        one_of("fail", "accept"),
        "fail",
        help="with `accept` the sink writes even if marker and checkpoint do not match"
        " ([repair](spark-operations.md#when-marker-and-checkpoint-do-not-match))",
    ),
    QueryOption(
        "markerTopic",
        text,
        "kafkasafe-spark-markers",
        help="created if missing: compacted, with the brokers' default replication",
    ),
    QueryOption(
        "exchange",
        one_of("auto", "always", "never"),
        "auto",
        help="whether rows without a fixed partition go through a shuffle before they are sent: `always`, `never`, or"
        " as the sink chooses ([below](#how-rows-reach-their-partitions)). The writer ignores this option.",
    ),
    QueryOption(
        "maxRestarts",
        whole(0, 1000),
        5,
        help="how many times the sink may begin a new transaction for one micro-batch",
    ),
    QueryOption(
        "kafka.compression.type",
        one_of("none", "gzip", "snappy", "lz4", "zstd"),
        "none",
        help="must be the topic's compression, if the topic has one configured",
    ),
    QueryOption("kafka.compression.gzip.level", whole(-1, 9), shown="the codec's", help="level of `gzip`"),
    QueryOption("kafka.compression.lz4.level", whole(1, 17), shown="the codec's", help="level of `lz4`"),
    QueryOption(
        "kafka.compression.zstd.level", whole(-131072, 22), shown="the codec's", help="level of `zstd`"
    ),
    QueryOption(
        "kafka.batch.size",
        whole(1, INT32),
        900_000,
        help="largest batch in bytes, before compression. Set this option below the topic's `max.message.bytes`:"
        " larger batches are divided, which takes time.",
    ),
    QueryOption("kafka.max.request.size", whole(1, INT32), 1_048_576, help="largest record"),
    QueryOption(
        "kafka.buffer.memory",
        whole(1, INT32),
        16 * 1024 * 1024,
        help="how many bytes of encoded batches a task holds while brokers are slow",
    ),
    QueryOption(
        "kafka.transaction.timeout.ms",
        whole(1000, INT32),
        600_000,
        help="at most the brokers' `transaction.max.timeout.ms` (15 minutes)",
    ),
    QueryOption(
        "kafka.delivery.timeout.ms", whole(1, INT32), 120_000, help="time limit for one batch of records"
    ),
    QueryOption("kafka.max.block.ms", whole(1, INT32), 60_000, help="time limit for one step of the driver"),
    QueryOption(
        "kafka.default.api.timeout.ms",
        whole(1, INT32),
        60_000,
        help="another name for `kafka.max.block.ms`, which overrides it",
    ),
    QueryOption(
        "inlineBytes",
        whole(0, 256 * 1024 * 1024),
        1024 * 1024,
        help="The writer: up to this size, a task's encoded batches go to the driver in the task's commit message. The"
        " sink: if the previous micro-batch was smaller than this size, the tasks return their rows or batches to the"
        " driver. A task returns encoded batches up to this size, or rows up to twice this size"
        " ([below](#how-rows-reach-their-partitions)); 0: never. From the 65th task on, the limit is at most 64 KiB per"
        " task. The returned data uses the driver's memory, and counts towards `spark.driver.maxResultSize`.",
    ),
    QueryOption(
        "stagingTopic",
        text,
        "kafkasafe-spark-staging",
        help="for the writer only. Created when it is first needed: 8 partitions, the brokers' default replication,"
        " `retention.ms` 6 h, LogAppendTime. If you create the topic by hand, set `cleanup.policy=delete`, a retention"
        " longer than a micro-batch takes, and `max.message.bytes` above `kafka.batch.size`.",
    ),
    QueryOption("mode", text, "transaction", help="`transaction` is the only mode"),
    QueryOption(
        "includeHeaders",
        boolean,
        shown="",
        help="accepted without effect: the headers are written if there is a column `headers`",
    ),
    QueryOption("kafka.acks", text, "all", help="only `all`"),
    QueryOption("kafka.enable.idempotence", boolean, True, help="only `true`, because transactions need it"),
    QueryOption("kafka.linger.ms", anything),
    QueryOption("kafka.retries", anything),
    QueryOption("kafka.max.in.flight.requests.per.connection", anything),
    QueryOption("kafka.transactional.id", anything, refused="set txnAppId, which names the transactions"),
    QueryOption("kafka.isolation.level", anything, refused="set it for readers instead, to read_committed"),
    QueryOption(
        "kafka.partitioner.class",
        anything,
        refused="use the column partition, or leave the choice to Kafka's own hash of the key",
    ),
)
"""The options of a sink or a writer, except those of the connection."""


def sink_options(options: Mapping[str, Any]) -> SinkOptions:
    """Checks and converts the options of a sink.

    Args:
        options: Options by Spark's names, which are not case-sensitive. The options' values are text, numbers or
            booleans.

    Raises:
        ConfigError: An option is unknown (the message names the most similar one), invalid, or missing.
    """
    given = {name: _as_text(name, value) for name, value in options.items() if value is not None}
    SINK.check_known(given)
    own = SINK.values(given)
    own.check()
    connection, kafka = kafka_options(given, SINK)
    for name, row in SINK.rows.items():
        if row.refused and name in kafka:
            raise error("FORBIDDEN_OPTION", f"{name} cannot be set: {row.refused}.")
    if str(kafka["kafka.acks"]) not in {"all", "-1"}:
        raise error("FORBIDDEN_OPTION", "kafka.acks must be all for exactly-once delivery: leave it out.")
    if not kafka["kafka.enable.idempotence"]:
        raise error(
            "FORBIDDEN_OPTION",
            "kafka.enable.idempotence cannot be false, because transactions need it: leave it out.",
        )
    if (mode := own["mode"]) != "transaction":
        raise error("INVALID_OPTION", f"mode is {mode!r}: use 'transaction', the only mode of this version.")
    batch_bytes = kafka["kafka.batch.size"]
    max_record_bytes = kafka["kafka.max.request.size"]
    compression = Compression[kafka["kafka.compression.type"].upper()]
    level = f"kafka.compression.{compression.name.lower()}.level"
    timeout = kafka.first_given("kafka.max.block.ms", "kafka.default.api.timeout.ms") or "kafka.max.block.ms"
    # A request carries at least one batch, so a request must have room for the largest batch.
    connection.setdefault("max_request_size", max(max_record_bytes, batch_bytes))
    return SinkOptions(
        connection=connection,
        topic=own["topic"],
        app_id=own["txnAppId"],
        version=own["txnVersion"],
        strict=own["onMarkerMismatch"] == "fail",
        marker_topic=own["markerTopic"],
        exchange={"always": True, "never": False}.get(own["exchange"]),
        max_restarts=own["maxRestarts"],
        compression=compression,
        compression_level=kafka[level] if level in SINK.rows else None,
        # Each batch is sent in a request of its own, so batches are large here. The Java producer's default of 16 kB
        # suits records that are sent one by one.
        batch_bytes=max(1024, min(batch_bytes, max_record_bytes)),
        max_record_bytes=max_record_bytes,
        buffer_bytes=kafka["kafka.buffer.memory"],
        delivery_timeout_s=kafka["kafka.delivery.timeout.ms"] / 1000,
        request_timeout_ms=connection.get("request_timeout_ms", 30_000),
        transaction_timeout_ms=kafka["kafka.transaction.timeout.ms"],
        api_timeout_s=kafka[timeout] / 1000,
        inline_bytes=own["inlineBytes"],
        staging_topic=own["stagingTopic"],
    )


def _as_text(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise error("INVALID_OPTION", f"{name} is {value!r}: give text, a number or a boolean.")
