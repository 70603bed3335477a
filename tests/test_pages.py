"""The generated pages of docs/ say what the code says, and the code says enough."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import confluent_kafka
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from prometheus_client import CollectorRegistry

from kafkasafe import SafeProducer, config
from kafkasafe.config.names import REMOVED, WITHOUT_EFFECT
from kafkasafe.metrics import install
from tests import log_events
from tests.pages import DOCS, errors, events, metrics, options
from tests.pages.all import PAGES


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.PATH.name)
def test_the_page_is_what_the_code_makes(page):
    # After a change: .venv/bin/python -m tests.pages
    assert page.PATH.read_text(encoding="utf-8") == page.text()


def test_all_is_said_of_every_error():
    known = errors.errors()
    assert len(known) > 20
    facts = errors.facts()
    assert known.keys() == facts.keys()
    assert [name for name, error in known.items() if not (error.__doc__ or "").strip()] == []
    assert [name for name, each in facts.items() if not (each.data and each.action)] == []
    # The roots are raised by nothing themselves.
    assert [name for name, each in facts.items() if not each.calls] == ["KafkaSafeError", "SparkError"]


def test_the_calls_that_raise_errors_exist():
    for facts in errors.facts().values():
        for name in facts.calls:
            assert callable(errors.call(name)) or isinstance(errors.call(name), property), name


def test_every_field_of_every_event_has_a_type_and_a_meaning():
    assert len(events.classes()) > 30
    missing = [
        (name, field)
        for name in events.classes()
        for field, (kind, meaning) in events.fields(name).items()
        if not kind or not meaning
    ]
    assert missing == []


def test_the_names_of_metrics_are_those_that_prometheus_sees(tmp_path):
    registry = CollectorRegistry()
    with SafeProducer(bootstrap_servers="127.0.0.1:1", spool_dir=tmp_path / "spool") as producer:
        install(producer, registry=registry, partitions=True)
        families = {
            family.name + ("_total" if family.type == "counter" else ""): family
            for family in registry.collect()
        }
    assert len(families) > 20
    assert families.keys() <= set(metrics.names())
    page = metrics.PATH.read_text(encoding="utf-8")
    for name, family in families.items():
        for labels in {tuple(sample.labels) for sample in family.samples}:
            listed = ", ".join(f"`{label}`" for label in labels if label != "le")
            assert f"| `{name}` | {family.type} | {listed} |" in page


def test_every_event_that_is_logged_is_on_the_page_with_its_levels():
    logged = log_events.logged()
    of_consumers = log_events.of_consumer_events()
    assert len(logged) > 80
    # One call names its event at run time: that of a consumer's events.
    assert [name for name in logged if name.startswith("<")] == ["<name>"]
    assert logged.pop("<name>") >= {"WARNING", "ERROR"}
    for name, levels in of_consumers.items():
        logged.setdefault(name, set()).update(levels)
    listed = log_events.listed()
    assert logged == listed
    assert list(listed) == sorted(listed)


def test_every_option_has_a_text_that_editors_show_and_the_page_has():
    kinds = ("ConnectionOptions", "ProducerOptions", "ConsumerOptions")
    known = {name: said for kind in kinds for name, (_, said) in options.texts(kind).items()}
    assert known.keys() == config.DEFAULTS.keys() | options.CONSUMER.keys()
    assert [name for name, said in known.items() if len(said) < 20] == []
    page = options.PATH.read_text(encoding="utf-8")
    assert [name for name in known if f"| `{name}` |" not in page] == []


@pytest.mark.parametrize("name", ["retries", "max_in_flight_requests_per_connection", *WITHOUT_EFFECT])
def test_a_producers_option_whose_effect_is_limited_is_logged_as_such(name, caplog):
    # 7 is nobody's default, and no value of these options is looked at.
    config.validate({name: 7})
    assert [record.event for record in caplog.records] == ["option_ignored"]
    assert options.of_producer(name) != "used"


# -- migration ---------------------------------------------------------------------------------------------------------


def page(name):
    return (DOCS / name).read_text(encoding="utf-8")


def test_options_that_kafka_python_lost_are_on_the_page_of_migration():
    gone = page("migrating-from-kafka-python.md").partition("### Removed options")[2].partition("\n### ")[0]
    assert [name for name in REMOVED if f"`{name}`" not in gone] == []


def test_the_options_of_librdkafka_exist_and_so_do_ours():
    rows = re.findall(
        r"^\| (`.+`)[^|]* \| (.+) \|$",
        page("migrating-from-confluent-kafka.md").partition("## Options")[2],
        re.MULTILINE,
    )
    theirs = [name for left, _ in rows for name in re.findall(r"`([a-z]+(?:\.[a-z]+)+)`", left)]
    assert len(theirs) > 50
    unknown = []
    for name in theirs:
        try:
            confluent_kafka.Producer({name: "no such value"})
        except confluent_kafka.KafkaException as error:
            if "No such configuration property" in str(error):
                unknown.append(name)
    assert unknown == []
    ours = {name for _, right in rows for name in re.findall(r"`([a-z]+(?:_[a-z]+)+)`", right)}
    known = config.DEFAULTS.keys() | options.CONSUMER.keys() | log_events.listed().keys()
    assert ours <= known
    assert len(ours & known) > 40
