"""A consumer's decisions in seeded histories, in virtual time: the objects of `kafkasafe._consuming` on the fake cluster.

What decides is the product's own, `ConsumerObjects`, and so are kafka-python's subscription and states of
partitions, through the product's own adapter. Only what has threads and sockets is replaced: the fetcher by the small
class `Fetches`, the group's coordinator and the metadata by `VirtualGroup` and `VirtualMetadata` (virtual_port.py).
`World.poll` does what kafka-python's `poll` does, in the same order (`KafkaConsumer._poll_once`).

`Book` checks what a consumer promises. `play` plays the history of a seed. `make simulate KIND=consumer SEEDS=1000` plays
many, and `make simulate KIND=consumer SEED=7` shows one (tests/simulation).
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import pkgutil
import random
from collections import Counter, deque
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import kafka.errors as kafka_errors
from kafka.consumer.subscription_state import SubscriptionState
from kafka.structs import OffsetAndMetadata, TopicPartition

from kafkasafe import _consuming, events
from kafkasafe._consuming.lineage_file import LineageMemory
from kafkasafe._consuming.objects import ConsumerObjects
from kafkasafe._consuming.position_table import Activity, Standing
from kafkasafe._consuming.reports import Reports
from kafkasafe.cluster import inquiry, lookups
from kafkasafe.cluster.api import Failure, ProduceRequest, RecordsFetched
from kafkasafe.cluster.backoff import Backoff
from kafkasafe.config import validate_consumer
from kafkasafe.errors import LogDivergedError, RemoteStorageNotReadyError
from kafkasafe.kafkapython.adapter import KafkaAssignments
from kafkasafe.kafkapython.connect import announced
from kafkasafe.kafkapython.fetching_ahead import end_of
from kafkasafe.kafkapython.given_records import TakenRecords
from kafkasafe.kafkapython.subscription import Subscription
from kafkasafe.limits.fetch_ahead import AheadOffset, FetchAhead
from kafkasafe.offsets import EndOffsetTracker
from kafkasafe.record import batch
from kafkasafe.testing.fake import VirtualCluster
from kafkasafe.testing.fake.checks import RefusedError
from tests.consumer.virtual_port import VirtualGroup, VirtualMetadata, VirtualPort

TOPIC = "t"
PLACES = [TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)]
SERVERS = "consumer-world:9092"
CALM_S = 120.0
"""So long after the last fault, everything that can be read has been read."""


class Violation(AssertionError):  # noqa: N818  # as the simulation of producers calls it
    """A promise of a consumer is broken."""


# -- what stands for kafka-python's threads ---------------------------------------------------------------------------


class Ordered(Subscription):
    """The subscription, with partitions in their order: a seed is the same history in each process."""

    def missing_fetch_positions(self) -> list[TopicPartition]:
        return sorted(super().missing_fetch_positions())

    def partitions_needing_reset(self) -> list[TopicPartition]:
        return sorted(super().partitions_needing_reset())

    def fetchable_partitions(self) -> list[TopicPartition]:
        return sorted(super().fetchable_partitions())

    def assign_from_subscribed(self, assignments: Any) -> None:
        super().assign_from_subscribed(assignments)
        former = dict(self.assignment)
        self.assignment.clear()
        self.assignment.update(sorted(former.items()))


class Fetches:
    """kafka-python's fetcher: one request for each partition and broker at a time, and the answers that have come."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._asked: set[tuple[TopicPartition, int]] = set()
        self._ahead: FetchAhead[TopicPartition] = FetchAhead()
        self.arrived: deque[Any] = deque()
        self.taken = TakenRecords(None)

    def send_ahead(self) -> None:
        """Fetch on from the end of each response that waits, as the product does."""
        waiting = [each.topic_partition for each in self.arrived]
        positions = []
        for tp in sorted(set(waiting)):
            part = self._world.objects.parts.get(tp)
            if waiting.count(tp) == 1 and part is not None and part.state.is_fetchable() and part.checked:
                positions.append((tp, part.state.position.offset))
        for tp, end in self._ahead.choose(positions, self._world.fetch_bytes).items():
            checked = self._world.objects.parts.get(tp).checked
            self._world.say(f"fetch {tp.partition} ahead from {end.end_offset}")
            self.send(tp, AheadOffset(end.end_offset, checked))

    def send(self, tp: TopicPartition, offset: int) -> None:
        """Fetch from the leader of the metadata."""
        leadership = self._world.metadata.leadership(tp)
        if leadership is None:
            self._world.metadata.request()
            return
        if (asked := (tp, leadership[1])) in self._asked:
            return
        self._asked.add(asked)
        found = self._world.truth()
        if found is not None and found.leader(tp)[0] != leadership[1]:
            # The fetcher's client would ask the leader. kafka-python asks the broker that its metadata name.
            self._world.later(0.002, lambda: self._not_led(tp, offset, leadership[1]))
            return

        def answered(reply: RecordsFetched | Failure) -> None:
            self._asked.discard(asked)
            if isinstance(reply, Failure):
                self._world.objects.positions.lost(leadership[1])
                self._world.metadata.request()
                return
            diverging = None
            if reply.diverging is not None:
                diverging = SimpleNamespace(epoch=reply.diverging[0], end_offset=reply.diverging[1])
            data = SimpleNamespace(
                error_code=reply.error_code,
                records=bytes(reply.records),
                diverging_epoch=diverging,
                high_watermark=reply.high_watermark,
                log_start_offset=reply.log_start_offset,
            )
            end = None if data.error_code else end_of(data.records, offset)
            self._ahead.arrived(tp, end, data.high_watermark)
            self.arrived.append(
                SimpleNamespace(topic_partition=tp, partition_data=data, fetched_offset=offset)
            )

        epoch = leadership[2] if self._world.has_epochs else -1
        self._world.fetcher_client.fetch_records(
            tp.topic, tp.partition, offset, self._world.fetch_bytes, answered, current_leader_epoch=epoch
        )

    def _not_led(self, tp: TopicPartition, offset: int, node: int) -> None:
        """A broker that does not lead the partition refuses a fetch; one that is down lets the connection end."""
        self._asked.discard((tp, node))
        if not self._world.cluster.is_running(node):
            self._world.objects.positions.lost(node)
            self._world.metadata.request()
            return
        data = SimpleNamespace(
            error_code=6, records=b"", diverging_epoch=None, high_watermark=-1, log_start_offset=-1
        )
        self.arrived.append(SimpleNamespace(topic_partition=tp, partition_data=data, fetched_offset=offset))


# -- the checks --------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Place:
    """What the application knows of one partition.

    Attributes:
        next: Offset of the next record; None until the first one, or after a reason for a move.
        left: Offset of the next record when the partition was revoked; None if it may be passed or gone back from.
        begins: The group's offset when the partition was assigned; None if the group has none.
        handed: The records that were returned, by offset, of the log that they are believed to be in.
        knowable: The number of the first record whose loss a client can find out.
        undecided: A divergence about which the application has not decided.
    """

    next: int | None = None
    left: int | None = None
    begins: int | None = None
    undecided: events.LogDiverged | None = None
    handed: dict[int, bytes] = dataclasses.field(default_factory=dict)
    knowable: int = 0


class Book:
    """What a consumer has promised, and whether it is kept.

    - A position moves only to the record after the last one, or with an event or a decision. An assignment alone moves it
      only forward: to what other members have committed.
    - No offset is committed above the records that were returned.
    - Nothing is fetched while a position is unconfirmed (`World.poll`).
    - Each record that was returned is in the log at the end, or its loss was reported.
    - When the faults are over, everything is read to its end (`World.calm`).
    """

    def __init__(self) -> None:
        self.places = {tp: Place() for tp in PLACES}
        self.events: list[Any] = []
        self.topic_begins = 0
        """The number of the first record that may be in the present topic."""

    def on_event(self, event: Any) -> None:
        self.events.append(event)
        tp = TopicPartition(event.topic, event.partition)
        place = self.places[tp]
        match event:
            case events.LogDiverged(divergent_offset=first):
                place.handed = {at: value for at, value in place.handed.items() if at < first}
                place.undecided = event
            case events.PositionReset(position=offset, previous=previous):
                before = place.next
                if before is None:
                    # An assignment alone may move a position forward: to the group's offset.
                    is_placed = event.reason != "no_position" and place.begins is not None
                    before = place.begins if is_placed else place.left
                if before is not None and previous is not None and previous != before:
                    raise Violation(f"{event}: the application is or was at {before}")
                if (
                    event.reason == "no_position"
                    and place.left is not None
                    and place.handed
                    and previous is None
                    and not self._is_in_a_deleted_topic(place)
                ):
                    raise Violation(f"{event}: the application was at {place.left}")
                if event.reason == "beyond_end":
                    place.handed = {at: value for at, value in place.handed.items() if at < offset}
                elif event.reason == "recreated":
                    place.handed.clear()
                place.next, place.left = offset, None
            case events.PositionRewound(previous=previous):
                if previous is None or previous != place.left:
                    raise Violation(f"{event}: the application was at {place.left}")
                place.left = None
            case events.LossCheckInconclusive(position=position):
                place.handed = {at: value for at, value in place.handed.items() if at >= position}
            case _:
                pass

    def _is_in_a_deleted_topic(self, place: Place) -> bool:
        """Whether the position that the application had may be one in a deleted topic, so that no event names it.

        All records that were returned are of a former topic, and the application has sought back to the first of them.
        So it knows no record before its position, and their loss is no reason to report a divergence.
        """
        is_former = all(int(value) < self.topic_begins for value in place.handed.values())
        return is_former and place.left is not None and min(place.handed) >= place.left

    def sought(self, tp: TopicPartition, offset: int) -> None:
        place = self.places[tp]
        place.next, place.left, place.undecided = offset, None, None

    def assigned(self, tp: TopicPartition, committed: OffsetAndMetadata | None) -> None:
        """The partition is assigned again: it begins at the group's offset, or where a reset says.

        The history that a committed offset carries replaces the consumer's own (`History.restore`), because other
        members may have read another log since. So the consumer no longer knows the records from this offset on: it
        reads them again, or the application seeks past them.
        """
        place = self.places[tp]
        if place.next is not None:
            place.left = place.next
        place.next = place.undecided = None
        place.begins = None if committed is None else committed.offset
        if committed is not None:
            place.handed = {at: value for at, value in place.handed.items() if at < committed.offset}

    def cannot_know(self, tp: TopicPartition, number: int) -> None:
        """No client can find out that the records before this number are no longer in the log.

        Some of them may be in an answer that is returned later.
        """
        place = self.places[tp]
        place.handed.clear()
        place.knowable = number

    def returned(self, tp: TopicPartition, first: int, values: list[bytes]) -> None:
        place = self.places[tp]
        if place.undecided is not None:
            raise Violation(
                f"{tp}: records from {first} on are returned before a decision about {place.undecided}"
            )
        if place.next is not None and first != place.next:
            raise Violation(f"{tp}: records from {first} on are returned after those before {place.next}")
        if place.left is not None and first < place.left:
            raise Violation(
                f"{tp}: records from {first} on are returned again after those before {place.left}"
            )
        place.handed.update(
            (at, value) for at, value in enumerate(values, first) if int(value) >= place.knowable
        )
        place.next, place.left = first + len(values), None

    def commits(self, tp: TopicPartition, offset: int) -> None:
        place = self.places[tp]
        if place.next is not None and offset > place.next:
            raise Violation(f"{tp}: {offset} is committed, records before {place.next} were returned")
        left = place.undecided
        if left is not None and left.reason == "recreated" and offset > left.divergent_offset:
            raise Violation(f"{tp}: {offset} is committed before a decision about {left}")

    def compare(self, tp: TopicPartition, start: int, log: dict[int, bytes], position: int) -> None:
        """At the end: each record that was returned is in the log, or was reported."""
        for at, value in self.places[tp].handed.items():
            if start <= at < position and log.get(at) != value:
                raise Violation(
                    f"{tp}: offset {at} has {log.get(at)!r}; {value!r} was returned, and no loss reported"
                )


# -- the world ---------------------------------------------------------------------------------------------------------


class World:
    """One consumer, its group and its cluster.

    Args:
        seed: Of everything that is random.
        show: Print what happens.
    """

    def __init__(self, seed: int, *, show: bool = False) -> None:
        self.rng = random.Random(seed)
        self.show = show
        self.version = self.rng.choice(["4.3.0", "4.3.0", "2.8.2"])
        self.policy = self.rng.choice(["raise", "seek"])
        self.reset = self.rng.choice(["earliest", "earliest", "latest", "none"])
        self.fetch_bytes = self.rng.choice([1, 300, 1 << 20])
        self.has_epochs = self.rng.random() < 0.8
        self.cluster = VirtualCluster(3, self.version, {"auto.create.topics.enable": "false"})
        self.time = self.cluster.time
        self.began_s = self.time.monotonic()
        self.book = Book()
        self.number = 0
        self.digest: list[str] = []
        self.counts: Counter[str] = Counter()
        self._stack = contextlib.ExitStack()

    def say(self, what: str) -> None:
        line = f"{self.time.monotonic():10.3f} {what}"
        self.digest.append(line)
        if self.show:
            print(line)

    def later(self, seconds: float, work: Callable[[], None]) -> None:
        self.time.call_later(seconds, work)

    def truth(self) -> Any:
        """The topic as it is; None if there is none."""
        try:
            topic = self.cluster._handler.centre.topic(TOPIC)
        except (kafka_errors.KafkaError, RefusedError):
            return None

        def leader(tp: TopicPartition) -> tuple[int, int]:
            state = topic.partitions[tp.partition]
            return state.leader, state.leader_epoch

        return SimpleNamespace(id=topic.topic_id.bytes, leader=leader)

    @contextlib.contextmanager
    def open(self) -> Iterator[World]:
        """The consumer, in virtual time."""
        clock = SimpleNamespace(monotonic=self.time.monotonic)
        modules = [inquiry, lookups] + [
            importlib.import_module(each.name)
            for each in pkgutil.iter_modules(_consuming.__path__, f"{_consuming.__name__}.")
        ]
        former = {module: module.time for module in modules if hasattr(module, "time")}
        pauses = inquiry.PAUSES
        try:
            for module in former:
                module.time = clock
            # Not of the module `random`: threads that other tests have left may draw from that as well.
            inquiry.PAUSES = Backoff(
                0.1, 0.4, least_s=0.1, random_fraction=random.Random(self.rng.random()).random
            )
            with announced(SERVERS, lambda options: self._client()):
                self._begin()
                yield self
        finally:
            inquiry.PAUSES = pauses
            for module, real in former.items():
                module.time = real

    def _client(self) -> Any:
        return self.cluster.connect(
            {"bootstrap_servers": self.cluster.bootstrap_servers, "request_timeout_ms": 2000}
        )

    def _begin(self) -> None:
        self.cluster.create_topic(TOPIC, len(PLACES), 3)
        self.writer, self.fetcher_client = self._client(), self._client()
        self.writer.start()
        self.fetcher_client.start()
        self.metadata = VirtualMetadata(
            self.truth, PLACES, has_epochs=self.has_epochs, later=self.later, rng=self.rng
        )
        self.group, self.fetches = VirtualGroup(), Fetches(self)
        self.metadata.refresh()
        safe = validate_consumer(
            {
                "bootstrap_servers": SERVERS,
                "group_id": "g",
                "on_divergence": self.policy,
                "on_event": self._on_event,
                "auto_offset_reset": self.reset,
            }
        )
        self.subscription = SubscriptionState(self.reset)
        self.subscription.__class__ = Ordered
        self.assignments = KafkaAssignments(self.subscription, self.fetches)
        config = {
            "client_id": "world", "group_id": "g", "client_rack": "", "fetch_max_wait_ms": 500, "request_timeout_ms": 2000,
            "bootstrap_servers": SERVERS, "max_poll_interval_ms": 300_000,
        }  # fmt: skip
        self.reports = Reports("world", safe.on_event)
        self.objects = ConsumerObjects(
            safe=safe,
            config=config,
            port=VirtualPort(self.assignments, self.group, self.metadata),
            tracker=EndOffsetTracker(None, hold_timeout_s=safe.offsets_hold_timeout_s),
            memory=LineageMemory(None),
            reports=self.reports,
            seek=self.seek,
            rewound=lambda: None,
            is_closed=lambda: False,
        )
        self.subscription.commit_from(self.objects.commits.committable)
        self.subscription.subscribe([TOPIC])
        self.subscription.assign_from_subscribed(PLACES)

    def _on_event(self, event: Any) -> None:
        self.say(f"event {event}")
        self.counts[f"reported {type(event).__name__}"] += 1
        try:
            self.book.on_event(event)
        except Violation as violation:
            self.violation = violation  # hooks must not raise

    violation: Violation | None = None

    # -- the application -----------------------------------------------------------------------------------------------

    def seek(self, tp: TopicPartition, offset: int) -> None:
        self.say(f"seek {tp.partition} to {offset}")
        self.subscription.seek(tp, offset)
        self.objects.positions.sought(tp)
        self.book.sought(tp, offset)

    def poll(self) -> int:
        """Do what KafkaConsumer's `poll` does, once. Returns how many records it returned."""
        objects = self.objects
        with objects.polls:
            objects.positions.refresh_committed(100)
            objects.results.carry_on()
            resting = objects.parts.resting(self.time.monotonic())
            for tp in self.subscription.fetchable_partitions():
                if tp not in resting:
                    self._check_fetched(tp)
                    self.fetches.send(tp, self.subscription.assignment[tp].position.offset)
            self.fetches.send_ahead()
            count = 0
            while self.fetches.arrived:
                count += self._take(self.fetches.arrived.popleft())
        return count

    def _check_fetched(self, tp: TopicPartition) -> None:
        part = self.objects.parts.get(tp)
        if part is None or part.at.activity not in {Activity.IDLE, Activity.LOCATING}:
            raise Violation(f"{tp} is fetched in the state {part and part.at}")
        if part.at.standing is not Standing.VALID and part.history.lineage.entries:
            raise Violation(f"{tp} is fetched while its position is {part.at.standing}")

    def _take(self, completed: Any) -> int:
        tp, offset = completed.topic_partition, completed.fetched_offset
        if not self.objects.responses.accept(completed):
            return 0
        state = self.subscription.assignment.get(tp)
        if state is None or not state.is_fetchable() or state.position.offset != offset:
            return 0
        values: list[bytes] = []
        epoch = -1
        for at, header in batch.iter_headers(completed.partition_data.records):
            end = at + header.size_bytes
            columns = batch.decode(completed.partition_data.records[at:end])
            first = max(0, offset - header.base_offset)
            values += columns.values[first:]
            epoch = header.partition_leader_epoch
        if not values:
            return 0
        self.counts["records returned"] += len(values)
        self.say(f"returned {tp.partition} {offset}..{offset + len(values) - 1}")
        self.book.returned(tp, offset, values)
        state.position = OffsetAndMetadata(offset + len(values), "", epoch)
        return len(values)

    def step(self) -> int:
        """One poll of an application that decides, at once or later, about everything that it is asked."""
        try:
            count = self.poll()
        except LogDivergedError as error:
            tp, offset = (
                TopicPartition(error.event.topic, error.event.partition),
                error.event.divergent_offset,
            )
            if self.rng.random() < 0.5:
                self.seek(tp, offset)
            else:
                self.later(self.rng.uniform(0.05, 3), lambda: self._decide(tp, offset))
            count = 0
        except kafka_errors.OffsetOutOfRangeError as error:
            for tp in error.args[0]:
                self.seek(tp, self._start(tp))
            count = 0
        except kafka_errors.NoOffsetForPartitionError:
            for tp in self.subscription.missing_fetch_positions():
                self.seek(tp, self._start(tp))
            count = 0
        except RemoteStorageNotReadyError:
            count = 0
        if self.violation is not None:
            raise self.violation
        return count

    def _decide(self, tp: TopicPartition, offset: int) -> None:
        if self.book.places[tp].undecided is not None and self.assignments.state(tp) is not None:
            self.seek(tp, offset)

    def _start(self, tp: TopicPartition) -> int:
        if self.truth() is None:
            return 0
        return self.cluster._handler.centre.topic(TOPIC).partitions[tp.partition].log.start_offset

    # -- events of a history -------------------------------------------------------------------------------------------

    def do_write(self, tp: TopicPartition) -> None:
        values = [b"%d" % (self.number + n) for n in range(self.rng.randint(1, 20))]
        self.number += len(values)
        request = ProduceRequest(
            0,
            tp.topic,
            tp.partition,
            batch.encode(None, values, timestamps=[self.time.wall_ms()] * len(values)),
        )
        self.writer.produce([request], 1, 1000, lambda *_: None)

    def do_fail_over(self, tp: TopicPartition) -> None:
        self.cluster.unclean_failover(tp, during=lambda: (self.do_write(tp), self.run(0.5)))

    def do_move_leader(self, tp: TopicPartition) -> None:
        with contextlib.suppress(Exception):
            self.cluster.move_leader(tp)

    def do_delete_records(self, tp: TopicPartition) -> None:
        log = self.cluster._handler.centre.topic(TOPIC).partitions[tp.partition].log
        if log.high_watermark > log.start_offset:
            self.cluster.delete_records(tp, before=self.rng.randint(log.start_offset, log.high_watermark))

    def do_recreate(self, tp: TopicPartition) -> None:
        self.cluster.delete_topic(TOPIC)
        self.book.topic_begins = self.number
        self.run(self.rng.choice([0.0, 0.2, 3.0]))
        if self.truth() is None:
            self.cluster.create_topic(TOPIC, len(PLACES), 3)
        if not self.has_epochs:
            # Between two fetches from the same leader, such brokers show nothing of it (docs/limits.md).
            for each in PLACES:
                self.book.cannot_know(each, self.number)

    def do_lose_log(self, tp: TopicPartition) -> None:
        epoch = self.cluster.partition_state(tp).leader_epoch
        self.cluster.lose_log(tp)
        if self.cluster.partition_state(tp).leader_epoch == epoch:
            # A log that is written again under the same leader epoch looks like the former one (docs/limits.md).
            self.book.cannot_know(tp, self.number)

    def do_lose_answers(self, tp: TopicPartition) -> None:
        node = self.rng.choice(self.cluster.brokers)
        self.cluster.drop_responses(node=node)
        self.later(self.rng.uniform(0.1, 5), lambda: self.cluster.drop_responses(on=False, node=node))

    def do_cut(self, tp: TopicPartition) -> None:
        self.cluster.cut(node=self.rng.choice(self.cluster.brokers))

    def do_restart(self, tp: TopicPartition) -> None:
        self.cluster.restart(self.rng.choice(self.cluster.brokers))

    def do_commit(self, tp: TopicPartition) -> None:
        offsets = self.objects.commits.described(self.assignments.committable())
        for at, offset in offsets.items():
            self.book.commits(at, offset.offset)
        self.group.offsets.update(offsets)
        self.say(f"committed { ({at.partition: each.offset for at, each in offsets.items()}) }")

    def do_lose_commits(self, tp: TopicPartition) -> None:
        self.group.answers = False
        self.later(self.rng.uniform(0.1, 3), lambda: setattr(self.group, "answers", True))

    def do_rebalance(self, tp: TopicPartition) -> None:
        """The partition goes to another member and comes back."""
        others = [each for each in PLACES if each != tp]
        self.subscription.assign_from_subscribed(others)
        self.run(self.rng.choice([0.0, 0.5]))
        self.book.assigned(tp, self.group.offsets.get(tp))
        self.subscription.assign_from_subscribed(PLACES)

    def do_seek(self, tp: TopicPartition) -> None:
        if self.assignments.state(tp) is None or self.truth() is None:
            return
        found = self.cluster._handler.centre.topic(TOPIC).partitions[tp.partition].log
        self.seek(tp, self.rng.randint(found.start_offset, max(found.start_offset, found.high_watermark)))

    def do_pause(self, tp: TopicPartition) -> None:
        if self.assignments.state(tp) is not None:
            self.subscription.pause(tp)
            self.later(self.rng.uniform(0.1, 3), lambda: self._resume(tp))

    def _resume(self, tp: TopicPartition) -> None:
        if self.assignments.state(tp) is not None:
            self.subscription.resume(tp)

    def do_refresh(self, tp: TopicPartition) -> None:
        self.metadata.refresh()

    def do_stale(self, tp: TopicPartition) -> None:
        """The program does not poll for a while."""
        self.time.run_for(self.rng.uniform(0.5, 10))

    # -- a history -----------------------------------------------------------------------------------------------------

    def run(self, seconds: float) -> None:
        """Poll for so long."""
        end = self.time.monotonic() + seconds
        while self.time.monotonic() < end:
            self.step()
            self.time.run_for(min(0.02, max(0.001, end - self.time.monotonic())))

    def calm(self) -> None:
        """No more faults: everything is read to its end."""
        self.say("calm")
        self.cluster.restore()
        self.group.answers = True
        end = self.time.monotonic() + CALM_S
        while self.time.monotonic() < end:
            self.metadata.request()  # as kafka-python does, when metadata are old
            for tp in PLACES:
                self._resume(tp)
            self.run(1.0)
            if all(self._is_read(tp) for tp in PLACES):
                break
        else:
            rest = {
                tp.partition: (self.assignments.state(tp).position, self.objects.parts.of(tp).at)
                for tp in PLACES
            }
            raise Violation(f"Not everything was read: {rest}")
        self.run(3.0)
        for tp in PLACES:
            log = self.cluster._handler.centre.topic(TOPIC).partitions[tp.partition].log
            values: dict[int, bytes] = {}
            for columns in self.cluster.records(tp):
                values.update(enumerate(columns.values, columns.header.base_offset))
            self.book.compare(tp, log.start_offset, values, self.assignments.state(tp).position.offset)

    def _is_read(self, tp: TopicPartition) -> bool:
        state = self.assignments.state(tp)
        log = self.cluster._handler.centre.topic(TOPIC).partitions[tp.partition].log
        part = self.objects.parts.get(tp)
        return (
            state.position is not None
            and state.position.offset == log.high_watermark
            and part is not None
            and part.at.activity is Activity.IDLE
        )


KINDS = {
    "write": 30, "fail_over": 4, "move_leader": 6, "delete_records": 3, "recreate": 2, "lose_log": 1, "lose_answers": 4,
    "cut": 4, "restart": 3, "commit": 8, "lose_commits": 2, "rebalance": 4, "seek": 3, "pause": 3, "refresh": 3, "stale": 4,
}  # fmt: skip
"""Events of a history, by weight."""


def play(seed: int, *, show: bool = False) -> World:
    """Play the history of a seed. Its `digest` says what happened, its `counts` how often.

    Raises:
        Violation: A promise is broken.
    """
    world = World(seed, show=show)
    with world.open():
        for _ in range(world.rng.randint(5, 40)):
            kind = world.rng.choices(list(KINDS), list(KINDS.values()))[0]
            place = world.rng.choice(PLACES)
            world.counts[f"event {kind}"] += 1
            world.say(f"- {kind} {place.partition}")
            getattr(world, f"do_{kind}")(place)
            world.run(world.rng.choice([0.0, 0.02, 0.3, 2.0]))
        world.calm()
    world.counts["virtual seconds"] = int(world.time.monotonic() - world.began_s)
    return world
