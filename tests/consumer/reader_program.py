"""A program that is killed: prints each value that it reads, and "diverged" each time it is told so. It never seeks."""

import asyncio
import sys

from kafkasafe import SafeConsumer, aio
from kafkasafe.errors import LogDivergedError


def options(servers, topic):
    return {
        "bootstrap_servers": servers.split(","),
        "group_id": topic,
        "auto_offset_reset": "earliest",
        "auto_commit_interval_ms": 50,
        "metadata_max_age_ms": 1000,
        # The group has to notice soon that it was killed.
        "session_timeout_ms": 6000,
        "heartbeat_interval_ms": 500,
    }


def threads(servers, topic):
    consumer = SafeConsumer(topic, **options(servers, topic))
    while True:
        try:
            for records in consumer.poll(100).values():
                for record in records:
                    print(record.value.decode(), flush=True)
        except LogDivergedError:
            print("diverged", flush=True)


async def coroutines(servers, topic):
    async with aio.SafeConsumer(topic, **options(servers, topic)) as consumer:
        while True:
            try:
                async for record in consumer:
                    print(record.value.decode(), flush=True)
            except LogDivergedError:
                print("diverged", flush=True)


how, servers, topic = sys.argv[1:]
if how == "threads":
    threads(servers, topic)
else:
    asyncio.run(coroutines(servers, topic))
