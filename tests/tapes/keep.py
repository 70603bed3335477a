"""What is kept of tapes: digests of many, and some whole ones."""

from __future__ import annotations

import hashlib
import lzma
from pathlib import Path

import pytest

from .histories import KINDS, play
from .recorder import differences, recording, replay

SEEDS = 1200
HERE = Path(__file__).parent
DIGESTS = HERE / "digests.txt"
WHOLE = HERE / "whole"
_A_LINE = 10
_STORMS = {
    "all": 4,
    "refused": 3,
    "lossy": 4,
    "recreated": 2,
    "old": 3,
    "room": 2,
    "holes": 3,
    "late topic": 3,
    "units": 6,
}
"""So many histories of each kind of the simulation are kept whole, less what of them has no decision of its own."""


def tape_of(seed: int) -> list[str]:
    """The tapes of a seed's history."""
    return play(seed).lines


def digest(lines: list[str]) -> str:
    """Of a tape."""
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]


def digests() -> list[str]:
    """By seed."""
    return DIGESTS.read_text(encoding="utf-8").split()


def write_digests() -> None:
    """As they are now."""
    found = [digest(tape_of(seed)) for seed in range(SEEDS)]
    lines = [" ".join(found[at : at + _A_LINE]) for at in range(0, SEEDS, _A_LINE)]
    DIGESTS.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def names() -> list[str]:
    """Of whole tapes."""
    return sorted(path.name.removesuffix(".xz") for path in WHOLE.glob("*.xz"))


def whole(name: str) -> list[str]:
    """One of them."""
    return lzma.decompress((WHOLE / f"{name}.xz").read_bytes()).decode().split("\n")


def compared(name: str) -> str:
    """Where a whole tape and what the journal decides now part; nothing where they are the same.

    A tape of the histories in here is recorded once more, so that it shows the shell's part as well. One of the engine is
    replayed without the engine.
    """
    before = whole(name)
    again = tape_of(int(name.rpartition("-")[2])) if name.startswith("journal-") else replay(before)
    return differences(before, again)


def write_whole() -> list[str]:
    """As they are now."""
    WHOLE.mkdir(exist_ok=True)
    for path in WHOLE.glob("*.xz"):
        path.unlink()
    for seed, kind in enumerate(KINDS):
        _keep(f"journal-{kind}-{seed}", tape_of(seed))
    for kind, count in _STORMS.items():
        for seed in range(count):
            # The longest one: of producers, and of their incarnations, the one that had most to decide.
            _keep(f"engine-{kind.replace(' ', '-')}-{seed}", max(storm(seed, kind), key=len))
    return names()


def _keep(name: str, lines: list[str]) -> None:
    (WHOLE / f"{name}.xz").write_bytes(
        lzma.compress("\n".join(lines).encode(), preset=9 | lzma.PRESET_EXTREME)
    )


def storm(seed: int, kind: str = "") -> list[list[str]]:
    """The tapes of all journals in a history of the simulation: what the engine asked of them."""
    from unit_storm_recreated import run_any_storm

    from tests.simulation.plan import is_of_units, plan_of
    from tests.simulation.storm import play as play_storm
    from tests.simulation.world import pinned

    tapes: list = []
    with pytest.MonkeyPatch.context() as patch:
        recording(patch, tapes)
        if kind == "units" or (not kind and is_of_units(seed)):
            with pinned():
                run_any_storm(seed)
        else:
            play_storm(plan_of(seed, kind))
    return [tape.lines for tape in tapes]
