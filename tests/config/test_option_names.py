"""What an unknown option was meant to be, and sizes as text."""

from __future__ import annotations

import pytest
from kafka import KafkaConsumer

from kafkasafe import SafeConsumer, config, option_names
from kafkasafe.config.table import CONSUMER_DEFAULTS
from kafkasafe.errors import ConfigError
from kafkasafe.option_names import size_of, snake

CONSUMER = {**KafkaConsumer.DEFAULT_CONFIG, **CONSUMER_DEFAULTS}


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        # what users guess
        ("spool_path", "spool_dir"),
        ("spool_size", "spool_max_bytes"),
        ("dlq_topic", "on_rejected"),
        ("dead_letter_queue", "on_rejected"),
        # former names
        ("dead_letter", "on_rejected"),
        ("metrics", "prometheus"),
        ("refused_timeout_ms", "blocked_timeout_ms"),
        ("on_refused_topic", "on_blocked_topic"),
        ("on_acked_loss", "on_data_loss"),
        ("retain_acked_s", "retain_acked_ms"),
        ("exactly_once", "delivery"),
        ("retention", "retain_acked_bytes"),
        # librdkafka's
        ("linger.ms", "linger_ms"),
        ("queue.buffering.max.ms", "linger_ms"),
        ("queue.buffering.max.kbytes", "spool_max_bytes"),
        ("enable.idempotence", "enable_idempotence"),
        ("message.timeout.ms", "delivery_timeout_ms"),
        ("bootstrap.servers", "bootstrap_servers"),
        ("metadata.broker.list", "bootstrap_servers"),
        ("sasl.mechanisms", "sasl_mechanism"),
        ("sasl.username", "sasl_plain_username"),
        ("ssl.ca.location", "ssl_cafile"),
        ("compression.codec", "compression_type"),
        ("request.required.acks", "acks"),
        # Java's, in snake case and in camel case
        ("max_block.ms", "max_block_ms"),
        ("ssl_truststore_location", "ssl_cafile"),
        ("ssl_keystore_location", "ssl_certfile"),
        ("sasl_jaas_config", "sasl_plain_username"),
        ("partitioner_class", "partitioner"),
        ("lingerMs", "linger_ms"),
    ],
)
def test_the_producers_option_of_that_meaning_is_named(given, meant):
    with pytest.raises(ConfigError) as raised:
        config.validate({given: 1})
    said = str(raised.value)
    assert f"Unknown option {given!r}: did you mean {meant!r}?" in said
    assert "options" in said.split("All options: ")[1]


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("group.id", "group_id"),
        ("auto.offset.reset", "auto_offset_reset"),
        ("fetch.wait.max.ms", "fetch_max_wait_ms"),
        ("offset_file", "offsets_path"),
    ],
)
def test_the_consumers_option_of_that_meaning_is_named(given, meant):
    with pytest.raises(ConfigError, match=f"did you mean {meant!r}"):
        SafeConsumer("orders", **{given: 1})


def test_an_option_of_the_other_client_is_not_taken_for_a_misspelling():
    with pytest.raises(ConfigError, match="'linger_ms' is an option of SafeProducer"):
        SafeConsumer("orders", linger_ms=5)
    with pytest.raises(ConfigError, match="'group_id' is an option of SafeConsumer"):
        config.validate({"group.id": "g"})


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("durable", r"future\.durable\(\)"),
        ("flush_spool", r"producer\.durable\(\)"),
        ("dr_cb", "add_callback"),
        ("message.send.max.retries", "never given up"),
        ("buffer.memory", "spool_max_bytes"),
        ("quite_something_else", "see .*options.* for the list of options"),
    ],
)
def test_what_is_no_option_at_all_is_said(given, says):
    with pytest.raises(ConfigError, match=says) as raised:
        config.validate({given: 1})
    assert "did you mean" not in str(raised.value)


def test_what_an_alias_leads_to_is_there_and_no_alias_hides_an_option():
    options = {*config.DEFAULTS, *CONSUMER}
    assert {meant for meant, _ in option_names._MEANT.values()} <= options
    assert not option_names._MEANT.keys() & options
    assert not option_names._ELSEWHERE.keys() & {*options, *option_names._MEANT}
    assert [name for name in (*option_names._MEANT, *option_names._ELSEWHERE) if snake(name) != name] == []


def test_the_documentations_address_is_the_packages(monkeypatch):
    urls = {"Project-URL": ["Source, https://example.org/code", "Documentation, https://example.org/docs/"]}

    class Metadata:
        def get_all(self, name):
            return urls[name]

    monkeypatch.setattr("importlib.metadata.metadata", lambda name: Metadata())
    with pytest.raises(ConfigError, match=r"https://example\.org/docs/options/"):
        config.validate({"spool_path": "x"})


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1GiB", 2**30),
        ("64MiB", 2**26),
        ("1 GiB", 2**30),
        ("1.5gib", 3 * 2**29),
        ("500kB", 500_000),
        ("2MB", 2_000_000),
        ("4096", 4096),
        ("4096B", 4096),
        ("16M", 16_000_000),
    ],
)
def test_a_size_is_a_text(text, size):
    assert size_of(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "1XiB", "-1GiB", "1iB", "1GiBs", "one", "1,5GiB", "1e3"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ValueError, match="is not a size; write 64MiB"):
        size_of(text)


def test_every_option_of_bytes_takes_a_size():
    sizes = {name for name in config.DEFAULTS if name.endswith("_bytes")}
    assert {"spool_max_bytes", "spool_segment_bytes", "rejected_max_bytes", "retain_acked_bytes"} <= sizes
    found = config.validate(
        {"spool_dir": "spool", **dict.fromkeys(sizes, "64MiB"), "spool_max_bytes": "1GiB"}
    )
    assert (found.spool_max_bytes, found.spool_segment_bytes) == (2**30, 2**26)
    assert (found.rejected_max_bytes, found.retain_acked_bytes) == (2**26, 2**26)
    assert found.kafka["receive_buffer_bytes"] == 2**26
    found = config.validate({"batch_size": "64KiB", "max_request_size": "2MiB"})
    assert (found.batch_bytes, found.max_record_bytes) == (2**16, 2**21)
    assert (found.kafka["batch_size"], found.kafka["max_request_size"]) == (2**16, 2**21)
    sizes = {name for name in CONSUMER if name.endswith("_bytes")}
    assert dict(config.validate_consumer(dict.fromkeys(sizes, "64MiB")).kafka) == dict.fromkeys(sizes, 2**26)
    for validate in (config.validate, config.validate_consumer):
        with pytest.raises(ConfigError, match="receive_buffer_bytes: 'much' is not a size"):
            validate({"receive_buffer_bytes": "much"})


def test_durations_stay_numbers():
    with pytest.raises(ConfigError, match="linger_ms must be a number"):
        config.validate({"linger_ms": "5ms"})


def test_a_topic_for_dead_letters_is_said_to_be_no_option_yet():
    with pytest.raises(
        ConfigError, match="cannot name a dead-letter topic; pass a function that produces to that topic"
    ):
        config.validate({"on_rejected": "orders-dlq"})
