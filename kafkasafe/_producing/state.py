"""The base of all parts of `SafeProducer`: the shared attributes, and the errors that its calls raise.

The parts are a chain in which each may use the earlier ones. `Opening`, the last one, creates the attributes declared
here. The parts use files and the network only through the pump and the `Cluster`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from kafkasafe._io.batch_offsets import GivenOffsets
from kafkasafe._io.callbacks import CallbackThread
from kafkasafe._io.one_process import OfOneProcess
from kafkasafe._io.pump import Pump
from kafkasafe._producing.accumulator import Accumulator
from kafkasafe._producing.chunk import Chunk
from kafkasafe._producing.lifecycle import Lifecycle
from kafkasafe._producing.partitioning import Partitioning
from kafkasafe.cluster.api import Cluster, in_words
from kafkasafe.config import ProducerConfig
from kafkasafe.errors import DeliveryTimeoutError, ForkedProcessError, SpoolError, WrongClusterError

if TYPE_CHECKING:
    from kafkasafe._producing.hold import Hold
    from kafkasafe.producer import RecordFuture
    from kafkasafe.transactional import Transactions

__all__ = ["State"]


class State(OfOneProcess):
    """Part of `SafeProducer`."""

    _config: ProducerConfig
    _lifecycle: Lifecycle
    _started: float
    _accumulator: Accumulator
    _chunks: dict[str, Chunk]
    """Those of the accumulator: `send` saves a step."""
    _partitioning: Partitioning
    _serializes: bool
    _key_serializer: Callable[[str, Any, Any], Any] | None
    _value_serializer: Callable[[str, Any, Any], Any] | None
    _given_offsets: GivenOffsets
    _hold: Hold
    _transport: Cluster
    _pump: Pump
    _callbacks: CallbackThread
    _transactions: Transactions | None
    _at_exit: Callable[[], None]
    _not_at_end_of_child: Callable[[], object]
    _opened: bool
    _warned: bool
    """That it was dropped without `close()`."""

    @property
    @abstractmethod
    def client_id(self) -> str:
        """The producer's client id."""

    @property
    @abstractmethod
    def lane(self) -> str:
        """Name of the producer's lane in the spool."""

    @abstractmethod
    def _future(self, chunk: Chunk, index: int) -> RecordFuture: ...

    def _raise_failure(self) -> None:
        failure = self._pump.ledger.failure
        if isinstance(failure, ForkedProcessError):
            raise failure.with_traceback(None)
        if isinstance(failure, (SpoolError, DeliveryTimeoutError)):
            raise type(failure)(str(failure)) from failure
        if failure is not None:
            raise SpoolError(f"The producer ended by an error: {failure!r}") from failure

    def _raise_wrong_cluster(self) -> None:
        error = self._pump.ledger.wrong_cluster
        if error is not None:
            raise WrongClusterError(*error.args) from error

    def _doubted(self, partitions: Sequence[tuple[str, int]] | None = None) -> str:
        """Return a list, for messages, of partitions that may have lost acknowledged records."""
        found = self._pump.ledger.doubted if partitions is None else partitions
        more = f" and {len(found) - 3} more" if len(found) > 3 else ""
        return ", ".join(f"{topic}-{partition}" for topic, partition in found[:3]) + more

    def _raise_loss(self) -> None:
        """Raise the next loss: acknowledged records that are not sent again, or records missing in the spool."""
        loss = self._pump.ledger.next_loss()
        if loss is not None:
            raise loss

    def _disk_cause(self) -> str:
        """Return the end of a message: why no record becomes durable for now."""
        trouble = self._pump.ledger.disk_trouble
        return f" The spool takes nothing for now: {trouble}." if trouble else ""

    def _network_cause(self) -> str:
        """Return the end of a message: why no broker can be used."""
        error = self._transport.last_error
        return "" if error is None else f" Brokers cannot be used yet ({in_words(error)})"
