"""Options of the sink, under the names of Spark's Kafka sink and of Delta. They are all checked before connecting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kafkasafe.record.batch import Compression
from kafkasafe.spark.options import Converter, boolean, check_known, error, kafka_options, one_of, text, whole

__all__ = ["SinkOptions", "sink_options"]

_INT: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Validated options of a sink. Can be pickled.

    Attributes:
        connection: kafka-python's options.
        topic: Topic for all rows; None: the column `topic` holds the topic of each row.
        app_id: `txnAppId`; None: derived from the query's id and the topic.
        version: `txnVersion`, which a batch query uses instead of a batch id; None: it was not given.
        strict: Whether a marker that does not fit the checkpoint is an error (`onMarkerMismatch`).
        marker_topic: Compacted topic that stores the markers.
        exchange: Whether Spark moves rows between tasks before they are sent; None: the columns and the number of
            partitions decide.
        max_restarts: Maximum number of restarts of a micro-batch's transaction.
        compression: Compression codec of the batches.
        compression_level: Level of the codec; None: the codec's default.
        batch_bytes: Maximum size of a batch before compression.
        max_record_bytes: Maximum size of a record.
        buffer_bytes: Maximum number of bytes that a task buffers while brokers are slow.
        delivery_timeout_s: Maximum time to deliver a batch.
        request_timeout_ms: Maximum time for a broker to answer a request.
        transaction_timeout_ms: Time after which the cluster aborts the transaction of a dead driver.
        api_timeout_s: Maximum time for a step of the driver.
        inline_bytes: Maximum size of the batches that a task sends to the driver directly.
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


_OPTIONS: Final[dict[str, Converter]] = {
    "topic": text,
    "txnAppId": text,
    "txnVersion": whole(0, 2**53),
    "mode": text,
    "markerTopic": text,
    "onMarkerMismatch": one_of("fail", "accept"),
    "exchange": one_of("auto", "always", "never"),
    "maxRestarts": whole(0, 1000),
    "includeHeaders": boolean,
    "inlineBytes": whole(0, 256 * 1024 * 1024),
    "stagingTopic": text,
}
_REFUSED: Final = {
    "transactional.id": "set txnAppId, which names the transactions",
    "isolation.level": "set it for readers instead, to read_committed",
    "partitioner.class": "use the column partition, or leave the choice to Kafka's own hash of the key",
}
_ANY: Final[Converter] = lambda _, value: value  # noqa: E731  # accepts any value
_KAFKA: Final[dict[str, Converter]] = {
    "compression.type": one_of("none", "gzip", "snappy", "lz4", "zstd"),
    "compression.gzip.level": whole(-1, 9),
    "compression.lz4.level": whole(1, 17),
    "compression.zstd.level": whole(-131072, 22),
    "batch.size": whole(1, _INT),
    "buffer.memory": whole(1, _INT),
    "max.request.size": whole(1, _INT),
    "delivery.timeout.ms": whole(1, _INT),
    "transaction.timeout.ms": whole(1000, _INT),
    "max.block.ms": whole(1, _INT),
    "default.api.timeout.ms": whole(1, _INT),
    "acks": text,
    "enable.idempotence": boolean,
    # Tuning options of the Java producer. These options are accepted, but have no effect here.
    "linger.ms": _ANY,
    "retries": _ANY,
    "max.in.flight.requests.per.connection": _ANY,
    **dict.fromkeys(_REFUSED, _ANY),
}


def sink_options(options: Mapping[str, Any]) -> SinkOptions:
    """Checks and converts the options of a sink.

    Args:
        options: Options by Spark's names, which are not case-sensitive. Values are text, numbers or booleans.

    Raises:
        ConfigError: An option is unknown (the message names the most similar one), invalid, or missing.
    """
    given = {name: _as_text(name, value) for name, value in options.items() if value is not None}
    check_known(given, _OPTIONS, what="the kafkasafe sink")
    names = {name.lower(): name for name in _OPTIONS}
    own = {
        names[name.lower()]: _OPTIONS[names[name.lower()]](names[name.lower()], value)
        for name, value in given.items()
        if name.lower() in names
    }
    connection, kafka = kafka_options(given, _KAFKA)
    for name, instead in _REFUSED.items():
        if name in kafka:
            raise error("FORBIDDEN_OPTION", f"kafka.{name} cannot be set: {instead}.")
    if str(kafka.get("acks", "all")) not in {"all", "-1"}:
        raise error("FORBIDDEN_OPTION", "kafka.acks must be all for exactly-once delivery: leave it out.")
    if not kafka.get("enable.idempotence", True):
        raise error(
            "FORBIDDEN_OPTION",
            "kafka.enable.idempotence cannot be false, because transactions need it: leave it out.",
        )
    if (mode := own.get("mode", "transaction")) != "transaction":
        raise error("INVALID_OPTION", f"mode is {mode!r}: use 'transaction', the only mode of this version.")
    batch_bytes = kafka.get("batch.size", 900_000)
    max_record_bytes = kafka.get("max.request.size", 1_048_576)
    compression = Compression[kafka.get("compression.type", "none").upper()]
    # A request carries at least one batch, so it must have room for the largest one.
    connection.setdefault("max_request_size", max(max_record_bytes, batch_bytes))
    return SinkOptions(
        connection=connection,
        topic=own.get("topic"),
        app_id=own.get("txnAppId"),
        version=own.get("txnVersion"),
        strict=own.get("onMarkerMismatch", "fail") == "fail",
        marker_topic=own.get("markerTopic", "kafkasafe-spark-markers"),
        exchange={"always": True, "never": False}.get(own.get("exchange", "auto")),
        max_restarts=own.get("maxRestarts", 5),
        compression=compression,
        compression_level=kafka.get(f"compression.{compression.name.lower()}.level"),
        # Each batch takes a request, so batches are large here. The Java producer's default of 16 kB suits records that
        # are sent one by one.
        batch_bytes=max(1024, min(batch_bytes, max_record_bytes)),
        max_record_bytes=max_record_bytes,
        buffer_bytes=kafka.get("buffer.memory", 16 * 1024 * 1024),
        delivery_timeout_s=kafka.get("delivery.timeout.ms", 120_000) / 1000,
        request_timeout_ms=connection.get("request_timeout_ms", 30_000),
        transaction_timeout_ms=kafka.get("transaction.timeout.ms", 600_000),
        api_timeout_s=kafka.get("max.block.ms", kafka.get("default.api.timeout.ms", 60_000)) / 1000,
        inline_bytes=own.get("inlineBytes", 1024 * 1024),
        staging_topic=own.get("stagingTopic", "kafkasafe-spark-staging"),
    )


def _as_text(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise error("INVALID_OPTION", f"{name} is {value!r}: give text, a number or a boolean.")
