"""Options of `format("kafkasafe")`, under Spark's names. All options are checked before connecting.

Spark passes options as text and ignores the case of their names. As in Spark's connector, `kafka.*` are Kafka's own
options. This module translates Kafka's connection options into kafka-python's.
"""

from __future__ import annotations

import difflib
import functools
import json
import logging
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from kafkasafe.errors import ConfigError
from kafkasafe.spark.pem import Pem, PemContext, pem_text
from kafkasafe.spark.tokens import TokenFunction, function_of

__all__ = [
    "Assign",
    "Bound",
    "Offsets",
    "Pattern",
    "ReadOptions",
    "Subscribe",
    "Times",
    "check_known",
    "imported",
    "kafka_options",
    "read_options",
]

log = logging.getLogger("kafkasafe.spark")

EARLIEST: Final = -2
LATEST: Final = -1

Converter: TypeAlias = Callable[[str, str], Any]
"""(name of an option, its text) → its value. Raises ConfigError if the text is invalid."""


def error(kind: str, message: str) -> ConfigError:
    """Creates an error in the format of Spark's errors: `[KAFKASAFE.KIND] problem: remedy.`"""
    return ConfigError(f"[KAFKASAFE.{kind}] {message}")


# --- single values --------------------------------------------------------------------------------------------------


def text(name: str, value: str) -> str:
    """Removes spaces around the text and checks that it is not empty."""
    if not value.strip():
        raise error("INVALID_OPTION", f"{name} is empty: give it a value or leave it out.")
    return value.strip()


def boolean(name: str, value: str) -> bool:
    """Converts `true` or `false`, in upper or lower case, to a bool."""
    known = {"true": True, "false": False}.get(value.strip().lower())
    if known is None:
        raise error("INVALID_OPTION", f"{name} is {value!r}: it must be true or false.")
    return known


def whole(least: int = 0, most: int = 2**63 - 1) -> Converter:
    """Makes a converter for whole numbers between two bounds (inclusive)."""

    def convert(name: str, value: str) -> int:
        try:
            number = int(value)
        except ValueError:
            number = None
        if number is None or not least <= number <= most:
            raise error(
                "INVALID_OPTION", f"{name} is {value!r}: it must be a whole number from {least} to {most}."
            )
        return number

    return convert


def one_of(*choices: str) -> Converter:
    """Makes a converter that accepts one of the given words, in upper or lower case."""

    def convert(name: str, value: str) -> str:
        found = {choice.lower(): choice for choice in choices}.get(value.strip().lower())
        if found is None:
            raise error("INVALID_OPTION", f"{name} is {value!r}: it must be one of {', '.join(choices)}.")
        return found

    return convert


_UNITS_S: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def duration(name: str, value: str) -> float:
    """Converts a duration in Spark's notation (`15m`, `30s`, `500ms`; milliseconds without a unit) to seconds."""
    found = re.fullmatch(r"(\d+)\s*([a-z]*)", value.strip().lower())
    unit = None if found is None else _UNITS_S.get(found[2] or "ms")
    if found is None or unit is None:
        raise error(
            "INVALID_OPTION",
            f"{name} is {value!r}: it must be a time like 15m, 30s or 500ms (units: {', '.join(_UNITS_S)}).",
        )
    return int(found[1]) * unit


_milliseconds: Final = whole(0, 2**31 - 1)
_bytes: Final = whole(1, 2**31 - 1)


# --- kafka.* --------------------------------------------------------------------------------------------------------

_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI", "AWS_MSK_IAM")
_TOKENS: Final = (
    "kafka.sasl.oauth.token.provider=package.module:function, the name of your function that returns a token (the"
    " driver and the executors must be able to import it)"
)

_IAM: Final = "AWS_MSK_IAM"
_IAM_ALONE: Final = (
    "it belongs to Java's client. With kafka.sasl.mechanism=AWS_MSK_IAM leave out kafka.sasl.jaas.config and"
    " kafka.sasl.client.callback.handler.class: the credentials come from botocore (environment, profile, role of the"
    " machine)"
)

# Kafka's name → (kafka-python's name, converter). `_special` handles options without a counterpart in kafka-python.
_CONNECTION: Final[dict[str, tuple[str, Converter]]] = {
    "bootstrap.servers": ("bootstrap_servers", text),
    "client.id": ("client_id", text),
    "client.dns.lookup": ("client_dns_lookup", text),
    "request.timeout.ms": ("request_timeout_ms", whole(1, 2**31 - 1)),
    "reconnect.backoff.ms": ("reconnect_backoff_ms", _milliseconds),
    "reconnect.backoff.max.ms": ("reconnect_backoff_max_ms", _milliseconds),
    "retry.backoff.ms": ("retry_backoff_ms", _milliseconds),
    "metadata.max.age.ms": ("metadata_max_age_ms", whole(1, 2**31 - 1)),
    "connections.max.idle.ms": ("connections_max_idle_ms", _milliseconds),
    "socket.connection.setup.timeout.ms": ("socket_connection_setup_timeout_ms", whole(1, 2**31 - 1)),
    "socket.connection.setup.timeout.max.ms": (
        "socket_connection_setup_timeout_max_ms",
        whole(1, 2**31 - 1),
    ),
    "send.buffer.bytes": ("send_buffer_bytes", _bytes),
    "receive.buffer.bytes": ("receive_buffer_bytes", _bytes),
    "security.protocol": ("security_protocol", one_of("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")),
    "ssl.cafile": ("ssl_cafile", text),
    "ssl.certfile": ("ssl_certfile", text),
    "ssl.keyfile": ("ssl_keyfile", text),
    "ssl.password": ("ssl_password", text),
    "ssl.key.password": ("ssl_password", text),
    "ssl.crlfile": ("ssl_crlfile", text),
    "ssl.check.hostname": ("ssl_check_hostname", boolean),
    "sasl.mechanism": ("sasl_mechanism", one_of(*_MECHANISMS)),
    "sasl.oauth.token.provider": (
        "sasl_oauth_token_provider",
        lambda name, value: TokenFunction(imported(name, value)),
    ),
    "sasl.plain.username": ("sasl_plain_username", text),
    "sasl.plain.password": ("sasl_plain_password", text),
    "sasl.kerberos.service.name": ("sasl_kerberos_service_name", text),
    "sasl.kerberos.domain.name": ("sasl_kerberos_domain_name", text),
    "sasl.kerberos.name": ("sasl_kerberos_name", text),
    "proxy.url": ("proxy_url", text),
}
_JAVA_ONLY: Final = frozenset(
    {
        "sasl.jaas.config",
        "ssl.endpoint.identification.algorithm",
        "ssl.truststore.location",
        "ssl.truststore.type",
        "ssl.keystore.location",
        "ssl.keystore.type",
        "ssl.truststore.certificates",
        "ssl.keystore.certificate.chain",
        "ssl.keystore.key",
    }
)
_FORBIDDEN: Final = {
    "auto.offset.reset": "use startingOffsets to say where to begin",
    "enable.auto.commit": "Spark's checkpoint keeps the offsets, and nothing is committed to Kafka",
    "key.deserializer": "keys and values are binary; cast them in the query",
    "value.deserializer": "keys and values are binary; cast them in the query",
    "key.serializer": "keys and values are binary or string; cast them in the query",
    "value.serializer": "keys and values are binary or string; cast them in the query",
    "interceptor.classes": "kafkasafe does not use Java's client; leave the option out",
    **dict.fromkeys(
        (
            "sasl.login.callback.handler.class",
            "sasl.client.callback.handler.class",
            "sasl.login.class",
            "sasl.oauthbearer.token.endpoint.url",
            "sasl.oauthbearer.jwt.retriever.class",
        ),
        f"kafkasafe does not use Java's client; for tokens set {_TOKENS}",
    ),
}
# Options of the Java clients that have no effect here. These options are accepted so that a query can switch to
# kafkasafe without a change of its options.
_IGNORED: Final = frozenset(
    {
        "allow.auto.create.topics",
        "auto.commit.interval.ms",
        "auto.include.jmx.reporter",
        "check.crcs",
        "client.rack",
        "default.api.timeout.ms",
        "enable.metrics.push",
        "exclude.internal.topics",
        "group.instance.id",
        "heartbeat.interval.ms",
        "max.poll.interval.ms",
        "max.poll.records",
        "metric.reporters",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
        "partition.assignment.strategy",
        "session.timeout.ms",
        "ssl.keystore.password",
        "ssl.truststore.password",
        "metadata.max.idle.ms",
        "partitioner.adaptive.partitioning.enable",
        "partitioner.availability.timeout.ms",
    }
)
_JAAS: Final = re.compile(r'(\w+)\s*=\s*"((?:[^"\\]|\\.)*)"')


def kafka_options(
    options: Mapping[str, str], further: Mapping[str, Converter]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Checks and converts Kafka's own options.

    Args:
        options: All options, `kafka.*` and others.
        further: Converters for Kafka's options that are not connection options, by name without `kafka.`.

    Returns:
        Two dicts. The first dict holds the connection options under kafka-python's names. The second dict holds the
        values of the given options for which `further` has a converter.

    Raises:
        ConfigError: An option is unknown, invalid, or missing.
    """
    given = {
        key.lower().removeprefix("kafka.").replace("_", "."): (key, value)
        for key, value in options.items()
        if key.lower().startswith("kafka.")
    }
    if "bootstrap.servers" not in given:
        raise error(
            "MISSING_OPTION",
            'kafka.bootstrap.servers is missing: add .option("kafka.bootstrap.servers", "host:9092").',
        )
    connection: dict[str, Any] = {}
    others: dict[str, Any] = {}
    is_iam = given.get("sasl.mechanism", ("", ""))[1].strip().upper() == _IAM
    for name, (key, value) in given.items():
        if name in _FORBIDDEN:
            why = _FORBIDDEN[name]
            if is_iam and name.startswith("sasl."):
                why = _IAM_ALONE
            raise error("FORBIDDEN_OPTION", f"{key} cannot be set: {why}.")
        if name in further:
            others[name] = further[name](key, value)
        elif name in _CONNECTION:
            ours, convert = _CONNECTION[name]
            connection[ours] = convert(key, value)
        elif name in _IGNORED:
            _say_ignored(key)
        elif name not in _JAVA_ONLY:
            nearest = _nearest(name, [*_CONNECTION, *further, *_JAVA_ONLY])
            hint = f" Did you mean kafka.{nearest}?" if nearest else ""
            raise error("UNKNOWN_OPTION", f"{key} is not an option of kafkasafe: correct or remove it.{hint}")
    _special({name: value for name, (_, value) in given.items()}, connection)
    servers = [server.strip() for server in str(connection["bootstrap_servers"]).split(",") if server.strip()]
    if not servers or not all(re.fullmatch(r"(\w+://)?.+:\d{1,5}", server) for server in servers):
        raise error(
            "INVALID_OPTION",
            f"kafka.bootstrap.servers is {connection['bootstrap_servers']!r}: it must be a list like"
            " host1:9092,host2:9092.",
        )
    connection["bootstrap_servers"] = [server.split("://")[-1] for server in servers]
    if connection.get("security_protocol", "PLAINTEXT").startswith("SASL") and not connection.get(
        "sasl_mechanism"
    ):
        raise error(
            "MISSING_OPTION",
            "kafka.security.protocol asks for SASL: add kafka.sasl.mechanism, and kafka.sasl.plain.username"
            " and kafka.sasl.plain.password or kafka.sasl.jaas.config.",
        )
    if connection.get("sasl_mechanism") == "OAUTHBEARER" and "sasl_oauth_token_provider" not in connection:
        raise error("MISSING_OPTION", f"kafka.sasl.mechanism is OAUTHBEARER: add {_TOKENS}.")
    return connection, others


@functools.cache  # one warning per process, although the options are parsed again for each query
def _say_ignored(key: str) -> None:
    log.warning("%s is accepted but has no effect: it belongs to Kafka's Java client", key)


def _special(given: Mapping[str, str], connection: dict[str, Any]) -> None:
    """Translates options of Java's client that have no direct counterpart in kafka-python."""
    jaas = given.get("sasl.jaas.config")
    if jaas is not None and connection.get("sasl_mechanism") == _IAM:
        raise error("FORBIDDEN_OPTION", f"kafka.sasl.jaas.config cannot be set: {_IAM_ALONE}.")
    if jaas is not None and connection.get("sasl_mechanism") != "OAUTHBEARER":
        fields = dict(_JAAS.findall(jaas))
        if "username" not in fields or "password" not in fields:
            raise error(
                "INVALID_OPTION",
                "kafka.sasl.jaas.config contains no username and password: set kafka.sasl.plain.username and"
                " kafka.sasl.plain.password, or for Kerberos kafka.sasl.kerberos.service.name.",
            )
        connection.setdefault("sasl_plain_username", re.sub(r"\\(.)", r"\1", fields["username"]))
        connection.setdefault("sasl_plain_password", re.sub(r"\\(.)", r"\1", fields["password"]))
    if "ssl.endpoint.identification.algorithm" in given:
        connection["ssl_check_hostname"] = bool(given["ssl.endpoint.identification.algorithm"].strip())
    for store, ours in (("truststore", "ssl_cafile"), ("keystore", "ssl_certfile")):
        location = given.get(f"ssl.{store}.location")
        if location is None:
            continue
        if given.get(f"ssl.{store}.type", "JKS").upper() != "PEM":
            raise error(
                "INVALID_OPTION",
                f"kafka.ssl.{store}.location is a Java key store, which Python cannot read: export it as PEM"
                f" and set kafka.{ours.replace('_', '.')} (or kafka.ssl.{store}.type=PEM).",
            )
        connection.setdefault(ours, location)
        if store == "keystore":
            connection.setdefault("ssl_keyfile", location)
    _texts(given, connection)


# Kafka's name → (store, field of `Pem`).
_TEXTS: Final = {
    "ssl.truststore.certificates": ("truststore", "authorities"),
    "ssl.keystore.certificate.chain": ("keystore", "certificate"),
    "ssl.keystore.key": ("keystore", "key"),
}


def _texts(given: Mapping[str, str], connection: dict[str, Any]) -> None:
    """Handles certificates and keys that are given as text instead of files (KIP-651)."""
    texts: dict[str, str] = {}
    for name, (store, part) in _TEXTS.items():
        if name not in given:
            continue
        if given.get(f"ssl.{store}.type", "PEM").upper() != "PEM":
            raise error(
                "INVALID_OPTION",
                f"kafka.{name} must be PEM: set kafka.ssl.{store}.type=PEM, or leave the type out.",
            )
        if f"ssl.{store}.location" in given:
            raise error(
                "INVALID_OPTION",
                f"kafka.{name} and kafka.ssl.{store}.location are both given: give only one of them.",
            )
        texts[part] = pem_text(given[name])
        if not texts[part]:
            raise error(
                "INVALID_OPTION",
                f"kafka.{name} contains no PEM: it must be text like -----BEGIN ...----- ... -----END ...-----.",
            )
    if not texts:
        return
    if "key" in texts and not ("certificate" in texts or "ssl_certfile" in connection):
        raise error(
            "MISSING_OPTION",
            "kafka.ssl.keystore.key is given without a certificate: add kafka.ssl.keystore.certificate.chain.",
        )
    files = {
        name: connection.pop(ours, None)
        for name, ours in (
            ("authorities_file", "ssl_cafile"),
            ("certificate_file", "ssl_certfile"),
            ("key_file", "ssl_keyfile"),
            ("revoked_file", "ssl_crlfile"),
            ("password", "ssl_password"),
        )
    }
    pem = Pem(**texts, **files, check_hostname=connection.pop("ssl_check_hostname", True))
    try:
        connection["ssl_context"] = PemContext(pem)
    except (OSError, ValueError) as wrong:
        raise error(
            "INVALID_OPTION",
            f"{', '.join(f'kafka.{name}' for name in _TEXTS if name in given)} cannot be used: {wrong}.",
        ) from None


def check_known(options: Iterable[str], known: Iterable[str], *, what: str) -> None:
    """Checks that every option is either known or one of Kafka's own (`kafka.*`).

    Raises:
        ConfigError: An option is neither. The message names the most similar option.
    """
    names = {name.lower(): name for name in known}
    for option in options:
        if option.lower() in names or option.lower().startswith("kafka."):
            continue
        nearest = _nearest(option.lower(), names)
        hint = (
            f" Did you mean {names[nearest]}?" if nearest else f" Known: {', '.join(sorted(names.values()))}."
        )
        raise error("UNKNOWN_OPTION", f"{option!r} is not an option of {what}.{hint}")


def _nearest(name: str, known: Iterable[str]) -> str | None:
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)), None)


# --- options of the source ------------------------------------------------------------------------------------------


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
    """Offsets. Each one is `EARLIEST`, `LATEST` or a number.

    Either `everywhere` holds one offset for all partitions, or `each` maps each partition to its own offset.
    """

    everywhere: int | None = None
    each: Mapping[tuple[str, int], int] | None = None


@dataclass(frozen=True, slots=True)
class Times:
    """Times in ms since the epoch. A time selects the first record with this timestamp or a later one.

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
        starting: Where a query without a checkpoint begins.
        ending: Where a batch query ends (exclusive).
        time_without_record: What to do if the starting time is after the last record.
        min_partitions: Minimum number of tasks; ranges are divided to reach it. 0: one task for each partition.
        max_records: Maximum number of records for a task; 0: no limit.
        max_offsets: Maximum number of offsets in a micro-batch; 0: no limit.
        min_offsets: A micro-batch waits until this number of offsets is available; 0: it does not wait.
        max_trigger_delay_s: Maximum time that a micro-batch waits for `min_offsets`, counted from the previous
            micro-batch.
        fail_on_data_loss: Whether lost records end the query. If false, kafkasafe reports the loss and the query
            continues.
        include_headers: Whether rows have the column `headers`.
        isolation: 1 for read_committed, 0 for read_uncommitted.
        stall_timeout_s: Maximum time that a task or a plan waits while the brokers send nothing new.
        fetch_bytes: Approximate size of a fetch response.
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
    on_event: str | None


_WHAT: Final = ("subscribe", "subscribePattern", "assign")
_READ: Final = (
    *_WHAT,
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "minPartitions",
    "maxRecordsPerPartition",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "failOnDataLoss",
    "includeHeaders",
    "isolationLevel",
    "kafkaConsumer.pollTimeoutMs",
    "onEvent",
    # Options of Spark's connector that have no effect here.
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "groupIdPrefix",
)
_LEVELS: Final = ("read_uncommitted", "read_committed")

FETCH_BYTES: Final = 4 * 1024 * 1024
STALL_TIMEOUT_MS: Final = 120_000


def read_options(options: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    """Checks and converts the options of a reader.

    Args:
        options: The options as given by the user.
        streaming: Whether the options are for a streaming query, which begins at "latest" by default and has no end.

    Raises:
        ConfigError: An option is unknown, missing, invalid, or contradicts another one.
    """
    check_known(options, _READ, what='format("kafkasafe") for reading')
    given = _Given(options)
    connection, kafka = kafka_options(
        options,
        {
            "isolation.level": one_of(*_LEVELS),
            "max.partition.fetch.bytes": _bytes,
            "fetch.max.bytes": _bytes,
            "fetch.min.bytes": _bytes,
            "fetch.max.wait.ms": _milliseconds,
            "group.id": text,
        },
    )
    level = given.get("isolationLevel", one_of(*_LEVELS), None)
    if level is not None and kafka.get("isolation.level", level) != level:
        raise error(
            "INVALID_OPTION", "isolationLevel and kafka.isolation.level contradict each other: give only one."
        )
    what = _what(given)
    if streaming and (ending := given.any("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")):
        raise error(
            "INVALID_OPTION",
            f"{ending} is for batch queries: for a streaming query that ends, use trigger(availableNow=True).",
        )
    if not streaming and (
        limit := given.any("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
    ):
        raise error("INVALID_OPTION", f"{limit} is for streaming queries: use endingOffsets.")
    max_offsets = given.get("maxOffsetsPerTrigger", whole(1), 0)
    min_offsets = given.get("minOffsetsPerTrigger", whole(1), 0)
    if 0 < max_offsets < min_offsets:
        raise error(
            "INVALID_OPTION",
            "minOffsetsPerTrigger is above maxOffsetsPerTrigger, so no batch could satisfy both: correct one of them.",
        )
    for name in ("fetchOffset.numRetries", "fetchOffset.retryIntervalMs"):
        given.get(name, whole(), None)  # no effect, but an invalid value is still an error
    starting = _bound(given, "starting", LATEST if streaming else EARLIEST)
    ending_bound = _bound(given, "ending", LATEST)
    if not streaming:
        _refuse(starting, LATEST, "startingOffsets", "latest", "there would be nothing to read")
        _refuse(ending_bound, EARLIEST, "endingOffsets", "earliest", "there would be nothing to read")
    fetch_bytes = min(
        kafka.get("max.partition.fetch.bytes", FETCH_BYTES), kafka.get("fetch.max.bytes", 2**31 - 1)
    )
    strategy = given.get("startingOffsetsByTimestampStrategy", one_of("error", "latest"), "error")
    return ReadOptions(
        connection=connection,
        what=what,
        starting=starting,
        ending=ending_bound,
        time_without_record="latest" if strategy == "latest" else "error",
        min_partitions=given.get("minPartitions", whole(1, 1_000_000), 0),
        max_records=given.get("maxRecordsPerPartition", whole(1), 0),
        max_offsets=max_offsets,
        min_offsets=min_offsets,
        max_trigger_delay_s=given.get("maxTriggerDelay", duration, 900.0),
        fail_on_data_loss=given.get("failOnDataLoss", boolean, True),
        include_headers=given.get("includeHeaders", boolean, False),
        isolation=int((level or kafka.get("isolation.level", _LEVELS[0])) == _LEVELS[1]),
        stall_timeout_s=given.get("kafkaConsumer.pollTimeoutMs", whole(1, 2**31 - 1), STALL_TIMEOUT_MS)
        / 1000,
        fetch_bytes=fetch_bytes,
        on_event=given.get("onEvent", _hook, None),
    )


class _Given:
    """Options by name. The names are not case-sensitive."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = {name.lower(): value for name, value in options.items()}

    def get(self, name: str, convert: Converter, default: Any) -> Any:
        value = self._options.get(name.lower())
        return default if value is None else convert(name, value)

    def any(self, *names: str) -> str | None:
        """Returns the first of these names that was given as an option; None if there is none."""
        return next((name for name in names if name.lower() in self._options), None)


def _hook(name: str, value: str) -> str:
    if not re.fullmatch(r"[\w.]+:\w+", value.strip()):
        raise error(
            "INVALID_OPTION",
            f"{name} is {value!r}: it must be the name of a function like package.module:function.",
        )
    return value.strip()


def imported(name: str, value: str) -> str:
    """Checks that a function can be imported in this process, and returns its name."""
    found = _hook(name, value)
    try:
        function_of(found)
    except (ImportError, AttributeError) as wrong:
        raise error(
            "INVALID_OPTION",
            f"{name} is {found!r}, which cannot be imported ({wrong}): give a function of a module that is installed on"
            " the driver and the executors.",
        ) from None
    return found


def _what(given: _Given) -> Subscribe | Pattern | Assign:
    named = [name for name in _WHAT if given.any(name)]
    if len(named) != 1:
        which = f"{' and '.join(named)} are given" if named else "None of them is given"
        raise error(
            "INVALID_OPTION",
            f"One of subscribe (topics), subscribePattern (a regular expression) and assign (partitions) says what"
            f' to read. {which}: give exactly one, like .option("subscribe", "orders,payments").',
        )
    value = given.get(named[0], text, "")
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


def _bound(given: _Given, which: str, default: int) -> Bound:
    """Parses the bound `starting` or `ending`.

    If several options are given, Spark's precedence applies. One time for all partitions overrides times by partition,
    and both kinds of times override offsets.
    """
    moment = given.get(f"{which}Timestamp", whole(), None)
    if moment is not None:
        return Times(everywhere=moment)
    name = f"{which}OffsetsByTimestamp"
    moments = given.get(name, text, None)
    if moments is not None:
        return Times(each=_by_partition(name, moments, '{"orders":{"0":1735689600000}}', least=0))
    name = f"{which}Offsets"
    value = given.get(name, text, None)
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
            if not (partition.isdecimal() and type(number) is int and number >= least):
                raise error(
                    "INVALID_OPTION",
                    f"{name} is {value!r}: it must be JSON like {shape}.",
                )
            found[topic, int(partition)] = number
    if not found:
        raise error(
            "INVALID_OPTION", f"{name} is {value!r}, which names no partition: give JSON like {shape}."
        )
    return found


def _json(name: str, value: str, shape: str) -> dict[str, Any]:
    try:
        found = json.loads(value)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise error("INVALID_OPTION", f"{name} is {value!r}: it must be JSON like {shape}.")
    return found
