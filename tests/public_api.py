"""Writes tests/public_api.txt: every name of the modules that docs/public-api.md calls public. A test compares.

After a change that is meant, run this file, and look at the difference.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe

ROOT = Path(__file__).parent.parent
PATH = Path(__file__).with_suffix(".txt")
PAGE = ROOT / "docs" / "public-api.md"


def modules() -> list[str]:
    """Public modules: the first column of the page's first table."""
    table = PAGE.read_text(encoding="utf-8").split("## Modules")[1].split("\n## ")[0]
    return re.findall(r"^\| `([\w.]+)` ", table, re.MULTILINE)


def _resolved(thing: Any) -> Any:
    while thing.is_alias:
        thing = thing.target
    return thing


def _home(thing: Any) -> str:
    """The module that defines it."""
    return str(_resolved(thing).canonical_path).rpartition(".")[0]


def _annotation(said: object) -> str:
    return "" if said is None else f": {said}"


def _signature(function: Any) -> str:
    """Without private parameters, and without types and defaults that only kafka-python knows."""
    parts: list[str] = []
    star = False
    positional = [each for each in function.parameters if each.kind is griffe.ParameterKind.positional_only]
    for each in function.parameters:
        if each.name in {"self", "cls"}:
            continue
        if each.name.startswith("_"):
            continue
        kind = each.kind
        if kind is griffe.ParameterKind.keyword_only and not star:
            parts.append("*")
            star = True
        head = {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}.get(
            kind, ""
        )
        star = star or head == "*"
        default = "" if each.default is None or head else f" = {each.default}"
        parts.append(f"{head}{each.name}{_annotation(each.annotation)}{default}")
        if positional and each is positional[-1]:
            parts.append("/")
    return f"({', '.join(parts)}) -> {function.returns}"


def _described(path: str, thing: Any) -> Iterator[str]:
    thing = _resolved(thing)
    labels = " ".join(
        label for label in ("async", "property", "classmethod", "staticmethod") if label in thing.labels
    )
    prefix = f"{labels} " if labels else ""
    if thing.is_function:
        yield f"{path}: {prefix}def{_signature(thing)}"
    elif thing.is_attribute:
        yield f"{path}: {prefix}attribute{_annotation(thing.annotation)}"
    elif thing.is_class:
        bases = ", ".join(str(base).rpartition(".")[2] for base in thing.bases)
        yield f"{path}: class({bases})"
        members = thing.all_members
        hidden = {name for name, member in thing.members.items() if _is_hidden(member)} | _unlisted(thing)
        if "__init__" in members and not _resolved(members["__init__"]).is_attribute:
            yield f"{path}: new{_signature(_resolved(members['__init__'])).partition(' ->')[0]}"
        for name in sorted(members):
            if name.startswith("_") or name in hidden:
                continue
            member = members[name]
            try:
                _resolved(member)
            except griffe.AliasResolutionError:
                continue
            if not _is_hidden(_resolved(member)):
                yield from _described(f"{path}.{name}", _original(thing, name))


def _original(kind: Any, name: str) -> Any:
    """A member; of `flush = Flushing.flush` what is meant."""
    member = _resolved(kind.all_members[name])
    value = str(getattr(member, "value", None) or "") if member.is_attribute else ""
    if re.fullmatch(rf"[A-Z]\w*\.{name}", value):
        for base in kind.mro():
            found = base.members.get(name)
            if found is not None and _resolved(found).is_function:
                return found
    return member


def _unlisted(kind: Any) -> set[str]:
    """Names that `dir()` leaves out."""
    member = kind.members.get("_UNLISTED")
    return set() if member is None else set(re.findall(r"\w+", str(member.value))) - {"frozenset"}


def _is_hidden(thing: Any) -> bool:
    """A name that raises when it is used: see `kafkasafe._producing.spelling`."""
    value = str(getattr(thing, "value", None) or "") if not thing.is_alias and thing.is_attribute else ""
    return value.startswith(("Absent(", "not_for_callers("))


def text() -> str:
    """The whole list."""
    # Before Python 3.12, compile() fails now and then if a garbage collection in it lets another thread compile, too:
    # "AST constructor recursion depth mismatch" (gh-106905).
    gc.disable()
    try:
        package = griffe.load(
            "kafkasafe", search_paths=[str(ROOT)], resolve_aliases=True, allow_inspection=False
        )
    finally:
        gc.enable()
    lines = []
    for module in modules():
        at: Any = package
        for part in module.split(".")[1:]:
            at = _resolved(at[part])
        names = [str(name).strip("'\"") for name in at.exports or ()]
        assert names, f"{module} has no __all__"
        for name in sorted(names):
            if name in at.members and _home(at.members[name]) in {*modules()} - {module}:
                lines.append(f"{module}.{name}: as {_home(at.members[name])}.{name}")
            elif name in at.members:
                lines += _described(f"{module}.{name}", at.members[name])
            else:
                lines.append(f"{module}.{name}: attribute")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8")
