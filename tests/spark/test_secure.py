"""The source and the sink by TLS and SCRAM, as the driver and as the workers."""

from __future__ import annotations

import pytest
from sinks import new_name, numbers, values

from kafkasafe.spark import foreach_batch_sink
from kafkasafe.testing.broker import KafkaCluster

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


@pytest.fixture(scope="module")
def cluster():
    with KafkaCluster(brokers=1, listeners={"SECURE": "SASL_SSL"}) as running:
        yield running


@pytest.fixture
def options(cluster):
    given = cluster.client_options("SECURE")
    return {
        "kafka.bootstrap.servers": ",".join(given["bootstrap_servers"]),
        "kafka.security.protocol": given["security_protocol"],
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": given["ssl_cafile"],
        "kafka.sasl.mechanism": given["sasl_mechanism"],
        "kafka.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required"
        f' username="{given["sasl_plain_username"]}" password="{given["sasl_plain_password"]}";',
    }


def test_a_stream_from_topic_to_topic(spark, cluster, options, tmp_path):
    come, go = new_name("come"), new_name("go")
    for name in (come, go):
        cluster.create_topic(name, partitions=2)
    rows = spark.range(0, 500, 1, 2).selectExpr("CAST(id AS STRING) AS value")
    with_sink = foreach_batch_sink(come, txnAppId=new_name("app"), **options)
    with_sink(rows, 0)
    with_sink.close()
    sink = foreach_batch_sink(go, txnAppId=new_name("app"), **options)
    query = (
        spark.readStream.format("kafkasafe")
        .options(**options, subscribe=come, startingOffsets="earliest")
        .load()
        .select("value")
        .writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(300)
    sink.close()
    assert values(cluster, go) == numbers(range(500))
    frame = spark.read.format("kafkasafe").options(**options, subscribe=go, startingOffsets="earliest").load()
    assert frame.count() == 500
