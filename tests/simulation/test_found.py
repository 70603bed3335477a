"""Shrunk histories that broke a promise once."""

from __future__ import annotations

from .plan import Event, Plan, Settings
from .storm import play


def history(*events: tuple[str, int, int, int], **settings: object) -> Plan:
    return Plan(0, "", Settings(**settings), tuple(Event(*each) for each in events))


def test_a_topic_that_may_not_be_described_any_more_makes_no_producer_spin():
    """Its leader was known, its metadata were refused: the way to the leader was asked for again and again, at once."""
    play(
        history(
            ("send", 35376, 24561, 19237),
            ("wait", 47038, 36122, 9878),
            ("send", 10276, 53646, 46667),
            ("deny", 43498, 56454, 40905),
            ("wait", 24856, 8679, 62118),
            brokers=1,
        )
    )
