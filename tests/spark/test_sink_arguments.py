"""How the sink's options may be given. Nothing is opened: no Spark, no broker."""

from __future__ import annotations

import pytest

from kafkasafe.errors import ConfigError
from kafkasafe.spark import foreach_batch_sink
from kafkasafe.spark.sink import _given

SERVERS = {"kafka.bootstrap.servers": "b1:9092,b2:9092"}


def test_a_mapping_of_options_says_the_same_as_names():
    by_name = foreach_batch_sink("orders", **SERVERS, txnAppId="a", markerTopic="m")
    mapped = foreach_batch_sink("orders", {**SERVERS, "txnAppId": "a", "markerTopic": "m"})
    both = foreach_batch_sink("orders", SERVERS, txnAppId="a", markerTopic="m")
    assert mapped._options == by_name._options == both._options
    assert SERVERS == {"kafka.bootstrap.servers": "b1:9092,b2:9092"}
    assert _given("orders", {"TOPIC": "other"}, {}) == {"topic": "orders"}


@pytest.mark.parametrize(
    ("options", "named", "says"),
    [
        (SERVERS, SERVERS, "kafka.bootstrap.servers is given in the mapping and by name"),
        ({**SERVERS, "TXNAPPID": "a"}, {"txnAppId": "a"}, "txnappid is given in the mapping and by name"),
        (
            {**SERVERS, "txnAppId": "a", "TXNAPPID": "b"},
            {},
            "txnappid is given twice, in upper and lower case",
        ),
        (SERVERS, {"txnAppId": "a", "txnappid": "a"}, "txnappid is given twice, in upper and lower case"),
        ([("kafka.bootstrap.servers", "b:1")], {}, "options must be a mapping"),
        ({**SERVERS, "txnApId": "a"}, {}, "txnAppId"),
    ],
)
def test_what_is_given_twice_or_is_no_mapping_is_refused(options, named, says):
    with pytest.raises(ConfigError, match=says):
        foreach_batch_sink("orders", options, **named)
