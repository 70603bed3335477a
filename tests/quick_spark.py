"""Java options with which Spark starts in half the processor time: its classes come from an archive.

A Spark that lives for a minute spends most of its time on loading some twenty thousand classes. A class data archive
(`-XX:ArchiveClassesAtExit`) holds them as they are in memory. A first Spark, which does a little of everything, makes the
archive in the user's cache, once for a Java and a PySpark.

Run as a program, this module is that first Spark.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import platformdirs

from kafkasafe.testing.jars import locked

QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a JVM that lives for a minute: it is not worth compiling twice."""


@cache
def java_options() -> str:
    """The options of drivers, executors and daemons, separated by spaces. Makes the archive if it is missing.

    A Java that cannot make or use the archive starts without it.
    """
    import pyspark

    java = Path(os.environ["JAVA_HOME"], "bin", "java") if "JAVA_HOME" in os.environ else "java"
    said = subprocess.run([java, "-version"], capture_output=True, check=False, timeout=60).stderr
    key = hashlib.sha256(said + os.fsencode(pyspark.__file__) + Path(__file__).read_bytes()).hexdigest()[:12]
    folder = platformdirs.user_cache_path("kafkasafe-tests", ensure_exists=True)
    archive = folder / f"spark-{pyspark.__version__}-{key}.jsa"
    with locked(archive.with_suffix(".lock")):
        if not archive.exists():
            _make(archive)
    # Some tests read the standard output, to which a JVM would log that it cannot use the archive.
    return (
        f"{QUICK_JAVA} -Xlog:disable -XX:SharedArchiveFile={archive}"
        if archive.stat().st_size
        else QUICK_JAVA
    )


def _make(archive: Path) -> None:
    """Makes the archive; an empty file if this Java cannot."""
    with tempfile.TemporaryDirectory(dir=archive.parent) as scratch:
        made = Path(scratch) / archive.name
        options = f"{QUICK_JAVA} -Xlog:disable -XX:ArchiveClassesAtExit={made}"
        subprocess.run(
            [sys.executable, __file__, scratch],
            capture_output=True,
            check=True,
            env={**os.environ, "SPARK_SUBMIT_OPTS": options, "SPARK_LOCAL_DIRS": scratch},
        )
        made.touch()
        shutil.move(made, archive)


def _some_of_everything(scratch: str) -> None:
    """Runs a batch, a data source that is written in Python, and micro-batches with state."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as f
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    class Numbers(DataSource):
        def schema(self) -> str:
            return "value string"

        def reader(self, schema: object) -> DataSourceReader:
            return Reader()

    class Reader(DataSourceReader):
        def read(self, partition: InputPartition) -> Iterator[tuple[str]]:
            yield from ((str(number),) for number in range(100))

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    for name in ("host", "bindAddress"):
        builder = builder.config(f"spark.driver.{name}", "127.0.0.1")
    spark = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    spark.dataSource.register(Numbers)
    rows = spark.range(0, 1000, 1, 2).selectExpr("CAST(id AS STRING) AS value")
    rows.groupBy("value").count().collect()
    rows.write.text(f"{scratch}/in")
    spark.read.format("Numbers").load().collect()
    sums = (
        spark.readStream.schema("value string")
        .text(f"{scratch}/in")
        .withColumn("at", f.timestamp_seconds(f.col("value").cast("long")))
        .withWatermark("at", "1 second")
        .dropDuplicatesWithinWatermark(["value"])
        .groupBy(f.window("at", "2 seconds"))
        .agg(f.to_json(f.struct(f.count("*").alias("count"))).alias("value"))
    )
    query = (
        sums.select("value")
        .writeStream.foreachBatch(lambda df, _: df.foreachPartition(list))
        .option("checkpointLocation", f"{scratch}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    gateway = SparkContext._gateway
    spark.stop()
    assert gateway is not None
    # The JVM writes the archive when it ends by itself, which `stop` does not wait for.
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


if __name__ == "__main__":
    _some_of_everything(sys.argv[1])
