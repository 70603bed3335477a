"""`kafkasafe demo`: a real Kafka, and kill -9 of everything."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from kafkasafe.cli.common import CODES, app_of_command, drawn
from kafkasafe.cli.report import EXIT_BROKEN, Report, show, write_json

if TYPE_CHECKING:
    from kafkasafe.demo.audit import Run
    from kafkasafe.demo.run import Demo

app = app_of_command()


@app.command(
    epilog=CODES.format(
        broken="kafkasafe lost a promised record, or the topic has one of its records twice or out of order"
    )
)
def demo(
    records: Annotated[
        int | None,
        typer.Option(min=100, max=5_000_000, help="Records per client. [default: 40000; with --quick 12000]"),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Run all faults in about 40 s on two cores.")
    ] = False,
    controls: Annotated[
        bool,
        typer.Option(
            "--controls/--no-controls",
            help="Run kafka-python, confluent-kafka, and confluent-kafka with an outbox beside SafeProducer.",
        ),
    ] = True,
    json_file: Annotated[
        Path | None,
        typer.Option(
            "--json", metavar="FILE", help="Write the result as JSON: a list with one object per run."
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed for the times of the faults.")] = None,
) -> None:
    """Run a real Kafka with 3 brokers on this machine, and kill everything with kill -9.

    SafeProducer streams numbered records. For comparison, kafka-python, confluent-kafka, and confluent-kafka fed from
    an outbox in SQLite stream numbered records, too. Meanwhile the demo kills and restarts the leader of a partition.
    The demo also kills and restarts the producing processes, all brokers, and brokers and producers together. Then a
    plain consumer reads the topics and counts lost, duplicated and reordered records.

    The first run downloads Kafka's jars into a cache (about 45 MB). This needs Java 17 or later.
    """
    from kafkasafe.demo.ledger import CLIENTS
    from kafkasafe.demo.run import Demo, Settings

    if json_file is not None and not json_file.absolute().parent.is_dir():
        raise typer.BadParameter(f"{json_file.absolute().parent} is not a directory", param_hint="--json")
    if json_file is not None and json_file.is_dir():
        raise typer.BadParameter(f"{json_file} is a directory", param_hint="--json")
    clients = CLIENTS if controls else CLIENTS[:1]
    settings = Settings.quick(clients=clients) if quick else Settings(clients=clients)
    settings = dataclasses.replace(settings, records=records or settings.records, seed=seed)
    console = Console(highlight=False)
    screen = _DemoScreen(console)
    with Demo(settings, screen.say) as shown, screen.live(shown):
        runs = shown.run()
    kept = all(run.kept_its_promise for run in runs if run.client == "kafkasafe")
    fields = [dataclasses.asdict(run) for run in runs]
    report = Report(fields, _lines(runs), 0 if kept else EXIT_BROKEN)
    try:
        show(report, as_json=False)
    finally:
        # Write the file even if printing failed, so that at least one output has the result.
        if json_file is not None:
            write_json(report, json_file)


class _DemoScreen:
    """Prints one line per event and, on a terminal, a live table below them."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started = time.monotonic()

    def say(self, line: str) -> None:
        style = "bold red" if line.startswith("FAULT") else ""
        stamp = f"{time.monotonic() - self._started:6.1f} s"
        # Do not wrap: without a terminal, each event must be one line.
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
        from kafkasafe.demo.ledger import DURABLE_CLIENTS

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


def _lines(runs: Sequence[Run]) -> Iterator[str]:
    yield from drawn(functools.partial(_draw, runs))


def _draw(runs: Sequence[Run], console: Console) -> None:
    from kafkasafe.demo.ledger import DURABLE_CLIENTS

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
    console.print(table)
    console.print(_explain(runs), soft_wrap=True)


def _explain(runs: Sequence[Run]) -> str:
    from kafkasafe.demo.ledger import DURABLE_CLIENTS

    ours = [run for run in runs if run.client == "kafkasafe"]
    outbox = [run for run in runs if run.client == "outbox"]
    others = [run for run in runs if run.client not in DURABLE_CLIENTS]
    unpromised = sum(run.unpromised for run in ours)
    arrived = sum(run.unpromised_in_log for run in ours)
    lines = [
        "",
        "sent: the records that the application may rely on. For kafkasafe these are the records that are fsynced in",
        "the spool or acknowledged, because it promises only those (future.durable(), producer.durable()).",
    ]
    if unpromised:
        lines += [
            f"In the milliseconds before kill -9, send() took {unpromised:,} more records that were not promised yet:",
            f"{arrived:,} of them are in the topic, once. The others had no promise.",
        ]
    if outbox:
        lines += [
            "The outbox is a table in SQLite, and sent counts its committed rows. Its relay sends the rows and deletes",
            "them after Kafka's acknowledgement. A relay that is killed in between sends rows again:",
            f"{sum(run.duplicated for run in outbox):,} records are in the topic twice.",
        ]
    if others:
        lost, acked_lost = sum(run.lost for run in others), sum(run.acked_lost for run in others)
        lines += [
            "For the other controls, sent counts the records that send() or produce() took: without its own copy, the",
            f"application cannot know more. They lost {lost:,}, of these {acked_lost:,} after an acknowledgement.",
        ]
    verdict = (
        "[bold green]kafkasafe: 0 lost, 0 duplicated, 0 out of order.[/bold green]"
        if all(run.kept_its_promise for run in ours)
        else "[bold red]kafkasafe broke its promise.[/bold red]"
    )
    return "\n".join([*lines, verdict])
