"""What the journal wants to know of the cluster, each question when its partition has calmed down."""

from __future__ import annotations

from typing import Any

from kafkasafe._core import journal as j
from kafkasafe._core.identity import ProducerView
from kafkasafe._io.engine.answers import trouble
from kafkasafe._io.engine.ground import Ground
from kafkasafe._io.engine.lane import Lane
from kafkasafe._io.engine.questions import Inquest, Question
from kafkasafe._io.engine.sender import Sender

__all__ = ["Inquiries"]


class Inquiries:
    """See the module."""

    def __init__(self, ground: Ground, sender: Sender) -> None:
        self._ground = ground
        self._sender = sender

    def survey(self, lane: Lane, ask: j.SurveyAsk) -> None:
        """Which acknowledged batches are gone."""
        topic, partition = lane.journal.address(ask.destination)
        inquest = Inquest(self._ground, self._sender, lane, ask, topic, partition)
        self._sender.when_calm(topic, partition, inquest.start)

    def ask(self, lane: Lane, ask: j.Ask) -> None:
        topic, partition = lane.journal.address(ask.destination)
        if not ask.doubt:
            self._sender.in_trouble(topic, partition)
            self._ground.cluster.list_offset(
                topic,
                partition,
                -1,
                lambda result: self._ground.post(lambda: self._on_baseline(lane, ask, result)),
            )
            return
        if ask.confirm:
            self._ground.cluster.describe_producers(
                topic,
                partition,
                lambda result: self._ground.post(lambda: self._on_confirmed(lane, ask, result)),
            )
            return
        self._ground.counters["in_doubt_asked"] += len(ask.doubt)
        question = Question(self._ground, self._sender, lane, ask, topic, partition)
        self._sender.when_calm(topic, partition, question.start)

    def _on_confirmed(self, lane: Lane, ask: j.Ask, result: Any) -> None:
        """What the leader has of a batch that it refused. Where it does not tell, its answer is believed."""
        code, reason = trouble(result)
        if reason and not code:
            lane.journal.ask_failed(ask.destination, reason, code=0, now=self._ground.now())
            return
        state = None if reason else result.producers.get(ask.doubt[0].producer_id)
        view = state and ProducerView(state.epoch, state.last_sequence, state.last_timestamp)
        lane.journal.confirmed(ask.destination, view)

    def _on_baseline(self, lane: Lane, ask: j.Ask, result: Any) -> None:
        code, reason = trouble(result)
        if reason:
            lane.journal.ask_failed(ask.destination, reason, code=code, now=self._ground.now())
            return
        topic, _ = lane.journal.address(ask.destination)
        info = self._ground.cluster.topic(topic)
        topic_id = info.topic_id if info is not None else bytes(16)
        self._ground.progressed()
        lane.journal.baseline(ask.destination, result.offset, topic_id)
