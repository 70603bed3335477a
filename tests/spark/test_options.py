"""Options of the source: what is understood, and what the errors say."""

from __future__ import annotations

import pytest

from kafkasafe.errors import ConfigError
from kafkasafe.spark import kafka_options
from kafkasafe.spark.options import Assign, Offsets, Pattern, Subscribe, Times, read_options

BASE = {"kafka.bootstrap.servers": "one:9092, two:9093", "subscribe": "orders"}


def of(streaming: bool = True, **given: str) -> object:
    return read_options({**BASE, **given}, streaming=streaming)


def test_defaults_are_those_of_sparks_source() -> None:
    stream = read_options(BASE, streaming=True)
    assert stream.connection == {"bootstrap_servers": ["one:9092", "two:9093"]}
    assert stream.what == Subscribe(("orders",))
    assert stream.starting == Offsets(everywhere=-1)
    assert stream.fail_on_data_loss
    assert not stream.include_headers
    assert stream.isolation == 0
    batch = read_options(BASE, streaming=False)
    assert (batch.starting, batch.ending) == (Offsets(everywhere=-2), Offsets(everywhere=-1))


def test_names_have_no_case() -> None:
    found = read_options(
        {
            "KAFKA.BOOTSTRAP.SERVERS": "one:9092",
            "subscribepattern": "or.*",
            "STARTINGOFFSETS": "Earliest",
            "failondataloss": "FALSE",
            "includeheaders": "true",
            "kafka.isolation.level": "read_committed",
            "maxoffsetspertrigger": "10",
            "minpartitions": "3",
        },
        streaming=True,
    )
    assert found.what == Pattern("or.*")
    assert found.starting == Offsets(everywhere=-2)
    assert (found.fail_on_data_loss, found.include_headers, found.isolation) == (False, True, 1)
    assert (found.max_offsets, found.min_partitions) == (10, 3)


def test_bounds_by_partition_and_by_time() -> None:
    found = read_options({**BASE, "startingOffsets": '{"orders":{"0":23,"1":-1}}'}, streaming=True)
    assert found.starting == Offsets(each={("orders", 0): 23, ("orders", 1): -1})
    found = read_options({**BASE, "startingOffsetsByTimestamp": '{"orders":{"0":5}}'}, streaming=True)
    assert found.starting == Times(each={("orders", 0): 5})
    found = read_options({**BASE, "startingTimestamp": "7", "startingOffsets": "latest"}, streaming=True)
    assert found.starting == Times(everywhere=7)
    found = read_options({**BASE, "endingTimestamp": "9"}, streaming=False)
    assert found.ending == Times(everywhere=9)


def test_assign() -> None:
    given = {"kafka.bootstrap.servers": "one:9092", "assign": '{"orders":[0,2],"payments":[1]}'}
    found = read_options(given, streaming=True)
    assert found.what == Assign((("orders", 0), ("orders", 2), ("payments", 1)))
    # Only partition 1 was read.
    with pytest.raises(ConfigError, match="name nothing twice"):
        read_options({**given, "assign": '{"orders":[0],"orders":[1]}'}, streaming=True)


def test_security_is_told_in_kafkas_words() -> None:
    given = {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-256",
        "kafka.sasl.jaas.config": 'x.ScramLoginModule required username="al\\"ice" password="s3cret";',
        "kafka.ssl.endpoint.identification.algorithm": "",
        "kafka.ssl.truststore.location": "/ca.pem",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.request.timeout.ms": "5000",
    }
    assert read_options({**BASE, **given}, streaming=True).connection == {
        "bootstrap_servers": ["one:9092", "two:9093"],
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-256",
        "sasl_plain_username": 'al"ice',
        "sasl_plain_password": "s3cret",
        "ssl_check_hostname": False,
        "ssl_cafile": "/ca.pem",
        "request_timeout_ms": 5000,
    }


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"startingOffset": "latest"}, "Did you mean startingOffsets?"),
        ({"kafka.security.protocl": "SSL"}, "Did you mean kafka.security.protocol?"),
        ({"kafka.auto.offset.reset": "latest"}, "use startingOffsets to say where to begin"),
        ({"kafka.ssl.truststore.location": "/x.jks"}, "export it as PEM"),
        ({"kafka.security.protocol": "SASL_SSL"}, "kafka.sasl.mechanism"),
        ({"kafka.bootstrap.servers": "nowhere"}, "host1:9092,host2:9092"),
        ({"subscribePattern": "x"}, "subscribe and subscribePattern are given"),
        ({"failOnDataLoss": "maybe"}, "true or false"),
        ({"minPartitions": "none"}, "a whole number from 1"),
        ({"startingOffsets": "newest"}, "it must be JSON like"),
        ({"startingOffsets": '{"orders":{"0":5,"0":6}}'}, "name nothing twice"),
        ({"startingOffsets": '{"orders":{"0":5},"orders":{"1":6}}'}, "name nothing twice"),
        ({"startingOffsets": '{"orders":{"0":5,"00":6}}'}, "name nothing twice"),
        ({"startingOffsets": f'{{"orders":{{"0":{2**63}}}}}'}, "it must be JSON like"),
        ({"startingOffsetsByTimestamp": f'{{"orders":{{"0":{2**63}}}}}'}, "it must be JSON like"),
        ({"startingOffsets": '{"orders":5}'}, "(-2 earliest, -1 latest), or the word earliest or latest"),
        ({"startingOffsets": '{"orders":{"0":-3}}'}, "-2 earliest, -1 latest"),
        ({"endingOffsets": "latest"}, "trigger(availableNow=True)"),
        ({"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"}, "above maxOffsetsPerTrigger"),
        ({"maxTriggerDelay": "soon"}, "a time like 15m, 30s or 500ms"),
        ({"maxTriggerDelay": "9" * 400 + "d"}, "a time like 15m, 30s or 500ms"),
        ({"fetchOffset.numRetries": "abc"}, "a whole number from 0"),
        ({"isolationLevel": "read_committed", "kafka.isolation.level": "read_uncommitted"}, "contradict"),
        ({"isolationLevel": "serializable"}, "one of read_uncommitted, read_committed"),
        ({"onEvent": "print"}, "package.module:function"),
    ],
)
def test_wrong_options_name_the_fix(given: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError, match=r"\[KAFKASAFE\.[A-Z_]+\] ") as raised:
        read_options({**BASE, **given}, streaming=True)
    assert told in str(raised.value)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"startingOffsets": "latest"}, "there would be nothing to read"),
        ({"endingOffsets": '{"orders":{"0":-2}}'}, "there would be nothing to read"),
        ({"maxOffsetsPerTrigger": "5"}, "use endingOffsets"),
        ({"minOffsetsPerTrigger": "5"}, "use endingOffsets"),
    ],
)
def test_what_a_batch_query_cannot_do(given: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read_options({**BASE, **given}, streaming=False)
    assert told in str(raised.value)


def test_what_is_missing_is_named() -> None:
    with pytest.raises(ConfigError, match=r"add \.option"):
        read_options({"subscribe": "orders"}, streaming=True)
    with pytest.raises(ConfigError, match="None of them is given: give exactly one"):
        read_options({"kafka.bootstrap.servers": "one:9092"}, streaming=True)


@pytest.mark.parametrize("pattern", ["orders-[a-z&&[^x]]", "[[a]]", "("])
def test_a_pattern_that_means_something_else_in_java_is_refused(pattern: str) -> None:
    with pytest.raises(ConfigError, match="not a Python regular expression"):
        read_options({"kafka.bootstrap.servers": "one:9092", "subscribePattern": pattern}, streaming=True)


def test_options_of_the_java_client_are_taken_with_a_word(caplog: pytest.LogCaptureFixture) -> None:
    kafka_options._say_ignored.cache_clear()
    given = {"kafka.max.poll.records": "500", "kafka.session.timeout.ms": "1", "kafka.client.rack": "a"}
    plain = read_options(BASE, streaming=True)
    for _ in range(2):
        assert read_options({**BASE, **given}, streaming=True) == plain
    # Spark's and brokers' own threads may log as well.
    said = [
        record.getMessage().split()[0]
        for record in caplog.records
        if record.name.startswith("kafkasafe.spark")
    ]
    assert sorted(said) == sorted(given)
    with pytest.raises(ConfigError, match="not an option of kafkasafe"):
        read_options({**BASE, "kafka.max.pol.recods": "1"}, streaming=True)


@pytest.mark.parametrize(
    ("text", "seconds"), [("15m", 900), ("30 s", 30), ("500ms", 0.5), ("250", 0.25), ("1h", 3600)]
)
def test_times_are_sparks(text: str, seconds: float) -> None:
    found = read_options({**BASE, "minOffsetsPerTrigger": "5", "maxTriggerDelay": text}, streaming=True)
    assert (found.min_offsets, found.max_trigger_delay_s) == (5, seconds)
