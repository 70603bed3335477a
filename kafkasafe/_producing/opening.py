"""The start of a producer: its options, the spool with its lane, the records that earlier runs left there, the pump.

This is the last part in the chain: it creates the attributes that the other parts use.
"""

from __future__ import annotations

import atexit
import time
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Unpack, cast

from kafkasafe._core import batch as codec
from kafkasafe._io.at_exit import at_end_of_child
from kafkasafe._io.batch_offsets import GivenOffsets
from kafkasafe._io.connect import connect
from kafkasafe._io.files import Files, OsFiles
from kafkasafe._io.lanes import SpoolDirectory
from kafkasafe._io.memory import MemoryFiles
from kafkasafe._io.pump import Pump
from kafkasafe._io.readings import NUMBERS
from kafkasafe._producing.accumulator import Accumulator
from kafkasafe._producing.admission import Admission
from kafkasafe._producing.delivery import Delivery
from kafkasafe._producing.hold import PRODUCERS, Hold, await_dropped, exit_hook, goes_live
from kafkasafe._producing.lifecycle import Lifecycle
from kafkasafe._producing.looking import Looking
from kafkasafe._producing.partitioning import Partitioning
from kafkasafe._producing.record_form import RecordForm, serializers_of
from kafkasafe.cluster.api import Cluster
from kafkasafe.config import ProducerConfig, validate, volatile_reason
from kafkasafe.logs import EventLog
from kafkasafe.options import ProducerOptions

if TYPE_CHECKING:
    from kafkasafe.producer import RecordFuture, SafeProducer
    from kafkasafe.transactional import Transactions

__all__ = ["Opening"]

log = EventLog("producer")


class Opening(Looking):
    """Part of `SafeProducer`."""

    send: Callable[..., RecordFuture]

    def __init__(self, **configs: Unpack[ProducerOptions]) -> None:
        self._lifecycle = Lifecycle()
        config = self._config = self._validated(configs)
        self.config: Mapping[str, Any] = config.kafka
        self._started = time.monotonic()
        serializers = serializers_of(config)
        files: Files = MemoryFiles() if config.in_memory else OsFiles()
        directory = SpoolDirectory.open(config.spool_dir, files=files)
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
        if not config.in_memory:
            await_dropped(config.spool_dir)
        codec.load_codec(config.compression)
        lock = directory.take_lane(config.spool_lane, client=config.client_id, wait=time.sleep)
        self._hold = Hold()
        self._given_offsets = GivenOffsets(NUMBERS)
        try:
            self._transport: Cluster = connect(config.kafka)
            try:
                self._partitioning = Partitioning(config, self._transport)
                self._pump, self._accumulator = _pumped(
                    config, self._transport, directory, files, self._lifecycle, self._partitioning
                )
                self._chunks = self._accumulator.chunks
                self._delivery = Delivery(
                    config, self._lifecycle, self._transport, self._pump, self._accumulator
                )
                self._admission = Admission(
                    config, self._lifecycle, self._partitioning, self._accumulator, self._delivery
                )
                self._form = RecordForm(serializers, self._lifecycle, self._partitioning, self._admission)
                self._plain = self._form.plain
                self._pump.open(lock)
                if not config.in_memory:
                    _check_room(config, files, self._pump.lanes[0].spool.used_bytes)
                # Do this before the threads start: afterwards the journal belongs to the pump.
                self._partitioning.recall(self._pump.remembered_topics(), self._pump.unchosen_topics())
                self._transactions: Transactions | None = None
                if config.transactional_id is not None:
                    from kafkasafe.transactional import Transactions

                    self._transactions = Transactions(cast("SafeProducer", self), config.transactional_id)
                    self.send = self._transactions.send
                self._pump.start()
            except BaseException:
                self._transport.close(0.0)
                raise
        except BaseException:
            lock.release()
            raise
        if config.prometheus:
            from kafkasafe.metrics import install

            install(self)
        PRODUCERS.add(self)
        if not config.in_memory:
            goes_live(self._pump, self._spool_path)
        self._at_exit = exit_hook(weakref.ref(self))
        atexit.register(self._at_exit)
        self._not_at_end_of_child = at_end_of_child(self._at_exit)
        self._opened = True

    def _validated(self, options: Mapping[str, Any]) -> ProducerConfig:
        return validate(options)


def _pumped(
    config: ProducerConfig,
    cluster: Cluster,
    directory: SpoolDirectory,
    files: Files,
    lifecycle: Lifecycle,
    partitioning: Partitioning,
) -> tuple[Pump, Accumulator]:
    """Make the pump and the accumulator, which know each other.

    Neither has a reference to the producer: a producer that the application drops is to be collected at once.
    """
    pump = Pump(
        config,
        cluster,
        directory,
        files,
        choose=partitioning.choose,
        seal_due=lambda now: accumulator.seal_due(now),  # noqa: PLW0108  # assigned below
        on_topic=partitioning.learned,
        let_go=lambda: accumulator.released(),  # noqa: PLW0108  # assigned below
    )
    accumulator = Accumulator(config, lifecycle, partitioning, pump)
    return pump, accumulator


def _check_room(config: ProducerConfig, files: Files, used: int) -> None:
    """Log a warning if the volume will be full before the spool is. Metrics only show `spool_max_bytes`."""
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
