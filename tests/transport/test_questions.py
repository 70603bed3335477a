"""Questions about many partitions go out as few requests; each has its own answer."""

from __future__ import annotations

import functools
import queue
from collections.abc import Iterator
from typing import Any

import kafka.errors
import pytest

from kafkasafe.cluster.api import MAX_TIMESTAMP, EpochEnd, Failure, OffsetListed
from kafkasafe.cluster.at_once import at_once, is_deferred
from kafkasafe.cluster.client import Transport
from kafkasafe.cluster.client.calls import EpochsWanted, OffsetsWanted, PartitionQuestion
from kafkasafe.kafkapython.connect import over_sockets
from kafkasafe.testing import FakeCluster
from kafkasafe.testing.proxy import FaultProxy

TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def proxied() -> Iterator[tuple[FakeCluster, FaultProxy]]:
    with FakeCluster() as cluster, FaultProxy(bootstrap=cluster.bootstrap_servers[0]) as proxy:
        cluster.create_topic("t", 700)
        yield cluster, proxy


@pytest.fixture
def proxy(proxied: tuple[FakeCluster, FaultProxy]) -> Iterator[FaultProxy]:
    yield proxied[1]
    proxied[1].clear()


@pytest.fixture
def transport(proxy: FaultProxy) -> Iterator[Transport]:
    made = over_sockets({"bootstrap_servers": proxy.bootstrap_servers})
    made.start()
    known: queue.SimpleQueue[Any] = queue.SimpleQueue()
    made.refresh_metadata(["t"], known.put)
    known.get(timeout=TIMEOUT_S)
    yield made
    made.close(TIMEOUT_S)


class Answers:
    """By what they answer."""

    def __init__(self) -> None:
        self.queue: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()

    def of(self, token: Any) -> Any:
        return lambda answer: self.queue.put((token, answer))

    def take(self, count: int) -> dict[Any, Any]:
        return dict(self.queue.get(timeout=TIMEOUT_S) for _ in range(count))


def named(proxy: FaultProxy, api: str, since: int = 0) -> list[int]:
    return [len(call.partitions) for call in proxy.requests(api, topic="t")][since:]


def test_questions_of_a_kind_share_a_request(transport: Transport, proxy: FaultProxy) -> None:
    answers = Answers()
    offsets, epochs = len(named(proxy, "ListOffsets")), len(named(proxy, "OffsetForLeaderEpoch"))

    @at_once
    def ask() -> None:
        for number in range(700):
            transport.list_offset("t", number, -1, answers.of(("end", number)))
            transport.list_offset("t", number, -2, answers.of(("start", number)))
            transport.offset_for_leader_epoch("t", number, 0, answers.of(("epoch", number)))

    got = answers.take(2100)
    assert len(got) == 2100
    assert {type(answer) for (kind, _), answer in got.items() if kind == "epoch"} == {EpochEnd}
    assert {(answer.error_code, answer.offset) for (kind, _), answer in got.items() if kind != "epoch"} == {
        (0, 0)
    }
    assert named(proxy, "ListOffsets", offsets) == [500, 200, 500, 200]
    assert named(proxy, "OffsetForLeaderEpoch", epochs) == [500, 200]


def test_one_question_that_goes_wrong_is_alone_with_it(transport: Transport, proxy: FaultProxy) -> None:
    answers = Answers()
    since = len(named(proxy, "ListOffsets"))
    proxy.on("ListOffsets", topic="t", partition=1).leave_out()
    proxy.on("ListOffsets", topic="t", partition=2).set(offset=2**62)
    proxy.on("ListOffsets", topic="t", partition=3).answer(code=6)

    @at_once
    def ask() -> None:
        for number in range(5):
            transport.list_offset("t", number, 1000, answers.of(number))
        transport.list_offset("t", 5, 2**63, answers.of("unsendable"))
        transport.list_offset("t", 700, 1000, answers.of("unknown"))
        transport.list_offset("t", 4, 2000, answers.of("twice"))

    got = answers.take(8)
    assert got[0] == got[4] == got["twice"] == OffsetListed(0, -1, -1, -1)
    assert got[3].error_code == 6
    for token in (1, 2):
        assert isinstance(got[token], Failure)
        assert isinstance(got[token].error, kafka.errors.KafkaProtocolError)
        assert got[token].sent
    for token in ("unsendable", "unknown"):
        assert isinstance(got[token], Failure)
        assert not got[token].sent
    assert named(proxy, "ListOffsets", since) == [5, 1]  # a partition once in each


def test_a_leader_that_moves_takes_only_its_own_questions_along() -> None:
    answers = Answers()
    transport = over_sockets({"bootstrap_servers": "127.0.0.1:1"})
    link = transport._links.link(1)
    link.not_before = float("inf")
    for number in range(3):
        wanted = {"partition": number, "current_leader_epoch": -1, "leader_epoch": 0}
        link.gather(
            EpochsWanted(), PartitionQuestion(("t", number), wanted, lambda row: row, answers.of(number))
        )
    link.drop_moved(lambda target: 2 if target[1] == 1 else 1)
    ((token, failure),) = answers.take(1).items()
    assert token == 1
    assert isinstance(failure.error, kafka.errors.NotLeaderForPartitionError)
    assert [tuple(call.targets) for call in link.waiting] == [(("t", 0), ("t", 2))]
    link.drop(kafka.errors.KafkaConnectionError("cut"))
    assert {token: failure.sent for token, failure in answers.take(2).items()} == {0: False, 2: False}
    assert answers.queue.empty()
    transport.close(TIMEOUT_S)


def test_what_is_asked_at_once_wakes_each_thread_once() -> None:
    """At the end of the outermost one."""
    woken: list[int] = []
    assert not is_deferred(functools.partial(woken.append, 1), 1)

    @at_once
    def outer() -> None:
        assert is_deferred(functools.partial(woken.append, 1), 1)

        @at_once
        def inner() -> None:
            assert is_deferred(functools.partial(woken.append, 1), 1)

        assert is_deferred(functools.partial(woken.append, 2), 2)
        assert not woken

    assert woken == [1, 2]


@pytest.mark.parametrize("version", ["4.3.0", "2.8.2"])
def test_an_old_broker_is_not_asked_for_the_largest_timestamp(version: str) -> None:
    """It would take -3 for a time, and answer with the first record."""
    with FakeCluster(version=version) as cluster:
        cluster.create_topic("t", 1)
        made = over_sockets({"bootstrap_servers": cluster.bootstrap_servers})
        made.start()
        answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        made.list_offset("t", 0, MAX_TIMESTAMP, answers.put)
        answer = answers.get(timeout=TIMEOUT_S)
        made.close(TIMEOUT_S)
    if version == "4.3.0":
        assert answer == OffsetListed(0, -1, -1, -1)
    else:
        assert answer.unsupported
        assert not answer.sent


@pytest.mark.parametrize("version", range(1, 11))
@pytest.mark.parametrize("isolation", [0, 1])
def test_all_partitions_at_once_have_the_answers_of_each(
    transport: Transport, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch, version: int, isolation: int
) -> None:
    """Without those that have none, whatever the reason is."""
    monkeypatch.setattr(OffsetsWanted, "maximum", version)
    codes = dict(enumerate((-1, 1, 3, 5, 6, 7, 9, 29, 56, 74, 75, 78), 1))
    for number, code in codes.items():
        proxy.on("ListOffsets", topic="t", partition=number).answer(code=code)
    proxy.on("ListOffsets", topic="t", partition=20).leave_out()
    proxy.on("ListOffsets", topic="t", partition=21).set(offset=2**62)
    proxy.on("ListOffsets", topic="t", partition=22).set(offset=-1)
    proxy.on("ListOffsets", topic="t", partition=23).set(offset=2**62 - 1, timestamp=99)
    if version >= 4:
        proxy.on("ListOffsets", topic="t", partition=24).set(leader_epoch=9)
        proxy.on("ListOffsets", topic="t", partition=25).set(leader_epoch=-7)
    asked = [("t", number) for number in range(700)]
    answers = Answers()
    since = len(named(proxy, "ListOffsets"))
    transport.list_offsets([*asked, ("t", 700)], -1, answers.of("all"), isolation_level=isolation)
    found = answers.take(1)["all"]
    if isolation and version == 1:  # which has no isolation level
        assert found == {}
        return
    assert named(proxy, "ListOffsets", since) == [500, 200]

    @at_once
    def ask() -> None:
        for target in asked:
            transport.list_offset(*target, -1, answers.of(target), isolation_level=isolation)

    each = answers.take(700)
    plain = {
        target: answer
        for target, answer in each.items()
        if isinstance(answer, OffsetListed) and not answer.error_code and answer.offset >= 0
    }
    assert found == plain
    assert set(asked) - set(found) == {("t", number) for number in (*codes, 20, 21, 22)}
    assert {each["t", number].error_code for number in codes} == set(codes.values())


def test_brokers_that_do_not_answer_leave_their_partitions_out() -> None:
    answers = Answers()
    with FakeCluster(brokers=3) as cluster:
        cluster.create_topic("t", 30)
        made = over_sockets({"bootstrap_servers": cluster.bootstrap_servers})
        made.start()
        made.list_offsets([("t", 0)], -1, answers.of("unknown"))
        assert answers.take(1) == {"unknown": {}}
        made.refresh_metadata(["t"], answers.of("metadata"))
        answers.take(1)
        asked = [("t", number) for number in range(30)]
        made.list_offsets(asked, -1, answers.of("all"))
        assert set(answers.take(1)["all"]) == set(asked)
        lost = cluster.leader("t", 0)
        of_lost = {target for target in asked if cluster.leader(*target) == lost}
        cluster.kill(lost)
        made.list_offsets(asked, -1, answers.of("all"))
        assert set(asked) - set(answers.take(1)["all"]) <= of_lost
        made.close(TIMEOUT_S)
        made.list_offsets(asked, -1, answers.of("closed"))
        assert isinstance(answers.take(1)["closed"], Failure)
