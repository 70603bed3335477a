"""Every generated page."""

from __future__ import annotations

from typing import Final

from tests.pages import kafka_codes

PAGES: Final = (kafka_codes,)
