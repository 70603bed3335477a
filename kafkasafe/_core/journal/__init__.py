"""The two-phase journal: every batch from its seal to its commit, decided without I/O.

Theory of operation
-------------------
The shell tells the journal what happened (`seal`, `persisted`, `acked`, `refused`, `lost`, `judged` ...) and then
takes `ready()`: what must be done now. The contract is that of etcd's raft: *persist before you send, send before
you resolve*.

    1. `ready().persist` holds batches and marks. Write them as one group, make them durable, call `persisted()`.
       Until then nothing that depends on them is in `sends` or `resolved`.
    2. Then `ready()` again: `sends` are Produce requests, always the same bytes for the same id; `asks` are
       questions to the cluster; `waits` are partitions that want `retry()` after a pause; `resolved` are batches
       whose fate is final and durable.

What a batch is after an event says the table `STATE` (`Batch.on`). An event that the table does not have is a bug, and
raises. A batch of an earlier incarnation gets the state that the log says (`recovery`), and one that joins a unit is
JOINED from the beginning.

Order and the window. A partition's batches are sent in the order in which they were sealed, at most `window` (five)
without a durable commit mark. The first batch under an id goes alone until it is acknowledged, and so does the
first after a pause in which the broker may have forgotten us: a broker without state accepts *any* base sequence,
so a second batch could overtake a failed first one. After any failure the partition *settles*: nothing new is sent
until every request in flight has an outcome; then either all of them are proven absent and go again, in order, or
the cluster is asked first.

No clock, no randomness, no I/O: `now` (float seconds, any epoch) and everything the cluster said are arguments.

Rooms
-----
What all speak of is data: `lifecycle` (what can happen to a batch), `states` (a batch), `partition` (a destination),
`missing` (destinations that may not exist), `messages`, `notices`, `groups`, `clock`.
Objects that own what they know:

    home        the cluster that the lane is of             sequences   which id the next batch gets
    progress    what a partition is doing                   window      how many may be on their way at once
    refusal     since when one refusal lasts                acked       what is known to be in the log
    doubt       requests that had no answer                 loss_case   that some of it may be gone
    rejection   batches on their way to `rejected/`         precedence  what other lanes deliver first
    quiescence  when all requests are dead                  healing     lost batches on their way back
    queue       the batches of a partition                  spool_index positions of the spool that are needed
    replay      the group of the log that is being read     destinations  all partitions, and the known topics
    outbox      what is decided, until `ready` takes it     broker_clock  what time it is for brokers
    snapshots   what a new segment repeats                  turns       when a batch of a unit is the next one

Objects that decide. Each has what it uses as arguments of its constructor, and none knows the ones that use it:

    packing     what is far from its turn               suspicions  that acknowledged batches may be gone
    refusals    destinations that are not accepted      topics      destinations, learned and forgotten
    endings     what is durable now                     losses      surveys, and what is sent again
    ids         given, and taken back                   forward     copies of what holds the spool's front
    sealing     new batches, on their way to the disk   dividing    one becomes several
    gathering   several become one                      rejecting   what is refused for good
    verdicts    batches in doubt                        answers     of requests and questions
    members     batches of units                        lives       order across incarnations and lanes
    recovery    what earlier incarnations left          machine     what a partition does next

`parts` makes all of them. `journal` has the facade: `Journal` passes each event to the object that it concerns, and
collects what is to be done. `settings` are what can be chosen. `views` are answers about the state for readers outside,
as `Journal.views`.

`quiet` has the questions about a partition that the rules of `machine` ask in their order.
"""

from kafkasafe._core.journal.clock import Clock, alive_s
from kafkasafe._core.journal.gathering import GATHER_LEAST
from kafkasafe._core.journal.groups import Consequence, Persist
from kafkasafe._core.journal.journal import Journal
from kafkasafe._core.journal.lifecycle import STATE, BatchEvent, State
from kafkasafe._core.journal.messages import (
    Aside,
    Ask,
    Divide,
    EpochCheck,
    Packed,
    Ready,
    Resolution,
    SurveyAsk,
    Unpacked,
    Wait,
)
from kafkasafe._core.journal.notices import (
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
from kafkasafe._core.journal.partition import UNCHOSEN, WINDOW, Flow, Partition
from kafkasafe._core.journal.settings import Settings
from kafkasafe._core.journal.states import (
    DAMAGED,
    TOO_SLOW,
    Batch,
    Fate,
    IllegalMoveError,
)

__all__ = [
    "DAMAGED",
    "GATHER_LEAST",
    "STATE",
    "TOO_SLOW",
    "UNCHOSEN",
    "WINDOW",
    "AckedLoss",
    "Aside",
    "Ask",
    "Batch",
    "BatchEvent",
    "Clock",
    "Consequence",
    "Delivered",
    "Denial",
    "Denied",
    "Divide",
    "EpochCheck",
    "Fate",
    "Flow",
    "Healed",
    "Hole",
    "IllegalMoveError",
    "Journal",
    "Notice",
    "Packed",
    "Partition",
    "Persist",
    "Ready",
    "Refusal",
    "Relented",
    "Resolution",
    "Settings",
    "State",
    "SurveyAsk",
    "Undecidable",
    "Unpacked",
    "Wait",
    "alive_s",
]
