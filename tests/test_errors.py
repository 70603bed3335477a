"""kafkasafe's exceptions where code was written for kafka-python's."""

from __future__ import annotations

import importlib
import logging
import pickle
import pkgutil
import re
from pathlib import Path

import kafka.errors as kafka_errors
import public_api
import pytest
from kafka import KafkaProducer
from purity import is_pure_module

import kafkasafe
from kafkasafe import ErrorAction, SafeProducer, classify, errors, spark
from kafkasafe.config import validate, validate_consumer
from kafkasafe.errors import ConfigError, DeliveryTimeoutError, RejectedError
from kafkasafe.lineage import Lineage, LineageError

PACKAGE = Path(kafkasafe.__file__).parent


def _of_options(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """What was logged of options: threads that an earlier test left behind may log as well."""
    return [record for record in caplog.records if record.name == "kafkasafe.config"]


@pytest.mark.parametrize("code", sorted(code for code in kafka_errors.kafka_errors if code and code > 0))
def test_a_refusal_is_kafka_pythons_error_of_its_code_but_never_retriable(code):
    theirs = kafka_errors.for_code(code)
    error = RejectedError("refused", code=code, reason="why")
    assert isinstance(error, kafka_errors.BrokerResponseError)
    assert isinstance(error, theirs) is not issubclass(theirs, kafka_errors.RetriableError)
    assert not isinstance(error, kafka_errors.RetriableError)
    assert not error.retriable
    assert (error.errno, error.code, error.reason, error.message) == (code, code, "why", theirs.message)
    assert str(error) == "refused"
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert (again.args, again.code, again.reason) == (error.args, code, "why")
    assert classify(error).action is ErrorAction.REJECT_RECORD
    assert classify(error).code == code


@pytest.mark.parametrize("name", errors.__all__)
def test_the_text_of_an_error_is_its_message(name):
    """Loggers print the class as well: "RejectedError RejectedError: The cluster refused…"."""
    assert str(getattr(errors, name)("what happened")) == "what happened"


def test_a_refusal_without_a_known_code():
    assert type(RejectedError("refused")) is RejectedError
    error = RejectedError("refused", code=12_345)
    assert isinstance(error, RejectedError)
    assert error.errno == 12_345


def test_a_record_that_will_be_delivered_is_not_retriable():
    assert not issubclass(DeliveryTimeoutError, kafka_errors.RetriableError)
    assert not DeliveryTimeoutError.retriable


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("buffer_memory", "spool_max_bytes"),
        ("api_version_auto_timeout_ms", "before version 3"),
        ("sock_chunk_bytes", "before version 3"),
        ("sock_chunk_buffer_count", "before version 3"),
        ("bootstrap_topics_filter", "before version 3"),
        ("rebalance_timeout_ms", "max_poll_interval_ms"),
    ],
)
def test_an_option_that_is_gone_is_not_taken_for_another(name, says):
    with pytest.raises(ConfigError, match=says) as caught:
        validate({name: 1})
    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize(
    "conflict", [{"acks": 1}, {"retries": 0}, {"max_in_flight_requests_per_connection": 6}]
)
def test_idempotence_that_is_asked_for_and_cannot_be(conflict, caplog):
    with pytest.raises(kafka_errors.KafkaConfigurationError, match=next(iter(conflict))):
        validate({"enable_idempotence": True, **conflict})
    # As with KafkaProducer; here it stays on.
    caplog.clear()
    validate(conflict)
    (record,) = _of_options(caplog)
    assert record.event == ("option_weak" if "acks" in conflict else "option_ignored")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("metric_reporters", [print]),
        ("metrics_enabled", False),
        ("metrics_num_samples", 3),
        ("metrics_sample_window_ms", 1000),
        ("kafka_client", object),
        ("bootstrap_timeout_ms", 1),
        ("ssl_ciphers", "ECDHE+AESGCM"),
    ],
)
def test_an_option_without_effect_is_said_to_be(name, value, caplog):
    validate({name: KafkaProducer.DEFAULT_CONFIG[name]})
    assert not _of_options(caplog)
    validate({name: value})
    (record,) = _of_options(caplog)
    assert record.event == "option_ignored"
    assert record.getMessage().startswith(name)


@pytest.mark.parametrize(
    ("name", "value"),
    [("ssl_ciphers", "ECDHE+AESGCM"), ("receive_buffer_bytes", 65_536), ("send_buffer_bytes", 65_536)],
)
def test_a_consumers_option_that_kafka_python_does_not_use_is_said_to_be(name, value, caplog):
    validate_consumer({name: None})
    assert not _of_options(caplog)
    validate_consumer({name: value})
    (record,) = _of_options(caplog)
    assert record.event == "option_ignored"
    assert record.getMessage().startswith(name)


def test_large_records_need_a_large_spool_and_it_is_said_how_large():
    # Frequent: the spool's files grow with it.
    assert validate({"max_request_size": 104_857_600}).spool_segment_bytes > 104_857_600
    with pytest.raises(ConfigError, match=r"set spool_max_bytes=(\d+) or more") as caught:
        validate({"max_request_size": 500_000_000})
    enough = int(re.search(r"spool_max_bytes=(\d+)", str(caught.value))[1])
    validate({"max_request_size": 500_000_000, "spool_max_bytes": enough})
    with pytest.raises(ConfigError, match=r"set spool_segment_bytes=(\d+) or more"):
        validate({"max_request_size": 2**24, "spool_segment_bytes": 2**24})


def test_a_wrong_option_is_kafka_pythons_configuration_error():
    for check in (validate, validate_consumer):
        with pytest.raises(kafka_errors.KafkaConfigurationError, match="nonsense") as caught:
            check({"nonsense": 1})
        assert isinstance(caught.value, ConfigError)
        assert isinstance(caught.value, ValueError)


# -- one root --------------------------------------------------------------------------------------------------------


def _own_errors() -> list[type[Exception]]:
    """Every exception class that a module of the package defines."""
    found: set[type[Exception]] = set()
    for module in pkgutil.walk_packages(kafkasafe.__path__, "kafkasafe."):
        for kind in vars(importlib.import_module(module.name)).values():
            if isinstance(kind, type) and issubclass(kind, Exception) and kind.__module__ == module.name:
                found.add(kind)
    return sorted(found, key=lambda kind: (kind.__module__, kind.__name__))


def test_one_root_catches_every_error_of_the_package():
    """But for those of pure modules, which know no client library: their callers turn them into errors of the package.

    `LeaderChangedError`, `NoAnswerError`, `PartitionGoneError` and `RowTooLargeError` never leave the package.
    `LoopClosedError` is the RuntimeError that kafka-python's closed loop raises.
    """
    never_raised = {"LeaderChangedError", "NoAnswerError", "PartitionGoneError", "RowTooLargeError"}
    internal = {*never_raised, "LoopClosedError"}
    kinds = [kind for kind in _own_errors() if kind.__name__ not in internal]
    assert len(kinds) > 40
    strangers = [kind for kind in kinds if not issubclass(kind, errors.KafkaSafeError)]
    assert [kind for kind in strangers if not is_pure_module(kind.__module__)] == []
    public = [
        f"{module}.{name}"
        for module in public_api.modules()
        for name in importlib.import_module(module).__all__
        if getattr(importlib.import_module(module), name) in strangers
    ]
    assert public == []


def test_every_time_out_is_a_builtin_timeout_error():
    named = [kind for kind in _own_errors() if "Timeout" in kind.__name__]
    assert errors.WaitTimeoutError in named
    assert errors.DeliveryTimeoutError in named
    theirs = [kind for kind in _own_errors() if issubclass(kind, kafka_errors.KafkaTimeoutError)]
    assert {errors.SpoolFullError, errors.OffsetNotAvailableError, errors.RemoteStorageNotReadyError} <= set(
        theirs
    )
    assert [kind for kind in (*named, *theirs) if not issubclass(kind, TimeoutError)] == []


def test_no_time_out_is_raised_under_kafka_pythons_name_to_a_caller():
    """`except TimeoutError` is what programs for asyncio write. Names of the transport's causes may stay."""
    raised = [
        f"{path.relative_to(PACKAGE)}:{number}"
        for path in PACKAGE.rglob("*.py")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(r"raise (?:\w+\.)?KafkaTimeoutError\b", line)
    ]
    assert raised == []


def test_a_time_out_is_caught_as_kafka_pythons_as_pythons_and_as_ours(fake_kafka, tmp_path):
    fake_kafka.create_topic("orders")
    with SafeProducer(bootstrap_servers=fake_kafka.bootstrap_servers, spool_dir=tmp_path) as producer:
        fake_kafka.kill_all()
        future = producer.send("orders", b"x")
        for kind in (TimeoutError, kafka_errors.KafkaTimeoutError, errors.KafkaSafeError):
            with pytest.raises(kind):
                future.get(timeout=0.05)
            with pytest.raises(kind):
                producer.flush(timeout=0.05)
        again = pickle.loads(pickle.dumps(errors.SpoolFullError("full", limit="disk")))
        assert (again.args, again.limit) == (("full",), "disk")
        fake_kafka.start_all()
        future.get(30)


def test_errors_of_spark_have_a_base_of_their_own():
    assert issubclass(spark.FencedError, kafka_errors.ProducerFencedError)
    for kind in (
        spark.CheckpointMismatchError,
        spark.FencedError,
        spark.RestartError,
        spark.SourceUnavailableError,
        spark.StagingError,
    ):
        assert issubclass(kind, spark.SparkError)
        assert not issubclass(kind, errors.UsageError)  # a restored checkpoint is no wrong call
    assert issubclass(spark.SourceUnavailableError, TimeoutError)


def test_a_history_that_is_none_is_an_error_of_the_package():
    for wrong in (lambda: Lineage([(4, 0), (3, 5)], 9), lambda: Lineage.decode("no history")):
        with pytest.raises(errors.KafkaSafeError) as raised:
            wrong()
        assert type(raised.value) is LineageError is errors.LineageError
        assert isinstance(raised.value, ValueError)
        again = pickle.loads(pickle.dumps(raised.value))
        assert (type(again), again.args) == (LineageError, raised.value.args)


def test_the_example_of_the_errors_page_runs():
    """`type(error) is RejectedError` is not true, and the page says how to ask instead."""
    page = (PACKAGE.parent / "docs" / "errors.md").read_text(encoding="utf-8")
    section = page.split("## A record that the cluster rejected")[1].split("\n## ")[0]
    exec(section.split("```python\n")[1].split("```")[0], {})
    assert type(RejectedError("refused", code=10)) is not RejectedError
