"""The table of options in docs/spark-sink.md, from the table that parses them."""

from __future__ import annotations

from typing import Final

from kafkasafe.spark.sink_options import SINK
from tests.pages import DOCS, filled
from tests.pages.spark_source import of_query

PATH: Final = DOCS / "spark-sink.md"


def text() -> str:
    return filled(PATH, {"options": of_query(SINK.rows)})
