import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def patient_start(monkeypatch):
    """`start` waits for the group for as long as a busy machine takes, not for five seconds."""
    monkeypatch.setattr("kafkasafe.aio.requests._SETTLE_S", 60.0)
