"""The readings of the consumers of this process: see `kafkasafe._core.readings`."""

from __future__ import annotations

import time
from typing import Final

from kafkasafe._core.readings import Numbers

__all__ = ["NUMBERS"]

NUMBERS: Final = Numbers(time.time_ns() // 1000)
