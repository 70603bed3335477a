"""Times of records that Spark's type timestamp cannot represent. It counts microseconds, and Kafka milliseconds."""

from __future__ import annotations

import pyarrow as pa
import pytest
from sourcing import SCHEMA, Source, write

from kafkasafe.errors import ConfigError
from kafkasafe.spark.reading import read, read_at_once
from kafkasafe.testing import FakeCluster

NEWEST_MS = (2**63 - 1) // 1000


@pytest.mark.parametrize("time_ms", [NEWEST_MS + 1, 2**63 - 1])
@pytest.mark.parametrize("is_inline", [True, False])
def test_a_record_whose_time_spark_cannot_have_is_named(time_ms: int, is_inline: bool) -> None:
    with FakeCluster() as cluster:
        cluster.create_topic("t", 1, config={"message.timestamp.after.max.ms": 2**63 - 1})
        write(cluster, "t", [b"0", b"1"], timestamp=NEWEST_MS)
        write(cluster, "t", [b"2"], timestamp=time_ms)
        with Source(cluster, streaming=False, subscribe="t") as source:
            (piece,) = source.planner.batch()

            def rows(schema: pa.Schema) -> object:
                if is_inline:
                    return read_at_once(
                        source.planner.network(), source.options, [piece], schema, max_bytes=1000, timeout_s=5
                    )
                return list(read(source.options, piece, schema, source.notices))

            said = (
                f"t-0 has a record at offset 2 whose timestamp, {time_ms} ms, .* without the column timestamp"
            )
            with pytest.raises(ConfigError, match=said):
                rows(SCHEMA)
            found = pa.Table.from_batches(rows(pa.schema([SCHEMA.field("value")])))
            assert found.column("value").to_pylist() == [b"0", b"1", b"2"]
