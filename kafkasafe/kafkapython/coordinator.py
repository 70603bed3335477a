"""kafka-python's group coordinator, with fixes for joins. Adds to each committed offset the history of the records
before it.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Collection, Mapping
from typing import Any

import kafka.errors as kafka_errors
from kafka.coordinator.assignors.abstract import RebalanceProtocol
from kafka.coordinator.consumer import ConsumerCoordinator
from kafka.future import Future
from kafka.structs import MemberState, OffsetAndMetadata, TopicPartition

from kafkasafe.kafkapython.owner import Owner
from kafkasafe.kafkapython.subscription import Subscription


class Coordinator(ConsumerCoordinator):
    """kafka-python's coordinator, which adds a lineage to each committed offset: the history of the records before it.

    This class also fixes faults of kafka-python 3.0.12, which discards or forgets joins (`join_group_async`,
    `need_rejoin`), ends `poll` after a failed look-up of the coordinator, repeats look-ups without a pause, and uses
    committed offsets and positions of an earlier generation.
    """

    owner: Owner
    config: dict[str, Any]
    _asked_in: Any = None
    """The generation in which the consumer last requested the group's offsets."""
    _joining: Future | None = None
    """Set while the group's offsets are requested, before an assignment is applied. The Future completes at the end of
    the request.
    """
    _looked_up_s: float = -math.inf
    """Monotonic time at which the last look-up of the coordinator ended."""

    def serve(self, owner: Owner) -> None:
        """From now on, ask `owner` for decisions."""
        self.owner = owner

    def need_rejoin(self) -> bool:
        """Return whether to join, or to continue a join (like `AbstractCoordinator.rejoinNeededOrPending` in Java).

        When the subscribed topics get more partitions, the leader of the group has to rejoin, and assigns the new
        partitions during the join. kafka-python then considers the join as unnecessary, and leaves it unfinished. The
        group's leader would never get partitions or send heartbeats again.
        """
        parent: Any = super()
        me: Any = self
        is_joining = me.rejoining or self._joining is not None
        return bool(parent.need_rejoin() or (is_joining and me._subscription.partitions_auto_assigned()))

    def generation_if_stable(self) -> Any:
        """Return the generation for a commit; None before the member's assignment in this generation is applied,
        because the consumer may still have positions in partitions that now belong to another member.
        """
        parent: Any = super()
        return parent.generation_if_stable() if self._joining is None else None

    def rebalance_in_progress(self) -> bool:
        """Return whether a commit failed only because of a rebalance."""
        parent: Any = super()
        return self._joining is not None or bool(parent.rebalance_in_progress())

    async def join_group_async(self, timeout_ms: float | None = None) -> bool:
        """Join the group, even if the response to the join request came between two polls.

        kafka-python discards a response that comes between two polls, and joins again, which causes another rebalance
        of the whole group. So a group whose members poll in turns, or rarely and briefly, would never finish joining.

        If Ctrl-C ended an earlier poll before the assignment was applied, wait for the assignment.
        """
        parent: Any = super()
        # kafka-python has no type annotations.
        me: Any = self
        if self._joining is not None:
            began = time.monotonic()
            try:
                await me._manager.wait_for(self._joining, timeout_ms)
            except kafka_errors.KafkaTimeoutError:
                return False
            if timeout_ms is not None:
                timeout_ms = max(0.0, timeout_ms - (time.monotonic() - began) * 1000)
        task = me._join_task
        if task is not None and task.succeeded() and me.state is MemberState.REBALANCING:
            me._join_task = None
            with me._lock:
                me.rejoining = me.rejoin_needed = False
                me.state = MemberState.STABLE
                me._enable_heartbeat()
            made = me._generation
            await me._on_join_complete_async(made.generation_id, made.member_id, made.protocol, task.value)
        return bool(await parent.join_group_async(timeout_ms=timeout_ms))

    async def _on_join_complete_async(
        self, generation: int, member_id: str, protocol: str, member_assignment_bytes: Any
    ) -> None:
        """Apply an assignment. If the consumer missed a generation, first find the partitions that other members have
        read meanwhile.

        1. The consumer has read a partition up to 50. In the next generation, the group assigns the partition to
           another member.
        2. The consumer does not get its own assignment in the next generation, because the answer to SyncGroup is lost.
        3. The other member reads up to 100, commits this offset, and leaves.
        4. In the third generation, the consumer gets the partition back. kafka-python does not notice the loss of the
           partition: the consumer would read 50 to 99 again, and the next commit would set the group's offset back.

        With the cooperative protocol, a partition goes to another member only after its former member has given it up.

        If Ctrl-C ends the poll while the group's offsets are requested, this method continues on the I/O thread. Until
        the assignment is applied, the consumer does not use its former positions for reading or commits (`_joining`).
        """
        parent: Any = super()
        me: Any = self
        is_eager = me._rebalance_protocol is RebalanceProtocol.EAGER
        if me._subscription.joined(generation) and is_eager:
            joining = self._joining = Future()
            try:
                await self._renew_overtaken()
            finally:
                if self._joining is joining:  # a poll after Ctrl-C may have replaced it
                    self._joining = None
                joining.success(None)
        await parent._on_join_complete_async(generation, member_id, protocol, member_assignment_bytes)

    async def _renew_overtaken(self) -> None:
        """Move the position of a partition to the group's offset if the group's offset is larger."""
        me: Any = self
        subscription: Subscription = me._subscription
        placed = {tp: state for tp, state in subscription.states().items() if state.position is not None}
        if not placed:
            return
        try:
            committed = await self.fetch_committed_offsets_async(
                set(placed), timeout_ms=self.config["request_timeout_ms"]
            )
        except kafka_errors.KafkaError:
            # Treat all partitions as newly assigned, so that the next poll asks for their committed offsets again.
            committed = None
        for tp, state in placed.items():
            position = state.position
            if position is None or (
                committed is not None and (tp not in committed or committed[tp].offset <= position.offset)
            ):
                continue
            subscription.renew(tp, state)

    async def ensure_coordinator_ready_async(self, timeout_ms: float | None = None) -> bool:
        """Find the coordinator. If the look-up fails, and the metadata request after it fails too, try again.
        kafka-python would raise the error in `poll`.
        """
        parent: Any = super()
        me: Any = self
        deadline = math.inf if timeout_ms is None else time.monotonic() + timeout_ms / 1000
        while True:
            left_s = max(0.0, deadline - time.monotonic())
            try:
                return bool(
                    await parent.ensure_coordinator_ready_async(
                        timeout_ms=None if timeout_ms is None else left_s * 1000
                    )
                )
            except kafka_errors.InvalidMetadataError as error:
                self.owner.reports.log.limited(
                    logging.INFO,
                    "no_coordinator",
                    "",
                    "The group coordinator is not available yet: %r",
                    error,
                    error=type(error).__name__,
                )
            if time.monotonic() >= deadline:
                return False
            await me._net.sleep(self.config["retry_backoff_ms"] / 1000)

    async def _send_group_coordinator_request(self) -> Any:
        """Look up the coordinator, at the earliest `retry_backoff_ms` after the last look-up.

        After the coordinator has died, the cluster names it as the coordinator until its session ends. Each look-up
        succeeds, but the coordinator cannot be reached, so kafka-python looks it up again without a pause.
        """
        parent: Any = super()
        me: Any = self
        pause_s = self._looked_up_s + self.config["retry_backoff_ms"] / 1000 - time.monotonic()
        if pause_s > 0:
            await me._net.sleep(pause_s)
        try:
            return await parent._send_group_coordinator_request()
        finally:
            self._looked_up_s = time.monotonic()

    async def fetch_committed_offsets_async(
        self, partitions: Collection[TopicPartition], timeout_ms: float | None = None
    ) -> Any:
        """Fetch committed offsets. At the beginning of a new generation, discard the answers that kafka-python has kept
        from earlier requests.

        1. The consumer requests the offset of a partition. The answer (offset 10) arrives after the time-out, and
           kafka-python keeps it.
        2. Another member gets the partition, reads the records 10 to 19, and commits 20.
        3. The consumer gets the partition back. kafka-python would use the kept answer and read the records 10 to 19
           again.
        """
        parent: Any = super()
        me: Any = self
        if me._generation is not self._asked_in:
            self._asked_in = me._generation
            me._offset_fetch_futures.clear()
        return await parent.fetch_committed_offsets_async(partitions, timeout_ms)

    def _do_commit_offsets_async(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], callback: Any = None
    ) -> Future:
        """Send a commit from the I/O thread. kafka-python would send the commit from the caller's thread, and add
        callbacks to a future there. Ctrl-C on the caller's thread may leave the future's lock locked, and the I/O
        thread would wait for ever.

        A rebalance listener already runs on the I/O thread. There the request has to come before the join that follows
        the listener, because a commit during a join fails.
        """
        if not all(isinstance(tp, TopicPartition) for tp in offsets) or not all(
            isinstance(each, OffsetAndMetadata) for each in offsets.values()
        ):
            raise TypeError("offsets must be dict[TopicPartition, OffsetAndMetadata]")
        parent: Any = super()
        me: Any = self
        if me._net.runs_here:
            future: Future = parent._do_commit_offsets_async(offsets, callback)
            return future
        done = Future()

        def send() -> None:
            parent._do_commit_offsets_async(offsets, callback).chain(done)

        me._manager.call_soon(send)
        return done

    async def _send_offset_commit_request(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> Any:
        parent: Any = super()
        described = self.owner.commits.described(offsets)
        try:
            return await parent._send_offset_commit_request(described)
        except kafka_errors.OffsetMetadataTooLargeError:
            if described == dict(offsets):
                raise
            # Without the records' history, the request contains only the application's metadata, which may be too
            # large, too.
            sent = await parent._send_offset_commit_request(offsets)
            self.owner.reports.log.warning(
                "The brokers' offset.metadata.max.bytes is below 2048, so committed offsets cannot carry the history of"
                " the records read",
                event="lineage_not_kept",
            )
            self.owner.commits.stop_describing()
            return sent
