"""What the commands share: exit codes, connections, spool directories, progress."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import socket
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from kafkasafe._core import marks as m
from kafkasafe._io.files import OsFiles
from kafkasafe._io.inspection import Inspected, inspect, read_lane, resent_in
from kafkasafe._io.lanes import SpoolDirectory, format_lost
from kafkasafe._io.rejected import RejectedRecords
from kafkasafe.config import validate
from kafkasafe.errors import ConfigError, SpoolError, SpoolFormatError

__all__ = [
    "CODES",
    "EXIT_BROKEN",
    "EXIT_FAILED",
    "EXIT_INTERRUPTED",
    "EXIT_USAGE",
    "PIPED_COLUMNS",
    "RESEND_HINT",
    "ConfigFile",
    "Directory",
    "Json",
    "Servers",
    "address_of",
    "cluster_trouble",
    "connection",
    "counted",
    "duration_s",
    "inspected",
    "lanes_of",
    "open_directory",
    "print_rejected",
    "print_unreadable",
    "progress",
]

EXIT_BROKEN: Final = 1
EXIT_USAGE: Final = 2
EXIT_FAILED: Final = 3
EXIT_INTERRUPTED: Final = 130

PIPED_COLUMNS: Final = 200
"""Where there is no terminal to measure nothing is cut off."""

CODES: Final = (
    "Exit codes: 0 all is well; 1 {broken}; 2 the command line is wrong; 3 it could not be carried out."
)

Directory = Annotated[Path, typer.Argument(metavar="DIR", help="A spool directory, as given to spool_dir.")]
Json = Annotated[bool, typer.Option("--json", help="JSON on standard output.")]
Servers = Annotated[
    str | None,
    # The second as Kafka's own commands have it.
    typer.Option(
        "--bootstrap-servers",
        "--bootstrap-server",
        "-b",
        metavar="HOST:PORT,…",
        help="Brokers of the cluster.",
    ),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "--command-config",
        metavar="FILE",
        help="More options of KafkaProducer's, as for TLS and SASL: a TOML file, or .json. Secrets belong there, not"
        " on a command line.",
    ),
]

RESEND_HINT: Final = "kafkasafe spool resend sends rejected records again; kafkasafe spool show shows them"

_NO_SUCH_NAME: Final = {socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)}
_UNITS: Final = {"": 1, "ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400}


def connection(servers: str | None, config: Path | None) -> dict[str, Any]:
    """Options for a connection, checked; servers may be in the file.

    Raises:
        BadParameter: A file that is none, an option that is unknown or cannot work, brokers without an address.
    """
    options: dict[str, Any] = {}
    if config is not None:
        try:
            text = config.read_text(encoding="utf-8")
            options = json.loads(text) if config.suffix == ".json" else tomllib.loads(text)
        except (OSError, ValueError, RecursionError) as error:
            # Never with a line of the file: there may be a password in it.
            why = (
                error.strerror
                if isinstance(error, OSError)
                else f"it is not a {config.suffix[1:] or 'TOML'} file"
            )
            raise typer.BadParameter(f"{config} cannot be read: {why}", param_hint="--config") from None
        if not isinstance(options, dict):
            raise typer.BadParameter(f"{config} holds no options: name = value", param_hint="--config")
        _warn_of_readers(config, options)
    if servers is not None:
        options["bootstrap_servers"] = [name.strip() for name in servers.split(",") if name.strip()]
    if not options.get("bootstrap_servers"):
        raise typer.BadParameter("say where the brokers are", param_hint="--bootstrap-servers")
    try:
        # Commands have a directory of their own, or need none.
        validate({"spool_dir": ".", **options})
    except ConfigError as error:
        hint = "--bootstrap-servers" if config is None else "--config"
        raise typer.BadParameter(str(error.args[0]), param_hint=hint) from None
    _refuse_unknown_hosts(options)
    return options


def _refuse_unknown_hosts(options: Mapping[str, Any]) -> None:
    """No command waits for brokers whose names have no address. It waits for a name server that does not answer.

    Raises:
        BadParameter: None of the names has an address.
    """
    if any(options.get(name) for name in ("proxy_url", "socks5_proxy")):
        return  # which knows other names
    servers = options["bootstrap_servers"]
    unknown = []
    for server in servers.split(",") if isinstance(servers, str) else servers:
        host = re.sub("^.*://", "", server.strip())
        host = host[1:].partition("]")[0] if host.startswith("[") else host
        host = host.partition(":")[0] if host.count(":") == 1 else host
        try:
            socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            if not isinstance(error, UnicodeError) and error.errno not in _NO_SUCH_NAME:
                return
            unknown.append(host)
        else:
            return
    names = ", ".join(map(repr, unknown))
    raise typer.BadParameter(
        f"no address is known for {names}; give brokers as HOST:PORT,…", param_hint="--bootstrap-servers"
    )


def _warn_of_readers(config: Path, options: Mapping[str, Any]) -> None:
    mode = config.stat().st_mode
    if any("password" in name for name in options) and mode & 0o077:
        print(
            f"kafkasafe: {config} holds a password and can be read or written by others (mode {mode & 0o777:04o});"
            f" chmod 600 {shlex.quote(str(config))}",
            file=sys.stderr,
        )


def open_directory(directory: Path) -> SpoolDirectory:
    """A spool directory that is there: looking must not make one, nor write to it.

    Raises:
        BadParameter: It is none.
        SpoolFormatError: It was written by a newer kafkasafe, or lost its file FORMAT.
    """
    directory = directory.resolve()
    files = OsFiles()
    try:
        names = files.list(directory)
        if "FORMAT" in names:
            return SpoolDirectory.look(directory, files=files)
        if lost := format_lost(directory, names):
            error = SpoolFormatError(f"{_waiting_in(SpoolDirectory(directory, files))}{lost[0]}")
            error.add_note(lost[1])
            raise error
        what = f"it has no file FORMAT, and holds {min(names)!r}" if names else "it is empty"
    except FileNotFoundError:
        what = "it does not exist"
    except NotADirectoryError:
        what = "it is a file"
    raise typer.BadParameter(f"{directory} is not a spool directory: {what}", param_hint="DIR")


def _waiting_in(lanes: SpoolDirectory) -> str:
    """The beginning of a sentence about the records that no command shows, empty if there are none."""
    records = 0
    for number in lanes.lanes():
        with contextlib.suppress(SpoolError):
            found = inspect(lanes.lane_path(number), files=lanes.files)
            records += sum(waiting.records for waiting in found.waiting)
            records += sum(rejected.records for rejected in found.rejected)
    return f"{counted(records, 'UNDELIVERED RECORD', 'UNDELIVERED RECORDS')}: " if records else ""


def cluster_trouble(lanes: SpoolDirectory) -> list[tuple[str, str]]:
    """(name, reason) where it cannot be told for which cluster the records are; for `print_unreadable`."""
    try:
        lanes.cluster_id()
    except SpoolError as error:
        return [("CLUSTER", str(error))]
    return []


def lanes_of(
    directory: Path | SpoolDirectory, wanted: str | None = None
) -> Iterator[tuple[SpoolDirectory, int]]:
    """The lanes of a directory that is there."""
    lanes = open_directory(directory) if isinstance(directory, Path) else directory
    numbers = lanes.lanes()
    if wanted is not None:
        numbers = [n for n in numbers if wanted in {str(n), lanes.lane_path(n).name}]
        if not numbers:
            raise typer.BadParameter(f"{directory} has no lane {wanted}", param_hint="--lane")
    with progress("reading", "lanes") as told:
        for done, number in enumerate(numbers):
            told(done, len(numbers))
            yield lanes, number


def inspected(
    directory: Path | SpoolDirectory, troubles: list[tuple[str, str]]
) -> Iterator[tuple[SpoolDirectory, int, Inspected]]:
    """Each lane. What one of them names as resent, another one's rejected/ has no more.

    Args:
        directory: The spool directory.
        troubles: Gets the name of each lane that cannot be read, and why.
    """
    resent: list[m.Resent] = []
    whole = []
    for lanes, number in lanes_of(directory):
        path = lanes.lane_path(number)
        try:
            resent += resent_in(read_lane(path, files=lanes.files))
            whole.append(number)
        except SpoolError as error:
            troubles.append((path.name, str(error)))
    for lanes, number in lanes_of(directory):
        path = lanes.lane_path(number)
        try:
            if number in whole:
                yield lanes, number, inspect(path, files=lanes.files, resent=resent)
        except SpoolError as error:
            troubles.append((path.name, str(error)))


def duration_s(text: str, hint: str) -> float:
    """Seconds of "90", "500ms", "30s", "5m", "12h", "7d".

    Raises:
        BadParameter: It is none of these.
    """
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz")
    try:
        seconds = float(number) * _UNITS[text[len(number) :]]
    except (ValueError, KeyError):
        seconds = -1.0
    if not 0 <= seconds < 1e10:
        raise typer.BadParameter(
            f"{text!r} is not a duration; write 500ms, 30s, 5m, 12h or 7d", param_hint=hint
        )
    return seconds


@contextlib.contextmanager
def progress(what: str, unit: str = "") -> Iterator[Callable[[float, float], None]]:
    """A bar on standard error while something long is under way; nothing where that is no terminal.

    Yields:
        A function that is told (done, of how much).
    """
    console = Console(file=sys.stderr)
    if not console.is_terminal:
        yield lambda _done, _total: None
        return
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TextColumn(unit), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def counted(number: int, what: str, plural: str = "") -> str:
    """As in "1 record", "2,000 records"."""
    return f"{number:,} {what if number == 1 else plural or what + ('es' if what.endswith('ch') else 's')}"


def address_of(topic: str, partition: int) -> str:
    """As in "orders-2", or "orders, no partition yet"."""
    return f"{topic}-{partition}" if partition >= 0 else f"{topic}, no partition yet"


def print_unreadable(troubles: Sequence[tuple[str, str]], *, to_stderr: bool = False) -> None:
    """Lanes that cannot be read, and why; the others were shown."""
    for name, reason in troubles:
        print(f"{name}: CANNOT BE READ: {reason}", file=sys.stderr if to_stderr else sys.stdout)


def print_rejected(rejected: Sequence[RejectedRecords], unreadable: Sequence[str]) -> None:
    """What is kept in a lane's rejected/, indented."""
    for each in rejected:
        why = each.reason or "reason not known"
        code = f" ({each.code})" if each.code >= 0 and f"({each.code})" not in why else ""
        print(
            f"  REJECTED {address_of(each.topic, each.partition)}: {counted(each.records, 'record')} in"
            f" {counted(each.batches, 'batch')}: {why}{code}"
        )
    for text in unreadable:
        print(f"  UNREADABLE {text}")


def one_line(values: Mapping[str, object]) -> str:
    """JSON lines."""
    return json.dumps(values, ensure_ascii=False)
