"""On real brokers: what earlier producers of a spool directory left goes before what later ones accept."""

from __future__ import annotations

from pathlib import Path

import harness
import pytest

from kafkasafe import events

pytestmark = [pytest.mark.kafka, pytest.mark.crash]

OLDER = 2000


class Processes:
    """Subprocesses that send, make durable and wait to be killed."""

    def __init__(self, broker, zygote, tmp_path) -> None:
        self._broker, self._zygote, self._tmp = broker, zygote, tmp_path
        self.spool = tmp_path / "spool"
        self._count = 0

    def start(self, topic: str, first: int, last: int, **options):
        self._count += 1
        ready = self._tmp / f"ready{self._count}"
        life = self._zygote.burst(
            self._tmp,
            self._broker.servers,
            topic,
            ready,
            [first, last],
            spool=self.spool,
            batches_of=10,
            options=options,
        )
        return life, ready


@pytest.fixture
def processes(broker, zygote, tmp_path):
    return Processes(broker, zygote, tmp_path)


def older_after_newer(log: list[int]) -> int:
    newer = next((at for at, number in enumerate(log) if number >= OLDER), len(log))
    return sum(number < OLDER for number in log[newer:])


@pytest.mark.parametrize("lane", ["back", "another"])
def test_a_worker_that_is_started_again_while_a_sibling_has_its_lane(broker, processes, producers, lane):
    """Its lane is handed back; with another client id it gets another lane, and waits."""
    topic = harness.new_topic(broker.cluster, 1)
    seen: list = []
    sibling = producers(broker.servers, spool_dir=processes.spool, client_id="sibling", on_event=seen.append)
    broker.proxy.refuse()
    broker.proxy.cut()
    worker, ready = processes.start(topic, 0, OLDER, client_id="worker")
    worker.until(ready)
    assert worker.kill() == -9
    harness.until(lambda: any(isinstance(e, events.LaneAdopted) for e in seen), 120, "the lane to be adopted")
    again, ready = processes.start(topic, OLDER, OLDER + 200, client_id="worker" if lane == "back" else "new")
    again.until(ready)
    assert any(isinstance(e, events.LaneReturned) for e in seen) is (lane == "back")
    broker.proxy.restore()
    harness.until(lambda: broker.end_offset(topic) >= OLDER + 200, 120, "everything to be delivered")
    log = harness.numbers_of(harness.read_log(broker.servers, topic)[0])
    assert sorted(log) == list(range(OLDER + 200))
    assert older_after_newer(log) == 0
    again.kill()
    sibling.close()


def test_two_producers_of_one_process_that_is_started_again(broker, processes, producers):
    topics = [harness.new_topic(broker.cluster, 1) for _ in range(2)]
    broker.proxy.refuse()
    broker.proxy.cut()
    former = [processes.start(topic, 0, OLDER) for topic in topics]
    for life, ready in former:
        life.until(ready)
        assert life.kill() == -9
    # In the other order, so that each gets the other one's lane.
    again = [producers(broker.servers, spool_dir=processes.spool) for _ in topics]
    for number in range(OLDER, OLDER + 200):
        for producer, topic in zip(again, reversed(topics), strict=True):
            harness.send(producer, topic, number)
    broker.proxy.restore()
    for producer in again:
        producer.flush(120)
    for topic in topics:
        log = harness.numbers_of(harness.read_log(broker.servers, topic)[0])
        assert sorted(log) == list(range(OLDER + 200))
        assert older_after_newer(log) == 0


def test_a_job_that_only_opens_and_closes_delivers_what_was_left(broker, processes, producers):
    topic = harness.new_topic(broker.cluster, 1)
    broker.proxy.refuse()
    broker.proxy.cut()
    worker, ready = processes.start(topic, 0, OLDER, client_id="worker")
    worker.until(ready)
    assert worker.kill() == -9
    broker.proxy.restore()
    job = producers(broker.servers, spool_dir=processes.spool, client_id="job")
    job.flush(120)
    assert broker.end_offset(topic) == OLDER
    job.close()
    assert Path(processes.spool).is_dir()
