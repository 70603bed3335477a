"""The `kafkasafe` command."""

from __future__ import annotations

import codecs
import contextlib
import importlib
import importlib.metadata
import io
import itertools
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final

import typer

import kafkasafe
from kafkasafe.cli.groups import WholeSentences
from kafkasafe.cli.report import EXIT_BROKEN_PIPE, EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE

__all__ = ["app", "main"]

_COMMANDS: Final = {
    "doctor": "Show whether each undelivered batch is in the log, with proof, and which topic settings break a"
    " promise.",
    "health": "Say whether a producer could accept records in a spool directory, and what needs an operator there.",
    "spool": "Inspect, repair and drain spool directories. Only repair, drain, commit, abort, resend, set-aside,"
    " discard and prune change anything.",
    "offsets": "Show end offsets. The command shows a lower offset than before only if it is proven that records are"
    " lost.",
    "audit": "Find gaps and repeats in a topic: in each producer's sequence numbers per partition, and in an id of your"
    " own.",
    "classify": "Explain an error code of Kafka, and what to do about it.",
    "lineage": "Find where two logs differ, from their leader epochs, and count the requests and bytes that this"
    " takes.",
    "demo": "Run a real Kafka with 3 brokers on this machine, and kill everything with kill -9.",
    "version": "Print the versions of kafkasafe, kafka-python and Python.",
}
"""The first paragraph of each command's help, in the order of `kafkasafe --help`. The texts are here so that neither
`kafkasafe --help` nor a command has to import the modules of all commands. Each command except `version` is the `app`
of a module kafkasafe.cli.NAME.
"""


class _OnUse(dict[str, Any]):
    """Commands by name. A command's module is imported when the command is looked up for the first time."""

    def __init__(self, ready: Mapping[str, Any]) -> None:
        super().__init__({**dict.fromkeys(_COMMANDS), **ready})

    def __getitem__(self, name: str) -> Any:
        command = super().__getitem__(name)
        if command is None:
            command = typer.main.get_command(importlib.import_module(f"kafkasafe.cli.{name}").app)
            command.name = name
            self[name] = command
        return command

    def get(self, name: str, default: Any = None) -> Any:
        try:
            return self[name]
        except KeyError:
            return default

    def values(self) -> Any:
        return [self[name] for name in self]

    def items(self) -> Any:
        return [(name, self[name]) for name in self]


class _Group(WholeSentences):
    """The command `kafkasafe` itself."""

    def __init__(self, *, commands: Any = None, **settings: Any) -> None:
        super().__init__(commands=_OnUse(commands or {}), **settings)

    def list_commands(self, _ctx: Any) -> list[str]:
        return list(self.commands)

    def helps(self, _ctx: Any) -> list[tuple[str, str]]:
        return list(_COMMANDS.items())


TAGLINE: Final = (kafkasafe.__doc__ or "").partition("\n")[0]

app = typer.Typer(
    name="kafkasafe",
    cls=_Group,
    help=TAGLINE,
    no_args_is_help=True,
    # Plain output: help can be piped, and an error is one line.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"kafkasafe {importlib.metadata.version('kafkasafe')}")
        raise typer.Exit


@app.callback(help=TAGLINE)
def options_of_all(
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Declares the options of the command `kafkasafe` itself. The help text of this command is TAGLINE."""


@app.command()
def version(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """Print the versions of kafkasafe, kafka-python and Python."""
    names = ("kafkasafe", "kafka-python")
    found = {name: importlib.metadata.version(name) for name in names}
    found["python"] = ".".join(map(str, sys.version_info[:3]))
    if as_json:
        print(json.dumps(found))
        return
    print(f"kafkasafe {found['kafkasafe']}")
    print(f"kafka-python {found['kafka-python']}, Python {found['python']}")


# --- start ----------------------------------------------------------------------------------------------------------


# Depending on typer's version, the class of usage errors is typer's own or click's.
_USAGE_ERRORS: Final[Any] = typer.BadParameter.__mro__[2]


_ESCAPES: Final = "kafkasafe-json-escapes"


def _as_escapes(error: UnicodeError) -> tuple[str, int]:
    """Replace characters that a stream cannot show with escapes that are also valid in JSON."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


codecs.register_error(_ESCAPES, _as_escapes)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the `kafkasafe` command. Never returns, but raises `SystemExit`."""
    # The commands themselves report outages, so silence kafka-python's log.
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    _occupy_standard_streams()
    for stream in (sys.stdout, sys.stderr):
        # Print escapes for bytes of a file name that are not text, and for characters that the terminal cannot show.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_ESCAPES)
    given = [str(each) for each in (sys.argv[1:] if arguments is None else arguments)]
    # If a pipe is broken, Typer replaces both streams by wrappers, even a closed one, which is None and cannot be
    # flushed. So put the streams back afterwards.
    with contextlib.redirect_stdout(sys.stdout), contextlib.redirect_stderr(sys.stderr), _ended_by_signals():
        code = _run(given)
    try:
        _flush(sys.stdout)
    except BrokenPipeError:
        code = code if code >= EXIT_USAGE else EXIT_BROKEN_PIPE
    except OSError as error:  # for example, the output goes to a file on a full volume
        if code < EXIT_USAGE:
            code = EXIT_FAILED
            with contextlib.suppress(OSError):
                print(f"kafkasafe: the output cannot be written: {error.strerror}", file=sys.stderr)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            _flush(stream)
            continue
        # The stream cannot be flushed, so replace it with /dev/null. Otherwise the interpreter would fail to flush the
        # stream at exit, and change the exit code.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    sys.exit(code)


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Inside the context, SIGTERM and SIGHUP end a command in the same way as Ctrl-C: the command removes partial
    files, and stops the processes that it has started. A second signal ends the process at once.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, _frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        raise SystemExit(128 + number)

    # If the parent process ignores a signal (as nohup does), keep ignoring it.
    ours = [each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) is signal.SIG_DFL]
    try:
        for each in ours:
            signal.signal(each, end)
        yield
    finally:
        for each in ours:
            signal.signal(each, signal.SIG_DFL)


def _occupy_standard_streams() -> None:
    """Open /dev/null in place of each closed standard stream.

    Otherwise the next opened file would get the file descriptor of the stream, and the stream's output would go to that
    file.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)


def _flush(stream: Any) -> None:
    if stream is not None:  # Python sets a standard stream to None if it was closed when the process started
        stream.flush()


def _run(given: Sequence[str]) -> int:
    """Run a command, print its error if it fails, and return the exit code."""
    try:
        # If the command has already printed its result, the return value is its exit code.
        ended = app(args=given, prog_name="kafkasafe", standalone_mode=False)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except SystemExit as error:
        # Typer raises SystemExit if a pipe is broken.
        if isinstance(error.__context__, BrokenPipeError):
            return EXIT_BROKEN_PIPE
        raise
    except _USAGE_ERRORS as error:
        context = error.ctx
        hint = f"{context.command_path} --help" if context is not None else "kafkasafe --help"
        with contextlib.suppress(OSError):
            error.show()
        _print_json_error(given, error.format_message(), error.exit_code, hint)
        return int(error.exit_code)
    except Exception as error:
        from kafka.errors import KafkaError

        from kafkasafe.errors import BaselineError
        from kafkasafe.packages import MissingPackageError

        if not isinstance(error, KafkaError | OSError | BaselineError | MissingPackageError):
            raise
        text = str(error) or type(error).__name__
        hint = " ".join(getattr(error, "__notes__", ()))
        with contextlib.suppress(OSError):
            print(f"kafkasafe: {text}{hint and f'. {hint}'}", file=sys.stderr)
        _print_json_error(given, text, EXIT_FAILED, hint)
        return EXIT_FAILED
    return ended if isinstance(ended, int) else 0


def _print_json_error(given: Sequence[str], text: str, code: int, hint: str) -> None:
    """With --json, print the error as one JSON object in place of a result."""
    if "--json" not in given or given[0] == "demo":  # `--json` of `demo` names a file
        return
    # If the command writes records to standard output, the error goes to standard error.
    records = any(pair in {("-o", "-"), ("--output", "-")} for pair in itertools.pairwise(given))
    report = {"error": text, "code": code, "hint": hint or None}
    stream = sys.stderr if records else sys.stdout
    with contextlib.suppress(OSError):
        print(json.dumps(report), file=stream, flush=True)
