"""`kafkasafe.classify` on exceptions, names and wrong arguments."""

from __future__ import annotations

import asyncio
import concurrent.futures
import errno
import socket
import ssl

import kafka.errors as kafka_errors
import pytest
import tenacity
from hypothesis import given
from hypothesis import strategies as st

import kafkasafe
from kafkasafe import ConfigError, ErrorAction, ErrorContext, classify, errors

RETRY, REFRESH, ASK = ErrorAction.RETRY, ErrorAction.RETRY_AFTER_REFRESH, ErrorAction.ASK_BROKER
FENCE, FATAL, REJECT = ErrorAction.FENCE, ErrorAction.FATAL, ErrorAction.REJECT_RECORD


def exceptions_in(module):
    found = {
        value for value in vars(module).values() if isinstance(value, type) and issubclass(value, Exception)
    }
    return sorted(
        (kind for kind in found if kind.__module__ == module.__name__), key=lambda kind: kind.__name__
    )


@pytest.mark.parametrize("kind", exceptions_in(kafka_errors))
def test_every_error_of_kafka_python_has_a_verdict(kind):
    of_class = classify(kind)
    assert of_class.explanation
    if isinstance(getattr(kind, "errno", None), int):
        # Its flags are its own business; the verdict is that of the code.
        assert of_class == classify(kind.errno)
    else:
        assert of_class.name == kind.__name__
        assert of_class.retriable == kind.retriable, "kafka-python says so"
        if kind.invalid_metadata:
            assert of_class.refresh_metadata
    assert classify(kind("text")) == of_class


@pytest.mark.parametrize("kind", exceptions_in(errors))
def test_every_error_of_ours_has_a_row_of_its_family(kind):
    verdict = classify(kind("text"))
    assert verdict.name == kind.__name__
    assert verdict.code == getattr(kind("text"), "errno", None)
    assert "kafka-python" not in verdict.explanation


@pytest.mark.parametrize(
    ("error", "action", "at_risk"),
    [
        (errors.DataLossError("x"), FATAL, True),
        (errors.UndecidableError("x"), ASK, True),
        (errors.SpoolCorruptError("x"), FATAL, True),
        (errors.SpoolFullError("x"), RETRY, False),
        (errors.DeliveryTimeoutError("x"), ASK, False),
        (errors.RejectedError("x", code=10), REJECT, False),
        (errors.ConfigError("x"), FATAL, False),
        (kafka_errors.KafkaConnectionError("x"), REFRESH, False),
        (kafka_errors.CommitFailedError("x"), FENCE, False),
        (kafka_errors.for_code(130)("x"), FATAL, False),
        (kafka_errors.for_code(999)("x"), REFRESH, False),
        (ConnectionRefusedError(errno.ECONNREFUSED, "x"), REFRESH, False),
        (ConnectionResetError(), REFRESH, False),
        (BrokenPipeError(), REFRESH, False),
        (TimeoutError(), REFRESH, False),
        (concurrent.futures.TimeoutError(), REFRESH, False),
        (OSError(errno.EHOSTUNREACH, "x"), REFRESH, False),
        (OSError(errno.ETIMEDOUT, "x"), REFRESH, False),
        (OSError(errno.EMFILE, "x"), RETRY, False),
        (OSError(errno.ENOSPC, "x"), RETRY, False),
        (OSError(errno.EIO, "x"), FATAL, True),
        (OSError(errno.EROFS, "x"), FATAL, False),
        (PermissionError(errno.EACCES, "x"), FATAL, False),
        (FileNotFoundError(), FATAL, False),
        (OSError("no number"), FATAL, False),
        (socket.gaierror(socket.EAI_NONAME, "x"), REFRESH, False),
        # 28 is ENOSPC; of a name that does not resolve it says something else.
        (socket.gaierror(errno.ENOSPC, "x"), REFRESH, False),
        (ssl.SSLCertVerificationError("x"), FATAL, False),
        (ssl.SSLError(1, "WRONG_VERSION_NUMBER"), FATAL, False),
        (ssl.SSLEOFError(8, "x"), REFRESH, False),
        (ssl.SSLZeroReturnError(6, "x"), REFRESH, False),
        (ssl.SSLWantReadError(2, "x"), RETRY, False),
        (asyncio.CancelledError(), FATAL, False),
        (concurrent.futures.CancelledError(), FATAL, False),
        (KeyboardInterrupt(), FATAL, False),
        (ValueError("x"), FATAL, False),
        (tenacity.TryAgain(), RETRY, False),
    ],
    ids=repr,
)
def test_exceptions(error, action, at_risk):
    verdict = classify(error)
    assert (verdict.action, verdict.data_at_risk) == (action, at_risk)


def gave_up(error=None, result=None):
    last = tenacity.Future(3)
    if error is not None:
        last.set_exception(error)
    else:
        last.set_result(result)
    return tenacity.RetryError(last)


def test_of_a_retry_error_the_last_error_is_judged():
    broker = kafka_errors.NotLeaderForPartitionError("x")
    assert classify(gave_up(broker)) == classify(6)
    assert classify(gave_up(gave_up(broker))) == classify(6)
    assert classify(gave_up(gave_up(broker)), "list_offsets").api == "list_offsets"


def test_a_retry_error_without_an_error_in_it_has_a_verdict():
    assert classify(gave_up(result=7)).name == "RetryError"
    assert classify(tenacity.RetryError(tenacity.Future(1))).name == "RetryError"
    nested = gave_up(ValueError())
    for _ in range(40):
        nested = gave_up(nested)
    assert classify(nested).action is FATAL


def test_a_connection_that_broke_for_its_certificate_is_not_tried_again():
    error = kafka_errors.KafkaConnectionError("x")
    error.__cause__ = ssl.SSLCertVerificationError("expired")
    assert classify(error).action is FATAL
    error.__cause__ = ssl.SSLEOFError("x")
    assert classify(error).action is REFRESH


def test_a_rejected_record_names_its_code():
    verdict = classify(errors.RejectedError("x", code=10), "produce")
    assert (verdict.code, verdict.name, verdict.api) == (10, "MESSAGE_TOO_LARGE", "produce")


def test_codes_come_as_numbers_names_and_classes():
    assert (
        classify(59)
        == classify("59")
        == classify(" unknown_producer_id ")
        == classify("UnknownProducerIdError")
        == classify(kafka_errors.UnknownProducerIdError)
    )
    assert classify(-1).code == classify("-1").code == -1


def test_context_comes_as_a_mapping_or_an_object():
    known = {"last_acked_offset": 1000, "log_start_offset": 1001, "resend": None}
    assert classify(59, "Produce", known) == classify(
        59, "produce", ErrorContext(last_acked_offset=1000, log_start_offset=1001)
    )
    assert classify(59, "produce", {"last_acked_offset": 9, "log_start_offset": 3}).data_at_risk


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("UNKNOWN_PRODUCR_ID",), "did you mean 'UNKNOWN_PRODUCER_ID'"),
        (("KafkaError",), "unknown Kafka error"),
        (("",), "unknown Kafka error"),
        (("9" * 5000,), "unknown Kafka error"),
        (("١²",), "unknown Kafka error"),
        ((True,), "not an error code"),
        ((5.9,), "not float"),
        ((None,), "not NoneType"),
        ((59, "ListOffset"), "did you mean 'list_offsets'"),
        ((59, 3), "not a Kafka request"),
        ((59, None, {"last_acked": 3}), "did you mean 'last_acked_offset'"),
        ((59, None, {7: 3}), "is not a field of ErrorContext"),
        ((59, None, {"last_acked_offset": True}), "must be an integer"),
        ((59, None, {"last_acked_offset": 1.5}), "must be an integer"),
        ((59, None, {"resend": 1}), "must be true or false"),
        ((59, None, [1]), "not list"),
    ],
)
def test_wrong_arguments_are_told_with_the_nearest_name(arguments, says):
    with pytest.raises(ConfigError) as raised:
        classify(*arguments)
    assert says in str(raised.value)


@pytest.mark.parametrize(
    ("name", "same_as"),
    [
        ("OutOfOrderSequenceException", 45),
        ("org.apache.kafka.common.errors.UnknownProducerIdException", 59),
        (" org.apache.kafka.common.errors.OffsetNotAvailableException ", 78),
        ("DuplicateSequenceException", 46),
        ("RemoteStorageNotReadyException", kafkasafe.RemoteStorageNotReadyError),
        (
            "org.apache.kafka.common.errors.RemoteStorageNotReadyException",
            kafkasafe.RemoteStorageNotReadyError,
        ),
        ("DataLossError", kafkasafe.DataLossError),
        ("kafkasafe.errors.SpoolFullError", kafkasafe.SpoolFullError),
        ("KafkaTimeoutError", kafka_errors.KafkaTimeoutError),
        ("org.apache.kafka.clients.consumer.LogTruncationException", kafka_errors.LogTruncationError),
    ],
)
def test_a_class_s_name_as_it_stands_in_logs(name, same_as):
    assert classify(name) == classify(same_as)


@given(st.integers() | st.text(max_size=30))
def test_numbers_and_texts_have_a_verdict_or_a_clear_error(given_):
    try:
        verdict = classify(given_)
    except ConfigError:
        assert isinstance(given_, str)
    else:
        assert verdict.explanation


def test_it_is_public():
    assert kafkasafe.classify is classify
    assert {"classify", "Verdict", "ErrorAction", "ErrorContext", "RetryPolicy", "RetryEvent"} <= set(
        kafkasafe.__all__
    )
