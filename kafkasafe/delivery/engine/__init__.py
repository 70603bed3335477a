"""The producer's engine, which has no thread of its own (see docs/design.md).

`engine.py` runs the turns: it takes messages, lets the journal decide, and has the other modules carry out the
decisions. The modules' imports go in one direction only. All modules share `context.py`. Callers read `ledger.py`.
"""
