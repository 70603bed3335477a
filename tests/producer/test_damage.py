"""Damage that is found while a producer lives: it follows `on_corrupt`, and stops at most its partition."""

from __future__ import annotations

import harness
import pytest

from kafkasafe import SpoolCorruptError

pytestmark = pytest.mark.kafka

BATCHES = 8
EACH = 50
BAD = 6
"""Behind the five that are on their way already."""


@pytest.fixture
def from_disk(monkeypatch):
    """What is sent is read back, as after a long outage."""
    monkeypatch.setattr("kafkasafe.delivery.engine.disk._MEMORY_BYTES", 0)


def flip(producers, number: int) -> None:
    """Or back."""
    needle = b"%0*d" % (harness.lives.DIGITS, number)
    for path in sorted(producers.spool.glob("lane-*/*.log")):
        data = path.read_bytes()
        for wanted in (needle, bytes([needle[0] ^ 1]) + needle[1:]):
            at = data.find(wanted)
            if at >= 0:
                with path.open("r+b") as file:
                    file.seek(at)
                    file.write(bytes([data[at] ^ 1]))
                return
    raise AssertionError("It is not there")


@pytest.mark.parametrize("on_corrupt", ["quarantine", "raise"])
@pytest.mark.parametrize("known", [True, False])
def test_a_flipped_bit_stops_at_most_its_partition(broker, producers, from_disk, on_corrupt, known):
    """It ended the producer, with all its topics, also with on_corrupt="quarantine"."""
    topic, other = harness.new_topic(broker.cluster, 1), harness.new_topic(broker.cluster, 1)
    producer = producers(broker.servers, on_corrupt=on_corrupt, request_timeout_ms=3000)
    first = 0
    if known:
        for name in (topic, other):
            harness.send(producer, name, 0).get(60)
        first = 1
    broker.proxy.refuse()
    futures = {}
    for batch in range(BATCHES):
        for number in range(max(first, batch * EACH), (batch + 1) * EACH):
            futures[number] = harness.send(producer, topic, number)
        producer.durable(60)
    elsewhere = harness.send(producer, other, first)
    producer.durable(60)
    flip(producers, BAD * EACH + 5)
    damaged = range(BAD * EACH, (BAD + 1) * EACH)
    broker.proxy.restore()
    assert elsewhere.get(60).offset == first

    if on_corrupt == "raise":
        with pytest.raises(SpoolCorruptError, match=f"{topic}.*waits.*damaged on disk"):
            producer.flush(60)
        with pytest.raises(SpoolCorruptError, match="Other partitions continue"):
            harness.send(producer, topic, BATCHES * EACH)
        assert harness.send(producer, other, first + 1).get(60).offset == first + 1
        assert not futures[BAD * EACH].is_done
        assert not futures[(BAD + 1) * EACH].is_done
        flip(producers, BAD * EACH + 5)  # restored
        harness.until(lambda: all(future.is_done for future in futures.values()))
        wanted = list(range(BATCHES * EACH))
    else:
        producer.flush(60)
        for number in damaged:
            with pytest.raises(SpoolCorruptError, match="quarantine"):
                futures[number].get(0)
        (kept,) = producers.spool.glob("lane-*/quarantine/*.bad")
        assert b"%0*d" % (harness.lives.DIGITS, BAD * EACH) in kept.read_bytes()
        wanted = [number for number in range(BATCHES * EACH) if number not in damaged]
    harness.send(producer, topic, BATCHES * EACH).get(60)
    producer.close()
    if on_corrupt == "quarantine":
        # It was reported: the next life, whatever its option, has nothing to say.
        with producers(broker.servers) as again:
            again.flush(60)
    log = harness.numbers_of(harness.read_log(broker.servers, topic)[0])
    assert log == [*wanted, BATCHES * EACH]
