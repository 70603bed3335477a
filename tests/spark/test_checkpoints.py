"""Checkpoints that do not belong to what is in the topic: nothing that was not written is ever skipped."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from sinks import new_name, numbers, options, values

from kafkasafe.spark import foreach_batch_sink

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


class Query:
    """A query over files of numbers, which is run to their end again and again."""

    def __init__(self, spark, kafka, kind: str, folder: Path) -> None:
        self.spark, self.kafka, self.kind, self.folder = spark, kafka, kind, folder
        self.topic = new_name()
        kafka.create_topic(self.topic, partitions=2)
        self.source, self.checkpoint = folder / "in", folder / "checkpoint"
        self.options = options(kafka, topic=self.topic)

    def add(self, begin, end):
        frame = self.spark.range(begin, end, 1, 1).selectExpr("CAST(id AS STRING) AS value")
        frame.write.mode("append").text(str(self.source))

    def drop(self):
        for file in self.source.glob("*part-*"):
            file.unlink()

    def run(self, **more):
        """The numbers of the batches that Spark ran."""
        stream = self.spark.readStream.schema("value string").text(str(self.source))
        stream = stream.selectExpr("value AS key", "value").writeStream
        settings = {**self.options, **more}
        sink = None
        if self.kind == "sink":
            sink = foreach_batch_sink(**settings)
            stream = stream.foreachBatch(sink)
        else:
            stream = stream.format("kafkasafe").options(**settings)
        query = stream.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(300)
            return [progress.batchId for progress in query.recentProgress]
        finally:
            query.stop()
            if sink is not None:
                sink.close()

    def values(self):
        return values(self.kafka, self.topic)


@pytest.fixture(params=["sink", "writer"])
def query(request, spark, kafka, tmp_path):
    return Query(spark, kafka, request.param, tmp_path)


def test_a_checkpoint_from_a_copy_one_batch_old_is_refused_and_accepting_it_loses_nothing(query):
    copy = query.folder / "copy"
    query.add(0, 10)
    assert query.run() == [0]
    shutil.copytree(query.checkpoint, copy)
    query.add(10, 20)
    assert query.run() == [1]
    shutil.rmtree(query.checkpoint)
    copy.rename(query.checkpoint)
    # As many rows as the batch that is committed, and offsets of the same text: both are "file 1 of the list".
    query.drop()
    query.add(20, 30)
    with pytest.raises(Exception, match=r"Batch 1 of txnAppId .* is committed \(10 rows\).* with other rows"):
        query.run()
    assert query.values() == numbers(range(20))
    # Accepted, batch 1 is written as it is now; its repetition is known by the marker that took the old one's place.
    query.run(onMarkerMismatch="accept")
    for name in ("1", ".1.crc"):
        (query.checkpoint / "commits" / name).unlink()
    query.add(30, 40)
    assert query.run() == [1, 2]
    assert query.values() == numbers(range(40))


def test_a_new_checkpoint_under_an_old_name_skips_nothing(query):
    query.options["txnAppId"] = new_name("app")
    for begin in range(0, 30, 10):
        query.add(begin, begin + 10)
        query.run()
    shutil.rmtree(query.checkpoint)
    query.drop()
    query.add(30, 40)
    with pytest.raises(Exception, match="Use a new txnAppId with a new checkpoint"):
        query.run()
    # Its batch 0 is below the old query's number.
    query.run(onMarkerMismatch="accept")
    query.add(40, 50)
    assert query.run() == [1]
    assert query.values() == numbers(range(50))
