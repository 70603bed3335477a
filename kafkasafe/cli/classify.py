"""`kafkasafe classify`: what an error code of Kafka means."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator
from typing import Annotated

import typer

from kafkasafe.classification import Verdict, classify
from kafkasafe.cli.common import app_of_command, standard_input
from kafkasafe.cli.report import Report, show, show_each
from kafkasafe.codes import names as code_names
from kafkasafe.errors import ConfigError

app = app_of_command()


@app.command(
    name="classify",
    epilog="Exit codes: 0 the verdicts are printed; 2 the command line or a line of the input is wrong.",
    # Accept -1 as a code instead of rejecting it as an unknown option.
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
            ' "log_start_offset": 999, "resend": false}; one verdict per line.',
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="JSON on standard output.")] = False,
) -> None:
    """Explain an error code of Kafka, and what to do about it.

    Standard input (--stdin) takes further facts about the request: last_acked_offset, log_start_offset, resend, tiered,
    position, in_log.
    """
    if code is not None and code.startswith("-") and not code[1:].isdecimal():
        near = difflib.get_close_matches(code, ("--api", "--all", "--stdin", "--json", "--help"), n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise typer.BadParameter(f"unknown option {code[:80]}{hint}", param_hint="CODE|NAME")
    if [code is not None, every, stdin].count(True) != 1:
        raise typer.BadParameter(
            "give exactly one of: a code or name, --all, --stdin", param_hint="CODE|NAME"
        )
    try:
        if stdin:
            reports = (Report(each.as_dict(), [_one_line(each)]) for each in _verdicts_on_lines(api))
            show_each(reports, as_json=as_json)
            return
        verdicts = [classify(each, api) for each in (code_names.all_codes() if every else [code or ""])]
    except ConfigError as error:
        raise typer.BadParameter(str(error.args[0])) from None
    rows = [verdict.as_dict() for verdict in verdicts]
    if every:
        show(Report(rows, map(_one_line, verdicts)), as_json=as_json)
    else:
        show(Report(rows[0], map(_in_words, verdicts)), as_json=as_json)


def _verdicts_on_lines(api: str | None) -> Iterator[Verdict]:
    for number, line in enumerate(standard_input(), 1):
        try:
            if line.strip():
                yield _verdict_on_line(line, api)
        except ConfigError as error:
            raise ConfigError(f"line {number}: {error.args[0]}") from None
        except (ValueError, RecursionError) as error:
            # ValueError means that the line is not JSON, is not UTF-8, or contains a number with thousands of digits.
            raise ConfigError(f"line {number}: {error}") from None


def _verdict_on_line(line: bytes, api: str | None) -> Verdict:
    asked = json.loads(line)
    if not isinstance(asked, dict):
        raise ConfigError(f"give one JSON object, not {type(asked).__name__}")
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
