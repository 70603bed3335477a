"""mkdocs.yml, from which `make site` builds the site: each page is in its navigation, and links lead to pages of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
CONFIG = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
DOCS = ROOT / CONFIG["docs_dir"]
PAGES = sorted(DOCS.rglob("*.md"))


def entries(nav: list[Any]) -> Iterator[str]:
    for item in nav:
        ((_, value),) = item.items()  # a page without a title would have its heading's
        if isinstance(value, str):
            yield value
        else:
            yield from entries(value)


def test_every_page_is_in_the_navigation_once_and_every_entry_is_a_page() -> None:
    assert sorted(entries(CONFIG["nav"])) == sorted(str(page.relative_to(DOCS)) for page in PAGES)


def test_the_navigation_begins_with_the_page_that_the_address_of_the_site_shows() -> None:
    assert next(entries(CONFIG["nav"])) == "index.md"


def test_what_the_build_makes_is_not_committed() -> None:
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    assert {f"{CONFIG['site_dir']}/", ".cache/"} <= set(ignored)


def test_no_host_is_named() -> None:
    assert "://" not in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_link_only_to_what_the_site_has(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if link.startswith(("..", "/"))] == []
