"""Assigns numbers to the readings (runs through partitions) of all consumers in this process: see
`kafkasafe.delivery.readings`.
"""

from __future__ import annotations

import time
from typing import Final

from kafkasafe.delivery.readings import Numbers

NUMBERS: Final = Numbers(time.time_ns() // 1000)
