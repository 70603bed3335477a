"""What a lane owes by its control batches, and what another one holds back for that."""

from __future__ import annotations

import random

from kafkasafe import marks as m
from kafkasafe.journal import UNCHOSEN
from kafkasafe.journal.order import NEVER, Owed, held_from, holds

LANE = b"0123456789abcdef"
A, B, ANY = ("a", 0), ("b", 3), ("a", UNCHOSEN)
DECLARED = [m.Destination(1, *A), m.Destination(2, *B), m.Destination(3, *ANY)]


def group(position: int, manifest=(), *, synced: int = 0, atomic: bool = False) -> m.Group:
    entries = tuple(m.ManifestEntry(at, to, 100, 0) for at, to in manifest)
    return m.Group(2, LANE, position, synced, atomic, False, False, entries)


def test_what_is_not_finished_is_owed_by_where_it_stands():
    owed = Owed()
    owed.group(group(0, [(4, 1), (6, 2), (9, 1)]), DECLARED)
    assert owed.addresses(4) == frozenset()
    assert owed.addresses(5) == {A}
    assert owed.addresses(9) == owed.addresses(NEVER) == {A, B}
    assert owed.end_position == 10
    owed.group(group(12), [m.Committed(1, 0, ((4, 70),))])
    assert (owed.addresses(5), owed.addresses(10)) == (frozenset(), {A, B})
    owed.group(group(15), [m.Rejected(6, 29, "no"), m.Undecidable(9, "gone")])
    assert owed.addresses(NEVER) == {A}, "what is undecidable is not finished"
    owed.group(group(18), [m.Revived(1, 5, (4,), (9,))])
    assert owed.addresses(5) == {A}, "the cluster lost it: it is owed again"
    owed.begins(9)
    assert owed.addresses(9) == frozenset(), "what was deleted was finished"


def test_what_was_divided_is_owed_where_it_stood_first():
    """Its parts are written later than the life was that waits for it."""
    owed = Owed()
    owed.group(group(0, [(4, 3), (6, 1)]), DECLARED)
    before = owed.end_position
    assert owed.addresses(before) == {A, ANY}
    owed.group(group(10, [(12, 1), (13, 2)], atomic=True), [m.Replaced(4, 0, 2)])
    assert owed.addresses(before) == {A, B}
    owed.group(group(20, [(22, 2), (23, 2)], atomic=True), [m.Replaced(13, 0, 2)])
    owed.group(group(30), [m.Committed(1, 0, ((6, 1), (12, 0)))])
    assert owed.addresses(before) == {B}
    owed.group(group(33), [m.Committed(2, 0, ((22, 0), (23, 1)))])
    assert owed.addresses(NEVER) == frozenset()


def test_a_lane_holds_back_from_where_the_life_began_that_has_to_wait():
    early, late = m.Debt(1, LANE, 50), m.Debt(2, LANE, 90)
    afters = [m.After(10, (early,)), m.After(30, (early, late))]
    held = holds(afters, {early: frozenset({A}), late: frozenset({A, B})})
    assert (held_from(held, *A), held_from(held, *B), held_from(held, "c", 0)) == (10, 30, NEVER)
    held = holds(afters, {early: frozenset(), late: frozenset({ANY})})
    assert (held_from(held, *A), held_from(held, "a", 9), held_from(held, *B)) == (30, 30, NEVER)
    held = holds(afters, {early: frozenset(), late: None})
    assert held_from(held, "c", 7) == 30, "not known yet: everything waits"


def test_no_two_lives_ever_wait_for_each_other():
    """Random histories of a directory with one partition: what is to be delivered can be, in an order without a circle."""
    for seed in range(300):
        rng = random.Random(seed)
        # By lane: batches as [position, delivered], where lives began with what they wait for; the living owner's begin.
        lanes = [([], [], [-1]) for _ in range(3)]
        ends = [0, 0, 0]
        for _ in range(40):
            number = rng.randrange(3)
            batches, afters, begun = lanes[number]
            match rng.randrange(4):
                case 0:  # its owner dies
                    begun[0] = -1
                case 1 if begun[0] < 0:  # a life begins
                    debts = {}
                    for other, (theirs, _, alive) in enumerate(lanes):
                        end = ends[other] if alive[0] < 0 else alive[0]
                        if other != number and any(at < end for at, _ in theirs):
                            debts[other] = m.Debt(other, LANE, end)
                    begun[0] = ends[number]
                    if debts:
                        afters.append(m.After(begun[0], tuple(debts.values())))
                case 2 if begun[0] >= 0:
                    batches.append((ends[number], len(batches)))
                    ends[number] += 1
                case 3 if batches:  # whoever carries it delivers the oldest
                    pass
        # All are dead; everything can be delivered, lane by lane, oldest first.
        left = [list(batches) for batches, _, _ in lanes]
        while any(left):
            for number, mine in enumerate(left):
                afters = lanes[number][1]
                owed = {
                    debt: frozenset({A})
                    if left[debt.lane] and left[debt.lane][0][0] < debt.before
                    else frozenset()
                    for after in afters
                    for debt in after.debts
                }
                if mine and mine[0][0] < held_from(holds(afters, owed), *A):
                    mine.pop(0)
                    break
            else:
                raise AssertionError(f"seed {seed}: they wait for each other: {left}")
