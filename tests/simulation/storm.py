"""Plays a plan."""

from __future__ import annotations

import contextlib
import errno
import random
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from virtual import SPOOL, TIMEOUT_S, Life

from kafkasafe import events
from kafkasafe import journal as j
from kafkasafe.delivery.engine import disk as engine_disk
from kafkasafe.delivery.engine import packing
from kafkasafe.delivery.engine import send_queue as engine_send_queue
from kafkasafe.delivery.engine.messages import Decided, SpillAsked
from kafkasafe.delivery.engine.parcels import UNCHOSEN, Parcel
from kafkasafe.errors import RejectedError, SpoolError
from kafkasafe.journal import packing as journal_packing
from kafkasafe.maintenance.resend import find_rejected
from kafkasafe.record import batch as codec
from kafkasafe.spool import lanes
from kafkasafe.spool.files import read_whole
from kafkasafe.spool.inspection import inspect
from kafkasafe.spool.lanes import SpoolDirectory
from kafkasafe.spool.spool import Spool
from kafkasafe.testing.disk import ProcessKilled

from .book import Book, LifeEntry, Record, Violation
from .plan import Plan
from .world import SimWorld, Worker, pinned

TOPIC = "t"
DAY_MS = 86_400_000
CODES = (19, 6, 7, 20, 5, 56, -1, 2, 3, 89)
_APPENDED_FIRST = frozenset({6, 7, 20, 56, -1, 5})
WAITS_S = (0.0005, 0.0015, 0.01, 0.1, 0.6, 2.0, 7.0)
PAUSES_S = (0.01, 0.3, 1.0, 2.5, 4.9, 7.0)
_DISK_CALLS = ("writev", "sync_data", "sync_directory", "create", "unlink", "rename", "read", "truncate")
_END_S = 400.0
_MARKS_BYTES = 32_768
"""The marks of a full spool. In segments of 1,000 bytes each COMMITTED mark begins a segment, whose snapshot takes 700 bytes more. So each
of the about 36 batches that fit into 8,000 bytes needs up to 850 bytes for its mark, if one partition holds up the first segment meanwhile.
"""


def play(plan: Plan, *, trace: bool = False) -> Storm:
    """Play it, to the end.

    Raises:
        Violation: A promise was broken. Its notes tell what happened, with `trace`.
    """
    with pinned():
        storm = Storm(plan)
        storm.world.silent = not trace
        storm.world.cluster.traced = trace
        try:
            with storm.watching():
                storm.blow()
        except Violation as violation:
            violation.add_note("\n".join(storm.world.lines))
            raise
        except (Exception, ProcessKilled) as error:
            violation = Violation("crash", f"{type(error).__name__}: {error}")
            violation.add_note("\n".join(storm.world.lines))
            raise violation from error
        finally:
            storm.clear()
    return storm


class Storm:
    """See the module.

    Attributes:
        world: Cluster, disk and processes.
        book: What is promised.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.settings = s = plan.settings
        self.book = Book(durable_first=s.spool == "always", topic_ids=s.version >= "4.1")
        self.book.alone = s.workers == 1
        self.entries: dict[Life, LifeEntry] = {}
        self.handed: dict[Life, list[tuple[Parcel, list[Record]]]] = {}
        self.records_of: dict[Parcel, list[Record]] = {}
        self.ended: set[Parcel] = set()
        self.mending: list[tuple[Any, Callable[[], None]]] = []
        self.stranded: set[int] = set()
        self.capacity = 0
        self.calming = False
        self.world = SimWorld(
            s.brokers,
            s.workers,
            self._open_life,
            self.note,
            self._look,
            random.Random(f"turns {plan.seed}"),
            s.version,
        )
        self.world.cluster.stragglers = random.Random(plan.seed)
        cluster = self.world.cluster
        cluster.hidden = frozenset() if s.describes else frozenset({"DescribeProducers"})
        cluster.on_produce = self._on_produce
        cluster.on_question = self._on_question
        cluster.on_refused = self._on_answer
        cluster.on_out = self.book.out
        cluster.on_failed = self._on_failed
        cluster.whim = self._whim
        self.home = self.world.centre
        self.home_parts = cluster._handler.groups, cluster._handler.transactions
        if not s.late_topic:
            self._create()

    # -- the world ---------------------------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        """Seconds."""
        return self.world.time.monotonic()

    def _create(self) -> None:
        s = self.settings
        topic_settings: dict[str, object] = {
            "unclean.leader.election.enable": "false",
            "retention.ms": "-1",
        }
        if s.version >= "3.6":  # others take all timestamps
            topic_settings = {"message.timestamp.after.max.ms": str(2**63 - 1)} | topic_settings
        if s.poison:
            topic_settings["cleanup.policy"] = "compact"
        if s.huge:
            topic_settings["max.message.bytes"] = "1000"
        if TOPIC not in self.home.topics:
            self.home.create_topic(TOPIC, s.partitions, settings=topic_settings)
            self._displace()

    def _open_life(self, worker: Worker) -> Life:
        s = self.settings
        options: dict[str, object] = {
            "retry_backoff_ms": 100,
            "spool": s.spool,
            "on_event": self._on_event,
            "blocked_timeout_ms": int(s.refused_s * 1000),
            "on_data_loss": "restore" if s.heals else "event",
            "restore_recreated_topics": s.heals_recreated,
        }
        if s.spool == "on_error":
            options["spool_after_ms"] = 200
        if s.own_names:
            options["client_id"] = f"worker-{worker.number}"
        sizes = {"spool_segment_bytes": s.segment_bytes, "spool_max_bytes": s.spool_bytes}
        if self.plan.kind == "room":
            sizes["rejected_max_bytes"] = s.spool_bytes // 4
        if s.retains:
            sizes["retain_acked_bytes"] = 1 << 40
        self.world.say(f"worker {worker.number} begins")
        life = Life(self.world, sizes=sizes, hand_back=s.workers > 1, **options)
        entry = LifeEntry(len(self.book.lives), worker.number, self.now)
        self.book.begun(entry)
        self.entries[life] = entry
        self.handed[life] = []
        return life

    def note(self, life: Life) -> None:
        """A life ends: what was promised by now counts, what was not may be lost with it."""
        for parcel, records in self.handed[life]:
            self._promised(parcel, records)
        self.handed[life].clear()
        self.entries[life].ended = self.now

    def _look(self) -> None:
        if self.book.seen is not None:
            raise self.book.seen

    @staticmethod
    def _promised(parcel: Parcel, records: list[Record]) -> None:
        if parcel.durable or (parcel.done and parcel.error is None):
            for record in records:
                record.durable = True
        elif parcel.children:
            for child, indexes in parcel.children:
                Storm._promised(child, [records[int(at)] for at in indexes])

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """What spools write is written into the book."""
        book, world, say = self.book, self.world, self.world.say
        write_group, sync, opened = Spool.write_group, Spool.sync, Spool.open.__func__

        def written(spool: Spool, marks: Any, batches: Any, **options: Any) -> list[int]:
            try:
                positions = write_group(spool, marks, batches, **options)
            except Exception:
                book.failed(spool)
                raise
            book.wrote(spool, list(marks), batches)
            if not world.silent:
                say(f"   write {[type(mark).__name__ for mark in marks]} and {len(batches)} batches")
            return positions

        def synced(spool: Spool, **options: Any) -> Any:
            try:
                position = sync(spool, **options)
            except Exception:
                book.failed(spool)
                raise
            book.synced(spool)
            say("   sync")
            return position

        persist = engine_disk.DiskWriter.persist

        def decided(writer: Any, lane: Any, unit: Any) -> Any:
            book.decided(lane.spool, unit.marks)
            return persist(writer, lane, unit)

        def open_spool(cls: type[Spool], *args: Any, each: Any, **options: Any) -> Any:
            entries: list[Any] = []

            def noted(entry: Any) -> None:
                entries.append(entry)
                each(entry)

            spool, rest = opened(cls, *args, each=noted, **options)
            rest = list(rest)
            book.opened(spool, entries + rest)
            return spool, rest

        with (
            mock.patch.object(Spool, "write_group", written),
            mock.patch.object(Spool, "sync", synced),
            mock.patch.object(engine_disk.DiskWriter, "persist", decided),
            mock.patch.object(Spool, "open", classmethod(open_spool)),
            mock.patch.object(engine_disk, "_MEMORY_BYTES", self.settings.memory_bytes),
            mock.patch.object(engine_send_queue, "MEMORY_BYTES", self.settings.budget_bytes),
            mock.patch.object(packing, "_PARCELS", 0 if self.settings.packs else packing._PARCELS),
            mock.patch.object(journal_packing, "UNPACKED", 6),
        ):
            yield

    def later(self, seconds: float, key: Any, mend: Callable[[], None]) -> None:
        """What was broken comes back then, or when all calms down."""
        entry = key, mend
        self.mending.append(entry)

        def due() -> None:
            if entry in self.mending:
                self.mending.remove(entry)
                if all(other != key for other, _ in self.mending):
                    mend()

        self.world.time.call_later(seconds, due)

    # -- what is seen ------------------------------------------------------------------------------------------------

    def _on_produce(self, topic: str, partition: int, header: Any) -> None:
        self.book.produced(topic, partition, header)

    def _on_question(self, topic: str, partition: int) -> None:
        self.book.question(topic, partition, self.now, len(self.world.lives))

    def _on_failed(self, topic: str, partition: int, header: Any) -> None:
        self.book.question(topic, partition, self.now, len(self.world.lives), failed=True)
        self.book.failed_to_send(topic, partition, header)

    def _on_answer(self, topic: str, partition: int, code: int) -> None:
        self.book.answered(topic, partition, code, self.now)

    def _on_event(self, event: events.Event) -> None:
        book = self.book
        match event:
            case events.DataLost(partition=partition):
                book.losses += 1
                book.told.add(partition)
                if partition not in book.unclean and partition not in book.recreated:
                    self.book.broken("false alarm", f"{event}")
            case events.SpoolRecordsMissing(partition=partition):
                if partition not in book.unclean and partition not in book.recreated:
                    self.book.broken("false alarm", f"{event}")
            case events.RecordsUndecidable(partition=partition):
                book.parked += 1
                lossy = partition in book.unclean or partition in book.recreated
                self.world.time.call_later(35.0, self._decide)
                if partition in book.trimmed or (lossy and "a later batch is there" in event.evidence):
                    book.overtaken.add(partition)
                elif not lossy:
                    book.broken("parked for nothing", f"{event}")
            case _:
                pass

    def _decide(self) -> None:
        """The user looks into the log, and says what is to be done."""
        for life in self.world.lives:
            ledger = life.engine.ledger
            for lane, batch in ledger.errors.take_shown():
                parcel = lane.parcels.get(batch.handle)
                if parcel is None or batch.state is not j.BatchState.UNDECIDABLE:
                    continue
                data = life.engine.disk.bytes_of(lane, parcel, batch)
                numbers = self.book.numbers(codec.decode(data).values)
                there = numbers[0] in set(self._log(parcel.partition, hidden=True))
                life.inbox.append(Decided([(lane, batch)], resend=not there))

    def _ended(self, life: Life, parcel: Parcel) -> None:
        if parcel in self.ended:
            self.book.broken("twice", f"a future ended twice: {parcel}")
        self.ended.add(parcel)
        records = self._records_of(parcel)
        error = parcel.error
        if not self.world.silent:
            self.world.say(f"== {[each.number for each in records]}: {error or parcel.base_offset}")
        if error is None:
            if parcel.children is not None:
                for child, _ in parcel.children:
                    if child.parents:
                        self._ended_with_others(life, child)
                return
            position = parcel.batch.position if parcel.batch is not None else -1
            self.book.done(life.context.own.spool, position, records, None)
            if parcel.partition >= 0:
                topic = self.home.topics.get(TOPIC)
                if topic is not None:
                    self.book.in_log(topic.partitions[parcel.partition], parcel.base_offset, records)
        elif isinstance(error, RejectedError):
            self._may_refuse(parcel, records, error)

    def _ended_with_others(self, life: Life, parcel: Parcel) -> None:
        """Small ones that waited became this one, which nobody watches, nor what it may have been divided into."""
        if parcel in self.ended:
            return
        if parcel.children is None:
            self._ended(life, parcel)
            return
        self.ended.add(parcel)
        for child, _ in parcel.children:
            self._ended_with_others(life, child)

    def _may_refuse(self, parcel: Parcel, records: list[Record], error: RejectedError) -> None:
        s = self.settings
        long = self.book.refused_for(parcel.partition, self.now) >= 0.75 * s.refused_s
        for record in records:
            record.refused = True
            if not (record.doomed and error.code in {10, 87, 2, -1}) and not long:
                self.book.broken("refused for nothing", f"{record}: {error}")

    def _records_of(self, parcel: Parcel) -> list[Record]:
        found = self.records_of.get(parcel)
        if found is None and parcel.parents:
            found = self.records_of[parcel] = [
                record for parent in parcel.parents for record in self._records_of(parent)
            ]
        if found is None and parcel.parent is not None:
            of_parent = self._records_of(parcel.parent)
            for child, indexes in parcel.parent.children or ():
                if child is parcel:
                    found = self.records_of[parcel] = [of_parent[int(at)] for at in indexes]
        return found or []

    def _whim(self, data: bytes) -> int:
        if self.calming:
            return 0
        values = codec.decode(data).values
        if self.stranded and self.book.records[self.book.numbers(values)[0]].partition in self.stranded:
            return 6
        return next((2 if len(value) % 2 else -1 for value in values if value and b"!" in value), 0)

    def _log(self, partition: int, *, hidden: bool = False) -> list[int]:
        """Which records are in a partition; with `hidden` also those that readers do not see yet."""
        topic = self.home.topics.get(TOPIC)
        if topic is None or partition not in topic.partitions:
            return []
        found = topic.partitions[partition]
        log = found.log if found.leader >= 0 else next(iter(found.logs.values()))
        numbers: list[int] = []
        for batch in log.batches:
            if hidden or batch.end_offset <= log.high_watermark:
                numbers += self.book.numbers_in(bytes(batch.data))
        return numbers

    # -- the history -------------------------------------------------------------------------------------------------

    def blow(self) -> None:
        """All events, then calm, then the checks."""
        self.world.run(0.0)
        for event in self.plan.events:
            self.world.say(f"** {event}")
            getattr(self, f"do_{event.name}")(event.a, event.b, event.c)
            self._bounds()
        self.calm()
        self._bounds()
        self._close()

    def _bounds(self) -> None:
        s = self.settings
        for life in self.world.lives:
            kept = sum(
                len(parcel.data)
                for lane in life.context.lanes
                for parcel in lane.parcels.values()
                if parcel.durable and parcel.data is not None
            )
            if kept > s.memory_bytes + (20_000 if s.huge else 1_500):
                raise Violation("memory", f"{kept:,} bytes that are on disk are in memory as well")
            send_queue = life.engine._sender._send_queue
            if (
                send_queue.read_bytes
                and send_queue.memory_bytes > max(s.budget_bytes, s.memory_bytes) + 65_536
            ):
                raise Violation("memory", f"{send_queue.memory_bytes:,} bytes are in memory")
            if send_queue.reads > 1 and send_queue.read_bytes > s.budget_bytes:
                raise Violation("memory", f"{send_queue.read_bytes:,} bytes were read back to be sent")
        for life in self.world.lives if self.plan.kind == "room" else ():
            own = life.context.own
            # Marks are written though it is full, a segment goes as a whole, and half of one so small is what it begins with.
            limit = s.spool_bytes + 2 * s.segment_bytes + _MARKS_BYTES
            if own.spool.used_bytes > limit:
                raise Violation(
                    "disk", f"{own.spool.used_bytes:,} bytes are in the spool, {limit:,} are allowed"
                )
            limit = life.config.rejected_max_bytes + s.segment_bytes
            if own.rejected.size_bytes > limit:
                raise Violation(
                    "disk", f"{own.rejected.size_bytes:,} bytes are in rejected/, {limit:,} are allowed"
                )
        used = sum(life.engine.ledger.room.used for life in self.world.lives)
        limit = (len(self.world.workers) + 1) * (s.spool_bytes + 2 * s.segment_bytes + 131_072)
        if used > limit:
            raise Violation("disk", f"{used:,} bytes are used, {limit:,} are allowed")

    def calm(self) -> None:
        """Everything is well; what waits is delivered, and every future ends."""
        world = self.world
        world.say("** calm")
        self.calming = True
        for key in dict.fromkeys(key for key, _ in self.mending):
            mends = [mend for other, mend in self.mending if other == key]
            mends[-1]()
        self.mending.clear()
        world.cluster.refuses.clear()
        world.cluster.swallow = world.cluster.late = 0
        world.cluster.held.clear()
        world.cluster.restore()
        world.set_outage(False)
        world.disk.heal()
        world.disk.capacity_bytes = None
        self._go_home()
        self._create()
        for node in world.cluster.brokers:
            world.cluster.resume(node)
            world.cluster.start(node)
        for worker in world.workers:
            worker.up_at = min(worker.up_at, self.now)
            worker.frozen_until = 0.0
        self._drain()
        if self.settings.loses:
            for _ in range(3):
                world.run(25.0)  # what is gone is noticed where nothing is sent
                self._drain()
        else:
            world.run(10.0)  # whatever is late
            self._drain()
        for life in list(world.lives):
            for parcel, records in self.handed[life]:
                self._promised(parcel, records)
                if not parcel.done:
                    raise Violation("future", f"it never ends: {parcel}")

    def _drain(self) -> None:
        world = self.world

        def over() -> bool:
            return len(world.lives) == len(world.workers) and not any(
                life.inbox
                or any(
                    lane.journal.views.unfinished or lane.journal.views.doubted for lane in life.context.lanes
                )
                for life in world.lives
            )

        for _ in range(6):
            if not world.run(_END_S, over):
                left = [
                    (lane.name, topic, partition, batch)
                    for life in world.lives
                    for lane in life.context.lanes
                    for topic, partition, batch in lane.journal.views.batches()
                ]
                raise Violation("future", f"no end in sight: {left[:3]} {len(world.lives)} lives")
            if not self._left_behind():
                return
            world.run(3.0)  # lanes that were left behind are looked for now and then
        raise Violation("lost", f"lanes that nobody delivers: {self._left_behind()}")

    def _left_behind(self) -> list[str]:
        files = self.world.disk.process()
        directory = SpoolDirectory.look(SPOOL, files=files)
        left = []
        for number in directory.lanes():
            if not directory.owners.is_owned(number):
                found = inspect(directory.lane_path(number), files=files)
                if found.waiting:
                    left.append(f"lane {number}: {found.waiting}")
        files.kill()
        return left

    def _close(self) -> None:
        files = self.world.disk.process()
        kept = find_rejected(SpoolDirectory.look(SPOOL, files=files))
        rejected: set[int] = set()
        for each in kept.files:
            raw = read_whole(files, each.kept.path)
            for entry in each.kept.entries:
                rejected.update(
                    self.book.numbers_in(bytes(raw[entry.at : entry.at + entry.header.size_bytes]))
                )
        files.kill()
        topic = self.home.topics[TOPIC]
        self.book.close({number: self._log(number) for number in topic.partitions}, rejected)

    def clear(self) -> None:
        """Nothing of it is needed any more, and nothing of it stays: processes that are dead close no files."""
        self.world.lives.clear()
        lanes.lock._lockable.clear()

    # -- events ------------------------------------------------------------------------------------------------------

    def _worker(self, a: int) -> Worker:
        return self.world.workers[a % len(self.world.workers)]

    def _partition(self, a: int) -> Any:
        topic = self.home.topics.get(TOPIC)
        return None if topic is None else topic.partitions[a % len(topic.partitions)]

    def _node(self, a: int) -> int:
        return self.world.cluster.brokers[a % len(self.world.cluster.brokers)]

    def do_send(self, a: int, b: int, c: int) -> None:
        """Records are accepted: up to eight batches of up to three records."""
        s, worker = self.settings, self._worker(a)
        if worker.life is None and b & 8:
            self.world.run(8.0, lambda: worker.life is not None)
        life = worker.life
        if life is None or worker.frozen_until > self.now:
            return
        rng = random.Random(c)
        for _ in range(1 + b % 8):
            partition = UNCHOSEN if s.late_topic else rng.randrange(s.partitions)
            keys: list[bytes | None] = []
            values: list[bytes] = []
            records: list[Record] = []
            for _ in range(rng.randrange(1, 4)):
                kind = rng.randrange(100)
                keyless = bool(s.poison) and kind < s.poison
                huge, stubborn = 30 <= kind < 30 + s.huge, 60 <= kind < 60 + s.stubborn
                record = self.book.accept(self.entries[life], partition, keyless or huge or stubborn)
                records.append(record)
                keys.append(None if keyless or not s.poison else b"key")
                values.append(b"%d%s%s" % (record.number, b"!" * stubborn, b"." * (1200 * huge)))
            age_ms = rng.choice((2 * DAY_MS, 7 * 3_600_000, DAY_MS)) if rng.randrange(100) < s.old else 0
            stamp = self.world.time.wall_ms() - age_ms
            data = codec.encode(keys, values, timestamps=stamp)
            with life.engine.ledger.lock:
                room = life.engine.ledger.room.takes(len(data))
            if not room:
                for record in records:
                    del self.book.records[record.number]
                return
            parcel = Parcel(TOPIC, partition, data, len(data), len(values), stamp)
            self.records_of[parcel] = records
            self.handed[life].append((parcel, records))
            parcel.watcher = lambda ended, life=life: self._ended(life, ended)
            life.engine.ledger.submit([parcel])

    def do_wait(self, a: int, _b: int, _c: int) -> None:
        """Time passes."""
        self.world.run(WAITS_S[a % len(WAITS_S)])

    def do_outage(self, a: int, _b: int, _c: int) -> None:
        """No broker can be reached."""
        self.world.set_outage(True)
        self.later((0.5, 3.0, 12.0)[a % 3], "outage", lambda: self.world.set_outage(False))

    def do_long(self, a: int, _b: int, _c: int) -> None:
        """Much time passes."""
        self.world.run((4.0, 8.0, 16.0)[a % 3])

    def do_darkness(self, a: int, _b: int, _c: int) -> None:
        """No broker can be reached, for long."""
        self.world.set_outage(True)
        self.later((20.0, 60.0)[a % 2], "outage", lambda: self.world.set_outage(False))

    def do_gone(self, a: int, b: int, _c: int) -> None:
        """A process is killed, and comes back when others may have its lane."""
        worker = self._worker(a)
        worker.up_at = self.now + (5.0, 12.0, 30.0)[b % 3]
        worker.frozen_until = 0.0
        if worker.life is not None:
            self.world.die(worker.life)

    def do_want(self, a: int, b: int, _c: int) -> None:
        """A program asks for a lane back that somebody adopted, and goes away again when it has it."""
        number = a % (self.settings.workers + 1)
        client = f"worker-{b % self.settings.workers}" if self.settings.own_names else "app"
        with contextlib.suppress(SpoolError):
            directory = SpoolDirectory.open(SPOOL, files=self.world.disk.process())
            directory.take_lane(number, client=client, wait=self.world.run).release(drained=False)

    def do_swallow(self, a: int, _b: int, _c: int) -> None:
        """Answers to Produce are lost, with their connections."""
        self.world.cluster.swallow = 1 + a % 3

    def do_late(self, a: int, _b: int, _c: int) -> None:
        """Requests arrive seconds after their connections ended."""
        self.world.cluster.late = 1 + a % 3

    def do_cut(self, a: int, _b: int, _c: int) -> None:
        """Connections end; requests that were on their way may arrive late."""
        self.world.cluster.cut(node=self._node(a))

    def do_stall(self, a: int, b: int, _c: int) -> None:
        """A broker moves nothing."""
        node = self._node(a)
        self.world.cluster.stall(True, node=node)
        self.later((1.0, 6.5)[b % 2], ("stall", node), lambda: self.world.cluster.stall(False, node=node))

    def do_deaf(self, a: int, b: int, c: int) -> None:
        """What is sent to a broker disappears, or what it answers."""
        node = self._node(a)
        drop = (self.world.cluster.drop_requests, self.world.cluster.drop_responses)[c % 2]
        drop(True, node=node)
        self.later((1.0, 6.5)[b % 2], ("deaf", node, c % 2), lambda: drop(False, node=node))

    def do_slow(self, a: int, b: int, c: int) -> None:
        """Answers of a broker come late."""
        node = self._node(a)
        self.world.cluster.delay((0.05, 1.0, 4.0)[c % 3], node=node)
        self.later((1.0, 6.5)[b % 2], ("slow", node), lambda: self.world.cluster.delay(0.0, node=node))

    def do_uplink(self, a: int, b: int, c: int) -> None:
        """The way to the brokers is slow, with a buffer on it or without."""
        self.world.cluster.slow_down((50, 300, 2000)[a % 3], buffer_bytes=(0, 1 << 20)[b % 2])
        self.later((3.0, 15.0)[c % 2], "uplink", self.world.cluster.slow_down)

    def do_throttle(self, a: int, b: int, _c: int) -> None:
        """Brokers ask for silence."""
        self.world.cluster.throttle((0.1, 1.5)[a % 2], times=1 + b % 4)

    def do_lead(self, a: int, b: int, _c: int) -> None:
        """Another in-sync replica leads."""
        found = self._partition(a)
        if found is None or found.leader < 0:
            return
        able = [node for node in sorted(found.in_sync) if self.home.serves(node)]
        if able:
            found.lead(able[b % len(able)])
            self.home.replicate()
            self.world.cluster._settle()

    def do_broker(self, a: int, b: int, _c: int) -> None:
        """A broker is killed; it comes back with one batch of each producer in its memory."""
        node = self._node(a)
        self.world.cluster.kill(node)
        self.later((0.5, 5.0, 10.0)[b % 3], ("broker", node), lambda: self.world.cluster.start(node))

    def do_pause(self, a: int, b: int, _c: int) -> None:
        """A broker hangs, and goes on."""
        node = self._node(a)
        self.world.cluster.pause(node)
        self.later((0.5, 5.0)[b % 2], ("pause", node), lambda: self.world.cluster.resume(node))

    def do_lag(self, a: int, b: int, c: int) -> None:
        """Followers take nothing: the high watermark stands still, and what is above it goes with the leader."""
        found = self._partition(a)
        if found is None or found.leader < 0:
            return
        followers = [node for node in found.replicas if node != found.leader]
        if followers:
            found.lagging.update(followers if b % 2 else followers[:1])

            def mend() -> None:
                found.lagging.clear()
                self.home.replicate()
                self.world.cluster._settle()

            self.later((0.2, 2.0, 6.0)[c % 3], ("lag", found), mend)  # a recreated partition is another one

    def do_code(self, a: int, b: int, c: int) -> None:
        """Leaders answer errors that say little, some of them after the append."""
        if c & 256:  # the first one is well
            self.world.cluster.refuses.append((0, False))
        for at in range(1 + b % 3):
            code = CODES[(a + at) % len(CODES)]
            self.world.cluster.refuses.append((code, code in _APPENDED_FIRST and bool((c >> at) % 2)))

    def do_strand(self, a: int, b: int, _c: int) -> None:
        """A partition has no leader for a while."""
        number = a % self.settings.partitions
        self.stranded.add(number)
        self.later((1.0, 20.0, 60.0)[b % 3], ("strand", number), lambda: self.stranded.discard(number))

    def do_foreign(self, a: int, b: int, _c: int) -> None:
        """Somebody else writes."""
        found = self._partition(a)
        if found is None or found.leader < 0:
            return
        count = 1 + b % 3
        data = codec.encode([b"other"] * count, [b"foreign"] * count, timestamps=self.world.time.wall_ms())
        found.log.append(bytes(data), found.leader_epoch, None)
        self.home.replicate()
        self.world.cluster._settle()

    def do_limit(self, a: int, b: int, _c: int) -> None:
        """Smaller batches than before are too large now."""
        if TOPIC not in self.home.topics or self.settings.huge:
            return
        self.world.cluster.alter_topic(TOPIC, {"max.message.bytes": (75, 90, 200)[a % 3]})
        self.later(
            (1.0, 6.0)[b % 2],
            "limit",
            lambda: self.world.cluster.alter_topic(TOPIC, {"max.message.bytes": None}),
        )

    def do_disk(self, a: int, b: int, c: int) -> None:
        """The disk fails a few times."""
        operation = _DISK_CALLS[a % len(_DISK_CALLS)] if c % 4 == 0 else ("writev", "sync_data")[a % 2]
        code = (errno.EIO, errno.ENOSPC)[b % 2]
        if b % 5 == 0:  # for a while
            self.world.disk.fail(operation, error=code, times=None)

            def mend() -> None:
                self.world.disk.heal()

            self.later((0.05, 0.5, 2.0)[c % 3], "disk", mend)
            return
        self.world.disk.fail(operation, call=c % 3, error=code, times=1 + b % 3, partial=(c % 11) / 10)

    def do_break(self, a: int, b: int, c: int) -> None:
        """The disk takes nothing for a long time, and keeps a copy of what it refuses, or a part of it."""
        code = (errno.EIO, errno.EROFS, errno.ENOSPC)[b % 3]
        for operation in (("sync_data",), ("writev",), ("sync_data", "create"), ("writev", "truncate"))[
            a % 4
        ]:
            self.world.disk.fail(operation, error=code, times=None, partial=(0.0, 0.5, 1.0)[c % 3])
        # A loss of power replaces the disk.
        self.later((3.0, 15.0, 60.0)[b % 5 % 3], "break", lambda: self.world.disk.heal())  # noqa: PLW0108

    def do_full(self, a: int, b: int, _c: int) -> None:
        """Others fill the disk."""
        disk = self.world.disk
        disk.capacity_bytes = disk.used_bytes + (0, 100, 700, 5000)[a % 4]

        def mend() -> None:
            self.world.disk.capacity_bytes = None

        self.later((1.0, 8.0)[b % 2], "full", mend)

    def do_kill(self, a: int, b: int, c: int) -> None:
        """A process is killed, or the machine loses power, and its programs come back after a while."""
        power = b % 3 == 0
        for worker in self.world.workers if power else [self._worker(a)]:
            worker.up_at = self.now + PAUSES_S[c % len(PAUSES_S)]
            worker.frozen_until = 0.0
            if worker.life is not None:
                self.world.die(worker.life)
        if power:
            # Faults and limits are the machine's.
            capacity = self.world.disk.capacity_bytes
            self.world.disk = self.world.disk.crash(seed=c)
            self.world.disk.capacity_bytes = capacity
            self.world.say("   the machine lost power")

    def do_crash_at(self, a: int, b: int, c: int) -> None:
        """Whoever uses the disk for the n-th time from now on is killed there."""
        operation = _DISK_CALLS[a % len(_DISK_CALLS)] if b % 2 else None
        self.world.disk.fail(operation, call=c % 12, kill=True)

    def do_close(self, a: int, b: int, _c: int) -> None:
        """A producer is closed in order, and opened again."""
        worker = self._worker(a)
        life = worker.life
        if life is None or worker.frozen_until > self.now:
            return
        self.note(life)
        try:
            life.engine.shut()
        except ProcessKilled:
            life.kill()
        life.files.kill()
        self.world.lives.remove(life)
        worker.life = None
        worker.up_at = self.now + PAUSES_S[b % len(PAUSES_S)]
        self.world.say(f"   worker {worker.number} is closed")

    def do_freeze(self, a: int, b: int, _c: int) -> None:
        """A process is stopped for a while."""
        worker = self._worker(a)
        worker.frozen_until = self.now + (0.7, 6.0, 20.0)[b % 3]

    def do_sleep(self, a: int, _b: int, _c: int) -> None:
        """The machine sleeps; brokers go on."""
        self._sleep((20.0, 7 * 3600.0, 30 * 3600.0)[a % 3])

    def _sleep(self, seconds: float) -> None:
        self.world.time.run_for(TIMEOUT_S)  # what is on its way arrives before
        self.world.time.sleep(seconds)

    def do_clock(self, a: int, _b: int, _c: int) -> None:
        """The wall clock is set."""
        self.world.time.set((-40.0, 40.0, 3600.0)[a % 3])

    def do_forget(self, _a: int, _b: int, _c: int) -> None:
        """Nobody writes for more than a day: brokers forget all producers."""
        self._sleep(30 * 3600.0)
        self.do_expire(0, 0, 0)

    def do_expire(self, _a: int, _b: int, _c: int) -> None:
        """Brokers look for producers that wrote nothing for a day, by the timestamps of their batches."""
        self.home.expire_producers()

    def do_spill(self, a: int, _b: int, _c: int) -> None:
        """Somebody waits until all is on disk."""
        life = self._worker(a).life
        if life is not None:
            life.inbox.append(SpillAsked())

    def do_create(self, _a: int, _b: int, _c: int) -> None:
        """The topic is made."""
        self._create()

    def do_deny(self, _a: int, b: int, c: int) -> None:
        """A right is missing."""
        operation = ("write", "write", "describe", "read")[b % 4]
        self.world.cluster.deny(operation, topic=TOPIC)
        seconds = (1.0, 10.0, 40.0)[c % 3]
        self.later(
            seconds, ("deny", operation), lambda: self.world.cluster.deny(operation, topic=TOPIC, on=False)
        )

    def do_missing(self, _a: int, _b: int, c: int) -> None:
        """Brokers that just came up know no topic."""
        topic = self.home.topics.pop(TOPIC, None)
        if topic is None:
            return
        self.world.cluster.cut()

        def mend() -> None:
            self.home.topics[TOPIC] = topic
            self.home.controlled()

        self.later((1.0, 10.0, 40.0)[c % 3], "missing", mend)

    def do_trim(self, a: int, b: int, _c: int) -> None:
        """Records are deleted from the front."""
        found = self._partition(a)
        if found is None or found.leader < 0:
            return
        log = found.log
        ends = [batch.end_offset for batch in log.batches if batch.end_offset <= log.high_watermark]
        if not ends:
            return
        self.book.trimmed.add(found.number)
        end = ends[b % len(ends)]
        for batch in log.batches:
            if batch.end_offset <= end:
                for number in self.book.numbers_in(bytes(batch.data)):
                    if number >= 0:
                        self.book.records[number].excused = True
        log.advance_start(end)
        self.home.replicate()

    # -- losses ------------------------------------------------------------------------------------------------------

    def _lose(self, found: Any) -> None:
        """What is acknowledged may go; what of it the spool has comes back."""
        self.book.lossy = True
        self.book.unclean.add(found.number)
        s = self.settings
        if not (s.heals and s.retains):
            for number in self._log(found.number, hidden=True):
                if number >= 0:
                    self.book.records[number].excused = True

    def do_unclean(self, a: int, b: int, _c: int) -> None:
        """A leader that missed the newest records."""
        found = self._partition(a)
        if found is None or found.leader < 0:
            return
        self._lose(found)
        ends = [0, *(batch.end_offset for batch in found.log.batches)]
        end = ends[-1 - b % len(ends)]
        for log in found.logs.values():
            log.truncate(min(end, log.end_offset))
            log.high_watermark = min(log.high_watermark, end)
        found.lead(found.leader)
        self.home.replicate()
        self.world.cluster.cut()

    def do_wipe(self, a: int, _b: int, _c: int) -> None:
        """A partition's disk is lost."""
        found = self._partition(a)
        if found is None or found.leader < 0:
            return
        self._lose(found)
        self.home.wipe(TOPIC, found.number)
        found.lead(found.leader)
        self.home.replicate()
        self.world.cluster.cut()

    def do_recreate(self, _a: int, _b: int, c: int) -> None:
        """The topic is deleted, and created again after a moment."""
        if TOPIC not in self.home.topics:
            return
        self._delete()
        self.world.cluster.cut()
        if c % 3:
            self.later((0.0, 1.0, 8.0)[c % 3], "recreate", self._create)
        else:
            self._create()

    def _delete(self) -> None:
        """What the topic has goes with it; what of that the spool has comes back if the producer may do that."""
        s = self.settings
        for number in self.home.topics[TOPIC].partitions:
            self.book.recreated.add(number)
            for record in self._log(number, hidden=True):
                if record >= 0:
                    self.book.displaced.add(record)
                    self.book.records[record].excused |= not (s.heals_recreated and s.retains)
        self._displace()
        self.world.cluster.delete_topic(TOPIC)

    def _displace(self) -> None:
        """Brokers without topic ids append what was on its way to a former topic to the one of now."""
        if self.book.recreated and not self.book.topic_ids:
            for data in self.world.cluster.unheard():
                self.book.displaced.update(self.book.numbers_in(data))

    def do_replace(self, a: int, b: int, c: int) -> None:
        """Leaders change, and the topic is deleted and created again, while connections go on, answers are on their way, and
        some brokers still name the former topic.
        """
        if TOPIC not in self.home.topics:
            return
        rng, cluster = random.Random(f"{a} {b} {c}"), self.world.cluster
        if rng.random() < 0.8:
            self.do_send(a, b, c)
            self.world.run(8.0, cluster.is_sending)
            self.world.run(rng.choice((0.0, 0.0, 0.0015)))
        for node in rng.sample(cluster.brokers, rng.choice((0, 1, 1, 2))):
            cluster.held[node] = self.now + rng.choice((0.1, 0.5, 3.0))
        for number in range(self.settings.partitions):
            for _ in range(rng.choice((0, 1, 3, 8))):
                self.do_lead(number, rng.randrange(100), 0)
        self.world.run(rng.choice((0.0, 0.0015, 0.005)))
        for node in cluster.brokers:
            if rng.random() < 0.25:
                cluster.keep_former(node, TOPIC)
                self.book.misled = True
                seconds = rng.choice((0.01, 0.3, 2.0, 15.0))
                self.later(seconds, ("former", node), lambda node=node: cluster.former.pop(node, None))
        self._delete()
        if rng.random() < 0.3:
            cluster.cut()
        seconds = rng.choice((0.0, 0.0, 0.01, 1.0, 8.0))
        if seconds:
            self.later(seconds, "recreate", self._create)
        else:
            self._create()
        if rng.random() < 0.5:  # as is done now and then
            for life in self.world.lives:
                life.context.refresh_topics([TOPIC])

    # -- another cluster ---------------------------------------------------------------------------------------------

    def do_stranger(self, _a: int, b: int, _c: int) -> None:
        """For a while another cluster answers at the same addresses, while records wait for ours."""
        handler = self.world.cluster._handler
        lives = [life for life in self.world.lives if life.context.own_cluster.cluster_id is not None]
        waits = any(lane.journal.views.unfinished for life in lives for lane in life.context.lanes)
        if handler.centre is not self.home or not waits or len(lives) != len(self.world.workers):
            return
        handler.reset("another-cluster", self.world.cluster.now_ms())
        handler.centre.create_topic(TOPIC, self.settings.partitions)
        self.world.cluster.cut()
        self.world.run((0.5, 4.0, 9.0)[b % 3])
        self._go_home()

    def _go_home(self) -> None:
        handler = self.world.cluster._handler
        if handler.centre is self.home:
            return
        strays = [
            number
            for partition in handler.centre.topics[TOPIC].partitions.values()
            for batch in partition.log.batches
            for number in self.book.numbers_in(bytes(batch.data))
        ]
        handler.centre = self.home
        handler.groups, handler.transactions = self.home_parts
        self.world.cluster.cut()
        if strays:
            raise Violation("stranger", f"{strays} went to another cluster")
