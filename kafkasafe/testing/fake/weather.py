"""Network faults between a fake cluster and its clients, over sockets or in virtual time."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Any

from kafkasafe.errors import UsageError


@dataclass(slots=True)
class Weather:
    """The network faults of one broker.

    Attributes:
        refuse: Whether new connections are refused.
        drop_requests: Whether requests are read and ignored.
        drop_responses: True: brokers carry out requests, but their answers get lost.
        stall: Whether brokers neither read requests nor send answers.
        response_delay_ms: Delay of answers.
    """

    refuse: bool = False
    drop_requests: bool = False
    drop_responses: bool = False
    stall: bool = False
    response_delay_ms: int = 0


class Network:
    """Faults of the network. The methods have the same names as the methods of `TcpProxy`."""

    # --- what subclasses implement ----------------------------------------------------------------------------------

    @property
    @abstractmethod
    def weather(self) -> dict[int, Weather]:
        """The network faults of each broker."""

    @abstractmethod
    def _nodes(self, node: int | None) -> list[int]:
        """The given broker, or all brokers."""

    @abstractmethod
    def _acting(self) -> AbstractContextManager[object]:
        """Context for a change of the faults. Other threads have no access meanwhile. When the context ends,
        connections are opened or closed to match the new state.
        """

    # --- faults -----------------------------------------------------------------------------------------------------

    def drop_responses(self, on: bool = True, *, node: int | None = None) -> None:
        """Carries out requests without answering them."""
        self._change(node, drop_responses=on)

    def drop_requests(self, on: bool = True, *, node: int | None = None) -> None:
        """Loses requests in transit."""
        self._change(node, drop_requests=on)

    def stall(self, on: bool = True, *, node: int | None = None) -> None:
        """Forwards nothing. Connections stay open."""
        self._change(node, stall=on)

    def delay(self, response_s: float = 0.0, *, node: int | None = None) -> None:
        """Delays answers by this time."""
        if response_s < 0:
            raise UsageError(f"No time is negative: {response_s:g} s")
        self._change(node, response_delay_ms=int(response_s * 1000))

    def refuse(self, on: bool = True, *, node: int | None = None) -> None:
        """Refuses new connections. Existing ones stay."""
        self._change(node, refuse=on)

    def restore(self) -> None:
        """Ends all faults. Dropped requests and responses stay lost."""
        self._change(None, **asdict(Weather()))

    @abstractmethod
    def cut(self, *, node: int | None = None) -> int:
        """Ends the connections to a broker, or to all brokers. Returns the number of connections that ended."""

    def _change(self, node: int | None, **changes: Any) -> None:
        weather = self.weather
        with self._acting():
            for one in self._nodes(node):
                for name, value in changes.items():
                    setattr(weather[one], name, value)
