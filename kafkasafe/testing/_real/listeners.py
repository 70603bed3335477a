"""The brokers' additional listeners: their ports, certificate and users."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kafka.admin import UserScramCredentialUpsertion
from kafka.errors import KafkaError

from kafkasafe.errors import UsageError
from kafkasafe.testing import secure
from kafkasafe.testing._real.admin import Admin
from kafkasafe.testing._real.admin_client import open_admin
from kafkasafe.testing._real.layout import Layout
from kafkasafe.testing._real.release import Release
from kafkasafe.testing._real.workspace import Workspace


class Listeners:
    """The additional listeners, which (except for the certificate) are fixed when the cluster is constructed."""

    def __init__(
        self,
        layout: Layout,
        release: Release,
        workspace: Workspace,
        protocols: Mapping[str, str],
        users: Mapping[str, str],
        ports: Mapping[tuple[str, int], int],
    ) -> None:
        self.protocols = protocols
        self._layout = layout
        self._release = release
        self._workspace = workspace
        self._users = users
        self._ports = ports
        self._ca_file: Path | None = None
        self._store = Path()

    def ports_of(self, node: int) -> list[int]:
        """The ports of the additional listeners on one broker."""
        return [self._ports[name, node] for name in self.protocols]

    def make_certificate(self) -> None:
        """Makes the certificate if a listener needs one."""
        if any(protocol.endswith("SSL") for protocol in self.protocols.values()):
            self._ca_file, self._store = secure.make_certificate(
                self._workspace.directory / "tls", self._release.java
            )

    @property
    def authenticates(self) -> bool:
        """Whether a listener has users."""
        return any(protocol.startswith("SASL") for protocol in self.protocols.values())

    def settings(self) -> dict[str, str]:
        """The settings of each additional listener, without the settings that list all listeners."""
        more: dict[str, str] = {}
        for name, protocol in self.protocols.items():
            known = secure.mechanisms_of(self._release.number)
            more |= secure.listener_settings(name, protocol, self._store, self._users, known)
        return more

    def address(self, listener: str, node: int = 1) -> str:
        self._layout.check_broker(node)
        if (listener, node) not in self._ports:
            raise UsageError(f"there is no listener {listener!r}; there are {sorted(self.protocols)}")
        return f"127.0.0.1:{self._ports[listener, node]}"

    def client_options(
        self, listener: str, user: str | None = None, mechanism: str | None = None
    ) -> dict[str, Any]:
        self._workspace.directory  # noqa: B018 - raises when not open
        options: dict[str, Any] = {
            "bootstrap_servers": [self.address(listener, node) for node in self._layout.brokers],
            "security_protocol": self.protocols[listener],
        }
        if self.protocols[listener].endswith("SSL"):
            options["ssl_cafile"] = str(self._ca_file)
        if self.protocols[listener].startswith("SASL"):
            name = next(iter(self._users)) if user is None else user
            known = secure.mechanisms_of(self._release.number)
            chosen = known[min(1, len(known) - 1)] if mechanism is None else mechanism
            if name not in self._users or chosen not in known:
                raise UsageError(
                    f"there is no user {name!r} with {chosen}; there are {sorted(self._users)} with {', '.join(known)}"
                )
            options |= {
                "sasl_mechanism": chosen,
                "sasl_plain_username": name,
                "sasl_plain_password": self._users[name],
            }
        return options

    def create_users(self, admin: Admin) -> None:
        """Creates users for SCRAM, and waits until each broker accepts a login of the first user. Users for PLAIN are
        in the brokers' settings.
        """
        scram = [name for name in secure.mechanisms_of(self._release.number) if name.startswith("SCRAM")]
        wanted = [
            UserScramCredentialUpsertion(user, mechanism, password)
            for user, password in self._users.items()
            for mechanism in scram
        ]
        if wanted:
            with admin.client() as client:
                # Kafka refuses a request with two changes of the same user.
                for each in wanted:
                    if error := client.alter_user_scram_credentials([each])[each.user]:
                        raise self._workspace.error(f"the user {each.user} could not be made: {error}", [])
        deadline = time.monotonic() + 30
        listener = next(n for n, protocol in self.protocols.items() if protocol.startswith("SASL"))
        for node in self._layout.brokers:
            options = {**self.client_options(listener), "bootstrap_servers": [self.address(listener, node)]}
            while True:
                try:
                    open_admin(**options, timeout_ms=5000).close()
                    break
                except KafkaError as error:
                    if time.monotonic() > deadline:
                        raise self._workspace.error(
                            f"no user can log in at listener {listener}: {error!r}", []
                        ) from error
                    time.sleep(0.1)
