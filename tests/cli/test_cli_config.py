"""What a file given as `--config` does in the commands of the spool. On a Kafka in memory."""

from __future__ import annotations

import json
import os

import pytest
from commands import run
from programs import python
from prometheus_client import CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector

from kafkasafe import SafeProducer


@pytest.fixture
def left(fake_kafka, tmp_path):
    """Leaves three records in a spool, and writes such options to a file; returns the arguments of a drain."""
    fake_kafka.create_topic("orders", partitions=1)
    spool, file = tmp_path / "spool", tmp_path / "kafka.json"

    def leave(**options):
        with SafeProducer(bootstrap_servers="127.0.0.1:9", spool_dir=spool) as producer:
            for number in range(3):
                producer.send("orders", b"%d" % number).durable(60)
            producer.close(0)
        file.write_text(json.dumps({"bootstrap_servers": fake_kafka.bootstrap_servers, **options}))
        return "spool", "drain", str(spool), "--config", str(file)

    return leave


def test_where_several_processes_are_scraped_as_one_a_drain_is_one_of_them(left, tmp_path):
    (tmp_path / "multi").mkdir()
    done = python(
        "-m",
        "kafkasafe",
        *left(prometheus=True),
        env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path / "multi")},
        check=True,
    )
    assert done.stdout == "3 records delivered, 0 left\n"
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=str(tmp_path / "multi"))
    labels = {"client_id": "kafkasafe-drain", "topic": "orders", "outcome": "committed"}
    assert registry.get_sample_value("kafkasafe_records_total", labels) == 3


@pytest.mark.parametrize("name", ["kafka.json", "kafka.toml"])
def test_a_version_of_the_brokers_is_a_list_there(left, tmp_path, capsys, name):
    """Neither JSON nor TOML has tuples."""
    arguments = left()
    file = tmp_path / name
    servers = json.loads((tmp_path / "kafka.json").read_text())["bootstrap_servers"]
    colon = ": " if file.suffix == ".json" else " = "
    text = (f'"bootstrap_servers"{colon}{json.dumps(servers)}', f'"api_version"{colon}[2, 8]')
    file.write_text(f"{{{', '.join(text)}}}" if file.suffix == ".json" else "\n".join(text))
    code, out, _ = run(capsys, *arguments[:-1], file)
    assert (code, out) == (0, "3 records delivered, 0 left\n")


@pytest.mark.parametrize(
    "option",
    [{"key_serializer": "utf-8"}, {"partitioner": "murmur2"}, {"api_version": "x"}, {"client_dns_lookup": 5}],
)
def test_a_value_that_cannot_work_is_a_usage_error(left, capsys, option):
    code, out, err = run(capsys, *left(**option))
    assert (code, out) == (2, "")
    assert f"Invalid value for --config: {next(iter(option))} must " in err
    assert "Traceback" not in err
