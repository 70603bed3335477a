"""Producers without threads on a cluster without sockets, in virtual time: the real engine on a disk that crashes
(kafkasafe.testing.disk) and on the fake cluster's own virtual clients (kafkasafe.testing.fake.virtual).

Nothing here waits: `World.run` lets time jump to whatever is due next. All that happens is written down in
`World.lines`, in order.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
import re
from collections import deque
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from kafkasafe import marks as m
from kafkasafe.cluster import api
from kafkasafe.config import validate
from kafkasafe.delivery.engine import messages as msg
from kafkasafe.delivery.engine.context import EngineContext
from kafkasafe.delivery.engine.engine import Engine
from kafkasafe.delivery.engine.parcels import Parcel, UnitHandle
from kafkasafe.delivery.readings import Numbers
from kafkasafe.record import batch as codec
from kafkasafe.spool.lanes import SpoolDirectory
from kafkasafe.spool.spool import Spool
from kafkasafe.testing.disk import Disk
from kafkasafe.testing.fake.request_handler import handler
from kafkasafe.testing.fake.virtual import VirtualCluster

TIMEOUT_S = 5.0
SPOOL = Path("/spool")


class StormyCluster(VirtualCluster):
    """Says what it is asked, and loses what it is told to.

    Attributes:
        swallow: So many Produce requests from now on are done, and nobody hears of it: the connection ends.
        stragglers: Decides which requests of connections that ended arrive all the same, and when (see `straggle`);
            None: none does.
        swallowed: Names of the requests whose answers may get lost.
        traced: It says what it is asked.
    """

    swallowed = frozenset({"Produce", "EndTxn", "TxnOffsetCommit", "AddPartitionsToTxn", "AddOffsetsToTxn"})
    traced = True

    def __init__(self, say, brokers: int, version: str, config) -> None:
        self.say = say
        self.swallow = 0
        self.stragglers: random.Random | None = None
        super().__init__(brokers, version=version, config=config)

    def ask(self, pipe, name, version, message, on_answer) -> float:
        """See `VirtualCluster`."""
        what = _request(name, message) if self.traced else ""
        if what:
            self.say(f"-> {what}")

        def answered(fields) -> None:
            on_answer(fields)

        answered.swallowed = (what or name) if name in self.swallowed else ""
        return super().ask(pipe, name, version, message, answered)

    def _arrive_late(self, request) -> None:
        """See `VirtualCluster`."""
        self.straggle(request)

    def straggle(self, request, *, always: bool = False) -> None:
        """The connection of a request ended before it arrived: it may arrive all the same.

        That is so if the connection had taken its last byte by then, and within the request timeout: what is promised
        rests on both (docs/promises.md, P2), however much lies in buffers on a slow way.

        Args:
            request: The request.
            always: No matter of chance.
        """
        if self.stragglers is None or not (always or self.stragglers.random() < 0.5):
            return
        ended_s = request.pipe.ended_s
        now, last_s = self.time.monotonic(), ended_s + TIMEOUT_S * 0.95
        at_s = min(now + self.stragglers.uniform(0, TIMEOUT_S * 0.9), last_s)
        if request.written_s <= ended_s and now <= last_s:
            self.time.call_later(at_s - now, lambda: self._carry_out(request))

    def _carry_out(self, request) -> None:
        node, home = request.pipe.node, self._handler.centre
        if request.centre is home and home.serves(node):
            handler(request.name)(self._ask(node, request.version, request.message))
            self._settle()

    def _deliver(self, pipe, name, answer, on_answer) -> None:
        what = getattr(on_answer, "swallowed", "")
        if what and self.swallow:
            self.swallow -= 1
            self.say(f"   the answer to {what} is lost")
            self._end(pipe, "The broker closed the connection")
            return
        super()._deliver(pipe, name, answer, on_answer)


def offset_of(parcel: Parcel) -> int:
    """Of its first record, as a caller finds it where small batches became one."""
    shift = 0
    while parcel.children is not None:
        shift += parcel.shift
        ((parcel, _),) = parcel.children
    return parcel.base_offset + shift


def _request(name: str, message) -> str:
    match name:
        case "Produce":
            asked = [
                f"{topic.name}-{part.index} {_identity(codec.read_header(part.records))}"
                for topic in message.topic_data
                for part in topic.partition_data
            ]
            return f"Produce {'; '.join(asked)}"
        case "DescribeProducers":
            topic = message.topics[0]
            return f"{name} {topic.name}-{topic.partition_indexes[0]}"
        case "Fetch":
            topic = message.topics[0]
            return f"{name} {topic.topic}-{topic.partitions[0].partition} from {topic.partitions[0].fetch_offset}"
        case "ListOffsets":
            part = message.topics[0].partitions[0]
            what = (
                "earliest"
                if part.timestamp == api.EARLIEST
                else "newest"
                if part.timestamp == api.MAX_TIMESTAMP
                else "latest"
                if message.replica_id == -1
                else "end"
            )
            return f"{name} {message.topics[0].name}-{part.partition_index} {what}"
        case "InitProducerId" if message.transactional_id:
            return f"{name} {_transaction(message.transactional_id)}"
        case "AddPartitionsToTxn" | "AddOffsetsToTxn":
            return name
        case "TxnOffsetCommit":
            return f"{name} {_transaction(message.group_id)}"
        case "EndTxn":
            word = "commit" if message.committed else "abort"
            return f"{name} {word} id {message.producer_id}/{message.producer_epoch}"
        case "OffsetFetch":
            return name
        case "OffsetForLeaderEpoch":
            topic = message.topics[0]
            return f"{name} {topic.topic}-{topic.partitions[0].partition} {topic.partitions[0].leader_epoch}"
        case "InitProducerId" if message.transactional_id is not None:
            return f"{name} {message.transactional_id}"
        case "AddPartitionsToTxn":
            places = [f"{topic.name}-{n}" for topic in message.v3_and_below_topics for n in topic.partitions]
            return f"{name} {message.v3_and_below_transactional_id} {' '.join(places)}"
        case "AddOffsetsToTxn" | "TxnOffsetCommit":
            return f"{name} {message.transactional_id} {message.group_id}"
        case "EndTxn":
            how = "commit" if message.committed else "abort"
            who = f"{message.producer_id}/{message.producer_epoch}"
            return f"{name} {message.transactional_id} {who} {how}"
        case "DescribeTransactions":
            return f"{name} {message.transactional_ids[0]}"
        case "OffsetFetch":
            return f"{name} {message.group_id}"
    return ""


class _TracedEngine(Engine):
    """Says what happens to it."""

    world: World

    def step(self, message) -> None:
        if not self.world.silent and (text := describe(message)):
            self.world.say(text)
        super().step(message)


class Life:
    """One process with a producer: from the opening of its lane to a crash or an orderly end."""

    def __init__(
        self,
        world: World,
        *,
        hand_back: bool = False,
        sizes: Mapping[str, int] | None = None,
        **options,
    ) -> None:
        self._world = world
        self.numbers = Numbers(1000 * next(world.incarnations))
        self.files = world.disk.process()
        self.inbox: deque = deque()
        self.config = validate(
            {
                "bootstrap_servers": world.cluster.bootstrap_servers,
                "client_id": "app",
                "spool_dir": str(SPOOL),
                "spool_max_bytes": 16 << 20,
                "retry_backoff_ms": 100,
                "request_timeout_ms": int(TIMEOUT_S * 1000),
                "data_loss_check_ms": 10_000,
                **options,
            }
        )
        # Smaller than users may have them: what happens every few megabytes happens every few kilobytes.
        self.config = dataclasses.replace(self.config, **(sizes or {}))
        directory = SpoolDirectory.open(Path(options.get("spool_dir", SPOOL)), files=self.files)
        lock = directory.take_lane(
            self.config.spool_lane, client=self.config.client_id, wait=world.run if hand_back else None
        )
        self.client = world.cluster.connect(self.config.kafka)
        self.context = EngineContext(
            self.config,
            self.client,
            directory,
            self.files,
            post=self.inbox.append,
            is_own_thread=lambda: True,
            clock=world.time,
            sleep=world.time.run_for,
            random_fraction=random.Random(1).random,
            beside=lambda job: job(),
        )
        self.engine = _TracedEngine(
            self.context,
            choose=_choose,
            on_topic=lambda *_: None,
            newest_reading=lambda: self.numbers.newest,
        )
        self.engine.world = world
        self.engine.open(lock)
        self.engine.listen()
        self.client.start()
        self.engine.begin()

    def send(self, topic: str, partition: int, values, compression=codec.Compression.NONE) -> Parcel:
        """One batch."""
        now_ms = self._world.time.wall_ms()
        data = codec.encode([None] * len(values), list(values), timestamps=now_ms, compression=compression)
        parcel = Parcel(topic, partition, data, len(data), len(values), self._world.time.wall_ms())
        parcel.watcher = self._ended
        self.engine.ledger.submit([parcel])
        return parcel

    def unit(
        self,
        *parts,
        unit_id: bytes | None = None,
        transactional_id: str = "",
        offsets=(),
        readings=(),
        joins: str = "",
        ahead_ms: int = 0,
    ) -> list[Parcel]:
        """Batches, each (topic, partition, values), that are delivered together; the first parcel stands for all. Their
        timestamps are `ahead_ms` in the future.
        """
        self._world.units += 1
        unit_handle = UnitHandle(
            unit_id or self._world.units.to_bytes(16), transactional_id, tuple(offsets), dict(readings), joins
        )
        now_ms = self._world.time.wall_ms() + ahead_ms
        parcels = [Parcel("", -1, None, 0, 0, 0, unit_handle=unit_handle)]
        for topic, partition, values in parts:
            data = codec.encode([None] * len(values), list(values), timestamps=now_ms)
            parcels.append(
                Parcel(
                    topic,
                    partition,
                    data,
                    len(data),
                    len(values),
                    now_ms,
                    unit_handle=unit_handle,
                    watcher=self._ended,
                )
            )
        self.engine.ledger.submit(parcels)
        return parcels

    def _ended(self, parcel: Parcel) -> None:
        where = _place(parcel.topic, parcel.partition)
        if parcel.error is not None:
            self._world.say(f"== {where} {parcel.count} records: {type(parcel.error).__name__}")
        else:
            self._world.say(f"== {where} {parcel.count} records at {parcel.base_offset}")

    def turn(self) -> None:
        for _ in range(len(self.inbox)):
            self.engine.step(self.inbox.popleft())
        self.engine.turn()

    def kill(self) -> None:
        """As SIGKILL."""
        self.files.kill()
        self.client.close(0.0)


class World:
    """A cluster, a disk, and the producers of one spool directory, one after the other or side by side."""

    cluster_type = StormyCluster
    silent = False
    """Nothing is written down."""

    def __init__(self, brokers: int = 1, version: str = "4.3.0", **settings) -> None:
        self.lines: list[str] = []
        self.lives: list[Life] = []
        self.units = 0
        self.incarnations = itertools.count(1)
        self.disk = Disk()
        config = {name.replace("_", "."): value for name, value in settings.items()}
        self.cluster = self.cluster_type(self.say, brokers, version, config)
        self.time = self.cluster.time
        self.time.sleep(86_400.0)  # `monotonic` and `elapsed` differ
        self.outage = False

    @property
    def centre(self):
        return self.cluster._handler.centre

    def say(self, line: str) -> None:
        self.lines.append(f"{self.cluster.time.monotonic():8.3f}  {line}")

    def set_outage(self, on: bool) -> None:
        """No broker can be reached."""
        self.outage = on
        self.cluster.refuse(on)
        if on:
            self.cluster.cut()

    def start(self, *, hand_back: bool = False, **options) -> Life:
        """A process begins; with `hand_back` it may wait for a lane that a sibling adopted."""
        life = Life(self, hand_back=hand_back, **options)
        self.lives.append(life)
        return life

    def kill(self, life: Life, *, power: bool = False, seed: int = 1) -> None:
        """The process ends in the middle of whatever it does; with `power` the machine with it."""
        self.lives.remove(life)
        life.kill()
        if power:
            self.disk = self.disk.crash(seed=seed)

    def run(self, seconds: float, until=None) -> bool:
        """Let time pass, or less if `until` becomes true; whether it did."""
        end = self.time.monotonic() + seconds
        while True:
            self.cluster._handler.advance(self.cluster.now_ms())
            now = self.time.monotonic()
            for life in self.lives:
                if life.inbox or life.engine.due <= now:  # as a thread, which sleeps while there is nothing
                    life.turn()
            if until is not None and until():
                return True
            if any(life.inbox for life in self.lives):
                continue
            next_s = self.time.next_s
            due = min([float("inf") if next_s is None else next_s, *(life.engine.due for life in self.lives)])
            if due > end:
                self.time.run_until(end)
                return until is None
            self.time.run_until(due)

    def write_foreign(self, topic: str, partition: int) -> None:
        """Another producer, which is not idempotent, writes one record: b"foreign"."""
        data = codec.encode([None], [b"foreign"], timestamps=self.time.wall_ms())
        found = self.centre.partition(topic, partition)
        found.log.append(bytes(data), found.leader_epoch, None)
        self.centre.replicate()

    def log(self, topic: str, partition: int) -> list[bytes]:
        """The values that readers can see."""
        found = self.centre.partition(topic, partition)
        data = b"".join(
            bytes(each.data) for each in found.log.batches if each.end_offset <= found.log.high_watermark
        )
        columns = [codec.decode(data[at : at + header.size_bytes]) for at, header in codec.iter_headers(data)]
        return [value for each in columns for value in each.values]

    def committed(self, topic: str, partition: int, *, stale: bool = True) -> list[bytes]:
        """The values that readers of committed records see, in order; up to the first transaction that is open.

        Without `stale` what an earlier epoch of the producer wrote, which a later one ended, or which nobody ends any
        more, is left out.
        """
        found = self.centre.partition(topic, partition)
        data = b"".join(
            bytes(each.data) for each in found.log.batches if each.end_offset <= found.log.high_watermark
        )
        batches = [codec.decode(data[at : at + header.size_bytes]) for at, header in codec.iter_headers(data)]
        values: list[bytes] = []
        for index, each in enumerate(batches):
            if each.header.is_control:
                continue
            if each.header.is_transactional:
                end = next(
                    (
                        other
                        for other in batches[index + 1 :]
                        if other.header.is_control and other.header.producer_id == each.header.producer_id
                    ),
                    None,
                )
                if end is None:
                    if stale or self.cluster._handler.transactions.may_end(each.header):
                        break
                    continue
                if end.keys[0][2:4] != b"\0\1":
                    continue
                if not stale and end.header.producer_epoch != each.header.producer_epoch:
                    continue
            values += each.values
        return values


def tracing(world: World):
    """Have the spool's writes written down too: (original, traced) of `Spool.write_group` and `Spool.sync`."""
    write_group, sync, release = Spool.write_group, Spool.sync, Spool.release

    def traced(self, marks, batches, **options):
        positions = write_group(self, marks, batches, **options)
        words = [_mark(mark) for mark in marks]
        words += ["CLOSED"] if options.get("closed") else []
        words += [f"batch of {codec.read_header(data).count}" for _, data in batches]
        world.say("   write " + ", ".join(words))
        return positions

    def synced(self, **options):
        sync(self, **options)
        world.say("   sync")

    def released(self, *args):
        freed = release(self, *args)
        if freed:
            world.say("   segments deleted")
        return freed

    return {"write_group": traced, "sync": synced, "release": released}


def _choose(_topic, partitions, keys, _values):
    return np.arange(len(keys)) % partitions


def _transaction(name: str) -> str:
    return re.sub("-[0-9a-f]{32}-", "-LANE-", name)


def _identity(header) -> str:
    if header.producer_id < 0:
        return f"without id, {header.count} records"
    return (
        f"id {header.producer_id}/{header.producer_epoch} seq {header.base_sequence}, {header.count} records"
    )


def _mark(mark: m.Mark) -> str:
    fields = {name: getattr(mark, name) for name in type(mark).__slots__}
    words = [f"{name}={_plain(value)}" for name, value in fields.items() if not isinstance(value, bytes)]
    return f"{type(mark).__name__.upper()}({' '.join(words)})"


def _plain(value) -> str:
    if isinstance(value, (tuple, list)):
        return "[" + ",".join(_plain(each) for each in value) + "]"
    if hasattr(type(value), "__slots__"):
        return _mark(value)
    return f"{value}"


def _reply(reply) -> str:
    if isinstance(reply, api.Failure):
        return f"{type(reply.error).__name__}, {'sent' if reply.sent else 'not sent'}"
    if getattr(reply, "error_code", 0):
        return f"error {reply.error_code}"
    match reply:
        case api.ProduceReply():
            return f"offset {reply.base_offset}"
        case api.OffsetListed():
            return f"offset {reply.offset}"
        case api.EpochEnd():
            return f"epoch {reply.leader_epoch} ends at {reply.end_offset}"
        case api.HeadersFetched():
            return f"{len(reply.headers)} batches, next offset {reply.next_offset}"
        case api.ProducersDescribed():
            known = [f"{number}: {state.last_sequence}" for number, state in reply.producers.items()]
            return f"last sequences {{{', '.join(known)}}}"
        case api.ProducerIdGranted():
            return f"id {reply.producer_id}/{reply.epoch}"
        case api.MetadataRefreshed():
            return "metadata"
    return type(reply).__name__


def describe(message) -> str:
    """A message, short; nothing for what says nothing."""
    match message:
        case msg.Submitted(parcels):
            what = ", ".join(f"{_place(each.topic, each.partition)} {each.count} records" for each in parcels)
            return f"Submitted {what}"
        case msg.Produced(sent, reply):
            topic, partition = sent.lane.journal.views.address(sent.batch.destination)
            sequence = sent.batch.identity.base_sequence if sent.batch.identity else -1
            return f"<- Produced {topic}-{partition} seq {sequence}: {_reply(reply)}"
        case msg.Answered(inquiry, step, answer):
            return f"<- {inquiry} {step}: {_reply(answer)}"
        case msg.ProducerIdAnswered(_, answer):
            return f"<- ProducerId {_reply(answer)}"
        case msg.UnitAnswered(_, action, step, answer):
            return f"<- {type(action).__name__} {step}: {_reply(answer)}"
        case msg.UnitDue(_, action):
            return f"UnitDue {type(action).__name__}"
        case msg.MetadataChanged(refreshed):
            topics = [
                f"{name} {'error ' + str(info.error_code) if info.error_code else len(info.partitions)}"
                for name, info in sorted(refreshed.topics.items())
            ]
            return f"<- Metadata {', '.join(topics)}".rstrip()
        case msg.RetryDue(lane, destination):
            topic, partition = lane.journal.views.address(destination)
            return f"RetryDue {topic}-{partition}"
        case msg.LinkAnswered(_, topic, partition, answer):
            return f"<- Link {topic}-{partition}: {_reply(answer)}" if isinstance(answer, api.Failure) else ""
        case msg.ChoreDue():
            return ""
    return type(message).__name__


def _place(topic: str, partition: int) -> str:
    return f"{topic}-{partition}" if partition >= 0 else f"{topic}-?"
