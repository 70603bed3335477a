"""A listener with TLS and SCRAM: producer, consumer and command line work through it, and say why when they cannot."""

from __future__ import annotations

import json
import shutil
import threading
import time

import kafka.errors as kafka_errors
import pytest
from typer.testing import CliRunner

from kafkasafe import SafeConsumer, SafeProducer, cli
from kafkasafe.errors import ConfigError, DeliveryTimeoutError
from kafkasafe.testing import jars, secure
from kafkasafe.testing.broker import KafkaCluster

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def cluster():
    with KafkaCluster(
        brokers=1, listeners={"SECURE": "SASL_SSL", "TLS": "SSL"}, users={"alice": "alice-secret", "bob": "b"}
    ) as running:
        running.create_topic("orders", 1)
        yield running


def produced(cluster, tmp_path, count, **options):
    with SafeProducer(**options, spool_dir=tmp_path / "spool") as producer:
        futures = [producer.send("orders", b"%d" % number) for number in range(count)]
        return [future.get(60).offset for future in futures]


@pytest.mark.parametrize("mechanism", secure.MECHANISMS)
def test_producer_and_consumer_of_every_mechanism(cluster, tmp_path, mechanism):
    options = cluster.client_options("SECURE", "bob", mechanism)
    assert options["bootstrap_servers"] == [cluster.address("SECURE")]
    offsets = produced(cluster, tmp_path, 10, **options)
    consumer = SafeConsumer("orders", **options, auto_offset_reset="earliest", group_id=mechanism)
    found = []
    deadline = time.monotonic() + 60
    while offsets[-1] not in found and time.monotonic() < deadline:
        found += [record.offset for records in consumer.poll(500).values() for record in records]
    consumer.close()
    assert offsets[-1] in found


def test_tls_without_authentication(cluster, tmp_path):
    options = cluster.client_options("TLS")
    assert set(options) == {"bootstrap_servers", "security_protocol", "ssl_cafile"}
    assert len(produced(cluster, tmp_path, 3, **options)) == 3


def test_the_command_line_by_a_config_file(cluster, tmp_path):
    options = cluster.client_options("SECURE")
    spool = tmp_path / "spool"
    with SafeProducer(bootstrap_servers="127.0.0.1:9", spool_dir=spool) as producer:
        producer.send("orders", b"waits").durable(60)
        producer.close(timeout=0)
    config = tmp_path / "kafka.json"
    config.write_text(json.dumps(options))
    config.chmod(0o600)
    for arguments in (
        ["doctor", str(spool), "--outage", "1s"],
        ["spool", "drain", str(spool), "--timeout", "60s"],
        ["offsets", "orders"],
        ["audit", "orders"],
    ):
        result = CliRunner().invoke(cli.app, [*arguments, "--config", str(config)])
        assert result.exit_code in ({0, 1} if arguments[0] == "doctor" else {0}), (arguments, result.output)


wrong_settings = pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"sasl_plain_password": "wrong"}, "SaslAuthenticationFailedError"),
        ({"ssl_cafile": None}, "certificate verify failed"),
        (
            {"security_protocol": "SASL_PLAINTEXT", "ssl_cafile": None},
            "it answers in TLS, so security_protocol must be SSL or SASL_SSL",
        ),
        (
            {"sasl_mechanism": "SCRAM-SHA-512", "sasl_plain_username": "nobody"},
            "SaslAuthenticationFailedError",
        ),
    ],
)


@wrong_settings
def test_the_cause_is_where_an_application_waits(cluster, tmp_path, change, cause):
    options = {**cluster.client_options("SECURE"), **change}
    producer = SafeProducer(**options, spool_dir=tmp_path, delivery_timeout_ms=4000)
    try:
        deadline = time.monotonic() + 60
        while producer.last_network_error is None:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        # Not before: however long a busy machine takes to be refused, the record has its time.
        future = producer.send("orders", b"x")
        why = rf"Brokers cannot be used yet \(.*({cause})"
        with pytest.raises(kafka_errors.KafkaTimeoutError, match=why):
            future.get(0.1)
        with pytest.raises(kafka_errors.KafkaTimeoutError, match=why):
            producer.flush(0.1)
        with pytest.raises(DeliveryTimeoutError, match=why):
            future.get(60)
        assert not producer.bootstrap_connected()
    finally:
        producer.close(timeout=0)


@wrong_settings
def test_a_consumer_that_cannot_start_says_why_and_leaves_nothing_behind(cluster, change, cause):
    before = set(threading.enumerate())
    with pytest.raises(kafka_errors.KafkaTimeoutError, match=rf"Unable to bootstrap from .*{cause}"):
        SafeConsumer(**{**cluster.client_options("SECURE"), **change}, bootstrap_timeout_ms=4000)
    deadline = time.monotonic() + 60
    while left := {thread for thread in set(threading.enumerate()) - before if "-io-" in thread.name}:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def test_no_cause_is_named_while_the_cluster_answers(cluster, tmp_path):
    with SafeProducer(**cluster.client_options("SECURE"), spool_dir=tmp_path) as producer:
        producer.send("orders", b"x").get(60)
        assert producer.bootstrap_connected()
        assert producer.last_network_error is None


def test_kafkas_own_tools_are_fetched_when_they_are_asked_for(cluster, tmp_path):
    with SafeProducer(**cluster.client_options("SECURE"), spool_dir=tmp_path) as producer:
        producer.send("orders", b"x").get(60)
    (segment,) = cluster.log_segments("orders", 0)
    assert "baseOffset" in cluster.run_java_tool("org.apache.kafka.tools.DumpLogSegments", "--files", segment)


@pytest.mark.parametrize("tool", ["openssl", "keytool"])
def test_a_certificate_by_either_tool(tmp_path, mocker, tool):
    if shutil.which(tool) is None:
        pytest.skip(f"no {tool}")
    which = shutil.which
    only = mocker.patch("shutil.which", autospec=True)
    only.side_effect = lambda name, **more: which(name, **more) if name == tool else None
    certificate, store = secure.make_certificate(tmp_path, jars.find_java())
    assert "BEGIN CERTIFICATE" in certificate.read_text()
    assert store.stat().st_size > 1000
    only.side_effect = lambda *_, **__: None
    with pytest.raises(ConfigError, match="openssl or keytool"):
        secure.make_certificate(tmp_path, jars.find_java())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"listeners": {"secure": "SSL"}}, "must be a name in capitals"),
        ({"listeners": ["SECURE"]}, r'listeners must be a dict, as {"SECURE": "SASL_SSL"}, not \['),
        ({"users": ["alice"]}, r'users must be a dict, as {"alice": "secret"}, not \['),
        ({"listeners": {"CLIENT": "SSL"}}, "none of CLIENT"),
        ({"listeners": {"SECURE": "TLS"}}, "SECURE must be one of PLAINTEXT, SSL"),
        ({"listeners": {"S": "SSL"}, "version": "1.1.1"}, "need Kafka 2.0"),
        ({"users": {"a b": "x"}}, "plain words"),
        ({"listeners": {"S": "SASL_SSL"}, "users": {}}, "leave users out for alice"),
    ],
)
def test_listeners_that_cannot_be(options, says):
    with pytest.raises(ConfigError, match=says):
        KafkaCluster(brokers=1, **options)
