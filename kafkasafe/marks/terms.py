"""The constants and errors of the spool format."""

from __future__ import annotations

from typing import Final

FORMAT_VERSION: Final = 2
LANE_ID_BYTES: Final = 16
UNIT_ID_BYTES: Final = 16
NO_TOPIC_ID: Final = bytes(16)
"""Stands for a topic id that is not known."""


class MarkError(ValueError):
    """A control batch is damaged, or the format defines no meaning for a value in a mark."""


class UnknownFormatError(MarkError):
    """A control batch is intact, but has a format that only newer versions of kafkasafe know. This version must not use
    the lane.
    """
