"""A streaming writer that reports when its `commit` begins, and in which process, so that `spark_chaos.py` can kill
this process.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from kafkasafe.spark.marker_store import MarkerStore
from kafkasafe.spark.sink_transaction import SinkTransaction
from kafkasafe.spark.source import KafkaSafeSource
from kafkasafe.spark.writers import StreamWriter, stream_writer


class TellingWriter(StreamWriter):
    def commit(self, messages, batchId) -> None:  # noqa: N803
        # Rename the file, so that it is either complete or missing.
        said = Path(os.environ["CHAOS_COMMIT"])
        partial = said.with_suffix(".partial")
        partial.write_text(str(os.getpid()))
        partial.replace(said)
        # Slow down the steps of `commit`, so that most kills that are meant for `commit` happen during one of its
        # steps.
        steps = [(SinkTransaction, "open"), (SinkTransaction, "verify"), (MarkerStore, "write")]
        real = {step: getattr(*step) for step in steps}
        for step, carry_out in real.items():
            setattr(*step, _slow(carry_out))
        try:
            super().commit(messages, batchId)
        finally:
            for step, carry_out in real.items():
                setattr(*step, carry_out)


def _slow(carry_out):
    def slow(*args, **kwargs) -> None:
        carry_out(*args, **kwargs)
        time.sleep(0.15)

    return slow


class TellingSource(KafkaSafeSource):
    @classmethod
    def name(cls) -> str:
        return "telling"

    def streamWriter(self, schema, overwrite) -> TellingWriter:  # noqa: ARG002, N802
        writer = stream_writer(dict(self.options), schema)
        writer.__class__ = TellingWriter
        return writer
