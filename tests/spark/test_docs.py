"""The Python in the pages about Spark runs as it is, and has the outcome that they describe."""

from __future__ import annotations

import ast
import json
import os
import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import sourcing
from sinks import new_name, values

import kafkasafe.spark

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

DOCS = Path(__file__).parents[2] / "docs"
BLOCKS = [
    block
    for page in sorted(DOCS.glob("spark*.md"))
    for block in re.findall(
        r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
]
ORDERS = [
    b'{"id": 1, "user": "ann", "amount": 2.5}',
    b'{"id": 2, "user": "bob", "amount": 1.0}',
    b"no json",
    b'{"user": "eve"}',
]


def block(words: str) -> str:
    """The one that has these words."""
    (found,) = [text for text in BLOCKS if words in text]
    return found


class Page:
    """Runs blocks one after the other, in one module."""

    def __init__(self, spark: Any, kafka: Any, folder: Path) -> None:
        self.spark, self.kafka, self.folder = spark, kafka, folder
        self.servers = ",".join(kafka.bootstrap_servers)
        self.topics = {
            name: new_name(name)
            for name in ("orders", "orders-parsed", "orders-bad", "totals", "loud-orders")
        }
        for topic in self.topics.values():
            kafka.create_topic(topic, partitions=2)
        self.names: dict[str, Any] = {
            "spark": spark,
            "options": {"kafka.bootstrap.servers": self.servers},
            "foreach_batch_sink": kafkasafe.spark.foreach_batch_sink,
        }

    def run(self, text: str, **instead: str) -> None:
        """With addresses, topics and directories of this test."""
        for servers in ("one:9092,two:9092", "b1:9092,b2:9092"):
            text = text.replace(servers, self.servers)
        for name, topic in self.topics.items():
            text = text.replace(f'"{name}"', f'"{topic}"')
        for directory in ("/checkpoints", "/tables"):
            text = text.replace(f'"{directory}', f'"{self.folder}{directory}')
        for old, new in instead.items():
            assert old in text
            text = text.replace(old, new)
        before = self.spark.streams.active
        exec(compile(text, str(DOCS / "spark.md"), "exec"), self.names)
        for query in self.spark.streams.active:
            if query not in before:
                query.processAllAvailable()
                query.stop()

    def values(self, name: str) -> list[bytes]:
        return sorted(values(self.kafka, self.topics[name]).elements())


@pytest.fixture
def page(spark, kafka, tmp_path):
    made = Page(spark, kafka, tmp_path)
    sourcing.write(kafka, made.topics["orders"], ORDERS)
    made.run(block("register(spark)\norders"))
    return made


def totals(page: Page) -> Any:
    """A stream with a column `user`."""
    return page.names["orders"].selectExpr("get_json_object(CAST(value AS STRING), '$.user') AS user")


def test_each_block_is_run_or_named_here():
    run = [
        "register(spark)\norders",
        "loud-orders",
        "columnNameOfCorruptRecord",
        'foreach_batch_sink("totals"',
        "def both",
        "df.write",
    ]
    run += ["def token()", 'os.environ["PYSPARK_PYTHON"]', "from_avro("]
    assert [text for text in BLOCKS if not any(words in text for words in run)] == []
    for text in BLOCKS:
        ast.parse(text)


def test_a_first_query(page):
    page.run(block("loud-orders"))
    assert page.values("loud-orders") == sorted(value.upper() for value in ORDERS)


def test_records_with_a_schema(page):
    page.run(block("columnNameOfCorruptRecord"))
    assert page.values("orders-bad") == sorted(ORDERS[2:])
    assert [json.loads(value) for value in page.values("orders-parsed")] == [
        {"id": 1, "user": "ann", "amount": 2.5},
        {"id": 2, "user": "bob", "amount": 1.0},
    ]


def test_the_sink_and_the_writer(page):
    page.names["df"] = totals(page).where("user IS NOT NULL")
    page.run(block('foreach_batch_sink("totals"'))
    assert [json.loads(value)["user"] for value in page.values("totals")] == ["ann", "bob", "eve"]
    # The same query by the writer goes on where the sink was: the default `txnAppId` is the same.
    stream, batch = block('format("kafkasafe")\n   .option("kafka.bootstrap').split("df.write")
    page.run(stream)
    assert len(page.values("totals")) == 3
    page.names["df"] = page.spark.sql("SELECT 'dan' AS value")
    page.run("df.write" + batch)
    assert b"dan" in page.values("totals")


def test_one_function_for_kafka_and_a_table(page):
    page.names["sink"] = kafkasafe.spark.foreach_batch_sink(page.topics["totals"], **page.names["options"])
    # Without Delta's jar: what is run is all but its `txnVersion`.
    page.run(block("def both"), **{'format("delta")': 'format("parquet")'})
    frame = totals(page).where("user IS NOT NULL")
    query = frame.writeStream.foreachBatch(page.names["both"])
    query = query.option("checkpointLocation", str(page.folder / "both")).start()
    query.processAllAvailable()
    query.stop()
    table = page.spark.read.parquet(str(page.folder / "tables" / "totals"))
    assert sorted(row.user for row in table.collect()) == ["ann", "bob", "eve"]
    assert len(page.values("totals")) == 3


def test_a_schema_registry_s_five_bytes(page):
    """Without Spark's Avro, which is a jar: what comes before it."""
    (split, _) = block("from_avro(").split("users = ")
    page.names["orders"] = page.spark.sql("SELECT unhex('00000000070ABC') AS value")
    split = split.replace("from pyspark.sql.avro.functions import from_avro\n", "")
    page.run(split)
    (row,) = page.names["with_id"].collect()
    assert (row.schema_id, bytes(row.body)) == ("7", b"\n\xbc")


def test_a_token_of_msk_and_the_workers_python(monkeypatch):
    signer = types.ModuleType("aws_msk_iam_sasl_signer")
    signer.MSKAuthTokenProvider = types.SimpleNamespace(  # type: ignore[attr-defined]
        generate_auth_token=lambda region: (f"token of {region}", 900_000)
    )
    monkeypatch.setitem(sys.modules, "aws_msk_iam_sasl_signer", signer)
    names: dict[str, Any] = {}
    exec(block("def token()"), names)
    assert names["token"]() == "token of eu-west-1"
    monkeypatch.setenv("PYSPARK_PYTHON", "another")
    exec(block('os.environ["PYSPARK_PYTHON"]'), {})
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


def test_a_jaas_line_of_databricks_is_read():
    from kafkasafe.spark.options import read_options

    given = {
        "kafka.bootstrap.servers": "one:9092",
        "subscribe": "orders",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.jaas.config": "kafkashaded.org.apache.kafka.common.security.plain.PlainLoginModule required"
        ' username="ann" password="secret";',
    }
    connection = read_options(given, streaming=True).connection
    assert (connection["sasl_plain_username"], connection["sasl_plain_password"]) == ("ann", "secret")
