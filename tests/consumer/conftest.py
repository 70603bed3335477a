from __future__ import annotations

import sys
from pathlib import Path

import pytest

# consuming.py is a module beside these tests; pytest's importlib mode adds no path.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def proxy(proxied):
    """The fault proxy of a module's `proxied`, without rules of the test before."""
    yield proxied[1]
    proxied[1].clear()


@pytest.fixture
def cluster(proxied):
    return proxied[0]
