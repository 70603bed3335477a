"""How long a command waits for the cluster: for the first answer of a broker, and in total."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import typer

from kafkasafe.cli.common import duration_s
from kafkasafe.cluster.api import Cluster
from kafkasafe.errors import KafkaSafeError
from kafkasafe.kafkapython.connect import connect

FIRST_ANSWER_S: Final = 10.0
"""Without --timeout, a command waits this many seconds for the first answer of any broker."""


class Limits(NamedTuple):
    """How long a command waits, seconds.

    Attributes:
        first_answer_s: Time to wait for the first answer of any broker.
        all_s: The command's time limit: the value of --timeout or its default.
    """

    first_answer_s: float
    all_s: float


def timeout_option(what: str, default: str) -> Any:
    """Makes the option --timeout of a command. The command converts the option's value with `limits_of`."""
    text = f"{what} [default: {default}, but {FIRST_ANSWER_S:g}s until a broker answers]"
    return typer.Option("--timeout", metavar="TIME", help=text)


def limits_of(timeout: str | None, default: str) -> Limits:
    """Converts the value of --timeout. The value is also the limit for the first answer, because brokers may start
    slowly.
    """
    if timeout is not None:
        given_s = duration_s(timeout, "--timeout")
        return Limits(given_s, given_s)
    return Limits(FIRST_ANSWER_S, duration_s(default, "--timeout"))


@contextlib.contextmanager
def connected(options: Mapping[str, Any], first_answer_s: float) -> Iterator[Cluster]:
    """Connects to the cluster, and closes the connection at the end of the context. A request about a topic does not
    create the topic.

    Raises:
        KafkaSafeError: No broker answered in time.
    """
    cluster = connect({**options, "allow_auto_create_topics": False})
    cluster.start()
    deadline = time.monotonic() + first_answer_s
    try:
        while not cluster.connected and time.monotonic() < deadline:
            time.sleep(0.02)
        if not cluster.connected:
            servers = options["bootstrap_servers"]
            names = servers if isinstance(servers, str) else ",".join(servers)
            raise KafkaSafeError(
                f"No broker at {names} answered within {first_answer_s:g} s. Nothing was changed. Check"
                " --bootstrap-servers and, for TLS and SASL, --config. If the brokers start slowly, give a longer"
                " --timeout"
            )
        yield cluster
    finally:
        cluster.close(5.0)
