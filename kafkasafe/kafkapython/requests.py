"""kafka-python's requests, and a function that makes a request from a name and plain data.

Other packages import the classes from here, because a release of kafka-python may move them to other modules.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Final

from kafka.protocol.admin import CreateTopicsRequest, DescribeProducersRequest, DescribeTransactionsRequest
from kafka.protocol.consumer import (
    FetchRequest,
    ListOffsetsRequest,
    OffsetFetchRequest,
    OffsetForLeaderEpochRequest,
)
from kafka.protocol.metadata import ApiVersionsRequest, FindCoordinatorRequest, MetadataRequest
from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ProduceRequest,
    TxnOffsetCommitRequest,
)

__all__ = [
    "AddOffsetsToTxnRequest",
    "AddPartitionsToTxnRequest",
    "CreateTopicsRequest",
    "DescribeProducersRequest",
    "DescribeTransactionsRequest",
    "EndTxnRequest",
    "FetchRequest",
    "FindCoordinatorRequest",
    "InitProducerIdRequest",
    "ListOffsetsRequest",
    "MetadataRequest",
    "OffsetFetchRequest",
    "OffsetForLeaderEpochRequest",
    "ProduceRequest",
    "TxnOffsetCommitRequest",
    "kind",
    "made",
]

_REQUESTS: Final[Mapping[str, Any]] = {
    "AddOffsetsToTxn": AddOffsetsToTxnRequest,
    "AddPartitionsToTxn": AddPartitionsToTxnRequest,
    "ApiVersions": ApiVersionsRequest,
    "CreateTopics": CreateTopicsRequest,
    "DescribeProducers": DescribeProducersRequest,
    "DescribeTransactions": DescribeTransactionsRequest,
    "EndTxn": EndTxnRequest,
    "Fetch": FetchRequest,
    "FindCoordinator": FindCoordinatorRequest,
    "InitProducerId": InitProducerIdRequest,
    "ListOffsets": ListOffsetsRequest,
    "Metadata": MetadataRequest,
    "OffsetFetch": OffsetFetchRequest,
    "OffsetForLeaderEpoch": OffsetForLeaderEpochRequest,
    "Produce": ProduceRequest,
    "TxnOffsetCommit": TxnOffsetCommitRequest,
}


def kind(name: str) -> Any:
    """Returns the class of a request, by Kafka's name of the request."""
    return _REQUESTS[name]


def made(name: str, fields: Mapping[str, Any]) -> Any:
    """Makes a request from its name and fields. Dicts in a list become structs."""
    return _struct(_REQUESTS[name], fields)


def _struct(kind: Any, fields: Mapping[str, Any]) -> Any:
    values = dict(fields)
    for name, entries in _struct_arrays(kind):
        rows = values.get(name)
        if rows is not None:
            values[name] = [_struct(entries, row) for row in rows]
    return kind(**values)


@functools.cache
def _struct_arrays(kind: Any) -> Sequence[tuple[str, Any]]:
    """Returns pairs of (field name, class of the entries) for all fields that are arrays of structs."""
    fields = kind._struct.fields
    return [(name, field.data_class) for name, field in fields.items() if field.is_struct_array()]
