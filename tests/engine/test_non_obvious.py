"""Rules of docs/design.md's "Non-obvious" that need a cluster, a disk and a moment. In virtual time."""

from __future__ import annotations

from virtual import TIMEOUT_S, World

from kafkasafe._io.spool import Spool


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


def test_one_late_request_does_not_speak_for_those_before_it():
    """A wiped leader takes any sequence: its state then says that all up to the late one is there."""
    world, life = opened(on_acked_loss="event")
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
    assert world.run(600, until=lambda: life.engine.ledger.undecided)
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
    assert world.run(0.4, until=lambda: life.ground.leader_epoch("orders", 0) > former.leader_epoch), (
        "the answer is still on its way"
    )
    assert not parcel.done
    assert world.run(60, until=lambda: parcel.done)
    journal = life.ground.own.journal
    assert journal.leader_epoch(journal.destination("orders", 0)) == former.leader_epoch


def test_callers_wait_for_what_is_sent_again():
    """Its records are older than those of the caller that waits, its parcel is newer."""
    world, life = opened(retain_acked_bytes=1_000_000)
    last = life.send("orders", 0, [b"b"])
    assert world.run(60, until=lambda: last.done)
    ledger = life.engine.ledger
    assert ledger.settled(last.number)
    world.cluster.lose_log("orders", 0)
    assert world.run(600, until=lambda: len(ledger.open) == 2)  # it is known to be lost
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
    """Its partitions are chosen when it is taken, in memory; by way of the disk later chunks would come first."""
    world, life = opened(partitions=2)
    chosen = life.send("orders", -1, [b"0", b"1", b"2", b"3"])
    later = life.send("orders", 0, [b"4"])
    assert world.run(60, until=lambda: chosen.done and later.done)
    assert world.log("orders", 0) == [b"a", b"0", b"2", b"4"]
    assert world.log("orders", 1) == [b"1", b"3"]
