"""Common parts of the commands: connections, spool directories, progress."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shlex
import socket
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from kafkasafe import marks as m
from kafkasafe.config import validate
from kafkasafe.config.spool_dir import without_links
from kafkasafe.errors import ConfigError, SpoolError, SpoolFormatError
from kafkasafe.history.identity import BatchId
from kafkasafe.spool.files import OsFiles
from kafkasafe.spool.inspection import Inspected, inspect, read_lane, resent_in
from kafkasafe.spool.lanes import SpoolDirectory, format_lost
from kafkasafe.spool.lanes.format import FORMAT_NAME
from kafkasafe.spool.rejected import RejectedRecords

PIPED_COLUMNS: Final = 200
"""Width of the output if standard output is not a terminal. It is wide enough that no text is cut."""

CODES: Final = (
    "Exit codes: 0 all is well; 1 {broken}; 2 the command line is wrong; 3 the command could not be carried"
    " out."
)

Directory = Annotated[Path, typer.Argument(metavar="DIR", help="A spool directory, as given to spool_dir.")]
Json = Annotated[bool, typer.Option("--json", help="JSON on standard output.")]
Servers = Annotated[
    str | None,
    # Kafka's own commands use the second name for this option.
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
        help="A TOML or .json file with further options of KafkaProducer, for example for TLS and SASL. Put secrets"
        " there, not on a command line.",
    ),
]

RESEND_HINT: Final = "kafkasafe spool resend sends rejected records again; kafkasafe spool show shows them"

NOT_APPLIED: Final = "Nothing was changed. Add --apply to carry this out"

_NO_SUCH_NAME: Final = {socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)}
_UNITS: Final = {"": 1, "ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400}


def app_of_command() -> typer.Typer:
    """Makes the typer app of a module that has one command. `kafkasafe.cli` imports the module only when the command is
    used.
    """
    return typer.Typer(add_completion=False, rich_markup_mode=None)


def standard_input() -> BinaryIO:
    """Returns standard input.

    Raises:
        BadParameter: Standard input is closed.
    """
    if sys.stdin is None:
        raise typer.BadParameter("standard input is closed", param_hint="--stdin")
    return sys.stdin.buffer


def connection(servers: str | None, config: Path | None) -> dict[str, Any]:
    """Reads and checks the options for a connection. The servers may be given as `servers`, or in the file `config`.

    Raises:
        BadParameter: The file is invalid, an option is unknown or invalid, or no address is known for any broker.
    """
    options: dict[str, Any] = {}
    if config is not None:
        try:
            text = config.read_text(encoding="utf-8")
            options = json.loads(text) if config.suffix == ".json" else tomllib.loads(text)
        except (OSError, ValueError, RecursionError) as error:
            # Do not show a line of the file: it may contain a password.
            wanted = "JSON" if config.suffix == ".json" else "TOML (a file named *.json may contain JSON)"
            why = error.strerror if isinstance(error, OSError) else f"it is not {wanted}"
            raise typer.BadParameter(f"{config} cannot be read: {why}", param_hint="--config") from None
        if not isinstance(options, dict):
            raise typer.BadParameter(
                f"{config} contains no options: write them as name = value", param_hint="--config"
            )
        _warn_of_readers(config, options)
        if isinstance(options.get("api_version"), list):
            options["api_version"] = tuple(options["api_version"])  # neither TOML nor JSON has tuples
    if servers is not None:
        options["bootstrap_servers"] = [name.strip() for name in servers.split(",") if name.strip()]
    if not options.get("bootstrap_servers"):
        raise typer.BadParameter("give the brokers as HOST:PORT,…", param_hint="--bootstrap-servers")
    try:
        # `validate` needs a `spool_dir`. Any value will do, because the commands do not read it from these options.
        validate({"spool_dir": ".", **options})
    except ConfigError as error:
        hint = "--bootstrap-servers" if config is None else "--config"
        raise typer.BadParameter(str(error.args[0]), param_hint=hint) from None
    _refuse_unknown_hosts(options)
    return options


def _refuse_unknown_hosts(options: Mapping[str, Any]) -> None:
    """Fails if no address is known for any broker, because a command would wait for these brokers in vain.

    Does not fail if the name server does not answer: then the command tries to reach the brokers.

    Raises:
        BadParameter: None of the names has an address.
    """
    if any(options.get(name) for name in ("proxy_url", "socks5_proxy")):
        return  # the proxy may know names that this machine does not
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
            f"kafkasafe: {config} contains a password and other users can read or write it (mode {mode & 0o777:04o});"
            f" run chmod 600 {shlex.quote(str(config))}",
            file=sys.stderr,
        )


def resolved(directory: Path) -> Path:
    """Returns the path of a directory without symbolic links. The directory need not exist.

    Raises:
        BadParameter: Symbolic links of the path form a loop.
    """
    try:
        return without_links(directory)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise typer.BadParameter(
            f"{directory} is not a spool directory: its symbolic links form a loop", param_hint="DIR"
        ) from None


def open_directory(directory: Path) -> SpoolDirectory:
    """Opens an existing spool directory for reading. Neither creates the directory nor writes to it.

    Raises:
        BadParameter: The path is not a spool directory.
        SpoolFormatError: A newer kafkasafe wrote the directory, or its file FORMAT is missing.
    """
    directory = resolved(directory)
    files = OsFiles()
    try:
        names = files.list(directory)
        if FORMAT_NAME in names:
            return SpoolDirectory.look(directory, files=files)
        if lost := format_lost(directory, names):
            error = SpoolFormatError(f"{_waiting_in(SpoolDirectory(directory, files))}{lost[0]}")
            error.add_note(lost[1])
            raise error
        what = f"it has no file FORMAT, but contains {min(names)!r}" if names else "it is empty"
    except FileNotFoundError:
        what = "it does not exist"
    except NotADirectoryError:
        what = "it is a file"
    raise typer.BadParameter(f"{directory} is not a spool directory: {what}", param_hint="DIR")


def refuse_as_root(directory: Path) -> None:
    """Refuse to let root change another user's spool directory. Root would create files there that the directory's
    owner could not open.

    Raises:
        SpoolError: This process is root, and the directory belongs to another user.
    """
    user = (resolved(directory) / FORMAT_NAME).stat().st_uid
    if user and not os.geteuid():
        error = SpoolError(
            f"{directory} belongs to user {user}: that user's producers could not open the files that root makes there."
            " Nothing was changed"
        )
        error.add_note(f"Run the command as that user: sudo -u '#{user}' kafkasafe …")
        raise error


def _waiting_in(lanes: SpoolDirectory) -> str:
    """Returns the number of undelivered records as the beginning of an error message; empty if none exist."""
    records = 0
    for number in lanes.lanes():
        with contextlib.suppress(SpoolError):
            found = inspect(lanes.lane_path(number), files=lanes.files)
            records += sum(waiting.records for waiting in found.waiting)
            records += sum(rejected.records for rejected in found.rejected)
    return f"{counted(records, 'UNDELIVERED RECORD', 'UNDELIVERED RECORDS')}: " if records else ""


def cluster_trouble(lanes: SpoolDirectory) -> list[tuple[str, str]]:
    """Returns [(name, reason)] if the directory's cluster id cannot be read, otherwise an empty list. The result is an
    argument for `unreadable_lines`.
    """
    try:
        lanes.cluster_id()
    except SpoolError as error:
        return [("CLUSTER", str(error))]
    return []


def lanes_of(
    directory: Path | SpoolDirectory, wanted: str | None = None
) -> Iterator[tuple[SpoolDirectory, int]]:
    """Yields a pair for each lane of an existing directory: the directory, and the lane's number.

    With `wanted`, yields only the lane with the number or name `wanted`.
    """
    lanes = open_directory(directory) if isinstance(directory, Path) else directory
    numbers = lanes.lanes()
    if wanted is not None:
        numbers = [n for n in numbers if wanted in {str(n), lanes.lane_path(n).name}]
        if not numbers:
            raise typer.BadParameter(f"{directory} has no lane {wanted}", param_hint="--lane")
    with progress("reading", "lanes") as report:
        for done, number in enumerate(numbers):
            report(done, len(numbers))
            yield lanes, number


def is_gone(path: Path) -> bool:
    """Whether another command has deleted a lane or a spool directory after it was listed. This is not a problem."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False  # this user has no permission to see it
    return False


def note_trouble(path: Path, error: SpoolError, troubles: list[tuple[str, str]]) -> None:
    """Adds a lane that could not be read to `troubles`, unless another command has deleted the lane meanwhile."""
    if not is_gone(path):
        troubles.append((path.name, str(error)))


def inspected(
    directory: Path | SpoolDirectory, troubles: list[tuple[str, str]]
) -> Iterator[tuple[SpoolDirectory, int, Inspected]]:
    """Inspects each lane.

    First reads the marks (small entries in the log) of all lanes. A mark in one lane may say that rejected records of
    another lane were sent again. Records that were sent again no longer count as rejected.

    Args:
        directory: The spool directory.
        troubles: Receives the name of each unreadable lane, with the reason.
    """
    resent: list[m.Resent] = []
    whole = []
    for lanes, number in lanes_of(directory):
        path = lanes.lane_path(number)
        try:
            resent += resent_in(read_lane(path, files=lanes.files))
            whole.append(number)
        except SpoolError as error:
            note_trouble(path, error, troubles)
    for lanes, number in lanes_of(directory):
        path = lanes.lane_path(number)
        try:
            if number in whole:
                yield lanes, number, inspect(path, files=lanes.files, resent=resent)
        except SpoolError as error:
            note_trouble(path, error, troubles)


def duration_s(text: str, hint: str) -> float:
    """Converts a duration such as "90", "500ms", "30s", "5m", "12h" or "7d" to seconds.

    Raises:
        BadParameter: The text is not a duration.
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
    """Shows a progress bar on standard error during a long operation, if standard error is a terminal.

    Yields:
        A function to call with (amount done, total amount).
    """
    console = Console(file=sys.stderr)
    if not console.is_terminal:
        yield lambda _done, _total: None
        return
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TextColumn(unit), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def drawn(draw: Callable[[Console], None]) -> list[str]:
    """Returns the lines that a function prints on a console, as standard output would show them."""
    console = Console(highlight=False)
    if not console.is_terminal:
        # Only a terminal has a width. If the output is not a terminal, use a width that does not cut a table.
        console = Console(highlight=False, width=PIPED_COLUMNS)
    with console.capture() as captured:
        draw(console)
    return captured.get().removesuffix("\n").split("\n")


def counted(number: int, what: str, plural: str = "") -> str:
    """Formats a number together with its noun: "1 record", "2,000 records"."""
    return f"{number:,} {what if number == 1 else plural or what + ('es' if what.endswith('ch') else 's')}"


def address_of(topic: str, partition: int) -> str:
    """Formats a destination: "orders-2", or "orders, no partition yet"."""
    return f"{topic}-{partition}" if partition >= 0 else f"{topic}, no partition yet"


def id_as_json(identity: BatchId | None) -> dict[str, int | None]:
    """The id of a batch for JSON output. All values are null for a batch without an id."""
    return {
        "producer_id": None if identity is None else identity.producer_id,
        "producer_epoch": None if identity is None else identity.producer_epoch,
        "base_sequence": None if identity is None else identity.base_sequence,
    }


def unreadable_lines(troubles: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Yields a line for each unreadable lane, with the reason."""
    for name, reason in troubles:
        yield f"{name}: CANNOT BE READ: {reason}"


def rejected_lines(rejected: Sequence[RejectedRecords], unreadable: Sequence[str]) -> Iterator[str]:
    """Yields indented lines about the content of a lane's rejected/."""
    for each in rejected:
        why = each.reason or "reason not known"
        code = f" ({each.code})" if each.code >= 0 and f"({each.code})" not in why else ""
        yield (
            f"  REJECTED {address_of(each.topic, each.partition)}: {counted(each.records, 'record')} in"
            f" {counted(each.batches, 'batch')}: {why}{code}"
        )
    for text in unreadable:
        yield f"  UNREADABLE {text}"


def missing_lines(missing: Sequence[str]) -> Iterator[str]:
    """Yields a line for each file that is missing in rejected/, then a line with advice."""
    for text in missing:
        yield f"  MISSING {text}"
    if missing:
        yield "  If you do not need these records, run kafkasafe spool discard: then they are no longer reported"


def copy_lines(same_lane_id: Sequence[str]) -> Iterator[str]:
    """Yields a line if other lanes have the same id as this lane."""
    if same_lane_id:
        yield (
            f"  COPY it has the same lane id as {', '.join(same_lane_id)}. One of them is the original, and the"
            " records of a copy would be delivered a second time. Move the copy out of the spool directory"
        )


def one_line(values: Mapping[str, object]) -> str:
    """Encodes values as one line of JSON."""
    return json.dumps(values, ensure_ascii=False)
