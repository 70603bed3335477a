"""Raises helpful errors for names that a class does not have, and hides unusable names from `dir()`."""

from __future__ import annotations

import functools
from abc import ABCMeta
from collections.abc import Callable, Iterable
from typing import Any, Final, NoReturn, TypeVar, cast

from kafkasafe.errors import UsageError

F = TypeVar("F", bound=Callable[..., Any])

# Hints for programs that call the methods of asyncio's futures. The futures of `SafeProducer` have kafka-python's names
# instead.
IS_DONE: Final = (
    "use `is_done`, without parentheses, as in kafka-python; kafkasafe.aio has the names of asyncio's futures"
)
GET: Final = "`get(timeout)` waits for the result, and `value` is the result if it is known"
ADD_CALLBACK: Final = "use `add_callback`, `add_errback` or `add_both`"
NEVER_CANCELLED: Final = "accepted records are delivered and cannot be cancelled"


class Absent:
    """Stands for an attribute that a class does not have. Reading the attribute raises an error that says what to use
    instead.

    `__getattr__` could do the same, but would slow down all other attributes of the class, such as `send`.
    """

    def __init__(self, hint: str) -> None:
        self.hint = hint

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type) -> NoReturn:
        said = f"{owner.__name__!r} object has no attribute {self._name!r}: {self.hint}"
        raise AttributeError(said, name=self._name, obj=instance)


class _NotForCallers:
    """A method inherited from kafka-python that only kafka-python may call."""

    def __init__(self, hint: str) -> None:
        self._hint = hint

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type) -> Callable[..., NoReturn]:
        def refuse(*_: Any, **__: Any) -> NoReturn:
            raise UsageError(f"{owner.__name__}.{self._name}() is not for callers: {self._hint}")

        return refuse


def not_for_callers(hint: str) -> Any:
    """Makes a method that raises UsageError with this hint, and that `dir()` leaves out."""
    return _NotForCallers(hint)


class _Method:
    """A method without a truth value: `if future.done:` (without parentheses) raises an error. With an ordinary method,
    this condition would always hold.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(cast("Any", self), function)
        self._function = function

    def __get__(self, instance: object, owner: type) -> Any:
        return self._function if instance is None else _Bound(self._function, instance)


class _Bound:
    __slots__ = ("__func__", "__self__")

    def __init__(self, function: Callable[..., Any], instance: object) -> None:
        self.__func__ = function
        self.__self__ = instance

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__func__(self.__self__, *args, **kwargs)

    def __bool__(self) -> bool:
        name = self.__func__.__name__
        raise UsageError(
            f"{type(self.__self__).__name__}.{name} is a method, as asyncio.Future's: write {name}()"
        )

    def __repr__(self) -> str:
        return f"<method {self.__func__.__qualname__} of {self.__self__!r}>"


def called(function: F) -> F:
    """Decorates a method for which kafka-python has an attribute of the same name. A program that forgets the
    parentheses, as in `if future.done:`, gets an error, because `bool()` of the decorated method raises an error.
    """
    return cast("F", _Method(function))


_HIDDEN: Final = (Absent, _NotForCallers)


def _listed(kind: type, names: Iterable[str]) -> list[str]:
    unlisted: frozenset[str] = getattr(kind, "_UNLISTED", frozenset())
    found: dict[str, object] = {}
    for base in kind.__mro__:
        for name, value in vars(base).items():
            found.setdefault(name, value)
    return [name for name in names if name not in unlisted and not isinstance(found.get(name), _HIDDEN)]


class Tidy(ABCMeta):
    """A metaclass for classes whose `dir()` lists only usable names. `__dir__ = tidy_dir` does the same for the
    instances.

    A class can list further names in `_UNLISTED` that `dir()` leaves out.
    """

    def __dir__(cls) -> list[str]:
        return _listed(cls, super().__dir__())


def tidy_dir(self: object) -> list[str]:
    """The `__dir__` of the instances of `Tidy` classes."""
    return _listed(type(self), object.__dir__(self))
