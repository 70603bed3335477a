"""A program that meets many topics at once pays for one answer about them, not for each of them."""

from __future__ import annotations

from virtual import World

from kafkasafe.delivery.engine import topics
from kafkasafe.journal import UNCHOSEN

TOPICS = [f"topic-{number}" for number in range(40)]


def contact(values: list[bytes]) -> int:
    """Syncs of the disk until all is delivered."""
    made = World()
    for name in TOPICS:
        made.centre.create_topic(name, 1)
    life = made.start()
    for name in TOPICS:
        life.send(name, UNCHOSEN, values)
    assert made.run(60, lambda: all(made.log(name, 0) == values for name in TOPICS))
    assert made.run(60, life.engine.ledger.idle)
    return made.disk.calls["sync_data"]


def test_what_waits_for_topics_of_one_answer_is_written_together():
    assert contact([b"value"]) < 20


def test_of_large_batches_only_some_are_divided_at_once(monkeypatch):
    """They are in memory meanwhile."""
    values = [b"." * 1000]
    together = contact(values)
    monkeypatch.setattr(topics, "_PORTION_BYTES", 5 * 1000)
    assert together + 5 < contact(values) < 40
