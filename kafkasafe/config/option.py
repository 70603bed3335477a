"""A row in a table of options: one row for each option."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from kafkasafe.config.values import Check, anything


class Default(enum.Enum):
    """A placeholder for a value in a row."""

    KAFKAS = enum.auto()
    """Use the default in `table.OTHER_DEFAULTS`, or if none exists, kafka-python's default."""
    GIVEN = enum.auto()
    """Use the value that the user gave."""


KAFKAS: Final = Default.KAFKAS
_ROW: Final = "option"


@dataclasses.dataclass(frozen=True, slots=True)
class Option:
    """All data about one option, except its text. `kafkasafe.options` has the option's text for users.

    An option's name ends in its unit: `_ms` milliseconds, `_bytes` bytes.

    Attributes:
        check: Function that gets all options and the option's name. Returns the field's value, or raises ConfigError.
        files_only: Whether the option concerns files. Such an option cannot be combined with `spool="never"`.
        in_memory: The value that the field has if `spool="never"`.
        unset: Function that computes the field's value if the option is None, from the fields in earlier rows of the
            table.
    """

    name: str
    default: Any
    check: Check = anything
    files_only: bool = False
    in_memory: Any = Default.GIVEN
    unset: Callable[[Mapping[str, Any]], Any] | None = None

    def value(self, options: Mapping[str, Any], above: Mapping[str, Any]) -> Any:
        """Return the value of the field.

        Args:
            options: Every option.
            above: The fields of the rows above.

        Raises:
            ConfigError: The option has an unusable value.
        """
        if options.get("spool") == "never" and self.in_memory is not Default.GIVEN:
            return self.in_memory
        if self.unset is not None and options[self.name] is None:
            return self.unset(above)
        return self.check(options, self.name)


def option(
    name: str,
    default: Any,
    check: Check = anything,
    *,
    files_only: bool = False,
    in_memory: Any = Default.GIVEN,
    unset: Callable[[Mapping[str, Any]], Any] | None = None,
) -> Any:
    """Return a dataclass field for a configuration. The field gets the value of an option. See `Option` for the
    arguments.
    """
    row = Option(name, default, check, files_only, in_memory, unset)
    return dataclasses.field(metadata={_ROW: row})


def rows(configuration: type[Any]) -> dict[str, Option]:
    """Map the name of each field of a configuration to its option. Fields without an option are left out."""
    return {
        each.name: each.metadata[_ROW] for each in dataclasses.fields(configuration) if _ROW in each.metadata
    }


def fields_of(table: Iterable[tuple[str, Option]], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the fields of these rows, by name. The rows are checked in the order of the table.

    Raises:
        ConfigError: An option has an unusable value.
    """
    found: dict[str, Any] = {}
    for name, row in table:
        found[name] = row.value(options, found)
    return found
