"""Order across the lives of a spool directory: what an earlier life still has to deliver goes first, whoever carries it."""

from __future__ import annotations

import errno

import pytest
from virtual import World

from kafkasafe import events
from kafkasafe._core.journal import Journal
from kafkasafe._io.engine.messages import AdoptAsked


def world(partitions: int = 1) -> World:
    made = World()
    made.centre.create_topic("orders", partitions)
    return made


def numbers(log) -> list[int]:
    return [int(value) for value in log]


def send(life, first: int, last: int, *, partition: int = 0, topic: str = "orders") -> None:
    for number in range(first, last):
        life.send(topic, partition, [b"%d" % number])


def drained(made: World) -> bool:
    return not any(life.inbox for life in made.lives) and not any(
        lane.journal.unfinished for life in made.lives for lane in life.ground.lanes
    )


def test_a_life_that_begins_holds_back_what_a_sibling_that_adopted_its_lane_still_has_to_deliver():
    made = world()
    seen: list = []
    sibling = made.start(client_id="b")
    worker = made.start(client_id="a")
    send(worker, 0, 3)
    assert made.run(10, lambda: drained(made))
    made.set_outage(True)
    send(worker, 3, 60)
    made.run(1)
    made.kill(worker)
    assert made.run(30, lambda: len(sibling.ground.lanes) == 2), "it is adopted"
    worker = made.start(client_id="a", on_event=seen.append)
    send(worker, 60, 100)
    made.run(1)
    assert worker.ground.own.journal.held_back() == [("orders", 0)]
    made.set_outage(False)
    assert made.run(120, lambda: drained(made))
    assert worker.ground.own.journal.held_back() == []
    assert numbers(made.log("orders", 0)) == list(range(100))
    (held,) = [each for each in seen if isinstance(each, events.HeldBack)]
    assert (held.held_by, held.partitions) == (("lane-001",), (("orders", 0),))


def test_what_a_life_held_back_is_held_back_after_its_end_too():
    """Its lane, and the older one, are adopted by somebody who knows neither of them."""
    made = world()
    worker = made.start(client_id="a", spool_lane=0)
    made.set_outage(True)
    send(worker, 0, 40)
    made.run(1)
    made.kill(worker, power=True)
    # In another lane than its own.
    worker = made.start(client_id="a", spool_lane=1)
    send(worker, 40, 80)
    made.run(0.5)
    made.kill(worker, power=True)
    worker = made.start(client_id="a", spool_lane=0)
    send(worker, 80, 120)
    made.run(0.5)
    made.kill(worker)
    stranger = made.start(client_id="c")
    # The power cut took the name off one lane: that one is anybody's.
    assert made.run(30, lambda: len(stranger.ground.lanes) == 2)
    send(stranger, 120, 140)
    made.set_outage(False)
    assert made.run(120, lambda: drained(made))
    assert numbers(made.log("orders", 0)) == list(range(140))


def test_a_lane_that_waits_for_its_owner_holds_back_only_its_own_partitions():
    made = world(2)
    made.set_outage(True)
    first, second = made.start(client_id="a"), made.start(client_id="a")
    send(first, 0, 20, partition=0)
    send(second, 0, 20, partition=1)
    made.run(1)
    made.kill(first)
    made.kill(second)
    made.set_outage(False)
    first = made.start(client_id="a")
    send(first, 20, 40, partition=0)
    send(first, 20, 40, partition=1)
    assert made.run(2.5, lambda: len(made.log("orders", 0)) == 40), "nobody owes anything of it"
    assert made.log("orders", 1) == []
    second = made.start(client_id="a")
    assert second.ground.own.name == "lane-001", "its own lane came back to it"
    send(second, 40, 60, partition=1)
    assert made.run(60, lambda: drained(made))
    both = numbers(made.log("orders", 1))
    assert both[:20] == list(range(20))
    assert [n for n in both if 20 <= n < 40] == list(range(20, 40))
    assert [n for n in both if n >= 40] == list(range(40, 60))


def test_lanes_whose_owners_live_side_by_side_do_not_wait_for_each_other():
    made = world()
    made.set_outage(True)
    first = made.start(client_id="a")
    send(first, 0, 20)
    made.run(1)
    second = made.start(client_id="b")
    send(second, 100, 120)
    made.run(1)
    assert second.ground.own.journal.afters == ()
    made.set_outage(False)
    assert made.run(60, lambda: drained(made))
    log = numbers(made.log("orders", 0))
    assert [n for n in log if n < 100] == list(range(20))
    assert [n for n in log if n >= 100] == list(range(100, 120))


def test_what_an_owner_that_lives_found_in_its_lane_goes_before_a_later_life():
    made = world()
    made.set_outage(True)
    first = made.start(client_id="a")
    send(first, 0, 20)
    made.run(1)
    made.kill(first)
    first = made.start(client_id="a")
    send(first, 100, 120)
    second = made.start(client_id="b")
    send(second, 200, 220)
    made.run(1)
    made.set_outage(False)
    assert made.run(60, lambda: drained(made))
    log = numbers(made.log("orders", 0))
    assert log[:20] == list(range(20))
    assert sorted(log[20:]) == [*range(100, 120), *range(200, 220)]


@pytest.mark.parametrize("topic", ["unknown"])
def test_records_whose_partition_is_not_chosen_yet_go_first_too(topic):
    made = world()
    made.set_outage(True)
    sibling = made.start(client_id="b")
    worker = made.start(client_id="a")
    send(worker, 0, 20, partition=-1, topic=topic)
    made.run(1)
    made.kill(worker)
    assert made.run(30, lambda: len(sibling.ground.lanes) == 2)
    worker = made.start(client_id="a")
    send(worker, 20, 40, partition=0, topic=topic)
    made.run(1)
    made.centre.create_topic(topic, 1)
    made.set_outage(False)
    assert made.run(120, lambda: drained(made))
    assert numbers(made.log(topic, 0)) == list(range(40))


def test_a_sibling_hands_a_lane_back_to_its_owner_that_returns():
    made = world()
    seen: list = []
    sibling = made.start(client_id="b", on_event=seen.append)
    worker = made.start(client_id="a")
    made.set_outage(True)
    send(worker, 0, 40)
    made.run(1)
    made.kill(worker)
    assert made.run(30, lambda: len(sibling.ground.lanes) == 2)
    # Nobody's, and somebody else's: they get a lane of their own.
    stranger = made.start(client_id="c", hand_back=True)
    assert stranger.ground.own.name == "lane-002"
    worker = made.start(client_id="a", hand_back=True)
    assert worker.ground.own.name == "lane-001"
    assert len(sibling.ground.lanes) == 1
    send(worker, 40, 80)
    made.set_outage(False)
    assert made.run(60, lambda: drained(made))
    assert numbers(made.log("orders", 0)) == list(range(80))
    assert [type(each) for each in seen if "Lane" in type(each).__name__] == [
        events.LaneAdopted,
        events.LaneHandedBack,
    ]


def test_a_lane_whose_owner_dies_as_soon_as_it_has_it_back_is_adopted_again():
    made = world()
    sibling = made.start(client_id="b")
    worker = made.start(client_id="a")
    made.set_outage(True)
    send(worker, 0, 40)
    made.run(1)
    made.kill(worker)
    assert made.run(30, lambda: len(sibling.ground.lanes) == 2)
    worker = made.start(client_id="a", hand_back=True)
    assert worker.ground.own.name == "lane-001"
    made.kill(worker)
    made.set_outage(False)
    assert made.run(60, lambda: len(made.log("orders", 0)) == 40)


def test_a_lane_that_is_asked_for_by_number_comes_back_in_the_midst_of_its_delivery():
    made = world()
    sibling = made.start(client_id="b")
    worker = made.start(client_id="a", spool_lane=3)
    send(worker, 0, 3)
    assert made.run(10, lambda: drained(made))
    made.set_outage(True)
    send(worker, 3, 400)
    made.run(1)
    made.kill(worker)
    assert made.run(30, lambda: len(sibling.ground.lanes) == 2)
    made.set_outage(False)
    assert made.run(30, lambda: len(made.log("orders", 0)) > 40)
    # What is on its way is waited for, so the owner has nothing in doubt that the sibling's answer would settle.
    worker = made.start(client_id="a", spool_lane=3, hand_back=True)
    left = worker.ground.own.journal.unfinished
    assert 0 < left < 360
    send(worker, 400, 420)
    assert made.run(60, lambda: drained(made))
    assert numbers(made.log("orders", 0)) == list(range(420))


def test_what_was_left_behind_at_the_start_is_waited_for():
    """As `flush` and `close` do: at once, and until it is drained."""
    made = world()
    made.set_outage(True)
    worker = made.start(client_id="a")
    send(worker, 0, 40)
    made.run(1)
    made.kill(worker)
    made.set_outage(False)
    job = made.start(client_id="b")
    assert job.engine.ledger.left_behind == {0}
    assert not job.engine.ledger.settled(job.engine.ledger.last_number())
    job.inbox.append(AdoptAsked())
    began = made.time.monotonic()
    assert made.run(60, lambda: job.engine.ledger.settled(0))
    assert numbers(made.log("orders", 0)) == list(range(40))
    assert job.engine.ledger.idle()
    assert made.time.monotonic() - began < 3, "it does not wait for the owner"


def test_a_lane_that_could_not_be_adopted_is_tried_again():
    made = world()
    made.set_outage(True)
    sibling = made.start(client_id="b")
    worker = made.start(client_id="a")
    send(worker, 0, 40)
    made.run(1)
    made.kill(worker)
    made.run(2)
    # Too many open files, just when it is read.
    made.disk.fail("read", times=1000, error=errno.EMFILE)
    made.run(3)
    made.disk.heal()
    made.set_outage(False)
    assert made.run(60, lambda: drained(made) and len(made.log("orders", 0)) == 40)
    assert made.run(30, lambda: sibling.ground.lanes == [sibling.ground.own]), "and let go of"


def test_the_check_sees_a_life_that_does_not_hold_back(monkeypatch):
    monkeypatch.setattr(Journal, "_is_held", lambda *_: False)
    with pytest.raises(AssertionError):
        test_a_life_that_begins_holds_back_what_a_sibling_that_adopted_its_lane_still_has_to_deliver()
