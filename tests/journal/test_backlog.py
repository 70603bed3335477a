"""Backlogs of which most is packed; positions without an object for each: pure, against plain lists and dicts."""

from __future__ import annotations

import random
import tracemalloc
from collections import deque

import pytest

from kafkasafe.journal import queue as backlogs
from kafkasafe.journal.queue import BacklogRow, PartitionQueue
from kafkasafe.journal.spool_index import Ordered
from kafkasafe.spool.segment import Places, Stored


def row(number, identity=None):
    return BacklogRow(
        number,
        10 * number,
        1_700_000_000_000 + number,
        number + 1,
        100 + number,
        identity,
        number / 4,
        former_life=number % 3 == 0,
    )


@pytest.mark.parametrize("seed", range(20))
def test_a_backlog_is_the_queue_that_it_would_be_unpacked(seed):
    rng = random.Random(seed)
    backlog, model, numbers = PartitionQueue(), deque(), iter(range(10_000))
    for _ in range(2000):
        what = rng.random()
        if what < 0.5:
            number = next(numbers)
            backlog.append(number)
            model.append(number)
        elif what < 0.7 and len(backlog.near):
            assert (backlog.first, backlog.remove(backlog.first)) == (model.popleft(), True)
        elif what < 0.75:
            ready = list(backlog.candidates(4))[: rng.randrange(1, 20)]
            if ready:
                backlog.pack([row(number, (7, 0, number)) for number in ready], min(4, len(backlog)))
        elif backlog.packed.count and len(backlog.near) < 8:
            got = backlog.packed.shift()
            assert got == row(got.number, (7, 0, got.number))
            backlog.put_back(got.number)
        assert len(backlog) == len(model)
        assert bool(backlog) == bool(model)
        assert list(backlog.near) == list(model)[: len(backlog.near)]
        if backlog.packed.count:
            packed = list(model)[len(backlog.near) :][: backlog.packed.count]
            assert backlog.packed.first().number == packed[0]
            assert backlog.packed.records == sum(number + 1 for number in packed)
            assert backlog.packed.with_id == len(packed)
            hidden = set(packed)
            assert list(backlog.all()) == [n for n in model if n not in hidden]
            wanted = rng.choice(model)
            assert backlog.packed.has(10 * wanted) == (wanted in hidden)
            assert not backlog.packed.has(10 * wanted + 1)
        else:
            assert list(backlog.near) == list(model)


def test_a_packed_batch_takes_a_few_dozen_bytes():
    backlog, numbers = (
        PartitionQueue(),
        range(0, 400 * 12_800, 400),
    )  # every 400th batch is for this partition
    tracemalloc.start()
    try:
        for number in numbers:
            backlog.append(number)
            backlog.pack([row(each) for each in backlog.candidates(0)], 0)
        # Other threads of this process allocate too; the lower bound shows that the filter finds the backlog's own.
        own = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, backlogs.__file__)])
        assert 4 < sum(trace.size for trace in own.traces) / len(numbers) < 24
    finally:
        tracemalloc.stop()


def test_what_is_packed_can_lose_its_ids():
    backlog = PartitionQueue()
    for number in range(10):
        backlog.append(number)
    backlog.pack([row(number, (7, number // 5, number)) for number in range(2, 10)], 2)
    assert backlog.packed.identified
    assert backlog.packed.shift().identity == (7, 0, 2)
    backlog.packed.forget_identities()
    assert not backlog.packed.identified
    assert [backlog.packed.shift().identity for _ in range(7)] == [None] * 7


@pytest.mark.parametrize("seed", range(5))
def test_the_least_key_is_known_in_any_order(seed):
    rng = random.Random(seed)
    ordered, model = Ordered(), {}
    for _ in range(3000):
        key = rng.randrange(300)
        if rng.random() < 0.5:
            ordered[key] = model[key] = key
        else:
            assert ordered.pop(key, None) == model.pop(key, None)
        assert (ordered.least, dict(ordered)) == (min(model, default=None), model)


@pytest.mark.parametrize("seed", range(5))
def test_places_are_the_dict_that_they_stand_for(seed):
    rng = random.Random(seed)
    places, model, position = Places(), {}, 0
    for _ in range(500):
        position = position + rng.randrange(1, 50) if rng.random() < 0.95 else rng.randrange(max(1, position))
        stored = Stored(
            rng.randrange(2**40), rng.randrange(2**31), rng.randrange(2**32), rng.randrange(1, 1000)
        )
        places.add(position, stored)
        model[position] = stored
        if rng.random() < 0.01:
            cut = rng.randrange(position + 1)
            places.cut(cut)
            model = {at: each for at, each in model.items() if at < cut}
            position = max(model, default=0)
        probe = rng.randrange(position + 50)
        assert (probe in places) == (probe in model)
        assert places.get(probe) == model.get(probe)
    assert dict(places.items()) == dict(sorted(model.items()))
