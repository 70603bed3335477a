"""Every generated page."""

from __future__ import annotations

from typing import Final

from tests.pages import (
    batch_states,
    errors,
    events,
    kafka_codes,
    log_events,
    metrics,
    options,
    position_states,
)

PAGES: Final = (batch_states, errors, events, kafka_codes, log_events, metrics, options, position_states)
