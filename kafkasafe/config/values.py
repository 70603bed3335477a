"""Checks of one option's value. Each check returns the value to store in the configuration's field."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from kafkasafe.errors import ConfigError
from kafkasafe.packages import MissingPackageError, pyarrow_for
from kafkasafe.record.batch import Compression

MAX_LANES: Final = 1000
DEFAULT_CLIENT_ID: Final = "kafkasafe"
MOST_IN_FLIGHT: Final = 5
"""A broker remembers a producer's last five batches. With more than five batches of a producer in flight, the broker
could not recognise a repeated batch.
"""
_COMPRESSION: Final = {
    None: Compression.NONE,
    "none": Compression.NONE,
    "gzip": Compression.GZIP,
    "snappy": Compression.SNAPPY,
    "lz4": Compression.LZ4,
    "zstd": Compression.ZSTD,
}
_ENDLESS: Final = 2**62
_TEXT_BYTES: Final = 0x7FFF
"""Largest size of a string in Kafka's protocol."""


_TOPIC_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")

Check: TypeAlias = Callable[[Mapping[str, Any], str], Any]
"""A function that gets all options and one option's name, and returns the value for the configuration's field."""


def number(*, least: int, most: int | None = None) -> Callable[[Mapping[str, Any], str], int]:
    """Return the check of a whole number."""

    def check(options: Mapping[str, Any], name: str) -> int:
        value = options[name]
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value < _ENDLESS:
            raise ConfigError(f"{name} must be a number of at least {least}, not {value!r}")
        if most is not None and value > most:
            raise ConfigError(f"{name} must be a number of at most {most}, not {value!r}")
        return int(value)

    return check


def seconds(*, least: int, per: int = 1000) -> Callable[[Mapping[str, Any], str], float]:
    """Return a check that converts a whole number to seconds; `per` units are one second."""
    whole = number(least=least)
    return lambda options, name: whole(options, name) / per


def duration(options: Mapping[str, Any], name: str) -> float:
    """Convert any number of milliseconds, including infinity, to seconds."""
    value = options[name]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
        raise ConfigError(f"{name} must be a number of milliseconds, 0 or more, not {value!r}")
    try:
        return float(value) / 1000
    except OverflowError:
        raise ConfigError(
            f"{name} is too large for a number of milliseconds; float('inf') means no end"
        ) from None


def as_text(value: Any) -> str:
    """Return the value as a string. Unlike `str`, the function returns the text of a member of an enum of strings
    (`class Reset(str, Enum)`), and not the member's name.
    """
    return str.__str__(value) if isinstance(value, str) else str(value)


def optional(check: Check, *absent: Any) -> Check:
    """Return a check that also accepts None and the values in `absent`, and returns None for them."""
    return lambda options, name: None if options[name] in (None, *absent) else check(options, name)


@dataclass(frozen=True, slots=True)
class Choice:
    """The check of an option that accepts only certain words."""

    words: tuple[str, ...]

    def __call__(self, options: Mapping[str, Any], name: str) -> Any:
        """Return the word.

        Raises:
            ConfigError: The value is not one of `words`.
        """
        value = options[name]
        if value not in self.words:
            near = difflib.get_close_matches(str(value), self.words, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ConfigError(
                f"{name} must be one of {', '.join(map(repr, self.words))}, not {value!r}{hint}"
            )
        return value


def choice(*words: str) -> Choice:
    """Return a check for an option that accepts only certain words."""
    return Choice(words)


def flag(options: Mapping[str, Any], name: str) -> bool:
    """Return whether the value is true. Text is refused, because Python would treat "false" as true."""
    value = options[name]
    if isinstance(value, (str, bytes)):
        raise ConfigError(f"{name} must be True or False, not {value!r}")
    return bool(value)


def converter(method: str) -> Check:
    """Return a check for converters of keys or values. A converter is a function, or an object that has the given
    method. None is allowed.
    """

    def check(options: Mapping[str, Any], name: str) -> Any:
        value = options[name]
        if value is not None and not callable(getattr(value, method, value)):
            raise ConfigError(
                f"{name} must be a function or have a method {method}(topic, headers, data), not {value!r}"
            )
        return value

    return check


def anything(options: Mapping[str, Any], name: str) -> Any:
    """Return the value as it is."""
    return options[name]


def lane(options: Mapping[str, Any], name: str) -> int | None:
    value = options[name]
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < MAX_LANES:
        raise ConfigError(f"{name} must be the number of a lane, 0 to {MAX_LANES - 1}, not {value!r}")
    return value


def hook(options: Mapping[str, Any], name: str) -> Any:
    value = options[name]
    if value is not None and not callable(value):
        topic = name == "on_rejected" and isinstance(value, str)
        instead = (
            ": it cannot name a dead-letter topic; pass a function that produces to that topic"
            if topic
            else ""
        )
        raise ConfigError(f"{name} must be a function or None, not {value!r}{instead}")
    return value


def path_of_file(options: Mapping[str, Any], name: str) -> Path | None:
    value = options[name]
    if value is None:
        return None
    if not isinstance(value, (str, os.PathLike)) or not os.fspath(value):
        raise ConfigError(f"{name} must be the path of a file, not {value!r}")
    return absolute(name, value)


def absolute(option: str, value: str | os.PathLike[str]) -> Path:
    """Return the path that an option names, as an absolute path. A leading `~` stands for the home directory.

    Raises:
        ConfigError: The path begins with `~`, and there is no home directory. Or the path is relative, and the current
            directory was deleted. Or the path cannot be a file name (`nameable`).
    """
    try:
        path = Path(value).expanduser()
    except RuntimeError:
        raise ConfigError(
            f"{option}={value!r}: this user has no home directory, or the named user does not exist; set HOME, or give"
            " an absolute path"
        ) from None
    try:
        path = path.absolute()
    except FileNotFoundError:
        raise ConfigError(
            f"{option}={value!r}: the path is relative, and the current directory was deleted; give an absolute path"
        ) from None
    return nameable(option, path)


def nameable(option: str, path: Path) -> Path:
    """Return the path. Refuse a path that this process cannot encode as a file name.

    Raises:
        ConfigError: The path has a null character, or characters that the locale of the process cannot encode.
    """
    try:
        if b"\0" in os.fsencode(path):
            raise ConfigError(f"{option}: {str(path)!a} cannot be a file name: it has a null character")
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"{option}: {str(path)!a} cannot be a file name in this process, which encodes file names as"
            f" {error.encoding}: start the process with PYTHONUTF8=1, or in a locale with UTF-8 (LC_ALL=C.UTF-8)"
        ) from None
    return path


def is_topic_name(value: str) -> bool:
    """Return whether Kafka permits this name for a topic, or as the instance id of a static group member."""
    return _TOPIC_NAME.fullmatch(value) is not None and value not in {".", ".."}


def sendable(name: str, value: str) -> str:
    """Refuse a string that Kafka's protocol and the spool cannot store.

    Without this check, each request with the string would fail. A write of the string to the spool would fail, too, and
    that error would end the producer.

    Args:
        name: Name of the option or of the method's argument, for the error message.
        value: The string. It is returned.

    Raises:
        ConfigError: The string is not valid UTF-8, or has more than 32,767 bytes.
    """
    try:
        size = len(value.encode())
    except UnicodeEncodeError as error:
        raise ConfigError(f"{name}: {value!r} cannot be written as UTF-8") from error
    if size > _TEXT_BYTES:
        raise ConfigError(f"{name}: {size} bytes are too long; the maximum is {_TEXT_BYTES}")
    return value


def divergence(options: Mapping[str, Any], name: str) -> Any:
    """Return the value of `on_divergence`: "raise", "seek" or a function."""
    return options[name] if callable(options[name]) else choice("raise", "seek")(options, name)


def consumers_hook(options: Mapping[str, Any], name: str) -> Any:
    if options[name] is not None and not callable(options[name]):
        raise ConfigError(f"{name} must be callable, not {options[name]!r}")
    return options[name]


def acks_of(options: Mapping[str, Any], name: str) -> int:
    """Return the number of `acks`: -1 or 1."""
    acks: Any = {"all": -1, "-1": -1, "1": 1}.get(as_text(options[name]), options[name])
    if acks == 0:
        raise ConfigError(
            "acks=0 requests no acknowledgement, so the producer could never know that a record is safe; use 'all'"
        )
    if not (acks == -1 or acks == 1):  # noqa: PLR1714 - the value may be unhashable
        raise ConfigError(f"acks must be 'all', -1 or 1, not {options[name]!r}")
    return -1 if acks == -1 else 1


def transactional_id_of(options: Mapping[str, Any], name: str) -> str | None:
    value = options[name]
    if value is None:
        return None
    if not (isinstance(value, str) and value):
        raise ConfigError(f"{name} must be a non-empty string, not {value!r}")
    return sendable(name, value)


def idempotence_of(options: Mapping[str, Any], name: str) -> bool:
    """Return True: batches always have ids."""
    if not options[name]:
        raise ConfigError(f"{name}=False would let every retry create a duplicate; leave {name} on")
    return True


def compression_of(options: Mapping[str, Any], name: str) -> Compression:
    kind = options[name]
    compression = _COMPRESSION.get(kind) if kind is None or isinstance(kind, str) else None
    if compression is None:
        known = ", ".join(str(word) for word in _COMPRESSION)
        raise ConfigError(f"{name} must be one of {known}, not {kind!r}")
    if compression not in {Compression.NONE, Compression.GZIP}:
        try:
            pyarrow_for(f"{name}={kind!r}")
        except MissingPackageError as error:
            raise ConfigError(f"{error}; {name}='gzip' needs no other package") from error
    return compression


def window_of(options: Mapping[str, Any], name: str) -> int:
    """Return how many batches of one partition may be in flight."""
    return min(MOST_IN_FLIGHT, number(least=1)(options, name))


def client_id_of(options: Mapping[str, Any], name: str) -> str:
    """Return the client id, never empty."""
    return options[name] or DEFAULT_CLIENT_ID


def partitioner_of(options: Mapping[str, Any], name: str) -> Any:
    given = options[name]
    # A str has a method partition(), too.
    if isinstance(given, (str, bytes, bytearray)) or not callable(getattr(given, "partition", None)):
        raise ConfigError(
            f"{name} must have a method partition(), like kafka.partitioner.Partitioner, not {given!r}"
        )
    return given
