"""A web service that confirms an order only when the order is on disk. The service works during an outage of Kafka,
too.

KAFKA=localhost:9092 uvicorn fastapi_app:app      # serve it, in this directory
python examples/fastapi_app.py                    # or see it: starts a Kafka of its own
python examples/fastapi_app.py --bootstrap localhost:9092
"""

import argparse
import asyncio
import contextlib
import os
import tempfile
import uuid
from collections.abc import AsyncIterator
from typing import Any

import httpx
from fastapi import FastAPI, Request, Response

from kafkasafe.aio import SafeConsumer, SafeProducer


@contextlib.asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    # The producer does not wait for a broker, so the service accepts orders at once. When the service ends,
    # undelivered records wait on disk for the next start.
    async with SafeProducer(
        bootstrap_servers=os.environ["KAFKA"].split(","), client_id="orders-api"
    ) as producer:
        app.state.producer = producer
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/orders/{customer}", status_code=202)
async def take(customer: str, request: Request) -> dict[str, bool]:
    # If the task is cancelled here because the client has disconnected, no record was accepted.
    topic = os.environ.get("TOPIC", "orders")
    future = await request.app.state.producer.send(topic, await request.body(), key=customer.encode())
    await future.durable(timeout=10)
    return {"accepted": True}


@app.get("/healthz")
async def healthz(request: Request, response: Response) -> dict[str, bool]:
    # For a liveness probe: a restart helps only if the producer has ended.
    alive = request.app.state.producer.health().alive
    response.status_code = 200 if alive else 503
    return {"alive": alive}


@app.get("/readyz")
async def readyz(request: Request, response: Response) -> dict[str, Any]:
    # For a readiness probe: returns 200 during an outage of Kafka, too, because orders are accepted until the spool is
    # full.
    health = request.app.state.producer.health()
    response.status_code = 200 if health.ready else 503
    return health.as_dict()


def new_topic(servers: str, name: str) -> str:
    """Creates a topic for this run alone, so that it holds no records of other programs or runs."""
    from kafka import KafkaAdminClient
    from kafka.admin import NewTopic

    topic = f"{name}-{uuid.uuid4().hex[:6]}"
    with contextlib.closing(KafkaAdminClient(bootstrap_servers=servers.split(","))) as admin:
        admin.create_topics([NewTopic(topic, 3, 1)])
    return topic


async def show(servers: str, topic: str, count: int) -> None:
    os.environ["KAFKA"], os.environ["TOPIC"] = servers, topic
    transport = httpx.ASGITransport(app=app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://shop") as client,
    ):
        replies = await asyncio.gather(
            *[client.post(f"/orders/customer-{n % 7}", content=b"%d" % n) for n in range(count)]
        )
        accepted = sum(reply.json()["accepted"] for reply in replies)
    async with SafeConsumer(topic, bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        found = set()
        while len(found) < count:
            found.add((await consumer.getone()).value)
    print(f"{accepted} orders accepted, {len(found)} in the topic")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bootstrap", help="host:port of a cluster; default: the example starts one")
    parser.add_argument("--count", type=int, default=200)
    options = parser.parse_args()
    if options.count < 1:
        parser.error("--count must be 1 or more")
    with contextlib.ExitStack() as stack:
        servers = options.bootstrap
        if not servers:
            from kafkasafe.testing.broker import KafkaCluster

            os.environ.setdefault("KAFKASAFE_SPOOL_DIR", stack.enter_context(tempfile.TemporaryDirectory()))
            cluster = stack.enter_context(KafkaCluster(brokers=1))
            servers = ",".join(cluster.bootstrap_servers)
        asyncio.run(show(servers, new_topic(servers, "orders"), options.count))


if __name__ == "__main__":
    main()
