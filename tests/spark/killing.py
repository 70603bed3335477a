"""A driver whose `commit` process kills it, its JVM and all workers at a step that it is told. Importable by Spark's workers.

KILLING is a list like `begin:0,verify:0`: at which steps of which batches, each once; files in KILLING_DIR remember.
"""

import json
import os
import signal
import sys
from pathlib import Path

import psutil

from kafkasafe.spark.sink_transaction import SinkTransaction
from kafkasafe.spark.source import KafkaSafeSource
from kafkasafe.spark.writers import StreamWriter, stream_writer


def everything() -> None:
    """kill -9 of the driver and all below it, this process last."""
    driver = psutil.Process(int(os.environ["KILLING_DRIVER"]))
    for process in [driver, *driver.children(recursive=True)]:
        if process.pid != os.getpid():
            process.send_signal(signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def at(step: str, batch_id: int) -> None:
    said = Path(os.environ["KILLING_DIR"]) / f"{step}-{batch_id}"
    if f"{step}:{batch_id}" in os.environ["KILLING"].split(",") and not said.exists():
        said.touch()
        everything()


class KillingWriter(StreamWriter):
    def commit(self, messages, batchId) -> None:  # noqa: N803
        at("begin", batchId)
        real = SinkTransaction.verify

        def dies(transaction, *args):
            real(transaction, *args)
            at("verify", batchId)

        SinkTransaction.verify = dies
        super().commit(messages, batchId)


class KillingSource(KafkaSafeSource):
    @classmethod
    def name(cls) -> str:
        return "killing"

    def streamWriter(self, schema, overwrite) -> KillingWriter:
        writer = stream_writer(dict(self.options), schema)
        writer.__class__ = KillingWriter
        return writer


def main(options: dict, source: str | dict, checkpoint: str) -> None:
    """Reads a directory of text files to its end, or, with options, from Kafka until it is killed."""
    # local_spark.py uses quick_spark.py there.
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from local_spark import spark_session

    os.environ["KILLING_DRIVER"] = str(os.getpid())
    with spark_session() as spark:
        spark.dataSource.register(KillingSource)
        trigger: dict = {"processingTime": "0 seconds"}
        if isinstance(source, dict):
            rows = spark.readStream.format("kafkasafe").options(**source).load().select("value")
        else:
            rows = spark.readStream.schema("value string").option("maxFilesPerTrigger", 1).text(source)
            trigger = {"availableNow": True}
        query = (
            rows.writeStream.format("killing")
            .options(**options)
            .option("checkpointLocation", checkpoint)
            .trigger(**trigger)
            .start()
        )
        query.awaitTermination()


if __name__ == "__main__":
    main(*json.loads(sys.argv[1]))
