"""The generated pages of docs/ say what the code says, and the code says enough."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.pages.all import PAGES


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.PATH.name)
def test_the_page_is_what_the_code_makes(page):
    # After a change: .venv/bin/python -m tests.pages
    assert page.PATH.read_text(encoding="utf-8") == page.text()
