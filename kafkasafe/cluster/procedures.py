"""Queries of several requests and pauses, as generators.

A *procedure* yields what it needs: an `Ask` (one request to a broker), a `Pause`, or several procedures `Together`. It
is sent the answer, and finally returns its result. So a query with retries and decisions reads from top to bottom, and
one thread can run many of them concurrently. `inquiry.ProcedureRunner` drives procedures on a thread that waits for
them, and `engine/running.py` drives those of the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from kafkasafe.cluster.api import Reply

__all__ = ["Ask", "Pause", "Procedure", "Step", "Together"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ask:
    """One request.

    Attributes:
        send: Function that sends the request. Its argument is the callback for the answer.
        name: What transcripts show; only the engine has them.
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

    The answer is the list of their results, when all have ended. The first error of one of them cancels the others, and
    is raised in the procedure that yielded this.
    """

    procedures: Sequence[Procedure[Any]]


Step: TypeAlias = Ask | Pause | Together
Procedure: TypeAlias = Generator[Step, Any, T]
