"""Which seeds find a mutant: `python -m tests.simulation.hunt engine|journal|NAME [SEEDS] [KIND …]`."""

from __future__ import annotations

import os
import sys
import time

import pytest

from .mutants import ENGINE, JOURNAL
from .plan import KINDS, plan_of
from .shrink import found


def _hunt(name: str, change: object, kinds: list[str], seeds: int) -> None:
    for kind in kinds:
        began = time.monotonic()
        hits = []
        for seed in range(seeds):
            with pytest.MonkeyPatch.context() as patch:
                change(patch)  # type: ignore[operator]
                violation = found(plan_of(seed, kind))
            if violation is not None:
                hits.append((seed, violation.name))
                if len(hits) == 3:
                    break
            if time.monotonic() - began > 60 or (seed > 15 and len(hits) > 1):
                break
        print(f"{name} | {kind} | {hits} | {time.monotonic() - began:.1f} s", flush=True)


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation.hunt", *sys.argv[1:]])
    what, count = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 40
    mutants = {"engine": ENGINE, "journal": JOURNAL}.get(what) or {
        name: mutant for name, mutant in {**ENGINE, **JOURNAL}.items() if what in name
    }
    for name, mutant in mutants.items():
        kinds = sys.argv[3:] or [mutant.kind]
        _hunt(name, mutant.change, list(KINDS) if kinds == ["*"] else kinds, count)
