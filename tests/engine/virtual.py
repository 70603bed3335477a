"""Producers without threads on a cluster without sockets, in virtual time: the real engine, a disk that crashes
(kafkasafe.testing.disk), and what a Kafka cluster does (the pure centre of kafkasafe.testing.fake) behind the
`Cluster` protocol.

Nothing here waits: `World.run` lets time jump to whatever is due next. All that happens is written down in
`World.lines`, in order.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from pathlib import Path

import kafka.errors
import numpy as np

from kafkasafe._core import batch as codec
from kafkasafe._core import marks as m
from kafkasafe._io.engine import messages as msg
from kafkasafe._io.engine.engine import Engine
from kafkasafe._io.engine.ground import Ground
from kafkasafe._io.engine.parcels import Parcel
from kafkasafe._io.lanes import SpoolDirectory
from kafkasafe._io.spool import Spool
from kafkasafe._io.transport import _next_offset
from kafkasafe.cluster import api
from kafkasafe.config import validate
from kafkasafe.testing.disk import Disk
from kafkasafe.testing.fake.centre import Centre
from kafkasafe.testing.fake.checks import RefusedError
from kafkasafe.testing.fake.settings import profile_of

EPOCH_MS = 1_700_000_000_000
WAY_S = 0.001
"""How long a request takes to a broker, and an answer back."""
SPOOL = Path("/spool")
_STALE = {3, 5, 6, 9, 74, 75}


class Time:
    """A clock that stands still until it is moved, and what is due."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list = []
        self._numbers = itertools.count()

    def at(self, delay_s: float, job, *args) -> None:
        heapq.heappush(self._due, (self.now + delay_s, next(self._numbers), job, args))

    @property
    def next(self) -> float:
        return self._due[0][0] if self._due else float("inf")

    def move(self, to: float) -> None:
        while self._due and self._due[0][0] <= to:
            at, _, job, args = heapq.heappop(self._due)
            self.now = max(self.now, at)
            job(*args)
        self.now = max(self.now, to)

    # kafkasafe.cluster.api.Clock
    def monotonic(self) -> float:
        return self.now

    def elapsed(self) -> float:
        return self.now + 86_400.0  # the machine slept for a day, before

    def wall_ms(self) -> int:
        return EPOCH_MS + round(self.now * 1000)

    def boot_id(self) -> bytes:
        return b"one machine, up "


class VirtualCluster:
    """One client's view of a `Centre`: `kafkasafe.cluster.api.Cluster`, with faults of the way there.

    Attributes:
        outage: No broker can be reached.
        swallow: So many Produce requests from now on are done, and nobody hears of it: the connection ends.
    """

    def __init__(self, world: World, request_timeout_s: float) -> None:
        self._world = world
        self._time = world.time
        self._timeout_s = request_timeout_s
        self.closed = False
        self.connected = False
        self.last_error = None
        self.cluster_id = None
        self._watched: set[str] = set()
        self._topics: dict[str, api.TopicInfo] = {}
        self._listeners: list = []
        self._may_create = lambda _: True
        self._fences: dict[tuple[str, int], int] = {}
        self._flying: dict[int, object] = {}
        self._arrivals: dict[int, object] = {}
        self._arrived: set[int] = set()
        self._late: set[int] = set()
        self._numbers = itertools.count()
        self._refreshing = False
        self._waiters: list = []
        self._parked: list = []
        """What waits for the next answer about metadata: functions of whether that came."""

    # -- life

    def start(self) -> None:
        self._refresh_soon(0.0)

    def close(self, _timeout_s: float) -> bool:
        self.closed = True
        self.cut(kafka.errors.KafkaConnectionError("Closed"))
        return True

    def guard(self, *, on_stranger, on_home) -> None:
        pass

    def move(self, cluster_id: str) -> None:
        pass

    at_home = True

    def on_metadata(self, callback) -> None:
        self._listeners.append(callback)

    def create_only(self, may_create) -> None:
        self._may_create = may_create

    def topic(self, name: str):
        return self._topics.get(name)

    def topics(self):
        return [name for name, info in self._topics.items() if info.partitions]

    def brokers(self):
        return [api.Broker(node, "virtual", node) for node in self._world.centre.brokers]

    # -- the way

    def _ask(self, answer, reply, what: str = "") -> None:
        """A request: at the broker after a while, answered after another."""
        if self.closed or self._world.outage:
            error = kafka.errors.KafkaConnectionError("Connection refused")
            self.last_error = error
            pause_s = 0.0 if self.closed else WAY_S
            self._time.at(pause_s, reply, api.Failure(error, sent=False))
            return
        if what:
            self._world.say(f"-> {what}")
        number = next(self._numbers)
        self._flying[number] = reply

        def arrived() -> None:
            if number in self._late:
                self._late.discard(number)
                self._world.pass_time()
                answer()
                return
            if number not in self._flying or self._world.outage:
                return
            self._arrived.add(number)
            self._world.pass_time()
            deadline = self._time.now + self._timeout_s

            def look() -> None:
                if number not in self._flying:
                    return
                result = answer()
                if result is None and self._time.now < deadline:
                    self._time.at(0.05, look)
                elif result is not None:
                    self._time.at(WAY_S, self._answered, number, result)

            look()

        self._arrivals[number] = arrived
        self._time.at(WAY_S, arrived)
        self._time.at(self._timeout_s, self._timed_out, number)

    def _answered(self, number: int, result) -> None:
        reply = self._flying.pop(number, None)
        if reply is not None:
            reply(result)

    def _timed_out(self, number: int) -> None:
        if number in self._flying:
            self.cut(kafka.errors.KafkaTimeoutError("Request timed out"))

    def cut(self, error: BaseException) -> None:
        """The connection ends: what was sent on it has no answer."""
        flying, self._flying = self._flying, {}
        self._straggle(flying)
        for reply in flying.values():
            reply(api.Failure(error, sent=True))

    def _straggle(self, numbers) -> None:
        """Requests whose connection ended before they arrived may arrive all the same, within the request timeout."""
        rng = self._world.stragglers
        for number in list(numbers):
            if rng is not None and number not in self._arrived and rng.random() < 0.5:
                self._late.add(number)
                self._time.at(rng.uniform(0, self._timeout_s * 0.9), self._arrivals[number])

    def vanish(self) -> None:
        """The process is gone: nobody hears of its requests any more."""
        flying, self._flying = self._flying, {}
        self.closed = True
        self._straggle(flying)

    def _with_leader(self, topic: str, partition: int, go, fail) -> None:
        """`go(the leader as the metadata have it)`; what is not known yet waits for the next metadata."""

        def route(*, final: bool) -> None:
            info = self._topics.get(topic)
            known = info.partitions.get(partition) if info else None
            if known is not None and known.leader >= 0:
                go(known.leader)
            elif info is None and not final and not self.closed:
                self._watched.add(topic)
                self._parked.append(route)
                self._refresh_soon(0.0)
            else:
                self._refresh_soon()
                error = kafka.errors.LeaderNotAvailableError(f"Nothing is known of {topic} yet")
                self._time.at(0.0, fail, api.Failure(error, sent=False))

        route(final=False)

    def _of_leader(self, what: str, topic: str, partition: int, work, refused, reply) -> None:
        def go(node: int) -> None:
            def answer():
                if not self._world.centre.serves(node):
                    return None
                try:
                    return work(self._world.centre.partition(topic, partition), node)
                except RefusedError as error:
                    if error.code in _STALE:
                        self._refresh_soon()
                    return refused(error.code)

            self._ask(answer, reply, what)

        self._with_leader(topic, partition, go, reply)

    # -- metadata

    def refresh_metadata(self, topics, reply) -> None:
        fresh = not self._watched.issuperset(topics)
        self._watched.update(topics)
        self._waiters.append(reply)
        self._refresh_soon(0.0 if fresh else 0.1)

    def unwatch(self, topic: str) -> None:
        self._watched.discard(topic)
        self._topics.pop(topic, None)

    def _refresh_soon(self, pause_s: float = 0.1) -> None:
        if not self._refreshing and not self.closed:
            self._refreshing = True
            self._time.at(pause_s, self._refresh)

    def _refresh(self) -> None:
        waiters, self._waiters = self._waiters, []
        names = sorted(self._watched)

        def answer():
            centre = self._world.centre
            topics = {}
            for name in names:
                topic = centre.topics.get(name)
                if topic is None:
                    if self._may_create(name) and centre.settings["auto.create.topics.enable"] == "true":
                        centre.create_topic(name)
                    topics[name] = api.TopicInfo(name, api.NO_TOPIC_ID, {}, 3)
                    continue
                partitions = {
                    number: api.PartitionInfo(each.leader, each.leader_epoch)
                    for number, each in topic.partitions.items()
                }
                topics[name] = api.TopicInfo(name, topic.topic_id.bytes, partitions, 0)
            return api.MetadataRefreshed(centre.cluster_id, tuple(centre.brokers), topics)

        def refreshed(result) -> None:
            self._refreshing = False
            if isinstance(result, api.Failure):
                self.connected = False
                self._refresh_soon(0.2)
            else:
                self.connected, self.last_error = True, None
                self.cluster_id = result.cluster_id
                self._topics.update(result.topics)
            for reply in waiters:
                reply(result)
            parked, self._parked = self._parked, []
            for route in parked:
                route(final=True)
            if isinstance(result, api.Failure):
                return
            for callback in self._listeners:
                callback(result)
            if any(
                info.error_code or any(each.leader < 0 for each in info.partitions.values())
                for info in result.topics.values()
            ):
                self._refresh_soon(0.2)

        self._ask(answer, refreshed)

    def list_topics(self, reply) -> None:
        raise NotImplementedError

    # -- writing

    def init_producer_id(self, reply) -> None:
        self._ask(lambda: api.ProducerIdGranted(self._world.centre.new_producer_id(), 0), reply)

    def produce(self, requests, acks, timeout_ms, reply) -> None:
        for request in requests:
            self._produce(request, acks, timeout_ms, reply)

    def _produce(self, request, acks, timeout_ms, reply) -> None:
        target = (request.topic, request.partition)
        data = bytes(request.data)
        header = codec.read_header(data)
        where = f"{request.topic}-{request.partition} {_identity(header)}"

        def done(result) -> None:
            failed = isinstance(result, api.Failure) or result.error_code
            if failed:
                self._fences[target] = self._fences.get(target, 0) + 1
            fence = self._fences.get(target, 0)
            if isinstance(result, api.Failure):
                result = api.Failure(result.error, result.sent, fence)
            else:
                result = api.ProduceReply(
                    result.error_code,
                    result.base_offset,
                    result.log_append_time,
                    result.log_start_offset,
                    result.record_errors,
                    result.error_message,
                    fence=fence,
                )
            reply(request.token, result)

        if request.fence is not None and request.fence < self._fences.get(target, 0):
            stale = api.StaleFenceError("An earlier batch failed")
            self._time.at(0.0, done, api.Failure(stale, sent=False))
            return

        self._with_leader(*target, lambda node: self._produce_to(node, target, data, acks, where, done), done)

    def _produce_to(self, node, target, data, acks, where, done) -> None:
        world = self._world
        state: dict = {}

        def answer():
            if not world.centre.serves(node):
                return None
            if "appended" not in state:
                try:
                    state["appended"] = world.centre.append(node, *target, data, acks)
                except RefusedError as refused:
                    if refused.code in _STALE:
                        self._refresh_soon()
                    return api.ProduceReply(
                        refused.code, -1, -1, -1, tuple(refused.record_errors), refused.message
                    )
                if world.swallow:
                    world.swallow -= 1
                    world.say(f"   the answer about {where} is lost")
                    self.cut(kafka.errors.KafkaConnectionError("The broker closed the connection"))
                    return None
            appended = state["appended"]
            partition = world.centre.partition(*target)
            if acks == -1 and partition.log.high_watermark < appended.end_offset:
                return None
            return api.ProduceReply(
                0, appended.base_offset, appended.log_append_time_ms, appended.log_start_offset
            )

        self._ask(answer, done, f"Produce {where}")

    # -- questions

    def describe_producers(self, topic, partition, reply) -> None:
        asked = f"DescribeProducers {topic}-{partition}"
        self._of_leader(
            asked,
            topic,
            partition,
            lambda found, node: api.ProducersDescribed(
                0,
                {
                    number: api.ProducerState(known.epoch, known.last_sequence, known.last_timestamp)
                    for number, known in found.logs[node].producers
                },
            ),
            api.ProducersDescribed,
            reply,
        )

    def fetch_headers(self, topic, partition, offset, max_bytes, reply) -> None:
        asked = f"Fetch {topic}-{partition} from {offset}"

        def work(found, node):
            read = found.fetch(node, offset, max_bytes=max_bytes, read_committed=False)
            headers = [header for _, header in codec.iter_headers(read.data)]
            return api.HeadersFetched(
                0,
                read.high_watermark,
                read.last_stable_offset,
                read.log_start_offset,
                headers,
                _next_offset(read.data, offset),
            )

        self._of_leader(
            asked,
            topic,
            partition,
            work,
            lambda code: api.HeadersFetched(code, -1, -1, -1, [], offset),
            reply,
        )

    def fetch_records(self, *_args, **_options) -> None:
        raise NotImplementedError

    def list_offset(self, topic, partition, timestamp, reply, *, isolation_level: int = 0) -> None:
        self._list(topic, partition, timestamp, reply, replica_id=-1)

    def log_end_offset(self, topic, partition, reply) -> None:
        self._list(topic, partition, api.LATEST, reply, replica_id=-2)

    def _list(self, topic, partition, timestamp, reply, *, replica_id: int) -> None:
        what = {api.LATEST: "end" if replica_id == -2 else "latest", api.EARLIEST: "earliest"}
        asked = f"ListOffsets {topic}-{partition} {what[timestamp]}"

        def work(found, node):
            listed = found.list_offset(
                node, timestamp, version=7, replica_id=replica_id, read_committed=False
            )
            return api.OffsetListed(0, listed.offset, listed.leader_epoch, listed.timestamp)

        self._of_leader(asked, topic, partition, work, lambda code: api.OffsetListed(code, -1, -1), reply)

    def offset_for_leader_epoch(
        self, topic, partition, leader_epoch, reply, *, current_leader_epoch=-1
    ) -> None:
        asked = f"OffsetForLeaderEpoch {topic}-{partition} {leader_epoch}"

        def work(found, node):
            epoch, end = found.check_leader(node, current_leader_epoch).end_of_epoch(leader_epoch)
            return api.EpochEnd(0, epoch, end)

        self._of_leader(asked, topic, partition, work, lambda code: api.EpochEnd(code, -1, -1), reply)


class _TracedEngine(Engine):
    """Says what happens to it."""

    world: World

    def step(self, message) -> None:
        text = describe(message)
        if text:
            self.world.say(text)
        super().step(message)


class Life:
    """One process with a producer: from the opening of its lane to a crash or an orderly end."""

    def __init__(self, world: World, **options) -> None:
        self._world = world
        self.files = world.disk.process()
        self.inbox: deque = deque()
        self.config = validate(
            {
                "bootstrap_servers": "virtual:9092",
                "client_id": "app",
                "spool_dir": str(SPOOL),
                "spool_max_bytes": 16 << 20,
                "retry_backoff_ms": 100,
                "request_timeout_ms": 5000,
                "acked_loss_check_ms": 10_000,
                **options,
            }
        )
        directory = SpoolDirectory.open(SPOOL, files=self.files)
        lock = directory.take_lane(self.config.spool_lane)
        self.cluster = VirtualCluster(world, self.config.request_timeout_s)
        self.ground = Ground(
            self.config,
            self.cluster,
            directory,
            self.files,
            post=self.inbox.append,
            is_own_thread=lambda: True,
            clock=world.time,
            sleep=lambda seconds: world.time.move(world.time.now + seconds),
            dice=random.Random(1).random,
            beside=lambda job: job(),
        )
        self.engine = _TracedEngine(self.ground, choose=_choose, on_topic=lambda *_: None)
        self.engine.world = world
        self.engine.open(lock)
        self.engine.listen()
        self.cluster.start()
        self.engine.begin()

    def send(self, topic: str, partition: int, values) -> Parcel:
        """One batch."""
        data = codec.encode([None] * len(values), list(values), timestamps=self._world.time.wall_ms())
        parcel = Parcel(topic, partition, data, len(data), len(values), self._world.time.wall_ms())
        parcel.watcher = self._ended
        self.engine.ledger.submit([parcel])
        return parcel

    def _ended(self, parcel: Parcel) -> None:
        where = _place(parcel.topic, parcel.partition)
        if parcel.error is not None:
            self._world.say(f"== {where} {parcel.count} records: {type(parcel.error).__name__}")
        else:
            self._world.say(f"== {where} {parcel.count} records at {parcel.base_offset}")

    def turn(self) -> None:
        while self.inbox:
            self.engine.step(self.inbox.popleft())
        self.engine.turn()

    def kill(self) -> None:
        """As SIGKILL."""
        self.cluster.vanish()
        self.files.kill()


class World:
    """A cluster, a disk, and the producers of one spool directory, one after the other or side by side."""

    def __init__(self, brokers: int = 1, **settings) -> None:
        self.time = Time()
        self.disk = Disk()
        self.lines: list[str] = []
        self.lives: list[Life] = []
        self.outage = False
        self.swallow = 0
        self.stragglers: random.Random | None = None
        """Decides which requests of connections that ended arrive all the same, and when; None: none does."""
        self.centre = Centre(
            brokers,
            profile_of("4.3.0"),
            {name.replace("_", "."): value for name, value in settings.items()},
            cluster_id="virtual",
            now_ms=self.time.wall_ms(),
        )

    def say(self, line: str) -> None:
        self.lines.append(f"{self.time.now:8.3f}  {line}")

    def pass_time(self) -> None:
        self.centre.advance(self.time.wall_ms())

    def start(self, **options) -> Life:
        """A process begins."""
        life = Life(self, **options)
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
        end = self.time.now + seconds
        while True:
            for life in self.lives:
                life.turn()
            if until is not None and until():
                return True
            if any(life.inbox for life in self.lives):
                continue
            due = min([self.time.next, *(life.engine.due for life in self.lives)])
            if due > end:
                self.time.move(end)
                return until is None
            self.time.move(max(due, self.time.now))
            self.pass_time()

    def log(self, topic: str, partition: int) -> list[bytes]:
        """The values that readers can see."""
        found = self.centre.partition(topic, partition)
        data = b"".join(
            bytes(each.data) for each in found.log.batches if each.end_offset <= found.log.high_watermark
        )
        columns = [codec.decode(data[at : at + header.size_bytes]) for at, header in codec.iter_headers(data)]
        return [value for each in columns for value in each.values]


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

    def synced(self):
        sync(self)
        world.say("   sync")

    def released(self, *args):
        freed = release(self, *args)
        if freed:
            world.say("   segments deleted")
        return freed

    return {"write_group": traced, "sync": synced, "release": released}


def _choose(_topic, partitions, keys, _values):
    return np.arange(len(keys)) % partitions


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
            topic, partition = sent.lane.journal.address(sent.batch.destination)
            sequence = sent.batch.identity.base_sequence if sent.batch.identity else -1
            return f"<- Produced {topic}-{partition} seq {sequence}: {_reply(reply)}"
        case msg.Answered(inquiry, step, answer):
            return f"<- {inquiry} {step}: {_reply(answer)}"
        case msg.ProducerIdAnswered(_, answer):
            return f"<- ProducerId {_reply(answer)}"
        case msg.MetadataChanged(refreshed):
            topics = [
                f"{name} {'error ' + str(info.error_code) if info.error_code else len(info.partitions)}"
                for name, info in sorted(refreshed.topics.items())
            ]
            return f"<- Metadata {', '.join(topics)}".rstrip()
        case msg.RetryDue(lane, destination):
            topic, partition = lane.journal.address(destination)
            return f"RetryDue {topic}-{partition}"
        case msg.ChoreDue():
            return ""
    return type(message).__name__


def _place(topic: str, partition: int) -> str:
    return f"{topic}-{partition}" if partition >= 0 else f"{topic}-?"
