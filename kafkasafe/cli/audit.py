"""`kafkasafe audit`: finds missing and duplicated records in a topic."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from kafka.errors import KafkaError
from rich.console import Console
from rich.table import Table

from kafkasafe.audit import PLOTS, Audit, IdSource, NoSuchTopicError, audit, draw
from kafkasafe.cli.asking import connected, limits_of, timeout_option
from kafkasafe.cli.common import (
    CODES,
    ConfigFile,
    Servers,
    app_of_command,
    connection,
    counted,
    drawn,
    progress,
)
from kafkasafe.cli.report import EXIT_BROKEN, Report, show, show_each
from kafkasafe.cluster.api import in_words
from kafkasafe.errors import ConfigError, KafkaSafeError

AUDIT_CODES: Final = CODES.format(broken="records are missing or duplicated")
_TAG: Final = re.compile(r"\[KAFKASAFE\.(\w+)\] ")
_ADVICE: Final = {
    "BROKERS_UNREACHABLE": ("Check kafka", "Check --bootstrap-servers and, for TLS and SASL, --config."),
    "NO_ANSWER": ("Check that these", "Check that these partitions have leaders, or raise --timeout."),
    "NO_RECORDS": ("Check that the", "Check that it has a leader, or raise --timeout."),
    "REMOTE_STORAGE_NOT_READY": (
        "Check the brokers'",
        "Check the brokers' remote log manager, or raise --timeout.",
    ),
    "DATA_LOSS": (
        "Give the topic|Start the query|To continue",
        "The log was cut while it was counted: count it again.",
    ),
}
"""Kind of the Spark source's error → (pattern, advice). The source's own advice begins where the pattern matches the
error's message. The command prints the advice given here instead.
"""
_TIMEOUT: Final = "30s"
_ROWS: Final = 200
_DETAILS: Final = 20


app = app_of_command()


@app.command("audit", epilog=AUDIT_CODES)
def audit_topic(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC", help="Topics to count.")],
    servers: Servers = None,
    config: ConfigFile = None,
    record_id: Annotated[
        str | None,
        typer.Option(
            "--id",
            metavar="WHERE",
            help="Also count an id that the records carry: key, value, header:NAME or json:FIELD.",
        ),
    ] = None,
    committed: Annotated[
        bool,
        typer.Option(
            "--committed", help="Count the ids of committed records only. Sequences always count all records."
        ),
    ] = False,
    spark: Annotated[
        bool, typer.Option("--spark", help="Count with Spark's tasks (kafkasafe[spark]).")
    ] = False,
    master: Annotated[str, typer.Option(metavar="URL", help="With --spark: Spark's master.")] = "local[*]",
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Draw the result into a .png, .svg, .pdf or .html file (kafkasafe[plot])."
        ),
    ] = None,
    timeout: Annotated[
        str | None, timeout_option("How long to wait for brokers that give nothing new.", _TIMEOUT)
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, or a list of them for several topics.")
    ] = False,
) -> None:
    """Find gaps and repeats in a topic: in each producer's sequence numbers per partition, and in an id of your own.

    A gap means that numbers are missing: their records were lost from the log, or were never sent. A repeat means that
    a record is in the log twice. Records removed by retention are not a gap, but records removed by compaction look
    like one. Records of aborted transactions are counted too, because they are in the log.
    """
    limits = limits_of(timeout, _TIMEOUT)
    ids = None if record_id is None else _id_source(record_id)
    options = connection(servers, config)
    if plot is not None:
        _check_plot(plot, topics)
    with connected(options, limits.first_answer_s):
        pass  # If no broker answers, `connected` raises an error. The count itself would wait longer.
    count = functools.partial(audit, connection=options, ids=ids, committed=committed, timeout_s=limits.all_s)
    reports = _reports(topics, count, master if spark else None, plot)
    if as_json:
        show(_together(list(reports)), as_json=True)
    else:
        show_each(reports, as_json=False)


def _id_source(text: str) -> IdSource:
    try:
        return IdSource.parse(text)
    except ConfigError as error:
        raise typer.BadParameter(str(error.args[0]), param_hint="--id") from None


def _reports(
    topics: Sequence[str], count: Callable[..., Audit], master: str | None, plot: Path | None
) -> Iterator[Report]:
    """Counts the records of each topic once, and yields each report as soon as it is known. Then draws the plot.

    Args:
        topics: The topics.
        count: Counts the records of a topic.
        master: Spark's master; None: count without Spark.
        plot: The file for the plot; None: draw no plot. There is a plot only for a single topic.
    """
    is_whole = True
    with contextlib.nullcontext() if master is None else _spark(master) as session:
        for topic in dict.fromkeys(topics):
            found = _counted(topic, functools.partial(count, spark=session))
            is_whole = is_whole and found.whole
            yield Report(found.as_dict(), _lines(found), 0 if is_whole else EXIT_BROKEN)
    if plot is not None:
        draw(found, plot)


def _counted(topic: str, count: Callable[..., Audit]) -> Audit:
    try:
        with progress(topic, "offsets") as on_progress:
            return count(topic, on_progress=on_progress)
    except NoSuchTopicError:
        raise
    except ConfigError as error:
        raise typer.BadParameter(_own_words(error), param_hint="TOPIC") from None
    except KafkaError as error:
        raise KafkaSafeError(_own_words(error)) from error


def _together(reports: Sequence[Report]) -> Report:
    """The reports of all topics as one report. The JSON of a single report is not put into a list."""
    fields = [report.fields for report in reports]
    return Report(fields if len(fields) > 1 else fields[0], (), reports[-1].exit_code)


def _check_plot(plot: Path, topics: Sequence[str]) -> None:
    """Refuse a plot file that cannot be written, before the records are counted."""
    if len(topics) > 1:
        raise typer.BadParameter("draws one topic", param_hint="--plot")
    if not plot.absolute().parent.is_dir():
        raise typer.BadParameter(f"{plot.absolute().parent} is not a directory", param_hint="--plot")
    if plot.is_dir():
        raise typer.BadParameter(f"{plot} is a directory", param_hint="--plot")
    if plot.suffix.lower() not in PLOTS:
        raise typer.BadParameter(f"{plot} must end in {', '.join(PLOTS)}", param_hint="--plot")
    try:
        import matplotlib as mpl  # noqa: F401
    except ImportError:
        raise typer.BadParameter(
            "needs matplotlib: pip install 'kafkasafe[plot]'", param_hint="--plot"
        ) from None


def _own_words(error: KafkaError) -> str:
    """The text of an error, with this command's own advice. The advice of the Spark source is replaced, because it
    names options that this command does not have.
    """
    text = str(error.args[0]) if error.args else type(error).__name__
    tagged = _TAG.match(text)
    if tagged is None:
        return in_words(error)
    advice, ours = _ADVICE.get(tagged[1], ("$", ""))
    return f"{re.split(advice, text[tagged.end() :])[0].rstrip()} {ours}".rstrip()


@contextlib.contextmanager
def _spark(master: str) -> Iterator[Any]:
    """A SparkSession for the context."""
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise typer.BadParameter(
            "needs PySpark: pip install 'kafkasafe[spark]'", param_hint="--spark"
        ) from None
    session = (
        SparkSession.builder.master(master)
        .appName("kafkasafe audit")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    try:
        session.sparkContext.setLogLevel("ERROR")
        yield session
    finally:
        session.stop()


def _lines(found: Audit) -> Iterator[str]:
    yield from drawn(functools.partial(_draw, found))


def _draw(found: Audit, console: Console) -> None:
    table = Table(title=f"{found.topic}: {counted(found.records, 'record')}", title_justify="left")
    for name in ("partition", "producer id", "epochs", "offsets", "batches", "records", "missing", "again"):
        table.add_column(name, justify="left" if name in {"epochs", "offsets"} else "right")
    rows = [(part, producer) for part in found.partitions for producer in part.producers.values()]
    # Put rows with gaps or repeats first, so that they are always shown.
    rows.sort(key=lambda row: not (row[1].gaps or row[1].repeats))
    for part, producer in rows[:_ROWS]:
        wrong = producer.gaps or producer.repeats
        epochs = f"{producer.epochs[0]}-{producer.epochs[-1]}" if len(producer.epochs) > 1 else ""
        table.add_row(
            str(part.partition),
            "none" if producer.producer_id < 0 else str(producer.producer_id),
            epochs or (str(producer.epochs[0]) if producer.epochs else ""),
            f"{producer.first_offset}-{producer.last_offset}" + (" (trimmed)" if producer.trimmed else ""),
            f"{producer.batches:,}",
            f"{producer.records:,}",
            f"{producer.missing_records:,}",
            f"{producer.repeated_records:,}",
            style="bold red" if wrong else None,
        )
    console.print(table)
    if len(rows) > _ROWS:
        console.print(f"and {len(rows) - _ROWS} more without gaps or repeats; --json has all")
    details = [
        line
        for part, producer in rows
        for line in (
            *(
                f"{found.topic}-{part.partition} producer {producer.producer_id} epoch {gap.epoch}: sequences"
                f" {gap.first}-{gap.last} are missing before offset {gap.before_offset}"
                for gap in producer.gaps
            ),
            *(
                f"{found.topic}-{part.partition} producer {producer.producer_id} epoch {again.epoch}: sequences"
                f" {again.first}-{again.last} again at offset {again.at_offset}"
                for again in producer.repeats
            ),
        )
    ]
    for line in details[:_DETAILS]:
        console.print(line, soft_wrap=True, markup=False)
    if len(details) > _DETAILS:
        console.print(f"and {len(details) - _DETAILS} more; --json has all")
    ids = found.ids
    if ids is not None:
        missing = "no numbers" if ids.missing is None else f"{ids.missing:,} missing"
        console.print(
            f"ids ({ids.source}): {counted(ids.records, 'record')}, {ids.distinct:,} distinct, {ids.repeated:,} again,"
            f" {missing}, {ids.without_id:,} records without one",
            soft_wrap=True,
            markup=False,
        )
        for name, count in ids.examples:
            console.print(f"  {name}: {count} times", soft_wrap=True, markup=False)
    console.print("whole" if found.whole else "not whole")
