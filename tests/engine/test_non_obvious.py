"""Rules of docs/design-*.md that need a cluster, a disk and a moment. In virtual time."""

from __future__ import annotations

import errno

import pytest
from virtual import TIMEOUT_S, World

from kafkasafe.events import LossCheckInconclusive
from kafkasafe.limits.patience import Patience
from kafkasafe.spool.spool import Spool
from kafkasafe.testing.fake.checks import RefusedError


class _Late:
    """Of requests whose connection ended only the last one arrives, a moment later (see `StormyCluster.stragglers`)."""

    def __init__(self, lost: int) -> None:
        self._lost = lost

    def random(self) -> float:
        self._lost -= 1
        return 1.0 if self._lost >= 0 else 0.0

    def uniform(self, *_: float) -> float:
        return 0.001


def opened(brokers: int = 1, partitions: int = 1, assignments=None, **options):
    """A producer that has delivered b"a" to orders-0."""
    world = World(brokers=brokers)
    world.cluster.create_topic("orders", partitions, assignments=assignments)
    life = world.start(**options)
    first = life.send("orders", 0, [b"a"])
    assert world.run(60, until=lambda: first.done)
    return world, life


def sent(world: World) -> int:
    return sum("-> Produce" in line for line in world.lines)


@pytest.mark.parametrize("code", [45, 59])
def test_reading_the_same_log_again_is_no_progress(code, monkeypatch):
    """Something refused all batches of a program. After each refusal, the producer read the end of the log again, and
    `close` took this for progress, so it never ended.
    """
    world, life = opened()

    def refuse(*_, **__):
        raise RefusedError(code)

    monkeypatch.setattr(world.centre, "append", refuse)
    life.send("orders", 0, [b"b"])
    world.run(1)
    patience, began = Patience(idle_s=5.0, pause_s=0.0), world.time.monotonic()
    assert world.run(60, lambda: world.time.monotonic() >= life.engine.patience_ends(patience, began))


def test_one_late_request_does_not_speak_for_those_before_it():
    """A wiped leader takes any sequence: its state then says that all up to the late one is there."""
    world, life = opened(on_data_loss="event")
    before = sent(world)
    two = [life.send("orders", 0, [value]) for value in (b"b", b"c")]
    resolved_without = []
    for parcel, value in zip(two, (b"b", b"c"), strict=True):

        def ended(_, value=value):
            if value not in world.log("orders", 0):
                resolved_without.append(value)

        parcel.watcher = ended
    world.run(1, until=lambda: sent(world) == before + 2)
    world.cluster.stragglers = _Late(lost=1)
    world.cluster.lose_log("orders", 0)
    assert world.run(600, until=lambda: life.engine.ledger.errors.undecided)
    world.run(60)
    assert resolved_without == []
    # Nobody can know whether the first was there, and is lost: that is the user's to decide.
    assert world.log("orders", 0) == [b"c"]
    assert not two[0].done


def test_an_ack_counts_for_the_leader_that_was_sent_to():
    """The one that came since did not acknowledge it, and need not have it."""
    # Metadata come from broker 1.
    world, life = opened(brokers=3, assignments={0: [2, 3, 1]})
    former = world.cluster.partition_state("orders", 0)
    world.cluster.delay(1.0, node=former.leader)
    parcel = life.send("orders", 0, [b"b"])
    world.run(0.5)
    assert not parcel.done
    world.cluster.move_leader("orders", 0)
    life.client.refresh_metadata(["orders"], lambda _: None)
    assert world.run(0.4, until=lambda: life.context.leader_epoch("orders", 0) > former.leader_epoch), (
        "the answer is still on its way"
    )
    assert not parcel.done
    assert world.run(60, until=lambda: parcel.done)
    journal = life.context.own.journal
    assert journal.views.leader_epoch(journal.destination("orders", 0)) == former.leader_epoch


@pytest.mark.parametrize("writes", [False, True])
@pytest.mark.parametrize(
    "unanswered", ["-> OffsetForLeaderEpoch orders-0", "-> ListOffsets orders-0 earliest"]
)
def test_an_election_is_looked_at_until_the_leader_answers(unanswered, writes):
    """A leader that has just been elected does not always know it; later checks did not ask what one after it asks."""
    seen = []
    world, life = opened(brokers=3, on_event=seen.append)
    world.run(60)
    world.cluster.delete_records("orders", 0, 1)
    new = world.cluster.move_leader("orders", 0)
    if writes:
        life.send("orders", 0, [b"b"])
    else:
        life.client.refresh_metadata(["orders"], lambda _: None)
    asked = len(world.lines)
    assert world.run(60, until=lambda: any(unanswered in line for line in world.lines[asked:]))
    world.cluster.cut(node=new)
    world.run(60)
    trimmed = [event for event in seen if isinstance(event, LossCheckInconclusive)]
    assert [(event.position, event.log_start_offset) for event in trimmed] == [(1, 1)]


def test_callers_wait_for_what_is_sent_again():
    """Its records are older than those of the caller that waits, its parcel is newer."""
    world, life = opened(retain_acked_bytes=1_000_000)
    last = life.send("orders", 0, [b"b"])
    assert world.run(60, until=lambda: last.done)
    ledger = life.engine.ledger
    assert ledger.settled(last.number)
    world.cluster.lose_log("orders", 0)
    assert world.run(600, until=lambda: len(ledger.parcels.open) == 2)  # it is known to be lost
    assert world.log("orders", 0) == []
    assert not ledger.settled(last.number)
    assert world.run(600, until=lambda: ledger.settled(last.number))
    assert world.log("orders", 0) == [b"a", b"b"]


def test_what_is_in_a_sockets_queue_is_not_written_to(monkeypatch):
    """With spool="on_error" a batch goes to the disk while it is on its way; the spool stamps its place into the bytes."""
    world, life = opened(spool="on_error", spool_after_ms=1000)
    queued = []
    produce = life.client.produce

    def noting(requests, *args):
        queued.extend((request.data, bytes(request.data)) for request in requests)
        produce(requests, *args)

    changed = []
    write_group = Spool.write_group

    def checking(*args, **options):
        positions = write_group(*args, **options)
        changed.extend(now for now, then in queued if bytes(now) != then)
        return positions

    monkeypatch.setattr(life.client, "produce", noting)
    monkeypatch.setattr(Spool, "write_group", checking)
    world.cluster.stall()
    parcel = life.send("orders", 0, [b"b"])
    assert world.run(TIMEOUT_S, until=lambda: parcel.durable)
    assert len(queued) == 1
    assert changed == []
    world.cluster.restore()
    assert world.run(600, until=lambda: parcel.done)
    assert world.log("orders", 0) == [b"a", b"b"]


def test_what_was_sealed_before_its_topic_was_known_is_not_overtaken():
    """Its partitions are chosen when it is taken, in memory; by way of the disk later open batches would come first."""
    world, life = opened(partitions=2)
    chosen = life.send("orders", -1, [b"0", b"1", b"2", b"3"])
    later = life.send("orders", 0, [b"4"])
    assert world.run(60, until=lambda: chosen.done and later.done)
    assert world.log("orders", 0) == [b"a", b"0", b"2", b"4"]
    assert world.log("orders", 1) == [b"1", b"3"]


def test_another_topic_of_the_name_is_noticed_though_its_log_is_longer():
    """Others have written to it: its end and its leader epoch do not say that it is another one."""
    world, _ = opened(retain_acked_bytes=1_000_000, restore_recreated_topics=True)
    world.centre.delete_topic("orders")
    world.cluster.create_topic("orders", 1)
    other = world.start().send("orders", 0, [b"others'"] * 5)
    assert world.run(60, until=lambda: other.done)
    world.run(600)
    assert world.log("orders", 0) == [*[b"others'"] * 5, b"a"]


def test_a_lane_is_adopted_whose_owner_dies_long_after_its_sibling_began():
    world, _ = opened()
    sibling = world.start()
    world.run(60)
    world.set_outage(True)
    parcel = sibling.send("orders", 0, [b"b"])
    assert world.run(10, until=lambda: parcel.durable)
    world.kill(sibling)
    world.set_outage(False)
    assert world.run(300, until=lambda: world.log("orders", 0) == [b"a", b"b"])


def test_nothing_overtakes_what_cannot_be_divided_yet():
    """The topic is known by now, but records that wait for it are not on disk yet, which is full."""
    world = World(auto_create_topics_enable="false")
    life = world.start()

    def full(self, *_, **__):
        raise self._error("written to", OSError(errno.ENOSPC, "No space left on device"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Spool, "write_group", full)
        first = life.send("late", -1, [b"1", b"2"])
        world.run(5)
        world.cluster.create_topic("late", 2)
        assert world.run(60, until=lambda: life.context.own.journal.views.topic("late") is not None)
        second = life.send("late", -1, [b"3", b"4"])
        world.run(1)
        assert not first.durable
    assert world.run(600, until=lambda: first.done and second.done)
    assert world.log("late", 0) == [b"1", b"3"]
    assert world.log("late", 1) == [b"2", b"4"]
