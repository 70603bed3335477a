"""The tables of options in docs/spark-source.md, from the tables that parse them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kafkasafe.spark.kafka_options import CONNECTION
from kafkasafe.spark.option_table import QueryOption
from kafkasafe.spark.options import SOURCE
from tests.pages import DOCS, code, filled, options, table

PATH: Final = DOCS / "spark-source.md"

_OTHERS: Final = {
    "socket_connection_setup_timeout_ms": "Longest wait for a new connection, in milliseconds, for the first attempt.",
    "sasl_oauth_token_provider": "The name of a function that returns tokens, for OAUTHBEARER.",
    "socket_connection_setup_timeout_max_ms": "The same after several attempts that failed.",
}
"""Texts of options that the clients do not have, or not in this form."""


def of_query(rows: Mapping[str, QueryOption]) -> str:
    """The options of the source or of the sink, the required one first."""
    listed = [(code("kafka.bootstrap.servers"), CONNECTION["bootstrap.servers"][1].kind, "", "required")]
    listed += [
        (
            code(row.name),
            row.value.kind,
            _default(row),
            f"refused: {row.refused}" if row.refused else row.help,
        )
        for row in rows.values()
    ]
    return table(("option", "value", "default", ""), listed)


def _default(row: QueryOption) -> str:
    if row.shown is not None:
        return row.shown
    if row.default is None:
        return ""
    return code(str(row.default).lower() if isinstance(row.default, bool) else row.default)


def of_connections() -> str:
    """Kafka's options of connections, with the texts of kafka-python's."""
    said = {name: text for name, (_, text) in options.texts("ConnectionOptions").items()} | _OTHERS
    rows = [
        (code(f"kafka.{name}"), value.kind, code(ours), said[ours])
        for name, (ours, value) in CONNECTION.items()
    ]
    return table(("option", "value", "kafka-python's name", ""), rows)


def text() -> str:
    return filled(PATH, {"options": of_query(SOURCE.rows), "connections": of_connections()})
