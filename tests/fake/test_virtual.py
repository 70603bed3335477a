"""The fake's backend for engines: the Cluster protocol in virtual time. What its client decides is tested here, too."""

import kafka.errors as kafka_errors
import pytest
from rawclient import make_batch

from kafkasafe.cluster.api import EARLIEST, LATEST, Failure, ProduceRequest, StaleFenceError
from kafkasafe.cluster.client import broker_questions
from kafkasafe.cluster.coordinators import metadata_question
from kafkasafe.errors import UsageError, WrongClusterError
from kafkasafe.kafkapython.connect import announced, connect
from kafkasafe.record.batch import stamp_address
from kafkasafe.testing.fake import VirtualCluster


class World:
    """A virtual cluster with one started client, and its answers."""

    def __init__(self, brokers=3, version="4.3.0", *, pin=False, **options):
        self.cluster = VirtualCluster(brokers=brokers, version=version)
        self.time = self.cluster.time
        self.client = self.cluster.connect({"bootstrap_servers": self.cluster.bootstrap_servers, **options})
        self.produced = []
        self.strangers = []
        if pin:
            self.client.pin_cluster(on_other_cluster=self.strangers.append, on_pinned_cluster=lambda: None)
        self.cluster.create_topic("t")
        self.client.start()

    def batch(self, seq, pid=7):
        return make_batch(b"v%d" % seq, pid=pid, epoch=0, seq=seq, now_ms=self.time.wall_ms())

    def send(self, *seqs, fence=None, acks=-1, pid=7, topic="t"):
        self.produce([ProduceRequest(seq, topic, 0, self.batch(seq, pid), fence) for seq in seqs], acks)

    def produce(self, requests, acks=-1):
        self.client.produce(requests, acks, 30_000, lambda *answer: self.produced.append(answer))

    def settle(self, count, at_most_s=600.0):
        assert self.time.run_while(lambda: len(self.produced) < count, at_most_s)
        return self.produced

    def ask(self, method, *arguments, **more):
        found = []
        method(*arguments, found.append, **more)
        assert self.time.run_while(lambda: not found)
        return found[0]

    def lead(self):
        return self.cluster.partition_state("t").leader


def offsets(produced):
    return [(token, answer.error_code, answer.base_offset) for token, answer in produced]


def test_batches_arrive_in_order_and_no_real_time_passes():
    world = World()
    for seq in range(20):
        world.send(seq)
    assert offsets(world.settle(20)) == [(seq, 0, seq) for seq in range(20)]
    assert world.time.monotonic() < 0.1
    assert world.cluster.values("t") == [b"v%d" % seq for seq in range(20)]


def test_the_same_run_again_is_the_same():
    def run():
        world = World()
        for seq in range(10):
            world.send(seq)
            if seq == 5:
                world.cluster.kill(world.lead())
            world.time.run_for(0.05)
        world.settle(10)
        return [(token, repr(answer)) for token, answer in world.produced], world.time.monotonic()

    assert run() == run()


def test_a_dead_leader_fails_what_was_sent_and_metadata_find_the_next():
    world = World()
    world.send(0)
    world.settle(1)
    former = world.lead()
    world.send(1)
    world.time.run_for(0.0005)
    world.cluster.kill(former)
    _, failure = world.settle(2)[1]
    assert isinstance(failure, Failure)
    assert failure.sent
    assert world.time.run_while(lambda: world.client.topic("t").partitions[0].leader in {former, -1}, 20)
    assert world.client.connected
    for seq in (1, 2, 3):
        world.send(seq, fence=failure.fence)
    assert offsets(world.settle(5)[2:]) == [(1, 0, 1), (2, 0, 2), (3, 0, 3)]


def test_a_batch_whose_sender_has_not_heard_of_a_failure_is_held_off():
    world = World()
    world.send(0, fence=0)
    world.settle(1)
    world.cluster.cut()
    world.send(1, fence=0)
    world.time.run_for(0.0001)
    world.cluster.refuse(node=world.lead())
    world.settle(2)
    world.cluster.restore()
    world.send(2, fence=0)
    token, failure = world.settle(3)[2]
    assert token == 2
    assert isinstance(failure.error, StaleFenceError)
    assert not failure.sent


def test_a_fence_holds_off_what_would_overtake():
    """A refused batch raises the fence. A batch that is held off does not raise it again."""
    world = World()
    world.send(0, fence=0)
    world.settle(1)
    damaged = bytearray(world.batch(1))
    damaged[-1] ^= 1
    world.produce([ProduceRequest(1, "t", 0, damaged, 0)])
    _, refused = world.settle(2)[1]
    assert (refused.error_code, refused.fence) == (2, 1)
    world.send(2, fence=0)
    _, early = world.settle(3)[2]
    assert isinstance(early.error, StaleFenceError)
    assert (early.sent, early.fence) == (False, 1)
    world.send(1, fence=1)
    assert offsets(world.settle(4)[3:]) == [(1, 0, 1)]


def test_answers_that_are_lost_are_timeouts_and_the_batches_are_there():
    world = World(request_timeout_ms=3000)
    world.send(0, fence=0)
    world.settle(1)
    world.cluster.drop_responses(node=world.lead())
    world.send(1, 2, 3, 4, 5, fence=0)
    lost = world.settle(6)[1:]
    assert [(token, failure.sent, failure.fence) for token, failure in lost] == [
        (seq, True, seq) for seq in (1, 2, 3, 4, 5)
    ]
    assert 3 <= world.time.monotonic() < 40
    world.cluster.restore()
    assert world.cluster.values("t") == [b"v%d" % seq for seq in range(6)]
    described = world.ask(world.client.describe_producers, "t", 0)
    assert described.producers[7].last_sequence == 5
    world.send(1, 2, 3, 4, 5, fence=5)
    assert offsets(world.settle(11)[6:]) == [(seq, 0, seq) for seq in (1, 2, 3, 4, 5)], "deduplicated"
    assert len(world.cluster.values("t")) == 6


def test_a_request_that_is_lost_is_a_timeout_and_the_batch_is_not_there():
    world = World(request_timeout_ms=3000)
    world.send(0)
    world.settle(1)
    world.cluster.drop_requests(node=world.lead())
    world.send(1)
    assert world.settle(2)[1][1].sent
    world.cluster.restore()
    assert world.cluster.values("t") == [b"v0"]


def test_a_leader_that_hangs_is_given_up_when_another_leads():
    world = World()
    world.send(0)
    world.settle(1)
    hung = world.lead()
    world.cluster.pause(hung)
    world.send(1)
    failure = world.settle(2)[1][1]
    assert failure.sent
    assert world.time.monotonic() < 25, "before the request's own timeout"
    assert world.lead() != hung
    world.send(1, fence=failure.fence)
    assert offsets(world.settle(3)[2:]) == [(1, 0, 1)]


def test_answers_that_are_late_are_waited_for():
    world = World()
    world.send(0)
    world.settle(1)
    began = world.time.monotonic()
    world.cluster.delay(2.5, node=world.lead())
    world.send(1, 2, 3, 4, 5)
    assert offsets(world.settle(6)) == [(seq, 0, seq) for seq in range(6)]
    assert 2.5 <= world.time.monotonic() - began < 3.0, "pipelined, not one after another"


def test_batches_of_one_call_share_requests_and_keep_the_order_of_each_partition():
    world = World()
    world.cluster.create_topic("four", assignments={number: [1, 2, 3] for number in range(4)})
    assert world.ask(world.client.list_offset, "four", 0, LATEST).offset == 0
    before = world.cluster.requests["Produce"]
    requests = [
        ProduceRequest((partition, n), "four", partition, make_batch(b"x", now_ms=world.time.wall_ms()))
        for n in range(3)
        for partition in range(4)
    ]
    world.produce(requests, acks=1)
    world.settle(12)
    world.time.run_for(5)
    assert offsets(world.produced) == [((p, n), 0, n) for n in range(3) for p in range(4)]
    assert world.cluster.requests["Produce"] - before == 3


def test_what_is_refused_or_cannot_be_sent_costs_no_other_batch():
    world = World(brokers=1)
    world.cluster.alter_topic("t", {"max.message.bytes": 2000})
    world.send(0)
    world.settle(1)
    damaged, wrong_base = bytearray(world.batch(1)), bytearray(world.batch(1))
    damaged[-1] ^= 1
    stamp_address(wrong_base, 7, -1)
    batches = {
        "large": make_batch(bytes(3000), now_ms=world.time.wall_ms()),
        "damaged": damaged,
        "base": wrong_base,
        "empty": b"",
        "no buffer": "text",
    }
    requests = [ProduceRequest(token, "t", 0, data) for token, data in batches.items()]
    requests.append(ProduceRequest("partition", "t", 9, world.batch(1)))
    requests.append(ProduceRequest("good", "t", 0, world.batch(1)))
    world.produce(requests)
    world.settle(8)
    world.time.run_for(5)
    results = dict(world.produced[1:])
    assert len(world.produced) == 1 + len(requests) == 1 + len(results)
    assert [results[token].error_code for token in ("large", "damaged", "base")] == [10, 2, 87]
    for token in ("empty", "no buffer", "partition"):
        assert isinstance(results[token], Failure)
        assert not results[token].sent
    assert results["partition"].code == 3
    assert (results["good"].error_code, results["good"].base_offset) == (0, 1)


def test_batches_that_wait_for_a_connection_fail_in_order_when_it_is_refused():
    world = World()
    world.send(0)
    world.settle(1)
    world.cluster.refuse(node=world.lead())
    world.cluster.cut(node=world.lead())
    for seq in range(1, 21):
        world.send(seq)
    world.settle(21)
    world.time.run_for(5)
    failed = world.produced[1:]
    assert [(token, failure.sent, failure.fence) for token, failure in failed] == [
        (seq, False, seq) for seq in range(1, 21)
    ]


def test_a_leader_that_has_moved_is_found_by_the_hint_of_the_former_one():
    world = World()
    world.send(0)
    world.settle(1)
    to = world.cluster.move_leader("t")
    asked = world.cluster.requests["Metadata"]
    world.send(1)
    _, answer = world.settle(2)[1]
    epoch = world.cluster.partition_state("t").leader_epoch
    assert (answer.error_code, answer.leader_hint) == (6, (to, epoch))
    assert world.client.topic("t").partitions[0].leader == to
    assert world.cluster.requests["Metadata"] == asked
    world.send(1)
    assert offsets(world.settle(3)[2:]) == [(1, 0, 1)]


def test_a_new_leader_gets_nothing_while_the_former_one_owes_an_answer():
    world = World()
    world.send(0, fence=0)
    world.settle(1)
    former = world.lead()
    other = former % 3 + 1
    world.cluster.create_topic("other", assignments={0: [other]})
    assert world.ask(world.client.list_offset, "other", 0, LATEST).offset == 0
    world.cluster.delay(1.0, node=former)
    world.send(1, fence=0)
    world.time.run_for(0.1)
    world.cluster.move_leader("t", to=other)
    world.ask(world.client.refresh_metadata, ["t"])
    assert world.client.topic("t").partitions[0].leader == other
    world.send(2, fence=0)
    token, failure = world.settle(2)[1]
    assert (token, failure.sent, failure.fence) == (2, False, 1)
    assert isinstance(failure.error, kafka_errors.NotLeaderForPartitionError)
    assert offsets(world.settle(3)[2:]) == [(1, 0, 1)]
    world.send(2, fence=1)
    assert offsets(world.settle(4)[3:]) == [(2, 0, 2)]


def test_a_cluster_that_comes_up_after_its_client_is_found():
    world = World()
    world.cluster.refuse()
    world.send(0)
    _, failure = world.settle(1)[0]
    assert isinstance(failure, Failure)
    assert not failure.sent
    world.time.run_for(100)
    assert not world.client.connected
    world.cluster.restore()
    back = world.time.monotonic()
    assert world.time.run_while(lambda: not world.client.connected)
    assert world.time.monotonic() - back < 2
    world.send(0)
    assert offsets(world.settle(2)[1:]) == [(0, 0, 0)]


def test_a_throttled_client_waits_in_virtual_time():
    world = World(brokers=1)
    world.send(0)
    world.settle(1)
    world.cluster.throttle(7.0, "Produce", times=1)
    for seq in (1, 2):
        world.send(seq)
    assert world.settle(2)
    began = world.time.monotonic()
    world.settle(3)
    assert 6.9 < world.time.monotonic() - began < 7.2
    assert offsets(world.produced) == [(0, 0, 0), (1, 0, 1), (2, 0, 2)]


def test_another_cluster_behind_the_same_addresses_gets_nothing():
    world = World(pin=True)
    world.send(0)
    world.settle(1)
    assert world.client.connected_to_pinned
    world.cluster.replace("another")
    world.cluster.create_topic("t")
    world.send(1)
    failure = world.settle(2)[1][1]
    assert isinstance(failure.error, (WrongClusterError, kafka_errors.KafkaConnectionError))
    world.time.run_for(5)
    assert set(world.strangers) == {"another"}
    assert not world.client.connected_to_pinned
    assert world.cluster.values("t") == []
    world.client.repin("another")
    world.time.run_for(5)
    assert world.client.connected_to_pinned


def test_connections_to_the_former_cluster_end_when_the_client_changes_to_another():
    """1. Only another cluster answers, so the producer decides to change to it, and writes this to its disk. 2. Meanwhile
    the former cluster answers again, and connections to it open.
    """
    world = World(pin=True)
    world.send(0)
    world.settle(1)
    before = world.cluster.values("t")
    world.client.repin("another")
    world.send(1)
    failure = world.settle(2)[1][1]
    assert isinstance(failure.error, (WrongClusterError, kafka_errors.KafkaConnectionError))
    world.time.run_for(5)
    assert not world.client.connected_to_pinned
    assert world.cluster.values("t") == before


def test_questions_to_a_leader():
    world = World(brokers=1)
    for seq in range(3):
        world.send(seq)
    world.settle(3)
    client = world.client
    assert world.ask(client.list_offset, "t", 0, LATEST).offset == 3
    assert world.ask(client.list_offset, "t", 0, EARLIEST).offset == 0
    assert world.ask(client.log_end_offset, "t", 0).offset == 3
    assert world.ask(client.offset_for_leader_epoch, "t", 0, 0).end_offset == 3
    headers = world.ask(client.fetch_headers, "t", 0, 1, 1 << 20)
    assert [header.base_sequence for header in headers.headers] == [1, 2]
    assert headers.next_offset == 3
    assert world.ask(client.list_topics).topics == {"t": (0,)}
    assert world.ask(client.init_producer_id).epoch == 0
    assert world.ask(client.list_offset, "nowhere", 0, LATEST).code == 3


def test_a_fetch_waits_for_records_in_virtual_time():
    world = World(brokers=1)
    world.time.run_for(1)
    found = []
    # Of its own: a broker answers the requests of one connection one after the other.
    reader = world.cluster.connect({})
    reader.start()
    reader.fetch_records("t", 0, 0, 1 << 20, found.append, max_wait_ms=5000)
    world.time.run_for(2)
    assert not found
    world.send(0)
    assert world.time.run_while(lambda: not found)
    assert found[0].next_offset == 1
    assert world.time.monotonic() < 4


@pytest.mark.parametrize("timestamp", [-3, -5])
def test_old_brokers_do_not_know_new_questions(timestamp):
    world = World(version="2.8.2")
    answer = world.ask(world.client.list_offset, "t", 0, timestamp)
    assert answer.unsupported
    assert not answer.sent


def test_a_missing_topic_is_made_if_it_may_be():
    world = World()
    world.send(0, topic="new")
    _, answer = world.settle(1)[0]
    assert answer.code in {3, 5}
    assert world.time.run_while(lambda: not world.client.topic("new").partitions)


def test_a_topic_that_is_made_later_is_found():
    world = World(allow_auto_create_topics=False)
    world.send(0, topic="later")
    _, failure = world.settle(1)[0]
    assert isinstance(failure, Failure)
    assert (failure.code, failure.sent) == (3, False)
    world.time.run_for(100)
    assert world.client.topic("later").error_code == 3
    world.cluster.create_topic("later")
    made = world.time.monotonic()
    assert world.time.run_while(lambda: world.client.topic("later").error_code)
    assert world.time.monotonic() - made < 6
    world.send(0, topic="later")
    assert offsets(world.settle(2)[1:]) == [(0, 0, 0)]


def test_a_partition_whose_only_replica_comes_back_is_found():
    """No batch waits for it meanwhile: the client asks again by itself."""
    world = World()
    world.cluster.create_topic("alone", replication_factor=1)
    world.send(0, topic="alone")
    world.settle(1)
    leader = world.cluster.partition_state("alone").leader
    world.cluster.kill(leader)
    world.time.run_for(60)  # until the cluster notices
    world.send(1, topic="alone")
    world.settle(2)
    world.time.run_for(100)
    assert world.client.topic("alone").partitions[0].leader == -1
    world.cluster.start(leader)
    back = world.time.monotonic()
    assert world.time.run_while(lambda: world.client.topic("alone").partitions[0].leader < 0)
    assert world.time.monotonic() - back < 6


def test_everything_outstanding_fails_when_it_is_closed():
    world = World()
    world.cluster.stall()
    world.send(0)
    waiting = []
    world.client.refresh_metadata(["t"], waiting.append)
    world.time.run_for(1)
    assert world.client.close(1.0)
    assert [type(answer) for _, answer in world.produced] == [Failure]
    assert [type(answer) for answer in waiting] == [Failure]
    world.send(1)
    assert isinstance(world.produced[1][1], Failure)
    world.time.run_for(100)
    assert len(world.produced) == 2


def test_what_is_due_at_a_broker_that_hangs_waits_for_it():
    """The time went round at that moment for ever."""
    world = World(request_timeout_ms=120_000)
    world.cluster.create_topic("slow", assignments={0: [1, 2, 3]})
    for follower in (2, 3):
        world.cluster.hold_back(follower, "slow")
    world.send(0, topic="slow")
    world.time.run_for(1)
    assert not world.produced
    world.cluster.stall()
    world.time.run_for(100)
    world.cluster.recover()
    world.settle(1)


def test_it_is_found_by_its_address():
    cluster = VirtualCluster()
    with announced(",".join(cluster.bootstrap_servers), cluster.connect):
        client = connect({"bootstrap_servers": cluster.bootstrap_servers})
        client.start()
        cluster.time.run_for(1)
        assert client.connected
        assert client.cluster_id == cluster.cluster_id


def test_the_machines_sleep_and_a_clock_that_is_set():
    time = VirtualCluster().time
    before = time.wall_ms()
    time.sleep(10)
    assert (time.monotonic(), time.elapsed(), time.wall_ms() - before) == (0.0, 10.0, 10_000)
    time.set(-5)
    assert time.wall_ms() - before == 5000


@pytest.mark.parametrize("acks", [0, 2])
def test_only_acks_that_say_something(acks):
    world = World()
    with pytest.raises(ValueError, match="acks must be -1 or 1"):
        world.send(0, acks=acks)


def test_no_delay_is_negative():
    with pytest.raises(UsageError, match="No time is negative"):
        VirtualCluster().delay(-1)


def test_all_who_ask_what_a_broker_knows_of_a_topic_share_its_answers(monkeypatch):
    """Each partition of a topic had a request of its own after a restart of its broker."""
    world = World()
    world.send(0)
    world.settle(1)
    asked = []

    def question(*arguments, **more):
        asked.append(arguments)
        return metadata_question(*arguments, **more)

    monkeypatch.setattr(broker_questions, "metadata_question", question)
    found = []
    node = world.lead()
    world.client.topic_at(node, "t", lambda answer: found.append((answer, len(asked))))
    world.time.run_for(0.0001)
    for _ in range(100):
        world.client.topic_at(node, "t", lambda answer: found.append((answer, len(asked))))
    assert world.time.run_while(lambda: len(found) < 101)
    assert {answer.error_code for answer, _ in found} == {0}
    # Those who came after the first request are answered by the second one: it says what the broker knew by then.
    assert [number for _, number in found] == [1] + [2] * 100
    world.cluster.kill(node)
    world.client.topic_at(node, "t", found.append)
    world.client.topic_at(4711, "t", found.append)
    assert world.time.run_while(lambda: len(found) < 103)
    assert all(isinstance(answer, Failure) for answer in found[101:])
