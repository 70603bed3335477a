"""`kafkasafe spool export`: writes the records of a spool directory to a file."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias

import typer

from kafkasafe.cli.common import Directory, counted, one_line, open_directory, progress
from kafkasafe.cli.report import EXIT_BROKEN, Report, show
from kafkasafe.cli.spool.contents import LaneName, contents_of, records_of
from kafkasafe.maintenance.examination import LaneContent
from kafkasafe.packages import pyarrow_for
from kafkasafe.spool.examine import SpoolOutcome
from kafkasafe.spool.files import OsFiles

_STATUSES: Final = tuple(fate.value for fate in SpoolOutcome if fate is not SpoolOutcome.REPLACED)

_DRAFT_PREFIX: Final = ".kafkasafe-export-"
_NO_LINKS: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
"""Error numbers of a file system without hard links."""
_PAGE_RECORDS: Final = 10_000
_Form: TypeAlias = Literal["jsonl", "parquet"]
_FORMS: Final[dict[str, _Form]] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
}


def spool_export(
    directory: Directory,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FILE", help="A new file, or - for standard output."),
    ],
    form: Annotated[
        Literal["jsonl", "parquet"] | None,
        typer.Option("--format", help="Default: by the file name's extension."),
    ] = None,
    status: Annotated[
        list[str] | None,
        typer.Option(metavar="STATUS", help=f"Only this status: {', '.join(_STATUSES)}. May be repeated."),
    ] = None,
    lane: LaneName = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the counts as JSON; with -o - on standard error.")
    ] = False,
) -> None:
    """Write the records of a spool directory, each with its status, to JSON lines or Parquet. The spool stays as it is.

    JSON lines show a key or value that is not UTF-8 as {"base64": ...}. If a batch was divided, only its parts are
    written. The status shows only what is recorded in the spool. To find out whether a record in doubt is in the
    cluster's log, use kafkasafe doctor.
    """
    if unknown := [name for name in status or () if name not in _STATUSES]:
        raise typer.BadParameter(
            f"{unknown[0]!r} is not one of {', '.join(_STATUSES)}", param_hint="--status"
        )
    open_directory(directory)
    to_stdout = str(output) == "-"
    form = _form_of(output, form)
    troubles: list[tuple[str, str]] = []
    with contents_of(directory, lane, troubles) as contents:
        damage = [f"{name}: {reason}" for name, reason in troubles]
        records = _Records(contents, set(status or _STATUSES), damage)
        with progress("exporting", "batches") as report:
            _write(output, form, records, report)
    parts = ", ".join(
        f"{count:,} {name.replace('_', ' ')}" for name, count in records.counts.items() if count
    )
    done = Report(
        {"output": str(output), "records": records.counts, "damage": records.damage},
        [
            f"{counted(sum(records.counts.values()), 'record')}{f': {parts}' if parts else ''}",
            *(f"DAMAGE, not exported: {each}" for each in records.damage),
        ],
        EXIT_BROKEN if records.damage else 0,
    )
    show(done, as_json=as_json, indent=None, file=sys.stderr if to_stdout else None)


def _form_of(output: Path, form: _Form | None) -> _Form:
    """Return the format of the output. Refuse an output that cannot be written, before the spool is read."""
    to_stdout = str(output) == "-"
    if form is None:
        form = "jsonl" if to_stdout else _FORMS.get(output.suffix.lower())
    if form is None:
        raise typer.BadParameter(
            f"{output} must end in {', '.join(_FORMS)}; otherwise use --format jsonl or --format parquet",
            param_hint="--output",
        )
    if to_stdout and sys.stdout is None:
        raise typer.BadParameter("standard output is closed", param_hint="--output")
    if to_stdout and form == "parquet":
        raise typer.BadParameter("Parquet needs a file", param_hint="--output")
    if not to_stdout and output.exists():
        raise typer.BadParameter(f"{output} exists already", param_hint="--output")
    return form


class _Records:
    """The records of some lanes, limited to the wanted statuses. Counts the exported records, and describes damage that
    prevents an export.

    Args:
        contents: The lanes.
        wanted: Names of the statuses.
        damage: What could not be read so far.
    """

    def __init__(self, contents: Sequence[LaneContent], wanted: set[str], damage: list[str]) -> None:
        self._contents = contents
        self._wanted = wanted
        self.counts: dict[str, int] = dict.fromkeys(_STATUSES, 0)
        self.damage = damage

    def rows(self, report: Callable[[float, float], None], *, raw: bool) -> Iterator[dict[str, Any]]:
        """Yield the records.

        Args:
            report: Called with (number of batches done, number of all batches).
            raw: See `records_of`.
        """
        done, total = 0, sum(len(content.batches) for content in self._contents)
        for content in self._contents:
            self.damage.extend(
                f"{content.name}: {each}" for each in (*content.damage, *content.rejected_unreadable)
            )
            for batch in content.batches:
                done += 1
                report(done, total)
                if batch.known.fate.value in self._wanted:
                    for record in records_of(content, batch, raw=raw):
                        self.counts[record["status"]] += 1
                        yield record


@contextlib.contextmanager
def _new_file(path: Path) -> Iterator[Any]:
    """Yield a new file. The file gets its name only when it is complete, so even a killed process leaves no partial
    file with that name.

    The context ends only when the file is durable, because the user may discard the records next.

    Raises:
        FileExistsError: Another process has created a file with this name meanwhile. The other process's file is kept.
        OSError: The file cannot be written.
    """
    draft: Path | None = None
    named = False
    try:
        # Only the spool's user may read the spool, and the same must hold for the exported file. So the draft has mode
        # 0600.
        handle, name = tempfile.mkstemp(dir=path.absolute().parent, prefix=_DRAFT_PREFIX)
        draft = Path(name)
        with os.fdopen(handle, "w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        _give_name(draft, path)
        named = True
        with contextlib.suppress(PermissionError):  # this user may not read the directory
            OsFiles().sync_directory(path.absolute().parent)
    except FileExistsError:
        raise
    except BaseException as error:
        if named:
            path.unlink(missing_ok=True)
        if isinstance(error, OSError):
            why = error.strerror or error
            raise OSError(
                f"{path} cannot be written: {why}. The spool stays as it is, and no part of {path.name} is left"
            ) from error
        raise
    finally:
        if draft is not None:
            draft.unlink(missing_ok=True)


def _give_name(draft: Path, path: Path) -> None:
    """Give a file its final name, unless another file already has this name.

    Raises:
        FileExistsError: Another file has the name.
        OSError: The name cannot be given.
    """
    try:
        path.hardlink_to(draft)
    except FileExistsError:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if path.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
        draft.rename(path)


def _write(output: Path, form: _Form, records: _Records, report: Callable[[float, float], None]) -> None:
    """Write the records. See `_Records.rows` for `report`."""
    if form == "parquet":
        _write_parquet(output, records.rows(report, raw=True))
    elif str(output) == "-":
        for row in records.rows(report, raw=False):
            print(one_line(row))
    else:
        with _new_file(output) as file:
            for row in records.rows(report, raw=False):
                file.write((one_line(row) + "\n").encode())


def _write_parquet(path: Path, rows: Iterator[dict[str, Any]]) -> None:
    pa = pyarrow_for("A Parquet file")
    import pyarrow.parquet as pq

    schema = pa.schema(
        [
            ("lane", pa.string()),
            ("position", pa.int64()),
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("status", pa.string()),
            ("producer_id", pa.int64()),
            ("producer_epoch", pa.int16()),
            ("sequence", pa.int32()),
            ("timestamp_ms", pa.int64()),
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("headers", pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))),
        ]
    )
    with _new_file(path) as file, pq.ParquetWriter(file, schema) as writer:
        page: list[dict[str, Any]] = []
        for row in rows:
            page.append(row)
            if len(page) >= _PAGE_RECORDS:
                writer.write_table(pa.Table.from_pylist(page, schema=schema))
                page.clear()
        if page:
            writer.write_table(pa.Table.from_pylist(page, schema=schema))
