"""The fault proxy on a real broker: each fault as plain kafka-python clients see it."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
import uuid

import kafka.errors as kafka_errors
import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewPartitions, NewTopic, OffsetSpec
from kafka.protocol.consumer import ListOffsetsRequest, ListOffsetsResponse
from kafka.protocol.metadata import ApiVersionsRequest, MetadataRequest, MetadataResponse
from kafka.protocol.producer import (
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProduceRequest,
    ProduceResponse,
)

from kafkasafe.errors import UsageError
from kafkasafe.kafkapython import frames
from kafkasafe.testing.broker import KafkaCluster
from kafkasafe.testing.proxy import FaultProxy
from kafkasafe.testing.relay import Outbox

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def wired():
    with FaultProxy(verify=True) as proxy, KafkaCluster(1, proxy_ports=proxy.ports) as cluster:
        proxy.connect(cluster)
        with Wire(proxy) as wire:
            # Error 14 until the broker has got its first block of producer ids from the controller.
            while wire.ask(init_producer_id(), InitProducerIdResponse, 0).error_code == 14:
                time.sleep(0.05)
        yield proxy, cluster


@pytest.fixture
def cluster(wired):
    return wired[1]


@pytest.fixture
def proxy(wired):
    proxy = wired[0]
    proxy.forget()
    yield proxy
    proxy.clear()
    proxy.cut()
    errors, proxy.errors = proxy.errors, []
    unfaithful = dict(proxy.unfaithful)
    proxy.unfaithful.clear()
    assert not errors
    assert not unfaithful


@pytest.fixture
def topic(proxy, cluster):
    """Three partitions that the broker leads already."""
    name = f"t-{uuid.uuid4().hex[:10]}"
    cluster.create_topic(name, 3)
    with Wire(proxy) as wire:
        while {code for code, _ in answers(ask_offsets(wire, name, 0, 1, 2)).values()} != {0}:
            time.sleep(0.02)
    proxy.forget()
    return name


class Wire:
    """One connection of raw requests."""

    def __init__(self, proxy: FaultProxy, timeout_s: float = 60.0) -> None:
        self.socket = socket.create_connection(("127.0.0.1", proxy.ports[1]), timeout_s)
        self.number = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def send(self, request, version: int) -> int:
        self.number += 1
        request.API_VERSION = version
        request.with_header(correlation_id=self.number, client_id="raw")
        self.socket.sendall(bytes(request.encode(framed=True, header=True)))
        return self.number

    def frame(self) -> bytes:
        """The next one; b"" at the end of the connection."""
        head = self._read(4)
        return self._read(struct.unpack(">i", head)[0]) if len(head) == 4 else b""

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            with contextlib.suppress(ConnectionResetError):
                piece = self.socket.recv(size - len(data))
            if not piece:
                break
            data += piece
        return data

    def ask(self, request, response, version: int):
        number = self.send(request, version)
        frame = self.frame()
        assert struct.unpack_from(">i", frame)[0] == number
        return response.decode(frame, version=version, header=True)

    def ended(self) -> bool:
        try:
            return not self.socket.recv(1)
        except ConnectionResetError:
            return True
        except TimeoutError:
            return False


def list_offsets(topic: str, *partitions: int, timestamp: int = -1):
    entry = ListOffsetsRequest.ListOffsetsTopic
    wanted = [
        entry.ListOffsetsPartition(partition_index=p, current_leader_epoch=-1, timestamp=timestamp)
        for p in partitions
    ]
    return ListOffsetsRequest(
        replica_id=-1, isolation_level=0, topics=[entry(name=topic, partitions=wanted)], timeout_ms=1000
    )


def ask_offsets(wire: Wire, topic: str, *partitions: int, version: int = 7):
    return wire.ask(list_offsets(topic, *partitions), ListOffsetsResponse, version)


def answers(response) -> dict:
    return {
        (t.name, p.partition_index): (p.error_code, p.offset) for t in response.topics for p in t.partitions
    }


def metadata(*topics: str):
    return MetadataRequest(
        topics=[MetadataRequest.MetadataRequestTopic(name=topic) for topic in topics],
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )


def init_producer_id():
    return InitProducerIdRequest(
        transactional_id=None, transaction_timeout_ms=60000, producer_id=-1, producer_epoch=-1
    )


@contextlib.contextmanager
def producing(proxy, **options):
    producer = KafkaProducer(bootstrap_servers=proxy.bootstrap_servers, retry_backoff_ms=20, **options)
    try:
        yield producer
    finally:
        producer.close(timeout=5)


@contextlib.contextmanager
def consuming(proxy, **options):
    consumer = KafkaConsumer(
        bootstrap_servers=proxy.bootstrap_servers,
        auto_offset_reset="earliest",
        retry_backoff_ms=20,
        **options,
    )
    try:
        yield consumer
    finally:
        consumer.close()


def fill(cluster, topic: str, count: int = 3, partition: int = 0) -> None:
    with KafkaProducer(bootstrap_servers=[":".join(map(str, cluster.client_address(1)))]) as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number, partition=partition)


def values(proxy, topic: str, partition: int = 0) -> list[int]:
    where = TopicPartition(topic, partition)
    with consuming(proxy) as consumer:
        consumer.assign([where])
        end = consumer.end_offsets([where])[where]
        found = []
        deadline = time.monotonic() + 120
        while len(found) < end and time.monotonic() < deadline:
            found += [int(r.value) for records in consumer.poll(500).values() for r in records]
        return found


# --- passing on -------------------------------------------------------------------------------------------------------


def test_real_traffic_of_many_apis_passes_and_survives_decoding(proxy, cluster, topic) -> None:
    """Golden: what no rule speaks of is the same bytes, and decoding and encoding would not change them either."""
    where = TopicPartition(topic, 0)
    with producing(proxy, compression_type="gzip") as producer:
        for number in range(30):
            producer.send(topic, b"%d" % number, key=b"k", headers=[("h", b"v")], partition=0)
    with producing(proxy, transactional_id="tx") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"30", partition=0).get(120)
        producer.commit_transaction()
    cluster.wait_for_markers()  # the last of what is consumed is the marker's offset
    with consuming(proxy, group_id="g-" + topic) as consumer:
        consumer.subscribe([topic])
        # No short polls: one that ends while it waits for SyncGroup's answer may leave kafka-python's consumer
        # rebalancing for ever.
        found = []
        while len(found) < 31 and (more := consumer.poll(120_000)):
            found += [r for records in more.values() for r in records]
        assert [int(record.value) for record in found] == list(range(31))
        consumer.commit()
        assert consumer.committed(where) == 32
        consumer.offsets_for_times({where: 0})
    with cluster_admin(proxy) as admin:
        admin.create_topics([NewTopic(topic + "-2", 1, 1)])
        admin.create_partitions({topic + "-2": NewPartitions(2)})
        admin.list_topics()
        admin.describe_topics([topic])
        admin.describe_cluster()
        admin.list_partition_offsets({where: OffsetSpec.LATEST})
        admin.list_groups()
        admin.describe_groups(["g-" + topic])
        admin.list_group_offsets("g-" + topic) if hasattr(admin, "list_group_offsets") else None
        admin.describe_producers([where])
        admin.list_transactions()
        admin.delete_records({where: 5})
        admin.delete_topics([topic + "-2"])
    calls = proxy.requests()
    apis = {call.api for call in calls}
    assert len(apis) >= 20, apis
    assert any(call.version >= 9 for call in calls if call.api == "Produce")
    assert all((call.api, call.version) in proxy.seen for call in calls)
    assert not proxy.unfaithful
    assert not any(name.isdigit() for name in apis), apis


@contextlib.contextmanager
def cluster_admin(proxy):
    from kafka.admin import KafkaAdminClient

    admin = KafkaAdminClient(bootstrap_servers=proxy.bootstrap_servers)
    try:
        yield admin
    finally:
        admin.close()


@pytest.mark.parametrize("version", range(3, 13))
def test_every_version_of_produce_can_be_changed(proxy, cluster, topic, version) -> None:
    """Flexible or not; and the bytes of one that is not changed are those of the broker."""
    fill(cluster, topic)
    with Wire(proxy) as wire:
        for code in (0, 46):
            if code:
                proxy.on("Produce", topic=topic, partition=1).answer(46, log_start_offset=77)
            entry = ProduceRequest.TopicProduceData
            data = [entry.PartitionProduceData(index=p, records=one_batch()) for p in (0, 1)]
            request = ProduceRequest(
                transactional_id=None,
                acks=-1,
                timeout_ms=1000,
                topic_data=[entry(name=topic, partition_data=data)],
            )
            response = wire.ask(request, ProduceResponse, version)
            told = {p.index: p for p in response.responses[0].partition_responses}
            assert told[0].error_code == 0
            assert told[0].base_offset >= 3
            assert told[1].error_code == code
            if code:
                assert told[1].base_offset == -1
                assert told[1].log_start_offset == (77 if version >= 5 else -1)
    assert len(values(proxy, topic, 1)) == 2  # the broker had done it


def one_batch() -> bytes:
    from kafkasafe.record import batch

    return bytes(batch.encode(None, [b"9"], timestamps=int(time.time() * 1000)))


@pytest.mark.parametrize("version", range(1, 11))
def test_every_version_of_list_offsets_can_be_changed(proxy, cluster, topic, version) -> None:
    fill(cluster, topic)
    proxy.on("ListOffsets", topic=topic, partition=0).set(offset=2**40)
    proxy.on("ListOffsets", topic=topic, partition=1).answer(78)
    proxy.on("ListOffsets", topic=topic, partition=2).answer_without_forwarding(9, offset=5)
    with Wire(proxy) as wire:
        response = wire.ask(list_offsets(topic, 0, 1, 2), ListOffsetsResponse, version)
    assert answers(response) == {(topic, 0): (0, 2**40), (topic, 1): (78, -1), (topic, 2): (9, 5)}


def test_what_kafka_python_does_not_know_passes_untouched(proxy) -> None:
    proxy.on().delay(0)
    with Wire(proxy) as wire:
        # ShareGroupHeartbeat has no class; version 99 of ApiVersions is answered with version 0 and error 35.
        body = struct.pack(">hhih", 18, 99, 7, 1) + b"c" + b"\0" + b"\2a\2b\0"
        wire.socket.sendall(struct.pack(">i", len(body)) + body)
        frame = wire.frame()
        assert struct.unpack_from(">ih", frame) == (7, 35)
    assert ("18", 99) in proxy.seen
    assert proxy.requests()[-1].api == "18"


def test_a_connection_that_speaks_no_kafka_is_closed(proxy, caplog) -> None:
    for nonsense in (b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\2\0\0", b"\xff\xff\xff\xff"):
        with Wire(proxy) as wire:
            wire.socket.sendall(nonsense)
            assert wire.ended()


def test_without_a_target_connections_are_reset() -> None:
    with FaultProxy() as proxy, contextlib.suppress(ConnectionResetError), Wire(proxy) as wire:
        assert wire.ended()


# --- rules ------------------------------------------------------------------------------------------------------------


def test_a_producer_is_told_an_error_for_one_partition(proxy, topic) -> None:
    rule = proxy.on("Produce", topic=topic, partition=1).answer(code=10, times=1)
    with producing(proxy) as producer:
        futures = [producer.send(topic, b"%d" % p, partition=p) for p in range(3)]
        producer.flush()
        assert futures[0].succeeded()
        assert futures[2].succeeded()
        with pytest.raises(kafka_errors.MessageSizeTooLargeError):
            futures[1].get(120)
    assert rule.hits == 1
    assert values(proxy, topic, 1) == [1]


def test_without_forwarding_the_broker_never_sees_it(proxy, topic) -> None:
    rule = proxy.on("Produce", topic=topic, partition=1).answer_without_forwarding(10, times=1)
    with producing(proxy, linger_ms=200) as producer:
        futures = [producer.send(topic, b"%d" % p, partition=p) for p in range(3)]
        producer.flush()
        with pytest.raises(kafka_errors.MessageSizeTooLargeError):
            futures[1].get(120)
        assert [futures[p].get(120).offset for p in (0, 2)] == [0, 0]
    assert rule.hits == 1
    assert [values(proxy, topic, p) for p in range(3)] == [[0], [], [2]]
    assert all(call.forwarded for call in proxy.requests("Produce", topic=topic))  # with the other partitions


def test_a_request_of_which_nothing_is_left_is_not_forwarded(proxy, topic) -> None:
    proxy.on("ListOffsets", topic=topic).answer_without_forwarding(5)
    with Wire(proxy) as wire:
        response = wire.ask(list_offsets(topic, 0, 2), ListOffsetsResponse, 7)
    assert answers(response) == {(topic, 0): (5, -1), (topic, 2): (5, -1)}
    assert [call.forwarded for call in proxy.requests("ListOffsets")] == [False]


def test_answers_of_its_own_have_nothing_of_earlier_ones(proxy, topic) -> None:
    proxy.on("ListOffsets").answer_without_forwarding(5)
    for partition in (0, 1, 0):
        with Wire(proxy) as wire:
            response = wire.ask(list_offsets(topic, partition), ListOffsetsResponse, 7)
        assert answers(response) == {(topic, partition): (5, -1)}


@pytest.mark.parametrize("forwarded", [True, False])
@pytest.mark.parametrize("version", range(6))
def test_apis_without_topics(proxy, version, forwarded) -> None:
    rule = proxy.on("InitProducerId")
    (rule.answer if forwarded else rule.answer_without_forwarding)(14, times=2, throttle_time_ms=3)
    with Wire(proxy) as wire:
        for _ in range(2):
            told = wire.ask(init_producer_id(), InitProducerIdResponse, version)
            assert (told.error_code, told.producer_id, told.throttle_time_ms) == (14, -1, 3)
        told = wire.ask(init_producer_id(), InitProducerIdResponse, version)
        assert told.error_code == 0
        assert told.producer_id >= 0
    assert rule.hits == 2


@pytest.mark.parametrize("forwarded", [True, False])
@pytest.mark.parametrize("version", range(14))
def test_metadata_of_a_topic(proxy, cluster, topic, version, forwarded) -> None:
    rule = proxy.on("Metadata", topic=topic)
    (rule.answer if forwarded else rule.answer_without_forwarding)(29)
    other = topic + "-other"
    cluster.create_topic(other, 1)
    with Wire(proxy) as wire:
        told = wire.ask(metadata(topic, other), MetadataResponse, version)
        everything = wire.ask(MetadataRequest(topics=None if version else []), MetadataResponse, version)
    for response in (told, everything):
        codes = {t.name: (t.error_code, len(t.partitions)) for t in response.topics}
        assert codes[topic] == (29, 0)
        assert codes[other] == (0, 1)
        assert response.brokers
    assert (
        proxy.on("Metadata", topic=topic, partition=1)._does._default_level(frames.api("Metadata"))
        == "partition"
    )


def test_metadata_of_a_partition(proxy, topic) -> None:
    proxy.on("Metadata", topic=topic, partition=1).answer(5, leader_id=-1)
    with Wire(proxy) as wire:
        told = wire.ask(metadata(topic), MetadataResponse, 12)
    assert {p.partition_index: (p.error_code, p.leader_id) for p in told.topics[0].partitions} == {
        0: (0, 1),
        1: (5, -1),
        2: (0, 1),
    }


def test_a_consumer_is_told_an_error_in_a_fetch_session(proxy, cluster, topic) -> None:
    """Later requests of a session do not name the partition; the answers do."""
    fill(cluster, topic, 3)
    with consuming(proxy) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        while not consumer.poll(200):
            pass
        rule = proxy.on("Fetch", topic=topic, partition=0).answer(74, times=1)
        fill(cluster, topic, 2)
        found = []
        deadline = time.monotonic() + 120
        while len(found) < 2 and time.monotonic() < deadline:
            found += [r for records in consumer.poll(200).values() for r in records]
    assert len(found) == 2
    assert rule.hits == 1


def test_structs_in_fields_and_fields_that_a_version_lacks(proxy, topic) -> None:
    proxy.on("Produce", topic=topic).answer(
        87, record_errors=[{"batch_index": 3, "batch_index_error_message": "no"}], error_message="bad",
        current_leader={"leader_id": 4, "leader_epoch": 5},
    )  # fmt: skip
    with Wire(proxy) as wire:
        for version in (7, 8, 10):
            entry = ProduceRequest.TopicProduceData
            data = [entry.PartitionProduceData(index=0, records=one_batch())]
            request = ProduceRequest(
                transactional_id=None,
                acks=-1,
                timeout_ms=1000,
                topic_data=[entry(name=topic, partition_data=data)],
            )
            told = wire.ask(request, ProduceResponse, version).responses[0].partition_responses[0]
            assert told.error_code == 87
            if version >= 8:
                assert told.record_errors[0].batch_index == 3
                assert told.error_message == "bad"
            if version >= 10:
                assert told.current_leader.leader_id == 4


def test_leaving_out_and_adding(proxy, topic) -> None:
    proxy.on("ListOffsets", topic=topic, partition=1).leave_out()
    proxy.on("ListOffsets", topic=topic).add(topic, 99, offset=4).add("t-nobody", 7, error_code=3)
    with Wire(proxy) as wire:
        response = wire.ask(list_offsets(topic, 0, 1), ListOffsetsResponse, 7)
        assert answers(response) == {(topic, 0): (0, 0), (topic, 99): (0, 4), ("t-nobody", 7): (3, -1)}
        proxy.on("Metadata", topic=topic).leave_out()
        assert [t.name for t in wire.ask(metadata(topic), MetadataResponse, 9).topics] == []


def test_edits_and_predicates(proxy, topic) -> None:
    def change(exchange) -> None:
        assert exchange.request.topics[0].name == topic
        exchange.response.topics[0].partitions[0].offset = 1234

    rule = (
        proxy.on("ListOffsets")
        .when(lambda exchange: exchange.call.version == 7)
        .after(1)
        .edit(change, times=1)
    )
    with Wire(proxy) as wire:
        told = [
            answers(wire.ask(list_offsets(topic, 0), ListOffsetsResponse, version))[topic, 0][1]
            for version in (7, 6, 7, 7)
        ]
    assert told == [0, 0, 1234, 0]
    rule.wait(1)
    with pytest.raises(TimeoutError, match="fewer than 2 hits"):
        rule.wait(2, timeout_s=0.05)


def test_later_rules_win_and_rules_end(proxy, topic) -> None:
    first = proxy.on("ListOffsets", topic=topic).set(offset=1)
    second = proxy.on("ListOffsets", topic=topic).set(offset=2)
    told = []
    with Wire(proxy) as wire:
        for end in (lambda: None, second.remove, proxy.clear):
            end()
            told += [
                offset
                for _, offset in answers(wire.ask(list_offsets(topic, 0), ListOffsetsResponse, 7)).values()
            ]
    assert told == [2, 1, 0]
    assert (first.hits, second.hits) == (2, 1)


def test_a_predicate_that_fails_is_told(topic, cluster) -> None:
    with pytest.raises(ZeroDivisionError), FaultProxy() as proxy:  # noqa: PT012
        proxy.connect(cluster)
        proxy.on("ListOffsets").when(lambda exchange: 1 / 0).drop()
        proxy.on("Metadata").set(throttle_time_ms="soon")
        with Wire(proxy) as wire:
            assert answers(wire.ask(list_offsets(topic, 0), ListOffsetsResponse, 7)) == {(topic, 0): (0, 0)}
            assert wire.ask(metadata(topic), MetadataResponse, 9).topics[0].name == topic
        assert len(proxy.errors) == 2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda proxy: proxy.on("Prodcue"), "no API 'Prodcue'"),
        (lambda proxy: proxy.on("Produce", partition=3), "needs its topic"),
        (lambda proxy: proxy.on().answer(3), "name it in on"),
        (lambda proxy: proxy.on("Produce").set(ofset=3), "no field 'ofset'|has a field 'ofset'"),
        (lambda proxy: proxy.on("Produce").answer(3, level="top"), "no error code at level 'top'"),
        (lambda proxy: FaultProxy(bootstrap="nowhere"), "host:port"),
    ],
)
def test_mistakes_are_told_at_once(proxy, make, message) -> None:
    with pytest.raises(UsageError, match=message):
        make(proxy)


def test_names_of_apis() -> None:
    for which in ("Produce", 0, ProduceRequest, ProduceResponse, "ProduceRequest"):
        assert frames.api(which).name == "Produce"


# --- how it arrives ---------------------------------------------------------------------------------------------------


def test_a_lost_answer_mutes_the_connection(proxy, topic) -> None:
    rule = proxy.on("ListOffsets", topic=topic).drop(times=1)
    with Wire(proxy, timeout_s=0.3) as wire:
        wire.send(list_offsets(topic, 0), 7)
        wire.send(metadata(topic), 9)
        rule.wait()
        with pytest.raises(TimeoutError):
            wire.socket.recv(1)
    with Wire(proxy) as wire:
        assert answers(wire.ask(list_offsets(topic, 0), ListOffsetsResponse, 7)) == {(topic, 0): (0, 0)}


def test_one_answer_lost_out_of_order(proxy, topic) -> None:
    proxy.on("ListOffsets", topic=topic).drop(times=1, mute=False)
    with Wire(proxy) as wire:
        wire.send(list_offsets(topic, 0), 7)
        number = wire.send(metadata(topic), 9)
        assert struct.unpack_from(">i", wire.frame())[0] == number


@pytest.mark.parametrize("forward", [True, False])
@pytest.mark.parametrize("how", ["drop", "hang_up"])
def test_an_idempotent_producer_sends_again(proxy, topic, how, forward) -> None:
    """The broker has it or not; the client cannot know."""
    with producing(proxy, request_timeout_ms=500, delivery_timeout_ms=120_000) as producer:
        producer.send(topic, b"0", partition=0).get(120)
        rule = getattr(proxy.on("Produce", topic=topic), how)(times=1, forward=forward)
        producer.send(topic, b"1", partition=0).get(120)
    assert rule.hits == 1
    assert values(proxy, topic) == [0, 1]
    first, *again = [call.forwarded for call in proxy.requests("Produce", topic=topic)]
    # A broker that takes longer than the request may is asked more often.
    assert len(again) >= 2
    assert [first, again[-1], again.count(False)] == [True, True, not forward]


def test_delays_hold_back_what_is_behind_and_nobody_else(proxy, topic) -> None:
    proxy.on("ListOffsets", topic=topic).delay(4.0, times=1)
    began = time.monotonic()
    with Wire(proxy) as wire, Wire(proxy) as other:
        first = wire.send(list_offsets(topic, 0), 7)
        second = wire.send(metadata(topic), 9)
        other.ask(metadata(topic), MetadataResponse, 9)
        assert time.monotonic() - began < 3.9
        assert [struct.unpack_from(">i", wire.frame())[0] for _ in range(2)] == [first, second]
        assert time.monotonic() - began >= 0.4


def test_duplicates(proxy, topic) -> None:
    proxy.on("ListOffsets").duplicate(3)
    with Wire(proxy) as wire:
        number = wire.send(list_offsets(topic, 0), 7)
        found = [wire.frame() for _ in range(3)]
        assert len(set(found)) == 1
        assert struct.unpack_from(">i", found[0])[0] == number


def test_truncation(proxy, topic) -> None:
    with Wire(proxy) as wire:
        wire.send(list_offsets(topic, 0), 7)
        whole = wire.frame()
        rule = proxy.on("ListOffsets").truncate(9, times=1)
        wire.send(list_offsets(topic, 0), 7)
        assert len(wire.frame()) == 9
        rule.wait()
        proxy.on("ListOffsets").truncate(9, hang_up=True)
        wire.send(list_offsets(topic, 0), 7)
        assert struct.unpack(">i", wire._read(4))[0] == len(whole)
        assert len(wire._read(100)) == 9
        assert wire.ended()


def test_a_producer_survives_truncated_answers(proxy, topic) -> None:
    with producing(proxy) as producer:
        producer.send(topic, b"0", partition=0).get(120)
        rule = proxy.on("Produce").truncate(11, times=2, hang_up=True)
        producer.send(topic, b"1", partition=0).get(120)
    assert rule.hits == 2
    assert values(proxy, topic) == [0, 1]


def test_acks_0_is_not_waited_for(proxy, topic) -> None:
    with producing(proxy, acks=0, enable_idempotence=False) as producer:
        for number in range(5):
            producer.send(topic, b"%d" % number, partition=0)
        producer.flush()
        # Before it closes: a broker that reads a request and the end of the connection at once may drop the request.
        deadline = time.monotonic() + 60
        while values(proxy, topic) != list(range(5)):
            assert time.monotonic() < deadline


# --- what it saw ------------------------------------------------------------------------------------------------------


def test_requests_are_listed_with_their_partitions_and_times(proxy, topic) -> None:
    with Wire(proxy) as wire:
        began = time.monotonic()
        for _ in range(3):
            wire.ask(list_offsets(topic, 0, 2), ListOffsetsResponse, 7)
        wire.ask(list_offsets(topic, 1), ListOffsetsResponse, 7)
        wire.ask(metadata(topic), MetadataResponse, 9)
    calls = proxy.requests("ListOffsets", topic=topic)
    assert [call.partitions for call in calls] == [((topic, 0), (topic, 2))] * 3 + [((topic, 1),)]
    assert all(began <= call.time <= time.monotonic() for call in calls)
    assert {(call.client_id, call.node, call.version) for call in calls} == {("raw", 1, 7)}
    assert len(proxy.requests("ListOffsets", topic=topic, partition=2)) == 3
    assert len(proxy.requests(topic=topic)) == 5
    assert proxy.peak("ListOffsets", topic=topic, partition=0) == 3
    assert proxy.peak("ListOffsets", topic=topic, partition=0, window_s=1e-6) == 1
    assert proxy.peak("Fetch", topic=topic) == 0
    proxy.forget()
    assert not proxy.requests()


def test_a_client_that_does_not_read_is_not_read_from(proxy, cluster, topic) -> None:
    """Memory is bounded: what a slow client asks for stays with the broker."""
    with producing(proxy, max_request_size=2_000_000) as producer:
        for _ in range(8):
            producer.send(topic, bytes(900_000), partition=0)
    from kafka.protocol.consumer import FetchRequest

    wanted = FetchRequest.FetchTopic
    with Wire(proxy) as wire:
        for _ in range(20):
            part = wanted.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1_000_000)
            wire.send(
                FetchRequest(
                    replica_id=-1, max_wait_ms=0, min_bytes=0, max_bytes=1_000_000, isolation_level=0, session_id=0,
                    session_epoch=-1, topics=[wanted(topic=topic, partitions=[part])], forgotten_topics_data=[],
                ),
                11,
            )  # fmt: skip
        time.sleep(0.5)
        held = proxy._do(lambda: max(c.responses.outbox.size + c.ready_bytes for c in proxy._connections))
        assert held < 6_000_000
        assert [len(wire.frame()) > 900_000 for _ in range(20)] == [True] * 20


# --- life -------------------------------------------------------------------------------------------------------------


def test_in_front_of_any_cluster(cluster) -> None:
    """Its own addresses go into the answers, and it opens a port for each broker that it hears of."""
    topic = f"t-{uuid.uuid4().hex[:10]}"
    with (
        KafkaCluster(brokers=3) as brokers,
        FaultProxy(bootstrap=brokers.bootstrap_servers[0], verify=True) as proxy,
    ):
        brokers.create_topic(topic, 3)
        real = {int(server.rpartition(":")[2]) for server in brokers.bootstrap_servers}
        rule = proxy.on("Produce", topic=topic, partition=2).answer_without_forwarding(6, times=1)
        with producing(proxy) as producer:
            futures = [producer.send(topic, b"%d" % p, partition=p) for p in range(3)]
            assert [future.get(120).offset for future in futures] == [0, 0, 0]
        with consuming(proxy, group_id="g") as consumer:
            consumer.subscribe([topic])
            found = set()
            while len(found) < 3 and (more := consumer.poll(120_000)):
                found |= {int(r.value) for records in more.values() for r in records}
        assert found == {0, 1, 2}
        assert rule.hits == 1
        assert set(proxy.ports) == {-1, 1, 2, 3}
        assert not real & set(proxy.ports.values())
        # All of it came by the proxy.
        assert {call.node for call in proxy.requests("Produce", topic=topic)} <= {1, 2, 3}
        assert len(proxy.requests("Fetch")) >= 3
        assert not proxy.unfaithful


def test_closing(cluster) -> None:
    before = set(threading.enumerate())
    proxy = FaultProxy()
    proxy.close()  # never started
    proxy = FaultProxy((1, 2))
    proxy.target(1, *cluster.client_address(1))
    proxy.start()
    with Wire(proxy) as wire:
        wire.ask(metadata(), MetadataResponse, 9)
        assert proxy.connections == 1
        assert "2 rules" not in repr(proxy)
        assert proxy.cut() == 1
        assert wire.ended()
    with Wire(proxy) as wire:
        wire.ask(metadata(), MetadataResponse, 9)
        proxy.close()
        proxy.close()
        assert wire.ended()
    with pytest.raises(RuntimeError, match="closed"):
        proxy.cut()
    assert set(threading.enumerate()) <= before  # those of other tests may end


def test_frames_are_decoded_as_kafka_python_encodes_them() -> None:
    """Headers of both kinds, with a client id of more than ASCII."""
    for version in (0, 3):
        request = ApiVersionsRequest(client_software_name="x", client_software_version="1", version=version)
        request.with_header(correlation_id=5, client_id="ü")
        frame = bytes(request.encode(header=True))
        parsed = frames.parse_request(frame)
        assert (parsed.api.name, parsed.version, parsed.correlation_id, parsed.client_id) == (
            "ApiVersions",
            version,
            5,
            "ü",
        )
        assert parsed.encode()[4:] == frame
    with pytest.raises(ValueError, match="not a Kafka request"):
        frames.parse_request(b"\0\0")


def test_a_piece_never_overtakes_an_earlier_one() -> None:
    near, far = socket.socketpair()
    with near, far:
        far.setblocking(False)
        outbox = Outbox(near)
        outbox.put(b"first", due=10.0)
        outbox.put(b"second", due=0.0)
        outbox.send(now=9.0)
        with pytest.raises(BlockingIOError):
            far.recv(100)
        assert (outbox.size, outbox.due) == (11, 10.0)
        outbox.send(now=10.0)
        assert far.recv(100) == b"firstsecond"
        assert not outbox
        assert outbox.size == 0
