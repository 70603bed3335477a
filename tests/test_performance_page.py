"""docs/performance.md shows what benchmarks/growth.json says."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def growth(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    spec = importlib.util.spec_from_file_location("growth", ROOT / "benchmarks" / "growth.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "growth", module)
    spec.loader.exec_module(module)
    return module


def test_the_tables_are_those_of_the_measurement(growth):
    text = growth.PAGE.read_text(encoding="utf-8")
    found = json.loads(growth.RESULTS.read_text(encoding="utf-8"))
    assert growth.page(text, found) == text
    for name in ("records", "partitions", "producers", "sizes", "codecs"):
        assert growth.table(name, found) in text
        assert len(found[name]) >= 4


def test_every_plot_is_on_the_page(growth):
    text = growth.PAGE.read_text(encoding="utf-8")
    plots = {path.name for path in growth.DOCS.glob("performance-*.svg")}
    assert plots == {f"performance-{name}.svg" for name in ("records", "partitions", "producers", "sizes")}
    assert all(f"]({name})" in text for name in plots)
