"""The generated pages of docs/ say what the code says, and the code says enough."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from kafkasafe.errors import FACTS
from tests.pages import errors
from tests.pages.all import PAGES


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.PATH.name)
def test_the_page_is_what_the_code_makes(page):
    # After a change: .venv/bin/python -m tests.pages
    assert page.PATH.read_text(encoding="utf-8") == page.text()


def test_all_is_said_of_every_error():
    known = errors.errors()
    assert len(known) > 20
    assert known.keys() == FACTS.keys()
    assert [name for name, error in known.items() if not (error.__doc__ or "").strip()] == []
    assert [name for name, facts in FACTS.items() if not (facts.data and facts.action)] == []
    # The root is raised by nothing itself.
    assert [name for name, facts in FACTS.items() if not facts.calls] == ["KafkaSafeError"]


def test_the_calls_that_raise_errors_exist():
    for facts in FACTS.values():
        for name in facts.calls:
            assert callable(errors.call(name)) or isinstance(errors.call(name), property), name
