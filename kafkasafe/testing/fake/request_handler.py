"""Takes the bytes of a request, and returns the bytes of the answer, for all brokers of a fake cluster. No I/O, no
thread, no clock.

A request that the fake does not model gets no answer: the error is added to `errors`, and the connection ends. A client
might hide such an error by trying again, so `FakeCluster.close` raises the first of the `errors`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from kafkasafe.kafkapython import frames
from kafkasafe.testing.fake import (
    cluster_requests,
    data_requests,
    group_requests,
    transaction_requests,
)
from kafkasafe.testing.fake.asking import Ask, Fields, Handler, Later, NotModelledError
from kafkasafe.testing.fake.centre import Centre
from kafkasafe.testing.fake.groups import Groups
from kafkasafe.testing.fake.settings import Profile
from kafkasafe.testing.fake.transactions import Transactions

UNSUPPORTED_VERSION: Final = 35
_MAX_ERRORS: Final = 100
_OLD_PRODUCE: Final = 3

_HANDLERS: Final[Mapping[str, Handler]] = (
    data_requests.HANDLERS
    | cluster_requests.HANDLERS
    | group_requests.HANDLERS
    | transaction_requests.HANDLERS
)


@dataclass(frozen=True, slots=True)
class Reply:
    """An encoded answer, including its size.

    Attributes:
        frame: None if the request has no answer (acks=0).
        throttle_ms: Number of ms during which the broker does not read from the connection.
    """

    frame: bytes | None
    throttle_ms: int = 0


@dataclass(frozen=True, slots=True)
class PendingRequest:
    """A request whose answer is not available yet. Call `RequestHandler.look` again."""

    request: frames.RequestFrame
    later: Later


@dataclass(slots=True)
class _Throttle:
    throttle_ms: int
    times: int | None

    def use(self) -> bool:
        """Counts an answer. Returns whether later answers are throttled, too."""
        if self.times is not None:
            self.times -= 1
        return self.times != 0


class RequestHandler:
    """The whole state of a fake cluster. All requests enter here.

    Attributes:
        centre: Brokers, topics, records.
        addresses: (host, port) of each broker, as clients see them.
        counts: Number of requests by API name.
        errors: One error for each use of a feature that the fake does not have.
    """

    def __init__(
        self,
        brokers: int,
        profile: Profile,
        settings: Mapping[str, object],
        racks: Mapping[int, str],
        *,
        cluster_id: str,
        now_ms: int,
    ) -> None:
        self._made = brokers, profile, settings, racks
        self.addresses: dict[int, tuple[str, int]] = {}
        self.counts: Counter[str] = Counter()
        self.errors: list[BaseException] = []
        self._throttles: dict[str | None, _Throttle] = {}
        self.reset(cluster_id, now_ms)

    def reset(self, cluster_id: str, now_ms: int) -> None:
        """Replaces the cluster with a new, empty cluster at the same addresses."""
        self.centre = Centre(*self._made, cluster_id=cluster_id, now_ms=now_ms)
        self.groups = Groups(self.centre)
        self.transactions = Transactions(self.centre, self.groups)

    def listen(self, node: int, host: str, port: int) -> None:
        """Stores the address at which clients reach a broker."""
        self.addresses[node] = host, port

    def advance(self, now_ms: int) -> None:
        self.centre.advance(now_ms)
        self.groups.advance(now_ms)
        self.transactions.advance(now_ms)

    def next_due_ms(self) -> int | None:
        parts = self.centre, self.groups, self.transactions
        due = [at for at in (part.next_due_ms() for part in parts) if at is not None]
        return min(due, default=None)

    def throttle(self, throttle_ms: int, api: str | None, times: int | None) -> None:
        """From now on, the answers of this API tell clients to pause. `api=None` stands for all APIs except
        ApiVersions. `throttle_ms=0` ends the pauses.
        """
        name = None if api is None else frames.api(api).name
        if throttle_ms:
            self._throttles[name] = _Throttle(throttle_ms, times)
        else:
            self._throttles.pop(name, None)

    # -- Requests ----------------------------------------------------------------------------------------------------

    def handle(self, node: int, frame: bytes, now_ms: int) -> Reply | PendingRequest:
        """Handles one request.

        Raises:
            NotModelledError: The fake does not model the request. The error is already in `errors`.
        """
        try:
            return self._handle(node, frame, now_ms)
        except Exception as error:
            if len(self.errors) < _MAX_ERRORS:
                self.errors.append(error)
            if isinstance(error, NotModelledError):
                raise
            raise NotModelledError(f"The fake failed: {error!r}") from error

    def _handle(self, node: int, frame: bytes, now_ms: int) -> Reply | PendingRequest:
        request = frames.parse_request(frame)
        known = frames.api(request.key) if request.key in _KEYS else None
        spoken = None if known is None else self.centre.profile.apis.get(known.name)
        if known is None or spoken is None:
            name = request.key if known is None else known.name
            raise NotModelledError(f"Kafka {self.centre.profile.version}'s fake has no API {name}")
        oldest, newest = spoken
        oldest = max(oldest, _OLD_PRODUCE) if known.name == "Produce" else oldest
        if not oldest <= request.version <= newest:
            if known.name != "ApiVersions":
                raise NotModelledError(
                    f"{known.name} v{request.version}: the fake speaks v{oldest} to v{newest}, as it says"
                )
            self.counts[known.name] += 1
            return self._too_new(request, known, node, now_ms)
        if request.message is None or request.api is None:
            raise NotModelledError(f"{known.name} v{request.version} that kafka-python cannot decode")
        self.counts[known.name] += 1
        ask = self.ask(node, request.version, request.message, now_ms, request.client_id)
        answer = _HANDLERS[known.name](ask)
        if isinstance(answer, Later):
            return PendingRequest(request, answer)
        return Reply(None) if answer is None else self._reply(request, answer)

    def look(self, held: PendingRequest, now_ms: int) -> Reply | None:
        """The answer to a held request; None if it is still not available."""
        answer = held.later.look(now_ms)
        return None if answer is None else self._reply(held.request, answer)

    def ask(self, node: int, version: int, message: Any, now_ms: int, client_id: str) -> Ask:
        """The argument of a request's handler."""
        parts = self.centre, self.groups, self.transactions
        return Ask(*parts, node, version, message, now_ms, client_id, self.addresses)

    def _too_new(self, request: frames.RequestFrame, known: frames.Api, node: int, now_ms: int) -> Reply:
        old = replace(request, version=0, api=known)
        answer = cluster_requests.api_versions(self.ask(node, 0, old.message, now_ms, old.client_id))
        return self._reply(old, answer | {"error_code": UNSUPPORTED_VERSION})

    def _reply(self, request: frames.RequestFrame, answer: Fields) -> Reply:
        response = frames.empty_response(request)
        frames.fill(response.message, answer)
        name = "" if request.api is None else request.api.name
        throttle_ms = self.throttled(name)
        if throttle_ms and hasattr(response.message, "throttle_time_ms"):
            frames.fill(response.message, {"throttle_time_ms": throttle_ms})
        return Reply(response.encode(), throttle_ms)

    def throttled(self, name: str) -> int:
        """Number of ms for which the next answer of this API tells the client to pause."""
        for key in (name, None):
            rule = self._throttles.get(key)
            if rule is None or name == "ApiVersions":
                continue
            if not rule.use():
                del self._throttles[key]
            return rule.throttle_ms
        return 0


_KEYS: Final = frozenset(known.key for known in frames.apis())


def handler(name: str) -> Handler:
    """Returns the handler of an API."""
    return _HANDLERS[name]
