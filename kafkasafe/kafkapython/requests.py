"""Makes kafka-python's requests from a name and plain data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kafka.protocol.admin import DescribeTransactionsRequest
from kafka.protocol.consumer import OffsetFetchRequest
from kafka.protocol.metadata import ApiVersionsRequest, FindCoordinatorRequest
from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)

__all__ = ["made"]

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
