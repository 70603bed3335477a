"""`kafkasafe spool commit | abort | ls | show` of what another process staged, and was killed before it committed."""

from __future__ import annotations

import json
import os
import time

import pytest
from commands import run
from kafka import KafkaConsumer, TopicPartition
from kafka.structs import ConsumerGroupMetadata

from kafkasafe import SafeProducer
from kafkasafe import marks as m
from kafkasafe import units as u
from kafkasafe.delivery.engine.transactor import Transactor
from kafkasafe.errors import BatchDroppedError
from kafkasafe.kafkapython.admin import tidy_client
from kafkasafe.spool import steps
from kafkasafe.spool.examine import ExchangeStep
from kafkasafe.spool.spool import Spool
from kafkasafe.testing import FakeCluster
from kafkasafe.units.together import Sharing

ID = b"0123456789abcdef"


def goes_alone(_sharing, unit, _fits):
    """Instead of `Sharing.gather`: nothing shares its transaction."""
    return [unit]


def killed_before_the_commit(servers, directory, topic, timeout_ms=600_000, *, shared=False):
    """A process that staged one batch, `1`, accepted another one, `2`, and was killed before it sent EndTxn.

    With `shared` both are staged, in one transaction.
    """
    child = os.fork()
    if not child:
        try:
            if shared:
                # Both wait before a transactional id is there.
                fenced, units = u.Units.fenced, u.Units
                units.fenced = lambda self, *each: (time.sleep(1), fenced(self, *each))
            else:
                # However late the first one's end is, the second one is not staged by then.
                Sharing.gather, note = goes_alone, Transactor._note
                Transactor._note = lambda self, lane, action: (
                    action.transaction.number > 1 or note(self, lane, action)
                )
            carry_out = Transactor.carry_out

            def dies(self, lane, actions):
                if any(isinstance(action, u.EndTxn) for action in actions):
                    os._exit(9)
                carry_out(self, lane, actions)

            Transactor.carry_out = dies
            producer = SafeProducer(
                bootstrap_servers=servers, spool_dir=directory, transaction_timeout_ms=timeout_ms
            )
            for value in (b"1", b"2"):
                with producer.batch() as batch:
                    batch.send(topic, value, partition=0)
                    batch.send(topic, value, partition=1)
            time.sleep(60)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 9


def killed_with_the_second_staged(servers, directory, topic):
    """A process that was killed when the second of two batches was staged, and the first one was not."""
    child = os.fork()
    if not child:
        try:
            note, write_group, sync = Transactor._note, Spool.write_group, Spool.sync
            marked = []

            def notes_the_second(self, lane, action):
                if action.transaction.number > 1:
                    note(self, lane, action)

            def writes(self, marks, batches, **options):
                marked.extend(mark for mark in marks if isinstance(mark, m.Staged))
                return write_group(self, marks, batches, **options)

            def syncs(self, **options):
                done = sync(self, **options)
                if marked:
                    os._exit(9)
                return done

            Transactor._note, Spool.write_group, Spool.sync = notes_the_second, writes, syncs
            Sharing.gather = goes_alone
            producer = SafeProducer(bootstrap_servers=servers, spool_dir=directory)
            for value in (b"1", b"2"):
                with producer.batch() as batch:
                    batch.send(topic, value, partition=0)
            time.sleep(60)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 9


def seen(servers, topic, count):
    """What readers of committed records see, as soon as it is so many."""
    consumer = KafkaConsumer(
        bootstrap_servers=servers, isolation_level="read_committed", group_id=None, kafka_client=tidy_client
    )
    consumer.assign([TopicPartition(topic, 0), TopicPartition(topic, 1)])
    consumer.seek_to_beginning()
    found = []
    try:
        for _ in range(300):
            found += [record.value for records in consumer.poll(100).values() for record in records]
            if len(found) >= count:
                break
        return sorted(found)
    finally:
        consumer.close()


def test_another_process_commits_what_is_staged(kafka, tmp_path, capsys):
    servers, spool = ",".join(kafka.bootstrap_servers), tmp_path / "spool"
    kafka.create_topic("decided", partitions=2)
    killed_before_the_commit(servers, spool, "decided")
    _, out, _ = run(capsys, "spool", "ls", spool, "--json")
    staged, prepared = json.loads(out)[0]["atomic_batches"]
    assert (staged["step"], prepared["step"]) == (2, 1)
    assert staged["partitions"] == [["decided", 0], ["decided", 1]]
    assert staged["times"]["prepared"] <= staged["times"]["prepare_acknowledged"]
    _, out, _ = run(capsys, "spool", "show", spool)
    assert f"atomic batch {staged['batch_id']}: decided-0, decided-1, 2 records" in out
    assert "step 2 of 4, prepare acknowledged" in out
    code, out, _ = run(capsys, "spool", "commit", spool, "-b", servers, "--json")
    done = json.loads(out)
    assert (code, done["committed"], done["left"]) == (1, 1, 1)
    assert done["batches"][0]["step"] == 4
    assert seen(servers, "decided", 2) == [b"1", b"1"]
    # The other one is delivered by the next producer.
    code, _, _ = run(capsys, "spool", "drain", spool, "-b", servers)
    assert code == 0
    assert seen(servers, "decided", 4) == [b"1", b"1", b"2", b"2"]
    assert run(capsys, "spool", "commit", spool, "-b", servers)[0] == 0


def test_what_shares_a_transaction_is_committed_when_all_of_it_is_named(kafka, tmp_path, capsys):
    servers, spool = ",".join(kafka.bootstrap_servers), tmp_path / "spool"
    kafka.create_topic("shared", partitions=2)
    killed_before_the_commit(servers, spool, "shared", shared=True)
    _, out, _ = run(capsys, "spool", "ls", spool, "--json")
    both = [each["batch_id"] for each in json.loads(out)[0]["atomic_batches"]]
    assert [each["step"] for each in json.loads(out)[0]["atomic_batches"]] == [2, 2]
    code, out, _ = run(capsys, "spool", "commit", spool, "-b", servers, "--batch", both[1], "--json")
    done = json.loads(out)
    assert (code, done["committed"], done["left"]) == (1, 0, 1)
    assert "shares its transaction" in done["batches"][0]["reason"]
    named = [word for each in both for word in ("--batch", each)]
    code, out, _ = run(capsys, "spool", "commit", spool, "-b", servers, *named, "--json")
    done = json.loads(out)
    assert (code, done["committed"], done["left"]) == (0, 2, 0)
    assert seen(servers, "shared", 4) == [b"1", b"1", b"2", b"2"]


def test_one_that_shares_a_transaction_is_given_up_and_the_other_is_delivered(kafka, tmp_path, capsys):
    servers, spool = ",".join(kafka.bootstrap_servers), tmp_path / "spool"
    kafka.create_topic("one-of-two", partitions=2)
    killed_before_the_commit(servers, spool, "one-of-two", shared=True)
    _, out, _ = run(capsys, "spool", "ls", spool, "--json")
    first, _ = (each["batch_id"] for each in json.loads(out)[0]["atomic_batches"])
    code, out, _ = run(capsys, "spool", "abort", spool, "-b", servers, "--batch", first, "--json")
    done = json.loads(out)
    assert (code, done["aborted"], done["committed"], done["left"]) == (0, 1, 0, 0)
    _, out, _ = run(capsys, "spool", "ls", spool, "--json")
    assert [each["step"] for each in json.loads(out)[0]["atomic_batches"] if each["step"]] == [1]
    run(capsys, "spool", "drain", spool, "-b", servers)  # its code speaks of what is in rejected/
    assert seen(servers, "one-of-two", 2) == [b"2", b"2"]


def test_what_is_staged_behind_what_is_not_is_left_at_once(kafka, tmp_path, capsys):
    servers, spool = ",".join(kafka.bootstrap_servers), tmp_path / "spool"
    kafka.create_topic("left-behind", partitions=2)
    killed_with_the_second_staged(servers, spool, "left-behind")
    began = time.monotonic()
    code, out, _ = run(capsys, "spool", "commit", spool, "-b", servers, "--json", "--timeout", "8m")
    assert time.monotonic() - began < 240
    done = json.loads(out)
    assert (code, done["committed"], done["left"]) == (1, 0, 2)
    assert "an earlier atomic batch of the same partitions must" in done["batches"][0]["reason"]
    assert run(capsys, "spool", "drain", spool, "-b", servers)[0] == 0
    assert seen(servers, "left-behind", 2) == [b"1", b"2"]


def test_what_is_given_up_is_not_seen_and_is_kept(kafka, tmp_path, capsys):
    servers, spool = ",".join(kafka.bootstrap_servers), tmp_path / "spool"
    kafka.create_topic("given-up", partitions=2)
    killed_before_the_commit(servers, spool, "given-up")
    _, out, _ = run(capsys, "spool", "ls", spool, "--json")
    staged = json.loads(out)[0]["atomic_batches"][0]["batch_id"]
    code, out, _ = run(capsys, "spool", "abort", spool, "-b", servers, "--batch", staged[:9], "--json")
    done = json.loads(out)
    assert (code, done["aborted"], done["committed"], done["left"]) == (0, 1, 0, 0)
    run(capsys, "spool", "drain", spool, "-b", servers)
    assert seen(servers, "given-up", 2) == [b"2", b"2"]
    _, out, _ = run(capsys, "spool", "ls", spool, "--json")
    assert json.loads(out)[0]["rejected_records"] == 2
    assert json.loads(out)[0]["rejected"][0]["reason"].startswith("given up by kafkasafe spool abort")


def test_a_transaction_that_timed_out_meanwhile_is_prepared_again(kafka, tmp_path, capsys):
    servers, spool = ",".join(kafka.bootstrap_servers), tmp_path / "spool"
    kafka.create_topic("timed-out", partitions=2)
    killed_before_the_commit(servers, spool, "timed-out", timeout_ms=1000)
    consumer = KafkaConsumer(
        bootstrap_servers=servers, isolation_level="read_committed", group_id=None, kafka_client=tidy_client
    )
    place = TopicPartition("timed-out", 0)
    try:
        # The open transaction holds readers up until the coordinator aborts it.
        for _ in range(600):
            if consumer.end_offsets([place])[place] >= 2:
                break
            time.sleep(0.1)
    finally:
        consumer.close()
    code, out, _ = run(capsys, "spool", "commit", spool, "-b", servers, "--json")
    assert (code, json.loads(out)["committed"]) == (1, 0)
    with SafeProducer(bootstrap_servers=servers, spool_dir=spool) as producer:
        producer.flush(60)
    assert seen(servers, "timed-out", 4) == [b"1", b"1", b"2", b"2"]


def test_an_id_that_no_batch_has_is_a_usage_error(tmp_path, capsys):
    SafeProducer(bootstrap_servers="127.0.0.1:1", spool_dir=tmp_path / "spool").close(0)
    code, _, err = run(capsys, "spool", "commit", tmp_path / "spool", "-b", "127.0.0.1:1", "--batch", "ab")
    assert code == 2
    assert "no unfinished atomic batch" in err


def test_steps_follow_a_unit_through_its_division():
    begun = m.Begun(ID, "lane-0", 7, 3, 2)
    _, [log] = steps.steps_of(
        [
            (10, [m.Unit(ID, 0, 2)], [(1, False), (2, False)]),
            (20, [m.Replaced(1, 0, 2)], [(5, False), (6, False)]),
            (30, [m.Staged(begun, (m.Placed(1, 5, 1, 0, 40),))], []),
        ]
    )
    assert log.positions == [5, 6, 2]
    assert (log.step, log.prepared_ms, log.prepare_acknowledged_ms) == (
        ExchangeStep.PREPARE_ACKNOWLEDGED,
        10,
        30,
    )
    assert (log.transactional_id, log.producer_id, log.offsets) == ("lane-0", 7, {5: 40})


def test_steps_go_back_when_a_unit_is_prepared_again_and_end_with_its_outcome():
    begun = m.Begun(ID, "lane-0", 7, 3, 2)
    groups = [
        (10, [m.Unit(ID, 0, 1)], [(1, False)]),
        (20, [begun, m.Staged(begun, ())], []),
        (30, [m.Begun(ID, "lane-1", 8, 0, 2)], []),
    ]
    assert steps.steps_of(groups)[1][0].step is ExchangeStep.PREPARED
    groups.append((40, [m.Ended(ID, m.UnitOutcome.COMMITTED)], []))
    assert steps.steps_of(groups)[1][0].step is ExchangeStep.COMMIT_ACKNOWLEDGED
    groups.append((50, [m.Ended(ID, m.UnitOutcome.DROPPED, "no")], []))
    assert steps.steps_of(groups)[1][0].step is None


def test_steps_of_what_shared_a_transaction_go_back_when_one_of_them_leaves_it():
    other = bytes(reversed(ID))
    mine, others = m.Begun(ID, "lane-0", 7, 3, 2), m.Begun(other, "lane-0", 7, 3, 2)
    groups = [
        (10, [m.Unit(ID, 0, 1)], [(1, False)]),
        (11, [m.Unit(other, 0, 1)], [(3, False)]),
        (20, [mine, others, m.Staged(mine, ()), m.Staged(others, ())], []),
    ]
    both = [ExchangeStep.PREPARE_ACKNOWLEDGED] * 2
    assert [log.step for log in steps.steps_of(groups)[1]] == both
    left = [(30, [m.Begun(other, "lane-1", 8, 0, 2)], [])]
    assert [log.step for log in steps.steps_of(groups + left)[1]] == [ExchangeStep.PREPARED] * 2
    dropped = [(30, [m.Ended(other, m.UnitOutcome.DROPPED, "no")], [])]
    assert [log.step for log in steps.steps_of(groups + dropped)[1]] == [ExchangeStep.PREPARED, None]
    committed = [(30, [m.Ended(each, m.UnitOutcome.COMMITTED) for each in (ID, other)], [])]
    assert [log.step for log in steps.steps_of(groups + committed)[1]] == [
        ExchangeStep.COMMIT_ACKNOWLEDGED
    ] * 2


def test_plain_batches_have_times_too():
    identified = m.Identified(1, m.IdentityReason.FIRST, -1, (m.Identity(1, 7, 0, 0),))
    times, _ = steps.steps_of(
        [(10, [], [(1, False), (2, True)]), (20, [identified], []), (30, [m.Committed(1, 0, ((2, 5),))], [])]
    )
    assert times[1] == steps.BatchTimes(10, 20, -1)
    assert times[2] == steps.BatchTimes(10, 10, 30)


def test_a_batch_that_was_copied_forward_was_prepared_when_it_was_first_written():
    groups = [
        (10, [], [(1, False), (2, True)]),
        (20, [m.Identified(1, m.IdentityReason.FIRST, -1, (m.Identity(1, 7, 0, 0),))], []),
        (30, [m.Moved((m.Move(1, 1, (1,)), m.Move(2, 2, (2,))))], [(7, True), (8, True)]),
        (40, [m.Committed(1, 0, ((8, 5),))], []),
    ]
    times, _ = steps.steps_of(groups)
    assert times == {7: steps.BatchTimes(10, 20, -1), 8: steps.BatchTimes(10, 10, 40)}
    times, _ = steps.steps_of(groups[2:])
    assert times[7] == steps.BatchTimes(), "its first segment was deleted"


def test_batches_of_another_cluster_are_not_given_up(fake_kafka, tmp_path, capsys):
    """The command waited for its whole time-out, and did not say why."""
    fake_kafka.create_topic("orders", 1)
    with SafeProducer(bootstrap_servers=fake_kafka.bootstrap_servers, spool_dir=tmp_path) as producer:
        producer.send("orders", b"0").get(60)
        fake_kafka.kill_all()
        with producer.batch() as batch:
            batch.send("orders", b"1")
        producer.close(timeout=0)
    with FakeCluster(brokers=1) as other:
        began = time.monotonic()
        code, _, said = run(
            capsys, "spool", "abort", tmp_path, "-b", other.bootstrap_servers[0], "--timeout", "40s"
        )
        assert code == 3
        assert time.monotonic() - began < 40
    assert "holds records for cluster" in said


def test_what_is_dropped_is_not_counted_as_delivered(fake_kafka, tmp_path, capsys):
    """Its consumer is no member any more by then; drain said that its records were delivered."""
    fake_kafka.create_topic("orders", 1)
    directory, servers = tmp_path / "spool", ",".join(fake_kafka.bootstrap_servers)
    fake_kafka.deny("write", transactional_id="*")
    with SafeProducer(bootstrap_servers=servers.split(","), spool_dir=directory) as producer:
        with producer.batch() as batch:
            batch.send("orders", b"1")
            batch.send("orders", b"2")
            batch.send_offsets({TopicPartition("orders", 0): 5}, ConsumerGroupMetadata("g", 3, "left", None))
        with producer.batch() as batch:
            batch.send("orders", b"3")
        batch.outcome.durable(60)
        producer.close(0)
    fake_kafka.deny("write", transactional_id="*", on=False)
    code, out, _ = run(capsys, "spool", "drain", directory, "-b", servers)
    assert code == 0
    assert out == (
        "1 record delivered, 0 left\n2 records in dropped atomic batches: the batches' consumer group no longer accepts"
        " their offsets, so its members read the same input again\n"
    )
    code, out, _ = run(capsys, "spool", "drain", directory, "-b", servers, "--json")
    assert (code, json.loads(out)["dropped_records"]) == (0, 0)


def test_records_of_an_atomic_batch_that_failed_are_not_exported_as_committed(fake_kafka, tmp_path, capsys):
    """Only the atomic batch's own mark says so. Each batch whose segment still existed was called committed."""
    fake_kafka.create_topic("orders", 1, config={"max.message.bytes": 1000})
    directory = tmp_path / "spool"
    with SafeProducer(bootstrap_servers=fake_kafka.bootstrap_servers, spool_dir=directory) as producer:
        with producer.batch() as batch:
            batch.send("orders", b"whole")
        batch.outcome.get(60)
        with producer.batch() as refused:
            refused.send("orders", b"too large " * 1000)
        with pytest.raises(BatchDroppedError):
            refused.outcome.get(60)
        with producer.batch() as dropped:
            dropped.send("orders", b"read again")
            dropped.send_offsets(
                {TopicPartition("orders", 0): 5}, ConsumerGroupMetadata("g", 3, "left", None)
            )
        with pytest.raises(BatchDroppedError):
            dropped.outcome.get(60)

    def exported(name):
        run(capsys, "spool", "export", directory, "-o", tmp_path / name)
        rows = map(json.loads, (tmp_path / name).read_text(encoding="utf-8").splitlines())
        return {row["value"][:10].strip(): row["status"] for row in rows}

    assert exported("all.jsonl") == {"whole": "committed", "too large": "rejected", "read again": "dropped"}
    rows = json.loads(run(capsys, "spool", "show", directory, "--all", "--json")[1])
    notes = {row["status"]: row["note"] for row in rows}
    assert "MESSAGE_TOO_LARGE (10)" in notes["rejected"]
    assert "ILLEGAL_GENERATION (22)" in notes["dropped"]
    assert run(capsys, "spool", "show", directory)[0] == 1, "something was rejected"
    for path in directory.glob("lane-*/rejected/*.log"):
        path.unlink()
    assert exported("rest.jsonl") == {"whole": "committed", "too large": "dropped", "read again": "dropped"}
    assert run(capsys, "spool", "show", directory)[0] == 0
