"""The real engine in seeded histories, in virtual time: `kafkasafe/delivery/engine` on the fake cluster and on a disk that crashes.

A seed makes a `Plan`: settings, and a list of events (`plan.py`). A `Storm` plays it (`storm.py`) in one thread, in
which nothing waits, and a `Book` checks what is promised (`book.py`), while it goes on and when it is over. A history
that breaks a promise is made as short as possible (`shrink.py`). `make simulate SEEDS=100000` plays many, `make simulate
SEED=123` one (`__main__.py`). Atomic batches (`KIND=units`) and a consumer (`KIND=consumer`) have worlds of their own
(`unplanned.py`).

**To add an event**: a method `do_<name>(self, a, b, c)` of `Storm`, and the name with its weight in `plan.KINDS`. The
three numbers are all that is random in it: whoever takes other events out of the history must not change what it does.
It takes them modulo whatever there is at that moment, and does nothing where it makes no sense. What it breaks comes
back by itself (`Storm.later`) and at the end (`Storm.calm`).

**To add a setting**: a field of `plan.Settings`, and where `plan.plan_of` draws it. Draw after what is drawn already, or all
seeds become others.

**To add a check**: a method of `Book` that raises `Violation(name, what)`, called from `Storm` where it can be seen, or
from `Book.close` when all is over. What is only promised under a condition asks for the condition there, by name:
see `Book.PROMISES`, where a promise that the code does not keep yet is switched off.

**To add a mutant**: an entry in `mutants.py`, which changes the code in memory, with the kind of plan and the first seed in
which it is found. `python -m tests.simulation.hunt NAME` looks for them.
"""

from __future__ import annotations

import sys
from pathlib import Path

# The world that the engine lives in (virtual.py) is beside the golden transcripts, the journal's mutants beside its
# tests, the consumer's world beside its tests, and what all mutants share above.
sys.path[:0] = [
    str(Path(__file__).parents[1] / name) for name in ("", "engine", "journal", "units", "consumer")
]
