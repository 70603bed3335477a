"""What can go wrong between a fake cluster and its clients, whichever door they come in by."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from kafkasafe.errors import UsageError

__all__ = ["Network", "Weather"]


@dataclass(slots=True)
class Weather:
    """What goes wrong on the way to one broker.

    Attributes:
        refuse: No new connection is accepted.
        drop_requests: Requests are read and never looked at.
        drop_responses: Requests are done, and never answered.
        stall: Nothing is read.
        response_delay_ms: Answers leave so much later.
    """

    refuse: bool = False
    drop_requests: bool = False
    drop_responses: bool = False
    stall: bool = False
    response_delay_ms: int = 0


class Network:
    """Faults of the network, under the names that they have on `TcpProxy`."""

    # --- what a door has to do --------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def weather(self) -> dict[int, Weather]:
        """What goes wrong on the way to each broker."""

    @abstractmethod
    def _nodes(self, node: int | None) -> list[int]:
        """This broker, or all of them."""

    @abstractmethod
    def _acting(self) -> AbstractContextManager[object]:
        """Nobody else is looking; afterwards the door follows."""

    # --- faults -----------------------------------------------------------------------------------------------------

    def drop_responses(self, on: bool = True, *, node: int | None = None) -> None:
        """Requests are done, and nobody hears of it."""
        self._change(node, drop_responses=on)

    def drop_requests(self, on: bool = True, *, node: int | None = None) -> None:
        """Requests disappear on their way."""
        self._change(node, drop_requests=on)

    def stall(self, on: bool = True, *, node: int | None = None) -> None:
        """Nothing moves; connections stay open."""
        self._change(node, stall=on)

    def delay(self, response_s: float = 0.0, *, node: int | None = None) -> None:
        """Answers arrive so much later."""
        if response_s < 0:
            raise UsageError(f"No time is negative: {response_s:g} s")
        self._change(node, response_delay_ms=int(response_s * 1000))

    def refuse(self, on: bool = True, *, node: int | None = None) -> None:
        """New connections are refused; those that there are stay."""
        self._change(node, refuse=on)

    def restore(self) -> None:
        """The network works again. What was dropped is gone."""
        self._change(
            None, drop_responses=False, drop_requests=False, stall=False, refuse=False, response_delay_ms=0
        )

    @abstractmethod
    def cut(self, *, node: int | None = None) -> int:
        """Ends the connections. How many there were."""

    def _change(self, node: int | None, **changes: Any) -> None:
        weather = self.weather
        with self._acting():
            for one in self._nodes(node):
                for name, value in changes.items():
                    setattr(weather[one], name, value)
