"""Certificates and keys as text in options (KIP-651)."""

from __future__ import annotations

import pickle
import ssl
import subprocess
from pathlib import Path

import pytest
from sinks import new_name, numbers, values

from kafkasafe.errors import ConfigError
from kafkasafe.spark import pem
from kafkasafe.spark.options import read_options
from kafkasafe.spark.pem import Pem, PemContext, pem_text
from kafkasafe.spark.writers import stream_writer
from kafkasafe.testing.broker import KafkaCluster

BASE = {"kafka.bootstrap.servers": "one:9093", "subscribe": "orders", "kafka.security.protocol": "SSL"}


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """A certificate that is its own authority, its key, and the same key with a password."""
    folder = tmp_path_factory.mktemp("pem")
    for arguments in (
        "req -x509 -newkey rsa:2048 -nodes -days 30 -subj /CN=client -keyout key.pem -out client.pem",
        "pkcs8 -topk8 -in key.pem -passout pass:secret -out locked.pem",
    ):
        subprocess.run(["openssl", *arguments.split()], cwd=folder, check=True, capture_output=True)
    return folder


def one_line(text: str) -> str:
    return " ".join(text.split("\n"))


def options(**given: str) -> dict[str, str]:
    return {f"kafka.ssl.{name.replace('_', '.')}": value for name, value in given.items()}


@pytest.mark.parametrize("shape", [str, one_line, lambda text: text.replace("\n", "\\n")])
def test_lines_may_be_lost(made, shape):
    text = (made / "client.pem").read_text()
    assert pem_text(shape(text)) == text
    assert pem_text(shape(text + text)) == text + text


@pytest.mark.parametrize("key", ["key.pem", "locked.pem"])
@pytest.mark.parametrize("in_memory", [True, False])
def test_a_context_of_texts_is_the_same_in_other_processes(made, key, in_memory, monkeypatch):
    if not in_memory:
        monkeypatch.delattr(pem.os, "memfd_create")
    client = (made / "client.pem").read_text()
    given = options(
        truststore_certificates=one_line(client),
        truststore_type="PEM",
        keystore_certificate_chain=client,
        keystore_key=one_line((made / key).read_text()),
        key_password="secret",
    )
    connection = read_options({**BASE, **given}, streaming=True).connection
    assert set(connection) == {"bootstrap_servers", "security_protocol", "ssl_context"}
    context = connection["ssl_context"]
    assert isinstance(context, ssl.SSLContext)
    assert context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.cert_store_stats()["x509_ca"] == 1
    other = pickle.loads(pickle.dumps(context))
    # Tasks share connections by the text of their options, which is no place for a key.
    assert (other, repr(other), hash(other)) == (context, repr(context), hash(context))
    assert "secret" not in repr(other)
    assert "PRIVATE" not in repr(other)
    assert other.cert_store_stats() == context.cert_store_stats()
    assert repr(PemContext(Pem(authorities=client))) != repr(context)


def test_text_and_file_may_be_mixed(made):
    given = options(
        truststore_location=str(made / "client.pem"),
        truststore_type="PEM",
        keystore_certificate_chain=(made / "client.pem").read_text() + (made / "key.pem").read_text(),
        endpoint_identification_algorithm="",
    )
    context = read_options({**BASE, **given}, streaming=True).connection["ssl_context"]
    assert context.cert_store_stats()["x509_ca"] == 1
    assert not context.check_hostname


def test_what_cannot_be_used_is_refused_at_once(made):
    client, key = ((made / name).read_text() for name in ("client.pem", "key.pem"))
    locked = (made / "locked.pem").read_text()
    for given, told in (
        (options(truststore_certificates="MIID"), "kafka.ssl.truststore.certificates contains no PEM"),
        (options(truststore_certificates=client, truststore_type="JKS"), "kafka.ssl.truststore.type=PEM"),
        (
            options(truststore_certificates=client, truststore_location="/x", truststore_type="PEM"),
            "give only one of them",
        ),
        (options(keystore_key=key), "add kafka.ssl.keystore.certificate.chain"),
        (options(keystore_certificate_chain=client), "kafka.ssl.keystore.certificate.chain cannot be used"),
        (options(keystore_certificate_chain=client, keystore_key=locked), "cannot be used"),
        (options(keystore_certificate_chain=key, keystore_key=key), "cannot be used"),
        (options(keystore_keyy=key), "Did you mean kafka.ssl.keystore.key?"),
    ):
        with pytest.raises(ConfigError) as raised:
            read_options({**BASE, **given}, streaming=True)
        assert told in str(raised.value)
        assert "PRIVATE" not in str(raised.value)


@pytest.fixture(scope="module")
def cluster(made):
    """Brokers that want a certificate of their clients."""
    settings = {
        "listener.name.secure.ssl.client.auth": "required",
        "listener.name.secure.ssl.truststore.type": "PEM",
        "listener.name.secure.ssl.truststore.location": made / "client.pem",
    }
    with KafkaCluster(brokers=1, listeners={"SECURE": "SSL"}, config=settings) as running:
        yield running


@pytest.mark.spark
@pytest.mark.kafka
def test_source_and_writer_with_a_certificate_as_text(spark, cluster, made):
    topic = new_name()
    cluster.create_topic(topic, partitions=2)
    authority = Path(cluster.client_options("SECURE")["ssl_cafile"]).read_text()
    given = {
        "kafka.bootstrap.servers": cluster.address("SECURE"),
        "kafka.security.protocol": "SSL",
        "kafka.ssl.truststore.certificates": one_line(authority),
        "kafka.ssl.keystore.certificate.chain": (made / "client.pem").read_text(),
        "kafka.ssl.keystore.key": (made / "locked.pem").read_text(),
        "kafka.ssl.key.password": "secret",
    }
    rows = spark.range(0, 100).selectExpr("CAST(id AS STRING) AS value")
    rows.write.format("kafkasafe").mode("append").options(**given, topic=topic).save()
    assert values(cluster, topic) == numbers(range(100))
    found = spark.read.format("kafkasafe").options(**given, subscribe=topic).load()
    assert found.count() == 100
    assert pickle.loads(pickle.dumps(stream_writer({**given, "topic": topic, "txnAppId": "a"}, rows.schema)))
