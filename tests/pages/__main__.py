"""Write the generated pages: `python -m tests.pages`, from the root of the project."""

from __future__ import annotations

from tests.pages import ROOT
from tests.pages.all import PAGES

for page in PAGES:
    text = page.text()
    changed = not page.PATH.exists() or page.PATH.read_text(encoding="utf-8") != text
    page.PATH.write_text(text, encoding="utf-8")
    print(f"{page.PATH.relative_to(ROOT)}{' (changed)' if changed else ''}")
