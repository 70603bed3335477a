"""Many histories, or one: `make simulate`. See the package."""

from __future__ import annotations

import argparse
import contextlib
import gc
import multiprocessing
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from types import FrameType

from .book import Violation
from .plan import KINDS, Plan, plan_of
from .shrink import found, ranges, shrink
from .storm import play
from .unplanned import PLAYERS, Player, player_of

_HANGS_AFTER_S = 120
_CHUNK = 25
_MOST_REPORTED = 5


class _Hang(BaseException):
    pass


@contextlib.contextmanager
def _bounded() -> Iterator[None]:
    """A history that takes minutes of real time hangs in a way that counting turns does not see."""

    def ring(_number: int, _frame: FrameType | None) -> None:
        raise _Hang

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(_HANGS_AFTER_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _broken(plan: Plan) -> Violation | None:
    try:
        with _bounded():
            return found(plan)
    except _Hang:
        return Violation("hang", f"not over after {_HANGS_AFTER_S} s")


def _chunk(task: tuple[int, int, str]) -> tuple[int, Counter[str], list[tuple[int, str]]]:
    """(how many, what happened in them, seeds with what they break)."""
    first, count, kind = task
    counts: Counter[str] = Counter()
    bad: list[tuple[int, str]] = []
    gc.collect()  # and not in the middle of them: see `_spare`
    for seed in range(first, first + count):
        if (unplanned := player_of(seed, kind)) is not None:
            name, player = unplanned
            counts[f"kind {name}"] += 1
            if violated := _violated(player, seed, counts):
                bad.append((seed, violated))
            continue
        plan = plan_of(seed, kind)
        counts[f"kind {plan.kind}"] += 1
        counts["events"] += len(plan.events)
        try:
            with _bounded():
                storm = play(plan)
        except Violation as violation:
            bad.append((seed, str(violation)))
            continue
        except _Hang:
            bad.append((seed, f"hang: not over after {_HANGS_AFTER_S} s"))
            continue
        book = storm.book
        counts["lives"] += len(book.lives)
        counts["records"] += len(book.records)
        counts["batches sent"] += book.sent
        counts["losses reported"] += book.losses
        counts["batches parked"] += book.parked
        counts["records rejected"] += sum(record.refused for record in book.records.values())
        counts["virtual seconds"] += int(storm.now)
    return count, counts, bad


def _spare() -> None:
    """Modules are not searched for garbage again and again; what histories leave behind is, after some of them."""
    gc.collect()
    gc.freeze()
    gc.disable()


def _violated(player: Player, seed: int, counts: Counter[str], *, show: bool = False) -> str:
    """What an unplanned history breaks, or nothing."""
    try:
        with _bounded():
            player(seed, counts, show)
    except _Hang:
        return f"hang: not over after {_HANGS_AFTER_S} s"
    except Exception as error:
        return "\n".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())])
    return ""


def _tell(plan: Plan, kind: str, *, trace: bool) -> None:
    violation = _broken(plan)
    if violation is None:
        print("  it does not happen again: the run depends on something else than its seed")
        return
    keep = shrink(plan, violation.name, _broken)
    shortest = plan.only(keep)
    violation = _broken(shortest) or violation
    print(f"  {violation}")
    print(f"  shrunk from {len(plan.events)} to {len(keep)} events, with {plan.settings}:")
    for event in shortest.events:
        print(f"    {event}")
    again = f"make simulate SEED={plan.seed}{f' KIND={kind!r}' if kind else ''} KEEP={ranges(keep)}"
    print(f"  replay: {again}")
    if trace:
        again_traced = found(shortest, trace=True)
        print("\n".join(getattr(again_traced, "__notes__", ())))


def _one(args: argparse.Namespace) -> int:
    if (unplanned := player_of(args.seed, args.kind)) is not None:
        violated = _violated(unplanned[1], args.seed, Counter(), show=True)
        print(violated or "0 violations")
        return bool(violated)
    plan = plan_of(args.seed, args.kind)
    if args.keep:
        spans = [part.partition("-") for part in args.keep.split(",")]
        plan = plan.only([at for a, _, b in spans for at in range(int(a), int(b or a) + 1)])
    print(f"seed {args.seed}: {plan.kind}, {plan.settings}")
    for event in plan.events:
        print(f"    {event}")
    violation = found(plan, trace=True)
    if violation is None:
        print("0 violations")
        return 0
    print("\n".join(getattr(violation, "__notes__", ())))
    print(violation)
    if not args.keep:
        _tell(plan, args.kind, trace=False)
    return 1


def _many(args: argparse.Namespace) -> int:
    began = time.monotonic()
    tasks = [
        (first, min(_CHUNK, args.first + args.seeds - first), args.kind)
        for first in range(args.first, args.first + args.seeds, _CHUNK)
    ]
    counts: Counter[str] = Counter()
    bad: list[tuple[int, str]] = []
    done, said = 0, began
    with multiprocessing.get_context("fork").Pool(args.jobs, _spare) as pool:
        for count, more, broken in pool.imap_unordered(_chunk, tasks):
            done += count
            counts += more
            for seed, what in broken:
                bad.append((seed, what))
                print(f"seed {seed}: {what[:300]}", flush=True)
                if player_of(seed, args.kind) is None and len(bad) <= _MOST_REPORTED:
                    _tell(plan_of(seed, args.kind), args.kind, trace=False)
            if time.monotonic() - said > 15:
                said = time.monotonic()
                rate = done / (said - began)
                print(f"{done:,} of {args.seeds:,} seeds, {rate:.0f}/s, {len(bad)} violations", flush=True)
            if args.minutes and time.monotonic() - began > args.minutes * 60:
                print(f"stopped after {args.minutes} minutes", flush=True)
                pool.terminate()
                break
    seconds = time.monotonic() - began
    for name, count in sorted(counts.items()):
        print(f"  {count:>12,} {name}")
    print(
        f"seeds {args.first} to {args.first + args.seeds - 1}: {done:,} in {seconds:.0f} s,"
        f" {done / seconds:.1f} a second on {args.jobs} processes"
    )
    print(f"{len(bad)} violations" if bad else "0 violations", flush=True)
    return bool(bad)


def _main() -> int:
    parser = argparse.ArgumentParser(prog="simulate", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="only this one, with all that happens")
    parser.add_argument("--keep", default="", help="with --seed: only these events, such as 0-3,7")
    parser.add_argument("--kind", default="", choices=["", *KINDS, *PLAYERS], help="all of this kind")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--minutes", type=float, default=0, help="stop after so many")
    args = parser.parse_args()
    return _many(args) if args.seed is None else _one(args)


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The order of sets of strings is part of a run.
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])
    sys.exit(_main())
