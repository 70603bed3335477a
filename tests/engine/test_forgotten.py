"""What was acknowledged by another cluster, or in a topic that was deleted, concerns no later incarnation.

One that remembered it asked the log of today about leaders of the other one, reported what that log did not have as
lost, and sent it there.
"""

from __future__ import annotations

import kafka.errors as kafka_errors
import pytest
from virtual import World

from kafkasafe import events
from kafkasafe import marks as m
from kafkasafe.cluster import api as t
from kafkasafe.delivery.engine import questions
from kafkasafe.spool.lanes import SpoolDirectory
from kafkasafe.testing.disk import ProcessKilled

LOSSES = events.DataLost | events.SpoolRecordsMissing | events.LostRecordsRestored


class Scene:
    """One producer after the other on one spool directory, with what they tell."""

    def __init__(self, **options) -> None:
        self.heard: list[events.Event] = []
        self.options = {"on_event": self.heard.append, **options}
        self.world = World(brokers=3)
        self.world.cluster.create_topic("orders", 1)
        self.life = self.world.start(**self.options)

    def deliver(self, *values: bytes) -> None:
        parcel = self.life.send("orders", 0, values)
        assert self.world.run(60, until=lambda: parcel.done)
        assert parcel.error is None

    def elect(self) -> None:
        self.world.cluster.move_leader("orders", 0)

    def move(self) -> None:
        """Another cluster answers at the addresses from now on, with a topic of the same name."""
        self.world.cluster.replace("other")
        self.world.cluster.create_topic("orders", 1)

    def restart(self) -> None:
        self.world.kill(self.life)
        self.life = self.world.start(**self.options)

    @property
    def moved(self) -> bool:
        return self.life.context.own_cluster.cluster_id == "other"

    @property
    def losses(self) -> list[events.Event]:
        return [event for event in self.heard if isinstance(event, LOSSES)]

    def settle(self) -> None:
        """Long enough for every check, and for what is sent again after it."""
        self.world.run(120)
        assert self.world.run(60, until=lambda: not self.life.context.own.journal.views.unfinished)


@pytest.mark.parametrize("retained", [0, 1 << 20])
def test_records_of_a_cluster_never_go_to_the_one_that_the_producer_moved_to(retained):
    scene = Scene(retain_acked_bytes=retained)
    scene.deliver(b"1", b"2", b"3")
    scene.elect()
    scene.deliver(b"4")
    scene.move()
    assert scene.world.run(60, until=lambda: scene.moved)
    scene.deliver(b"other 1")
    scene.restart()
    scene.settle()
    scene.deliver(b"other 2")
    scene.settle()
    assert scene.world.log("orders", 0) == [b"other 1", b"other 2"]
    assert scene.losses == []


def test_records_of_a_cluster_never_go_to_the_one_that_a_later_start_finds():
    scene = Scene(retain_acked_bytes=1 << 20)
    scene.deliver(b"1", b"2", b"3")
    scene.elect()
    scene.deliver(b"4")
    scene.move()
    for value in (b"other 1", b"other 2", b"other 3"):
        scene.restart()
        scene.deliver(value)
        scene.settle()
    assert scene.world.log("orders", 0) == [b"other 1", b"other 2", b"other 3"]
    assert scene.losses == []


def test_a_leader_check_that_had_no_answer_is_not_made_on_another_cluster():
    """The producer dies between the first acknowledgement of another leader and the answer about the one before."""
    scene = Scene(retain_acked_bytes=1 << 20)
    scene.deliver(b"1", b"2", b"3")
    scene.elect()
    parcel = scene.life.send("orders", 0, [b"4"])
    assert scene.world.run(60, until=lambda: bool(scene.life.context.own.journal.views.doubted))
    scene.world.set_outage(True)
    assert scene.world.run(1, until=lambda: parcel.done)
    assert scene.life.context.own.journal.views.doubted
    scene.move()
    scene.restart()
    scene.world.set_outage(False)
    scene.deliver(b"other 1")
    scene.restart()
    scene.settle()
    assert scene.world.log("orders", 0) == [b"other 1"]
    assert scene.losses == []


@pytest.mark.parametrize("options", [{}, {"restore_recreated_topics": True, "retain_acked_bytes": 1 << 20}])
def test_records_of_a_topic_that_was_gone_never_go_to_a_later_one_of_its_name(options):
    """After ten minutes without it what it had is forgotten, so none of it is lost when there is another."""
    scene = Scene(**options)
    scene.world.centre.settings["auto.create.topics.enable"] = "false"
    scene.deliver(b"1", b"2", b"3")
    scene.elect()
    scene.deliver(b"4")
    scene.world.cluster.delete_topic("orders")
    journal = scene.life.context.own.journal
    assert scene.world.run(1200, until=lambda: journal.views.last_acked_offset("orders", 0) < 0)
    assert scene.losses == []
    scene.world.cluster.create_topic("orders", 1)
    scene.deliver(b"later 1")
    for _ in range(2):
        scene.restart()
        scene.settle()
    scene.deliver(b"later 2")
    scene.settle()
    assert scene.world.log("orders", 0) == [b"later 1", b"later 2"]
    assert scene.losses == []


def test_a_first_loss_in_the_new_cluster_is_counted_without_the_old_ones():
    scene = Scene(retain_acked_bytes=1 << 20)
    scene.deliver(b"1", b"2", b"3")
    scene.move()
    assert scene.world.run(60, until=lambda: scene.moved)
    scene.deliver(b"other 1")
    scene.deliver(b"other 2")
    scene.restart()
    scene.settle()
    assert scene.losses == []
    scene.world.cluster.lose_log("orders", 0)
    scene.settle()
    (loss,) = [event for event in scene.heard if isinstance(event, events.DataLost)]
    assert (loss.first_offset, loss.last_offset, loss.records) == (0, 1, 2)
    assert scene.world.log("orders", 0) == [b"other 1", b"other 2"]


def test_a_producer_that_dies_at_the_move_leaves_nothing_of_the_old_cluster(monkeypatch):
    """The directory names the other cluster already, the lane does not."""
    scene = Scene(retain_acked_bytes=1 << 20)
    scene.deliver(b"1", b"2", b"3")
    scene.elect()
    scene.deliver(b"4")
    scene.move()
    bind = SpoolDirectory.bind_cluster

    def killed(self, cluster_id, **options):
        bind(self, cluster_id, **options)
        raise ProcessKilled

    with monkeypatch.context() as patch:
        patch.setattr(SpoolDirectory, "bind_cluster", killed)
        with pytest.raises(ProcessKilled):
            scene.world.run(60)
    scene.restart()
    assert scene.life.context.directory.cluster_id() == "other"
    scene.deliver(b"other 1")
    scene.settle()
    assert scene.world.log("orders", 0) == [b"other 1"]
    assert scene.losses == []


@pytest.mark.parametrize("taken", ["by a producer", "by its sibling"])
def test_a_lane_that_was_not_open_at_the_move_forgets_when_it_is(taken):
    """Nothing waits in it, so the directory moves without it."""
    scene = Scene(retain_acked_bytes=1 << 20)
    second = scene.world.start(**scene.options)
    parcel = second.send("orders", 0, [b"1", b"2", b"3"])
    assert scene.world.run(60, until=lambda: parcel.done)
    scene.elect()
    parcel = second.send("orders", 0, [b"4"])
    assert scene.world.run(60, until=lambda: parcel.done)
    scene.world.run(60)
    scene.world.kill(second)
    scene.move()
    scene.restart()
    scene.deliver(b"other 1")
    if taken == "by a producer":
        scene.world.start(**scene.options)
    scene.settle()
    scene.deliver(b"other 2")
    scene.settle()
    assert scene.world.log("orders", 0) == [b"other 1", b"other 2"]
    assert scene.losses == []


def test_two_questions_for_the_baseline_have_one_answer(monkeypatch):
    """A record for a new topic is accepted before the producer knows that another cluster answers now.

    The question of before the move and the one of after it are both answered there, the second one with an error.
    """
    scene = Scene()
    scene.deliver(b"1")
    scene.world.kill(scene.life)
    scene.world.cluster.replace("other")
    scene.world.cluster.create_topic("payments", 1)
    scene.life = scene.world.start(**scene.options)
    parcel = scene.life.send("payments", 0, [b"other 1"])
    answers: list[t.OffsetListed | t.Failure] = []
    good = questions.good

    def second_fails(result):
        answers.append(result)
        failure = t.Failure(kafka_errors.RequestTimedOutError("no answer"), sent=True)
        return good(failure if len(answers) == 2 else result)

    monkeypatch.setattr(questions, "good", second_fails)
    assert scene.world.run(60, until=lambda: parcel.done)
    assert parcel.error is None
    assert len(answers) == 2
    assert scene.world.log("payments", 0) == [b"other 1"]


@pytest.mark.parametrize("of", ["the producer", "its dead sibling"])
def test_offsets_of_an_atomic_batch_without_records_never_go_to_another_cluster(of):
    """No record waits, but a group of the former cluster read up to the offset that does."""
    scene = Scene()
    scene.deliver(b"1")
    owner = scene.life if of == "the producer" else scene.world.start(**scene.options)
    scene.world.run(5)
    scene.world.set_outage(True)
    position = m.Position("orders", 0, 1, -1, "")
    head = owner.unit(offsets=[m.GroupOffsets("readers", "", -1, None, (position,))])[0]
    assert scene.world.run(60, until=lambda: head.durable)
    if owner is not scene.life:
        scene.world.kill(owner)
    scene.move()
    scene.restart()
    scene.world.set_outage(False)
    scene.world.run(60)
    assert not scene.moved
    assert scene.life.context.own_cluster.stranger is not None
    assert scene.life.context.directory.cluster_id() == "fake-cluster"
