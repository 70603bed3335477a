"""The `kafkasafe` command."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import importlib.metadata
import io
import itertools
import json
import logging
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from kafka.errors import KafkaError
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table

import kafkasafe
from kafkasafe._core import codes
from kafkasafe._core.epochs import Comparison, Lineage, LineageError, ReplyKind, Step, Strategy, compare
from kafkasafe.classification import Verdict, classify
from kafkasafe.cli_audit import AUDIT_CODES, audit_topic
from kafkasafe.cli_common import CODES, EXIT_BROKEN, EXIT_FAILED, EXIT_INTERRUPTED, PIPED_COLUMNS
from kafkasafe.cli_doctor import DOCTOR_CODES, doctor
from kafkasafe.cli_health import HEALTH_CODES, health
from kafkasafe.cli_offsets import OFFSETS_CODES, offsets
from kafkasafe.cli_spool import spool_app
from kafkasafe.errors import BaselineError, ConfigError, KafkaSafeError

if TYPE_CHECKING:
    from kafkasafe.testing.demo import Demo, Run

__all__ = ["app", "main"]

TAGLINE: Final = (kafkasafe.__doc__ or "").partition("\n")[0]

app = typer.Typer(
    name="kafkasafe",
    help=TAGLINE,
    no_args_is_help=True,
    # Plain: help that can be piped, an error that is one line.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
app.add_typer(spool_app, name="spool")
app.command("audit", epilog=AUDIT_CODES)(audit_topic)
app.command("doctor", epilog=DOCTOR_CODES)(doctor)
app.command("health", epilog=HEALTH_CODES)(health)
app.command("offsets", epilog=OFFSETS_CODES)(offsets)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"kafkasafe {importlib.metadata.version('kafkasafe')}")
        raise typer.Exit


@app.callback(help=TAGLINE)
def options_of_all(
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version, and end."),
    ] = False,
) -> None:
    """What all commands take."""


@app.command()
def version(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """Print the versions of kafkasafe and of what it stands on."""
    names = ("kafkasafe", "kafka-python")
    found = {name: importlib.metadata.version(name) for name in names}
    found["python"] = ".".join(map(str, sys.version_info[:3]))
    if as_json:
        print(json.dumps(found))
        return
    print(f"kafkasafe {found['kafkasafe']}")
    print(f"kafka-python {found['kafka-python']}, Python {found['python']}")


# --- classify -------------------------------------------------------------------------------------------------------


@app.command(
    name="classify",
    epilog="Exit codes: 0 the verdicts are printed; 2 the command line, or a line of the input, is wrong.",
    # So that -1 is a code and no option.
    context_settings={"ignore_unknown_options": True},
)
def classify_error(
    code: Annotated[
        str | None,
        typer.Argument(
            metavar="CODE|NAME",
            help="59, -1, UNKNOWN_PRODUCER_ID, OutOfOrderSequenceException …",
            show_default=False,
        ),
    ] = None,
    api: Annotated[
        str | None, typer.Option(help="The request that failed: produce, fetch, list_offsets …")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="All codes of Kafka.")] = False,
    stdin: Annotated[
        bool,
        typer.Option(
            "--stdin",
            help='JSON lines on standard input, {"code": 59, "api": "produce", "last_acked_offset": 1000,'
            ' "log_start_offset": 999, "resend": false}; one verdict a line.',
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="JSON on standard output.")] = False,
) -> None:
    """What an error code of Kafka means, and what to do about it.

    More that may be known about the request is told on standard input: last_acked_offset, log_start_offset, resend,
    tiered, position, in_log.
    """
    if code is not None and code.startswith("-") and not code[1:].isdecimal():
        near = difflib.get_close_matches(code, ("--api", "--all", "--stdin", "--json", "--help"), n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise typer.BadParameter(f"there is no option {code[:80]}{hint}", param_hint="CODE|NAME")
    if [code is not None, every, stdin].count(True) != 1:
        raise typer.BadParameter("give one of a code or name, --all, --stdin", param_hint="CODE|NAME")
    try:
        if stdin:
            for verdict in _verdicts_on_lines(api):
                print(json.dumps(verdict.as_dict()) if as_json else _one_line(verdict), flush=True)
            return
        verdicts = [classify(each, api) for each in (codes.all_codes() if every else [code or ""])]
    except ConfigError as error:
        raise typer.BadParameter(str(error.args[0])) from None
    if as_json:
        rows = [verdict.as_dict() for verdict in verdicts]
        print(json.dumps(rows if every else rows[0], indent=1))
    elif every:
        print("\n".join(map(_one_line, verdicts)))
    else:
        print(_in_words(verdicts[0]))


def _verdicts_on_lines(api: str | None) -> Iterator[Verdict]:
    for number, line in enumerate(sys.stdin.buffer, 1):
        try:
            if line.strip():
                yield _verdict_on_line(line, api)
        except ConfigError as error:
            raise ConfigError(f"line {number}: {error.args[0]}") from None
        except (ValueError, RecursionError) as error:
            # ValueError: not JSON, not UTF-8, or a number of thousands of digits.
            raise ConfigError(f"line {number}: {error}") from None


def _verdict_on_line(line: bytes, api: str | None) -> Verdict:
    asked = json.loads(line)
    if not isinstance(asked, dict):
        raise ConfigError(f"one JSON object is wanted, not {type(asked).__name__}")
    if "code" not in asked:
        raise ConfigError('"code" is missing')
    code, kind = asked.pop("code"), asked.pop("api", None)
    return classify(code, api if kind is None else kind, asked)


def _one_line(verdict: Verdict) -> str:
    code = "" if verdict.code is None else f"{verdict.code:>4} "
    return f"{code}{verdict.name}: {verdict.action.value}. {verdict.explanation}"


def _in_words(verdict: Verdict) -> str:
    lines = [
        (verdict.name if verdict.code is None else f"{verdict.name} ({verdict.code})")
        + (f" in an answer to {verdict.api}" if verdict.api else ""),
        f"  action            {verdict.action.value}",
        f"  retriable         {'yes' if verdict.retriable else 'no'}",
        f"  refresh metadata  {'yes' if verdict.refresh_metadata else 'no'}",
        f"  data at risk      {'yes' if verdict.data_at_risk else 'no'}",
        f"  {verdict.explanation}",
    ]
    return "\n".join([*lines, f"  Note: {verdict.note}"] if verdict.note else lines)


# --- lineage --------------------------------------------------------------------------------------------------------


@app.command(
    epilog="Exit codes: 0 the walk is printed; 2 the command line, or a line of the input, is wrong.",
)
def lineage(
    ours: Annotated[
        str | None,
        typer.Option(metavar="EPOCHS", help="The follower's epochs as EPOCH:START,… oldest first."),
    ] = None,
    ours_end: Annotated[int | None, typer.Option(help="The follower's log end offset.")] = None,
    theirs: Annotated[
        str | None,
        typer.Option(metavar="EPOCHS", help="The leader's epochs, as in its leader-epoch-checkpoint."),
    ] = None,
    theirs_end: Annotated[int | None, typer.Option(help="The leader's log end offset.")] = None,
    high_watermark: Annotated[
        int | None,
        typer.Option(help="The follower's: where it truncates to when the leader knows none of its epochs."),
    ] = None,
    strategy: Annotated[
        Strategy,
        typer.Option(help="What is asked: KIP-279's accepted protocol, or one of its alternatives."),
    ] = Strategy.KIP279,
    sequence: Annotated[
        str | None,
        typer.Option(
            metavar="N,M,…",
            help="With alt2: how many epochs the first question has, the second, …; after the last twice as many.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON on standard output.")] = False,
    stdin: Annotated[
        bool,
        typer.Option(
            "--stdin",
            help='With --json: one pair a line on standard input, {"ours": [[0, 0], [4, 5]], "ours_end": 9,'
            ' "theirs": [[0, 0], [2, 3]], "theirs_end": 12, "high_watermark": 0, "strategy": "alt2", "sequence":'
            " [2, 4]}; one result a line. The last three may be left out.",
        ),
    ] = False,
) -> None:
    """Where do two logs differ, judging by their leader epochs, and what does it cost to find out?

    Plays OffsetForLeaderEpoch between a follower and a leader, step by step.
    Example: kafkasafe lineage --ours 0:0,4:5,8:7 --ours-end 9 --theirs 0:0,2:3,6:6,10:9 --theirs-end 12
    """
    given: dict[str, Any] = {"ours": ours, "ours_end": ours_end, "theirs": theirs, "theirs_end": theirs_end}
    if stdin:
        if named := [name for name, value in given.items() if value is not None]:
            raise _wrong(named[0], "not together with --stdin: it is part of each line")
        if not as_json:
            raise _wrong("stdin", "results are JSON lines: add --json")
        for number, line in enumerate(sys.stdin.buffer, 1):
            if line.strip():
                found = _compared_line(number, line, high_watermark, strategy, _lengths(sequence))
                print(json.dumps(_walked(found)), flush=True)
        return
    for name in ("ours", "theirs"):
        given[name] = None if given[name] is None else _epochs(name, given[name])
    for name, value in given.items():
        if value is None:
            example = "9" if name.endswith("end") else "0:0,4:5,8:7"
            raise _wrong(name, f"missing: give it, as in --{name.replace('_', '-')} {example}")
    given["high_watermark"] = high_watermark
    given["sequence"] = _lengths(sequence)
    try:
        found = _compared(given, strategy)
    except _PairError as error:
        raise _wrong(error.name, str(error)) from None
    if as_json:
        print(json.dumps(_walked(found), indent=1))
        return
    for number, step in enumerate(found.steps, 1):
        print(f"{number}. {_asked(step)} {_answered(step, found)}")
    end, rounds = ours_end or 0, found.round_trips
    print(
        f"truncate to {found.truncate_to}: "
        + (f"offsets {found.truncate_to}–{end - 1} differ" if found.truncate_to < end else "nothing differs")
        + f"; {rounds} round trip{'s' if rounds != 1 else ''}, {found.request_bytes} bytes of requests,"
        f" {found.response_bytes} of responses"
    )


class _PairError(KafkaSafeError, ValueError):
    """A member of a pair is wrong."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


def _wrong(name: str, message: str) -> typer.BadParameter:
    return typer.BadParameter(message, param_hint=f"--{name.replace('_', '-')}")


def _epochs(name: str, text: str) -> list[list[int]]:
    entries = []
    for entry in text.split(",") if text.strip() else ():
        numbers = entry.split(":")
        if len(numbers) != 2 or not all(part.strip().isdecimal() and len(part) < 20 for part in numbers):
            raise _wrong(name, f"{entry[:40]!r} is not EPOCH:START; write for example 0:0,4:5,8:7")
        entries.append([int(part) for part in numbers])
    return entries


def _lengths(text: str | None) -> list[int] | None:
    if text is None:
        return None
    parts = text.split(",")
    if not all(part.strip().isdecimal() and len(part) < 10 for part in parts):
        raise _wrong("sequence", f"{text[:40]!r} is not N,M,…; write for example 2,4")
    return [int(part) for part in parts]


def _compared(pair: Mapping[str, Any], strategy: Strategy) -> Comparison:
    logs = []
    for name in ("ours", "theirs"):
        entries, end = pair[name], pair[f"{name}_end"]
        if not isinstance(entries, list) or not all(isinstance(e, list) and len(e) == 2 for e in entries):
            raise _PairError(name, "give a list of [epoch, start offset], oldest first")
        if any(epoch == -1 for epoch, _ in entries):
            raise _PairError(name, "epoch -1 stands for none: leave it out")
        try:
            Lineage(entries)
        except LineageError as error:
            raise _PairError(name, str(error)) from None
        try:
            logs.append(Lineage(entries, end, limit=len(entries) + 1))
        except LineageError as error:
            raise _PairError(
                f"{name}_end", f"{error}; give the log end offset, behind the last record"
            ) from None
    mark = pair.get("high_watermark")
    if mark is not None and (type(mark) is not int or mark < 0):
        raise _PairError("high_watermark", f"{mark!r} is not an offset; give 0 or more, or leave it out")
    if mark is None and strategy is Strategy.CLEAN_ONLY:
        raise _PairError("high_watermark", "missing: it is what the strategy clean asks about")
    lengths = pair.get("sequence")
    if lengths is None:
        return compare(strategy, logs[0], logs[1], mark)
    if strategy is not Strategy.ALTERNATIVE2:
        raise _PairError("sequence", "only alt2 sends one: leave it out, or choose the strategy alt2")
    if not isinstance(lengths, list) or not lengths or any(type(length) is not int for length in lengths):
        raise _PairError("sequence", "give a list of numbers of epochs, as [2, 4]")
    try:
        return compare(strategy, logs[0], logs[1], mark, lengths=lengths)
    except ValueError as error:
        raise _PairError("sequence", str(error)) from None


def _compared_line(
    number: int, line: bytes, high_watermark: int | None, strategy: Strategy, lengths: list[int] | None
) -> Comparison:
    try:
        pair = json.loads(line)
        if not isinstance(pair, dict):
            raise _PairError("", f"a line is one JSON object, not {type(pair).__name__}")
        names = ("ours", "ours_end", "theirs", "theirs_end", "high_watermark", "strategy", "sequence")
        for name in names[:4]:
            if pair.get(name) is None:
                raise _PairError(name, "missing")
        if unknown := [name for name in pair if name not in names]:
            raise _PairError(unknown[0], f"not known; the members are {', '.join(names)}")
        named = pair.get("strategy")
        if named is not None:
            chosen = [each for each in Strategy if each.value == named]
            if not chosen:
                raise _PairError("strategy", f"{named!r} is none of {', '.join(s.value for s in Strategy)}")
            strategy = chosen[0]
        if pair.get("high_watermark") is None:
            pair["high_watermark"] = high_watermark
        if pair.get("sequence") is None and strategy is Strategy.ALTERNATIVE2:
            pair["sequence"] = lengths
        return _compared(pair, strategy)
    except (ValueError, RecursionError) as error:
        # ValueError: not JSON, not UTF-8, a number of thousands of digits.
        name = f'"{error.name}": ' if isinstance(error, _PairError) and error.name else ""
        raise typer.BadParameter(f"line {number}: {name}{error}", param_hint="--stdin") from None


def _walked(found: Comparison) -> dict[str, Any]:
    names = ("request_epoch", "reply_epoch", "reply_end_offset", "truncate_to")
    return {
        "strategy": found.strategy.value,
        "truncate_to": found.truncate_to,
        "round_trips": found.round_trips,
        "request_bytes": found.request_bytes,
        "response_bytes": found.response_bytes,
        "steps": [
            {**{name: getattr(step, name) for name in names}, "reply": step.kind.value}
            for step in found.steps
        ],
    }


def _asked(step: Step) -> str:
    if len(step.request) == 1:
        return f"Epoch {step.request_epoch}?"
    sequence = ", ".join(f"{epoch} up to {end}" for epoch, end in step.request)
    return f"Epochs {sequence}?"


def _answered(step: Step, found: Comparison) -> str:
    cut = f"truncate to {step.truncate_to}"
    if step.kind is ReplyKind.UNDEFINED:
        return f"The leader cannot say: {cut}."
    if step.kind is ReplyKind.UNKNOWN:
        last = step is found.steps[-1]
        return f"The leader knows none of it: {cut}{'' if last else ', ask about what is older'}."
    if step.reply_epoch == -1:
        return f"All of the leader's epochs are newer, its log begins at {step.reply_end_offset}: {cut}."
    what = "The end is" if found.strategy is Strategy.ALTERNATIVE2 else f"Epoch {step.reply_epoch} ends at"
    last = step is found.steps[-1]
    return f"{what} {step.reply_end_offset}: {cut}{'' if last else ', ask about what is older'}."


# --- demo -----------------------------------------------------------------------------------------------------------


@app.command(
    epilog=CODES.format(
        broken="kafkasafe lost a record that it had promised, or has one twice or out of order in the topic"
    )
)
def demo(
    records: Annotated[
        int | None,
        typer.Option(min=100, max=5_000_000, help="Records per client. [default: 40000; with --quick 12000]"),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="All faults in 40 s on two cores.")] = False,
    controls: Annotated[
        bool,
        typer.Option(
            "--controls/--no-controls",
            help="kafka-python, confluent-kafka, and confluent-kafka with an outbox beside SafeProducer.",
        ),
    ] = True,
    json_file: Annotated[
        Path | None,
        typer.Option(
            "--json", metavar="FILE", help="Write the result as JSON: a list with one object per run."
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="For the moments of the faults.")] = None,
) -> None:
    """A real Kafka of 3 brokers on this machine, and kill -9 of everything.

    SafeProducer and, as controls, kafka-python, confluent-kafka, and confluent-kafka that is fed from an outbox in
    SQLite stream numbered records while the leader of a partition, the producing processes, all brokers, and brokers
    and producers together are killed and come back.
    Then a plain consumer reads the topics: what was lost, duplicated, out of order?

    The first time Kafka's jars are fetched into a cache (about 45 MB); Java 17 or later is needed.
    """
    from kafkasafe.testing.demo import CLIENTS, Demo, Settings

    if json_file is not None and not json_file.absolute().parent.is_dir():
        raise typer.BadParameter(f"{json_file.absolute().parent} is not a directory", param_hint="--json")
    clients = CLIENTS if controls else CLIENTS[:1]
    settings = Settings.quick(clients=clients) if quick else Settings(clients=clients)
    settings = dataclasses.replace(settings, records=records or settings.records, seed=seed)
    console = Console(highlight=False)
    screen = _DemoScreen(console)
    with Demo(settings, screen.say) as shown, screen.live(shown):
        runs = shown.run()
    if json_file is not None:
        rows = [dataclasses.asdict(run) for run in runs]
        json_file.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    _print_runs(console, runs)
    if not all(run.kept_its_promise for run in runs if run.client == "kafkasafe"):
        raise typer.Exit(EXIT_BROKEN)


class _DemoScreen:
    """One line per event; below them, on a terminal, a table that is alive."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started = time.monotonic()

    def say(self, line: str) -> None:
        style = "bold red" if line.startswith("FAULT") else ""
        stamp = f"{time.monotonic() - self._started:6.1f} s"
        # Not wrapped: where it is not a terminal, one event is one line.
        self._console.print(f"[dim]{stamp}[/dim]  {escape(line)}", style=style, soft_wrap=True)

    @contextlib.contextmanager
    def live(self, shown: Demo) -> Iterator[None]:
        if not self._console.is_terminal:
            yield
            return
        with Live(
            console=self._console,
            get_renderable=lambda: self._table(shown),
            refresh_per_second=8,
            transient=True,
        ):
            yield

    @staticmethod
    def _table(shown: Demo) -> Group:
        from kafkasafe.testing.demo import DURABLE_CLIENTS

        table = Table(box=None, pad_edge=False)
        for name in ("", "send() took", "on disk", "acknowledged", "of"):
            table.add_column(name, justify="left" if not name else "right")
        for row in shown.progress():
            durable = f"{row.durable:,}" if row.client in DURABLE_CLIENTS else "–"
            name = _CLIENTS.get(row.client, row.client)
            name = f"[bold]{name}[/bold]" if row.alive else f"[red]{name} (killed)[/red]"
            table.add_row(name, f"{row.accepted:,}", durable, f"{row.acked:,}", f"{shown.total:,}")
        return Group("", table)


_CLIENTS: Final = {"outbox": "confluent-kafka\n+ SQLite outbox"}
_FAULTS: Final = {
    "leader": "leader kill -9",
    "producer": "producer kill -9",
    "brokers": "all brokers kill -9",
    "everything": "brokers, then producer",
}


def _print_runs(console: Console, runs: Sequence[Run]) -> None:
    from kafkasafe.testing.demo import DURABLE_CLIENTS

    table = Table(title="What a plain consumer found", title_justify="left", pad_edge=False)
    columns = (
        "client",
        "fault",
        "sent",
        "acked",
        "spooled",
        "in log",
        "lost",
        "duplicated",
        "out of order",
        "s",
    )
    for name in columns:
        table.add_column(name, justify="left" if name in {"client", "fault"} else "right", no_wrap=True)
    previous = ""
    for run in runs:
        if previous and run.client != previous:
            table.add_section()
        bad = [
            f"[bold red]{count:,}[/bold red]" if count else "[green]0[/green]"
            for count in (run.lost, run.duplicated, run.out_of_order)
        ]
        table.add_row(
            _CLIENTS.get(run.client, run.client) if run.client != previous else "",
            _FAULTS.get(run.fault, run.fault),
            f"{run.sent:,}",
            f"{run.acked:,}",
            f"{run.spooled:,}" if run.client in DURABLE_CLIENTS else "–",
            f"{run.in_log:,}",
            *bad,
            f"{run.seconds:.1f}",
        )
        previous = run.client
    console.print()
    # A table is not cut where there is no terminal to measure.
    wide = console if console.is_terminal else Console(highlight=False, width=PIPED_COLUMNS)
    wide.print(table)
    console.print(_explain(runs), soft_wrap=True)


def _explain(runs: Sequence[Run]) -> str:
    from kafkasafe.testing.demo import DURABLE_CLIENTS

    ours = [run for run in runs if run.client == "kafkasafe"]
    outbox = [run for run in runs if run.client == "outbox"]
    others = [run for run in runs if run.client not in DURABLE_CLIENTS]
    unpromised = sum(run.unpromised for run in ours)
    arrived = sum(run.unpromised_in_log for run in ours)
    lines = [
        "",
        "sent: what the application may rely on. For kafkasafe what is fsynced in the spool or acknowledged, since",
        "that is what it promises (future.durable(), producer.durable()).",
    ]
    if unpromised:
        lines += [
            f"When kill -9 came, send() had taken {unpromised:,} more records in the milliseconds before that were not",
            f"promised yet: {arrived:,} of them are in the topic, once; no promise was made about the others.",
        ]
    if outbox:
        lines += [
            "The outbox is a table of SQLite: sent is what was committed to it. Its relay sends the rows and deletes",
            "them after Kafka's acknowledgement. A relay that is killed in between sends them again:",
            f"{sum(run.duplicated for run in outbox):,} records are in the topic twice.",
        ]
    if others:
        lost, acked_lost = sum(run.lost for run in others), sum(run.acked_lost for run in others)
        lines += [
            "For the other controls sent is what send() or produce() took: without a copy of its own the application",
            f"cannot know more. They lost {lost:,}; {acked_lost:,} of these after they were acknowledged.",
        ]
    verdict = (
        "[bold green]kafkasafe: 0 lost, 0 duplicated, 0 out of order.[/bold green]"
        if all(run.kept_its_promise for run in ours)
        else "[bold red]kafkasafe broke its promise.[/bold red]"
    )
    return "\n".join([*lines, verdict])


# --- start ----------------------------------------------------------------------------------------------------------


# typer's own class or click's: it depends on typer's version.
_USAGE_ERRORS: Final[Any] = typer.BadParameter.__mro__[2]


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the `kafkasafe` command. Does not return: ends the process by `SystemExit`.

    Args:
        arguments: Instead of the command line's.
    """
    # What the libraries would say of an outage is said by the commands.
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    for stream in (sys.stdout, sys.stderr):
        # Names of files need not be text, and not every terminal has every character.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    given = [str(each) for each in (sys.argv[1:] if arguments is None else arguments)]
    try:
        # The code with which a command ends that has printed its result.
        ended = app(args=given, prog_name="kafkasafe", standalone_mode=False)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except _USAGE_ERRORS as error:
        error.show()
        context = error.ctx
        hint = f"{context.command_path} --help" if context is not None else "kafkasafe --help"
        _print_json_error(given, error.format_message(), error.exit_code, hint)
        sys.exit(error.exit_code)
    except (KafkaError, OSError, BaselineError) as error:
        text = str(error) or type(error).__name__
        hint = " ".join(getattr(error, "__notes__", ()))
        print(f"kafkasafe: {text}{hint and f'. {hint}'}", file=sys.stderr)
        _print_json_error(given, text, EXIT_FAILED, hint)
        sys.exit(EXIT_FAILED)
    sys.exit(ended if isinstance(ended, int) else 0)


def _print_json_error(given: Sequence[str], text: str, code: int, hint: str) -> None:
    """With --json: the one object on standard output that stands for a result."""
    if "--json" not in given or given[0] == "demo":  # whose --json names a file
        return
    # Where records go to standard output, what is said of them goes to standard error.
    records = any(pair in {("-o", "-"), ("--output", "-")} for pair in itertools.pairwise(given))
    told = {"error": text, "code": code, "hint": hint or None}
    print(json.dumps(told), file=sys.stderr if records else sys.stdout)


if __name__ == "__main__":
    main()
