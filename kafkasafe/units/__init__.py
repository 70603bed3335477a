"""Units: batches of any partitions, and offsets of consumer groups, that Kafka gets in one transaction or not at all.

Without I/O. The shell says what happened, takes `advance()` and carries it out; an action that failed comes back by
`failed`, and is given once more, as a `RetryLater`, after a pause.

The order is the proof (docs/staged-protocol.md has the crash table):

    prepared               the unit is one atomic group of the spool, durable, before anything of it is sent
    begun                  a transactional id is its own; partitions are added where the brokers want that
    appended               its batches, and its marker in a group's offset, are in the transaction
    prepare acknowledged   the STAGED mark is durable: from here on, and not before, EndTxn may be sent
    committed              EndTxn, the same one until it is answered, by this incarnation, the next, or another process
    commit acknowledged    the ENDED mark is durable: futures resolve, and the transactional id is free again

Trouble before the STAGED mark leads back to the line: InitProducerId aborts what was written, and fences whatever is
late. After it only the outcome decides, and it is asked for, never assumed: InitProducerId ends what is open, and then
the marker says.

Order. On each partition units are appended in the order in which they were accepted, and one is committed only when all
before it are, and stand before it in the log. So several may be under way at once. A group's offset of a partition is a
line like any: units that move it are committed in order, and each writes it only after all before it are committed.

Readings. Units with a consumer's offsets go on from one another, so one that is dropped takes along the later ones of
the same reading (`Transitions.follow_drops`).

Modules. Each object owns its state, and knows those below it only:

    machine.py      `Units`: takes the events
    failures.py     `Failures`: what follows from a request that failed
    schedule.py     `Schedule`: what is begun, appended and committed next
    recovery.py     `UnitReplay`: what the marks of earlier incarnations say
    transitions.py  `Transitions`: every way out of a transaction, and out of the line
    together.py     `Sharing`: which units share a transaction
    order.py        `Lines`: in which order units stand on each partition, and how far the logs hold what is committed
    readings.py     `ReadingOrder`: which readings of consumers are broken off, or come too late
    ids.py          `TransactionalIds`: which id a transaction gets, and how one becomes ours
    registry.py     `UnitRegistry`: the units without a fate
    outbox.py       `Outbox`: requests and marks that are decided, and not taken yet
    requests.py     what is done under a transactional id
    unit.py         `Unit`, the `Transaction` in which it is committed, and the transactional id of that
    content.py      what a unit and a transaction have in common
    terms.py        phases, grants, readings
    outcome.py      what the coordinator's description says of the outcome
"""

from kafkasafe.units.machine import Units
from kafkasafe.units.outcome import outcome_of
from kafkasafe.units.requests import (
    Action,
    AddPartitions,
    Backoff,
    CommitOffsets,
    DescribeTxn,
    EndTxn,
    FindOutcome,
    InitProducerId,
    Produce,
    Refuse,
    Request,
    RetryLater,
)
from kafkasafe.units.terms import (
    GIVEN_UP,
    NO_READING,
    POOL,
    SUPERSEDED,
    TRANSITIONS,
    Grant,
    GroupPartition,
    IllegalStepError,
    Line,
    Member,
    Phase,
    Reading,
)
from kafkasafe.units.unit import Transaction, TransactionalId, Unit

__all__ = [
    "GIVEN_UP",
    "NO_READING",
    "POOL",
    "SUPERSEDED",
    "TRANSITIONS",
    "Action",
    "AddPartitions",
    "Backoff",
    "CommitOffsets",
    "DescribeTxn",
    "EndTxn",
    "FindOutcome",
    "Grant",
    "GroupPartition",
    "IllegalStepError",
    "InitProducerId",
    "Line",
    "Member",
    "Phase",
    "Produce",
    "Reading",
    "Refuse",
    "Request",
    "RetryLater",
    "Transaction",
    "TransactionalId",
    "Unit",
    "Units",
    "outcome_of",
]
