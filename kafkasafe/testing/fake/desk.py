"""Requests as bytes in, answers as bytes out, for all brokers of a fake cluster. No I/O, no thread, no clock.

What the fake does not model has no answer: it is kept in `errors`, and the connection ends. A client that goes on in
spite of that is found out when the cluster is closed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from kafkasafe.testing import frames
from kafkasafe.testing.fake import (
    cluster_requests,
    data_requests,
    group_requests,
    transactions,
)
from kafkasafe.testing.fake.asking import Ask, Fields, Handler, Later, NotModelledError
from kafkasafe.testing.fake.centre import Centre
from kafkasafe.testing.fake.groups import Groups
from kafkasafe.testing.fake.settings import Profile
from kafkasafe.testing.fake.transactions import Transactions

__all__ = ["Desk", "Held", "Reply", "handler"]

UNSUPPORTED_VERSION: Final = 35
_MAX_ERRORS: Final = 100
_OLD_PRODUCE: Final = 3

_HANDLERS: Final[Mapping[str, Handler]] = (
    data_requests.HANDLERS | cluster_requests.HANDLERS | group_requests.HANDLERS | transactions.HANDLERS
)


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer's bytes, size included.

    Attributes:
        frame: None where the request has no answer (acks=0).
        throttle_ms: For how long the broker reads nothing more from the connection.
    """

    frame: bytes | None
    throttle_ms: int = 0


@dataclass(frozen=True, slots=True)
class Held:
    """A request whose answer is not there yet: ask `Desk.look` again."""

    request: frames.Request
    later: Later


@dataclass(slots=True)
class _Throttle:
    throttle_ms: int
    times: int | None


class Desk:
    """All that a fake cluster knows, and the way in.

    Attributes:
        centre: Brokers, topics, records.
        groups: Consumer groups.
        transactions: Transactions.
        addresses: (host, port) of each broker, as clients are told.
        counts: Requests by API name.
        errors: What clients wanted that the fake does not have.
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
        """Another cluster, empty, takes the place of this one behind the same addresses."""
        self.centre = Centre(*self._made, cluster_id=cluster_id, now_ms=now_ms)
        self.groups = Groups(self.centre)
        self.transactions = Transactions(self.centre, self.groups)

    def advance(self, now_ms: int) -> None:
        """Does all that became due."""
        self.centre.advance(now_ms)
        self.groups.advance(now_ms)
        self.transactions.advance(now_ms)

    def next_due_ms(self) -> int | None:
        """When `advance` has something to do next, None for never."""
        parts = self.centre, self.groups, self.transactions
        due = [at for at in (part.next_due_ms() for part in parts) if at is not None]
        return min(due, default=None)

    def throttle(self, throttle_ms: int, api: str | None, times: int | None) -> None:
        """From now on answers (of one API, or of all) tell clients to be silent for a while; 0 ends it."""
        name = None if api is None else frames.api(api).name
        if throttle_ms:
            self._throttles[name] = _Throttle(throttle_ms, times)
        else:
            self._throttles.pop(name, None)

    # -- Requests ----------------------------------------------------------------------------------------------------

    def handle(self, node: int, frame: bytes, now_ms: int) -> Reply | Held:
        """One request.

        Args:
            node: The broker that was asked.
            frame: The request without its size.
            now_ms: What time it is.

        Raises:
            NotModelledError: Nothing like that is modelled. Already in `errors`.
        """
        try:
            return self._handle(node, frame, now_ms)
        except Exception as error:
            if len(self.errors) < _MAX_ERRORS:
                self.errors.append(error)
            if isinstance(error, NotModelledError):
                raise
            raise NotModelledError(f"The fake failed: {error!r}") from error

    def _handle(self, node: int, frame: bytes, now_ms: int) -> Reply | Held:
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
        ask = self._ask(node, request, now_ms)
        answer = _HANDLERS[known.name](ask)
        if isinstance(answer, Later):
            return Held(request, answer)
        return Reply(None) if answer is None else self._reply(request, answer)

    def look(self, held: Held, now_ms: int) -> Reply | None:
        """The answer to a request that was held, None if it is still not there."""
        answer = held.later.look(now_ms)
        return None if answer is None else self._reply(held.request, answer)

    def _ask(self, node: int, request: frames.Request, now_ms: int) -> Ask:
        return Ask(
            self.centre,
            self.groups,
            self.transactions,
            node,
            request.version,
            request.message,
            now_ms,
            request.client_id,
            self.addresses,
        )

    def _too_new(self, request: frames.Request, known: frames.Api, node: int, now_ms: int) -> Reply:
        old = replace(request, version=0, api=known)
        answer = cluster_requests.api_versions(self._ask(node, old, now_ms))
        return self._reply(old, answer | {"error_code": UNSUPPORTED_VERSION})

    def _reply(self, request: frames.Request, answer: Fields) -> Reply:
        response = frames.empty_response(request)
        frames.fill(response.message, answer)
        name = "" if request.api is None else request.api.name
        throttle_ms = self.throttled(name)
        if throttle_ms and "throttle_time_ms" in response.message._struct.fields:
            frames.fill(response.message, {"throttle_time_ms": throttle_ms})
        return Reply(response.encode(), throttle_ms)

    def throttled(self, name: str) -> int:
        """For how long, in ms, whoever gets an answer of this API is to be silent."""
        for key in (name, None):
            rule = self._throttles.get(key)
            if rule is None or name == "ApiVersions":
                continue
            if rule.times is not None:
                rule.times -= 1
                if not rule.times:
                    del self._throttles[key]
            return rule.throttle_ms
        return 0


_KEYS: Final = frozenset(known.key for known in frames.apis())


def handler(name: str) -> Handler:
    """What answers requests of an API."""
    return _HANDLERS[name]
