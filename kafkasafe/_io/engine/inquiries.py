"""Runs the journal's inquiries to the cluster, each once its partition has calmed down."""

from __future__ import annotations

from kafkasafe._core import journal as j
from kafkasafe._io.engine.ground import Ground
from kafkasafe._io.engine.lane import Lane
from kafkasafe._io.engine.questions import Baseline, Confirmation, Inquest, Question
from kafkasafe._io.engine.sender import Sender

__all__ = ["Inquiries"]


class Inquiries:
    """See the module."""

    def __init__(self, ground: Ground, sender: Sender) -> None:
        self._ground = ground
        self._sender = sender

    def survey(self, lane: Lane, ask: j.SurveyAsk) -> None:
        """Find acknowledged batches that the log of a destination lacks."""
        topic, partition = lane.journal.views.address(ask.destination)
        self._sender.tries(topic, partition)
        inquest = Inquest(self._ground, self._sender, lane, ask, topic, partition)
        self._sender.when_calm(topic, partition, inquest)

    def ask(self, lane: Lane, ask: j.Ask) -> None:
        """Run the inquiry about one destination that the journal asks for."""
        ground, sender = self._ground, self._sender
        topic, partition = lane.journal.views.address(ask.destination)
        sender.tries(topic, partition)
        if not ask.doubt:
            Baseline(ground, sender, lane, ask, topic, partition).go_on()
        elif ask.confirm:
            Confirmation(ground, lane, ask, topic, partition).go_on()
        else:
            ground.stats.in_doubt_asked.add(len(ask.doubt))
            sender.when_calm(topic, partition, Question(ground, sender, lane, ask, topic, partition))
