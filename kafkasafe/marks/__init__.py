"""Converts the spool's marks to control batches and back, exactly as `docs/spool-format.md` says.

A spool group begins with one control batch: a GROUP record, which lists the data batches that follow, and then the
marks, in the order in which they were decided. A producer restores its state from the spool's marks alone, so a wrong
mark would make this state wrong. Therefore this package checks each mark twice: when it writes the mark, and when it
reads the mark. Readers treat a value without a defined meaning as an error.

Modules. Each module uses only modules that are below it in this list:

    groups.py   control batches: the group record and its marks
    table.py    one row for each mark: its number, layout, validity and readers
    layout.py   layouts of control records
    kinds.py    the marks as data, one class each
    terms.py    constants and errors
"""

from kafkasafe.marks.groups import bytes_of_each, decode_group, encode_group
from kafkasafe.marks.kinds import (
    After,
    Begun,
    Cluster,
    Committed,
    Debt,
    Decision,
    Destination,
    Ended,
    Given,
    Granted,
    Group,
    GroupOffsets,
    Identified,
    Identity,
    IdentityReason,
    ManifestEntry,
    Mark,
    Move,
    Moved,
    Placed,
    Position,
    Quiet,
    Read,
    Rejected,
    Replaced,
    Resent,
    Resolved,
    Revived,
    Staged,
    State,
    Topic,
    Torn,
    Undecidable,
    Unit,
    UnitOutcome,
)
from kafkasafe.marks.terms import (
    FORMAT_VERSION,
    LANE_ID_BYTES,
    NO_TOPIC_ID,
    MarkError,
    UnknownFormatError,
)

__all__ = [
    "FORMAT_VERSION",
    "LANE_ID_BYTES",
    "NO_TOPIC_ID",
    "After",
    "Begun",
    "Cluster",
    "Committed",
    "Debt",
    "Decision",
    "Destination",
    "Ended",
    "Given",
    "Granted",
    "Group",
    "GroupOffsets",
    "Identified",
    "Identity",
    "IdentityReason",
    "ManifestEntry",
    "Mark",
    "MarkError",
    "Move",
    "Moved",
    "Placed",
    "Position",
    "Quiet",
    "Read",
    "Rejected",
    "Replaced",
    "Resent",
    "Resolved",
    "Revived",
    "Staged",
    "State",
    "Topic",
    "Torn",
    "Undecidable",
    "Unit",
    "UnitOutcome",
    "UnknownFormatError",
    "bytes_of_each",
    "decode_group",
    "encode_group",
]
