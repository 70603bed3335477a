"""Decides from a snapshot of the state whether a producer can accept records, and whether a consumer reads.

A producer is *ready* while it can accept records. A producer stays ready in an outage of the brokers, because records
then wait on disk. A problem that needs attention but does not prevent accepting records is a warning.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kafkasafe.limits.capacity import Capacity

DISK_STUCK_S: Final = 10.0
"""If one write takes longer than this many seconds, the disk counts as unusable."""
_NAMED: Final = 3
"""A sentence names at most this many topics or partitions."""


@dataclass(frozen=True, slots=True)
class HealthReason:
    """One reason why a client is not healthy.

    Attributes:
        name: A name for programs, such as "spool_full"; docs/operations.md lists the names.
        text: Human-readable text.
    """

    name: str
    text: str

    def __str__(self) -> str:
        return f"{self.name}: {self.text}"


@dataclass(frozen=True, slots=True)
class ProducerHealth:
    """The health of a producer at one moment.

    Attributes:
        ready: Whether the producer can accept records now. `ready` stays True in an outage of the brokers while the
            spool has room. Suitable for a readiness probe.
        reasons: Why the client is not ready; empty if it is ready.
        warnings: Problems that need attention, but do not prevent the producer from accepting records of other topics.
        alive: False if the producer was closed, or ended by an error: only a new producer can accept records. Suitable
            for a liveness probe.
        connected: Whether the cluster answers.
        network_error: Why no broker can be used; None if the reason is unknown or a broker can be used.
        waiting_records: Number of records without an outcome, which are in the spool or, with `spool="never"`, in
            memory.
        oldest_record_age_s: Number of seconds for which the oldest waiting record has waited; 0 if none waits.
        undecidable_batches: Number of batches that wait for `resolve_undecidable`.
        spool_bytes: Number of bytes that count against `spool_max_bytes`.
        spool_max_bytes: The producer's option.
        room_bytes: Number of bytes of records that the producer can accept before `spool_max_bytes` or the volume is
            full.
    """

    ready: bool
    reasons: tuple[HealthReason, ...]
    warnings: tuple[HealthReason, ...]
    alive: bool
    connected: bool
    network_error: str | None
    waiting_records: int
    oldest_record_age_s: float
    undecidable_batches: int
    spool_bytes: int
    spool_max_bytes: int
    room_bytes: int

    def as_dict(self) -> dict[str, Any]:
        """Returns the fields as plain values, for JSON."""
        return _plain(self)


@dataclass(frozen=True, slots=True)
class ProducerSeen:
    """A snapshot of a producer.

    Attributes:
        closed: Why the producer no longer accepts records; empty while it is open.
        forked: Whether this process is a forked child that inherited the producer. The producer belongs to the parent
            process, and cannot be used in the child.
        failure: The error that ended the producer; empty if none did.
        wrong_cluster: Evidence that the brokers that answer belong to the wrong cluster; empty if there is none.
        undecidable: The evidence about each batch that waits for a decision.
        disk_trouble: Why the producer cannot make records durable on its disk at the moment; empty if it can.
        disk_full: Whether the disk trouble is a lack of space.
        displaced: Whether the disk trouble is that the spool's path leads to another directory.
        undurable_s: Number of seconds for which the oldest record has waited for the disk.
        disk_patience_s: Maximum number of seconds for which a record may wait for the disk.
        needed_bytes: Number of bytes that the next batch may need, in addition to those of the open batches.
        in_memory: Whether the spool has no files.
        spool_bytes: Number of bytes that count against `spool_max_bytes`.
        spool_max_bytes: The producer's option.
        callbacks_behind: Whether `send` waits for callbacks of earlier records.
        blocked: Topics and partitions for which the cluster accepts nothing at present, with the reason.
        damaged: Partitions whose next batch is damaged on disk.
        losses: Number of errors about lost records. No call has raised these errors yet; the next calls will.
        connected: Whether the cluster answers.
        network_error: Why the cluster does not answer; None if no error is known.
        waiting_records: Number of records without an outcome.
        oldest_s: Number of seconds for which the oldest waiting record has waited.
    """

    closed: str
    forked: bool
    failure: str
    wrong_cluster: str
    undecidable: Sequence[str]
    disk_trouble: str
    disk_full: bool
    displaced: bool
    undurable_s: float
    disk_patience_s: float
    capacity: Capacity
    needed_bytes: int
    in_memory: bool
    spool_bytes: int
    spool_max_bytes: int
    callbacks_behind: bool
    blocked: Sequence[str]
    damaged: Sequence[str]
    losses: int
    connected: bool
    network_error: str | None
    waiting_records: int
    oldest_s: float


def producer_health(seen: ProducerSeen) -> ProducerHealth:
    """The health of a producer that was opened."""
    ended = _reasons(_ENDS, seen)
    # For an ended producer, report only why it ended: it no longer checks its disk and its cluster.
    reasons = ended or _reasons(_STOPS, seen)
    return ProducerHealth(
        ready=not reasons,
        reasons=reasons,
        warnings=() if ended else _reasons(_WARNINGS, seen),
        alive=not ended,
        connected=seen.connected and not ended,
        network_error=seen.network_error,
        waiting_records=seen.waiting_records,
        oldest_record_age_s=max(0.0, seen.oldest_s),
        undecidable_batches=len(seen.undecidable),
        spool_bytes=seen.spool_bytes,
        spool_max_bytes=seen.spool_max_bytes,
        room_bytes=0 if ended else seen.capacity.room_bytes,
    )


def unopened_producer(*, closed: bool) -> ProducerHealth:
    """The health of a producer that was not started."""
    reason = (
        HealthReason("closed", "The producer is closed")
        if closed
        else HealthReason("not_started", "The producer is not started yet")
    )
    return ProducerHealth(
        ready=False,
        reasons=(reason,),
        warnings=(),
        alive=not closed,
        connected=False,
        network_error=None,
        waiting_records=0,
        oldest_record_age_s=0.0,
        undecidable_batches=0,
        spool_bytes=0,
        spool_max_bytes=0,
        room_bytes=0,
    )


# -- the rules: name of the reason → a function that returns its text, or an empty text if it does not apply ----------

_Rules = Mapping[str, Callable[[ProducerSeen], str]]


def _reasons(rules: _Rules, seen: ProducerSeen) -> tuple[HealthReason, ...]:
    found = ((name, text(seen)) for name, text in rules.items())
    return tuple(HealthReason(name, words) for name, words in found if words)


def _undecidable(seen: ProducerSeen) -> str:
    if not seen.undecidable:
        return ""
    return (
        f"Whether {_counted(len(seen.undecidable), 'batch', 'batches')} reached the log cannot be determined"
        f" ({_some(seen.undecidable)}). send() raises UndecidableError until resolve_undecidable() decides"
    )


def _spool_full(seen: ProducerSeen) -> str:
    if seen.needed_bytes <= seen.capacity.spool_left:
        return ""
    where = "memory" if seen.in_memory else "the spool"
    return (
        f"The records in {where} take {seen.spool_bytes:,} bytes and spool_max_bytes is {seen.spool_max_bytes:,}:"
        f" there is no room for the next batch of up to {seen.needed_bytes:,} bytes"
    )


def _volume_full(seen: ProducerSeen) -> str:
    if seen.disk_trouble:
        return seen.disk_trouble if seen.disk_full and not seen.displaced else ""
    if seen.needed_bytes <= seen.capacity.volume_left:
        return ""
    return f"The volume of the spool has {seen.capacity.free_bytes:,.0f} bytes left"


def _disk_failed(seen: ProducerSeen) -> str:
    return "" if seen.disk_full or seen.displaced else seen.disk_trouble


def _displaced(seen: ProducerSeen) -> str:
    if not seen.displaced:
        return ""
    return seen.disk_trouble or "The spool is not where its path leads"


def _disk_stuck(seen: ProducerSeen) -> str:
    if seen.in_memory or seen.disk_trouble or seen.undurable_s < seen.disk_patience_s:
        return ""
    return f"Records have waited {seen.undurable_s:.0f} s for the disk"


def _callbacks_behind(seen: ProducerSeen) -> str:
    return "send() waits until callbacks of earlier records have run" if seen.callbacks_behind else ""


_ENDS: Final[_Rules] = {
    "forked": lambda seen: seen.closed if seen.forked else "",
    "closed": lambda seen: "" if seen.forked else seen.closed,
    "failed": lambda seen: "" if seen.closed else seen.failure,
}
_STOPS: Final[_Rules] = {
    "wrong_cluster": lambda seen: seen.wrong_cluster,
    "undecidable": _undecidable,
    "spool_displaced": _displaced,
    "volume_full": _volume_full,
    "disk_failed": _disk_failed,
    "disk_stuck": _disk_stuck,
    "spool_full": _spool_full,
    "callbacks_behind": _callbacks_behind,
}
_WARNINGS: Final[_Rules] = {
    # A loss does not make the producer unready: the next send() raises the error once, and later calls succeed. An
    # unready producer might get no traffic, and then no call would ever raise the error.
    "data_loss": lambda seen: (
        f"The next calls raise {_counted(seen.losses, 'error')} about lost records, once each"
        if seen.losses
        else ""
    ),
    "blocked": lambda seen: f"The cluster blocks {_some(seen.blocked)}" if seen.blocked else "",
    "damaged": lambda seen: (
        f"The next batch of {_some(seen.damaged)} is damaged on disk, and its records wait"
        if seen.damaged
        else ""
    ),
}


# -- consumers ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ConsumerHealth:
    """The health of a consumer at one moment.

    Attributes:
        ready: True if the program polls, and no partition needs a decision of the program. It does not matter whether
            brokers answer.
        reasons: Why the client is not ready; empty if it is ready.
        connected: Whether a connection to a broker is open.
        last_poll_age_s: Seconds since the program's last poll; 0 during a poll; None before the first one.
        stopped_partitions: (topic, partition) of each partition that `poll` does not read until the program seeks.
    """

    ready: bool
    reasons: tuple[HealthReason, ...]
    connected: bool
    last_poll_age_s: float | None
    stopped_partitions: tuple[tuple[str, int], ...]

    def as_dict(self) -> dict[str, Any]:
        """Returns the fields as plain values, for JSON."""
        return _plain(self)


@dataclass(frozen=True, slots=True)
class ConsumerSeen:
    """A snapshot of a consumer.

    Attributes:
        closed: Whether `close` was called.
        connected: Whether a connection to a broker is open.
        last_poll_age_s: Seconds since the program's last poll; 0 during a poll; None before the first one.
        max_poll_interval_s: Maximum permitted number of seconds between two polls.
        stopped: Each partition that is not read, and why.
    """

    closed: bool
    connected: bool
    last_poll_age_s: float | None
    max_poll_interval_s: float
    stopped: Mapping[tuple[str, int], str]


def consumer_health(seen: ConsumerSeen) -> ConsumerHealth:
    """The health of a consumer."""
    reasons: list[HealthReason] = []
    if seen.closed:
        reasons.append(HealthReason("closed", "The consumer is closed"))
    age = seen.last_poll_age_s
    if age is not None and age > seen.max_poll_interval_s and not seen.closed:
        limit = f"max_poll_interval_ms allows {seen.max_poll_interval_s:.0f} s"
        text = f"The program has not polled for {age:.0f} s; {limit}"
        reasons.append(HealthReason("poll_overdue", text))
    if seen.stopped and not seen.closed:
        named = [f"{topic}-{partition}: {why}" for (topic, partition), why in seen.stopped.items()]
        reasons.append(
            HealthReason("partitions_stopped", f"{_some(named)}. poll() raises it until the program seeks")
        )
    return ConsumerHealth(
        ready=not reasons,
        reasons=tuple(reasons),
        connected=seen.connected and not seen.closed,
        last_poll_age_s=age,
        stopped_partitions=tuple(seen.stopped),
    )


def unopened_consumer(*, closed: bool) -> ConsumerHealth:
    """The health of a consumer that was not started."""
    reason = (
        HealthReason("closed", "The consumer is closed")
        if closed
        else HealthReason("not_started", "The consumer is not started yet")
    )
    return ConsumerHealth(
        ready=False, reasons=(reason,), connected=False, last_poll_age_s=None, stopped_partitions=()
    )


def _plain(health: ProducerHealth | ConsumerHealth) -> dict[str, Any]:
    return dataclasses.asdict(health)


def _counted(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or f'{one}s'}"


def _some(texts: Sequence[str]) -> str:
    more = f"; and {len(texts) - _NAMED} more" if len(texts) > _NAMED else ""
    return "; ".join(texts[:_NAMED]) + more
