"""Starts and closes the client on the network thread, and recovers it after a crash of that thread.

The `Network` decides when a thread starts and ends.
"""

from __future__ import annotations

from kafkasafe.cluster.client.links import Links
from kafkasafe.cluster.client.mailbox import Mailbox
from kafkasafe.cluster.client.order import RequestOrder
from kafkasafe.cluster.client.refresher import Refresher
from kafkasafe.cluster.client.schedule import RefreshSchedule
from kafkasafe.cluster.network import Network
from kafkasafe.cluster.terms import closed_error

__all__ = ["ClientService"]


class ClientService:
    """See `kafkasafe.cluster.network.Service`.

    Args:
        network: Is stopped when the client shuts down.
        mailbox: Jobs for the network thread.
        schedule: The times of metadata requests.
        links: The links to the brokers.
        refresher: Requests that wait for metadata.
        order: The order of batches.
    """

    def __init__(
        self,
        network: Network,
        mailbox: Mailbox,
        schedule: RefreshSchedule,
        links: Links,
        refresher: Refresher,
        order: RequestOrder,
    ) -> None:
        self._network = network
        self._mailbox = mailbox
        self._schedule = schedule
        self._links = links
        self._refresher = refresher
        self._order = order

    def begin(self) -> None:
        """See `Service`."""
        self._mailbox.post(lambda: self._schedule.want(urgent=True), lambda _: None)

    def look(self) -> None:
        """See `Service`."""
        self._mailbox.look()

    def shut_down(self) -> None:
        """See `Service`."""
        if self._mailbox.close():
            return
        error = closed_error()
        self._refresher.fail_all(error)
        self._links.close(error)
        self._network.stop()

    def close_soon(self) -> None:
        """See `Service`."""
        self._mailbox.post(self.shut_down, lambda _: None)

    def interrupted(self, error: BaseException) -> bool:
        """See `Service`."""
        crashed = not self._mailbox.close()
        why = error if crashed else closed_error()
        self._refresher.fail_all(why)
        self._links.abandon(why)
        return crashed

    def begin_anew(self) -> None:
        """See `Service`."""
        self._links.begin_anew()
        self._order.begin_anew()
        self._schedule.begin_anew()
        self._mailbox.reopen()

    def end(self, error: BaseException) -> None:
        """See `Service`."""
        self._mailbox.end(error)
