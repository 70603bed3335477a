"""kafkasafe's exceptions where code was written for kafka-python's."""

from __future__ import annotations

import pickle

import kafka.errors as kafka_errors
import pytest

from kafkasafe import ErrorAction, classify
from kafkasafe.config import validate, validate_consumer
from kafkasafe.errors import ConfigError, DeliveryTimeoutError, RejectedError


@pytest.mark.parametrize("code", sorted(code for code in kafka_errors.kafka_errors if code and code > 0))
def test_a_refusal_is_kafka_pythons_error_of_its_code_but_never_retriable(code):
    theirs = kafka_errors.for_code(code)
    error = RejectedError("refused", code=code, reason="why")
    assert isinstance(error, kafka_errors.BrokerResponseError)
    assert isinstance(error, theirs) is not issubclass(theirs, kafka_errors.RetriableError)
    assert not isinstance(error, kafka_errors.RetriableError)
    assert not error.retriable
    assert (error.errno, error.code, error.reason, error.message) == (code, code, "why", theirs.message)
    assert str(error) == "RejectedError: refused"
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert (again.args, again.code, again.reason) == (error.args, code, "why")
    assert classify(error).action is ErrorAction.REJECT_RECORD
    assert classify(error).code == code


def test_a_refusal_without_a_known_code():
    assert type(RejectedError("refused")) is RejectedError
    error = RejectedError("refused", code=12_345)
    assert isinstance(error, RejectedError)
    assert error.errno == 12_345


def test_a_record_that_will_be_delivered_is_not_retriable():
    assert not issubclass(DeliveryTimeoutError, kafka_errors.RetriableError)
    assert not DeliveryTimeoutError.retriable


def test_a_wrong_option_is_kafka_pythons_configuration_error():
    for check in (validate, validate_consumer):
        with pytest.raises(kafka_errors.KafkaConfigurationError, match="nonsense") as caught:
            check({"nonsense": 1})
        assert isinstance(caught.value, ConfigError)
        assert isinstance(caught.value, ValueError)
