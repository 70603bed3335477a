"""Without an asyncio loop, as on trio: the error says what kafkasafe.aio needs."""

from __future__ import annotations

import pytest

from kafkasafe.aio import SafeConsumer, SafeProducer
from kafkasafe.errors import UsageError


def driven_by_another_loop(coroutine):
    """Its first step, as trio makes it: there is a coroutine, and asyncio's loop is none."""
    with pytest.raises(UsageError, match=r"asyncio only.*asyncio\.run.*trio.*threads"):
        coroutine.send(None)
    coroutine.close()


def test_start_says_that_asyncio_is_needed(fake_kafka, tmp_path):
    servers = fake_kafka.bootstrap_servers
    driven_by_another_loop(SafeProducer(bootstrap_servers=servers, spool_dir=tmp_path).start())
    driven_by_another_loop(SafeConsumer("orders", bootstrap_servers=servers).start())


def test_a_consumer_that_was_never_started_says_it_too(fake_kafka):
    consumer = SafeConsumer("orders", bootstrap_servers=fake_kafka.bootstrap_servers)
    driven_by_another_loop(consumer.__aenter__())
