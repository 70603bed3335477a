"""A consumer's records: kafka-python's `ConsumerRecord`, but with lists of headers that are made only when needed.

Python's garbage collector starts a collection after 700 new objects that may refer to other objects, such as a record
and its list of headers:

1. `poll` returns 500 records, so it makes 1,000 objects of this kind. Each `poll` starts a collection.
2. The records that the application holds survive the collection, and then count as old objects.
3. When many objects have become old, the collector walks through all objects of the process, which took 30 % of a
   consumer's time.

Rule: if a record has no headers, its empty list of headers is made only on first access. So a `poll` makes 500 objects,
which are freed before the next `poll` makes 500 objects.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NoReturn

from kafka.consumer.fetcher import ConsumerRecord

from kafkasafe.record.record_decode import NO_HEADERS

_HEADERS: Final = ConsumerRecord._fields.index("headers")
_at: Final[Any] = tuple.__getitem__


class Record(ConsumerRecord):
    """A record that behaves like kafka-python's `ConsumerRecord`, except that `type(record)` is this class.

    Pickling or copying a `Record` makes a `ConsumerRecord`.
    """

    # This class has no `__slots__`, because a record stores its list of headers in `__dict__`. A subclass of tuple
    # cannot have slots.

    @property
    def headers(self) -> list[tuple[str, bytes | None]]:
        """The record's own list of headers, which the application may change."""
        found: list[tuple[str, bytes | None]] = _at(self, _HEADERS)
        return self.__dict__.setdefault("headers", []) if found is NO_HEADERS else found

    def __iter__(self) -> Iterator[Any]:
        fields = list(super().__iter__())
        fields[_HEADERS] = self.headers
        return iter(fields)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return tuple(self)[index]
        found = _at(self, index)
        return self.headers if found is NO_HEADERS else found

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"A record cannot be changed: {name!r} was assigned to")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"A record cannot be changed: {name!r} was deleted")

    def __eq__(self, other: object) -> bool:
        return tuple(self) == (tuple(other) if isinstance(other, Record) else other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __add__(self, other: Any) -> Any:
        return tuple(self) + other

    __hash__ = ConsumerRecord.__hash__

    def __repr__(self) -> str:
        return repr(ConsumerRecord(*self))

    def __reduce__(self) -> Any:
        return ConsumerRecord, tuple(self)
