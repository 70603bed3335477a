"""Kinds of values that a query's options accept: converters from Spark's text, with descriptions for the docs."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from kafkasafe.errors import ConfigError
from kafkasafe.spark.tokens import function_of

INT32: Final = 2**31 - 1
INT64: Final = 2**63 - 1

Converter: TypeAlias = Callable[[str, str], Any]
"""(name of an option, its text) → its value. Raises ConfigError if the text is invalid."""


@dataclass(frozen=True, slots=True)
class OptionKind:
    """The kind of values that an option accepts.

    Attributes:
        kind: Type and bounds, in the words of the docs.
        convert: Converts the text to the value.
    """

    kind: str
    convert: Converter

    def __call__(self, name: str, value: str) -> Any:
        """Converts the text of the option `name`. Raises ConfigError if the text is invalid."""
        return self.convert(name, value)


def error(kind: str, message: str) -> ConfigError:
    """Creates an error in the format of Spark's errors: `[KAFKASAFE.KIND] problem: remedy.`"""
    return ConfigError(f"[KAFKASAFE.{kind}] {message}")


def _text(name: str, value: str) -> str:
    """Removes spaces around the text and checks that it is not empty."""
    if not value.strip():
        raise error("INVALID_OPTION", f"{name} is empty: give it a value or leave it out.")
    return value.strip()


def _boolean(name: str, value: str) -> bool:
    """Converts `true` or `false`, in upper or lower case, to a bool."""
    known = {"true": True, "false": False}.get(value.strip().lower())
    if known is None:
        raise error("INVALID_OPTION", f"{name} is {value!r}: it must be true or false.")
    return known


def whole(least: int = 0, most: int = INT64) -> OptionKind:
    """Makes a converter for whole numbers between two bounds (inclusive)."""

    def convert(name: str, value: str) -> int:
        try:
            number = int(value)
        except ValueError:
            number = None
        if number is None or not least <= number <= most:
            raise error(
                "INVALID_OPTION", f"{name} is {value!r}: it must be a whole number from {least} to {most}."
            )
        return number

    bounds = f" from {least}" if most >= INT32 else f", {least} to {most}"
    return OptionKind(f"whole number{bounds}", convert)


def one_of(*choices: str) -> OptionKind:
    """Makes a converter that accepts one of the given words, in upper or lower case."""

    def convert(name: str, value: str) -> str:
        found = {choice.lower(): choice for choice in choices}.get(value.strip().lower())
        if found is None:
            raise error("INVALID_OPTION", f"{name} is {value!r}: it must be one of {', '.join(choices)}.")
        return found

    return OptionKind(", ".join(f"`{choice}`" for choice in choices), convert)


_DIGITS: Final = 18  # maximum number of digits of a duration: enough for 30,000 years in microseconds
_UNITS_S: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def _duration(name: str, value: str) -> float:
    """Converts a duration in Spark's notation (`15m`, `30s`, `500ms`; milliseconds without a unit) to seconds."""
    found = re.fullmatch(r"(\d+)\s*([a-z]*)", value.strip().lower())
    unit = None if found is None else _UNITS_S.get(found[2] or "ms")
    if found is None or unit is None or len(found[1]) > _DIGITS:
        raise error(
            "INVALID_OPTION",
            f"{name} is {value!r}: it must be a time like 15m, 30s or 500ms (units: {', '.join(_UNITS_S)}).",
        )
    return int(found[1]) * unit


def _function(name: str, value: str) -> str:
    if not re.fullmatch(r"[\w.]+:\w+", value.strip()):
        raise error(
            "INVALID_OPTION",
            f"{name} is {value!r}: it must be the name of a function like package.module:function.",
        )
    return value.strip()


def imported(name: str, value: str) -> str:
    """Checks that a function can be imported in this process, and returns its name."""
    found = _function(name, value)
    try:
        function_of(found)
    except (ImportError, AttributeError) as wrong:
        raise error(
            "INVALID_OPTION",
            f"{name} is {found!r}, which cannot be imported ({wrong}): give a function of a module that is installed on"
            " the driver and the executors.",
        ) from None
    return found


anything: Final = OptionKind("any", lambda _, value: value)
text: Final = OptionKind("text", _text)
boolean: Final = OptionKind("`true` or `false`", _boolean)
duration: Final = OptionKind("time, such as `15m` or `500ms`", _duration)
function: Final = OptionKind("`package.module:function`", _function)
