"""What the parts of `Transport` stand on: the network, and the mailbox for other threads.

No broker and no topic is known here.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping
from typing import Any

from kafkasafe._io.transport.mailbox import Mailbox
from kafkasafe._io.transport.network import Network
from kafkasafe.cluster.coordinators import Coordinated
from kafkasafe.cluster.terms import log

__all__ = ["Ground"]


class Ground(Coordinated, ABC):
    """Part of `Transport`: what the others stand on."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__()
        self._network = Network(options)
        self._mailbox = Mailbox(self._network)
        self._log = log.bind(client_id=self._network.client_id)
