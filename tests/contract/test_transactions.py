"""Transactions by the protocol `Cluster`: each case through the fake's two backends and on real brokers, current and 2.8.

Where they differ the fake is wrong.
"""

import dataclasses
import uuid

import backends
import pytest
from backends import CURRENT, OLD
from kafka import TopicPartition
from rawclient import make_batch

from kafkasafe.cluster.api import LATEST, Failure, ProduceRequest
from kafkasafe.cluster.transactions import GroupMember, OffsetToCommit, TransactionIdentity
from kafkasafe.record.batch import iter_headers
from kafkasafe.units import Grant, outcome_of

ABORTS = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}


class Backend(backends.Backend):
    """With what transactions ask."""

    def __init__(self, kind, version):
        super().__init__(kind, version, config=ABORTS)
        self.protocol = 2 if version == CURRENT else 1

    def init(self, name=None, timeout_ms=60_000, **more):
        name = name or f"txn-{uuid.uuid4().hex[:8]}"
        answer = self.ask(self.client.transactions.init_transactional_id, name, timeout_ms, **more)
        assert answer.error_code == 0, answer
        assert answer.identity.protocol == self.protocol
        return answer.identity

    def request(self, identity, topic, seq=0, partition=0):
        data = make_batch(
            b"x",
            pid=identity.producer_id,
            epoch=identity.epoch,
            seq=seq,
            now_ms=self.now_ms,
            transactional=True,
        )
        return ProduceRequest(next(backends.numbers), topic, partition, data, transaction=identity)

    def add(self, identity, topic, partition=0):
        if self.protocol == 1:
            answer = self.ask(
                self.client.transactions.add_partitions_to_transaction, identity, [(topic, partition)]
            )
            assert answer.error_code == 0

    def produce(self, identity, topic, seq=0):
        """The code; the partition has been added."""

        def call(reply):
            request = self.request(identity, topic, seq)
            self.client.produce([request], -1, 30_000, lambda _, answer: reply(answer))

        return self.ask(call).error_code

    def write(self, identity, topic, seq=0):
        self.add(identity, topic)
        assert self.produce(identity, topic, seq) == 0

    def end(self, identity, commit=True):
        return self.ask(self.client.transactions.end_transaction, identity, commit)

    def committed(self, topic):
        """Where a reader of committed transactions finds the end of the log."""
        return self.ask(self.client.list_offset, topic, 0, LATEST, isolation_level=1).offset

    def kinds(self, topic):
        """Which batches the log has: r(ecords), c(ommit), a(bort)."""
        read = self.ask(self.client.fetch_records, topic, 0, 0, 1 << 20)
        aborted = {
            first
            for _, first in self.ask(
                self.client.fetch_records, topic, 0, 0, 1 << 20, isolation_level=1
            ).aborted
        }
        words = ""
        for _, header in iter_headers(read.records):
            if not header.is_control:
                words += "a" if header.base_offset in aborted else "r"
            else:
                words += "."
        return words


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("fake", CURRENT), id="fake-4.3"),
        pytest.param(("fake", OLD), id="fake-2.8"),
        pytest.param(("virtual", CURRENT), id="virtual-4.3"),
        pytest.param(("virtual", OLD), id="virtual-2.8"),
        pytest.param(("real", CURRENT), id="kafka-4.3", marks=pytest.mark.kafka),
        pytest.param(("real", OLD), id="kafka-2.8", marks=pytest.mark.kafka),
    ],
)
def backend(request):
    made = Backend(*request.param)
    yield made
    made.close()


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_is_seen_when_it_is_committed(backend, commit):
    topic, identity = backend.topic(), backend.init()
    backend.write(identity, topic)
    assert backend.committed(topic) == 0
    assert backend.end(identity, commit).error_code == 0
    backend.until(lambda: backend.committed(topic) == 2)
    assert backend.kinds(topic) == ("r." if commit else "a.")


def test_the_same_end_again_is_answered_as_the_first_was(backend):
    topic, identity = backend.topic(), backend.init()
    backend.write(identity, topic)
    first = backend.end(identity)
    assert backend.end(identity) == first
    assert backend.end(identity, commit=False).error_code == 48
    bumped = identity.epoch + backend.protocol - 1
    assert first.identity == TransactionIdentity(
        identity.transactional_id, identity.producer_id, bumped, backend.protocol
    )
    assert backend.kinds(topic) == "r."


def test_an_end_that_arrives_late_ends_the_next_transaction_of_protocol_1_only(backend):
    topic, first = backend.topic(), backend.init()
    backend.write(first, topic)
    second = backend.end(first).identity
    backend.write(second, topic, seq=2 - backend.protocol)
    late = backend.end(first)
    backend.until(lambda: backend.committed(topic) >= 2)
    if backend.protocol == 1:
        assert late.error_code == 0
        backend.until(lambda: backend.committed(topic) == 4)
        assert backend.end(second, commit=False).error_code == 48
    else:
        assert late.error_code == 90
        assert backend.committed(topic) == 2
        assert backend.end(second, commit=False).error_code == 0
        backend.until(lambda: backend.committed(topic) == 4)
    assert backend.kinds(topic) == ("r.r." if backend.protocol == 1 else "r.a.")


def test_who_takes_over_aborts_and_fences(backend):
    topic, old = backend.topic(), backend.init()
    backend.write(old, topic)
    waiting = backend.once(backend.client.transactions.init_transactional_id, old.transactional_id, 60_000)
    assert waiting.error_code == 51
    new = backend.init(old.transactional_id)
    assert (new.producer_id, new.epoch) == (old.producer_id, old.epoch + 2)
    backend.until(lambda: backend.committed(topic) == 2)
    assert backend.kinds(topic) == "a."
    assert backend.produce(old, topic, 1) == 47
    assert {backend.end(old, commit).error_code for commit in (True, False)} == {90}
    added = backend.ask(backend.client.transactions.add_partitions_to_transaction, old, [(topic, 0)])
    assert (added.error_code, added.error_codes) == (90, {(topic, 0): 90})
    assert backend.ask(backend.client.transactions.add_offsets_to_transaction, old, "g").error_code == 90
    kept = backend.ask(
        backend.client.transactions.init_transactional_id, old.transactional_id, 60_000, keep=old
    )
    assert (kept.error_code, kept.identity) == (90, None)
    assert backend.init(old.transactional_id).epoch == new.epoch + 1


def test_a_successor_may_ask_twice(backend):
    first = backend.init()
    second = backend.init(first.transactional_id, keep=first)
    assert (second.producer_id, second.epoch) == (first.producer_id, first.epoch + 1)
    assert backend.init(first.transactional_id, keep=first) == second
    assert backend.init(first.transactional_id, keep=second).epoch == second.epoch + 1


def test_a_successor_to_oneself_ends_the_own_transaction_first(backend):
    topic, first = backend.topic(), backend.init()
    backend.write(first, topic)
    ended = backend.end(first, commit=False)
    assert ended.error_code == 0
    if backend.protocol == 2:
        assert ended.identity.epoch == first.epoch + 1
    assert backend.init(first.transactional_id, keep=ended.identity).epoch == ended.identity.epoch + 1


def test_a_successor_to_oneself_in_the_own_transaction_is_fenced_by_itself(backend):
    topic, first = backend.topic(), backend.init()
    backend.write(first, topic)
    answer = backend.ask(
        backend.client.transactions.init_transactional_id, first.transactional_id, 60_000, keep=first
    )
    assert (answer.error_code == 90) is (backend.protocol == 1), answer
    assert answer.identity is None or answer.identity.epoch == first.epoch + 1


def test_after_its_time_a_transaction_is_aborted(backend):
    topic, identity = backend.topic(), backend.init(timeout_ms=1000)
    backend.write(identity, topic)
    backend.until(lambda: backend.committed(topic) == 2)
    assert backend.kinds(topic) == "a."
    assert backend.end(identity).error_code == (48 if backend.protocol == 2 else 90)
    aborted = backend.end(identity, commit=False)
    if backend.protocol == 2:
        assert (aborted.error_code, aborted.identity.epoch) == (0, identity.epoch + 1)
    else:
        assert aborted.error_code == 90
    assert backend.produce(identity, topic, 1) == 47
    answer = backend.ask(
        backend.client.transactions.init_transactional_id, identity.transactional_id, 1000, keep=identity
    )
    assert answer.error_code == (0 if backend.protocol == 2 else 90)


def test_the_epoch_of_a_time_out_is_nobodys(backend):
    """Who was late may go on with it, as long as nobody has taken the id over: that one has the epoch after it."""
    topic, late = backend.topic(), backend.init(timeout_ms=1000)
    backend.write(late, topic)
    backend.until(lambda: backend.committed(topic) == 2)
    aborted = dataclasses.replace(late, epoch=late.epoch + 1)
    assert backend.end(aborted, commit=False).error_code == 0
    again = backend.init(late.transactional_id, keep=aborted)
    assert (again.producer_id, again.epoch) == (late.producer_id, late.epoch + 2)

    taken = backend.init()
    backend.write(taken, topic)
    new = backend.init(taken.transactional_id)
    backend.write(new, topic)
    assert backend.end(dataclasses.replace(taken, epoch=taken.epoch + 1), commit=False).error_code == 90
    assert backend.end(new).error_code == 0


def test_a_former_owner_ends_the_transaction_of_its_successor(backend):
    """InitProducerId looks at the epoch only where no transaction is open: EndTxn has to be asked first."""
    topic, old = backend.topic(), backend.init()
    new = backend.init(old.transactional_id)
    backend.write(new, topic)
    kept = backend.ask(
        backend.client.transactions.init_transactional_id, old.transactional_id, 60_000, keep=old
    )
    assert kept.error_code == 90
    assert backend.end(new).error_code == (90 if backend.protocol == 1 else 48)
    assert backend.kinds(topic) == "a."


def test_an_end_of_nothing(backend):
    identity = backend.init()
    if backend.protocol == 2:
        aborted = backend.end(identity, commit=False)
        assert (aborted.error_code, aborted.identity.epoch) == (0, identity.epoch + 1)
        assert backend.end(aborted.identity).error_code == 48
    else:
        assert {backend.end(identity, commit).error_code for commit in (True, False)} == {48}
    nobody = TransactionIdentity(f"nobody-{uuid.uuid4().hex}", 5, 0, backend.protocol)
    assert backend.end(nobody).error_code == 49


def test_a_time_out_that_the_brokers_do_not_allow(backend):
    for timeout_ms in (0, 900_001):
        answer = backend.ask(backend.client.transactions.init_transactional_id, "too-long", timeout_ms)
        assert (answer.error_code, answer.identity) == (50, None)


@pytest.mark.parametrize("commit", [True, False])
def test_a_marker_in_a_group_counts_when_it_is_committed(backend, commit):
    topic, group, identity = backend.topic(), f"g-{uuid.uuid4().hex[:8]}", backend.init()
    where = group, topic, 0
    read = backend.client.transactions.committed_offset
    assert (backend.ask(read, *where).error_code, backend.ask(read, *where).offset) == (0, -1)
    if backend.protocol == 1:
        assert (
            backend.ask(backend.client.transactions.add_offsets_to_transaction, identity, group).error_code
            == 0
        )
    marker = {(topic, 0): OffsetToCommit(7, "batch 7", 3)}
    written = backend.ask(backend.client.transactions.commit_offsets_in_transaction, identity, group, marker)
    assert (written.error_code, written.error_codes) == (0, {(topic, 0): 0})
    assert backend.ask(read, *where).error_code == 88
    assert backend.ask(read, *where, require_stable=False).offset == -1
    assert backend.end(identity, commit).error_code == 0
    backend.until(lambda: backend.ask(read, *where).error_code == 0)
    found = backend.ask(read, *where)
    assert (found.offset, found.metadata, found.leader_epoch) == (
        (7, "batch 7", 3) if commit else (-1, "", -1)
    )


def test_of_two_offsets_the_one_that_was_written_last_counts_whichever_was_committed_last(backend):
    topic, group = backend.topic(), f"g-{uuid.uuid4().hex[:8]}"
    where, first, second = (group, topic, 0), backend.init(), backend.init()
    for identity, offset in ((first, 10), (second, 20), (first, 10)):
        if backend.protocol == 1:
            assert (
                backend.ask(
                    backend.client.transactions.add_offsets_to_transaction, identity, group
                ).error_code
                == 0
            )
        offsets = {(topic, 0): OffsetToCommit(offset)}
        assert (
            backend.ask(
                backend.client.transactions.commit_offsets_in_transaction, identity, group, offsets
            ).error_code
            == 0
        )
    for identity in (first, second):
        assert backend.end(identity).error_code == 0
    read = backend.client.transactions.committed_offset
    backend.until(lambda: backend.ask(read, *where).error_code == 0)
    assert backend.ask(read, *where).offset == 10


def test_a_group_refuses_offsets_of_others_than_its_members(backend):
    topic, stale = backend.topic(), backend.init()
    identity = backend.init(stale.transactional_id)
    commit, offsets = (
        backend.client.transactions.commit_offsets_in_transaction,
        {(topic, 0): OffsetToCommit(1)},
    )

    def code(group, **more):
        if backend.protocol == 1:
            assert (
                backend.ask(
                    backend.client.transactions.add_offsets_to_transaction, identity, group
                ).error_code
                == 0
            )
        answer = backend.ask(commit, identity, group, offsets, **more)
        assert answer.error_codes == {(topic, 0): answer.error_code}
        return answer.error_code

    new, known = (f"g-{uuid.uuid4().hex[:8]}" for _ in range(2))
    assert code(known) == 0
    assert code(known, member=GroupMember("nobody", 3)) == 25
    assert code(new, member=GroupMember("nobody", 3)) == (22 if backend.protocol == 2 else 25)
    assert backend.ask(commit, stale, known, offsets).error_code == 47


def test_old_brokers_take_offsets_of_a_fenced_producer_where_they_have_not_seen_the_newer_one(backend):
    topic, stale = backend.topic(), backend.init()
    backend.init(stale.transactional_id)
    offsets = {(topic, 0): OffsetToCommit(1)}
    answer = backend.ask(
        backend.client.transactions.commit_offsets_in_transaction, stale, f"g-{uuid.uuid4().hex[:8]}", offsets
    )
    assert answer.error_code == (47 if backend.protocol == 2 else 0)


def test_a_partition_that_is_not_there_keeps_the_others_out(backend):
    topic, identity = backend.topic(), backend.init()
    wanted = [(topic, 0), (topic, 7)]
    answer = backend.once(backend.client.transactions.add_partitions_to_transaction, identity, wanted)
    assert (answer.error_code, answer.error_codes) == (3, {(topic, 0): 55, (topic, 7): 3})


def test_batches_of_two_transactions_and_of_none_in_one_call(backend):
    topic, first, second = backend.topic(3), backend.init(), backend.init()
    for partition, identity in enumerate((first, second)):
        backend.add(identity, topic, partition)
    plain = make_batch(b"x", now_ms=backend.now_ms)

    def call(reply):
        requests = [
            backend.request(first, topic, partition=0),
            backend.request(second, topic, partition=1),
            ProduceRequest(0, topic, 2, plain),
        ]
        answers = []

        def answered(_, answer):
            answers.append(answer)
            if len(answers) == len(requests):
                reply(max(answers, key=lambda one: getattr(one, "error_code", 99)))

        backend.client.produce(requests, -1, 30_000, answered)

    # A broker may not know yet that it leads a topic that is new. What was appended is not appended again.
    answer = backend.ask(call)
    assert getattr(answer, "error_code", answer) == 0
    assert backend.end(first).error_code == backend.end(second, commit=False).error_code == 0
    backend.until(lambda: backend.committed(topic) == 2)


def test_what_the_coordinator_tells(backend):
    topic, identity = backend.topic(), backend.init()

    def told(name=identity.transactional_id):
        return backend.ask(backend.client.transactions.describe_transaction, name)

    if backend.protocol == 1:
        assert told().unsupported
        return
    assert (told().error_code, told().state, told().partitions) == (0, "Empty", frozenset())
    assert told("nobody-knows-this").error_code == 105
    backend.write(identity, topic)
    found = told()
    assert (found.state, found.producer_id, found.epoch) == ("Ongoing", identity.producer_id, identity.epoch)
    assert (found.partitions, found.timeout_ms) == ({(topic, 0)}, 60_000)
    backend.end(identity)
    backend.until(lambda: told().state == "CompleteCommit")
    assert told().partitions == frozenset()


def test_a_description_tells_what_became_of_a_transaction(backend):
    def told(identity):
        answer = backend.ask(backend.client.transactions.describe_transaction, identity.transactional_id)
        if isinstance(answer, Failure):
            assert answer.unsupported
            return "unsupported"
        grant = Grant(identity.producer_id, identity.epoch, identity.protocol)
        return outcome_of(grant, answer.state, answer.producer_id, answer.epoch, own=True)

    topic = backend.topic()
    committed, aborted, fenced, expired = (
        backend.init(),
        backend.init(),
        backend.init(),
        backend.init(timeout_ms=1000),
    )
    for identity in (committed, aborted, fenced, expired):
        backend.write(identity, topic)
    if backend.protocol == 1:
        assert told(committed) == "unsupported"
        return
    assert told(committed) is None
    assert backend.end(committed).error_code == backend.end(aborted, False).error_code == 0
    assert (told(committed), told(aborted)) == (True, False)
    backend.until(lambda: told(expired) is False)
    assert backend.end(expired).error_code in {47, 48, 90}
    # The next owner has another epoch, and nothing is told any more.
    backend.init(fenced.transactional_id)
    assert told(fenced) is None
    backend.init(committed.transactional_id)
    assert told(committed) is None


def test_a_coordinator_that_was_killed_is_found_again(backend):
    topic, identity = backend.topic(), backend.init()
    backend.write(identity, topic)
    backend.cluster.kill(1)
    lost = backend.once(backend.client.transactions.end_transaction, identity, True)
    assert isinstance(lost, Failure)
    backend.cluster.start(1)
    first = backend.end(identity)
    assert first.error_code == 0
    assert backend.end(identity) == first
    backend.until(lambda: backend.committed(topic) == 2)


@pytest.mark.parametrize("commit", [True, False])
def test_records_of_an_open_transaction_are_deleted(backend, commit):
    """A reader of committed transactions finds the log's end where the log begins, and not before."""
    topic, identity = backend.topic(), backend.init()
    for seq in range(3):
        backend.write(identity, topic, seq)
    if backend.fake:
        assert backend.cluster.delete_records(topic, 0, 2) == 2
    else:
        with backend.cluster.admin() as admin:
            admin.delete_records({TopicPartition(topic, 0): 2})
    backend.until(lambda: backend.ask(backend.client.list_offset, topic, 0, -2).offset == 2)
    assert backend.committed(topic) == 2
    read = backend.ask(backend.client.fetch_records, topic, 0, 2, 1 << 20, isolation_level=1)
    assert read.error_code == 0
    backend.end(identity, commit=commit)
    backend.until(lambda: backend.committed(topic) == 4)
    read = backend.ask(backend.client.fetch_records, topic, 0, 2, 1 << 20, isolation_level=1)
    assert [first for _, first in read.aborted] == ([] if commit else [0])
