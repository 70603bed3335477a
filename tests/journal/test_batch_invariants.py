"""What the fields of `Batch` promise holds between any two calls of the journal, whatever happens to it.

Each name below is that of a field, whose text in `journal/batch.py` has the invariant.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from operator import itemgetter
from typing import Any

import pytest
from mutation import source
from tapes import histories, recorder
from tiers import in_tiers

from kafkasafe import journal as j
from kafkasafe.journal.batch import BatchState as S
from kafkasafe.journal.batch import Fault

INVARIANTS: dict[str, Callable[[j.Batch], bool]] = {
    "identity": lambda b: (
        (b.identity is not None or b.state not in {S.PREPARED, S.SENT, S.IN_DOUBT, S.REFUSED})
        and (b.identity is None or (b.state is not S.JOINED and b.identity.count == b.count))
    ),
    "tries": lambda b: b.tries > 0 or b.state is not S.SENT,
    "durable": lambda b: b.durable == (b.position >= 0),
    "writing": lambda b: not (b.writing and b.durable),
    "owed": lambda b: not (b.owed and b.former_life),
    "unanswered": lambda b: (
        not b.unanswered if b.state in {S.SEALED, S.JOINED, S.REFUSED} else b.unanswered or b.state is not S.IN_DOUBT
    ),
    "timeouts": lambda b: b.timeouts <= b.tries,
    "base_offset": lambda b: b.base_offset < 0 or b.state in {S.ACKED, S.COMMITTED},
    "place": lambda b: (
        (b.place >= 0) == (b.identity is not None) if b.state is S.COMMITTED else b.place < 0 or b.revived
    ),
    "revived": lambda b: not b.revived or b.unit is None,
    "code": lambda b: b.fault.code != 0 or b.state is not S.REFUSED,
    "message": lambda b: bool(b.fault.message) or not (b.fault.code or b.state is S.UNDECIDABLE),
    "bad_records": lambda b: (
        not b.fault.bad_records or (b.fault.code != 0 and b.state in {S.REFUSED, S.REJECTED, S.REPLACED})
    ),
    "unconfirmed": lambda b: (
        not b.fault.unconfirmed or (b.identity is not None and b.state in {S.REFUSED, S.PREPARED, S.IN_DOUBT})
    ),
    "condemned": lambda b: (
        not b.fault.condemned or (b.fault.code != 0 and b.state in {S.IN_DOUBT, S.SENT, S.UNDECIDABLE, S.REJECTED})
    ),
    "doomed": lambda b: not b.fault.doomed or (b.identity is None and b.state in {S.SEALED, S.REJECTED}),
    "parent": lambda b: b.parent is None or b.parent.state is S.REPLACED,
    "rank": lambda b: bool(b.rank) == (b.position >= 0),
    "heirs": lambda b: b.heirs == 0 or (b.heirs > 0 and b.state is S.REPLACED),
    "origin": lambda b: b.position < 0 or b.origin < b.position,
    "gathered": lambda b: not b.gathered or b.owed,
    "unit": lambda b: (
        b.state in {S.JOINED, S.ACKED, S.COMMITTED, S.REJECTED, S.REPLACED} if b.unit else b.state is not S.JOINED
    ),
    "given": lambda b: b.given is None or b.identity is None,
}  # fmt: skip
CHUNKS = 10
SEEDS = 1200


class Checked(recorder.Tape):
    """Checks, after each call of the journal, the batches that are unfinished, and those that were before the call."""

    def __init__(self) -> None:
        super().__init__()
        self.before: dict[int, j.Batch] = {}
        self.broken: Counter[str] = Counter()

    def call(self, on: str, name: str, *rest: Any) -> Any:
        result = super().call(on, name, *rest)
        if not name.startswith(("recover", "pack_recovered")) or name == "recovered":
            now = {batch.handle: batch for batch in unfinished(self.journal)}
            self.broken.update(broken({**self.before, **now}.values()))
            self.before = now
        return result


def unfinished(journal: j.Journal) -> Iterator[j.Batch]:
    state = journal._state
    for destination in state.destinations.all.values():
        yield from destination.queue.near
    yield from map(itemgetter(1), state.index.items())


def broken(batches: Iterable[j.Batch]) -> Iterator[str]:
    for batch in batches:
        for name, holds in INVARIANTS.items():
            if not holds(batch):
                yield f"{name} in {batch.state.name}"


def first_broken(seeds: Iterable[int], patch: pytest.MonkeyPatch) -> str:
    """What is broken in the first of these histories in which something is."""
    tapes: list[Checked] = []

    def made() -> Checked:
        tapes.append(Checked())
        return tapes[-1]

    patch.setattr(histories, "Tape", made)
    for seed in seeds:
        histories.play(seed)
        found = sum((tape.broken for tape in tapes), Counter[str]())
        if found:
            return f"seed {seed}: {', '.join(sorted(found))}"
        tapes.clear()
    return ""


@pytest.mark.parametrize("chunk", in_tiers(CHUNKS, fast=3))
def test_each_invariant_holds_after_each_call(chunk, monkeypatch):
    assert first_broken(range(chunk, SEEDS, CHUNKS), monkeypatch) == ""


@pytest.mark.parametrize(
    ("method", "line", "found"),
    [
        ("written", "self.writing = False", "writing in PREPARED"),
        ("on", "self.unanswered = True", "unanswered in IN_DOUBT"),
        ("revive", "self.base_offset = -1", "base_offset in SEALED"),
        ("add_heir", "self.heirs += 1", "heirs in"),
    ],
)
def test_a_batch_that_forgets_a_step_breaks_an_invariant(method, line, found, monkeypatch):
    source(j.Batch, method, line, f"pass  # {line}")(monkeypatch)
    assert found in first_broken(range(SEEDS), monkeypatch)


@pytest.mark.parametrize("name", INVARIANTS)
def test_an_invariant_belongs_to_a_field(name):
    assert name in {*j.Batch.__dataclass_fields__, *Fault.__dataclass_fields__}
