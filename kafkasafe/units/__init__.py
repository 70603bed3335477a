"""Units: groups of batches and consumer offsets that are written to Kafka in one transaction, or not at all.

The package does no I/O. The engine (`delivery/engine`) reports what happened, takes the actions of `advance()` and
carries them out. If a request fails, the engine calls `failed`. If the request must be repeated, `advance()` returns a
`RetryLater`: the engine waits, and then calls `again`.

The order of the steps makes a unit atomic (docs/staged-protocol.md describes a crash after each step):

    prepared               the unit is one atomic group of the spool, durable, before any of its batches is sent
    begun                  the unit has a transactional id; partitions are added if the brokers require that
    appended               its batches and its marker (a group's offset) are in the transaction
    prepare acknowledged   the STAGED mark is durable: only from here on may EndTxn be sent
    committed              this incarnation, the next, or another process repeats EndTxn until it is answered
    commit acknowledged    the ENDED mark is durable: futures resolve, and the transactional id is free again

If a request fails before the STAGED mark, InitProducerId aborts the transaction and fences delayed requests, and the
unit is prepared again. After the STAGED mark, the transaction's outcome alone decides whether the unit is committed.
The package never assumes an outcome: InitProducerId ends an open transaction, and then the marker shows whether the
transaction was committed.

Order. The units of a partition form a *line*: they are appended in the order in which they were accepted. A unit is
committed only after all earlier units in its lines are committed or refused. The package also checks that in each
partition's log, the unit's batches come after the batches of earlier units. So several units may be in progress at the
same time. The units that move a consumer group's offset for the same partition form another kind of line. They are
committed in order, and a unit writes the offset only after all earlier units of the line are committed or refused.

Readings. A *reading* is one run of a consumer through a partition. Each unit of a reading begins at the offset where
the previous unit ended. So if a unit is dropped, `Transitions.follow_drops` also drops the later units of its reading.

Modules. Each object owns its state, and uses only objects that come after it in this list:

    machine.py      `Units`: takes the events
    failures.py     `FailurePolicy`: the consequences of a failed request
    schedule.py     `Schedule`: which units to begin, append and commit next
    recovery.py     `UnitReplay`: restores units from the marks of earlier incarnations
    transitions.py  `Transitions`: how units enter and leave transactions and lines
    together.py     `Sharing`: which units share a transaction
    order.py        `Lines`: the unfinished units, their order on each partition, and each log's last committed offset
    readings.py     `ReadingOrder`: which readings are broken off, and which units are superseded
    ids.py          `TransactionalIds`: which id a transaction gets, and how the producer acquires it
    outbox.py       `UnitOutbox`: requests and marks that were decided and not taken yet
    requests.py     the requests under a transactional id, and the outcome of a transaction according to its coordinator
    unit.py         `Unit`, the `Transaction` that commits it, and its transactional id
    content.py      what units and transactions have in common
    terms.py        phases, grants, readings
"""

from kafkasafe.units.machine import Units
from kafkasafe.units.requests import (
    Action,
    AddPartitions,
    CommitOffsets,
    DescribeTxn,
    EndTxn,
    FindOutcome,
    InitProducerId,
    Produce,
    Refuse,
    Request,
    RetryLater,
    UnitPause,
    outcome_of,
)
from kafkasafe.units.terms import (
    Grant,
    GroupPartition,
    IllegalStepError,
    Member,
    Phase,
    Reading,
)
from kafkasafe.units.unit import Transaction, TransactionalId, Unit

__all__ = [
    "Action",
    "AddPartitions",
    "CommitOffsets",
    "DescribeTxn",
    "EndTxn",
    "FindOutcome",
    "Grant",
    "GroupPartition",
    "IllegalStepError",
    "InitProducerId",
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
    "UnitPause",
    "Units",
    "outcome_of",
]
