"""What a handler of requests gets and gives. Pure.

A handler turns one request into the fields of its answer, or into `Later`: a condition that is looked at again after
everything that happens. One broker answers the requests of one connection one after the other, as Kafka does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from kafkasafe.testing.fake.checks import NotModelledError

if TYPE_CHECKING:
    from kafkasafe.testing.fake.centre import Centre
    from kafkasafe.testing.fake.groups import Groups
    from kafkasafe.testing.fake.transactions import Transactions

__all__ = ["Ask", "Fields", "Handler", "Later", "NotModelledError"]

Fields: TypeAlias = dict[str, Any]
"""An answer's fields by name; lists of dicts where Kafka has arrays of structs."""


@dataclass(frozen=True, slots=True)
class Later:
    """An answer that is not there yet.

    Attributes:
        look: Gets the time in ms; the answer, or None if it is still not there.
        due_ms: When it will be there at the latest, None for never by itself.
    """

    look: Callable[[int], Fields | None]
    due_ms: int | None


@dataclass(frozen=True, slots=True)
class Ask:
    """One request.

    Attributes:
        centre: The cluster.
        groups: Its consumer groups.
        transactions: Its transactions.
        node: The broker that was asked.
        version: Of the request.
        message: The request, as kafka-python decodes it.
        now_ms: What time it is.
        client_id: Who asks, by its own word.
        addresses: (host, port) of each broker, as clients are told.
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
"""None: the request has no answer (acks=0)."""
