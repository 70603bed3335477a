"""What a producer decides and does, in rooms, without a thread of its own (see docs/design.md).

`engine.py` is the turn: it takes what happened, lets the journal decide, and has the rooms carry it out. The rooms know
each other in one direction; all of them stand on `ground.py`, and what callers may see is in `ledger.py`.
"""
