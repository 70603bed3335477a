"""The word of each class on a tape: a class that is renamed keeps its word, and so every tape stays as it is."""

from __future__ import annotations

from typing import Any, Final

from kafkasafe import journal as j
from kafkasafe import marks as m
from kafkasafe import units as u
from kafkasafe.history import identity, loss
from kafkasafe.journal import outbox

WORDS: Final[dict[type[Any], str]] = {
    # Judgements.
    identity.BatchId: "BatchId",
    identity.Judgement: "Judgement",
    identity.ProducerView: "ProducerView",
    identity.IdentityVerdict: "Verdict",
    loss.AckedBatch: "AckedBatch",
    loss.Cause: "Cause",
    loss.Loss: "Loss",
    # Atomic batches.
    u.RetryLater: "Again",
    u.Produce: "Append",
    u.FindOutcome: "Ask",
    u.EndTxn: "End",
    u.InitProducerId: "Fence",
    u.Grant: "Grant",
    u.IllegalStepError: "IllegalStepError",
    u.AddPartitions: "Join",
    u.DescribeTxn: "Look",
    u.CommitOffsets: "Note",
    u.Phase: "Phase",
    u.Reading: "Reading",
    u.Refuse: "Refuse",
    u.UnitPause: "Rest",
    # The journal.
    j.AckedLoss: "AckedLoss",
    j.Aside: "Aside",
    j.OutcomeAsk: "Ask",
    j.Moment: "Clock",
    j.Delivered: "Delivered",
    j.Denial: "Denial",
    j.Denied: "Denied",
    j.Divide: "Divide",
    j.EpochCheck: "EpochCheck",
    j.Fate: "Fate",
    j.Healed: "Healed",
    j.Hole: "Hole",
    j.IllegalMoveError: "IllegalMoveError",
    j.Packed: "Packed",
    j.Undecidable: "Parked",
    j.Persist: "Persist",
    j.Ready: "Ready",
    j.Refusal: "Refusal",
    j.Relented: "Relented",
    j.Resolution: "Resolution",
    j.SurveyAsk: "SurveyAsk",
    j.Unpacked: "Unpacked",
    j.Wait: "Wait",
    outbox.BaselineDurable: "Begun",
    outbox.BatchEnded: "Ended",
    outbox.BatchesIdentified: "Identified",
    outbox.SilenceBroken: "SilenceBroken",
    outbox.UnitEnded: "UnitEnded",
    outbox.UnitGroup: "UnitGroup",
    outbox.UnitStaged: "UnitStaged",
    # Marks.
    m.After: "After",
    m.Begun: "Begun",
    m.Cluster: "Cluster",
    m.Committed: "Committed",
    m.Debt: "Debt",
    m.Decision: "Decision",
    m.Destination: "Destination",
    m.Ended: "Ended",
    m.Given: "Given",
    m.Granted: "Granted",
    m.GroupOffsets: "GroupOffsets",
    m.Identified: "Identified",
    m.Identity: "Identity",
    m.IdentityReason: "IdentityReason",
    m.MarkError: "MarkError",
    m.Move: "Move",
    m.Moved: "Moved",
    m.Placed: "Placed",
    m.Position: "Position",
    m.Quiet: "Quiet",
    m.Read: "Read",
    m.Rejected: "Rejected",
    m.Replaced: "Replaced",
    m.Resent: "Resent",
    m.Resolved: "Resolved",
    m.Revived: "Revived",
    m.Staged: "Staged",
    m.State: "State",
    m.Topic: "Topic",
    m.Torn: "Torn",
    m.Undecidable: "Undecidable",
    m.Unit: "Unit",
    m.UnitOutcome: "UnitOutcome",
}

KNOWN: Final[dict[str, type[Any]]] = {name: kind for kind, name in WORDS.items()}
"""What a word in a call stands for. Some are of two classes, and calls have the one that is named last: a mark."""


def word(kind: type[Any]) -> str:
    """The word of a class, which is in `WORDS` unless it is one of Python's."""
    known = WORDS.get(kind)
    if known is None and kind.__module__ != "builtins":
        raise LookupError(f"{kind.__qualname__} is on a tape, and has no word: give it one in {__name__}")
    return known or kind.__name__
