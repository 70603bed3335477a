"""Every generated page."""

from __future__ import annotations

from typing import Final

from tests.pages import errors, kafka_codes

PAGES: Final = (errors, kafka_codes)
