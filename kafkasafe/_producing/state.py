"""The base of all parts of `SafeProducer`: the shared attributes, and the errors that its calls raise.

The parts are a chain in which each may use the earlier ones. `Opening`, the last one, creates the attributes declared
here. The parts use files and the network only through the pump and the `Cluster`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

from kafkasafe._io.batch_offsets import GivenOffsets
from kafkasafe._io.one_process import OfOneProcess
from kafkasafe._io.pump import Pump
from kafkasafe._producing.accumulator import Accumulator
from kafkasafe._producing.admission import Admission
from kafkasafe._producing.chunk import Chunk
from kafkasafe._producing.delivery import Delivery
from kafkasafe._producing.lifecycle import Lifecycle
from kafkasafe._producing.partitioning import Partitioning
from kafkasafe._producing.record_form import RecordForm
from kafkasafe.cluster.api import Cluster
from kafkasafe.config import ProducerConfig

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
    _given_offsets: GivenOffsets
    _hold: Hold
    _transport: Cluster
    _pump: Pump
    _delivery: Delivery
    _admission: Admission
    _form: RecordForm
    _plain: bool
    """That of the form: `send` saves a step."""
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
