"""Small text files for the next run of a program: JSON with a version and a checksum.

A damaged file must never count as intact, because kafkasafe later uses these files to find out whether a log lost
records.
"""

from __future__ import annotations

import json
import zlib
from typing import Any


class SealError(ValueError):
    """The text has another format, was damaged, or is of a newer version."""


def seal(kind: str, version: int, rows: list[dict[str, Any]]) -> str:
    """The text of a file.

    Args:
        kind: A text that names the content of the file.
        version: Version of the rows' format.
        rows: One for each partition; plain JSON.
    """
    return json.dumps(
        {"kafkasafe": kind, "version": version, "crc32": _crc(kind, version, rows), "partitions": rows},
        indent=1,
    )


def unseal(kind: str, version: int, text: str) -> list[Any]:
    """The rows of a file.

    Raises:
        SealError: The text has another format, was damaged, or is of a newer version.
    """
    try:
        data = json.loads(text)
    except ValueError as error:
        raise SealError(f"it is not JSON: {error}") from None
    if (
        not isinstance(data, dict)
        or data.get("kafkasafe") != kind
        or not isinstance(data.get("partitions"), list)
    ):
        raise SealError(f"it does not hold {kind}")
    if data.get("version") != version:
        raise SealError(f"it has version {data.get('version')!r}, this kafkasafe reads {version}")
    rows: list[Any] = data["partitions"]
    if data.get("crc32") != _crc(kind, version, rows):
        raise SealError("it was damaged or edited: its checksum does not match")
    return rows


def _crc(kind: str, version: int, rows: list[Any]) -> str:
    return f"{zlib.crc32(json.dumps([kind, version, rows], sort_keys=True).encode()):08x}"
