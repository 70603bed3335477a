"""`kafkasafe spool`: inspect, export and repair a spool directory, and deliver what it holds.

Each command has its own module, except commit and abort, which share one. `kafkasafe.cli.report` prints the results.

    ls, tree          lists of lanes and directories
    verify, repair    damage
    show, export      batches and records
    drain             delivery of undelivered records
    resend, set_aside, discard
                      rejected records
    decisions         commit and abort: staged atomic batches
    prune             empty lanes and directories
    contents, delivery, atomic_batches, opened
                      code that several of these commands share
"""

from __future__ import annotations

import typer

from kafkasafe.cli.groups import WholeSentences
from kafkasafe.cli.spool.contents import DAMAGED, DAMAGED_OR_REJECTED
from kafkasafe.cli.spool.decisions import DECISION_CODES, spool_abort, spool_commit
from kafkasafe.cli.spool.discard import DISCARD_CODES, spool_discard
from kafkasafe.cli.spool.drain import DRAIN_CODES, spool_drain
from kafkasafe.cli.spool.export import spool_export
from kafkasafe.cli.spool.ls import spool_ls
from kafkasafe.cli.spool.prune import PRUNE_CODES, spool_prune
from kafkasafe.cli.spool.repair import REPAIR_CODES, spool_repair
from kafkasafe.cli.spool.resend import RESEND_CODES, spool_resend
from kafkasafe.cli.spool.set_aside import SET_ASIDE_CODES, spool_set_aside
from kafkasafe.cli.spool.show import spool_show
from kafkasafe.cli.spool.verify import spool_verify

__all__ = ["app"]

app = typer.Typer(
    cls=WholeSentences,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Inspect, repair and drain spool directories. Only repair, drain, commit, abort, resend,"
    " set-aside, discard and prune change anything.",
)

# `kafkasafe spool --help` shows the commands in the order of these lines.
app.command("ls", epilog=DAMAGED_OR_REJECTED)(spool_ls)
app.command("show", epilog=DAMAGED_OR_REJECTED)(spool_show)
app.command("verify", epilog=DAMAGED)(spool_verify)
app.command("export", epilog=DAMAGED)(spool_export)
app.command("repair", epilog=REPAIR_CODES)(spool_repair)
app.command("drain", epilog=DRAIN_CODES)(spool_drain)
app.command("commit", epilog=DECISION_CODES)(spool_commit)
app.command("abort", epilog=DECISION_CODES)(spool_abort)
app.command("resend", epilog=RESEND_CODES)(spool_resend)
app.command("discard", epilog=DISCARD_CODES)(spool_discard)
app.command("prune", epilog=PRUNE_CODES)(spool_prune)
app.command("set-aside", epilog=SET_ASIDE_CODES)(spool_set_aside)
