"""A tape, journals that record on it, and the replay of a tape."""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
import itertools
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from kafkasafe import journal as j
from kafkasafe import units as u
from kafkasafe.history import loss
from kafkasafe.journal import outbox
from kafkasafe.journal.recovery import Recovery

from .words import KNOWN, word

_VIEWS = frozenset({"packable"})
"""They change nothing: a tape has what `Journal.views` says after each `ready`, and not who asked."""
_UNIT_VIEWS = frozenset({"held_up"})
_NAMED = (
    u.InitProducerId, u.AddPartitions, u.Produce, u.CommitOffsets, u.EndTxn, u.DescribeTxn, u.FindOutcome, u.Refuse,
    u.UnitPause, u.RetryLater,
    outbox.BatchEnded, outbox.BaselineDurable, outbox.BatchesIdentified, outbox.SilenceBroken, outbox.UnitStaged, outbox.UnitEnded,
    outbox.UnitGroup,
    j.Aside,
)  # fmt: skip
"""What the journal gives out and gets back: named in the order in which it is first seen."""


class Tape:
    """What was asked of one journal, and what it decided.

    Attributes:
        lines: The tape.
        journal: The journal.
        busy: One of its methods is being called: what it calls of its own is no event.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.journal: Any = None
        self.busy = False
        self.readings: list[int] = []
        self._objects: dict[str, Any] = {}
        self._names: dict[int, str] = {}
        self._shows: dict[type, Callable[[Any], str]] = {
            int: repr, str: repr, bytes: repr, float: repr, bool: repr, type(None): repr,
            j.Batch: self._show_batch, u.Unit: self._show_unit, u.Transaction: self._show_transaction,
            u.TransactionalId: lambda tid: tid.name,
            loss.Released: _show_released,
            list: self._show_all, tuple: self._show_all, deque: self._show_all,
            dict: self._show_dict, MappingProxyType: self._show_dict,
            set: self._show_sorted, frozenset: self._show_sorted,
            **dict.fromkeys(_NAMED, self._show_named),
        }  # fmt: skip

    # -- decisions ---------------------------------------------------------------------------------------------------

    def show(self, value: Any) -> str:
        """A decision as text."""
        kind = type(value)
        show = self._shows.get(kind)
        if show is None:
            show = self._shows[kind] = self._show_enum if isinstance(value, enum.Enum) else self._show_fields
        return show(value)

    def ready(self, ready: j.Ready) -> None:
        """All of it, a line for each kind."""
        for name in _fields(j.Ready):
            value = getattr(ready, name)
            if value:
                self.lines.append(f"  {name}: {self.show(value)}")

    def views(self) -> None:
        """What the journal says of itself."""
        journal, views = self.journal, self.journal.views
        said = (
            views.release_position, views.held_position, views.unfinished, views.in_doubt, views.in_flight,
            views.doubts(), views.last_acked_offsets(), views.idle(), journal.at_rest, len(views.denials()),
            views.spooled_records, tuple(journal.missing.said), [unit.position for unit in journal.units.lines.batchless.values()],
        )  # fmt: skip
        self.lines.append(f"  views: {self.show(said)}")

    def _show_batch(self, batch: j.Batch) -> str:
        name = self._name(batch, f"b{batch.handle}")
        of = batch.identity
        # The shell counts the tries of what it sends for a unit.
        tries = batch.tries if batch.unit is None else "-"
        named = "-" if of is None else f"{of.producer_id}/{of.producer_epoch}/{of.base_sequence}"
        return (
            f"{name}<{batch.destination} {batch.count}x at {batch.position} id {named} {batch.state.value}"
            f" tries {tries} offset {batch.base_offset} code {batch.fault.code}>"
        )

    def _show_unit(self, unit: u.Unit) -> str:
        return f"{self._name(unit, f'u{unit.number}')}<{unit.phase.value} {unit.code} {unit.tries}>"

    def _show_transaction(self, transaction: u.Transaction) -> str:
        """A unit that is alone in it, or what stands for several."""
        if not transaction.is_shared:
            return self._show_unit(transaction.units[0])
        return f"{self._name(transaction, f'u{transaction.number}')}<{transaction.phase.value} 0 0>"

    def _show_named(self, value: Any) -> str:
        name = self._names.get(id(value)) or self._name(value, f"x{len(self._objects)}")
        return f"{name}={self._show_fields(value)}"

    def _show_fields(self, value: Any) -> str:
        kind = type(value)
        shown = [self.show(getattr(value, name)) for name in _fields(kind)]
        if kind is u.RetryLater and not value.early_ms:
            del shown[-1]  # older tapes lack this field
        return f"{word(kind)}({', '.join(shown)})"

    @staticmethod
    def _show_enum(value: enum.Enum) -> str:
        return value.name

    def _show_all(self, values: Any) -> str:
        return f"[{', '.join(map(self.show, values))}]"

    def _show_sorted(self, values: Any) -> str:
        return self._show_all(sorted(values))

    def _show_dict(self, values: Mapping[Any, Any]) -> str:
        return "{" + ", ".join([f"{self.show(key)}: {self.show(each)}" for key, each in values.items()]) + "}"

    def _name(self, value: Any, name: str) -> str:
        if self._objects.get(name) is not value:
            self._objects[name] = value
            self._names[id(value)] = name
        return name

    # -- calls -------------------------------------------------------------------------------------------------------

    def call(
        self, on: str, name: str, args: Any, options: Mapping[str, Any], method: Callable[..., Any]
    ) -> Any:
        """Call it, and write down that, and what came of it."""
        args = tuple(map(_settled, args))
        words = [self.write(each) for each in args]
        words += [f"{key}={self.write(value)}" for key, value in options.items()]
        at = len(self.lines)
        self.lines.append(f"> {on}.{name}({', '.join(words)})")
        self.busy = True
        try:
            result = method(*args, **options)
        except Exception as error:
            self.lines.append(f"! {word(type(error))}: {error}")
            raise
        finally:
            self.busy = False
            if self.readings:
                self.lines[at] += f" ~ {self.readings}"
                self.readings = []
        if isinstance(result, j.Ready):
            self.ready(result)
            if result:
                self.views()
        elif result is not None:
            self.lines.append(f"= {self.show(result)}")
        return result

    def write(self, value: Any) -> str:
        """An argument as Python, in which what the journal gave out has a name."""
        match value:
            case enum.Enum():
                return f"{word(type(value))}.{value.name}"
            case None | bool() | int() | float() | str() | bytes() | itertools.count():
                return repr(value)
            case j.Batch() | u.Unit() | u.Transaction():
                return self.show(value).partition("<")[0]
            case tuple():
                return f"({''.join(f'{self.write(each)}, ' for each in value)})"
            case list() | deque():
                return f"[{', '.join(map(self.write, value))}]"
            case frozenset() | set():
                return f"frozenset([{', '.join(map(self.write, sorted(value)))}])"
            case Mapping():
                pairs = [f"{self.write(key)}: {self.write(each)}" for key, each in value.items()]
                return "{" + ", ".join(pairs) + "}"
        if id(value) in self._names:
            return self._names[id(value)]
        kind = type(value)
        return f"{word(kind)}({', '.join(self.write(getattr(value, name)) for name in _fields(kind))})"

    def __getitem__(self, name: str) -> Any:
        """What a name in a call stands for."""
        if name in self._objects:
            return self._objects[name]
        if name == "journal":
            return self.journal
        if name == "units":
            return self.journal.units
        known: Any = None
        if name[0] == "b" and name[1:].isdigit():
            known = next((b for _, _, b in self.journal.views.batches() if b.handle == int(name[1:])), None)
        elif name[0] == "u" and name[1:].isdigit():
            known = next(
                (each for each in self.journal.units.unfinished if each.number == int(name[1:])), None
            )
        if known is None:
            raise KeyError(name)
        return known


@functools.cache
def _fields(kind: type) -> tuple[str, ...]:
    return tuple(each.name for each in dataclasses.fields(kind))


def _show_released(released: loss.Released) -> str:
    return f"Released({released.complete_from}, {list(released.since(2**63 - 1) or ())})"


def _settled(value: Any) -> Any:
    """What can be read once only is read before it is written down."""
    if isinstance(value, Iterator) and not isinstance(value, itertools.count):
        return list(value)
    return value


# -- journals that record ----------------------------------------------------------------------------------------------


def _watched(on: str, name: str, kind: type[Any]) -> Callable[..., Any]:
    def called(self: Any, *args: Any, **options: Any) -> Any:
        tape, method = self._tape, getattr(kind, name)  # by name: mutants come and go
        if tape.busy:
            return method(self, *args, **options)
        return tape.call(on, name, args, options, functools.partial(method, self))

    return called


def _events(on: str, kind: type[Any], views: frozenset[str]) -> dict[str, Any]:
    names = [name for name, _ in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_")]
    return {name: _watched(on, name, kind) for name in names if name not in views}


@functools.cache
def recorded(kind: type[Any]) -> type[Any]:
    """The class of a journal, with each of its events written down."""

    def begin(
        self: Any, chosen: j.Settings | None = None, *, tape: Tape | None = None, **settings: Any
    ) -> None:
        self._tape = tape = Tape() if tape is None else tape
        if chosen is not None:
            settings = {name: getattr(chosen, name) for name in _fields(j.Settings)}
        reading = settings.pop("newest_reading", lambda: 0)

        def newest_reading() -> int:
            tape.readings.append(reading())
            return tape.readings[-1]

        words = [f"{key}={tape.write(value)}" for key, value in settings.items()]
        tape.lines.append(f"> begin({', '.join(words)})")
        tape.journal = self
        kind.__init__(self, j.Settings(newest_reading=newest_reading, **settings))
        self.units.__class__ = _UNITS
        self.units._tape = tape
        self.recovery.__class__ = _RECOVERY
        self.recovery._tape = tape

    return type(
        kind.__name__, (kind,), {**_events("journal", kind, _VIEWS), **_OF_RECOVERY, "__init__": begin}
    )


def _passed_on(name: str) -> Callable[..., Any]:
    return lambda self, *args, **options: getattr(self.recovery, name)(*args, **options)


# A tape calls the journal and its recovery by one name.
_RECOVERY = type("Recovery", (Recovery,), _events("journal", Recovery, frozenset()))
_OF_RECOVERY = {name: _passed_on(name) for name in _events("journal", Recovery, frozenset())}
_UNITS = type("Units", (u.Units,), _events("units", u.Units, _UNIT_VIEWS))


def recording(patch: Any, tapes: list[Tape]) -> None:
    """From now on each journal of the engine records on a tape of its own."""
    kind = recorded(j.Journal)

    def begin(settings: j.Settings | None = None) -> Any:
        tapes.append(Tape())
        return kind(settings or j.Settings(), tape=tapes[-1])

    patch.setattr(j, "Journal", begin)


# -- replay ------------------------------------------------------------------------------------------------------------

_KNOWN: dict[str, Any] = {**KNOWN, "count": itertools.count, "frozenset": frozenset}


def replay(lines: list[str]) -> list[str]:
    """The tape of a new journal that is asked the same; up to the first call that it cannot carry out."""
    tape = Tape()
    given: list[int] = []
    for line in lines:
        if not line.startswith("> "):
            continue
        call, _, readings = line[2:].partition(" ~ ")
        given[:] = eval(readings) if readings else ()
        if call.startswith("begin("):
            settings = eval(f"dict{call.removeprefix('begin')}", _KNOWN)
            recorded(j.Journal)(tape=tape, newest_reading=lambda: given.pop(0), **settings)
            continue
        try:
            eval(call, _KNOWN, tape)
        except Exception as error:
            if not tape.lines[-1].startswith("! "):
                tape.lines.append(f"! {word(type(error))}: {error}")
            break
    return tape.lines


def differences(before: list[str], after: list[str]) -> str:
    """Where two tapes part, with what was asked before; nothing where they are the same."""
    at = next(
        (at for at, (one, other) in enumerate(zip(before, after, strict=False)) if one != other),
        min(len(before), len(after)),
    )
    if at == len(before) == len(after):
        return ""
    calls = [line for line in before[:at] if line.startswith("> ")][-3:]
    one, other = (lines[at] if at < len(lines) else "(nothing)" for lines in (before, after))
    return "\n".join([f"line {at + 1}, after", *calls, "was", one, "is", other])
