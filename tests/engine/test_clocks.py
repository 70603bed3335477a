"""The clocks of others, as far as the records of a partition show them. In virtual time."""

from __future__ import annotations

import logging

import pytest
from virtual import World

from kafkasafe import logs
from kafkasafe.cluster.api import ProduceRequest
from kafkasafe.record import batch as codec


class Shared:
    """A producer, and a topic that others write to as well."""

    def __init__(self, **settings) -> None:
        self.world = World(**settings)
        # Kafka 2.8 takes any time and has no such setting.
        later = (
            {"message.timestamp.after.max.ms": str(2**63 - 1)} if settings.get("version") != "2.8.2" else {}
        )
        self.world.centre.create_topic("t", 1, settings=later)
        self.life = self.world.start(data_loss_check_ms=3_600_000)
        self.other = self.world.cluster.connect({"client_id": "other"})
        self.other.start()

    def foreign(self, ahead_ms: int) -> None:
        """A record of somebody else."""
        data = codec.encode([None], [b"foreign"], timestamps=self.world.time.wall_ms() + ahead_ms)
        replies: list = []
        self.other.produce(
            [ProduceRequest(None, "t", 0, data, 0)], -1, 5000, lambda _, reply: replies.append(reply)
        )
        assert self.world.run(60, until=lambda: bool(replies))
        assert not replies[0].error_code

    def send(self, *values: bytes) -> None:
        """Batches at once, and until all are acknowledged."""
        parcels = [self.life.send("t", 0, [value]) for value in values]
        assert self.world.run(600, until=lambda: all(each.base_offset >= 0 for each in parcels))

    def most_under_way(self) -> int:
        """Of six batches at once."""
        at = len(self.world.lines)
        self.send(*(b"%d" % n for n in range(6)))
        most = now = 0
        for line in self.world.lines[at:]:
            now += line.count("-> Produce t-0") - line.count("<- Produced t-0")
            most = max(most, now)
        return most

    @property
    def questions(self) -> int:
        return sum("ListOffsets t-0 newest" in line for line in self.world.lines)


def warnings(caplog) -> list[logging.LogRecord]:
    logs.drain(60)
    return [record for record in caplog.records if getattr(record, "event", "") == "clock_behind"]


def test_others_who_are_a_day_ahead_are_noticed_where_topics_keep_their_time(caplog):
    """Five batches were under way, at brokers that forget this producer at any moment."""
    shared = Shared()
    shared.foreign(25 * 3_600_000)
    shared.send(b"first")
    assert shared.most_under_way() > 1
    assert shared.questions == 0
    shared.world.run(60)
    shared.send(b"asks")
    shared.world.run(1)
    assert shared.questions == 1
    assert shared.most_under_way() == 1
    (said,) = warnings(caplog)
    assert said.levelno == logging.WARNING
    assert "Records of t-0 have timestamps 25.0 h ahead of this machine's clock" in said.getMessage()
    shared.world.time.set(25 * 3600)  # it is corrected
    shared.send(b"x")
    assert shared.most_under_way() > 1


@pytest.mark.parametrize("ahead_ms", [None, 0, 6 * 3_600_000])
def test_nothing_is_said_where_nobody_is_far_ahead(caplog, ahead_ms):
    """None: nobody else writes there. What this producer wrote says nothing, a day ahead or not."""
    shared = Shared()
    if ahead_ms is not None:
        shared.foreign(ahead_ms)
    shared.send(b"first")
    shared.world.run(60)
    shared.send(b"asks")
    shared.world.run(1)
    assert shared.questions == 1
    assert shared.most_under_way() > 1
    assert not warnings(caplog)


def test_it_is_asked_for_once_an_hour():
    shared = Shared()
    for _ in range(3 * 12):
        shared.send(b"x")
        shared.world.run(300)
    assert shared.questions in {3, 4}


def test_brokers_that_do_not_know_the_question_are_not_sent_it(caplog):
    shared = Shared(version="2.8.2")
    shared.send(b"first")
    shared.world.run(120)
    shared.send(b"second")
    shared.world.run(1)
    assert shared.questions == 0
    assert shared.most_under_way() > 1
    assert not warnings(caplog)


def test_without_an_answer_it_is_asked_again():
    shared = Shared()
    shared.foreign(25 * 3_600_000)
    shared.send(b"first")
    shared.world.run(60)
    shared.send(b"asks")
    shared.world.set_outage(True)
    shared.world.run(1)
    shared.world.set_outage(False)
    shared.send(b"second")
    assert shared.most_under_way() > 1
    shared.world.run(60)
    shared.send(b"asks again")
    shared.world.run(1)
    assert shared.most_under_way() == 1
