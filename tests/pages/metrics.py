"""The tables of docs/metrics.md, from the definitions of the metrics."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from kafkasafe import metric_definitions, metrics
from kafkasafe.spark import listener
from tests.pages import DOCS, code, filled, table

PATH: Final = DOCS / "metrics.md"


def _table(rows: Iterable[tuple[str, str, Iterable[str], str]]) -> str:
    lines = [
        (code(name + ("_total" if kind == "counter" else "")), kind, ", ".join(map(code, labels)), text)
        for name, kind, labels, text in rows
    ]
    return table(("name", "type", "labels", "help"), lines)


def _defined(definitions: Iterable[metric_definitions.Definition]) -> str:
    return _table(
        (
            f"kafkasafe_{each.name}",
            each.kind,
            ("client_id", *each.labels),
            f"{each.text} Only with `partitions=True`." if each.per_partition else each.text,
        )
        for each in definitions
    )


def _spark() -> str:
    families: Iterable[Any] = listener._Collector().collect()
    return _table((each.name, each.type, each._labelnames, each.documentation) for each in families)


def names() -> list[str]:
    """Of all metrics, as Prometheus has them."""
    families: Iterable[Any] = listener._Collector().collect()
    ours = [
        (f"kafkasafe_{each.name}", each.kind)
        for each in {
            **metric_definitions.PRODUCER,
            **metric_definitions.CONSUMER,
            **metric_definitions.RETRIES,
        }.values()
    ]
    all_of_them = [*ours, *((each.name, each.type) for each in families)]
    return [metrics._INFO, *(name + ("_total" if kind == "counter" else "") for name, kind in all_of_them)]


def text() -> str:
    build = [(metrics._INFO, "gauge", list(metrics._build()), f"{metrics._INFO_TEXT} Always 1.")]
    return filled(
        PATH,
        {
            "build": _table(build),
            "producer": _defined(metric_definitions.PRODUCER.values()),
            "consumer": _defined(metric_definitions.CONSUMER.values()),
            "policy": _defined(metric_definitions.RETRIES.values()),
            "spark": _spark(),
        },
    )
