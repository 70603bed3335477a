"""Reading the same control batches thousands of times is what these tests would spend their time with."""

from __future__ import annotations

import functools

import pytest

from kafkasafe._core import marks


@pytest.fixture(autouse=True)
def _quick_marks(monkeypatch):
    decode = functools.lru_cache(100_000)(marks.decode_group)
    monkeypatch.setattr(marks, "decode_group", lambda data: decode(bytes(data)))
