"""The protocol of the Spark sink, on a model of Kafka's transactions: a crash at every step, before and after it works."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from functools import partial

import pytest

from kafkasafe.spark.txn import (
    TRANSITIONS,
    AppendState,
    Event,
    IllegalEventError,
    Marker,
    MarkerLog,
    MarkerVerdict,
    MicroBatch,
    Report,
    Step,
    WriterIdentity,
    judge_marker,
    judge_partitions,
    judge_version,
    may_go_on,
    plan_digest,
)

PARTITIONS = (0, 1)


class CrashError(Exception):
    """The driver dies."""


class FencedError(Exception):
    """The broker knows a newer epoch."""


class SequenceError(Exception):
    """OUT_OF_ORDER_SEQUENCE_NUMBER."""


@dataclass
class Kafka:
    """One transactional id: its coordinator, two partitions of a topic, and the marker.

    `grants`: a commit grants the next epoch (protocol 2).
    """

    epoch: int = -1
    grants: bool = False
    open: bool = False
    logs: dict = field(default_factory=lambda: {p: [] for p in PARTITIONS})  # (epoch, sequence, row)
    pending_marker: Marker | None = None
    marker: Marker | None = None
    ended: int = -2
    """The epoch of the last commit, if it granted the next one."""
    aborted: set = field(default_factory=set)
    committed: set = field(default_factory=set)

    def fence(self):
        if self.open:
            self._end(commit=False)
        self.epoch += 1
        return WriterIdentity("app", 7, self.epoch)

    def begin(self, grant):
        self._check(grant)
        self.open = True

    def append(self, grant, partition, sequence, row):
        self._check(grant)
        if not self.open:
            raise FencedError
        mine = [entry for entry in self.logs[partition] if entry[0] == grant.epoch]
        if sequence < len(mine):
            return  # "a repetition", whatever is in it
        if sequence > len(mine):
            raise SequenceError
        self.logs[partition].append((grant.epoch, sequence, row))

    def describe(self, grant):
        found = {}
        for partition, log in self.logs.items():
            sequences = [sequence for epoch, sequence, _ in log if epoch == grant.epoch]
            found["t", partition] = AppendState(grant.epoch, sequences[-1]) if sequences else None
        return found

    def mark(self, grant, marker):
        self._check(grant)
        self.pending_marker = marker

    def commit(self, grant):
        if self.grants and (grant.epoch, self.epoch) == (self.ended, self.ended + 1):
            return WriterIdentity("app", 7, self.epoch)  # repeated; this transaction has ended
        self._check(grant)
        if not self.open and grant.epoch not in self.committed:
            raise FencedError
        if self.open:
            self._end(commit=True)
        if not self.grants:
            return None
        self.ended, self.epoch = self.epoch, self.epoch + 1
        return WriterIdentity("app", 7, self.epoch)

    def _check(self, grant):
        if grant.epoch != self.epoch:
            raise FencedError

    def _end(self, *, commit):
        self.open = False
        (self.committed if commit else self.aborted).add(self.epoch)
        if commit and self.pending_marker is not None:
            self.marker = self.pending_marker
        self.pending_marker = None

    def visible(self):
        """What a read_committed reader gets."""
        return sorted(row for log in self.logs.values() for epoch, _, row in log if epoch in self.committed)


class Driver:
    """One life. `crash_at` counts operations; `late`: the operation works, its answer is lost."""

    def __init__(
        self, kafka, *, crash_at=None, late=False, lost_commits=0, mutant=None, worker_dies=(), strict=True
    ):
        self.kafka, self.crash_at, self.late, self.mutant = kafka, crash_at, late, mutant
        self.operations = 0
        self.lost_commits = lost_commits
        self.worker_dies = set(worker_dies)
        self.strict = strict
        self.written = 0
        self.grants = []
        self.carried = None
        self.fences = 0

    def do(self, operation):
        self.operations += 1
        if self.operations == self.crash_at and not self.late:
            raise CrashError
        result = operation()
        if self.operations == self.crash_at:
            raise CrashError
        return result

    def write(self, batch_id, rows):
        carried, self.carried = self.carried, None
        grant, reports = None, []
        if carried is not None and may_go_on(carried[1], batch_id, "q", plan=str(rows)):
            grant = carried[0]
            self.grants.append(grant)
        machine = MicroBatch(max_restarts=5, goes_on=grant is not None)
        while not machine.over:
            step = machine.step
            try:
                event = self._step(step, batch_id, rows, grant, reports)
                if isinstance(event, WriterIdentity) and step is Step.COMMIT:
                    self.carried, event = (event, Marker(batch_id + 1, "q", len(rows), str(rows))), Event.DONE
                elif isinstance(event, WriterIdentity):
                    grant, event = event, Event.DONE
                    self.grants.append(grant)
            except FencedError:
                if step is not Step.OPEN or not machine.is_carried:
                    raise
                event = Event.LAPSED
            except (WorkerDiedError, SequenceError):
                event = Event.BROKEN
            except TimeoutError:
                event = Event.UNKNOWN
            machine.on(event)
        assert machine.step is not Step.FAILED
        return machine

    def _step(self, step, batch_id, rows, grant, reports):
        kafka = self.kafka
        match step:
            case Step.FENCE:
                reports.clear()
                self.fences += 1
                if self.mutant == "no fence" and kafka.epoch >= 0:
                    return WriterIdentity("app", 7, kafka.epoch)
                return self.do(kafka.fence)
            case Step.READ_MARKER:
                marker = self.do(lambda: kafka.marker)
                verdict = judge_marker(marker, batch_id, "q", strict=self.strict, plan=str(rows))
                assert verdict in {MarkerVerdict.WRITE, MarkerVerdict.DUPLICATE}
                return Event.KNOWN if verdict is MarkerVerdict.DUPLICATE else Event.DONE
            case Step.OPEN:
                self.do(lambda: kafka.begin(grant))
            case Step.WRITE:
                self.written += 1
                # Another distribution and order each time: nothing may rest on them.
                turn = self.written + kafka.epoch
                parts = {
                    p: [r for i, r in enumerate(rows) if (i + turn) % 2 == p][:: (-1) ** turn]
                    for p in PARTITIONS
                }
                for partition, part in parts.items():
                    self._append_all(grant, partition, part)
                    reports.append(Report("t", partition, len(part)))
            case Step.VERIFY:
                wrong = judge_partitions(
                    grant, [r for r in reports if r.rows], self.do(lambda: kafka.describe(grant))
                )
                if wrong:
                    return Event.BROKEN
            case Step.MARK:
                if self.mutant == "marker outside":
                    self.do(lambda: setattr(kafka, "marker", Marker(batch_id + 1, "q", len(rows), str(rows))))
                else:
                    self.do(lambda: kafka.mark(grant, Marker(batch_id + 1, "q", len(rows), str(rows))))
            case Step.COMMIT:
                if self.lost_commits:
                    self.lost_commits -= 1
                    if self.mutant != "commit never arrived":
                        kafka.commit(grant)
                    raise TimeoutError
                following = self.do(lambda: kafka.commit(grant))
                if self.mutant == "same epoch again":
                    return grant
                if following is not None:
                    return following
        return Event.DONE

    def _append_all(self, grant, partition, part):
        for sequence, row in enumerate(part):
            if self.written in self.worker_dies and sequence == 1:
                self.worker_dies.discard(self.written)
                if self.mutant != "same transaction again":
                    raise WorkerDiedError
                # Spark's next attempt of the task, with the rows in another order.
                for again, other in enumerate(reversed(part)):
                    self.do(partial(self.kafka.append, grant, partition, again, other))
                return
            self.do(partial(self.kafka.append, grant, partition, sequence, row))


class WorkerDiedError(Exception):
    """A task fails."""


BATCHES = [["a1", "a2", "a3", "a4", "a5"], ["b1", "b2", "b3"], ["c1", "c2", "c3", "c4"]]
ROWS = sorted(row for rows in BATCHES for row in rows)


def run(crashes, *, mutant=None, zombies=True, grants=False):
    """Spark: batch after batch; a life that crashed is followed by one that repeats the last batch."""
    kafka = Kafka(grants=grants)
    plans = iter(crashes)
    old_grants = []
    batch_id = 0
    while batch_id < len(BATCHES):
        crash_at, late = next(plans, (None, False))
        driver = Driver(kafka, crash_at=crash_at, late=late, mutant=mutant)
        try:
            while batch_id < len(BATCHES):
                driver.write(batch_id, BATCHES[batch_id])
                batch_id += 1  # Spark's own commit; a crash may fall in front of it
                if driver.operations + 1 == crash_at:
                    batch_id -= 1
                    raise CrashError  # noqa: TRY301
        except CrashError:
            old_grants += driver.grants
        except FencedError:
            assert mutant
            return None
        if zombies and mutant is None:
            for grant in old_grants:
                if grant.epoch == kafka.epoch:
                    continue
                with pytest.raises(FencedError):
                    kafka.append(grant, 0, 0, "zombie")
                if grants and (grant.epoch, kafka.epoch) == (kafka.ended, kafka.ended + 1):
                    # A repeated EndTxn is answered, and changes nothing.
                    before = kafka.visible(), kafka.open, kafka.epoch
                    kafka.commit(grant)
                    assert (kafka.visible(), kafka.open, kafka.epoch) == before
                    continue
                with pytest.raises(FencedError):
                    kafka.commit(grant)
    return kafka


def every_crash():
    operations = 60
    for first, late in itertools.product(range(1, operations), (False, True)):
        yield [(first, late)]
    for first, second in itertools.product(range(1, 40), range(1, 25)):
        yield [(first, True), (second, False)]
        yield [(first, False), (second, True)]


@pytest.mark.parametrize("grants", [False, True])
def test_a_crash_at_every_step_leaves_each_row_once(grants):
    for crashes in every_crash():
        kafka = run(crashes, grants=grants)
        assert kafka.visible() == ROWS, crashes
        assert kafka.marker == Marker(len(BATCHES), "q", len(BATCHES[-1]), str(BATCHES[-1]))


@pytest.mark.parametrize("mutant", ["marker outside", "no fence"])
def test_without_one_of_its_rules_the_protocol_fails(mutant):
    def wrong(crashes):
        try:
            kafka = run(crashes, mutant=mutant)
        except AssertionError:  # it stood still
            return True
        return kafka is None or kafka.visible() != ROWS

    assert any(wrong(crashes) for crashes in every_crash())


def test_a_driver_goes_on_after_its_own_commit_without_a_fence():
    kafka = Kafka(grants=True)
    driver = Driver(kafka)
    for batch_id, rows in enumerate(BATCHES):
        assert driver.write(batch_id, rows).step is Step.WRITTEN
    assert driver.fences == 1
    assert kafka.visible() == ROWS
    assert len({grant.epoch for grant in driver.grants}) == len(BATCHES)


def test_a_driver_that_would_go_on_after_another_one_begins_at_the_fence():
    kafka = Kafka(grants=True)
    old, new = Driver(kafka), Driver(kafka)
    old.write(0, BATCHES[0])
    assert new.write(1, BATCHES[1]).step is Step.WRITTEN
    machine = old.write(1, BATCHES[1])  # what it knows says that batch 1 is not written
    assert (machine.step, machine.restarts, machine.resumed) == (Step.DUPLICATE, 0, False)
    assert not machine.committed_by_us
    assert old.fences == 2
    assert old.write(2, BATCHES[2]).step is Step.WRITTEN
    assert kafka.visible() == ROWS


@pytest.mark.parametrize(("batch_id", "query"), [(0, "q"), (2, "q"), (1, "other")])
def test_what_a_driver_did_not_commit_itself_is_read_behind_a_fence(batch_id, query):
    assert not may_go_on(Marker(1, "q", 5, "p"), batch_id, query, plan="p")
    assert may_go_on(Marker(1, "q", 5, "p"), 1, "q", plan="p 1")


def test_without_a_new_epoch_a_late_task_of_the_last_batch_gets_into_the_next():
    """Why a driver goes on only if the commit granted an epoch."""
    kafka = Kafka()
    driver = Driver(kafka, mutant="same epoch again")
    driver.write(0, BATCHES[0])
    (last,) = driver.grants
    kafka.begin(driver.carried[0])
    before = sum(map(len, kafka.logs.values()))
    kafka.append(last, 0, len([entry for entry in kafka.logs[0] if entry[0] == last.epoch]), "late")
    assert sum(map(len, kafka.logs.values())) == before + 1


def test_the_marker_before_the_fence_fails_when_another_driver_commits_in_between():
    kafka = Kafka()
    seen = kafka.marker
    Driver(kafka).write(0, BATCHES[0])
    kafka.fence()
    assert judge_marker(seen, 0, "q", strict=True) is MarkerVerdict.WRITE  # what must not be believed
    assert judge_marker(kafka.marker, 0, "q", strict=True, plan=str(BATCHES[0])) is MarkerVerdict.DUPLICATE


@pytest.mark.parametrize("deaths", [(1,), (1, 2), (1, 2, 3)])
def test_a_task_that_dies_costs_a_new_transaction(deaths):
    kafka = Kafka()
    machine = Driver(kafka, worker_dies=deaths).write(0, BATCHES[0])
    assert machine.step is Step.WRITTEN
    assert machine.restarts == len(deaths)
    assert kafka.visible() == BATCHES[0]


def test_a_second_attempt_in_the_same_transaction_loses_rows_that_no_count_shows():
    """Why attempts are told apart: the broker takes the second one's first row for a repetition."""
    kafka = Kafka()
    Driver(kafka, worker_dies=(1,), mutant="same transaction again").write(0, BATCHES[0])
    assert len(kafka.visible()) == len(BATCHES[0])
    assert kafka.visible() != BATCHES[0]


@pytest.mark.parametrize("mutant", [None, "commit never arrived"])
def test_an_unanswered_commit_is_asked_about_never_repeated_blindly(mutant):
    kafka = Kafka()
    machine = Driver(kafka, lost_commits=1, mutant=mutant).write(0, BATCHES[0])
    assert kafka.visible() == BATCHES[0]
    if mutant is None:
        assert machine.step is Step.DUPLICATE
        assert machine.committed_by_us
    else:
        assert machine.step is Step.WRITTEN
    assert machine.resumed


def test_restarts_are_bounded():
    machine = MicroBatch(max_restarts=2)
    for _ in range(2):
        for _ in (Step.FENCE, Step.READ_MARKER, Step.OPEN):
            machine.on(Event.DONE)
        assert machine.on(Event.BROKEN) is Step.FENCE
    machine.on(Event.DONE)
    assert machine.on(Event.BROKEN) is Step.FAILED
    assert machine.over
    assert "FAILED" in repr(machine)


def test_every_step_has_its_ends_and_nothing_else_is_legal():
    for step in Step:
        for event in Event:
            machine = MicroBatch(max_restarts=9, goes_on=True)
            machine.step = step
            if event in TRANSITIONS.get(step, {}):
                machine.on(event)
            else:
                with pytest.raises(IllegalEventError):
                    machine.on(event)


def test_only_an_epoch_that_a_commit_granted_lapses():
    machine = MicroBatch(max_restarts=0, goes_on=True)
    assert machine.on(Event.LAPSED) is Step.FENCE
    machine.on(Event.DONE)
    assert machine.on(Event.DONE) is Step.OPEN
    with pytest.raises(IllegalEventError, match="an epoch that FENCE granted"):
        machine.on(Event.LAPSED)


W, D, C = MarkerVerdict.WRITE, MarkerVerdict.DUPLICATE, MarkerVerdict.COUNT


@pytest.mark.parametrize(
    ("marker", "batch_id", "plan", "rows", "verdict", "accepted"),
    [
        (None, 0, "p", None, W, W),
        (None, 3, "p", None, MarkerVerdict.MISSING, W),
        (Marker(3, "q", 5, "p"), 3, "x", None, W, W),
        (Marker(3, "q"), 3, "x", None, W, W),  # of version 1
        (Marker(5, "q", 5, "p"), 3, "p", 5, MarkerVerdict.ROLLED_BACK, W),
        (Marker(2, "q", 5, "p"), 3, "p", 5, MarkerVerdict.GAP, W),
        # Numbers of another query are never compared, whatever else agrees.
        (Marker(3, "other", 5, "p"), 3, "p", 5, MarkerVerdict.OTHER_QUERY, W),
        (Marker(4, "other", 5, "p"), 3, "p", 5, MarkerVerdict.OTHER_QUERY, W),
        (Marker(9, "other", 5, "p"), 0, "p", 5, MarkerVerdict.OTHER_QUERY, W),
        (Marker(4, "", 5, "p"), 3, "p", 5, MarkerVerdict.OTHER_QUERY, W),
        # "One more": the same batch again, or one that was planned anew.
        (Marker(4, "q", 5, "p"), 3, "p", None, D, D),
        (Marker(4, "q", 5, "p"), 3, "p", 6, D, D),  # not deterministic
        (Marker(4, "q", 5, "p"), 3, "x", 5, MarkerVerdict.OTHER_ROWS, W),
        (Marker(4, "q", 5, "p"), 3, "", None, C, C),
        (Marker(4, "q", 5, ""), 3, "p", None, C, C),
        (Marker(4, "q", 5, ""), 3, "p", 5, D, D),
        (Marker(4, "q", 5, "p"), 3, "", 6, MarkerVerdict.OTHER_ROWS, W),
        (Marker(4, "q", 0, ""), 3, "", 0, D, D),
        (Marker(4, "q"), 3, "p", 5, MarkerVerdict.UNPROVEN, W),  # of version 1
        (Marker(4, "q"), 3, "", None, MarkerVerdict.UNPROVEN, W),
    ],
)
def test_what_a_marker_says(marker, batch_id, plan, rows, verdict, accepted):
    assert judge_marker(marker, batch_id, "q", strict=True, plan=plan, rows=rows) is verdict
    assert judge_marker(marker, batch_id, "q", strict=False, plan=plan, rows=rows) is accepted


@pytest.mark.parametrize(
    ("marker", "version", "verdict", "accepted"),
    [
        (None, 7, W, W),
        (Marker(7, "", 5), 7, W, W),
        (Marker(8, "", 5), 7, D, D),
        (Marker(8), 7, D, D),
        (Marker(8), 3, D, D),
        (Marker(8, "q", 5), 9, MarkerVerdict.OTHER_QUERY, W),
    ],
)
def test_what_a_marker_says_of_a_version(marker, version, verdict, accepted):
    assert judge_version(marker, version, strict=True) is verdict
    assert judge_version(marker, version, strict=False) is accepted


@pytest.mark.parametrize("behind", [1, 2])
def test_a_checkpoint_from_a_copy_loses_no_row(behind):
    """Spark plans what its checkpoint does not know anew: other rows under numbers that are committed."""
    done = BATCHES[:2]
    kafka = Kafka()
    for batch_id, rows in enumerate(done):
        Driver(kafka).write(batch_id, rows)
    first = len(done) - behind
    anew = [row for rows in BATCHES[first:] for row in rows]
    before = kafka.visible()
    with pytest.raises(AssertionError):  # refused
        Driver(kafka).write(first, anew)
    assert kafka.visible() == before
    Driver(kafka, strict=False).write(first, anew)
    assert set(kafka.visible()) == set(ROWS)
    # The marker is this checkpoint's now: nothing is refused or written again.
    assert Driver(kafka).write(first, anew).step is Step.DUPLICATE
    Driver(kafka).write(first + 1, ["d"])
    assert kafka.visible().count("d") == 1


ENTRY = 'v1\n{{"batchWatermarkMs":{0},"batchTimestampMs":{1}}}\n{{"orders":{{"0":{2}}}}}\n{3}'


def test_a_plan_is_when_and_how_far_a_batch_was_planned():
    plan = plan_digest(ENTRY.format(0, 1, 20, "-"))
    assert plan == plan_digest(ENTRY.format(5, 1, 20, "-") + "\n")  # other settings
    others = [ENTRY.format(0, 2, 20, "-"), ENTRY.format(0, 1, 30, "-"), ENTRY.format(0, 1, 20, "4")]
    assert len({plan, *map(plan_digest, others)}) == 4


@pytest.mark.parametrize("entry", ["", "v1", "v1\n\n-", "v1\n{}\n-", "v1\n[]\n-", "v1\nx\n-"])
def test_what_is_no_plan_is_not_known(entry):
    assert plan_digest(entry) == ""


def test_a_marker_is_read_as_it_was_written():
    for marker in (Marker(12, "q-1"), Marker(12, "q-1", 0, ""), Marker(12, "", 7, "digest")):
        assert Marker.decode(marker.encode()) == marker


def test_a_marker_of_version_1_is_read():
    assert Marker.decode('{"v":1,"next":12,"query":"q-1"}') == Marker(12, "q-1", None, "")


@pytest.mark.parametrize(
    "text",
    [None, "", "x", "{}", "[1]", "3", '{"v":3,"next":1,"query":"","rows":1,"plan":""}', '{"v":1,"next":-1,"query":""}',
     '{"v":1,"next":true,"query":""}', '{"v":1,"next":1,"query":null}', '{"v":2,"next":1,"query":""}',
     '{"v":2,"next":1,"query":"","rows":-1,"plan":""}', '{"v":2,"next":1,"query":"","rows":true,"plan":""}',
     '{"v":2,"next":1,"query":"","rows":1,"plan":null}'],
)  # fmt: skip
def test_what_is_no_marker_is_never_guessed(text):
    with pytest.raises(ValueError, match="marker"):
        Marker.decode(text)


@pytest.mark.parametrize(
    ("log", "content", "undecided"),
    [
        ("", None, False),
        ("a1 a+", "1", False),
        ("a1 a+ a2 a-", "1", False),
        ("a1 a-", None, False),
        ("a1 a+ a2", "1", True),
        ("x9 a1 a+", "1", False),  # another id's transaction is open, or ends later
        ("x9 a1 a+ x+", "1", False),
        ("a1 x9 x- a+", "1", False),
        ("a1 a+ b2 b+", "2", False),  # a new producer id
        ("a1 a+ a2 b3 a- b+", "3", False),
        ("a1 a+ n5", "5", False),  # not in a transaction
        ("a1 a+ a0 a+", "1", False),  # a tombstone
    ],
)
def test_the_newest_committed_marker_of_a_log(log, content, undecided):
    """A letter: whose producer id (x: of another key, n: no transaction); then a value, 0 for null, or an outcome."""
    found = MarkerLog(b"mine")
    for who, what in log.split():
        if what in "+-":
            found.outcome(ord(who), committed=what == "+")
        else:
            value = None if what == "0" else what.encode()
            found.record(ord(who), b"other" if who == "x" else b"mine", value, transactional=who != "n")
    assert (found.content, found.undecided) == (content, undecided)


GRANT = WriterIdentity("app", 7, 3)


@pytest.mark.parametrize(
    ("reports", "appended", "says"),
    [
        ([Report("t", 0, 5)], {("t", 0): AppendState(3, 4)}, ""),
        ([Report("t", 0, 5)], {("t", 0): AppendState(3, 4), ("t", 1): None}, ""),
        ([Report("t", 0, 5)], {("t", 0): AppendState(3, 4), ("t", 1): AppendState(2, 9)}, ""),
        ([Report("t", 0, 5)], {("t", 0): AppendState(3, 3)}, "holds 4 records"),
        ([Report("t", 0, 5)], {("t", 0): None}, "holds 0 records"),
        ([Report("t", 0, 5)], {("t", 0): AppendState(4, 4)}, "holds 0 records"),
        ([], {("t", 0): AppendState(3, 0)}, "holds 1 records"),
        ([Report("t", 0, 5)], {}, "Nothing was asked"),
        ([Report("t", 0, 5), Report("t", 0, 5)], {("t", 0): AppendState(3, 4)}, "two tasks"),
    ],
)
def test_reports_are_held_against_the_logs(reports, appended, says):
    said = judge_partitions(GRANT, reports, appended)
    assert says in said
    assert bool(said) is bool(says)
