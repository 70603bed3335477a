"""Mutants: faults that are put into the product in memory, which tests must find. This is what all kinds of them share.

The tables are beside the tests that find them: `journal/mutants.py` (the journal), `simulation/mutants.py` (the engine),
`engine/unit_mutants.py` (atomic batches), `engine/wait_mutants.py` (batches that wait), `engine/place_mutants.py` (where the
spool is) and `spool/test_mutants.py`. `mutants.txt` names every mutant; each table is compared with it.

A mutant names the function that has a rule, and the words in it that are the rule. Where code moves, its place follows;
where it changes, `source` says that the mutant is out of date.
"""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from kafkasafe.errors import SpoolError
from kafkasafe.journal.batch import IllegalMoveError
from kafkasafe.units import IllegalStepError

Change = Callable[[Any], None]
"""Makes a change, with pytest's `monkeypatch`."""

FOUND = (AssertionError, IllegalMoveError, IllegalStepError, SpoolError, KeyError, ValueError)
"""Errors that show that a mutant was found. A NameError, AttributeError or TypeError shows that the mutant is broken."""


def source(place: Any, name: str, *changes: str) -> Change:
    """A change of a function's source: words, and what stands there instead; more of both may follow."""

    def change(patch: Any) -> None:
        function = inspect.getattr_static(place, name)
        kept = staticmethod if isinstance(function, staticmethod) else None
        function = getattr(function, "__func__", function)
        text = textwrap.dedent(inspect.getsource(function))
        for old, new in zip(changes[::2], changes[1::2], strict=True):
            if old not in text:
                raise OutOfDateError(f"The mutant is out of date: {name} has no {old!r}")
            text = text.replace(old, new)
        text = "\n".join(
            line for line in text.split("\n") if line.strip() not in {"@staticmethod", "@classmethod"}
        )
        local: dict[str, Any] = {}
        # `super()` and private names do not work in here; who needs them writes a class instead.
        exec(
            compile("from __future__ import annotations\n" + text, f"<mutant of {name}>", "exec"),
            vars(sys.modules[function.__module__]),
            local,
        )
        patch.setattr(place, name, kept(local[name]) if kept else local[name])

    return change


def nothing(place: Any, name: str, result: Any = None) -> Change:
    """A function that does nothing."""

    def change(patch: Any) -> None:
        if not hasattr(place, name):
            raise OutOfDateError(f"The mutant is out of date: there is no {name}")
        patch.setattr(place, name, lambda *_, **__: result)

    return change


def both(*changes: Change) -> Change:
    """All of them."""

    def change(patch: Any) -> None:
        for each in changes:
            each(patch)

    return change


class OutOfDateError(LookupError):
    """A mutant quotes source that is no longer there."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A change in memory, and the test that finds it.

    Attributes:
        change: Makes it, with pytest's `monkeypatch`.
        test: Name of the test. Empty: seeded storms of atomic batches find it.
        of: Arguments of the test. Without any, each case of its parameters is tried.
        first: The first seed of the storms.
        recreated: In the storms topics are deleted and created again.
        groups: In the storms atomic batches have the offsets of consumers of a group.
    """

    change: Change
    test: str = ""
    of: Mapping[str, object] = field(default_factory=dict)
    first: int = 0
    recreated: bool = False
    groups: bool = False


@dataclass(frozen=True, slots=True)
class HistoryMutant:
    """A change in memory, and the histories of the simulation that find it.

    Attributes:
        change: Makes it, with pytest's `monkeypatch`.
        kind: Of the histories.
        first: The first seed.
    """

    change: Change
    kind: str = "all"
    first: int = 0


def listed(area: str) -> list[str]:
    """The names that `mutants.txt` has of an area. Whoever takes out a mutant has to take its name out of that list."""
    lines = (Path(__file__).parent / "mutants.txt").read_text(encoding="utf-8").splitlines()
    return [line.removeprefix(f"{area}: ") for line in lines if line.startswith(f"{area}: ")]


def run(name: str, modules: tuple[ModuleType, ...], of: Mapping[str, object], request: Any) -> None:
    """Call a test.

    Args:
        name: Its name.
        modules: One of them has it.
        of: Arguments. Each case of its parameters is tried that agrees with them.
        request: pytest's, for fixtures.
    """
    test = next(getattr(module, name) for module in modules if hasattr(module, name))
    taken = inspect.signature(test).parameters
    for case in _cases(test):
        given = {**case, **of}
        test(**given, **{each: request.getfixturevalue(each) for each in taken if each not in given})
        if of:
            return


def _cases(test: Any) -> Iterator[dict[str, Any]]:
    """What `pytest.mark.parametrize` says."""
    cases: list[dict[str, Any]] = [{}]
    for mark in getattr(test, "pytestmark", []):
        names = [mark.args[0]] if isinstance(mark.args[0], str) else mark.args[0]
        rows = mark.args[1] if len(names) > 1 else [(value,) for value in mark.args[1]]
        cases = [{**case, **dict(zip(names, row, strict=True))} for case in cases for row in rows]
    yield from cases
