"""The types of a request handler's argument and results. Pure.

A handler turns a request into the fields of its answer, or into `Later`: a condition that is checked again after every
event. Like in Kafka, a broker answers the requests of one connection in order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from kafkasafe.testing.fake.checks import NotModelledError, RefusedError

if TYPE_CHECKING:
    from kafkasafe.testing.fake.centre import Centre
    from kafkasafe.testing.fake.groups import Groups
    from kafkasafe.testing.fake.transactions import Transactions

__all__ = ["Ask", "Fields", "Handler", "Later", "NotModelledError", "refusal"]

Fields: TypeAlias = dict[str, Any]
"""An answer's fields by name. An array of structs is a list of dicts."""


@dataclass(frozen=True, slots=True)
class Later:
    """An answer that is not available yet.

    Attributes:
        look: Function that takes the time in ms, and returns the answer, or None while the answer is not available.
        due_ms: Latest time for the answer, in ms; None: no limit.
    """

    look: Callable[[int], Fields | None]
    due_ms: int | None


@dataclass(frozen=True, slots=True)
class Ask:
    """One request.

    Attributes:
        groups: The cluster's consumer groups.
        transactions: The cluster's transactions.
        node: Node id of the broker that got the request.
        message: The request, decoded by kafka-python.
        now_ms: The current time.
        addresses: (host, port) of each broker, as clients see them.
    """

    centre: Centre
    groups: Groups
    transactions: Transactions
    node: int
    version: int
    message: Any
    now_ms: int
    client_id: str
    addresses: dict[int, tuple[str, int]]

    def endpoint(self, node: int, number: str = "node_id") -> Fields:
        """A broker's fields in an answer."""
        host, port = self.addresses[node]
        return {number: node, "host": host, "port": port, "rack": self.centre.brokers[node].rack}


Handler: TypeAlias = Callable[[Ask], "Fields | Later | None"]
"""A request handler. The result is None if the request has no answer (acks=0)."""


def refusal(check: Callable[..., object], *arguments: object) -> int:
    """Calls `check(*arguments)`. Returns the error code of the `RefusedError` that it raises; 0 if it raises none."""
    try:
        check(*arguments)
    except RefusedError as refused:
        return refused.code
    return 0
