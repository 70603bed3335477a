"""Queries that consist of several requests and pauses, written as generators.

A *procedure* is a generator that yields an `Ask` (one request to a broker), a `Pause`, or several procedures
`Together`. A driver sends the answer into the generator. When the generator ends, its return value is the result of the
query. So the code of a query with retries and decisions reads from top to bottom, and one thread can run many queries
concurrently. `inquiry.ProcedureRunner` drives procedures on a thread that waits for them. The producer's delivery
engine drives its own procedures (`delivery/engine/leader.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from kafkasafe.cluster.api import Reply

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ask:
    """One request.

    Attributes:
        send: Function that sends the request, and takes a callback for the answer.
        name: Name of the request in the transcripts of the delivery engine's tests. Other drivers do not use it.
    """

    send: Callable[[Reply[Any]], None]
    name: str = ""


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause of this many seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Together:
    """Procedures that run concurrently. They begin in this order.

    When all procedures have ended, the answer is the list of their results. If one procedure raises an error, the
    others are cancelled, and the error is raised in the procedure that yielded the `Together`.
    """

    procedures: Sequence[Procedure[Any]]


Step: TypeAlias = Ask | Pause | Together
Procedure: TypeAlias = Generator[Step, Any, T]
