"""Digests and whole tapes: see the package."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator

from . import keep


def _main() -> int:
    parser = argparse.ArgumentParser(prog="tapes", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    show = commands.add_parser("show", help="the tape of a seed, or of a file of whole/")
    show.add_argument("what")
    commands.add_parser("write", help="digests.txt and whole/, as they are now")
    compare = commands.add_parser("compare", help="seeds whose digests changed, and where whole tapes part")
    compare.add_argument("--first", type=int, default=0)
    compare.add_argument("--seeds", type=int, default=keep.SEEDS)
    storms = commands.add_parser("storms", help="digests of histories with the real engine")
    storms.add_argument("seeds", type=int)
    args = parser.parse_args()
    return sum(
        1
        for line in globals()[f"_{args.command}"](args)
        if print(line, flush=True) or line.startswith("CHANGED")
    )


def _show(args: argparse.Namespace) -> Iterator[str]:
    yield from keep.tape_of(int(args.what)) if args.what.isdigit() else keep.whole(args.what)


def _write(_args: argparse.Namespace) -> Iterator[str]:
    keep.write_digests()
    yield f"{keep.SEEDS} digests"
    for name in keep.write_whole():
        yield f"{name}: {len(keep.whole(name))} lines"


def _compare(args: argparse.Namespace) -> Iterator[str]:
    known = keep.digests()
    for seed in range(args.first, args.first + args.seeds):
        if known[seed] != keep.digest(keep.tape_of(seed)):
            yield f"CHANGED seed {seed}"
    for name in keep.names():
        if parts := keep.compared(name):
            yield f"CHANGED {name}: {parts}"


def _storms(args: argparse.Namespace) -> Iterator[str]:
    for seed in range(args.seeds):
        yield f"{seed} {keep.digest([line for tape in keep.storm(seed) for line in tape])}"


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The order of sets of strings is part of a run of the engine.
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.tapes", *sys.argv[1:]])
    sys.exit(bool(_main()))
