"""The producer's engine, which has no thread of its own (see docs/design.md).

In each turn, `engine.py` takes messages and lets the journal decide; the other modules carry out the decisions. The
modules' imports go in one direction only. All modules share `context.py`. Callers read `ledger.py`.
"""
