"""The connection to one broker: opens and closes it, and keeps the requests that wait for it or are in flight.

Other modules decide which broker gets a request.
"""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable
from typing import Any, Final

import kafka.errors as kafka_errors

from kafkasafe.cluster.api import Failure
from kafkasafe.cluster.backoff import Backoff
from kafkasafe.cluster.client.calls import Call, PartitionQuestion, QuestionCall, QuestionsCall, Wanted
from kafkasafe.cluster.coordinators import metadata_question
from kafkasafe.cluster.network import Connection, Network
from kafkasafe.cluster.pin import ClusterPin
from kafkasafe.cluster.terms import SILENCE_S, NodeId, TopicPartition

_MAX_QUESTIONS: Final = 500  # in one request

_PAUSE_POLL_S: Final = 0.02


class BrokerLink:
    """The connection to one broker, the requests that wait for it, and its back-off.

    Invariant: while `waiting` is not empty, a timer or the end of the connection will call `pump` or `drop`.

    Args:
        want_metadata: Called when the connection is lost or cannot be made.
        watch_silence: Called each time a request has been written and awaits its answer.
    """

    __slots__ = (
        "_backoff", "_network", "_pin", "_want_metadata", "_watch_silence", "conn", "failures", "gathered",
        "identifying", "in_flight", "node_id", "not_before", "ready_once", "suspect_until", "timer", "timer_at",
        "waiting", "watch", "watch_at",
    )  # fmt: skip

    def __init__(
        self,
        node_id: NodeId,
        network: Network,
        pin: ClusterPin,
        backoff: Backoff,
        *,
        want_metadata: Callable[[], None],
        watch_silence: Callable[[], None],
    ) -> None:
        self.node_id = node_id
        self._network = network
        self._pin = pin
        self._backoff = backoff
        self._want_metadata = want_metadata
        self._watch_silence = watch_silence
        self.conn: Connection | None = None
        self.ready_once = False  # whether `conn` has been usable: connected, and to the right cluster
        self.identifying = False  # whether the request for the cluster id was written
        self.waiting: collections.deque[Call] = collections.deque()
        self.gathered: dict[Wanted, list[PartitionQuestion]] = {}  # in this turn of the loop
        self.in_flight: dict[Call, float] = {}  # in the order of writing, with the time when each was written
        self.failures = 0  # connection attempts that failed since the last success
        self.not_before = 0.0
        self.suspect_until = 0.0
        self.timer: Any = None
        self.timer_at = 0.0
        self.watch: Any = None
        self.watch_at = 0.0

    @property
    def ready(self) -> bool:
        """Whether a request would be written at once."""
        conn = self.conn
        return (
            conn is not None
            and conn.connected
            and self.ready_once
            and conn.resumes_at is None
            and not self.waiting
        )

    def alive(self, now: float) -> bool:
        """Whether the connection is usable, and the broker is not suspected to hang."""
        return self.usable and self.suspect_until <= now

    @property
    def usable(self) -> bool:
        """Whether the link is connected to a broker of the right cluster."""
        conn = self.conn
        return conn is not None and conn.connected and self.ready_once

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.in_flight)

    def submit(self, call: Call) -> None:
        """Writes the request, or holds it until the connection accepts it."""
        self._collect()
        call.begin(self._network.now())
        self.waiting.append(call)
        self.pump()

    def gather(self, kind: Wanted, question: PartitionQuestion) -> None:
        """Keeps a question for `ask_gathered`, which sends the questions of each kind together."""
        self.gathered.setdefault(kind, []).append(question)

    def ask_gathered(self) -> None:
        """Sends the gathered questions, at the end of a turn of the event loop."""
        if self.gathered:
            self._collect()
            self.pump()

    def _collect(self) -> None:
        """Turns the gathered questions into requests, and queues them after the waiting requests."""
        if not self.gathered:
            return
        gathered, self.gathered = self.gathered, {}
        now = self._network.now()
        for kind, questions in gathered.items():
            # If one request names a partition twice, brokers return an error for this partition.
            calls: list[dict[TopicPartition, PartitionQuestion]] = [{}]
            for question in questions:
                if question.target in calls[-1] or len(calls[-1]) == _MAX_QUESTIONS:
                    calls.append({})
                calls[-1][question.target] = question
            for asked in calls:
                call = QuestionsCall(kind, asked, self._network.request_timeout_s)
                call.begin(now)
                self.waiting.append(call)

    def pump(self) -> None:
        now = self._network.now()
        while self.waiting:
            call = self.waiting[0]
            if call.deadline <= now:
                self.waiting.popleft()
                error = kafka_errors.KafkaTimeoutError(f"Node {self.node_id} was not ready in time")
                call.fail(error, sent=False)
                continue
            conn = self.conn
            if conn is None or conn.closed:
                if self.not_before > now:
                    self._arm(min(self.not_before, call.deadline))
                    return
                self._connect()
                continue
            if not conn.connected:
                self._arm(call.deadline)
                return
            resumes_at = conn.resumes_at
            if resumes_at is not None:
                # The broker throttles the connection, or the connection authenticates again. The pause is short, and
                # keeps the order of the requests.
                self._arm(min(max(resumes_at, now + _PAUSE_POLL_S), call.deadline))
                return
            if self._pin.pinned and not self.ready_once and (self.identifying or not call.identifies):
                self._identify(conn, now)
                self._arm(call.deadline)
                return
            self.waiting.popleft()
            self._write(conn, call, now)

    def _identify(self, conn: Connection, now: float) -> None:
        """Asks the broker for its cluster id, once per connection."""
        if self.identifying:
            return

        def answered(result: Any) -> None:
            if not isinstance(result, Failure) or conn is not self.conn or not conn.connected:
                return
            if isinstance(result.error, kafka_errors.UnsupportedVersionError):
                self._admit(conn)  # the broker is too old to report a cluster id or to accept batches
            else:
                self.hang_up(result.error)

        # A request without topics needs no permission, and does not change the known topics.
        question = metadata_question([], lambda response: response)
        timeout_s = self._network.request_timeout_s
        self._write(conn, QuestionCall(question, answered, timeout_s=timeout_s, identifies=True), now)

    def _admit(self, conn: Connection) -> None:
        """Notes that the broker of the connection belongs to the right cluster, and sends the waiting requests."""
        if conn is self.conn and not self.ready_once:
            self.ready_once = True
            self.failures = 0
            self.suspect_until = 0.0
            self._pin.admitted()
            self.pump()

    def _write(self, conn: Connection, call: Call, now: float) -> None:
        try:
            request = call.request(conn)
        except Exception as error:  # every caller must get an answer
            call.fail(error, sent=False)
            return
        if request is None:
            return

        def answered(response: Any) -> None:
            self.in_flight.pop(call, None)
            if call.identifies:
                stranger = self._pin.refusal(response.cluster_id)
                if stranger is not None:
                    call.fail(stranger, sent=True)
                    if conn is self.conn:
                        self.hang_up(stranger)
                    return
                self._admit(conn)
            call.succeed(response)

        def failed(error: BaseException, sent: bool) -> None:
            self.in_flight.pop(call, None)
            call.fail(error, sent=sent)

        self.in_flight[call] = now
        conn.send(request, call, answered, failed)
        if call in self.in_flight:
            self._watch(now + call.timeout_s)
            self.identifying = self.identifying or call.identifies
            self._watch_silence()

    def _watch(self, due: float) -> None:
        """Sets one timer for all requests in flight. The timer stays set when a request is answered."""
        if self.watch is not None:
            if self.watch_at <= due:
                return
            self._network.cancel(self.watch)
        self.watch_at = due
        self.watch = self._network.call_at(due, self._look_for_overdue)

    def _look_for_overdue(self) -> None:
        self.watch = None
        conn = self.conn
        if not self.in_flight or conn is None or conn.closed:
            return
        now, next_due = self._network.now(), float("inf")
        for call, began in self.in_flight.items():
            due = (call.written_at or max(began, conn.last_write)) + call.timeout_s
            if due <= now:
                what = "answer" if call.written_at else "take the request"
                conn.close(
                    kafka_errors.RequestTimedOutError(
                        f"Node {self.node_id} did not {what} within {call.timeout_s:.1f} s"
                    )
                )
                return
            next_due = min(next_due, due)
        self._watch(next_due)

    def _connect(self) -> None:
        try:
            conn = self._network.connect(self.node_id)
        except Exception as error:  # the broker no longer exists, or the options cannot work
            self._back_off()
            self._want_metadata()
            self.drop(error)
            return
        self.conn = conn
        self.ready_once = self.identifying = False
        conn.watch(lambda: self._on_ready(conn), lambda error: self._on_closed(conn, error))

    def _on_ready(self, conn: Connection) -> None:
        if not self._pin.pinned:
            self._admit(conn)
        elif conn is self.conn:
            self.pump()

    def _on_closed(self, conn: Connection, error: BaseException | None) -> None:
        if conn is not self.conn:
            return
        self.conn = None
        if not self.ready_once:
            self._back_off()
        elif error is not None:
            # Reconnect after only the shortest pause. Without a pause, a connection that breaks again and again would
            # cause a tight loop.
            self.not_before = self._network.now() + self._backoff.pause_s(1)
        if error is not None or not self.ready_once:
            self._want_metadata()
        self.drop(
            error or kafka_errors.KafkaConnectionError(f"The connection to node {self.node_id} was closed")
        )

    def _back_off(self) -> None:
        self.failures += 1
        self.not_before = self._network.now() + self._backoff.pause_s(self.failures)

    def drop(self, error: BaseException) -> None:
        """Fails all waiting requests, in order. On a new connection, waiting requests would overtake requests that were
        lost with the old connection.
        """
        self._collect()
        waiting, self.waiting = self.waiting, collections.deque()
        for call in waiting:
            call.fail(error, sent=False)

    def drop_moved(self, leader_of: Callable[[TopicPartition], int | None]) -> None:
        """Fails each waiting request whose partition has another leader now, and all later waiting requests for the
        partition.
        """
        self._collect()
        if not self.waiting:
            return
        moved: set[TopicPartition] = set()

        def is_gone(target: TopicPartition) -> bool:
            return target in moved or leader_of(target) != self.node_id

        kept: collections.deque[Call] = collections.deque()
        waiting, self.waiting = self.waiting, collections.deque()
        for call in waiting:
            error = kafka_errors.NotLeaderForPartitionError(f"Node {self.node_id} is not the leader any more")
            if isinstance(call, QuestionsCall):
                if call.drop(is_gone, error):
                    kept.append(call)
            elif any(is_gone(target) for target in call.targets):
                moved.update(call.targets)
                call.fail(error, sent=False)
            else:
                kept.append(call)
        kept.extend(self.waiting)
        self.waiting = kept

    def silent_for(self, now: float) -> float:
        """How many seconds the broker has sent nothing, although an answer is outstanding; 0 if none is outstanding."""
        if not self.in_flight or self.conn is None:
            return 0.0
        call, since = next(iter(self.in_flight.items()))
        # The broker does not answer before it has received the whole request.
        since = max(since, call.written_at or self.conn.last_write)
        heard: float = self.conn.last_read
        return max(0.0, now - max(since, heard))

    def hang_up(self, error: BaseException | None = None) -> None:
        """Closes the connection at once; unsent bytes are dropped."""
        if self.conn is not None:
            self.conn.close(error)

    def abandon(self, error: BaseException) -> None:
        """Fails the waiting requests and the requests in flight, because the event loop has ended."""
        self.drop(error)
        in_flight, self.in_flight = list(self.in_flight), {}
        for call in in_flight:
            call.fail(error, sent=True)
        with contextlib.suppress(Exception):  # a crashed network may raise
            self.hang_up()

    def suspect(self, now: float) -> None:
        """Marks the broker as suspected to hang, so that requests prefer other brokers for a while."""
        self.suspect_until = now + 2 * SILENCE_S

    def connect_at_once(self) -> None:
        """Opens the next connection without a back-off."""
        self.not_before = 0.0

    def _arm(self, at: float) -> None:
        if self.timer is not None:
            if self.timer_at <= at:
                return
            self._network.cancel(self.timer)
        self.timer_at = at
        self.timer = self._network.call_at(at, self._on_timer)

    def _on_timer(self) -> None:
        self.timer = None
        self.pump()
