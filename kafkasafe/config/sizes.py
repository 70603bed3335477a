"""Sizes of the spool that depend on each other: their defaults, and checks that records fit into segments, and segments
into the spool.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kafkasafe.config.values import number
from kafkasafe.errors import ConfigError

MIB: Final = 1024 * 1024
MIN_SPOOL_BYTES: Final = 16 * MIB
LEAST_RECORD_BYTES: Final = 1024
MEMORY_SEGMENT_BYTES: Final = MIB
"""In memory, segments contain mostly marks (small entries). The spool frees memory one whole segment at a time, so
small segments free the memory of delivered records earlier.
"""
_SPOOL_BYTES: Final = 1024 * MIB
_REJECTED_BYTES: Final = 256 * MIB
_MEMORY_BYTES: Final = 32 * MIB
"""The default of `buffer.memory` in Kafka's own producer."""
_SEGMENT_OVERHEAD: Final = 64 * 1024


def default_spool_bytes(above: Mapping[str, Any]) -> int:
    return _MEMORY_BYTES if above["spool"] == "never" else _SPOOL_BYTES


def default_segment_bytes(above: Mapping[str, Any]) -> int:
    """Return the default of `spool_segment_bytes`, with room for at least one record of the maximum size.

    Raises:
        ConfigError: The spool is too small for segments that hold a record of the maximum size.
    """
    record, spool = above["max_record_bytes"], above["spool_max_bytes"]
    segment: int = max(min(64 * MIB, spool // 8), 2 * MIB)
    if record > segment - _SEGMENT_OVERHEAD:
        segment = -(-(record + _SEGMENT_OVERHEAD) // MIB) * MIB
        if segment * 4 > spool:
            raise ConfigError(
                f"max_request_size={record} needs a spool with room for at least four such records: set"
                f" spool_max_bytes={segment * 4} or more (it is {spool}), or lower max_request_size"
            )
    return segment


def default_rejected_bytes(above: Mapping[str, Any]) -> int:
    spool: int = above["spool_max_bytes"]
    return min(_REJECTED_BYTES, spool)


def batch_bytes(options: Mapping[str, Any], name: str) -> int:
    """Return the batch size limit, which is never above the record size limit."""
    record = number(least=LEAST_RECORD_BYTES)(options, "max_request_size")
    return min(max(number(least=0)(options, name), 1), record)


def check_segments(fields: Mapping[str, Any]) -> None:
    """Refuse segments that are too large for the spool, or too small for a record."""
    if fields["spool"] == "never":
        return
    record, segment, spool = (
        fields["max_record_bytes"],
        fields["spool_segment_bytes"],
        fields["spool_max_bytes"],
    )
    if segment * 4 > spool:
        raise ConfigError(
            f"spool_segment_bytes={segment} must be at most a quarter of spool_max_bytes={spool}"
        )
    if record > segment - _SEGMENT_OVERHEAD:
        raise ConfigError(
            f"max_request_size={record} must fit into one segment ({segment} bytes) of the spool: set"
            f" spool_segment_bytes={record + _SEGMENT_OVERHEAD} or more, and spool_max_bytes to at least four"
            " times that"
        )


def check_memory(fields: Mapping[str, Any]) -> None:
    """With `spool="never"`, refuse a memory limit below four records of the maximum size."""
    record, limit = fields["max_record_bytes"], fields["spool_max_bytes"]
    if fields["spool"] == "never" and record * 4 > limit:
        raise ConfigError(
            f"max_request_size={record} needs room for at least four such records: set"
            f" spool_max_bytes={record * 4} or more (it is {limit} bytes of memory), or lower max_request_size"
        )
