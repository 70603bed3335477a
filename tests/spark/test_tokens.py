"""SASL/OAUTHBEARER by a named function, on a real broker that takes unsecured tokens."""

from __future__ import annotations

import pytest
from sinks import new_name, numbers, values

from kafkasafe.errors import ConfigError
from kafkasafe.spark import foreach_batch_sink, write_batch
from kafkasafe.spark.options import read_options
from kafkasafe.testing.broker import KafkaCluster

LOGIN = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
TOKENS = {
    "kafka.security.protocol": "SASL_PLAINTEXT",
    "kafka.sasl.mechanism": "OAUTHBEARER",
    "kafka.sasl.oauth.token.provider": "tokening:token",
}


@pytest.fixture(scope="module")
def cluster():
    settings = {
        "listener.name.secure.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        "listener.name.secure.oauthbearer.sasl.jaas.config": f'{LOGIN} unsecuredLoginStringClaim_sub="admin";',
    }
    with KafkaCluster(brokers=1, listeners={"SECURE": "SASL_PLAINTEXT"}, config=settings) as made:
        yield made


@pytest.mark.spark
@pytest.mark.kafka
def test_source_sink_and_writer_with_tokens(spark, cluster):
    topic = new_name()
    cluster.create_topic(topic, partitions=2)
    given = {"kafka.bootstrap.servers": cluster.address("SECURE"), **TOKENS}
    rows = spark.range(0, 100).selectExpr("CAST(id AS STRING) AS value")
    write_batch(rows.where("id < 50"), topic, **given)
    rows.where("id >= 50").write.format("kafkasafe").mode("append").options(**given, topic=topic).save()
    assert values(cluster, topic) == numbers(range(100))
    found = spark.read.format("kafkasafe").options(**given, subscribe=topic).load()
    assert found.selectExpr("CAST(CAST(value AS STRING) AS INT) AS v").agg({"v": "sum"}).first()[0] == sum(
        range(100)
    )
    broken = {**given, "kafka.sasl.oauth.token.provider": "tokening:broken", "kafka.max.block.ms": 3000}
    with pytest.raises(RuntimeError, match="the token server is away"):
        write_batch(rows, topic, **broken)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"kafka.sasl.oauth.token.provider": ""}, "package.module:function"),
        ({"kafka.sasl.oauth.token.provider": "token"}, "package.module:function"),
        ({"kafka.sasl.oauth.token.provider": "nosuch:token"}, "cannot be imported.*No module named 'nosuch'"),
        (
            {"kafka.sasl.oauth.token.provider": "tokening:nosuch"},
            "cannot be imported.*has no attribute 'nosuch'",
        ),
        ({"kafka.sasl.mechanism": "FOO"}, "one of PLAIN, SCRAM-SHA-256"),
        (
            {"kafka.sasl.login.callback.handler.class": "x.Y"},
            "kafka.sasl.oauth.token.provider=package.module:function",
        ),
    ],
)
def test_what_cannot_give_a_token_is_refused_at_once(given, told):
    with pytest.raises(ConfigError, match=told):
        foreach_batch_sink("t", **{"kafka.bootstrap.servers": "b:1", **TOKENS, **given})


def test_a_mechanism_of_tokens_needs_a_function():
    given = {"kafka.bootstrap.servers": "b:1", "subscribe": "t", **TOKENS}
    del given["kafka.sasl.oauth.token.provider"]
    with pytest.raises(ConfigError, match=r"add kafka\.sasl\.oauth\.token\.provider"):
        read_options(given, streaming=True)
    # What it says to Java's client is no user and password.
    given |= {"kafka.sasl.oauth.token.provider": "tokening:token", "kafka.sasl.jaas.config": f"{LOGIN};"}
    assert repr(read_options(given, streaming=True).connection["sasl_oauth_token_provider"]) == (
        "TokenFunction('tokening:token')"
    )


CALLBACKS = "software.amazon.msk.auth.iam.IAMClientCallbackHandler"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kafka.sasl.jaas.config", "software.amazon.msk.auth.iam.IAMLoginModule required;"),
        ("kafka.sasl.client.callback.handler.class", CALLBACKS),
        ("kafka.sasl.login.callback.handler.class", CALLBACKS),
    ],
)
def test_java_s_lines_for_msk_are_to_be_left_out(name, value):
    """They may name a role or a profile, so they are not just ignored."""
    given = {"kafka.bootstrap.servers": "b:1", "subscribe": "t", "kafka.security.protocol": "SASL_SSL"}
    given["kafka.sasl.mechanism"] = "AWS_MSK_IAM"
    assert read_options(given, streaming=True).connection["sasl_mechanism"] == "AWS_MSK_IAM"
    with pytest.raises(ConfigError, match=f"{name} cannot be set.*leave out .*: .*botocore") as raised:
        read_options({**given, name: value}, streaming=True)
    assert "oauth" not in str(raised.value)
