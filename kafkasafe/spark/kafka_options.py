"""Checks the `kafka.*` options of a query, and translates the connection options into kafka-python's options."""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Mapping
from typing import Any, Final

from kafkasafe.spark.option_table import OptionTable, OptionValues, nearest
from kafkasafe.spark.option_values import (
    INT32,
    OptionKind,
    boolean,
    error,
    function,
    imported,
    one_of,
    text,
    whole,
)
from kafkasafe.spark.pem import Pem, PemContext, pem_text
from kafkasafe.spark.tokens import TokenFunction

log = logging.getLogger("kafkasafe.spark")

_milliseconds: Final = whole(0, INT32)
_from_one: Final = whole(1, INT32)

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

CONNECTION: Final[dict[str, tuple[str, OptionKind]]] = {
    "bootstrap.servers": ("bootstrap_servers", text),
    "client.id": ("client_id", text),
    "client.dns.lookup": ("client_dns_lookup", text),
    "request.timeout.ms": ("request_timeout_ms", _from_one),
    "reconnect.backoff.ms": ("reconnect_backoff_ms", _milliseconds),
    "reconnect.backoff.max.ms": ("reconnect_backoff_max_ms", _milliseconds),
    "retry.backoff.ms": ("retry_backoff_ms", _milliseconds),
    "metadata.max.age.ms": ("metadata_max_age_ms", _from_one),
    "connections.max.idle.ms": ("connections_max_idle_ms", _milliseconds),
    "socket.connection.setup.timeout.ms": ("socket_connection_setup_timeout_ms", _from_one),
    "socket.connection.setup.timeout.max.ms": (
        "socket_connection_setup_timeout_max_ms",
        _from_one,
    ),
    "send.buffer.bytes": ("send_buffer_bytes", _from_one),
    "receive.buffer.bytes": ("receive_buffer_bytes", _from_one),
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
        OptionKind(function.kind, lambda name, value: TokenFunction(imported(name, value))),
    ),
    "sasl.plain.username": ("sasl_plain_username", text),
    "sasl.plain.password": ("sasl_plain_password", text),
    "sasl.kerberos.service.name": ("sasl_kerberos_service_name", text),
    "sasl.kerberos.domain.name": ("sasl_kerberos_domain_name", text),
    "sasl.kerberos.name": ("sasl_kerberos_name", text),
    "proxy.url": ("proxy_url", text),
}
"""Kafka's name → (kafka-python's name, kind of its values). `_special` handles options that kafka-python does not
have.
"""

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
# Options of the Java clients that have no effect here, accepted so that a query can switch to kafkasafe without a
# change of its options.
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


def kafka_options(options: Mapping[str, str], table: OptionTable) -> tuple[dict[str, Any], OptionValues]:
    """Checks and converts Kafka's own options.

    Args:
        options: All options, `kafka.*` and others.
        table: The option table of the source or of the sink. It has no connection options.

    Returns:
        (connection options under kafka-python's names, values of those `kafka.*` options that `table` contains).

    Raises:
        ConfigError: An option is unknown, invalid, or missing.
    """
    given: dict[str, tuple[str, str]] = {}
    for key, value in options.items():
        if key.lower().startswith("kafka."):
            name = key.lower().removeprefix("kafka.").replace("_", ".")
            if name in given:
                raise error(
                    "INVALID_OPTION", f"{given[name][0]} and {key} are the same option: give one of them."
                )
            given[name] = key, value
    if "bootstrap.servers" not in given:
        raise error(
            "MISSING_OPTION",
            'kafka.bootstrap.servers is missing: add .option("kafka.bootstrap.servers", "host:9092").',
        )
    connection: dict[str, Any] = {}
    others: dict[str, str] = {}
    is_iam = given.get("sasl.mechanism", ("", ""))[1].strip().upper() == _IAM
    for name, (key, value) in given.items():
        if name in _FORBIDDEN:
            why = _FORBIDDEN[name]
            if is_iam and name.startswith("sasl."):
                why = _IAM_ALONE
            raise error("FORBIDDEN_OPTION", f"{key} cannot be set: {why}.")
        if name in table.kafkas:
            row = table.kafkas[name]
            row.value(key, value)  # raises if the value is invalid
            others[row.name] = value
        elif name in CONNECTION:
            ours, convert = CONNECTION[name]
            connection[ours] = convert(key, value)
        elif name in _IGNORED:
            _say_ignored(key)
        elif name not in _JAVA_ONLY:
            close = nearest(name, [*CONNECTION, *table.kafkas, *_JAVA_ONLY])
            hint = f" Did you mean kafka.{close}?" if close else ""
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
    return connection, OptionValues(table.rows, others)


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
