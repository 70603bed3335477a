"""The two-phase journal: decides what happens to each batch from its seal to its commit, without I/O.

Theory of operation
-------------------
The *engine* (`delivery/engine`) does the I/O for the journal. The engine passes events to the journal (`seal`,
`persisted`, `acked`, `refused`, `lost`, `judged` ...) and then calls `ready()` for the actions that are due. The
contract is the same as in etcd's raft: *persist before you send, send before you resolve*.

    1. The engine calls `ready()`, writes the batches and marks of `ready().persist` as one spool group, makes the group
       durable, and calls `persisted()`. Before `persisted()` is called, `ready()` returns no request and no final fate
       that depends on the spool group.
    2. The engine calls `ready()` again. `sends` has the batches to send in Produce requests. All requests under one
       batch id carry the same bytes. `asks` has the questions to the cluster. `waits` has the partitions for which the
       engine calls `retry()` after a pause. `resolved` has the batches whose fate is final and durable.

Three tables say what follows an event. `Batch.on` looks up the next state of a batch in `STATE`. `Progress.on` looks up
the next activity of a partition in `FLOW`, and the next activity of a topic whose partitions are not known in
`UNASSIGNED_FLOW`. An event without an entry in its table is a bug, and raises IllegalMoveError. A batch of an earlier
incarnation gets its state from the lane's log (`recovery`). A batch that is part of a unit begins in the state JOINED.
A unit is one or several batches that are delivered together or not at all.

Order and the window. A partition's batches are sent in the order in which they were sealed. At any time, at most
`window` (five) sent batches of a partition lack a durable commit mark. The first batch under a producer id and epoch is
sent alone: the next batch waits until the broker acknowledges the first. The first batch after a pause is also sent
alone, if the broker may have dropped our producer state in the pause. A broker without our producer state accepts *any*
base sequence. So if the first of two batches failed, the broker could append the second one before the first. After any
failure the partition *settles*: the journal sends nothing new until every request in flight has an outcome. If every
failed batch is proven absent from the log, the journal sends the failed batches again, in order. Otherwise the journal
first asks the cluster whether the failed batches are in the log.

The journal uses no clock, no randomness and no I/O. The caller passes, as arguments, the time (`now`, in seconds since
an arbitrary epoch) and the cluster's answers.

Modules
-------
Data that all objects share: `batch` (a batch, its states and its events), `flow` (the activity of a destination),
`outbox` (decisions that `ready` has not returned yet), `notices` (messages for users). Objects that own state:

    home        the lane's cluster and producer ids,        flow        the current activity of a partition
                the id of the next batch                    window      what may be in flight at once
    refusal     how long a refusal has lasted, what may     acked       acknowledged batches, and what is known of
                not exist, batches on their way to                      their loss
                `rejected/`                                 precedence  batches that other lanes deliver first
    doubt       requests that had no answer                 healing     lost batches that are sent again
    quiescence  how long late requests may arrive           spool_index positions of the spool that are needed
    queue       the batches of a partition                  destinations  partitions, and the known topics
    replay      the group of the log that is being read     snapshots   marks that a new segment repeats

Objects that make decisions. Each constructor takes the `JournalState`, and the decision-making objects that the new
object uses:

    packing     batches that are far from their turn    losses      signs of a loss, surveys, batches to send again
    refusals    destinations that are not accepted      topics      destinations, learned and forgotten
    endings     groups that became durable              forward     copies of batches at the spool's front
    sealing     new batches, and the ids of batches     dividing    one batch becomes several
    gathering   several batches become one              rejecting   batches that are finally refused
    verdicts    batches in doubt                        answers     outcomes of requests and questions
    members     batches of units                        lives       order across incarnations and lanes
    recovery    the log of earlier incarnations         machine     the next step of each partition

`state` has the settings and the class `JournalState`. All objects that make decisions share one `JournalState`, which
holds all objects that own state. `journal` has the facade: `Journal` makes all objects, passes each event to the object
that handles it, and collects the resulting actions. `views` has the read-only queries of `Journal.views`, for callers
outside the journal.
"""

from kafkasafe.journal.acked import EpochCheck
from kafkasafe.journal.batch import (
    DAMAGED,
    STATE,
    TOO_SLOW,
    Batch,
    BatchEvent,
    BatchState,
    Fate,
    IllegalMoveError,
)
from kafkasafe.journal.destinations import UNCHOSEN
from kafkasafe.journal.flow import FLOW, UNASSIGNED_FLOW, Flow, FlowEvent
from kafkasafe.journal.gathering import GATHER_LEAST
from kafkasafe.journal.journal import Journal
from kafkasafe.journal.notices import (
    AckedLoss,
    Delivered,
    Denial,
    Denied,
    Healed,
    Hole,
    Notice,
    Refusal,
    Relented,
    Undecidable,
)
from kafkasafe.journal.outbox import (
    Aside,
    Consequence,
    Divide,
    OutcomeAsk,
    Packed,
    Persist,
    Ready,
    Resolution,
    SurveyAsk,
    UnitGroup,
    Unpacked,
    Wait,
)
from kafkasafe.journal.quiescence import Moment, alive_s
from kafkasafe.journal.state import Settings

__all__ = [
    "DAMAGED",
    "FLOW",
    "GATHER_LEAST",
    "STATE",
    "TOO_SLOW",
    "UNASSIGNED_FLOW",
    "UNCHOSEN",
    "AckedLoss",
    "Aside",
    "Batch",
    "BatchEvent",
    "BatchState",
    "Consequence",
    "Delivered",
    "Denial",
    "Denied",
    "Divide",
    "EpochCheck",
    "Fate",
    "Flow",
    "FlowEvent",
    "Healed",
    "Hole",
    "IllegalMoveError",
    "Journal",
    "Moment",
    "Notice",
    "OutcomeAsk",
    "Packed",
    "Persist",
    "Ready",
    "Refusal",
    "Relented",
    "Resolution",
    "Settings",
    "SurveyAsk",
    "Undecidable",
    "UnitGroup",
    "Unpacked",
    "Wait",
    "alive_s",
]
