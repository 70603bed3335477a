"""`kafkasafe lineage`: finds the offset at which two logs differ, using only their leader epochs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from kafkasafe.cli.common import app_of_command, standard_input
from kafkasafe.cli.report import Report, show, show_each
from kafkasafe.errors import KafkaSafeError
from kafkasafe.history.epochs import Comparison, Lineage, LineageError, ReplyKind, Step, Strategy, compare

app = app_of_command()


@app.command(
    epilog="Exit codes: 0 the steps are printed; 2 the command line or a line of the input is wrong.",
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
        typer.Option(
            help="The follower's high watermark: it truncates to this offset if the leader knows none of its epochs."
        ),
    ] = None,
    strategy: Annotated[
        Strategy,
        typer.Option(
            help="The protocol to use: the accepted protocol of KIP-279, or one of its alternatives."
        ),
    ] = Strategy.KIP279,
    sequence: Annotated[
        str | None,
        typer.Option(
            metavar="N,M,…",
            help="With alt2: number of epochs in the first request, the second, …; later requests double the last.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON on standard output.")] = False,
    stdin: Annotated[
        bool,
        typer.Option(
            "--stdin",
            help='With --json: one pair per line on standard input, {"ours": [[0, 0], [4, 5]], "ours_end": 9,'
            ' "theirs": [[0, 0], [2, 3]], "theirs_end": 12, "high_watermark": 0, "strategy": "alt2", "sequence":'
            " [2, 4]}; one result per line. The last three may be left out.",
        ),
    ] = False,
) -> None:
    """Find where two logs differ, from their leader epochs, and count the requests and bytes that this takes.

    Simulates OffsetForLeaderEpoch between a follower and a leader, step by step.
    Example: kafkasafe lineage --ours 0:0,4:5,8:7 --ours-end 9 --theirs 0:0,2:3,6:6,10:9 --theirs-end 12
    """
    given: dict[str, Any] = {"ours": ours, "ours_end": ours_end, "theirs": theirs, "theirs_end": theirs_end}
    if stdin:
        if named := [name for name, value in given.items() if value is not None]:
            raise _wrong(named[0], "cannot be combined with --stdin: each line has this value")
        if not as_json:
            raise _wrong("stdin", "results are JSON lines: add --json")
        results = (
            _compared_line(number, line, high_watermark, strategy, _lengths(sequence))
            for number, line in enumerate(standard_input(), 1)
            if line.strip()
        )
        show_each((Report(_fields(found), ()) for found in results), as_json=True)
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
    show(Report(_fields(found), _lines(found, ours_end or 0)), as_json=as_json)


class _PairError(KafkaSafeError, ValueError):
    """A field of a pair of logs in the input is invalid."""

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
            raise _PairError(name, "epoch -1 means that there is no epoch: leave it out")
        try:
            Lineage(entries)
        except LineageError as error:
            raise _PairError(name, str(error)) from None
        try:
            logs.append(Lineage(entries, end, limit=len(entries) + 1))
        except LineageError as error:
            raise _PairError(
                f"{name}_end", f"{error}; give the log end offset, the one after the last record"
            ) from None
    mark = pair.get("high_watermark")
    if mark is not None and (type(mark) is not int or mark < 0):
        raise _PairError("high_watermark", f"{mark!r} is not an offset; give 0 or more, or leave it out")
    if mark is None and strategy is Strategy.CLEAN_ONLY:
        raise _PairError("high_watermark", "missing: the strategy clean needs it")
    lengths = pair.get("sequence")
    if lengths is None:
        return compare(strategy, logs[0], logs[1], mark)
    if strategy is not Strategy.ALTERNATIVE2:
        raise _PairError("sequence", "only alt2 uses a sequence: leave it out, or choose the strategy alt2")
    if not isinstance(lengths, list) or not lengths or any(type(length) is not int for length in lengths):
        raise _PairError("sequence", "give a list of numbers of epochs, like [2, 4]")
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
            raise _PairError("", f"a line must be one JSON object, not {type(pair).__name__}")
        names = ("ours", "ours_end", "theirs", "theirs_end", "high_watermark", "strategy", "sequence")
        for name in names[:4]:
            if pair.get(name) is None:
                raise _PairError(name, "missing")
        if unknown := [name for name in pair if name not in names]:
            raise _PairError(unknown[0], f"unknown member; use only {', '.join(names)}")
        named = pair.get("strategy")
        if named is not None:
            chosen = [each for each in Strategy if each.value == named]
            if not chosen:
                raise _PairError(
                    "strategy", f"{named!r} is not one of {', '.join(s.value for s in Strategy)}"
                )
            strategy = chosen[0]
        if pair.get("high_watermark") is None:
            pair["high_watermark"] = high_watermark
        if pair.get("sequence") is None and strategy is Strategy.ALTERNATIVE2:
            pair["sequence"] = lengths
        return _compared(pair, strategy)
    except (ValueError, RecursionError) as error:
        # ValueError: not JSON, not UTF-8, or a number with thousands of digits.
        name = f'"{error.name}": ' if isinstance(error, _PairError) and error.name else ""
        raise typer.BadParameter(f"line {number}: {name}{error}", param_hint="--stdin") from None


def _fields(found: Comparison) -> dict[str, Any]:
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


def _lines(found: Comparison, end: int) -> Iterator[str]:
    """Yields the steps by which a follower finds where its log differs from the leader's, then the result. The
    follower's log ends at `end`.
    """
    for number, step in enumerate(found.steps, 1):
        yield f"{number}. {_asked(step)} {_answered(step, found)}"
    rounds = found.round_trips
    differs = (
        f"offsets {found.truncate_to}–{end - 1} differ" if found.truncate_to < end else "nothing differs"
    )
    yield (
        f"truncate to {found.truncate_to}: {differs}; {rounds} round trip{'s' if rounds != 1 else ''},"
        f" {found.request_bytes} bytes of requests, {found.response_bytes} of responses"
    )


def _asked(step: Step) -> str:
    if len(step.request) == 1:
        return f"Epoch {step.request_epoch}?"
    sequence = ", ".join(f"{epoch} up to {end}" for epoch, end in step.request)
    return f"Epochs {sequence}?"


def _answered(step: Step, found: Comparison) -> str:
    cut = f"truncate to {step.truncate_to}"
    if step.kind is ReplyKind.UNDEFINED:
        return f"The leader does not know: {cut}."
    if step.kind is ReplyKind.UNKNOWN:
        last = step is found.steps[-1]
        return f"The leader knows none of them: {cut}{'' if last else ', then ask about older epochs'}."
    if step.reply_epoch == -1:
        return f"All of the leader's epochs are newer, and its log begins at {step.reply_end_offset}: {cut}."
    what = "The end is" if found.strategy is Strategy.ALTERNATIVE2 else f"Epoch {step.reply_epoch} ends at"
    last = step is found.steps[-1]
    return f"{what} {step.reply_end_offset}: {cut}{'' if last else ', then ask about older epochs'}."
