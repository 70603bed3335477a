"""How far `send` may run ahead: what counts, and what a sender waits for after an outage."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kafkasafe._producing.open_batch_room import MOST_BYTES
from kafkasafe.delivery.engine.disk import _MEMORY_BYTES
from kafkasafe.limits.run_ahead import PATIENCE_S, RUN_AHEAD_BYTES, RunAhead
from kafkasafe.limits.uplink import MEMORY_BYTES

A, B = ("orders", 0), ("orders", 1)


def test_a_sender_waits_at_the_limit_and_goes_on_some_way_below_it() -> None:
    ahead = RunAhead(1000)
    ahead.accepted(A, 999, 0.0)
    assert not ahead.is_reached()
    ahead.accepted(A, 1, 0.0)
    assert ahead.is_reached()
    ahead.answered(A, 200, 0.1)
    assert not ahead.is_reached()
    assert not ahead.has_eased()
    ahead.answered(A, 100, 0.1)
    assert ahead.has_eased()


def test_a_partition_that_does_not_answer_keeps_no_sender_waiting() -> None:
    ahead = RunAhead(1000)
    ahead.accepted(A, 600, 0.0)
    ahead.accepted(B, 600, 0.0)
    assert ahead.is_reached()
    ahead.answered(A, 600, 0.4)
    ahead.accepted(A, 600, 0.4)
    ahead.expire(PATIENCE_S)
    assert ahead.silent == frozenset()  # B may wait for its turn, because A answers
    assert ahead.is_reached()
    ahead.answered(A, 600, 0.8)
    ahead.expire(0.8 + PATIENCE_S)
    assert ahead.silent == {B}
    ahead.accepted(B, 5000, 1.4)
    assert not ahead.is_reached()
    ahead.accepted(A, 1000, 1.4)
    assert ahead.is_reached()  # but A is bounded as before


def test_a_partition_counts_while_it_waits_for_its_turn() -> None:
    """Of thousands of partitions, each got its answer after more than half a second, so none of them counted."""
    ahead = RunAhead(1000)
    partitions = [("orders", number) for number in range(100)]
    for address in partitions:
        ahead.accepted(address, 10, 0.0)
    for number, address in enumerate(partitions):
        now = number / 50
        ahead.expire(now)
        assert ahead.silent == frozenset()
        ahead.answered(address, 10, now)
        ahead.accepted(address, 10, now)
        assert ahead.is_reached()


def test_a_partition_that_misses_its_turn_does_not_count() -> None:
    """The cluster acknowledged two limits: everything that was outstanding when B began to wait."""
    ahead = RunAhead(1000)
    ahead.accepted(B, 1000, 0.0)
    for number in range(1, 20):
        ahead.accepted(A, 100, number / 10)
        ahead.answered(A, 100, number / 10)
        ahead.expire(number / 10)
        assert ahead.silent == frozenset()
    ahead.accepted(A, 100, 2.0)
    ahead.answered(A, 100, 2.0)
    ahead.expire(2.3)
    assert ahead.silent == {B}
    assert not ahead.is_reached()


def test_a_partition_waits_about_five_seconds_for_its_turn_even_if_the_others_are_slow() -> None:
    ahead = RunAhead(1000)
    ahead.accepted(B, 1000, 0.0)
    for number in range(1, 50):
        ahead.accepted(A, 1, number / 10)
        ahead.answered(A, 1, number / 10)
        ahead.expire(number / 10)
        assert ahead.silent == frozenset()
    ahead.accepted(A, 1, 5.3)
    ahead.answered(A, 1, 5.3)
    ahead.expire(5.4)
    assert ahead.silent == {B}
    assert not ahead.is_reached()


def test_a_cluster_that_answers_none_keeps_no_sender_waiting() -> None:
    ahead = RunAhead(1000)
    for number in range(10):
        ahead.accepted(A, 1000, number / 10)
    ahead.expire(PATIENCE_S - 0.01)
    assert ahead.is_reached()
    ahead.expire(PATIENCE_S)
    assert not ahead.is_reached()


def test_after_an_outage_a_slow_sender_does_not_wait_and_a_fast_one_lets_the_partition_catch_up() -> None:
    def outage() -> RunAhead:
        ahead = RunAhead(1000)
        ahead.accepted(A, 100_000, 0.0)
        ahead.expire(1.0)
        ahead.answered(A, 100, 1.0)
        return ahead

    slow = outage()
    for _ in range(900):
        assert not slow.is_reached()
        slow.accepted(A, 40, 1.0)
        slow.answered(A, 100, 1.0)

    fast, waited, outstanding = outage(), 0, 99_900
    while outstanding > 1000:
        before = outstanding
        for _ in range(100):
            if fast.is_reached():
                waited += 1
            else:
                fast.accepted(A, 100, 1.0)
                outstanding += 100
            fast.answered(A, 100, 1.0)
            outstanding -= 100
        assert outstanding < before + 1000
    assert waited > 100


def test_what_is_withdrawn_does_not_count() -> None:
    ahead = RunAhead(1000)
    ahead.accepted(A, 2000, 0.0)
    ahead.withdrawn(A, 1500)
    assert not ahead.is_reached()
    ahead.withdrawn(A, 500)
    ahead.accepted(A, 1000, 0.0)
    assert ahead.is_reached()
    ahead.clear()
    assert not ahead.is_reached()


def test_what_is_withdrawn_without_counting_leaves_the_backlog_of_others_its_room() -> None:
    """A's backlog is being delivered, while B is silent and its batches leave memory."""
    ahead = RunAhead(1000)
    ahead.accepted(A, 6000, 0.0)
    ahead.accepted(B, 5000, 0.0)
    ahead.expire(PATIENCE_S)
    ahead.answered(A, 100, 1.0)
    assert not ahead.is_reached()
    ahead.withdrawn(B, 4000)
    assert not ahead.is_reached()


def test_what_may_be_outstanding_stays_in_memory_until_it_is_sent() -> None:
    """Topics with thousands of partitions: just below the limit, an open batch of 8 MiB was added, and more than the
    half of all batches was read back from disk.
    """
    assert RUN_AHEAD_BYTES + MOST_BYTES <= _MEMORY_BYTES < MEMORY_BYTES


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["accept", "answer", "withdraw", "expire"]),
        st.sampled_from([A, B]),
        st.integers(1, 900),
    )
)


@given(STEPS)
def test_whatever_happens_a_sender_may_go_on_when_all_is_answered_or_nothing_is_for_a_while(
    steps: object,
) -> None:
    ahead, now = RunAhead(1000), 0.0
    waiting: dict[tuple[str, int], list[int]] = {A: [], B: []}
    for kind, address, size in steps:  # type: ignore[attr-defined]
        now += size / 3000
        if kind == "accept":
            ahead.accepted(address, size, now)
            waiting[address].append(size)
        elif kind == "expire":
            ahead.expire(now)
        elif waiting[address]:
            oldest = waiting[address].pop(0)
            if kind == "answer":
                ahead.answered(address, oldest, now)
            else:
                ahead.withdrawn(address, oldest)
        # At most a limit above what is outstanding is ever admitted.
        assert ahead._ceiling_bytes <= max(1000, ahead._outstanding_bytes + 1000)
    ahead.expire(now + 2 * PATIENCE_S)
    assert not ahead.is_reached()
    for address, sizes in waiting.items():
        for size in sizes:
            ahead.answered(address, size, now)
    assert ahead._outstanding_bytes == 0
    assert ahead._ceiling_bytes == 1000
