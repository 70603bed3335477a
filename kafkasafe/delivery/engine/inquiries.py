"""Runs the journal's inquiries to the cluster, each once its partition has calmed down."""

from __future__ import annotations

from kafkasafe import journal as j
from kafkasafe.delivery.engine.context import EngineContext
from kafkasafe.delivery.engine.lane import Lane
from kafkasafe.delivery.engine.leader import Leader
from kafkasafe.delivery.engine.questions import Baseline, Confirmation, LossInquiry, OutcomeInquiry
from kafkasafe.delivery.engine.running import RunningInquiry
from kafkasafe.delivery.engine.sender import Sender
from kafkasafe.delivery.engine.sequence_errors import SequenceErrors

__all__ = ["Inquiries"]


class Inquiries:
    """See the module."""

    def __init__(self, context: EngineContext, sender: Sender, sequence_errors: SequenceErrors) -> None:
        self._context = context
        self._sender = sender
        self._sequence_errors = sequence_errors

    def survey(self, lane: Lane, ask: j.SurveyAsk) -> None:
        """Find acknowledged batches that the log of a destination lacks."""
        address = lane.journal.views.address(ask.destination)
        self._sender.tries(*address)
        leader = Leader(self._context, lane, *address, self._sender.in_trouble)
        self._sender.when_calm(*address, self._running(LossInquiry(self._context, lane, ask, leader), leader))

    def ask(self, lane: Lane, ask: j.Ask) -> None:
        """Run the inquiry about one destination that the journal asks for."""
        context, sender = self._context, self._sender
        address = lane.journal.views.address(ask.destination)
        sender.tries(*address)
        leader = Leader(context, lane, *address, sender.in_trouble)
        if not ask.doubt:
            self._running(Baseline(context, lane, ask, leader), leader).go_on()
        elif ask.confirm:
            # A refused batch already counts as trouble.
            leader = Leader(context, lane, *address)
            confirmation = Confirmation(context, self._sequence_errors, lane, ask, leader)
            self._running(confirmation, leader).go_on()
        else:
            context.stats.in_doubt_asked.add(len(ask.doubt))
            inquiry = OutcomeInquiry(context, self._sequence_errors, lane, ask, leader)
            sender.when_calm(*address, self._running(inquiry, leader))

    def _running(
        self, inquiry: Baseline | Confirmation | OutcomeInquiry | LossInquiry, leader: Leader
    ) -> RunningInquiry:
        return RunningInquiry(self._context, leader.name(inquiry), inquiry.run())
