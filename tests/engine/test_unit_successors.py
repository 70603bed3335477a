"""Another producer takes a transactional id over, after each request of ours in turn, with and without its answer.

Whoever took over keeps what it has open: nothing of ours is written under a newer epoch, and what we say became of our
transaction is what readers see.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from virtual import World

from kafkasafe.cluster.transactions import TransactionEnded
from kafkasafe.delivery.engine.messages import UnitAnswered
from kafkasafe.testing.fake.request_handler import handler
from kafkasafe.units import Grant

NAME = "app"
VERSIONS = pytest.mark.parametrize("version", ["4.3.0", "2.8.2"])


class Successor:
    """Has the name from `come` on, with a transaction that it leaves open until `commit`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.epoch = -1

    def _ask(self, api: str, version: int, **fields):
        cluster = self._world.cluster
        answer = handler(api)(cluster._ask(1, version, SimpleNamespace(**fields)))
        cluster._settle()
        return answer

    def come(self) -> None:
        answer = self._ask(
            "InitProducerId",
            4,
            transactional_id=NAME,
            transaction_timeout_ms=600_000,
            producer_id=-1,
            producer_epoch=-1,
        )
        if answer["error_code"] == 51:  # the former transaction's markers are being written
            self._world.time.call_later(0.01, self.come)
            return
        assert answer["error_code"] == 0
        self.producer_id, self.epoch = answer["producer_id"], answer["producer_epoch"]
        topic = SimpleNamespace(name="others", partitions=[0])
        answer = self._ask(
            "AddPartitionsToTxn",
            3,
            v3_and_below_transactional_id=NAME,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[topic],
        )
        assert (
            answer["results_by_topic_v3_and_below"][0]["results_by_partition"][0]["partition_error_code"] == 0
        )

    def commit(self) -> int:
        answer = self._ask(
            "EndTxn",
            3,
            transactional_id=NAME,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=True,
        )
        return answer["error_code"]


def scenario(version: str, at: int, *, lost: bool, before: int, parts: int) -> bool:
    """Whether there was a request `at` before the unit came to its end."""
    world = World(version=version)
    for topic in ("orders", "others"):
        world.centre.create_topic(topic, 2)
    life = world.start(retry_backoff_ms=100, transaction_timeout_ms=8000)
    units = life.context.own.journal.units
    units.take_over(NAME)
    assert world.run(60, lambda: units.ids.granted(NAME) is not None)
    wanted = []
    for number in range(before):
        head = life.unit(("orders", 0, [b"before %d" % number]), transactional_id=NAME)[0]
        assert world.run(60, lambda head=head: head.done)
        wanted.append(b"before %d" % number)
    successor, asked, ask = Successor(world), 0, world.cluster.ask

    def counted(pipe, name, version, message, on_answer):
        nonlocal asked
        if name in {"Metadata", "ApiVersions", "FindCoordinator", "OffsetForLeaderEpoch", "ListOffsets"}:
            return ask(pipe, name, version, message, on_answer)
        asked += 1
        if asked != at:
            return ask(pipe, name, version, message, on_answer)

        def answered(fields) -> None:
            successor.come()
            if lost:
                world.cluster._end(pipe, "The broker closed the connection")
            else:
                on_answer(fields)

        return ask(pipe, name, version, message, answered)

    world.cluster.ask = counted
    head = life.unit(*(("orders", part, [b"mine"]) for part in range(parts)), transactional_id=NAME)[0]
    assert world.run(120, lambda: head.done), "it does not come to an end"
    if asked < at:
        return False
    world.run(20)
    story = "\n".join([f"request {at}:", *world.lines[-30:]])
    assert successor.commit() == 0, f"who took over was fenced, or its transaction aborted: {story}"
    world.run(1)
    for part in range(parts):
        seen = world.committed("orders", part)
        expected = wanted * (part == 0) + [b"mine"] * (head.error is None)
        assert seen == expected, f"{head.error}, {seen}: {story}"
    return True


@VERSIONS
@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("lost", [False, True], ids=["answered", "answer lost"])
def test_who_takes_a_name_over_keeps_it(version, lost, before, parts):
    at = 1
    while scenario(version, at, lost=lost, before=before, parts=parts):
        at += 1
    assert at > 2


def test_an_answer_about_a_lane_that_was_handed_back_causes_no_request():
    """The owner has taken the transactional id over by then: InitProducerId would end its open transaction."""
    world = World()
    life = world.start()
    world.run(1)
    lane = life.context.own
    ids = lane.journal.units.ids
    tid = ids["mine"]
    tid.give(Grant(7, 0, 1))
    ids.fence(tid)
    (action,) = lane.journal.units.advance()
    assert action.keep == Grant(7, 0, 1)
    life.context.lanes.remove(lane)
    asked = sum("-> InitProducerId" in line for line in world.lines)
    life.engine.step(UnitAnswered(lane, action, "aborted", TransactionEnded(0, None)))
    world.cluster.time.run_for(1)
    assert sum("-> InitProducerId" in line for line in world.lines) == asked
