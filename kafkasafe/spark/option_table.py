"""Tables of a query's options, with one row for each option. The parser and the docs both use the tables."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kafkasafe.spark.option_values import OptionKind, error

KAFKAS = "kafka."
"""Prefix of the names of Kafka's own options."""


@dataclass(frozen=True, slots=True)
class QueryOption:
    """One option of the source or of the sink.

    Attributes:
        name: Spark's name of the option, or `kafka.` followed by Kafka's name.
        value: Which values may be given.
        default: The value if the option is not given.
        help: What the option does, for the docs.
        shown: The default, for the docs; None: `default` as it is.
        refused: Why the option cannot be set; "" if it can.
    """

    name: str
    value: OptionKind
    default: Any = None
    help: str = "accepted without effect"
    shown: str | None = None
    refused: str = ""


class OptionValues:
    """The values of options, by name. The text of an option is converted when its value is read. An option that was not
    given has its default.

    Args:
        rows: The options.
        given: The texts of the given options.
    """

    def __init__(self, rows: Mapping[str, QueryOption], given: Mapping[str, str]) -> None:
        self._rows = rows
        self._given = given

    def __contains__(self, name: str) -> bool:
        """Returns whether the option was given."""
        return name in self._given

    def __getitem__(self, name: str) -> Any:
        """Returns the value of an option. Raises ConfigError if its text is invalid."""
        row = self._rows[name]
        return row.value(name, self._given[name]) if name in self._given else row.default

    def first_given(self, *names: str) -> str | None:
        """Returns the first of these names that was given as an option, or None."""
        return next((name for name in names if name in self._given), None)

    def check(self) -> None:
        """Raises ConfigError if the text of an option is invalid."""
        for name in self._given:
            _ = self[name]


class OptionTable:
    """The options of the source or of the sink.

    Args:
        what: What the options configure, as text for messages.
        rows: The options, in the order of the docs.

    Attributes:
        rows: The options by name.
        own: The options whose names do not begin with `kafka.`, by name.
        kafkas: The options whose names begin with `kafka.`, by the name without this prefix. Connection options are not
            in the table.
    """

    def __init__(self, what: str, *rows: QueryOption) -> None:
        self._what = what
        self.rows: Mapping[str, QueryOption] = {row.name: row for row in rows}
        self.own: Mapping[str, QueryOption] = {
            row.name: row for row in rows if not row.name.startswith(KAFKAS)
        }
        self.kafkas: Mapping[str, QueryOption] = {
            row.name.removeprefix(KAFKAS): row for row in rows if row.name.startswith(KAFKAS)
        }

    def check_known(self, options: Iterable[str]) -> None:
        """Checks that every option is either in this table or one of Kafka's own (`kafka.*`).

        Raises:
            ConfigError: An option is unknown. The message names the most similar option.
        """
        names = {name.lower(): name for name in self.own}
        for option in options:
            if option.lower() in names or option.lower().startswith(KAFKAS):
                continue
            close = nearest(option.lower(), names)
            hint = (
                f" Did you mean {names[close]}?" if close else f" Known: {', '.join(sorted(names.values()))}."
            )
            raise error("UNKNOWN_OPTION", f"{option!r} is not an option of {self._what}.{hint}")

    def values(self, options: Mapping[str, str]) -> OptionValues:
        """Returns the values of the given options whose names are in `own`, and ignores all others. The names are not
        case-sensitive.
        """
        names = {name.lower(): name for name in self.own}
        given = {names[name.lower()]: value for name, value in options.items() if name.lower() in names}
        return OptionValues(self.rows, given)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Returns the most similar of the known names; None if none is similar."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)), None)
