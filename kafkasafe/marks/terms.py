"""The constants and errors of the spool format."""

from __future__ import annotations

from typing import Final

FORMAT_VERSION: Final = 2
LANE_ID_BYTES: Final = 16
UNIT_ID_BYTES: Final = 16
NO_TOPIC_ID: Final = bytes(16)
"""Topic id of a topic whose id is not known."""


class MarkError(ValueError):
    """A control batch is damaged, or the format defines no meaning for a mark."""


class UnknownFormatError(MarkError):
    """A newer version of kafkasafe wrote an intact control batch, so this version must not use the lane."""
