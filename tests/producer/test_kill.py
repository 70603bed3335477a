"""kill -9 of the producing process, at any moment, more than a hundred times."""

from __future__ import annotations

import os
import random
import time

import harness
import numpy as np
import pytest

from kafkasafe.demo.ledger import Ledger

pytestmark = [pytest.mark.kafka, pytest.mark.crash]

KILLS = 100
RECORDS = 400_000

# To repeat a failure: KAFKASAFE_TEST_SEED=<the seed it names>.
SEED = int(os.environ.get("KAFKASAFE_TEST_SEED", "0")) or random.SystemRandom().getrandbits(31)


def options(rnd: random.Random, spool: str) -> dict:
    return {
        "spool": spool,
        "compression_type": rnd.choice([None, "gzip", "snappy", "lz4", "zstd"]),
        "acks": rnd.choice(["all", "all", 1]),
        "linger_ms": rnd.choice([0, 1, 5]),
        "batch_size": rnd.choice([2000, 20_000, 1_000_000]),
        "spool_sync": rnd.choice(["group", "group", "each", "os"]),
        "spool_segment_bytes": 2 * 1024 * 1024,
        "spool_max_bytes": 64 * 1024 * 1024,
        "retain_acked_bytes": rnd.choice([0, 1_000_000]),
        "request_timeout_ms": 5000,
        "max_request_size": 200_000,
        "spool_after_ms": rnd.choice([0, 50, 1000]),
    }


def test_nothing_is_lost_by_killing_the_process_a_few_times(kafka, zygote, tmp_path):
    kill(kafka, zygote, tmp_path, "always", 20)


@pytest.mark.parametrize(("spool", "kills"), [("always", KILLS), ("on_error", 50)])
def test_nothing_is_lost_by_killing_the_process_at_random_moments(kafka, zygote, tmp_path, spool, kills):
    kill(kafka, zygote, tmp_path, spool, kills)


def kill(kafka, zygote, tmp_path, spool: str, kills: int) -> None:
    rnd = random.Random(f"{SEED} {spool}")
    # kafka-python, the auditor, has only gzip built in: the broker, which reads all codecs, unpacks for it.
    topic = harness.new_topic(kafka, 4, config={"compression.type": "uncompressed"})
    ledger = Ledger(tmp_path / "ledger", RECORDS)
    log = tmp_path / "lives.log"

    def live() -> harness.Life:
        return zygote.stream(
            tmp_path, kafka.bootstrap_servers, topic, rnd.getrandbits(31), options=options(rnd, spool)
        )

    note = f"seed {SEED}, {log}"
    acked = ledger["acked"]
    for number in range(kills):
        # Bounded, so that a busy machine delivers it as well before the next life's own turn comes.
        ledger.set_limit(ledger.next_number() + rnd.choice((20, 200, 600)))
        life = live()
        if number % 4:
            # From within its recovery to long after that.
            time.sleep(rnd.choice((0.05, 0.15, 0.3, 0.5)) * (0.3 + rnd.random()))
        else:
            # On a busy machine too some get as far as their first acknowledgements.
            before = acked.sum()
            harness.until(lambda: acked.sum() > before or life.ended() is not None, 120, note)  # noqa: B023
            time.sleep(rnd.random() * 0.1)
        assert life.kill() == -9, f"it ended by itself: {note}\n{life.tail()}"
    sent = ledger.next_number()
    # The last life only delivers what its forerunners left.
    ledger.set_limit(sent)
    last = live()
    harness.until(lambda: ledger.settled == sent or last.ended() is not None, 150, note)
    ledger.ask_stop()
    assert last.wait() == 0, f"{note}\n{last.tail()}"
    promised = np.flatnonzero(ledger["durable"] | ledger["acked"])
    assert not ledger["failed"].any()
    assert len(promised) > 5 * kills
    harness.audit(harness.read_log(kafka.bootstrap_servers, topic), promised.tolist(), note=note)
