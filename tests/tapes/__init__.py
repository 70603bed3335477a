"""Decision tapes: every call of the pure journal with every decision that it made, as text.

The journal has no clock, no randomness and no I/O. So the same calls give the same decisions, and a change of its code that
changes none of them leaves every tape as it was. That is the net below a redesign: *digests are equal, or the commit says
which decision changed, and why*.

    histories.py    seeded histories: a `History` drives the journal through successive incarnations, with a disk and a cluster
                    that are just complex enough to reach its rare states
    recorder.py     a `Tape`, journals that record on it, and the replay of a tape
    words.py        the word of each class on a tape
    digests.txt     a digest of each seed's tape
    whole/          tapes as text, compressed. Some are of these histories; some were recorded in histories of the
                    simulation, with the real engine, and are replayed without it

A seed whose digest changed:

    python -m tests.tapes show 17 > new.txt         # and the same with the code of before; then compare the two
    python -m tests.tapes write                     # digests.txt and whole/ as they are now; read the difference first

`python -m tests.tapes storms 200` prints digests of histories with the real engine. They depend on the engine as well, so none
are kept: run it before and after a change of the journal.
"""

from __future__ import annotations

import sys
from pathlib import Path

# Histories of atomic batches are beside the engine's tests, the journal's mutants beside its own.
sys.path[:0] = [str(Path(__file__).parents[1] / name) for name in ("", "engine", "journal", "units")]
