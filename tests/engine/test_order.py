"""Order across the lives of a spool directory: what an earlier life still has to deliver goes first, whoever carries it."""

from __future__ import annotations

import errno
from pathlib import Path
from unittest import mock

import pytest
from virtual import SPOOL, World, tracing

from kafkasafe import events
from kafkasafe import marks as m
from kafkasafe.delivery.engine.intake import Intake
from kafkasafe.delivery.engine.messages import AdoptAsked, LaneRead, Preceded, ProducerIdDue
from kafkasafe.delivery.engine.order import LaneOrder
from kafkasafe.delivery.engine.packing import LogReplay
from kafkasafe.errors import SpoolCorruptError, SpoolError
from kafkasafe.journal import Journal
from kafkasafe.journal.order import NEVER
from kafkasafe.journal.precedence import Precedence
from kafkasafe.spool.lanes import SpoolDirectory
from kafkasafe.spool.siblings import LeftBehind
from kafkasafe.spool.spool import Spool


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
        lane.journal.views.unfinished for life in made.lives for lane in life.context.lanes
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
    assert made.run(30, lambda: len(sibling.context.lanes) == 2), "it is adopted"
    worker = made.start(client_id="a", on_event=seen.append)
    send(worker, 60, 100)
    made.run(1)
    assert worker.context.own.journal.views.held_back() == [("orders", 0)]
    made.set_outage(False)
    assert made.run(120, lambda: drained(made))
    assert worker.context.own.journal.views.held_back() == []
    assert numbers(made.log("orders", 0)) == list(range(100))
    (held,) = [each for each in seen if isinstance(each, events.WaitingForOlderRecords)]
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
    assert made.run(30, lambda: len(stranger.context.lanes) == 2)
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
    assert second.context.own.name == "lane-001", "its own lane came back to it"
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
    assert second.context.own.journal.views.afters == ()
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
    assert made.run(30, lambda: len(sibling.context.lanes) == 2)
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
    assert made.run(30, lambda: len(sibling.context.lanes) == 2)
    # Nobody's, and somebody else's: they get a lane of their own.
    stranger = made.start(client_id="c", hand_back=True)
    assert stranger.context.own.name == "lane-002"
    worker = made.start(client_id="a", hand_back=True)
    assert worker.context.own.name == "lane-001"
    assert len(sibling.context.lanes) == 1
    send(worker, 40, 80)
    made.set_outage(False)
    assert made.run(60, lambda: drained(made))
    assert numbers(made.log("orders", 0)) == list(range(80))
    assert [type(each) for each in seen if "Lane" in type(each).__name__] == [
        events.LaneAdopted,
        events.LaneReturned,
    ]


def test_a_lane_whose_owner_dies_as_soon_as_it_has_it_back_is_adopted_again():
    made = world()
    sibling = made.start(client_id="b")
    worker = made.start(client_id="a")
    made.set_outage(True)
    send(worker, 0, 40)
    made.run(1)
    made.kill(worker)
    assert made.run(30, lambda: len(sibling.context.lanes) == 2)
    worker = made.start(client_id="a", hand_back=True)
    assert worker.context.own.name == "lane-001"
    made.kill(worker)
    made.set_outage(False)
    assert made.run(60, lambda: len(made.log("orders", 0)) == 40)


def damage_in_an_adopted_lane():
    """A producer adopted the lane of a dead one, and has found a damaged batch in it."""
    made = world()
    sibling = made.start(client_id="b")
    worker = made.start(client_id="a")
    made.set_outage(True)
    worker.send("orders", 0, [b"damaged later"])
    made.run(1)
    made.kill(worker)
    assert made.run(30, lambda: len(sibling.context.lanes) == 2)
    for path, content in made.disk.files().items():
        made.disk.put(path, content.replace(b"damaged later", b"damaged now!!"))
    made.set_outage(False)
    errors = sibling.engine.ledger.errors
    assert made.run(30, lambda: errors.damaged)
    return made, sibling, errors


@pytest.mark.parametrize("way", ["handed back", "taken, because its lock was deleted"])
def test_damage_in_a_lane_that_was_handed_back_stops_no_calls_any_more(way):
    """`send` and `flush` went on raising the error about another producer's batch, until the process ended."""
    made, sibling, errors = damage_in_an_adopted_lane()
    with pytest.raises(SpoolCorruptError):
        errors.raise_damage("orders")
    if way != "handed back":
        made.disk.remove(SPOOL / "lane-001" / "lock")
    worker = made.start(client_id="a", hand_back=True, on_corrupt="quarantine")
    assert worker.context.own.name == "lane-001"
    made.run(5)
    assert len(sibling.context.lanes) == 1
    errors.raise_damage("orders")
    assert not errors.damaged


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
    assert made.run(30, lambda: len(sibling.context.lanes) == 2)
    made.set_outage(False)
    assert made.run(30, lambda: len(made.log("orders", 0)) > 40)
    # What is on its way is waited for, so the owner has nothing in doubt that the sibling's answer would settle.
    worker = made.start(client_id="a", spool_lane=3, hand_back=True)
    left = worker.context.own.journal.views.unfinished
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
    assert job.engine.ledger.lanes.left_behind == {0}
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
    assert made.run(30, lambda: sibling.context.lanes == [sibling.context.own]), "and let go of"


def drop(made: World, producer, *others) -> None:
    """A producer is dropped; the others of its process come after it."""
    predecessor = producer.engine.predecessor
    for other in others:
        predecessor.follow(lambda other=other: other.inbox.append(Preceded(predecessor)))
    producer.engine.drop()
    if producer in made.lives:
        producer.turn()


def end(made: World, producer) -> None:
    """Its patience ends: its lane has no owner any more."""
    made.lives.remove(producer)
    producer.engine.shut()


def in_outage(**options):
    """A world with a dropped producer that has 20 records to deliver, and one that was made before that."""
    made = world()
    seen: list = []
    former, later = made.start(client_id="a"), made.start(client_id="a", on_event=seen.append, **options)
    send(former, 0, 3)
    assert made.run(10, lambda: drained(made))
    send(later, 100, 101)
    assert made.run(10, lambda: drained(made))
    made.set_outage(True)
    send(former, 3, 20)
    made.run(1)
    return made, former, later, seen


def test_a_dropped_producer_goes_before_what_others_accept_from_then_on():
    made, former, later, seen = in_outage()
    drop(made, former, later)
    send(later, 101, 120)
    made.run(1)
    assert later.context.own.journal.views.held_back() == [("orders", 0)]
    made.set_outage(False)
    assert made.run(60, lambda: drained(made))
    assert numbers(made.log("orders", 0)) == [0, 1, 2, 100, *range(3, 20), *range(101, 120)]
    (held,) = [each for each in seen if isinstance(each, events.WaitingForOlderRecords)]
    assert (held.held_by, held.partitions) == (("lane-000",), (("orders", 0),))
    assert later.context.own.journal.views.afters == ()


@pytest.mark.parametrize("spool", ["always", "on_error"])
def test_what_a_dropped_producer_leaves_at_its_end_goes_first_too(spool):
    """The other one adopts its lane, and flush waits for that."""
    made, former, later, _ = in_outage(spool=spool)
    drop(made, former, later)
    send(later, 101, 120)
    made.run(1)
    end(made, former)
    made.run(0.1)
    ledger = later.engine.ledger
    assert ledger.lanes.left_behind == {0}
    made.set_outage(False)
    assert made.run(60, lambda: drained(made) and not ledger.lanes.left_behind)
    assert numbers(made.log("orders", 0)) == [0, 1, 2, 100, *range(3, 20), *range(101, 120)]


def test_what_comes_after_a_dropped_producer_does_so_in_the_next_incarnation_too():
    made, former, later, _ = in_outage()
    drop(made, former, later)
    send(later, 101, 120)
    made.run(1)
    made.kill(later, power=True)
    former.kill()
    made.lives.remove(former)
    stranger = made.start(client_id="c")
    # The power cut took the name off one lane, or off none.
    assert made.run(30, lambda: {"lane-000", "lane-001"} <= {lane.name for lane in stranger.context.lanes})
    made.set_outage(False)
    assert made.run(60, lambda: drained(made))
    assert numbers(made.log("orders", 0)) == [0, 1, 2, 100, *range(3, 20), *range(101, 120)]


def test_nothing_waits_for_a_dropped_producer_that_owes_nothing():
    made = world()
    former, later = made.start(client_id="a"), made.start(client_id="a")
    send(former, 0, 2)
    send(later, 2, 3)
    assert made.run(10, lambda: drained(made))
    drop(made, former, later)
    send(later, 3, 6)
    assert made.run(0.05, lambda: len(made.log("orders", 0)) == 6)
    assert later.context.own.journal.views.afters == ()


def test_what_a_dropped_producer_has_not_written_yet_is_waited_for():
    """Its lane does not say yet what it owes."""
    made, former, later, _ = in_outage()
    made.set_outage(False)
    assert made.run(10, lambda: drained(made))
    made.disk.fail("writev", times=1000, error=errno.ENOSPC)
    send(former, 20, 40)
    made.run(0.2)
    assert former.engine.ledger.undurable
    drop(made, former, later)
    made.run(0.2)
    made.disk.heal()
    send(later, 120, 140)
    assert made.run(60, lambda: drained(made))
    assert numbers(made.log("orders", 0)) == [0, 1, 2, 100, *range(3, 40), *range(120, 140)]


def test_a_dropped_producer_that_never_writes_what_it_accepted_is_not_waited_for_without_an_end():
    made = world()
    seen: list = []
    former, later = made.start(client_id="a"), made.start(client_id="a", on_event=seen.append)
    made.lives.remove(former)  # its thread hangs: no turn is taken any more
    drop(made, former, later)
    send(later, 0, 5)
    made.run(25)
    assert made.log("orders", 0) == []
    assert made.run(10, lambda: len(made.log("orders", 0)) == 5)
    assert [type(each) for each in seen if not isinstance(each, events.RecordsCommitted)] == [
        events.OrderNotGuaranteed
    ]


def test_producers_that_are_dropped_one_after_the_other():
    made = world()
    made.set_outage(True)
    before, expected = None, []
    for number in range(5):
        producer = made.start(client_id="a")
        if before is not None:
            drop(made, before, producer)
        send(producer, 10 * number, 10 * number + 10)
        made.run(0.3)
        expected += range(10 * number, 10 * number + 10)
        before = producer
    made.set_outage(False)
    assert made.run(60, lambda: drained(made))
    assert numbers(made.log("orders", 0)) == expected


def test_two_that_are_dropped_at_once_are_two_debts_of_one_mark():
    made = world(3)
    made.set_outage(True)
    first, second, later = (made.start(client_id="a") for _ in range(3))
    send(first, 0, 10, partition=0)
    send(second, 0, 10, partition=1)
    made.run(0.5)
    drop(made, first, later)
    drop(made, second, later)
    made.run(0.2)
    send(later, 10, 20, partition=0)
    send(later, 10, 20, partition=1)
    made.run(0.5)
    for life in (first, second, later):
        made.kill(life)
    stranger = made.start(client_id="c")
    assert made.run(30, lambda: len(stranger.context.lanes) == 4)
    (carried,) = [lane for lane in stranger.context.lanes if lane.name == "lane-002"]
    assert {debt.lane for after in carried.journal.views.afters for debt in after.debts} == {0, 1}
    made.set_outage(False)
    assert made.run(60, lambda: drained(made))
    for partition in (0, 1):
        assert numbers(made.log("orders", partition)) == list(range(20))


def test_the_check_sees_a_life_that_does_not_hold_back(monkeypatch):
    monkeypatch.setattr(Precedence, "is_held", lambda *_: False)
    with pytest.raises(AssertionError):
        test_a_life_that_begins_holds_back_what_a_sibling_that_adopted_its_lane_still_has_to_deliver()


def test_the_check_sees_a_producer_that_forgets_what_a_dropped_one_owes(monkeypatch):
    monkeypatch.setattr(Journal, "begin_after", lambda *_: None)
    with pytest.raises(AssertionError):
        test_a_dropped_producer_goes_before_what_others_accept_from_then_on()


def test_the_check_sees_a_producer_that_believes_a_lane_that_is_not_whole_yet(monkeypatch):
    """Nothing is held back while the dropped one has not written everything."""
    monkeypatch.setattr(LaneOrder, "_owed_by_dropped", lambda *_: NEVER)
    with pytest.raises(AssertionError):
        test_what_a_dropped_producer_has_not_written_yet_is_waited_for()


def test_the_check_sees_marks_of_one_position_of_which_the_last_counts(monkeypatch):
    def begin_after(self, position, debts):
        after = m.After(position, tuple(debts))
        self._afters.append(after)
        return after

    monkeypatch.setattr(Precedence, "begin_after", begin_after)
    with pytest.raises(AssertionError):
        test_two_that_are_dropped_at_once_are_two_debts_of_one_mark()


@pytest.mark.parametrize("power", [False, True])
def test_a_lane_that_is_a_copy_of_another_one_is_not_delivered(power, caplog):
    """Its records were delivered a second time."""
    made = world()
    made.set_outage(True)
    life = made.start()
    parcels = [life.send("orders", 0, [b"%d" % number]) for number in range(5)]
    assert made.run(30, lambda: all(parcel.durable for parcel in parcels))
    made.kill(life, power=power)
    lane = life.context.own.lock.path
    for path, content in made.disk.files().items():
        if path.parent == lane:
            made.disk.put(lane.with_name("lane-007") / path.name, content)
    made.set_outage(False)
    made.start()
    made.run(60)
    assert numbers(made.log("orders", 0)) == list(range(5))
    assert "lane-007 has no owner and cannot be adopted: it is a copy of" in caplog.text
    assert any(path.parent.name == "lane-007" and path.suffix == ".log" for path in made.disk.files())


def test_a_producer_that_ends_before_it_has_opened_a_lane_says_nothing_about_the_owners_requests():
    """1. An owner is killed. Brokers may append its requests until the request timeout is over.
    2. A sibling reads the lane back, and is closed before it uses the lane.
    3. The sibling wrote to the lane that all requests were over. So the next owner searched for the batches at once.
    """
    made = world()
    worker = made.start(client_id="a")
    send(worker, 0, 2)
    assert made.run(30, lambda: drained(made))
    made.cluster.swallow = 1
    send(worker, 2, 4)
    assert made.run(5, lambda: not made.cluster.swallow)
    made.kill(worker)
    sibling = made.start(client_id="b")
    assert made.run(30, lambda: any(isinstance(each, LaneRead) for each in sibling.inbox))
    made.lines.clear()
    with mock.patch.object(Spool, "write_group", tracing(made)["write_group"]):
        end(made, sibling)
    assert [lane.name for lane in sibling.context.lanes] == ["lane-001"]
    assert "QUIET" not in "".join(made.lines)
    worker = made.start(client_id="a")
    assert worker.context.own.name == "lane-000"
    assert made.run(30, lambda: drained(made))
    assert numbers(made.log("orders", 0)) == list(range(4))


@pytest.mark.parametrize("when", ["the lane is read", "its journal is replayed"])
def test_a_lane_that_finds_no_memory_is_adopted_when_there_is_some(monkeypatch, when):
    """The adopter kept its lock. So no process delivered the lane until the adopter ended."""
    made = world()
    worker = made.start(client_id="a")
    made.set_outage(True)
    send(worker, 0, 3)
    made.run(1)
    made.kill(worker)
    sibling = made.start(client_id="b")
    of, name = (Intake, "register") if when == "the lane is read" else (LogReplay, "end")
    real = getattr(of, name)
    failures = []

    def fails_twice(self, *arguments):
        if len(failures) < 2:
            failures.append(1)
            raise MemoryError
        return real(self, *arguments)

    monkeypatch.setattr(of, name, fails_twice)
    made.set_outage(False)
    assert made.run(120, lambda: len(failures) == 2 and drained(made) and len(made.log("orders", 0)) > 0)
    assert made.run(10, lambda: len(sibling.context.lanes) == 1)
    assert numbers(made.log("orders", 0)) == list(range(3))


def test_no_producer_id_is_asked_for_a_lane_that_was_handed_back(monkeypatch):
    """As long as the cluster refused one, it was asked for again after each pause, until the process ended."""
    made = world()
    life = made.start(client_id="a")
    made.run(1)
    lane = life.context.own
    asked = []
    monkeypatch.setattr(life.client, "init_producer_id", asked.append)
    life.engine.step(ProducerIdDue(lane))
    assert len(asked) == 1
    life.context.lanes.remove(lane)
    life.engine.step(ProducerIdDue(lane))
    assert len(asked) == 1


def test_a_lane_that_sends_does_not_hide_damage_in_another_lane():
    """Both have batches of the partition. Each batch that the producer sent itself withdrew the error."""
    made, sibling, errors = damage_in_an_adopted_lane()
    for number in range(20):
        parcel = sibling.send("orders", 0, [b"%d" % number])
        assert made.run(30, lambda parcel=parcel: parcel.done)
        assert errors.damaged


def beside_records_of_a_dead_producer():
    """A world, and a producer in it. A dead one has left three records in another directory."""
    made = world()
    far = made.start(spool_dir="/far")
    made.run(1)
    made.set_outage(True)
    send(far, 0, 3)
    made.run(1)
    made.kill(far)
    made.set_outage(False)
    life = made.start()
    made.run(1)
    return made, life


def test_a_lane_of_another_directory_whose_cluster_cannot_be_read_is_given_back():
    """It stayed locked until the producer ended, so that nobody delivered its records."""
    _, life = beside_records_of_a_dead_producer()
    directory = SpoolDirectory.look(Path("/far"), files=life.files)
    sibling = LeftBehind(Path("/far"), directory.cluster_id(), True, (0,), 3, 3, directory.content(0))
    fault = SpoolError("too many open files")
    surroundings = life.engine.surroundings
    with mock.patch.object(SpoolDirectory, "cluster_id", side_effect=fault):
        surroundings.looked_around([sibling])
    assert not directory.owners.is_owned(0)
    assert surroundings.left_behind_records == 3


def test_records_of_a_lane_that_is_being_read_do_not_go_with_the_producer_to_another_cluster():
    """To read gigabytes of another directory may take longer than to move to the cluster that answers now."""
    made, life = beside_records_of_a_dead_producer()
    reads = []
    life.context.beside = reads.append
    directory = SpoolDirectory.look(Path("/far"), files=life.files)
    sibling = LeftBehind(Path("/far"), directory.cluster_id(), True, (0,), 3, 3, directory.content(0))
    life.engine.surroundings.looked_around([sibling])
    [read] = reads
    made.cluster.replace("other")
    made.cluster.create_topic("orders", 1)
    made.run(10)
    read()
    made.run(10)
    assert life.context.own_cluster.cluster_id == "fake-cluster"
    assert life.engine.ledger.wrong_cluster is not None
    assert made.log("orders", 0) == []


def test_the_parts_of_a_refused_batch_do_not_wait_for_batches_that_wait_for_them():
    """A batch had waited for its topic. The owner took the parts of it that the broker refused for newer than its own run."""
    made = World()
    made.set_outage(True)
    first = made.start(client_id="a")
    first.send("late", -1, [b"%d" % number + bytes(600) for number in range(4)])
    made.run(1)
    made.kill(first)
    second = made.start(client_id="b")
    send(second, 4, 8, partition=-1, topic="late")
    made.run(1)
    made.kill(second)
    first, second = made.start(client_id="a"), made.start(client_id="b")
    send(first, 8, 12, partition=-1, topic="late")
    made.run(1)
    made.centre.create_topic("late", 1, settings={"max.message.bytes": 1500})
    made.set_outage(False)
    assert made.run(300, lambda: drained(made))
    assert [int(value.rstrip(b"\0")) for value in made.log("late", 0)][:8] == list(range(8))
