"""The ids of a partition's batches: one sequence under the incarnation's producer id, and a new epoch once it is void."""

from __future__ import annotations

import pytest

from kafkasafe.history.identity import BatchId
from kafkasafe.journal.home import _MAX_EPOCH, Home, IdSequence


@pytest.fixture
def home() -> Home:
    home = Home()
    home.grant(7, 3)
    return home


def test_batches_get_ids_once_the_cluster_granted_one() -> None:
    home = Home()
    assert home.producer_id == -1
    home.grant(7, 3)
    assert home.producer_id == 7
    home.withdraw()
    assert home.producer_id == -1


def test_sequences_continue_where_the_batch_before_ends(home: Home) -> None:
    ids = IdSequence()
    assert [ids.take(home, count) for count in (2, 5, 1)] == [
        BatchId(7, 3, 0, 2),
        BatchId(7, 3, 2, 5),
        BatchId(7, 3, 7, 1),
    ]


def test_sequences_begin_again_after_the_largest(home: Home) -> None:
    ids = IdSequence(7, 3, 2**31 - 1)
    assert [ids.take(home, 1).base_sequence for _ in range(2)] == [2**31 - 1, 0]


def test_partitions_count_separately(home: Home) -> None:
    IdSequence().take(home, 2)
    assert IdSequence().take(home, 2).base_sequence == 0


def test_another_producer_id_begins_at_sequence_0(home: Home) -> None:
    ids = IdSequence()
    ids.take(home, 2)
    home.grant(8, 0)
    assert ids.take(home, 2) == BatchId(8, 0, 0, 2)


def test_new_ids_have_the_next_epoch(home: Home) -> None:
    """With it the broker fences the epoch before: no late request under an old id is appended."""
    ids = IdSequence()
    ids.take(home, 2)
    ids.expire()
    assert ids.stale
    ids.renew(home)
    assert not ids.stale
    assert ids.take(home, 2) == BatchId(7, 4, 0, 2)


def test_the_epoch_of_an_earlier_incarnation_is_never_raised(home: Home) -> None:
    """Two copies of a spool would make the same new id."""
    ids = IdSequence(6, 9, 40)
    ids.renew(home)
    assert (ids.producer_id, ids.epoch, ids.next_sequence) == (6, 9, 40)
    assert ids.take(home, 2) == BatchId(7, 3, 0, 2)


def test_after_the_last_epoch_the_cluster_grants_another_id() -> None:
    home = Home()
    home.grant(7, _MAX_EPOCH)
    ids = IdSequence()
    ids.take(home, 2)
    ids.renew(home)
    assert home.producer_id == -1
    home.grant(8, 0)
    assert ids.take(home, 2) == BatchId(8, 0, 0, 2)


def test_in_another_cluster_no_batch_has_an_id_yet(home: Home) -> None:
    ids = IdSequence()
    ids.take(home, 2)
    ids.expire()
    ids.forget()
    assert not ids.stale
    home.grant(7, 0)
    assert ids.take(home, 2) == BatchId(7, 0, 0, 2)
