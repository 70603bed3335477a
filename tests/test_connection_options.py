"""What cannot be a connection is refused before anything is opened, by the producer and by the consumer alike."""

from __future__ import annotations

import pytest

from kafkasafe import SafeConsumer, SafeProducer
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
    from kafkasafe.config import validate, validate_consumer

    validate({"bootstrap_servers": servers, "spool_dir": tmp_path})
    validate_consumer({"bootstrap_servers": servers})


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
    ],
)
def test_an_option_of_a_consumer_that_cannot_work_is_named(options, says):
    with pytest.raises(ConfigError, match=says):
        SafeConsumer(bootstrap_servers=NOWHERE, bootstrap_timeout_ms=1, **options)
