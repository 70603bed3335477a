"""A Celery application whose tasks send, and note what `durable()` confirmed."""

import functools
import os
import uuid
from pathlib import Path

from celery import Celery

from kafkasafe import SafeProducer

HERE = Path(os.environ["CELERY_DIR"])

app = Celery("orders", broker="filesystem://")
app.conf.update(
    broker_transport_options={
        "data_folder_in": str(HERE / "queue"),
        "data_folder_out": str(HERE / "queue"),
        "control_folder": str(HERE / "control"),
    },
    broker_connection_retry_on_startup=True,
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_hijack_root_logger=False,
    worker_prefetch_multiplier=1,
)


@functools.cache
def opened(pid: int) -> SafeProducer:  # what it is remembered by
    return SafeProducer(bootstrap_servers=os.environ["KAFKA"].split(","), client_id="celery")


@app.task(name="order")
def order(number: int) -> None:
    # Celery runs a task again whose worker was killed: each run has a value of its own.
    value = f"{number}-{uuid.uuid4()}"
    opened(os.getpid()).send(os.environ["TOPIC"], value.encode()).durable(timeout=30)
    with (HERE / "accepted").open("a") as accepted:
        accepted.write(f"{value}\n")
