"""Layouts of control records: their fields in order, and the descriptions of the fields in docs/spool-format.md.

A `Layout`, which consists of *parts*, writes an object as bytes, reads the object back, and describes the bytes for
docs/spool-format.md. Integers are big-endian.
"""

from __future__ import annotations

import enum
import itertools
import operator
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

from kafkasafe.marks.terms import MarkError

T = TypeVar("T")
_Member = TypeVar("_Member", bound=enum.IntEnum)

_SHORT: Final = struct.Struct(">h")
_FLAG: Final = struct.Struct(">b")
_STR16_MAX: Final = 2**15 - 1


class Body:
    """Reads the value of one control record, from its first byte to its last."""

    __slots__ = ("_at", "_name", "_value")

    def __init__(self, name: str, value: bytes) -> None:
        self._name = name
        self._value = value
        self._at = 0

    def peek(self, size: int) -> bytes:
        """The next `size` bytes. The next read returns them again."""
        content = self._value[self._at : self._at + size]
        if len(content) != size:
            raise MarkError(f"A {self._name} mark of {len(self._value)} bytes is too short")
        return content

    def take(self, layout: struct.Struct) -> tuple[Any, ...]:
        """Read the next fields."""
        content = self.peek(layout.size)
        self._at += layout.size
        return layout.unpack(content)

    def take_all(self, layout: struct.Struct, count: int) -> Iterator[tuple[Any, ...]]:
        """Read the same fields `count` times."""
        self.require_count(count)
        content = self.peek(count * layout.size)
        self._at += len(content)
        return layout.iter_unpack(content)

    def require_count(self, count: int) -> None:
        """Raise MarkError if the length of a list is negative."""
        if count < 0:
            raise MarkError(f"A {self._name} mark with {count} entries")

    def take_str(self) -> str:
        """Read a str16 (an int16 with the length in bytes, then UTF-8 text)."""
        (size,) = self.take(_SHORT)
        if size < 0:
            raise MarkError(f"A {self._name} mark with a text of {size} bytes")
        content = self.peek(size)
        self._at += size
        try:
            return content.decode()
        except UnicodeDecodeError as error:
            raise MarkError(f"A {self._name} mark with a text that is not UTF-8") from error

    def member(self, kind: type[_Member], number: int) -> _Member:
        """The member of an enumeration with this number."""
        try:
            return kind(number)
        except ValueError as error:
            raise MarkError(f"A {self._name} mark with unknown {kind.__name__} {number}") from error

    def finish(self) -> None:
        """Raise MarkError if bytes are left."""
        if self._at != len(self._value):
            raise MarkError(f"A {self._name} mark with {len(self._value) - self._at} bytes too many")


# -- parts -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fixed:
    """A field of a fixed size.

    Attributes:
        code: The format character of `struct`.
        kind: The document's name for the type.
        says: The description of the field in docs/spool-format.md.
        of: The enumeration of the field's numbers; None: plain numbers or bytes.
    """

    name: str
    code: str
    kind: str
    says: str
    of: type[enum.IntEnum] | None = None


@dataclass(frozen=True, slots=True)
class Text:
    """A str16.

    Attributes:
        says: The document's description of the text.
        cut: Whether a text of more than 32,767 bytes is truncated to this length. Without truncation, a mark with a
            long message from a broker could not be written.
    """

    name: str
    says: str
    cut: bool = False


@dataclass(frozen=True, slots=True)
class OptionalText:
    """An optional text: an int8, which is 1 if a text follows, and then the text as a str16.

    Attributes:
        name: Name of the attribute. The attribute's value is None if there is no text.
        says: The document's description of the text.
        flag: The document's description of the int8.
    """

    name: str
    says: str
    flag: str


@dataclass(frozen=True, slots=True)
class Nested:
    """The fields of another layout.

    Attributes:
        layout: Layout of the attribute's object.
        says: How the document describes the object.
    """

    name: str
    layout: Layout[Any]
    says: str


@dataclass(frozen=True, slots=True)
class Entries:
    """The entries of one list, see `each`."""

    name: str
    count: str
    layout: _Repeated


class Lists:
    """One or more lists: first an int32 for the length of each list, then the entries of each list."""

    __slots__ = ("entries",)

    def __init__(self, *entries: Entries) -> None:
        self.entries = entries


Part: TypeAlias = Fixed | Text | OptionalText | Nested | Lists


def int8(name: str, says: str, of: type[enum.IntEnum] | None = None) -> Fixed:
    return Fixed(name, "b", "int8", says, of)


def int16(name: str, says: str) -> Fixed:
    return Fixed(name, "h", "int16", says)


def int32(name: str, says: str) -> Fixed:
    return Fixed(name, "i", "int32", says)


def int64(name: str, says: str) -> Fixed:
    return Fixed(name, "q", "int64", says)


def bytes16(name: str, says: str) -> Fixed:
    """A field of sixteen bytes, such as an id."""
    return Fixed(name, "16s", "16 bytes", says)


def each(name: str, count: str, *parts: Part, make: Callable[..., object] | None = None) -> Entries:
    """The entries of a list.

    Args:
        name: Name of the attribute. The attribute's value is a tuple.
        count: The letter for the list's length in docs/spool-format.md.
        parts: Parts of one entry.
        make: The class of an entry. None: an entry is a tuple of the values of its parts, or the single part's value.
    """
    if make is not None:
        return Entries(name, count, Layout(make, *parts))
    if len(parts) == 1:
        return Entries(name, count, _Values(*parts))
    return Entries(name, count, _Tuples(*parts))


# -- layouts -----------------------------------------------------------------------------------------------------------


class _Repeated(Protocol):
    """The layout of the entries of a list."""

    def write_all(self, values: Sequence[Any]) -> bytes:
        """The bytes of all entries."""

    def read_all(self, body: Body, count: int) -> tuple[Any, ...]:
        """The next `count` entries."""

    @property
    def says(self) -> str:
        """The document's description of an entry."""


class _Values:
    """The layout of entries that consist of one fixed field."""

    __slots__ = ("_code", "_struct", "says")

    def __init__(self, *parts: Part) -> None:
        (part,) = _only_fixed(parts)
        self._code = part.code
        self._struct = struct.Struct(f">{part.code}")
        self.says = _says(part)

    def write_all(self, values: Sequence[Any]) -> bytes:
        return struct.pack(f">{len(values)}{self._code}", *values)

    def read_all(self, body: Body, count: int) -> tuple[Any, ...]:
        return tuple([value for (value,) in body.take_all(self._struct, count)])


class _Tuples:
    """The layout of entries that consist of several fixed fields."""

    __slots__ = ("_struct", "says")

    def __init__(self, *parts: Part) -> None:
        self._struct = _struct_of(_only_fixed(parts))
        self.says = f"({', '.join(map(_says, parts))})"

    def write_all(self, values: Sequence[Any]) -> bytes:
        return b"".join(itertools.starmap(self._struct.pack, values))

    def read_all(self, body: Body, count: int) -> tuple[Any, ...]:
        return tuple(body.take_all(self._struct, count))


_Writer: TypeAlias = Callable[[Any], bytes]
_Reader: TypeAlias = Callable[[Body, list[Any], list[int]], None]
"""A reader appends the values that it reads to the first list. The second list is a stack of list lengths, whose last
item is the length of the next list.
"""


class Layout(Generic[T]):
    """The layout of an object: its parts, one after another.

    Args:
        make: Makes the object from the values of its parts, in their order.
        parts: The parts.
    """

    __slots__ = ("_fixed", "_get", "_make", "_readers", "_writers", "parts")

    def __init__(self, make: Callable[..., T], *parts: Part) -> None:
        self._make = make
        self.parts = parts
        self._fixed: struct.Struct | None = None
        """The struct of all parts; None if any part has a variable size, or needs a conversion of its values."""
        self._get: Callable[[T], tuple[Any, ...]] = _values_of([])
        self._writers: list[_Writer] = []
        self._readers: list[_Reader] = []
        run: list[Fixed] = []
        for part in parts:
            if isinstance(part, Fixed):
                run.append(part)
                continue
            lists = part.entries if isinstance(part, Lists) else ()
            self._add_run(run, lists)
            run = []
            self._add(part)
        if len(run) == len(parts) and not any(part.of for part in run):
            self._fixed, self._get = _struct_of(run), _values_of([part.name for part in run])
        self._add_run(run, ())

    def write(self, value: T) -> bytes:
        """The bytes of an object."""
        fixed = self._fixed
        if fixed is not None:
            return fixed.pack(*self._get(value))
        return b"".join([write(value) for write in self._writers])

    def read(self, body: Body) -> T:
        """The next object."""
        fixed = self._fixed
        if fixed is not None:
            return self._make(*body.take(fixed))
        values: list[Any] = []
        counts: list[int] = []
        for read in self._readers:
            read(body, values, counts)
        return self._make(*values)

    def write_all(self, values: Sequence[T]) -> bytes:
        """The bytes of objects, one after another."""
        fixed, get = self._fixed, self._get
        if fixed is not None:
            pack = fixed.pack
            return b"".join([pack(*get(value)) for value in values])
        return b"".join(map(self.write, values))

    def read_all(self, body: Body, count: int) -> tuple[T, ...]:
        """The next `count` objects."""
        fixed = self._fixed
        if fixed is not None:
            return tuple(itertools.starmap(self._make, body.take_all(fixed, count)))
        body.require_count(count)
        return tuple([self.read(body) for _ in range(count)])

    @property
    def says(self) -> str:
        """The description of an object in a list, for docs/spool-format.md."""
        return f"({self.text})"

    @property
    def text(self) -> str:
        """The description of the object's bytes, for docs/spool-format.md."""
        return ", ".join(map(_says, self.parts))

    def _add_run(self, run: Sequence[Fixed], lists: Sequence[Entries]) -> None:
        """Add fixed fields, and the lengths of the lists that follow them."""
        if not run and not lists:
            return
        packed = struct.Struct(f">{''.join(part.code for part in run)}{'i' * len(lists)}")
        fixed, listed = len(run), [entries.name for entries in lists]
        get, get_lists = _values_of([part.name for part in run]), _values_of(listed)
        members = [(index, part.of) for index, part in enumerate(run) if part.of is not None]

        def write(value: Any) -> bytes:
            return packed.pack(*get(value), *map(len, get_lists(value)))

        def write_fixed(value: Any) -> bytes:
            return packed.pack(*get(value))

        def read(body: Body, values: list[Any], counts: list[int]) -> None:
            found = body.take(packed)
            start = len(values)
            values += found[:fixed]
            counts += reversed(found[fixed:])
            for index, kind in members:
                values[start + index] = body.member(kind, values[start + index])

        self._writers.append(write if listed else write_fixed)
        self._readers.append(read)

    def _add(self, part: Text | OptionalText | Nested | Lists) -> None:
        """Add a part of a variable size."""
        if isinstance(part, Lists):
            for entries in part.entries:
                self._add_entries(entries)
            return
        get = operator.attrgetter(part.name)
        if isinstance(part, Text):
            self._writers.append(
                (lambda value: _str16(_cut(get(value)))) if part.cut else (lambda value: _str16(get(value)))
            )
            self._readers.append(lambda body, values, _: values.append(body.take_str()))
        elif isinstance(part, Nested):
            nested = part.layout
            self._writers.append(lambda value: nested.write(get(value)))
            self._readers.append(lambda body, values, _: values.append(nested.read(body)))
        else:
            self._writers.append(lambda value: _FLAG.pack(get(value) is not None) + _str16(get(value) or ""))
            self._readers.append(lambda body, values, _: values.append(_optional_text(body)))

    def _add_entries(self, entries: Entries) -> None:
        get, layout = operator.attrgetter(entries.name), entries.layout
        self._writers.append(lambda value: layout.write_all(get(value)))
        self._readers.append(lambda body, values, counts: values.append(layout.read_all(body, counts.pop())))


def _only_fixed(parts: Sequence[Part]) -> list[Fixed]:
    fixed = [part for part in parts if isinstance(part, Fixed) and part.of is None]
    if len(fixed) != len(parts):
        raise TypeError(f"Entries with a part of another kind need a class: {parts}")
    return fixed


def _struct_of(parts: Sequence[Fixed]) -> struct.Struct:
    return struct.Struct(f">{''.join(part.code for part in parts)}")


def _values_of(names: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Returns a function that gets an object's attributes with these names, always as a tuple."""
    if not names:
        return lambda _: ()
    get = operator.attrgetter(*names)
    return get if len(names) > 1 else lambda value: (get(value),)


def _optional_text(body: Body) -> str | None:
    (there,) = body.take(_FLAG)
    text = body.take_str()
    return text if there else None


def _says(part: Part) -> str:
    match part:
        case Fixed():
            return f"{part.kind} {part.says}"
        case Text():
            return f"str16 {part.says}"
        case OptionalText():
            return f"int8 {part.flag}, str16 {part.says}"
        case Nested():
            return part.says
        case Lists(entries=entries):
            counts = [f"int32 *{each.count}*" for each in entries]
            return ", ".join([*counts, *(f"*{each.count}* × {each.layout.says}" for each in entries)])


def _str16(text: str) -> bytes:
    encoded = text.encode()
    return _SHORT.pack(len(encoded)) + encoded


def _cut(text: str) -> str:
    encoded = text.encode(errors="backslashreplace")[:_STR16_MAX]
    return encoded.decode(errors="ignore")
