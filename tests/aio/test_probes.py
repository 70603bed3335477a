"""The probes of `examples/fastapi_app.py`: an outage of Kafka leaves the service ready, a full spool does not."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from helpers import until

from kafkasafe.aio import SafeProducer

EXAMPLE = Path(__file__).parents[2] / "examples" / "fastapi_app.py"
MIB = 1 << 20


@pytest.fixture
def example(fake_kafka, tmp_path, monkeypatch):
    """The module, whose producer has a small spool."""
    pytest.importorskip("fastapi")
    pytest.importorskip("httpx")
    monkeypatch.setenv("KAFKA", ",".join(fake_kafka.bootstrap_servers))
    monkeypatch.setenv("KAFKASAFE_SPOOL_DIR", str(tmp_path))
    spec = importlib.util.spec_from_file_location("fastapi_app", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    small = {"spool_max_bytes": 16 * MIB, "spool_segment_bytes": 2 * MIB, "max_request_size": 300_000}
    monkeypatch.setattr(
        module, "SafeProducer", lambda **options: SafeProducer(**options, **small, max_block_ms=200)
    )
    return module


async def test_in_an_outage_and_with_a_full_spool(fake_kafka, example):
    import httpx

    fake_kafka.create_topic("orders", 3)
    app = example.app
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://shop", timeout=30) as client,
    ):

        async def probe(path):
            reply = await client.get(path)
            return reply.status_code, reply.json()

        assert (await client.post("/orders/ada", content=b"1")).status_code == 202
        assert await probe("/healthz") == (200, {"alive": True})
        status, health = await probe("/readyz")
        assert (status, health["ready"], health["connected"]) == (200, True, True)

        fake_kafka.refuse()
        fake_kafka.cut()
        await until(lambda: not app.state.producer.health().connected)
        assert (await client.post("/orders/ada", content=b"2")).status_code == 202
        status, health = await probe("/readyz")
        assert (status, health["ready"], health["connected"]) == (200, True, False)
        assert health["network_error"]

        full = b"." * 250_000
        for _ in range(200):
            if (await client.post("/orders/ada", content=full)).status_code != 202:
                break
        else:
            raise AssertionError("200 large orders were accepted")
        status, health = await probe("/readyz")
        assert (status, health["ready"]) == (503, False)
        assert [reason["name"] for reason in health["reasons"]] == ["spool_full"]
        assert "spool_max_bytes" in health["reasons"][0]["text"]
        # A restart would not help.
        assert await probe("/healthz") == (200, {"alive": True})

        fake_kafka.restore()
        await until(lambda: app.state.producer.health().ready)
        assert (await probe("/readyz"))[0] == 200
        assert (await client.post("/orders/ada", content=b"3")).status_code == 202
        producer = app.state.producer
        await producer.close()
        assert await probe("/healthz") == (503, {"alive": False})
        assert (await probe("/readyz"))[0] == 503
