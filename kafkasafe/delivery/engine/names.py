"""Reports transactional ids and groups that the cluster refuses, in the same way as refused topics."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Final

from kafkasafe import events
from kafkasafe import units as u
from kafkasafe.codes.numbers import TOPIC_AUTHORIZATION_FAILED
from kafkasafe.codes.sets import DESTINATION_CODES, MISSING_CODES, REFUSED_NAME_CODES
from kafkasafe.codes.verdicts import classify_code
from kafkasafe.delivery.engine.context import EngineContext
from kafkasafe.delivery.engine.lane import Lane
from kafkasafe.delivery.engine.refused_name import RefusedName
from kafkasafe.journal.refusal import CONFIRMED_S
from kafkasafe.spool.refusals import RefusedDestination, counted

_MISSING_GRACE_S: Final = 10.0
"""Seconds for which a topic may be missing without a report: a broker that has just started knows no topics."""


class RefusedNames:
    """Reports the transactional ids and groups that the cluster refuses."""

    def __init__(self, context: EngineContext) -> None:
        self._context = context

    def failed(self, lane: Lane, action: u.Request, code: int | None, reason: str) -> bool:
        """Note a request that failed or got no answer.

        Returns:
            True if the cluster refuses to commit an offset because of its topic or partition, and has done so for
            `blocked_timeout_s`. The offset belongs to a user's group, or is the marker of a transaction.
        """
        name, group = _name(lane, action)
        unreadable, destination = _of_marker(lane, action) if code == TOPIC_AUTHORIZATION_FAILED else ("", -1)
        name = unreadable or name
        found = lane.names.get(name)
        now = self._context.now()
        of_place = bool(unreadable) or (code in DESTINATION_CODES and _is_of_offsets(action))
        if code is None or not (code in REFUSED_NAME_CODES or of_place):
            if found is not None:
                found.begin_again(now)
            return False
        of = "" if _of_pool(lane, action) else action.tid.name
        if found is None or found.code != code:
            refused = RefusedName(code, reason, now, now, now, of, group, destination)
            lane.names.add(name, refused)
            return False
        found.repeat(now, reason)
        limit_s = self._context.config.blocked_timeout_s if of_place else None
        if not found.reported and now - found.since >= (
            _MISSING_GRACE_S if code in MISSING_CODES else CONFIRMED_S
        ):
            found.report()
            self._tell(lane, name, found, limit_s)
        return limit_s is not None and now - found.counted_from >= limit_s

    def _tell(self, lane: Lane, name: str, found: RefusedName, limit_s: float | None) -> None:
        records, code, reason = _records(found.waiting(lane.journal.units)), found.code, found.reason
        self._context.log.limited(
            logging.ERROR,
            "transactions_blocked",
            name,
            "%s: blocked by the cluster: %s. Pending records (%s) are delivered as soon as the cluster accepts"
            " the id%s. %s",
            name,
            reason,
            counted(records, "record"),
            "" if limit_s is None else f", and are rejected if it refuses for {limit_s:.0f} s",
            classify_code(code).explanation,
            lane=lane.name,
            code=code,
            records=records,
        )
        self._context.emit(events.TransactionsBlocked(name, code, reason, records))

    def accepted(self, lane: Lane, action: u.Request) -> None:
        """Note a request that was answered without an error."""
        if not lane.names or not isinstance(action, (u.InitProducerId, u.CommitOffsets)):
            return
        for name in (_name(lane, action)[0], _of_marker(lane, action)[0]):
            self._accepted(lane, name)

    def _accepted(self, lane: Lane, name: str) -> None:
        found = lane.names.accept(name)
        if found is None or not found.reported:
            return
        seconds = self._context.now() - found.since
        self._context.log.limited(
            logging.WARNING,
            "transactions_unblocked",
            name,
            "%s: the cluster accepts the id again, after %.0f s of error %d",
            name,
            seconds,
            found.code,
            lane=lane.name,
            code=found.code,
        )
        self._context.emit(events.TransactionsUnblocked(name, found.code, seconds))


def refused_names(lanes: Iterable[Lane], topic: str | None = None) -> Iterator[RefusedDestination]:
    """Yields the refused transactional ids and groups that make atomic batches wait. If `topic` is given, yields only
    names that make records of this topic wait. Any thread may call this function.
    """
    for lane in lanes:
        for name, found in lane.names.items():
            units = found.waiting(lane.journal.units)
            if units and (topic is None or any(topic in _topics(lane, unit) for unit in units)):
                batches = sum(len(unit.batches) for unit in units)
                yield RefusedDestination(
                    name,
                    -1,
                    found.code,
                    found.reason,
                    found.since,
                    batches,
                    _records(units),
                    found.reported,
                    whole=False,
                )


def _of_pool(lane: Lane, action: u.Request) -> bool:
    return lane.journal.units.ids.is_own(action.tid.name)


def _is_of_offsets(action: u.Request) -> bool:
    """True if a request commits a user's offsets. Also true for the marker of a transaction without batches, because
    this marker is a committed offset for a partition of the user's offsets.
    """
    return isinstance(action, u.CommitOffsets) and (action.index >= 0 or not action.transaction.batches)


def _of_marker(lane: Lane, action: u.Request) -> tuple[str, int]:
    """Returns the permission that the marker of an atomic batch needs, such as "READ on orders", and the marker's
    destination; ("", -1) if the request writes no marker.

    The marker is a committed offset for the partition of the first records. To commit an offset, the principal needs
    READ permission on the topic. To write records, the principal does not need this permission.
    """
    if not isinstance(action, u.CommitOffsets) or action.index >= 0 or not action.transaction.batches:
        return "", -1
    destination = action.transaction.batches[0].destination
    return f"READ on {lane.journal.views.address(destination)[0]}", destination


def _name(lane: Lane, action: u.Request) -> tuple[str, str]:
    """Returns (text, group). `text` names the refused id or group, such as "group orders"; all transactional ids of the
    lane's own pool share one text. `group` is the name of the refused group if it is a user's group, otherwise "".
    """
    if isinstance(action, u.CommitOffsets) and action.index >= 0:
        group = action.transaction.offsets[action.index].group
        return f"group {group}", group
    kind = "group" if isinstance(action, u.CommitOffsets) else "transactional id"
    name = action.tid.name
    if _of_pool(lane, action):
        return f"{kind} {name.rpartition('-')[0]}-*", ""
    return f"{kind} kafkasafe-marker-{name}" if kind == "group" else f"{kind} {name}", ""


def topics_beside(lanes: Iterable[Lane], topic: str) -> set[str]:
    """`topic`, and all topics that have records in the same unfinished atomic batch as `topic`. Any thread may call
    this function.
    """
    beside = {topic}
    for lane in lanes:
        for unit in lane.journal.units.unfinished:
            topics = _topics(lane, unit)
            if topic in topics:
                beside |= topics
    return beside


def _topics(lane: Lane, unit: u.Unit) -> set[str]:
    return {lane.journal.views.address(batch.destination)[0] for batch in list(unit.batches)}


def _records(units: Iterable[u.Unit]) -> int:
    return sum(batch.count for unit in units for batch in list(unit.batches))
