"""Creates the objects that make one consumer's decisions, and passes each object the objects that it needs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from kafka.structs import TopicPartition

from kafkasafe._consuming.commits import Commits
from kafkasafe._consuming.connections import Connections
from kafkasafe._consuming.followers import Followers
from kafkasafe._consuming.lineage_file import LineageMemory
from kafkasafe._consuming.log_checks import LogChecks, ignore
from kafkasafe._consuming.look_ups import OffsetLookUps
from kafkasafe._consuming.moves import Moves
from kafkasafe._consuming.parts import AssignedPartitions
from kafkasafe._consuming.pauses import Pauses
from kafkasafe._consuming.ports import Port
from kafkasafe._consuming.positions import Positions
from kafkasafe._consuming.reports import Reports
from kafkasafe._consuming.rereading import Rereading
from kafkasafe._consuming.responses import Responses
from kafkasafe._consuming.results import Results
from kafkasafe._consuming.status import Polls, Status
from kafkasafe.cluster.inquiry import ProcedureRunner
from kafkasafe.cluster.lookups import LookUps
from kafkasafe.config import ConsumerConfig
from kafkasafe.offsets import EndOffsetTracker
from kafkasafe.process.locks import new_lock

_DECIDED_S: Final = 0.1
"""While a partition waits for an atomic batch, the consumer checks at this interval, in seconds, whether the batch is
decided.
"""


class ConsumerObjects:
    """Creates one consumer's decision objects, for `SafeConsumer` and our subclasses of kafka-python's fetcher and
    coordinator.

    Only the polling thread uses these objects, except for objects and methods whose docstrings permit other threads.

    Args:
        seek: `SafeConsumer.seek`, for the option `on_divergence`.
        rewound: Called when a partition's position moves back. The called function must discard the records that were
            fetched before the call.
    """

    def __init__(
        self,
        *,
        safe: ConsumerConfig,
        config: Mapping[str, Any],
        port: Port,
        tracker: EndOffsetTracker,
        memory: LineageMemory,
        reports: Reports,
        seek: Callable[[TopicPartition, int], None],
        rewound: Callable[[], None],
        is_closed: Callable[[], bool],
    ) -> None:
        client_id, group_id = str(config["client_id"]), config["group_id"]
        assignments, group, metadata = port.assignments, port.group, port.metadata
        self.assignments = assignments
        self.reports = reports
        self.polls = Polls()
        self.runner = ProcedureRunner(port.wake)
        self.followers: Followers[TopicPartition] = Followers(config["fetch_max_wait_ms"] / 1000, new_lock())
        self._has_rack = bool(config["client_rack"])
        # Do not pass on the broker version that kafka-python detected: brokers may be upgraded while this consumer
        # runs.
        options = {**config, "api_version": safe.kafka.get("api_version")}
        self.connections = Connections(options, is_closed, metadata.may_create)
        lookups = LookUps(
            self.connections.network,
            tracker,
            reports.stats,
            reports.emit,
            int(port.isolation == "read_committed"),
            ignore,
        )
        self.look_ups = OffsetLookUps(
            lookups, tracker, safe.offsets_path, client_id, config["request_timeout_ms"], reports
        )
        checks = LogChecks(
            network=self.connections.network,
            lookups=lookups,
            metadata=metadata,
            reports=reports,
            tracker=tracker,
            hold_timeout_s=safe.offsets_hold_timeout_s,
            isolation=port.isolation,
        )
        self.parts = AssignedPartitions(assignments, memory)
        self.commits = Commits(assignments, metadata, self.parts)
        self.rereading = Rereading(
            assignments, group, self.parts, self.commits, reports.emit, rewound, config["request_timeout_ms"]
        )
        moves = Moves(assignments, metadata, self.runner, checks)
        pauses = Pauses(moves, reports, safe.remote_storage_timeout_s)
        self.positions = Positions(
            assignments, group, metadata, self.parts, moves, self.rereading, has_group=group_id is not None
        )
        self.responses = Responses(metadata, self.parts, moves, pauses, self.followers)
        self.results = Results(
            assignments=assignments,
            metadata=metadata,
            runner=self.runner,
            parts=self.parts,
            moves=moves,
            pauses=pauses,
            positions=self.positions,
            rereading=self.rereading,
            reports=reports,
            policy=safe.on_divergence,
            seek=seek,
        )
        self.status = Status(
            assignments=assignments,
            metadata=metadata,
            isolation=port.isolation,
            parts=self.parts,
            polls=self.polls,
            tracker=tracker,
            reports=reports,
            group_id=group_id,
            # The time between polls is limited only for members of a group.
            max_poll_interval_s=float("inf") if group_id is None else config["max_poll_interval_ms"] / 1000,
        )

    def due_s(self) -> float | None:
        """Return the seconds until the consumer has work: the pause of a partition or of a procedure ends, a follower's
        answer is overdue, or the consumer must check again whether an atomic batch is decided. Return None without such
        work.
        """
        now = time.monotonic()
        untils = [part.failures.rest_until for part in self.parts.values()]
        limits = [until - now for until in untils if until > now]
        if (due_s := self.runner.due_s()) is not None:
            limits.append(due_s)
        if self._has_rack:
            limits.append(self.followers.due_s(now))
        if self.rereading.holds:
            limits.append(_DECIDED_S)
        return min(limits, default=None)
