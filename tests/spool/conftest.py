"""What these tests would spend their time with: reading the same control batches thousands of times, 64 KiB of reserve
in each of thousands of crashes.
"""

from __future__ import annotations

import functools

import pytest

from kafkasafe import marks
from kafkasafe.spool import reserve


@pytest.fixture(autouse=True)
def _quick_marks(monkeypatch):
    decode = functools.lru_cache(100_000)(marks.decode_group)
    monkeypatch.setattr(marks, "decode_group", lambda data: decode(bytes(data)))


@pytest.fixture(autouse=True)
def _small_reserve(monkeypatch):
    monkeypatch.setattr(reserve, "_MARKS_BYTES", 400)
