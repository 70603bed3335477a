"""Each metric that is defined has samples, and each counter counts something."""

from __future__ import annotations

import ast
import collections
import dataclasses
from pathlib import Path
from types import SimpleNamespace

import pytest
from kafka.structs import TopicPartition

import kafkasafe
from kafkasafe import SafeProducer
from kafkasafe.delivery.metric_samples import consumer_samples, producer_samples
from kafkasafe.metric_definitions import CONSUMER, PRODUCER, RETRIES
from kafkasafe.spool.refusals import RefusedDestination
from kafkasafe.stats import ConsumerStats, Count, PartitionProgress, RetryStats, Stats

PACKAGE = Path(kafkasafe.__file__).parent
WRITERS = {"+=", "add", "observe", "update"}


def counted(stats):
    """The counters, each with one entry."""
    for value in vars(stats).values():
        if isinstance(value, Count):
            value.add()
        elif isinstance(value, dict):
            value["a", "b"] += 1
    return stats


def names(samples):
    found = [(definition.name, labels) for definition, labels, _ in samples]
    assert len(found) == len(set(found))
    return {name for name, _ in found}


def test_each_metric_of_a_producer_has_samples(tmp_path):
    with SafeProducer(bootstrap_servers="127.0.0.1:1", spool_dir=tmp_path) as producer:
        pump = producer._pump
        state = dataclasses.replace(
            pump.state(),
            last_acked_offsets={("t", 0): 7},
            refused=[RefusedDestination("t", 0, 29, "denied", 0.0, 1, 1, True, True)],
            units={"staged": 1},
        )
        shown = SimpleNamespace(stats=counted(pump.stats), refused_sends=1, state=lambda: state)
        assert names(producer_samples(shown, closed=False)) == PRODUCER.keys()


def test_each_metric_of_a_consumer_has_samples():
    progress = {TopicPartition("t", 0): PartitionProgress(1, 2, 3.0, undecided=True, remote=True)}
    health = SimpleNamespace(connected=True, last_poll_age_s=1.0)
    samples = consumer_samples(counted(ConsumerStats()), progress, "group", health)
    assert names(samples) == CONSUMER.keys()


def test_each_metric_of_retries_has_samples():
    assert names(counted(RetryStats()).retry_samples()) == RETRIES.keys()


def test_each_metric_of_spark_has_samples(monkeypatch):
    pytest.importorskip("pyspark")
    from kafkasafe.spark import listener, stats

    for name, counter in list(vars(stats).items()):
        if isinstance(counter, collections.Counter):
            labels = {"batches": 2, "source_events": 3, "source_lost_records": 2}.get(name, 0)
            key = tuple("abc"[:labels]) if labels else "query"
            monkeypatch.setattr(stats, name, type(counter)({key: 1}))
    collector = listener._Collector()
    ends = {"endOffset": {"t": {"0": 1}}, "latestOffset": {"t": {"0": 2}}}
    collector.progress({"id": "query", "batchId": 1, "sources": [ends], "durationMs": {"addBatch": 5}})
    assert [family.name for family in collector.collect() if not family.samples] == []


def written(tree: ast.Module) -> set[str]:
    """Counters to which code adds: `stats.x += 1`, `stats.x[key] += 1`, `stats.x.add()`."""
    places = [
        node.target if isinstance(node, ast.AugAssign) else node.func.value
        for node in ast.walk(tree)
        if isinstance(node, ast.AugAssign)
        or (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in WRITERS)
    ]
    places = [place.value if isinstance(place, ast.Subscript) else place for place in places]
    return {
        place.attr
        for place in places
        if isinstance(place, ast.Attribute)
        and ast.unparse(place.value).rpartition(".")[2] in {"stats", "_stats"}
    }


def test_code_adds_to_each_counter():
    of_consumers, of_producers = set(), set()
    for path in PACKAGE.rglob("*.py"):
        where = path.relative_to(PACKAGE).parts[0]
        if where not in {"spark", "stats.py"}:
            found = of_consumers if where in {"_consuming", "consumer.py", "cluster"} else of_producers
            found |= written(ast.parse(path.read_text(encoding="utf-8")))
    assert vars(ConsumerStats()).keys() - of_consumers == {"started_s"}
    assert vars(Stats()).keys() - of_producers == {"started_s"}


def test_what_counts_as_an_addition():
    tree = ast.parse(
        "stats.one += 1; self._stats.two['t', 0] += 1; a.stats.three.add(); a.four += 1; stats.five.copy()"
    )
    assert written(tree) == {"one", "two", "three"}
