"""Kafka's error codes have names: no file outside `kafkasafe/codes` has their numbers."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import kafkasafe
from kafkasafe.codes import sets
from kafkasafe.codes.rows import TABLE

SETS = [each for name, each in vars(sets).items() if name.endswith("_CODES")]

ROOT = Path(kafkasafe.__file__).parent
# An error code, or an exception of which one asks `errno`.
CODE = re.compile(r"(^|_)(codes?|errno)$")
NO_CODE = {"exit_code", "returncode", "exitcode"}
MAKES_ERRORS = {"_error", "classify", "classify_code", "classify_produce", "coded", "error_of", "for_code"}


def is_code(node: ast.expr) -> bool:
    """Whether an expression is an error code, by its name."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.Constant(value=str(name)):
            return bool(CODE.search(name)) and name not in NO_CODE
        case ast.Call(func=ast.Name(id="getattr"), args=[_, name, *_]):
            return is_code(name)
        case ast.Call(func=ast.Name(id="int"), args=[number]):
            return is_code(number)
        case ast.Call(func=function):
            return is_code(function)
        case ast.BoolOp(values=values):
            return is_code(values[0])
        case ast.Subscript(value=value):
            return is_code(value)
        case ast.NamedExpr(target=target):
            return is_code(target)
    return False


def numbers_in(node: ast.expr | None, known: Mapping[str, set[int]]) -> set[int]:
    """The error codes that an expression has as numbers: a number, or the elements of a collection.

    0 (no error) and -1 (kafkasafe's sign for no code) do not count.
    """
    match node:
        case ast.Constant(value=int(number)) if not isinstance(number, bool):
            return {number} if number > 0 and number in TABLE else set()
        case ast.Set(elts=parts) | ast.Tuple(elts=parts) | ast.List(elts=parts):
            return {number for part in parts for number in numbers_in(part, known)}
        case ast.Dict(keys=parts):
            return {number for part in parts for number in numbers_in(part, known)}
        case ast.Call(func=ast.Name(id="frozenset" | "set" | "tuple" | "MappingProxyType"), args=[part]):
            return numbers_in(part, known)
        case ast.BinOp(left=left, right=right):
            return numbers_in(left, known) | numbers_in(right, known)
        case ast.Starred(value=part):
            return numbers_in(part, known)
        case ast.Name(id=name):
            return known.get(name, set())
    return set()


def constants(tree: ast.Module) -> dict[str, set[int]]:
    """The module's own names for numbers."""
    found: dict[str, set[int]] = {}
    for node in tree.body:
        match node:
            case (
                ast.AnnAssign(target=ast.Name(id=name), value=value)
                | ast.Assign(targets=[ast.Name(id=name)], value=value)
            ):
                if numbers := numbers_in(value, found):
                    found[name] = numbers
    return found


def raw_codes(
    tree: ast.Module, others: Mapping[str, Mapping[str, set[int]]]
) -> Iterator[tuple[int, set[int]]]:
    """Line and numbers of each place that has error codes as numbers, itself or through a name outside `codes`.

    Args:
        tree: The module.
        others: The names for numbers in other modules.
    """
    known = constants(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            theirs = others.get(node.module or "", {})
            known |= {
                each.asname or each.name: theirs[each.name] for each in node.names if each.name in theirs
            }
    for node in ast.walk(tree):
        found: set[int] = set()
        match node:
            case ast.Compare(
                left=left, comparators=[right], ops=[ast.Eq() | ast.NotEq() | ast.In() | ast.NotIn()]
            ):
                if is_code(left):
                    found = numbers_in(right, known)
                elif is_code(right):
                    found = numbers_in(left, known)
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[first, *_]) if (
                name in MAKES_ERRORS
            ):
                found = numbers_in(first, known)
            case ast.Call(func=ast.Attribute(value=table, attr="get"), args=[key, *_]) if is_code(key):
                found = numbers_in(table, known)
            case ast.Subscript(value=table, slice=key) if is_code(key):
                found = numbers_in(table, known)
            case ast.keyword(arg=str(name), value=value) if CODE.search(name) and name not in NO_CODE:
                found = numbers_in(value, known)
            case (
                ast.AnnAssign(target=ast.Name(id=name), value=value)
                | ast.Assign(targets=[ast.Name(id=name)], value=value)
            ) if name.isupper() and CODE.search(name.lower()):
                found = numbers_in(value, known)
            case ast.Match(subject=subject, cases=cases) if is_code(subject):
                values = [part for case in cases for part in ast.walk(case.pattern)]
                found = {
                    number
                    for part in values
                    if isinstance(part, ast.MatchValue)
                    for number in numbers_in(part.value, known)
                }
        if found and isinstance(node, ast.expr | ast.stmt | ast.keyword):
            yield node.lineno, found


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")


def test_no_other_file_has_an_error_code_as_a_number() -> None:
    """One decision, one place: a code has Kafka's name, a set of codes says what they mean together.

    The fake Kafka names its codes itself, so a wrong number of kafkasafe's would show.
    """
    trees = {
        path: ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(ROOT.rglob("*.py"))
        if path.relative_to(ROOT).parts[0] not in {"codes", "testing"}
    }
    others = {module_of(path): constants(tree) for path, tree in trees.items()}
    again = {
        f"{path.relative_to(ROOT)}:{line}: {sorted(codes)}"
        for path, tree in trees.items()
        for line, codes in raw_codes(tree, others)
    }
    again |= {
        f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}"
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Set) and numbers_in(node, {}) in SETS
    }
    assert again == set()


def test_what_counts_as_an_error_code() -> None:
    source = """
import errno
from kafkasafe.other import GONE, SIZE, THEIRS as OURS
from kafkasafe.codes.numbers import PRODUCER_FENCED
_MOVED = frozenset({6, 74})
_TEXTS = {29: "topic", 30: "group"}
EIGHT = 8
UNIT_CODES = FENCED | {48}
answer.error_code == 3
if 3 != code: ...
code in {45, 59}
failed.errno in _MOVED
getattr(failed, "errno", None) == 50
(answer.code or 0) not in (0, GONE)
int(answer.error_code) in OURS
_code(answer) == 1
codes[place] == 55
code in FENCED | {48}
raise for_code(14)("late")
coded(EIGHT, "?")
report(reason, code=78)
name = _TEXTS[code]
_TEXTS.get(code)
match code:
    case 3 | 100: ...
    case 0 | -1: ...
# None of these is one:
code == 0
code != -1
code > 5
code == SIZE
code == PRODUCER_FENCED
exit_code == 2
failed.errno in {errno.EIO}
count == 3
size in {1, 2}
report(code=0)
EIGHT == 8
_TEXTS[number]
"""
    found = raw_codes(
        ast.parse(source),
        {"kafkasafe.other": {"GONE": {3}, "THEIRS": {100}}, "kafkasafe.third": {"SIZE": {3}}},
    )
    lines = {source.splitlines()[line - 1]: codes for line, codes in found}
    assert lines == {
        "UNIT_CODES = FENCED | {48}": {48},
        "answer.error_code == 3": {3},
        "if 3 != code: ...": {3},
        "code in {45, 59}": {45, 59},
        "failed.errno in _MOVED": {6, 74},
        'getattr(failed, "errno", None) == 50': {50},
        "(answer.code or 0) not in (0, GONE)": {3},
        "int(answer.error_code) in OURS": {100},
        "_code(answer) == 1": {1},
        "codes[place] == 55": {55},
        "code in FENCED | {48}": {48},
        'raise for_code(14)("late")': {14},
        'coded(EIGHT, "?")': {8},
        "report(reason, code=78)": {78},
        "name = _TEXTS[code]": {29, 30},
        "_TEXTS.get(code)": {29, 30},
        "match code:": {3, 100},
    }
