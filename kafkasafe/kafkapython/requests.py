"""kafka-python's requests, and a function that makes one from a name and plain data.

Other packages import the classes from here, because kafka-python may move its protocol between releases.
"""

from __future__ import annotations

from collections.abc import Mapping
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
    "made",
]

_REQUESTS: Final[Mapping[str, Any]] = {
    "AddOffsetsToTxn": AddOffsetsToTxnRequest,
    "AddPartitionsToTxn": AddPartitionsToTxnRequest,
    "ApiVersions": ApiVersionsRequest,
    "DescribeTransactions": DescribeTransactionsRequest,
    "EndTxn": EndTxnRequest,
    "FindCoordinator": FindCoordinatorRequest,
    "InitProducerId": InitProducerIdRequest,
    "OffsetFetch": OffsetFetchRequest,
    "TxnOffsetCommit": TxnOffsetCommitRequest,
}


def made(name: str, fields: Mapping[str, Any]) -> Any:
    """Makes the request. Dicts, and lists of dicts, become structs."""
    return _struct(_REQUESTS[name], fields)


def _struct(kind: Any, fields: Mapping[str, Any]) -> Any:
    values: dict[str, Any] = {}
    for name, value in fields.items():
        field = kind._struct.fields[name]
        if field.is_struct_array() and value is not None:
            value = [_struct(field.data_class, entry) for entry in value]
        values[name] = value
    return kind(**values)
