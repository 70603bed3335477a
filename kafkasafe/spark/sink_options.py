"""Options of the sink: named as in Spark's Kafka sink and in Delta, checked before anything is opened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kafkasafe._core.batch import Compression
from kafkasafe.spark.options import Converter, boolean, check_known, error, kafka_options, one_of, text, whole

__all__ = ["SinkOptions", "sink_options"]

_INT: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Validated options of a sink. Can be pickled.

    Attributes:
        connection: kafka-python's options.
        topic: Where all rows go; None: the column `topic` says.
        app_id: `txnAppId`; None: the query's id and the topic.
        version: `txnVersion`: the batch id in batch use; None: none was given.
        strict: A marker that does not fit the checkpoint is an error (`onMarkerMismatch`).
        marker_topic: Compacted topic of the markers.
        exchange: Whether rows change tasks before they are sent; None: decided by the data's shape.
        max_restarts: How often the transaction of one micro-batch is begun again.
        compression: How batches are compressed.
        compression_level: The codec's own level, None for its default.
        batch_bytes: Size of a batch before compression, at most.
        max_record_bytes: Size of a record, at most.
        buffer_bytes: What one task may hold back while brokers are slow.
        delivery_timeout_s: How long one batch may take.
        request_timeout_ms: How long a broker may take for one request.
        transaction_timeout_ms: After how long the cluster aborts the transaction of a driver that is gone.
        api_timeout_s: How long one step of the driver may take.
        inline_bytes: Up to how many bytes of batches a task of the writers gives to the driver.
        staging_topic: Where a task of the writers puts more than that.
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
        """As given, for messages."""
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
    "transactional.id": "txnAppId names the transactions",
    "isolation.level": "readers set it: read_committed",
    "partitioner.class": "the column partition chooses, else Kafka's own hash of the key",
}
_ANY: Final[Converter] = lambda _, value: value  # noqa: E731  # told apart from a function of the module
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
    # Of a Java producer's tuning: there is nothing here that they would change.
    "linger.ms": _ANY,
    "retries": _ANY,
    "max.in.flight.requests.per.connection": _ANY,
    **dict.fromkeys(_REFUSED, _ANY),
}


def sink_options(options: Mapping[str, Any]) -> SinkOptions:
    """The options, checked.

    Args:
        options: Spark's names, in any case; values as text, numbers or booleans.

    Raises:
        ConfigError: One is unknown (the nearest name is in the message), cannot work, or is missing.
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
        raise error("FORBIDDEN_OPTION", "kafka.acks is all, or nothing would be exactly once: leave it out.")
    if not kafka.get("enable.idempotence", True):
        raise error(
            "FORBIDDEN_OPTION",
            "kafka.enable.idempotence=false cannot be: transactions need it. Leave it out.",
        )
    if (mode := own.get("mode", "transaction")) != "transaction":
        raise error("INVALID_OPTION", f"mode is {mode!r}: this version knows 'transaction' only.")
    batch_bytes = kafka.get("batch.size", 900_000)
    max_record_bytes = kafka.get("max.request.size", 1_048_576)
    compression = Compression[kafka.get("compression.type", "none").upper()]
    # Requests carry one batch at least, whatever its size is.
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
        # A small batch costs a request; the JVM's default of 16 kB is for records that come one by one.
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
    raise error("INVALID_OPTION", f"{name} is {value!r}: options are text, numbers or booleans.")
