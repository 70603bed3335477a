"""What a user of Spark Connect does, in a process of its own, and what becomes of it."""

import json
import os
import sys
import threading

os.environ["PYSPARK_PYTHON"] = sys.executable


def main(servers: str, topic: str, app: str, folder: str) -> None:
    from pyspark.sql import SparkSession

    from kafkasafe.spark import foreach_batch_sink, register, write_batch

    spark = SparkSession.builder.remote("local[2]").config("spark.sql.shuffle.partitions", "2").getOrCreate()
    assert "connect" in type(spark).__module__
    register(spark)
    options = {"kafka.bootstrap.servers": servers, "topic": topic}
    said: dict[str, object] = {}

    def rows(begin: int, end: int):
        return spark.range(begin, end, 1, 2).selectExpr(
            "CAST(id AS STRING) AS key", "CAST(id AS STRING) AS value"
        )

    # Two at the same time, with an exchange each; the session's settings stay what they were.
    adaptive = "spark.sql.adaptive.enabled"
    before = spark.conf.get(adaptive)
    failed: list[BaseException] = []

    def write(begin: int) -> None:
        try:
            write_batch(rows(begin, begin + 50), **options)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=(begin,)) for begin in (0, 50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failed, failed
    said["settings"] = [before, spark.conf.get(adaptive)]

    sink = foreach_batch_sink(txnAppId=app, **options)
    for batch_id, end in ((0, 110), (0, 110), (0, 120)):
        try:
            sink(rows(100, end), batch_id)
            outcome = sink.last.name
        except Exception as error:
            outcome = type(error).__name__
        said.setdefault("outcomes", []).append(outcome)  # type: ignore[attr-defined]
    sink.close()

    rows(110, 150).write.format("kafkasafe").mode("append").options(**options).save()

    rows(150, 200).select("value").write.text(f"{folder}/in")
    remote = foreach_batch_sink(txnAppId=f"{app}-stream", **options)
    stream = (
        spark.readStream.schema("value string")
        .text(f"{folder}/in")
        .writeStream.foreachBatch(remote)
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
    )
    for tried in range(4):
        try:
            query = stream.start()
            said["ended"] = query.awaitTermination(300)
            said["error"] = str(query.exception() or "")
        except Exception as error:
            said["error"] = str(error)
        # Spark gives a Python process ten seconds to connect, which a busy machine exceeds. Nothing was done then.
        if "connect back" not in str(said["error"]) or tried == 3:
            break

    found = (
        spark.read.format("kafkasafe")
        .options(**{"kafka.bootstrap.servers": servers, "subscribe": topic})
        .load()
    )
    said["values"] = sorted(
        int(row.value) for row in found.selectExpr("CAST(value AS STRING) AS value").collect()
    )
    print("SAID " + json.dumps(said), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
