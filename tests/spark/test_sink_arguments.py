"""How the sink's options may be given. Nothing is opened: no Spark, no broker."""

from __future__ import annotations

import pytest
from pyspark.sql.types import StringType, StructType

from kafkasafe.errors import ConfigError
from kafkasafe.spark import foreach_batch_sink
from kafkasafe.spark.sink import _given
from kafkasafe.spark.sink_columns import wanted_columns
from kafkasafe.spark.sink_options import sink_options

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
        (
            {**SERVERS, "kafka.batch.size": 5000, "KAFKA.batch_size": 6000},
            {},
            "kafka.batch.size and KAFKA.batch_size are the same option: give one of them",
        ),
        ([("kafka.bootstrap.servers", "b:1")], {}, "options must be a mapping"),
        ({**SERVERS, "txnApId": "a"}, {}, "txnAppId"),
    ],
)
def test_what_is_given_twice_or_is_no_mapping_is_refused(options, named, says):
    with pytest.raises(ConfigError, match=says):
        foreach_batch_sink("orders", options, **named)


def test_a_column_is_found_by_its_own_name_first():
    """With spark.sql.caseSensitive=true, names may differ in case only. The last such column was written."""
    options = sink_options({**SERVERS, "topic": "orders"})
    text = StringType()
    both = StructType().add("value", text).add("VALUE", text).add("Key", text)
    assert wanted_columns(both, options) == {"key": "Key", "value": "value"}
    with pytest.raises(ConfigError, match="VALUE and Value could each be the column value"):
        wanted_columns(StructType().add("VALUE", text).add("Value", text), options)
