"""Every generated page."""

from __future__ import annotations

from typing import Final

from tests.pages import errors, events, kafka_codes, log_events, metrics, options

PAGES: Final = (errors, events, kafka_codes, log_events, metrics, options)
