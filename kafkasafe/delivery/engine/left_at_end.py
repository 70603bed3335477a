"""What a producer leaves when it ends, and the errors of records that it could not deliver or keep."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kafkasafe.delivery.engine.parcels import Parcel, leaves
from kafkasafe.errors import DeliveryTimeoutError, SpoolCorruptError, SpoolError, SpoolWriteError
from kafkasafe.logs import EventLog
from kafkasafe.spool.refusals import counted


def not_durable(undurable: Iterable[Parcel], disk_trouble: str, elsewhere: Elsewhere | None) -> SpoolError:
    """Returns the error for accepted records that are not durable, or whose lane was deleted after they became durable.

    Args:
        undurable: The parcels that are not durable.
        disk_trouble: Why the batches are not durable; empty while the disk works.
        elsewhere: Where the producer's own lane is, if it is not in its place.
    """
    records = sum(parcel.count for parcel in undurable)
    why = f" ({disk_trouble})" if disk_trouble else ""
    accepted = f"{counted(records, 'record')} {'was' if records == 1 else 'were'} accepted and not durable"
    safe = "Everything that durable() or get() confirmed is safe"
    if elsewhere is None or (elsewhere.at is None and not elsewhere.records):
        return SpoolWriteError(
            f"{accepted} when the producer ended{why}. {'It is' if records == 1 else 'They are'} lost, unless the"
            f" cluster has {'it' if records == 1 else 'them'}. {safe}"
        )
    if elsewhere.at is not None:
        return SpoolWriteError(
            f"{accepted} when the producer ended{why}. The written records are in {elsewhere}, where the next"
            f" producer does not look: move the directory to {elsewhere.path}, or deliver its records with"
            f" kafkasafe spool drain. {safe}"
        )
    return SpoolCorruptError(
        f"{elsewhere.path} was deleted while its producer worked, and could not be created again{why}:"
        f" {counted(elsewhere.records, 'record')} that waited there"
        f" {'is' if elsewhere.records == 1 else 'are'} lost with this producer, unless the cluster has"
        f" {'it' if elsewhere.records == 1 else 'them'}" + (f"; and {accepted}" if records else ""),
        damage=(f"{elsewhere.path}: deleted",),
    )


def lost_from_memory(
    undurable: Iterable[Parcel], error: BaseException, *, final: bool, log: EventLog
) -> DeliveryTimeoutError:
    """For `spool="never"`: log and return the error for records without an acknowledgement.

    Args:
        undurable: The parcels that are not durable.
        error: The error that ended the producer.
        final: Whether an error ended the producer, and not `close`.
        log: The engine's log.
    """
    parts = [leaf for parcel in undurable for leaf in leaves(parcel) if not leaf.durable]
    records = sum(leaf.count for leaf in parts)
    why = f"it ended by an error ({error!r})" if final else "it was closed"
    message = (
        f"{counted(records, 'record')} had not been acknowledged when {why}. With spool='never' no other copy exists:"
        " the records are lost, unless the cluster has them and only its answer is missing. If a program sends the"
        " records again, the cluster may have them twice"
    )
    if records:
        log.error("%s", message, records=records, event="records_lost")
    return DeliveryTimeoutError(message)


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A lane that was not in its place when its producer ended.

    Attributes:
        path: Where the lane belongs.
        at: Where the lane is; None if it was deleted.
        records: Number of records that waited in the lane.
    """

    path: Path
    at: Path | None
    records: int

    def __str__(self) -> str:
        return f"{self.path}, which was deleted" if self.at is None else str(self.at)


@dataclass(frozen=True, slots=True)
class LeftAtEnd:
    """See the module.

    Attributes:
        records: Number of pending records on disk, by spool directory.
        elsewhere: Where the producer's own lane is, if it is not in its place.
        doubted: Partitions for which the engine has not found out whether their logs have all acknowledged records.
    """

    records: Mapping[Path, int] = field(default_factory=dict)
    elsewhere: Elsewhere | None = None
    doubted: Sequence[tuple[str, int]] = ()
