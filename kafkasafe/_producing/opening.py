"""Starts a producer: opens the spool and its lane, takes over records in the spool from earlier runs, and makes the
pump and the producer's other objects.

Only this module defines which objects of a producer use which other objects.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kafkasafe._producing.accumulator import Accumulator
from kafkasafe._producing.admission import Admission
from kafkasafe._producing.delivery import Delivery
from kafkasafe._producing.lifecycle import Lifecycle
from kafkasafe._producing.partitioning import Partitioning, partitioner_of
from kafkasafe._producing.record_form import RecordForm, Serializers, serializers_of
from kafkasafe._producing.registry import await_dropped
from kafkasafe._producing.shutdown import Shutdown
from kafkasafe.cluster.api import Cluster
from kafkasafe.config import ProducerConfig, volatile_reason
from kafkasafe.delivery.batch_offsets import GivenOffsets
from kafkasafe.delivery.process_readings import NUMBERS
from kafkasafe.delivery.pump import Pump
from kafkasafe.kafkapython.connect import connect
from kafkasafe.logs import EventLog
from kafkasafe.record import batch as codec
from kafkasafe.spool.files import Files, OsFiles
from kafkasafe.spool.lanes import SpoolDirectory
from kafkasafe.spool.lanes.format import FORMAT_NAME
from kafkasafe.spool.memory_files import MemoryFiles

log = EventLog("producer")


@dataclass(frozen=True, slots=True)
class ProducerParts:
    """The objects of an open producer. Each object owns its state."""

    config: ProducerConfig
    cluster: Cluster
    lifecycle: Lifecycle
    partitioning: Partitioning
    accumulator: Accumulator
    delivery: Delivery
    admission: Admission
    form: RecordForm
    given_offsets: GivenOffsets
    shutdown: Shutdown


def opened(config: ProducerConfig, before_start: Callable[[ProducerParts], None]) -> ProducerParts:
    """Open the spool and start the pump. If this raises an error, nothing stays open.

    Args:
        config: Options.
        before_start: Called with the producer's objects, after the lane is opened and before the pump's thread starts.

    Raises:
        SpoolError: The spool cannot be opened. The message says which records are safe, and what to do.
    """
    serializers = serializers_of(config)
    partition_by = partitioner_of(config.partitioner)
    files: Files = MemoryFiles() if config.in_memory else OsFiles()
    directory = SpoolDirectory.open(config.spool_dir, files=files)
    _log_directory(config)
    if not config.in_memory:
        _check_user(config)
    if not config.in_memory:
        await_dropped(config.spool_dir)
    codec.load_codec(config.compression)
    lock = directory.take_lane(config.spool_lane, client=config.client_id, wait=time.sleep)
    is_unused = True
    try:
        cluster: Cluster = connect(config.kafka)
        try:
            parts = _made(config, cluster, directory, files, serializers, partition_by)
            pump = parts.delivery.pump
            pump.open(lock)
            if not config.in_memory:
                _check_room(config, files, pump.lanes[0].spool.used_bytes)
            # Read the journal before the threads start: afterwards the journal belongs to the pump.
            parts.partitioning.recall(pump.remembered_topics(), pump.unchosen_topics())
            before_start(parts)
            try:
                pump.start()
            except BaseException:
                is_unused = False  # a second Ctrl-C may come
                is_unused = pump.cancel()
                raise
        except BaseException:
            cluster.close(0.0)
            raise
    except BaseException:
        if is_unused:  # otherwise the pump, which waits for the disk, releases the lane at its end
            lock.release()
        raise
    return parts


def _log_directory(config: ProducerConfig) -> None:
    if config.in_memory:
        log.info(
            "spool='never': records that the cluster has not acknowledged are lost when this process ends",
            client_id=config.client_id,
            event="spool_never",
        )
    elif config.spool_dir_is_default:
        log.info(
            "The spool directory is %s (set spool_dir or KAFKASAFE_SPOOL_DIR to change it)",
            config.spool_dir,
            client_id=config.client_id,
            path=str(config.spool_dir),
            event="spool_directory",
        )
    reason = None if config.in_memory else volatile_reason(config.spool_dir)
    if reason is not None:
        log.warning(
            "The spool %s may not survive a restart: %s",
            config.spool_dir,
            reason,
            client_id=config.client_id,
            path=str(config.spool_dir),
            event="spool_volatile",
        )


def _made(
    config: ProducerConfig,
    cluster: Cluster,
    directory: SpoolDirectory,
    files: Files,
    serializers: Serializers,
    partition_by: Callable[..., Any],
) -> ProducerParts:
    """Make the objects, and pass each object the objects that it uses."""
    lifecycle = Lifecycle()
    partitioning = Partitioning(config, cluster, partition_by)
    # The pump and the accumulator refer to each other, but not to the producer. So Python collects a producer as soon
    # as the application drops the producer.
    pump = Pump(
        config,
        cluster,
        directory,
        files,
        choose=partitioning.choose,
        seal_due=lambda now: accumulator.seal_due(now),  # noqa: PLW0108  # assigned below
        on_topic=partitioning.learned,
        released=lambda: accumulator.released(),  # noqa: PLW0108  # assigned below
    )
    accumulator = Accumulator(config, lifecycle, partitioning, pump)
    delivery = Delivery(config, lifecycle, cluster, pump, accumulator)
    admission = Admission(config, lifecycle, partitioning, accumulator, delivery)
    form = RecordForm(serializers, lifecycle, partitioning, admission)
    shutdown = Shutdown(config, lifecycle, accumulator, delivery)
    return ProducerParts(
        config,
        cluster,
        lifecycle,
        partitioning,
        accumulator,
        delivery,
        admission,
        form,
        GivenOffsets(NUMBERS),
        shutdown,
    )


def _check_user(config: ProducerConfig) -> None:
    """Log a warning if this process is root, and another user made the spool directory. Root can open everything there,
    but that user's producers cannot open the files that root makes.
    """
    try:
        user = (config.spool_dir / FORMAT_NAME).stat().st_uid
    except OSError:
        return  # unknown: the producer reports what it cannot read
    if not user or os.geteuid():
        return
    log.warning(
        "%s belongs to user %d, and this producer runs as root: that user's producers cannot open the files that it"
        " makes. Run this program as that user. Afterwards, give the files back: chown -R --from=0 %d %s",
        config.spool_dir,
        user,
        user,
        shlex.quote(str(config.spool_dir)),
        client_id=config.client_id,
        path=str(config.spool_dir),
        user=user,
        event="spool_of_another_user",
    )


def _check_room(config: ProducerConfig, files: Files, used: int) -> None:
    """Log a warning if the volume will be full before the spool reaches `spool_max_bytes`. The metrics show only
    `spool_max_bytes`.
    """
    try:
        free = files.free_bytes(config.spool_dir)
    except OSError:
        return  # the file system does not report free space
    if free >= config.spool_max_bytes - used:
        return
    log.warning(
        "The volume of %s has room for %d bytes, and the spool may need %d more (spool_max_bytes=%d): when it is full,"
        " send() blocks and raises SpoolFullError. Make room, or lower spool_max_bytes",
        config.spool_dir,
        free,
        config.spool_max_bytes - used,
        config.spool_max_bytes,
        client_id=config.client_id,
        path=str(config.spool_dir),
        free_bytes=free,
        event="spool_volume_small",
    )
