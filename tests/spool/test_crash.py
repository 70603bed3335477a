"""Loss of power at every moment of random histories: what was promised is there, nothing else is made up."""

from __future__ import annotations

import contextlib
import random

import pytest
from tiers import in_tiers

from kafkasafe.errors import SpoolError, SpoolWriteError
from kafkasafe.spool.extent import BEGIN_SLOTS
from kafkasafe.testing.disk import Disk, ProcessKilled
from kafkasafe.testing.disk.operations import Write

from .model import Owner, recover


def live(seed: int, *, steps: int = 10, faults: float = 0.4) -> Owner:
    """A random history of one lane over several lives of its owner."""
    rng = random.Random(seed)
    disk = Disk()
    owner = Owner(disk, segment_bytes=rng.choice((700, 1500, 4096)))
    for _ in range(steps):
        if rng.random() < faults:
            operation = rng.choice(
                ("writev", "sync_data", "sync_data", "sync_directory", "create", "unlink", "truncate")
            )
            disk.fail(operation, call=rng.randrange(3), times=rng.randint(1, 2), partial=rng.random())
        dies = rng.random() < 0.2
        if dies:
            disk.fail(call=rng.randrange(12), kill=True)
        try:
            burst = [
                owner.group(rng, batches=rng.randint(0, 3), size=rng.choice((10, 300, 900)))
                for _ in range(rng.randint(1, 3))
            ]
            owner.commit(burst)
            if rng.random() < 0.3:
                with contextlib.suppress(SpoolError):
                    owner.release(rng.randint(0, owner.spool.next_position), rng.choice((0, 0, 2000)))
            if rng.random() < 0.1:
                with contextlib.suppress(SpoolWriteError):
                    assert owner.spool.restore() == []
            if rng.random() < 0.1:
                dies = True
                with contextlib.suppress(SpoolWriteError):
                    owner.close()
        except ProcessKilled:
            owner.note()
        while dies:
            disk.heal()
            owner.files.kill()
            if rng.random() < 0.3:
                disk.fail(call=rng.randrange(12), kill=True)
            try:
                owner.open()
                dies = False
            except ProcessKilled:
                pass
    return owner


@pytest.mark.parametrize("seed", in_tiers(12, fast=2))
def test_every_crash_recovers_to_what_was_promised(seed):
    assert live(seed).check_crashes(seed=seed) > 50


def live_os(seed: int) -> None:
    """With spool_sync="os" nothing is promised; but a loss of power leaves a beginning, and no damage."""
    rng = random.Random(seed)
    disk = Disk()
    written: list[tuple] = []
    owner = Owner(disk, segment_bytes=1500, sync="os")
    for number in range(12):
        owner.commit([owner.group(rng, batches=rng.randint(0, 3), size=500)])
        if number % 4 == 3:
            owner.files.kill()
            owner.open()
    written = owner.promised
    for state in disk.crash_states(samples=3, seed=seed):
        found = recover(state.disk)
        assert [what for _, what in found.items] == [what for _, what in written[: len(found.items)]]
        found.close()


@pytest.mark.parametrize("seed", range(2))
def test_without_fsync_a_beginning_is_left(seed):
    live_os(seed)


@pytest.mark.parametrize("seed", range(4))
def test_without_fsync_a_restored_file_says_nothing_of_the_end_of_the_log(seed):
    """Otherwise a loss of power would look like damage: the claim would say that everything was durable."""
    rng = random.Random(seed)
    disk = Disk()
    owner = Owner(disk, segment_bytes=1500, sync="os")
    for _ in range(6):
        owner.commit([owner.group(rng, batches=2, size=500)])
    disk.remove(owner.spool.segments[0][0])
    assert owner.spool.restore() == []
    restored = len(disk.operations)
    for _ in range(4):
        owner.commit([owner.group(rng, batches=2, size=500)])
    written = [what for _, what in owner.promised]
    for state in disk.crash_states(samples=6, seed=seed, start=restored):
        found = recover(state.disk)
        assert [what for _, what in found.items] == written[: len(found.items)]
        found.close()


@pytest.mark.parametrize("seed", in_tiers(8, fast=2))
def test_what_an_owner_cut_off_does_not_come_back_after_the_next_one_began(seed):
    """The next owner finds it cut already, and relied on that: but the cut was never synced."""
    rng = random.Random(seed)
    owner = Owner(Disk(), segment_bytes=4096)
    owner.commit([owner.group(rng, batches=2)])
    assert owner.write(owner.group(rng, batches=2, size=600))
    owner.disk.fail("sync_data")
    assert not owner.sync()
    owner.disk.fail("writev", kill=True)
    with pytest.raises(ProcessKilled):
        owner.rewrite()
    owner.files.kill()
    owner.open()
    owner.check_crashes(samples=12, seed=seed)


def fill(owner: Owner, rng: random.Random, *, unsynced: bool = False) -> None:
    """Some segments that may be released, and a claim about the beginning of the log."""
    for _ in range(4):
        owner.commit([owner.group(rng, batches=1, size=300)])
    if unsynced:
        owner.disk.fail("sync_data")
    owner.release(owner.spool.segments[-2][1])


def in_a_new_process(owner: Owner) -> int:
    """Goes on after a kill. Returns the number of operations until then."""
    owner.disk.heal()
    owner.files.kill()
    at = len(owner.disk.operations)
    owner.open()
    return at


def test_claims_that_were_written_again_in_vain_outlive_a_loss_of_power():
    """The beginning was claimed under number 0 again, next to claims with larger numbers that the disk still had."""
    rng = random.Random(1)
    owner = Owner(Disk(), segment_bytes=700)
    for _ in range(3):
        fill(owner, rng)
    owner.disk.fail("sync_data")
    owner.spool.restore()
    at = in_a_new_process(owner)
    fill(owner, rng)
    assert owner.check_crashes(start=at, samples=8) > 50


def test_a_claim_that_only_the_page_cache_has_replaces_no_durable_one():
    """1. The sync of a claim fails, and the owner dies before it withdraws the file.
    2. The next owner reads that claim, and writes its own in the place of the only durable one.
    3. Power fails in the middle of this.
    """
    rng = random.Random(1)
    owner = Owner(Disk(), segment_bytes=700)
    for _ in range(3):
        fill(owner, rng)
    owner.disk.fail("unlink", kill=True)
    with pytest.raises(ProcessKilled):
        fill(owner, rng, unsynced=True)
    at = in_a_new_process(owner)
    fill(owner, rng)
    claims = [
        moment
        for moment, operation in enumerate(owner.disk.operations[at:], at + 1)
        if isinstance(operation, Write) and operation.offset in BEGIN_SLOTS and len(operation.data) == 48
    ]
    for moment in claims:
        owner.check_crashes(start=moment, stop=moment, samples=300, thorough=1000)
    assert claims
