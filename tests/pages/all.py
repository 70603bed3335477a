"""Every generated page."""

from __future__ import annotations

from typing import Final

from tests.pages import (
    errors,
    events,
    journal_states,
    kafka_codes,
    marks,
    metrics,
    options,
    options_guide,
    partition_flows,
    position_states,
    spark_sink,
    spark_source,
)

PAGES: Final = (
    errors,
    events,
    journal_states,
    kafka_codes,
    marks,
    metrics,
    options,
    options_guide,
    partition_flows,
    position_states,
    spark_sink,
    spark_source,
)
