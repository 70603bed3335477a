"""The streaming writer, which says when its `commit` begins, and where, so that `spark_chaos.py` can kill inside."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

from kafkasafe.spark.session import Session
from kafkasafe.spark.source import KafkaSafeSource
from kafkasafe.spark.writers import StreamWriter, stream_writer


class TellingWriter(StreamWriter):
    def commit(self, messages, batchId) -> None:  # noqa: N803
        # Whole or not there.
        said = Path(os.environ["CHAOS_COMMIT"])
        partial = said.with_suffix(".partial")
        partial.write_text(str(os.getpid()))
        partial.replace(said)
        # As on a slow machine: most of the kills that are meant for it then meet it, at any step.
        step = random.choice(["open", "verify", "mark", "commit"])
        real = getattr(Session, step)

        def slow(*args, **kwargs) -> None:
            real(*args, **kwargs)
            time.sleep(0.3)

        setattr(Session, step, slow)
        try:
            super().commit(messages, batchId)
        finally:
            setattr(Session, step, real)


class TellingSource(KafkaSafeSource):
    @classmethod
    def name(cls) -> str:
        return "telling"

    def streamWriter(self, schema, overwrite) -> TellingWriter:  # noqa: ARG002, N802
        writer = stream_writer(dict(self.options), schema)
        writer.__class__ = TellingWriter
        return writer
