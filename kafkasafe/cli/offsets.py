"""`kafkasafe offsets`: shows end offsets, once or continuously. An offset that the command shows never goes down,
unless it is proven that records were lost.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from kafka import TopicPartition
from kafka.errors import KafkaError, UnknownTopicOrPartitionError
from rich.console import Console
from rich.live import Live
from rich.table import Table

from kafkasafe.cli.asking import Limits, limits_of, timeout_option
from kafkasafe.cli.common import (
    CODES,
    ConfigFile,
    Servers,
    app_of_command,
    connection,
    duration_s,
)
from kafkasafe.cli.report import EXIT_BROKEN, EXIT_FAILED, Report, show, show_each
from kafkasafe.cluster.api import in_words
from kafkasafe.cluster.backoff import PAUSES
from kafkasafe.consumer import SafeConsumer
from kafkasafe.errors import ConfigError
from kafkasafe.events import EndOffsetHeld, EndOffsetRegressed
from kafkasafe.retry import RetryPolicy

_MISSING_S: Final = 5.0
"""Number of seconds to wait for an unknown topic. The topic may be new, or a broker may have just started."""
_TIMEOUT: Final = "30s"
OFFSETS_CODES: Final = CODES.format(broken="an end offset went back: records are lost")


app = app_of_command()


@app.command("offsets", epilog=OFFSETS_CODES)
def offsets(
    topics: Annotated[
        list[str], typer.Argument(metavar="TOPIC[:PARTITION]", help="Topics, or single partitions.")
    ],
    servers: Servers = None,
    config: ConfigFile = None,
    baseline: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File that remembers the highest end offsets between runs."),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Continue until interrupted.")] = False,
    interval: Annotated[str, typer.Option(metavar="TIME", help="Time between two rounds of --watch.")] = "2s",
    rounds: Annotated[
        int | None, typer.Option(min=1, help="With --watch: end after this number of rounds.")
    ] = None,
    timeout: Annotated[str | None, timeout_option("Maximum time for each round.", _TIMEOUT)] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON list; with --watch, one per round on a line.")
    ] = False,
) -> None:
    """Show end offsets. The command shows a lower offset than before only if it is proven that records are lost.

    If a broker reports a lower offset, but nothing proves a loss, the command keeps the old value. The lower offset may
    be outdated, or may come from a new leader that is still catching up. If the leader's epochs or the topic's id prove
    that records are lost, the command shows the lower offset (REGRESSED).
    """
    interval_s, limits = duration_s(interval, "--interval"), limits_of(timeout, _TIMEOUT)
    if rounds is not None and not watch:
        raise typer.BadParameter("only with --watch", param_hint="--rounds")
    if baseline is not None and not baseline.absolute().parent.is_dir():
        raise typer.BadParameter(f"{baseline.absolute().parent} is not a directory", param_hint="--baseline")
    wanted = [_place(text) for text in topics]
    options = connection(servers, config)
    view = _View()
    console = Console(highlight=False)
    live = watch and console.is_terminal and not as_json
    screens = Live(console=console, auto_refresh=False) if live else contextlib.nullcontext()
    with contextlib.closing(_opened(options, view, baseline, limits)) as consumer, screens as screen:
        if not watch:
            show(_report(consumer, view, wanted, limits.all_s), as_json=as_json, flush=True)
            return
        draw = None if screen is None else lambda report: screen.update(_table(report.fields), refresh=True)
        reports = _reports(consumer, view, wanted, limits.all_s, rounds, interval_s)
        show_each(reports, as_json=as_json, draw=draw)


def _opened(options: Mapping[str, Any], view: _View, baseline: Path | None, limits: Limits) -> SafeConsumer:
    """Opens a consumer without a group. The view stores the consumer's events."""
    known = {name: value for name, value in options.items() if name in SafeConsumer.DEFAULT_CONFIG}
    known.pop("group_id", None)
    known.pop("allow_auto_create_topics", None)
    try:
        return SafeConsumer(
            **{"bootstrap_timeout_ms": int(limits.first_answer_s * 1000) + 1, **known},
            group_id=None,
            allow_auto_create_topics=False,
            on_event=view.note,
            offsets_path=baseline,
        )
    except ConfigError as error:
        hint = "--config" if baseline is None else "--baseline"
        raise typer.BadParameter(str(error.args[0]), param_hint=hint) from None


def _report(
    consumer: SafeConsumer, view: _View, wanted: Sequence[tuple[str, int | None]], timeout_s: float
) -> Report:
    """Looks the end offsets up once."""
    rows = view.round(consumer, wanted, timeout_s)
    exit_code = EXIT_BROKEN if view.lowered else 0
    if any(row["end_offset"] is None for row in rows):
        exit_code = EXIT_FAILED
    return Report(rows, _lines(rows), exit_code)


def _reports(
    consumer: SafeConsumer,
    view: _View,
    wanted: Sequence[tuple[str, int | None]],
    timeout_s: float,
    rounds: int | None,
    interval_s: float,
) -> Iterator[Report]:
    """Yields a report per round. Ends after `rounds` rounds, or never if `rounds` is None."""
    for number in itertools.count(1):
        yield _report(consumer, view, wanted, timeout_s)
        if number == rounds:
            return
        time.sleep(interval_s)


class _View:
    """The end offsets and events that were observed, round by round."""

    def __init__(self) -> None:
        self.lowered = False
        self._notes: dict[tuple[str, int], str] = {}
        self._before: dict[tuple[str, int], tuple[float, int]] = {}

    def note(self, event: object) -> None:
        match event:
            case EndOffsetHeld(topic, partition, offset, answered, why):
                self._notes[topic, partition] = f"held at {offset}: the answer was {answered} ({why})"
            case EndOffsetRegressed(topic, partition, offset, previous, cause):
                self.lowered = True
                gone = f"offsets {offset} to {previous - 1} are lost ({cause})"
                self._notes[topic, partition] = f"REGRESSED: {gone}"
            case _:
                pass

    def round(
        self, consumer: SafeConsumer, wanted: Iterable[tuple[str, int | None]], timeout_s: float
    ) -> list[dict[str, Any]]:
        self._notes.clear()
        deadline = time.monotonic() + timeout_s
        places, problems = _resolve(consumer, wanted, deadline)

        def left_ms() -> float:
            return max(1.0, deadline - time.monotonic()) * 1000

        ends = consumer.end_offsets(places, timeout_ms=left_ms(), partial=True) if places else {}
        starts = consumer.beginning_offsets(places, timeout_ms=left_ms(), partial=True) if places else {}
        now = time.monotonic()
        rows = []
        for place in places:
            end, start = ends.get(place), starts.get(place)
            note = self._notes.get((place.topic, place.partition), "")
            rate = None
            before = self._before.get((place.topic, place.partition))
            if end is not None:
                if before is not None and now > before[0]:
                    rate = round((end - before[1]) / (now - before[0]), 1)
                self._before[place.topic, place.partition] = (now, end)
            else:
                error: Any = getattr(ends, "missing", {}).get(place)
                note = f"not answered: {error or 'no answer'}"
            rows.append(
                {
                    "topic": place.topic,
                    "partition": place.partition,
                    "start_offset": start,
                    "end_offset": end,
                    "records_per_s": rate,
                    "note": note,
                }
            )
        missing = [
            {
                "topic": name,
                "partition": None,
                "start_offset": None,
                "end_offset": None,
                "records_per_s": None,
                "note": note,
            }
            for name, note in problems.items()
        ]
        return [*rows, *missing]


def _resolve(
    consumer: SafeConsumer, wanted: Iterable[tuple[str, int | None]], deadline: float
) -> tuple[list[TopicPartition], Mapping[str, str]]:
    places: dict[TopicPartition, None] = {}
    problems: dict[str, str] = {}
    missing_since = float("inf")

    def partitions_of(topic: str) -> set[int]:
        nonlocal missing_since
        ask: Any = consumer.partitions_for_topic
        found: set[int] | None = ask(topic)
        if not found:
            missing_since = min(missing_since, time.monotonic())
            if time.monotonic() - missing_since > _MISSING_S:
                raise LookupError(topic)
            raise UnknownTopicOrPartitionError(topic)
        return found

    for topic, partition in wanted:
        # Retry: perhaps the broker does not know a new topic yet, or no broker is reachable yet.
        policy = RetryPolicy(
            deadline_ms=1000 * max(0.0, deadline - time.monotonic()), wait=PAUSES, api="metadata"
        )
        try:
            found = policy.call(partitions_of, topic)
        except (LookupError, UnknownTopicOrPartitionError):
            problems[topic] = "the cluster does not have it, or does not show it to this user"
            continue
        except KafkaError as error:
            problems[topic] = in_words(error)
            continue
        if partition is not None and partition not in found:
            problems[topic] = f"it has no partition {partition}"
        else:
            chosen = sorted(found) if partition is None else [partition]
            places |= dict.fromkeys(TopicPartition(topic, number) for number in chosen)
    return list(places), problems


def _place(text: str) -> tuple[str, int | None]:
    topic, colon, number = text.partition(":")
    if not topic or (colon and not (number.isdecimal() and len(number) < 10)):
        raise typer.BadParameter(f"{text!r} is neither TOPIC nor TOPIC:PARTITION", param_hint="TOPIC")
    return topic, int(number) if colon else None


_COLUMNS: Final = ("topic", "partition", "start", "end", "records/s", "")


def _cells(row: Mapping[str, Any]) -> list[str]:
    names = ("partition", "start_offset", "end_offset", "records_per_s")
    return [row["topic"], *("–" if row[name] is None else f"{row[name]:,}" for name in names), row["note"]]


def _lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    lines = [list(_COLUMNS), *map(_cells, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(5)]
    for line in lines:
        cells = [line[0].ljust(widths[0])]
        cells += [line[column].rjust(widths[column]) for column in range(1, 5)]
        yield "  ".join([*cells, line[5]]).rstrip()


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in _COLUMNS:
        table.add_column(name, justify="left" if name in {"topic", ""} else "right")
    for row in rows:
        table.add_row(*_cells(row))
    return table
