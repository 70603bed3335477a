"""Seeded histories of the journal alone: one incarnation after the other, on a disk and a cluster of a few lines each.

What the shell does with `Ready` is done here as the engine does it, in the same order; answers are mostly those that the
cluster's logs give, and sometimes any that a broker may give. Nothing in here judges whether the journal is right: that
is what tests/simulation is for. It makes the journal decide, as often and as variedly as possible.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kafkasafe import journal as j
from kafkasafe import marks as m
from kafkasafe import units as u
from kafkasafe.history.identity import BatchId, IdentityVerdict, Judgement, ProducerView, add_sequence
from kafkasafe.history.loss import Cause, Loss

from .recorder import Tape, recorded

START_MS = 1_700_000_000_000
HOUR_S = 3600.0
TOPIC, LATE = "t", "late"
PARTITIONS = 3
BOOT = bytes(range(16))
CODES = (
    6,
    7,
    19,
    20,
    5,
    56,
    -1,
    2,
    3,
    29,
    17,
    89,
    45,
    45,
    46,
    47,
    59,
    59,
    90,
    10,
    10,
    18,
    32,
    87,
    87,
    22,
    29,
)
ASKED = (0, 0, 0, 3, 5, 6, 17, 29, 58, 75)
UNIT_CODES = (
    None,
    None,
    14,
    15,
    16,
    51,
    3,
    17,
    29,
    47,
    48,
    49,
    90,
    53,
    10,
    18,
    22,
    25,
    82,
    12,
    24,
    6,
    7,
    87,
    -1,
)
KINDS: dict[str, dict[str, int]] = {
    "calm": {},
    "faults": {"lose": 4, "refuse": 3, "elect": 2, "crash": 1},
    "refusals": {"refuse": 8, "asides": 3, "absence": 2, "deny": 2, "learn": 2, "pass_days": 2},
    "losses": {"unclean": 5, "elect": 3, "recreate": 1, "suspect": 2, "crash": 1, "lose": 1, "ask": 6, "answer": 6},
    "restored": {"unclean": 5, "suspect": 1, "crash": 3, "segment": 2, "lose": 1, "ask": 6, "answer": 6, "refuse": 1},
    "crashes": {"crash": 4, "lose": 3, "damage": 1, "close": 2},
    "units": {"unit": 6, "unit_answer": 24, "learn": 1, "crash": 1, "lose": 1, "unclean": 1, "refuse": 1},
    "spool": {"pack": 4, "segment": 4, "copy": 4, "spill": 2, "crash": 2, "lose": 1, "refuse": 1},
    "order": {"hold": 3, "debts": 3, "halt": 2, "crash": 2, "close": 2},
    "moves": {"bind": 3, "forget": 3, "recreate": 2, "crash": 2},
    "old": {"pass_hours": 4, "lose": 4, "slept": 2, "clock": 2, "crash": 1},
    "everything": dict.fromkeys(
        ("lose", "refuse", "elect", "crash", "asides", "absence", "deny", "learn", "pass_days", "unclean", "recreate",
         "suspect", "damage", "close", "unit", "pack", "segment", "copy", "spill", "hold", "debts", "halt", "bind", "forget",
         "pass_hours", "slept", "clock"), 1) | {"unit_answer": 3},
}  # fmt: skip
LATER: dict[str, dict[str, int]] = {
    "slow": {"time_out": 8, "pass_minute": 3, "lose": 1, "ask": 10},
    "units refused": {"unit": 8, "unit_answer": 24, "unit_trouble": 10, "learn": 2, "deny": 1, "pass_days": 1, "bind": 1},
    "units ended": {"unit": 8, "unit_answer": 16, "unit_trouble": 4, "learn": 2, "crash": 4, "damage": 1, "close": 1,
                    "recreate": 1, "forget": 1, "segment": 3},
}  # fmt: skip
"""Kinds of the seeds from `FIRST_LATER` on, so that the seeds before it keep their kinds, and their tapes."""
FIRST_LATER = 1000
ALWAYS = {"send": 12, "answer": 16, "ask": 10, "turn": 6, "wait": 8, "write": 4, "unit_answer": 1}


@dataclass
class Log:
    """A partition in the cluster: what is in it, as (base offset, id)."""

    batches: list[tuple[int, BatchId]] = field(default_factory=list)
    end: int = 0
    epoch: int = 0

    def append(self, identity: BatchId) -> int:
        found = next((at for at, other in self.batches if other == identity), -1)
        if found >= 0:
            return found
        self.batches.append((self.end, identity))
        self.end += identity.count
        return self.end - identity.count

    def find(self, identity: BatchId | None) -> int:
        return next((at for at, other in self.batches if other == identity), -1)

    def cut(self, end: int) -> None:
        self.batches = [(at, each) for at, each in self.batches if at + each.count <= end]
        self.end = max((at + each.count for at, each in self.batches), default=min(end, self.end))
        self.epoch += 1


class History:
    """One seed.

    Attributes:
        lines: The tapes of its journals, one behind the other.
        crashed: A journal raised an error, which ended the history.
    """

    def __init__(self, seed: int, *, steps: int = 32) -> None:
        self.rng = rng = random.Random(f"tape {seed}")
        kinds = KINDS if seed < FIRST_LATER else LATER
        self.kind = list(kinds)[seed % len(kinds)]
        self.weights = {**ALWAYS}
        for name, weight in kinds[self.kind].items():
            self.weights[name] = self.weights.get(name, 0) + weight
        self.steps = steps * 2 if "unclean" in kinds[self.kind] else steps
        self.unit_failures = 0.12
        self.lines: list[str] = []
        self.crashed = ""
        self.settings: dict[str, Any] = {
            "durable_first": rng.random() < 0.8,
            "gather_bytes": rng.choice([0, 0, 4000]),
            "heal": rng.random() < 0.85,
            "heal_recreated": rng.random() < 0.3,
            "aside_batches": rng.choice([1, 2, 256]),
            "blocked_timeout_s": rng.choice([None, 60.0, 3600.0, 604_800.0]),
        }
        self.now, self.now_ms = 1000.0, START_MS
        self.logs: dict[tuple[str, int], Log] = {}
        self.topic_ids = {TOPIC: rng.randbytes(16), LATE: rng.randbytes(16)}
        self.cluster = "A"
        self.counts = itertools.count(1)
        self.disk: list[tuple[str, int, tuple[Any, ...]]] = []
        self.position = 0
        self.segments = [0]
        self.begin()

    # -- incarnations ------------------------------------------------------------------------------------------------

    def begin(self, clock: j.Moment | None = None) -> None:
        """A process opens the lane."""
        self.tape = Tape()
        self.tape.lines = self.lines
        self.journal = journal = recorded(j.Journal)(
            tape=self.tape, newest_reading=lambda: self.now_ms - START_MS, **self.settings
        )
        self.unwritten: list[j.Persist] = []
        self.sent: list[tuple[j.Batch, BatchId | None]] = []
        self.asks: list[Any] = []
        self.waits: list[j.Wait] = []
        self.more: list[int] = []
        self.undecidable: list[j.Batch] = []
        self.actions: list[Any] = []
        self.alive: list[j.Batch] = []
        journal.units.name("lane")
        packs = self.rng.random() < 0.3
        for what, position, fields in self.disk:
            if what == "marks":
                if packs:
                    journal.recovery.pack_recovered(itertools.count(next(self.counts) * 1000))
                journal.recovery.recover_marks(position, fields[0])
            elif what == "batch":
                destination, count, size, stamp, identity = fields
                journal.recovery.recover_batch(
                    position,
                    destination,
                    count=count,
                    size_bytes=size,
                    max_timestamp=stamp,
                    identity=identity,
                )
            elif what == "lost":
                journal.recovery.recover_lost(position, *fields)
            else:
                journal.recovery.recover_torn(*fields)
        if self.disk:
            journal.recovery.recovered_log()
        journal.released(self.segments[0])
        journal.recovery.recovered(self.now, clock)

    def crash(self) -> None:
        """The process is killed; what it had sent may arrive all the same."""
        for batch, identity in self.sent:
            if identity is not None and self.rng.random() < 0.5:
                self.log(batch.destination).append(identity)
        if self.unwritten and self.rng.random() < 0.5:
            self.write()
        self.now += self.rng.choice([0.1, 40.0])
        self.begin(self.rng.choice([None, j.Moment(self.now_ms, BOOT, int(self.now * 1000))]))

    def close(self) -> None:
        """It ends in order."""
        while self.unwritten:
            self.write()
        clock = j.Moment(self.now_ms, BOOT, int(self.now * 1000))
        quiet = self.journal.quiet(self.now, clock)
        if quiet is not None:
            self.store([quiet], [])
        self.now += self.rng.choice([0.1, 40.0])
        self.begin(j.Moment(self.now_ms + 1000, BOOT, int(self.now * 1000) + 1000))

    def damage(self) -> None:
        """A group of the log is damaged, or one batch in it."""
        if len(self.disk) < 4:
            return
        at = self.rng.randrange(2, len(self.disk))
        what, position, fields = self.disk[at]
        if what == "batch":
            self.disk[at] = (
                ("lost", position, fields[:1]) if self.rng.random() < 0.7 else ("torn", position, fields[:1])
            )
        elif what == "marks" and not any(isinstance(mark, m.Destination) for mark in fields[0]):
            end = next(
                (k for k in range(at + 1, len(self.disk)) if self.disk[k][0] == "marks"), len(self.disk)
            )
            self.disk[at:end] = [("lost", position, (0,))]
        self.crash()

    # -- the disk ----------------------------------------------------------------------------------------------------

    def store(self, marks: list[Any], batches: list[j.Batch]) -> list[int]:
        self.disk.append(("marks", self.position, (list(marks),)))
        self.position += 1 + len(marks)
        positions = []
        for batch in batches:
            positions.append(self.position)
            fields = (batch.destination, batch.count, batch.size_bytes, batch.max_timestamp, batch.identity)
            self.disk.append(("batch", self.position, fields))
            self.position += batch.count
        return positions

    def write(self) -> None:
        if not self.unwritten:
            return
        persist = self.unwritten.pop(0)
        persist.leave_out_void()
        runs, positions, marks = persist.runs, [], persist.marks
        if not runs or runs[0][0] is not None:
            positions += self.store(marks, [])
            marks = []
        for unit, batches in runs:
            positions += self.store(marks if unit is None else unit.marks, batches)
            marks = [] if unit is None else marks
        self.journal.persisted(persist, positions, self.position)

    def segment(self) -> None:
        """A new segment begins; what is in front of the release position goes."""
        if self.unwritten:
            return
        self.segments.append(self.position)
        self.store(self.journal.snapshot(), [])
        ends = [at for at in self.segments[1:] if at <= self.journal.views.release_position]
        if not ends:
            return
        marks = self.journal.tell_newest(ends[-1])
        if marks:
            self.store(marks, [])
        self.journal.delivered_before(ends[-1])
        self.segments = [at for at in self.segments if at >= ends[-1]]
        self.disk = [entry for entry in self.disk if entry[1] >= ends[-1]]
        self.journal.released(ends[-1])

    def copy(self) -> None:
        """What holds the front is copied forward."""
        if self.unwritten:
            return
        if self.rng.random() < 0.2:
            batches = self.journal.to_rescue(0, self.position)
        else:
            batches = self.journal.to_move(
                self.rng.randrange(self.position + 1), self.rng.choice([1, 500, 1 << 20])
            )
        if batches:
            positions = self.store(self.journal.move_marks(batches), batches)
            self.journal.moved(batches, positions, self.position)

    def pack(self) -> None:
        """A long backlog, and what of it is far from its turn is packed."""
        for _ in range(self.rng.choice([0, 6, 14])):
            self.send()
        self.turn()
        while self.unwritten:
            self.write()
        for number in sorted(self.journal.views.destinations):
            batches = list(itertools.islice(self.journal.packable(number), self.rng.choice([1, 5, 50])))
            if batches:
                self.journal.pack(number, [(next(self.counts), self.now) for _ in batches])

    def spill(self) -> None:
        waiting = [batch for batch in self.alive if not batch.durable]
        if waiting:
            self.journal.spill(self.rng.sample(waiting, min(2, len(waiting))))

    # -- what is to be done ------------------------------------------------------------------------------------------

    def turn(self) -> None:
        for _ in range(30):
            if not self.one_turn():
                return

    def one_turn(self) -> bool:
        rng, journal = self.rng, self.journal
        ready = journal.ready(self.now, self.now_ms)
        busy = bool(
            ready.persist or ready.sends or ready.resolved or ready.divides or ready.asides or ready.units
        )
        self.undecidable += [notice.batch for notice in ready.notices if isinstance(notice, j.Undecidable)]
        if ready.persist:
            self.unwritten.append(ready.persist)
        for divide in ready.divides:
            if rng.random() < 0.05:
                journal.damaged(divide.batch, "damaged")
            else:
                self.divide(divide)
        for run in ready.gathers.values():
            if rng.random() < 0.1:
                journal.keep_apart(run[0].destination)
            elif len(run) > 1:
                journal.gathered(run, sum(batch.size_bytes for batch in run))
        for aside in ready.asides:
            self.aside(aside)
        self.sent += [(batch, batch.identity) for batch in ready.sends]
        self.asks += [*ready.asks, *ready.surveys, *ready.checks]
        self.waits += ready.waits
        self.actions += ready.units
        done = {each.batch.handle for each in ready.resolved}
        self.alive = [batch for batch in self.alive if batch.handle not in done]
        if ready.wants_producer_id and rng.random() < 0.7:
            journal.granted(next(self.counts), rng.choice([0, 0, 0, 2**15 - 3]))
            busy = True
        if rng.random() < 0.9:
            while self.unwritten:
                self.write()
        return busy and not self.unwritten

    def divide(self, divide: j.Divide) -> None:
        batch = divide.batch
        counts = [batch.count] if batch.count == 1 else [batch.count // 2, batch.count - batch.count // 2]
        topic, _ = self.journal.views.address(batch.destination)
        children = []
        for at, count in enumerate(counts):
            number = batch.destination
            if not divide.refused:
                number = self.journal.destination(topic, (at + batch.handle) % PARTITIONS)
            doomed = divide.refused and batch.fault.code == 87 and at == 0
            children.append((number, count, 40 * count, batch.max_timestamp, doomed))
        self.alive += self.journal.replaced(batch, children)

    def aside(self, aside: j.Aside) -> None:
        kept = len(aside.batches) if self.rng.random() < 0.8 else self.rng.randrange(len(aside.batches) + 1)
        if self.journal.set_aside(aside, kept, "no room"):
            if self.rng.random() < 0.6:
                self.journal.next_aside(aside.destination)
            else:
                self.more.append(aside.destination)

    def asides(self) -> None:
        while self.more:
            self.journal.next_aside(self.more.pop())

    # -- callers -----------------------------------------------------------------------------------------------------

    def send(self) -> None:
        rng = self.rng
        late = rng.random() < 0.1
        number = self.journal.destination(LATE, j.UNCHOSEN) if late else self.destination()
        stamp = self.now_ms - int(
            rng.choice([0, 0, 0, 1, 7, 30]) * HOUR_S * 1000 if self.kind == "old" else 0
        )
        for _ in range(rng.choice([1, 1, 2, 3, 6])):
            count = rng.randrange(1, 5)
            given = ((0, 1, 0),) if late and rng.random() < 0.2 else None
            batch = self.journal.seal(
                number, count=count, size_bytes=40 * count + 60, max_timestamp=stamp, given=given
            )
            self.alive.append(batch)

    def unit(self) -> None:
        """An atomic batch."""
        rng, journal = self.rng, self.journal
        offsets, readings = (), {}
        if rng.random() < 0.4:
            group = rng.choice(["g1", "g2"])
            position = m.Position("in", rng.randrange(2), next(self.counts), -1, "")
            offsets = (m.GroupOffsets(group, "", -1, None, (position,)),)
            readings = {(group, "in", position.partition): u.Reading(self.now_ms - START_MS, -1)}
        name = rng.choice(["", "", "", "mine"])
        unit = journal.units.seal(next(self.counts).to_bytes(16), name, offsets, readings)
        for _ in range(rng.randrange(0 if offsets else 1, 4)):
            number = journal.destination(LATE, j.UNCHOSEN) if rng.random() < 0.1 else self.destination()
            count = rng.randrange(1, 4)
            journal.seal(number, count=count, size_bytes=50 * count, max_timestamp=self.now_ms, unit=unit)
        journal.close_unit(unit)

    # -- answers -----------------------------------------------------------------------------------------------------

    def answer(self) -> None:
        """Of a request."""
        if not self.sent:
            return
        rng = self.rng
        at = rng.randrange(len(self.sent)) if rng.random() < 0.3 else 0
        batch, identity = self.sent.pop(at)
        log = self.log(batch.destination)
        draw = rng.random() * (1 + self.weights.get("lose", 0) / 8 + self.weights.get("refuse", 0) / 8)
        if draw < 0.93 and identity is not None:
            offset = log.append(identity)
            offset = -1 if rng.random() < 0.03 else offset
            self.journal.acked(batch, offset, leader_epoch=log.epoch, now=self.now, now_ms=self.now_ms)
        elif draw < 0.95:
            self.journal.damaged(batch, "damaged")
        elif rng.random() * (
            self.weights.get("lose", 0) + self.weights.get("refuse", 0) + 1
        ) < self.weights.get("lose", 1):
            self.lose(batch, identity)
        else:
            self.refuse(batch, identity)

    def lose(self, batch: j.Batch | None = None, identity: BatchId | None = None) -> None:
        if batch is None:
            if not self.sent:
                return
            batch, identity = self.sent.pop(0)
        rng = self.rng
        sent = rng.random() < 0.8
        if sent and identity is not None and rng.random() < 0.5:
            self.log(batch.destination).append(identity)
        code = rng.choice([0, 0, 3, 17, 29])
        self.journal.lost(
            batch,
            sent=sent,
            code=code,
            message="no answer",
            now=self.now,
            timed_out=sent and rng.random() < 0.4,
        )

    def time_out(self) -> None:
        """The link is slow for a while: requests with the first batch of a partition time out, one after the other."""
        for _ in range(self.rng.randrange(1, 5)):
            at = next((at for at, (batch, _) in enumerate(self.sent) if batch.count > 1), -1)
            if at < 0:
                self.send()
                self.turn()
                continue
            batch, identity = self.sent.pop(at)
            if identity is not None and self.rng.random() < 0.1:
                self.log(batch.destination).append(identity)
            self.journal.lost(batch, sent=True, code=0, message="timed out", now=self.now, timed_out=True)
            self.turn()
            for _ in range(2):
                self.pass_minute()
                self.wait()
                self.turn()
                self.ask()
                self.turn()

    def refuse(self, batch: j.Batch | None = None, identity: BatchId | None = None) -> None:
        if batch is None:
            if not self.sent:
                return
            batch, identity = self.sent.pop(0)
        rng, code = self.rng, self.rng.choice(CODES)
        if code in {6, 7, 20, -1} and identity is not None and rng.random() < 0.4:
            self.log(batch.destination).append(identity)
        bad = ((rng.randrange(batch.count), "bad"),) if code == 87 and rng.random() < 0.5 else ()
        start = rng.choice([-1, 0, 0, 5]) if code == 59 else -1
        self.journal.refused(
            batch, code, "refused", bad_records=bad, log_start_offset=start, now=self.now, now_ms=self.now_ms
        )

    def ask(self) -> None:
        """Of a question."""
        if not self.asks:
            return
        ask = self.asks.pop(self.rng.randrange(len(self.asks)))
        if isinstance(ask, j.SurveyAsk):
            self.survey(ask)
        elif isinstance(ask, j.EpochCheck):
            self.check(ask)
        elif self.rng.random() < 0.12:
            self.journal.ask_failed(ask.destination, "no answer", code=self.rng.choice(ASKED), now=self.now)
        elif not ask.doubt:
            log = self.log(ask.destination)
            self.journal.baseline(ask.destination, log.end, self.topic_id(ask.destination))
        elif ask.confirm:
            log, identity = self.log(ask.destination), ask.doubt[0]
            there = log.find(identity) >= 0 or self.rng.random() < 0.05
            last = add_sequence(identity.base_sequence, identity.count - 1)
            view = ProducerView(identity.producer_epoch, last, self.now_ms) if there else None
            self.journal.confirmed(ask.destination, view)
        else:
            self.judge(ask)
        if self.rng.random() < 0.05:
            self.journal.baseline(ask.destination, 0, self.topic_id(ask.destination))  # nobody asked

    def judge(self, ask: j.OutcomeAsk) -> None:
        rng, log = self.rng, self.log(ask.destination)
        places = [log.find(identity) for identity in ask.doubt]
        present = next((at for at, place in enumerate(places) if place < 0), len(places))
        verdict = rng.choices(
            [IdentityVerdict.DECIDED, IdentityVerdict.GAP, IdentityVerdict.UNDECIDABLE], [10, 2, 1]
        )[0]
        offsets = {at: places[at] for at in range(present)} if rng.random() < 0.7 else {}
        known = self.journal.views.last_acked_offset(*self.journal.views.address(ask.destination))
        shrunk = log.end if log.end <= known and rng.random() < 0.8 else -1
        judgement = Judgement(
            verdict, present, "seen", offsets, missing=rng.choice([0, 3]) if verdict is IdentityVerdict.GAP else 0,
            of_state=rng.random() < 0.5,
        )  # fmt: skip
        self.journal.judged(
            ask.destination, judgement, stable=rng.random() < 0.5, shrunk_to=shrunk, read_from=max(0, ask.from_offset),
            leader_epoch=log.epoch, now=self.now,
        )  # fmt: skip

    def survey(self, ask: j.SurveyAsk) -> None:
        rng, log = self.rng, self.log(ask.destination)
        if rng.random() < 0.15:
            self.journal.survey_failed(ask.destination, "no answer", code=rng.choice(ASKED))
            return
        lost, moved = [], {}
        for index, batch in enumerate(ask.acked):
            at = log.find(batch.identity)
            if at < 0:
                lost.append(index)
            elif at != batch.base_offset:
                moved[index] = at
        first = min((ask.acked[at].base_offset for at in lost), default=-1)
        last = max((ask.acked[at].next_offset - 1 for at in lost), default=-1)
        records = sum(ask.acked[at].identity.count for at in lost)
        loss = Loss(
            tuple(lost), first, last, records, moved, oldest_known=bool(lost) and lost[0] == 0,
            ours_until=rng.choice([-1, log.end]), released_there=rng.random() < 0.3,
        )  # fmt: skip
        self.journal.surveyed(
            ask.destination, loss, log.end, epoch_end_offset=rng.choice([-1, log.end]),
            topic_id=rng.choice([m.NO_TOPIC_ID, self.topic_id(ask.destination)]), same_topic=rng.random() < 0.9,
            leader_epoch=rng.choice([-1, log.epoch]),
        )  # fmt: skip

    def check(self, check: j.EpochCheck) -> None:
        log, draw = self.log(check.destination), self.rng.random()
        if draw < 0.15:
            self.journal.check_failed(check, code=self.rng.choice(ASKED))
            self.asks.append(check)
        elif log.end <= check.last_acked_offset or draw < 0.25:
            self.journal.suspect(
                check.destination, Cause.LOG_END, "it ends before", from_offset=log.end, check=check
            )
        else:
            self.journal.checked(check)

    def unit_answer(self) -> None:
        """Of what was asked for units."""
        for _ in range(self.rng.randrange(1, 6)):
            if self.actions:
                self.answer_unit()

    def answer_unit(self) -> None:
        rng, units = self.rng, self.journal.units
        action = self.actions.pop(rng.randrange(len(self.actions)) if rng.random() < 0.3 else 0)
        if isinstance(action, u.RetryLater):
            units.again(action.action)
            return
        if isinstance(action, u.Refuse):
            units.put_aside(action.unit, kept=rng.random() < 0.8, reason="no room")
            return
        if rng.random() < self.unit_failures:
            code = rng.choice(UNIT_CODES)
            lasting = False
            if code in {3, 17, 29} and not isinstance(action, u.InitProducerId):
                for number in action.transaction.destinations:
                    lasting = self.journal.deny_unit(number, code, "refused", self.now) or lasting
            if isinstance(action, u.InitProducerId) and code is None:
                units.unanswered(action, ended=rng.random() < 0.5)
            units.failed(
                action, code, "failed", sent=rng.random() < 0.8, lasting=lasting or rng.random() < 0.05
            )
            return
        match action:
            case u.InitProducerId():
                self.fence(action)
            case u.AddPartitions():
                units.joined(action)
            case u.Produce(_, _, transaction, batch, sequence):
                log, grant = self.log(batch.destination), transaction.grant
                at = (
                    log.append(BatchId(grant.producer_id, grant.epoch, sequence, batch.count))
                    if grant
                    else -1
                )
                units.appended(action, at, log.epoch)
            case u.CommitOffsets():
                units.noted(action)
            case u.EndTxn(_, _, transaction):
                grant = transaction.grant
                after = (
                    None
                    if grant is None
                    else u.Grant(grant.producer_id, grant.epoch + (grant.protocol > 1), grant.protocol)
                )
                units.ended(action, rng.choice([after, after, None]))
            case u.DescribeTxn():
                units.described(action, rng.choice([True, False, None]))
            case u.FindOutcome():
                units.outcome_found(action, committed=rng.choice([True, False, None]))

    def unit_trouble(self) -> None:
        """Most of what is asked for units fails."""
        self.unit_failures = 0.6
        self.unit_answer()
        self.unit_failures = 0.12

    def fence(self, action: u.InitProducerId) -> None:
        units, kept = self.journal.units, action.keep
        if kept is None:
            units.fenced(action, u.Grant(next(self.counts), 0, self.rng.choice([1, 2])))
            return
        code = self.rng.choice([0, 0, 48, 47, 90])
        goes_on = units.aborted(action, code)
        if goes_on:
            units.fenced(action, u.Grant(kept.producer_id, kept.epoch + 1, kept.protocol))
        elif goes_on is False:
            units.failed(action, code, "refused")

    # -- time and the cluster ----------------------------------------------------------------------------------------

    def wait(self) -> None:
        """A pause is over."""
        self.now += 0.5
        self.now_ms += 500
        if self.waits:
            wait = self.waits.pop(self.rng.randrange(len(self.waits)))
            if self.rng.random() < 0.9:
                self.now += wait.at_least_s
            self.journal.retry(wait.destination)

    def pass_minute(self) -> None:
        self.now += 60.0
        self.now_ms += 60_000

    def pass_hours(self) -> None:
        self.now += 3 * HOUR_S
        self.now_ms += int(3 * HOUR_S * 1000)

    def pass_days(self) -> None:
        seconds = self.rng.choice([10.0, 100.0, 200_000.0])
        self.now += seconds
        self.now_ms += int(seconds * 1000)

    def slept(self) -> None:
        self.now += 50.0
        self.journal.slept(50.0, self.now)

    def clock(self) -> None:
        if self.rng.random() < 0.5:
            self.journal.broker_clock(self.now_ms + self.rng.choice([-5, 4, 7]) * 3_600_000, self.now_ms)
        else:
            self.journal.clock_at_least(self.now_ms + 3_600_000)

    def elect(self) -> None:
        self.log(self.destination()).epoch += 1

    def unclean(self) -> None:
        log = self.log(self.destination())
        log.cut(self.rng.choice([0, *(at for at, _ in log.batches[-3:])]))

    def recreate(self) -> None:
        """The topic is deleted and created again."""
        self.topic_ids[TOPIC] = self.rng.randbytes(16)
        for address, log in self.logs.items():
            if address[0] == TOPIC:
                log.cut(0)
                log.end, log.epoch = 0, 0
        if self.rng.random() < 0.7:
            self.learn()
        if self.rng.random() < 0.5:
            self.journal.recreated(self.destination(), "another topic id")

    def suspect(self) -> None:
        number = self.destination()
        if number in self.journal.views.acknowledged():
            self.journal.suspect(number, Cause.LOG_END, "a look", from_offset=self.rng.choice([-1, 0, 3]))

    def learn(self) -> None:
        name = self.rng.choice([TOPIC, LATE])
        self.journal.learn_topic(name, self.topic_ids[name], PARTITIONS)

    def deny(self) -> None:
        if self.journal.views.waiting(LATE):
            self.journal.deny_unchosen(LATE, self.rng.choice([3, 17, 29]), "refused", self.now)

    def absence(self) -> None:
        number = self.destination()
        if self.rng.random() < 0.5:
            self.journal.absent(number, "it has fewer partitions")
        else:
            self.journal.present(number)

    def bind(self) -> None:
        if self.rng.random() < 0.5:
            self.cluster = "B" if self.cluster == "A" else "A"
        if self.journal.bind(self.cluster, assumed=self.rng.choice([None, "A"])):
            self.logs = {}

    def forget(self) -> None:
        self.journal.forget(self.rng.choice([TOPIC, LATE]))

    def decide(self) -> None:
        """The user decides what cannot be known."""
        if self.undecidable:
            batch = self.undecidable.pop()
            if batch.state is j.BatchState.UNDECIDABLE:
                self.journal.decide(batch, resend=self.rng.random() < 0.5)

    # -- other incarnations ------------------------------------------------------------------------------------------

    def hold(self) -> None:
        position = self.rng.randrange(self.position + 1)
        choices: list[dict[Any, int]] = [{}, {(TOPIC, 0): position}, {None: position}]
        self.journal.hold_back(self.rng.choice(choices))

    def halt(self) -> None:
        self.journal.halt(halted=self.rng.random() < 0.5)

    def debts(self) -> None:
        rng, journal = self.rng, self.journal
        match rng.randrange(4):
            case 0:
                debt = m.Debt(f"lane-{rng.randrange(3)}", rng.randbytes(16), rng.randrange(100))
                journal.begin_after(self.position, (debt,))
            case 1 if journal.views.afters:
                journal.paid(journal.views.afters[0].debts[0])
            case 2:
                journal.disown(m.Resent("lane-0", f"{rng.randrange(3)}.rejected"))
            case _ if journal.views.resent:
                journal.retired(journal.views.resent[0])

    # -- all of it ---------------------------------------------------------------------------------------------------

    def destination(self) -> int:
        return self.journal.destination(TOPIC, self.rng.randrange(PARTITIONS))

    def log(self, destination: int) -> Log:
        return self.logs.setdefault(self.journal.views.address(destination), Log())

    def topic_id(self, destination: int) -> bytes:
        return self.topic_ids[self.journal.views.address(destination)[0]]

    def play(self) -> None:
        names, weights = list(self.weights), list(self.weights.values())
        do: dict[str, Callable[[], None]] = {name: getattr(self, name) for name in names}
        try:
            for step in range(self.steps):
                name = self.rng.choices(names, weights)[0]
                self.lines.append(f"* {step} {name}")
                do[name]()
                if self.undecidable and self.rng.random() < 0.5:
                    self.decide()
                self.turn()
        except Exception as error:
            self.crashed = f"{type(error).__name__}: {error}"
            self.lines.append(f"! {self.crashed}")


def play(seed: int, **options: Any) -> History:
    """The history of a seed."""
    history = History(seed, **options)
    history.play()
    return history
