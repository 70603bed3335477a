"""`Transport`: its life, and what any broker may be asked; the other parts are in the modules below."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import kafka.errors as kafka_errors
from kafka.protocol.metadata import MetadataRequest

from kafkasafe._io import requests
from kafkasafe._io.backoff import Backoff
from kafkasafe._io.transport.calls import KafkaCall, ReachCall
from kafkasafe._io.transport.questions import Questions
from kafkasafe.cluster.api import (
    Failure,
    ProduceCallback,
    ProduceRequest,
    Reached,
    Reply,
    TopicInfo,
    TopicsListed,
)
from kafkasafe.cluster.coordinators import Node, Question
from kafkasafe.cluster.leaders import topic_at, topics_listed
from kafkasafe.cluster.terms import closed_error, not_sent, safely

__all__ = ["Transport"]

_CALM_S: Final = 60.0  # a network thread that lived so long had no lasting reason to crash
_CRASH_BACKOFF: Final = Backoff(0.1, 5.0, jitter=0.0)


class Transport(Questions):
    """Requests to a Kafka cluster. Thread-safe; every request gets exactly one reply.

    Replies are called on the network thread and must only put the result somewhere: whatever they do there, no
    broker is spoken to meanwhile. After `close` (and in a forked child) requests fail at once, on the caller's
    thread. Failures of the network are no errors of a method: they come as `Failure`.

    Not usable in a child after `os.fork`: the thread stays with the parent.

    Args:
        options: `KafkaProducer`'s options; what does not concern connections or metadata is passed over.
            `reconnect_backoff_max_ms` defaults to 1000 here, so that a cluster that comes back is noticed soon.
            `max_in_flight_requests_per_connection` is ignored: limits are the caller's.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        self._network.serve(on_wake=self._mailbox.look, on_exit=self._on_loop_exit)
        self._born_at = 0.0
        self._crashes = 0
        self._thread: threading.Thread | None = None
        self._start_lock = threading.Lock()
        self._stopped = threading.Event()

    def __repr__(self) -> str:
        state = "closed" if self._mailbox.ended else "connected" if self._connected else "not connected"
        return f"<Transport {self._network.client_id} {state} topics={len(self._leaders.topics)}>"

    # -- Lifecycle -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the network thread and goes looking for a broker, for as long as it takes. Idempotent."""
        with self._start_lock:
            if self._thread is not None or self._mailbox.ended:
                return
            self._mailbox.post(lambda: self._schedule.want(urgent=True), lambda _: None)
            self._born_at = time.monotonic()
            self._thread = self._network.start()

    def close(self, timeout_s: float) -> bool:
        """Ends the thread and closes all sockets; everything outstanding gets a `Failure`. Idempotent.

        Args:
            timeout_s: How long to wait for the thread to end, in seconds.

        Returns:
            Whether it has ended. If not (it hangs in a callback), it will end by itself as soon as it can.
        """
        if self._mailbox.in_child:
            return True  # the loop's epoll is shared with the parent: it must not be touched
        with self._start_lock:
            if self._thread is None:
                if not self._mailbox.ended:
                    self._shut_down()
                    self._on_loop_exit()
                    self._network.loop.close()
                return True
        if threading.current_thread() is self._thread:
            self._shut_down()
            return False
        self._stopped.set()
        self._mailbox.post(self._shut_down, lambda _: None)
        deadline = time.monotonic() + timeout_s
        while True:
            # It may be that one that takes the place of a crashed one.
            thread = self._thread
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread is self._thread or thread.is_alive():
                return not thread.is_alive()

    @property
    def closed(self) -> bool:
        """Whether it was closed: every request fails from then on."""
        return self._mailbox.ended

    @property
    def broker_version(self) -> tuple[int, ...] | None:
        """Kafka version, from `api_version` or from the first broker reached; None before that."""
        version: tuple[int, ...] | None = self._network.manager.broker_version
        return version

    def _shut_down(self) -> None:
        """On the network thread: everything outstanding fails, every connection closes, the loop stops."""
        if self._mailbox.close():
            return
        self._connected = False
        error = closed_error()
        self._fail_aside(error)
        self._links.close(error)
        self._network.stop()

    def _on_loop_exit(self) -> None:
        """The loop has ended, by `close` or by a crash: nobody may be left without an answer."""
        crashed = not self._mailbox.close()
        self._connected = False
        error = closed_error() if not crashed else _crashed_error()
        self._fail_aside(error)
        self._links.abandon(error)
        if crashed:
            self._crashes = 0 if time.monotonic() - self._born_at > _CALM_S else self._crashes + 1
            if not self._stopped.wait(_CRASH_BACKOFF.pause_s(self._crashes + 1)):
                self._begin_anew()
                return
        self._mailbox.end(error)

    def _begin_anew(self) -> None:
        """On the thread that crashed: another loop, with connections of its own. What was asked for has failed.

        What is known of the cluster stays, and so does what callers posted meanwhile.
        """
        self._links.begin_anew()
        self._order.begin_anew()
        self._schedule.begin_anew()
        with self._start_lock:
            self._network.renew()
            self._mailbox.reopen()
            self._born_at = time.monotonic()
            self._network.loop.wakeup()
            self._mailbox.post(lambda: self._schedule.want(urgent=True), lambda _: None)
            self._thread = self._network.start()

    # -- Requests ------------------------------------------------------------------------------------------------

    def list_topics(self, reply: Reply[TopicsListed]) -> None:
        """Asks any broker for all topics. They are not watched.

        Args:
            reply: Gets `TopicsListed` or `Failure`.
        """

        def make() -> KafkaCall:
            request = MetadataRequest(
                topics=None,
                allow_auto_topic_creation=False,
                include_cluster_authorized_operations=False,
                include_topic_authorized_operations=False,
            )
            return KafkaCall(
                request, topics_listed, reply, timeout_s=self._network.request_timeout_s, minimum=1
            )

        self._mailbox.post(
            lambda: self._route_any(make, final=False, reply=reply),
            not_sent(reply),
        )

    def topic_at(self, node: int, topic: str, reply: Reply[TopicInfo]) -> None:
        """Asks one broker what it knows of a topic; see `Cluster`."""

        def parse(response: Any) -> TopicInfo:
            return topic_at(response, topic, version=response.API_VERSION)

        def run() -> None:
            if self._network.manager.cluster.broker_metadata(node) is None:
                safely(
                    reply, Failure(kafka_errors.NodeNotReadyError(f"Node {node} is not known"), sent=False)
                )
                return
            request = MetadataRequest(
                topics=[MetadataRequest.MetadataRequestTopic(name=topic)],
                allow_auto_topic_creation=False,
                include_cluster_authorized_operations=False,
                include_topic_authorized_operations=False,
            )
            self._links.link(node).submit(
                KafkaCall(request, parse, reply, timeout_s=self._network.request_timeout_s, minimum=1)
            )

        self._mailbox.post(run, not_sent(reply))

    def produce(
        self,
        requests: Sequence[ProduceRequest[Any]],
        acks: int,
        timeout_ms: int,
        reply: ProduceCallback[Any],
    ) -> None:
        """Appends batches to their partitions.

        Batches of one partition reach its leader in the order of the calls, as long as all succeed. After a
        failure later ones may already be under way; see `ProduceRequest.fence` for those that are not.

        Args:
            requests: The batches. Several for one partition go into requests of their own, pipelined.
            acks: -1 (all in-sync replicas) or 1 (the leader).
            timeout_ms: How long the broker may wait for its replicas.
            reply: Gets (token, `ProduceReply`) or (token, `Failure`), once for each request.

        Raises:
            ValueError: `acks` is neither -1 nor 1. Nothing was accepted.
        """
        if acks not in (-1, 1):
            raise ValueError(f"acks must be -1 or 1, not {acks!r}: without acknowledgements nothing is safe")
        batches = list(requests)

        def fail(error: BaseException) -> None:
            for request in batches:
                safely(reply, request.token, Failure(error, sent=False))

        self._mailbox.post(
            lambda: self._route_produce(batches, acks, timeout_ms, reply, final=False),
            fail,
        )

    def reach(self, topic: str, partition: int, reply: Reply[Reached]) -> None:
        """Makes a connection to the leader, if there is none, without a request; see `Cluster`."""

        def submit(leader: int) -> None:
            self._links.link(leader).submit(
                ReachCall(leader, reply, self._network.request_timeout_s, (topic, partition))
            )

        self._to_leader(topic, partition, submit, not_sent(reply))

    def ask(
        self,
        request: Any,
        parse: Callable[[Any], Any],
        reply: Reply[Any],
        *,
        node: tuple[int, str, int] | None = None,
        minimum: int = 0,
        maximum: int = 32767,
    ) -> None:
        """Sends any request of kafka-python's to a certain broker, or to whichever one is there.

        Args:
            request: The request; not to be used again.
            parse: Makes the result of the response; what it raises is the `Failure`.
            reply: Gets that result or `Failure`.
            node: (node id, host, port) of the broker, as another broker said; None: any.
            minimum: Oldest version of the request that will do.
            maximum: Newest version to speak.
        """

        def make() -> KafkaCall:
            return KafkaCall(
                request,
                parse,
                reply,
                timeout_s=self._network.request_timeout_s,
                minimum=minimum,
                maximum=maximum,
            )

        def run() -> None:
            if node is None:
                self._route_any(make, final=False, reply=reply)
            else:
                self._network.learn_broker(_Endpoint(*node))
                self._links.link(node[0]).submit(make())

        self._mailbox.post(run, not_sent(reply))

    def _ask_coordinator(self, node: Node | None, question: Question, reply: Reply[Any]) -> None:
        request = requests.made(question.name, question.fields)
        self.ask(
            request, question.parse, reply, node=node, minimum=question.minimum, maximum=question.maximum
        )


@dataclass(frozen=True, slots=True)
class _Endpoint:
    """A broker's address, as FindCoordinator gives it."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


def _crashed_error() -> BaseException:
    error: BaseException = kafka_errors.KafkaConnectionError(
        "The network thread ended by an error, see the log"
    )
    return error
