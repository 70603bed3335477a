"""What cannot be a connection is refused before anything is opened, by the producer and by the consumer alike."""

from __future__ import annotations

import ssl

import pytest
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

from kafkasafe import SafeConsumer, SafeProducer, aio
from kafkasafe.config import validate, validate_consumer
from kafkasafe.errors import ConfigError

NOWHERE = "127.0.0.1:1"
SCRAM = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "SCRAM-SHA-256", "sasl_plain_username": "u"}


@pytest.fixture(params=[SafeProducer, SafeConsumer])
def opened(request, tmp_path):
    def make(**options):
        own = (
            {"spool_dir": tmp_path / "spool"}
            if request.param is SafeProducer
            else {"bootstrap_timeout_ms": 1}
        )
        return request.param(**{"bootstrap_servers": NOWHERE, **own, **options})

    return make


@pytest.mark.parametrize(
    ("options", "says"),
    [
        # kafka-python connects in plain text with any of these.
        ({"security_protocol": "ssl"}, "security_protocol must be one of .*; did you mean 'SSL'"),
        ({"security_protocol": "TLS"}, "did you mean 'SSL'"),
        ({"security_protocol": "SASL"}, "did you mean 'SASL_SSL'"),
        ({"security_protocol": "SASL-SSL"}, "did you mean 'SASL_SSL'"),
        ({"security_protocol": "sasl_plaintext"}, "did you mean 'SASL_PLAINTEXT'"),
        ({"security_protocol": "plain"}, "did you mean 'PLAINTEXT'"),
        ({"security_protocol": None}, "security_protocol must be one of"),
        ({"metadata_max_age_ms": "1000"}, "metadata_max_age_ms must be a number, not '1000'"),
        ({"connections_max_idle_ms": [1]}, "connections_max_idle_ms must be a number"),
        ({"ssl_check_hostname": "false"}, "ssl_check_hostname must be True or False, not 'false'"),
        ({"bootstrap_servers": ":9092"}, "bootstrap_servers .* ':9092' is not host:port"),
        ({"bootstrap_servers": "broker:port"}, "'broker:port' is not host:port"),
        ({"bootstrap_servers": "broker:70000"}, "'broker:70000' is not host:port"),
        ({"bootstrap_servers": ["one:9092", ""]}, "'' is not host:port"),
        ({"bootstrap_servers": "PLAINTEXT://:9092"}, "is not host:port"),
        ({"bootstrap_servers": "[::1"}, "is not host:port"),
        (
            {"ssl_cafile": "/nonexistent/ca.pem"},
            "ssl_cafile: No such file or directory: '/nonexistent/ca.pem'",
        ),
        ({"ssl_certfile": "/nonexistent/c"}, "ssl_certfile: No such file"),
        ({"ssl_keyfile": "/nonexistent/k"}, "ssl_keyfile: No such file"),
        ({"ssl_crlfile": "/nonexistent/l"}, "ssl_crlfile: No such file"),
        ({"ssl_cafile": 5}, "ssl_cafile must be the path of a file, not 5"),
        ({"ssl_crlfile": "l\0"}, "ssl_crlfile='l.*' cannot be the path of a file: embedded null"),
        ({"ssl_keyfile": "\ud800"}, "ssl_keyfile=.* cannot be the path of a file: .*surrogates not allowed"),
        ({"security_protocol": "SSL", "ssl_cafile": __file__}, "ssl_cafile=.* cannot be used: .*PEM"),
        ({"security_protocol": "SSL", "ssl_certfile": __file__}, "ssl_certfile=.* cannot be used"),
        ({"ssl_context": "x"}, "ssl_context must be an ssl.SSLContext, not str"),
        ({"sasl_mechanism": "SCRAM"}, "sasl_mechanism must be one of .*'SCRAM'; did you mean 'SCRAM-SHA-"),
        ({"sasl_mechanism": "plain"}, "did you mean 'PLAIN'"),
        ({"sasl_mechanism": ["PLAIN"]}, "sasl_mechanism must be one of"),
        ({"security_protocol": "SASL_SSL"}, "security_protocol=SASL_SSL needs sasl_mechanism"),
        (SCRAM, "sasl_mechanism=SCRAM-SHA-256 needs sasl_plain_password"),
        ({**SCRAM, "sasl_plain_password": ["hunter2"]}, "sasl_plain_password must be a str, not list"),
        ({"ssl_password": b"hunter2"}, "ssl_password must be a str, not bytes"),
        (
            {"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER"},
            "OAUTHBEARER needs sasl_oauth_token_provider",
        ),
        ({"sasl_oauth_token_provider": "hunter2"}, "sasl_oauth_token_provider must be .*, not str"),
        (
            {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "AWS_MSK_IAM"},
            "AWS_MSK_IAM needs security_protocol=SASL_SSL",
        ),
        ({"selector": 5}, "selector must be a class such as selectors.DefaultSelector, not 5"),
        # With these, kafka-python raises an error without the option's name, or no connection ever succeeds.
        ({"sasl_plain_password": "hunter2\ud800"}, "sasl_plain_password cannot be written as UTF-8"),
        ({"client_id": "\ud800"}, r"client_id: '\\ud800' cannot be written as UTF-8"),
        ({"client_id": "a" * 40_000}, "client_id: 40000 bytes are too long; the maximum is 32767"),
        ({"client_dns_lookup": "all"}, "client_dns_lookup must be one of 'use_all_dns_ips', "),
        ({"api_version": "x"}, r"api_version must be None or a tuple of numbers such as \(2, 8\), not 'x'"),
        ({"api_version": 2}, "api_version must be None or a tuple .*, not 2"),
        ({"api_version": ()}, r"api_version must be None or a tuple .*, not \(\)"),
        ({"api_version": (2, "8")}, "api_version must be None or a tuple"),
        ({"metadata_max_age_ms": None}, "metadata_max_age_ms must be a number of milliseconds, 0 or more"),
        ({"metadata_max_age_ms": 10**400}, "metadata_max_age_ms is too large"),
        ({"reconnect_backoff_ms": -1}, "reconnect_backoff_ms must be a number of milliseconds, 0 or more"),
        ({"reconnect_backoff_max_ms": float("nan")}, "reconnect_backoff_max_ms must be .*, not nan"),
        # As a broker's own option: -1 keeps idle connections open.
        ({"connections_max_idle_ms": -1}, "connections_max_idle_ms must be .* 0 or more, not -1"),
        ({"connections_max_idle_ms": 0}, r"connections_max_idle_ms=0 would close .*; float\('inf'\) keeps"),
        (
            {"receive_message_max_bytes": 1},
            "receive_message_max_bytes must be a number of at least 1024, not 1",
        ),
        ({"receive_buffer_bytes": {}}, "receive_buffer_bytes must be a number of at least -1, not {}"),
        ({"send_buffer_bytes": 2**31}, "send_buffer_bytes must be a number of at most 2147483647"),
        (
            {"socket_options": "x"},
            "socket_options must be a list of arguments of socket.setsockopt, .*, not 'x'",
        ),
        ({"socket_options": [5]}, "socket_options must be a list of arguments"),
        ({"proxy_url": "proxy:1080"}, "proxy_url must be SCHEME://HOST:PORT, where SCHEME is one of socks5"),
        ({"proxy_url": 5}, "proxy_url must be SCHEME://HOST:PORT"),
        ({"socks5_proxy": "u:hunter2@proxy:1080"}, "socks5_proxy must be SCHEME://HOST:PORT"),
        ({"proxy_url": "socks5://u:hunter2@proxy:port"}, "proxy_url must be SCHEME://HOST:PORT"),
    ],
)
def test_a_connection_that_cannot_work_is_refused_by_both(opened, options, says):
    with pytest.raises(ConfigError, match=says) as caught:
        opened(**options)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "servers",
    ["host", "host:9092", " a:1 , b:2", "[::1]:9092", "[::1]", "::1", "PLAINTEXT://a:1", ("a:1",), {"a:1"}],
)
def test_an_address_as_kafka_python_reads_them_is_taken(tmp_path, servers):
    validate({"bootstrap_servers": servers, "spool_dir": tmp_path})
    validate_consumer({"bootstrap_servers": servers})


@pytest.mark.parametrize(
    "options",
    [
        {"api_version": (2, 8)},
        {"api_version": "2.8"},
        {"connections_max_idle_ms": float("inf"), "metadata_max_age_ms": float("inf")},
        {"receive_buffer_bytes": -1, "send_buffer_bytes": "1 MiB"},
        {"socket_options": [[6, 1, 1], (1, 13, b"........")]},
        {"proxy_url": "socks5h://user:secret@proxy:1080"},
        {"proxy_url": "http://[::1]:3128"},
        {"client_id": ""},
    ],
)
def test_a_connection_that_can_work_is_taken(tmp_path, options):
    validate({"spool_dir": tmp_path, **options})
    validate_consumer(options)


PLAIN = {"sasl_mechanism": "PLAIN", "sasl_plain_username": "u", "sasl_plain_password": "hunter2"}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            PLAIN,
            [
                (
                    "sasl_mechanism, sasl_plain_username, sasl_plain_password have no effect:"
                    " security_protocol=PLAINTEXT connects without authentication; set SASL_SSL or SASL_PLAINTEXT"
                )
            ],
        ),
        (
            {"ssl_cafile": __file__},
            [
                "ssl_cafile has no effect: security_protocol=PLAINTEXT connects without encryption; set SSL",
            ],
        ),
        (
            {"sasl_plain_password": "hunter2", "ssl_password": "hunter2"},
            [
                (
                    "sasl_plain_password has no effect: security_protocol=PLAINTEXT connects without authentication;"
                    " set SASL_SSL or SASL_PLAINTEXT"
                ),
                "ssl_password has no effect: security_protocol=PLAINTEXT connects without encryption; set SASL_SSL",
            ],
        ),
        (
            {"security_protocol": "SSL", "sasl_mechanism": "GSSAPI"},
            [
                "sasl_mechanism has no effect: security_protocol=SSL connects without authentication; set SASL_SSL",
            ],
        ),
        (
            {**PLAIN, "security_protocol": "SASL_PLAINTEXT", "ssl_cafile": __file__},
            [
                "ssl_cafile has no effect: security_protocol=SASL_PLAINTEXT connects without encryption; set SASL_SSL",
            ],
        ),
        ({**PLAIN, "security_protocol": "SASL_SSL", "ssl_context": ssl.create_default_context()}, []),
        ({"security_protocol": "SSL", "ssl_context": ssl.create_default_context()}, []),
        ({**dict.fromkeys(PLAIN), "ssl_cafile": None, "ssl_check_hostname": False}, []),
    ],
)
@pytest.mark.parametrize("check", [validate, validate_consumer])
def test_options_that_the_protocol_does_not_use_are_said_to_have_no_effect(
    tmp_path, caplog, check, options, says
):
    """kafka-python connects, and says nothing."""
    check({**({"spool_dir": tmp_path} if check is validate else {}), **options})
    assert [record.getMessage() for record in caplog.records] == says
    assert {record.event for record in caplog.records} <= {"option_ignored"}


def test_a_size_of_a_buffer_may_be_a_float_as_other_sizes(fake_kafka, tmp_path):
    fake_kafka.create_topic("orders", partitions=1)
    sizes = {"send_buffer_bytes": 65536.0, "receive_buffer_bytes": 65536.0}
    with SafeProducer(
        bootstrap_servers=fake_kafka.bootstrap_servers, spool_dir=tmp_path, **sizes
    ) as producer:
        producer.send("orders", b"x").get(60)


@pytest.mark.parametrize(
    ("option", "value"),
    [("session_timeout_ms", "10000"), ("heartbeat_interval_ms", "3000"), ("enable_auto_commit", "false")],
)
def test_a_number_as_text_is_refused_at_once(option, value):
    """kafka-python took it, and failed when it joined its group; "false" was as good as True."""
    with pytest.raises(ConfigError, match=f"{option} must be .*, not '{value}'"):
        SafeConsumer(bootstrap_servers=NOWHERE, bootstrap_timeout_ms=1, **{option: value})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"auto_offset_reset": ["earliest"]}, "auto_offset_reset must be one of 'earliest'"),
        ({"offsets_hold_timeout_ms": 10**400}, "offsets_hold_timeout_ms is too large"),
        (
            {"offsets_path": "x" * 300 + "/y"},
            "offsets_path: File name too long: '.*xxx/y'; correct offsets_path",
        ),
        ({"lineage_path": "a\0b"}, "lineage_path: .* cannot be a file name: it has a null character"),
        ({"prometheus": "false"}, "prometheus must be True or False, not 'false'"),
        (
            {"isolation_level": "read_commited"},
            "isolation_level must be one of .*; did you mean 'read_committed'",
        ),
        ({"max_poll_records": 0}, "max_poll_records must be a number of at least 1, not 0"),
        ({"auto_commit_interval_ms": -1}, "auto_commit_interval_ms must be a number of at least 0, not -1"),
        ({"group_id": ""}, "group_id must be a non-empty string, or None for no group, not ''"),
        ({"group_id": 5}, "group_id must be a non-empty string, or None for no group, not 5"),
        ({"group_id": "\ud800"}, "group_id: .* cannot be written as UTF-8"),
        ({"group_instance_id": "one"}, "group_instance_id needs a group: set group_id, too"),
        ({"group_id": "g", "group_instance_id": "one two"}, "group_instance_id must have .*, not 'one two'"),
        ({"group_id": "g", "group_instance_id": ".."}, "group_instance_id must have .*, not '..'"),
        ({"group_id": "g", "session_timeout_ms": 3000}, r"heartbeat_interval_ms \(3000\) must be lower"),
        ({"group_id": "g", "partition_assignment_strategy": []}, "must be a list of classes .*, not \\[\\]"),
        ({"group_id": "g", "partition_assignment_strategy": ["range"]}, "; 'range' is not one"),
        ({"group_id": "g", "partition_assignment_strategy": "range"}, "a list of classes .*, not 'range'"),
    ],
)
def test_an_option_of_a_consumer_that_cannot_work_is_named(options, says):
    with pytest.raises(ConfigError, match=says):
        SafeConsumer(bootstrap_servers=NOWHERE, bootstrap_timeout_ms=1, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"group_id": None, "partition_assignment_strategy": ()},
        {"group_id": None, "session_timeout_ms": 1000},
        {"isolation_level": 1},
        {"isolation_level": "READ-COMMITTED"},
        {"max_poll_records": None},
        {"group_id": "g", "partition_assignment_strategy": [RangePartitionAssignor()]},
        {"group_id": "g", "partition_assignment_strategy": (RoundRobinPartitionAssignor,)},
    ],
)
def test_a_consumer_takes_what_kafka_consumer_takes(options):
    validate_consumer(options)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"bootstrap.servers": NOWHERE, "sasl.password": "secret"}, "Pass options by keyword"),
        (["orders"], "Pass topics as names"),
        (b"orders", "Pass topics as names"),
    ],
)
@pytest.mark.parametrize("consumer", [SafeConsumer, aio.SafeConsumer])
def test_what_is_no_name_of_a_topic_is_refused_before_any_connection(consumer, wrong, says):
    """A program that came from confluent-kafka waited for localhost, and then read "unhashable type: 'dict'"."""
    with pytest.raises(TypeError, match=says) as told:
        consumer(wrong)
    assert "secret" not in str(told.value)


@pytest.mark.parametrize("wrong", [{"bootstrap.servers": NOWHERE, "sasl.password": "secret"}, NOWHERE])
@pytest.mark.parametrize("producer", [SafeProducer, aio.SafeProducer])
def test_options_of_a_producer_in_a_dict_are_refused_with_what_to_do(producer, wrong):
    """It said "takes 1 positional argument but 2 were given"."""
    with pytest.raises(TypeError, match="Pass options by keyword") as told:
        producer(wrong)
    assert "secret" not in str(told.value)
