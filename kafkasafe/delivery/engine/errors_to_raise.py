"""Errors that calls of the application raise: undecidable batches, batches damaged on disk, and lost records."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Sequence

from kafkasafe import journal as j
from kafkasafe.delivery.engine.lane import Lane
from kafkasafe.delivery.engine.waits import Guard
from kafkasafe.errors import DataLossError, SpoolCorruptError, UndecidableError
from kafkasafe.spool.refusals import place_of


def _one_loss(
    losses: Sequence[DataLossError | SpoolCorruptError],
) -> DataLossError | SpoolCorruptError | None:
    """Return one error for all losses; None if nothing was lost."""
    if len(losses) < 2:
        return losses[0] if losses else None
    oldest = next((loss for loss in losses if isinstance(loss, DataLossError)), None)
    others = tuple(loss for loss in losses if loss is not oldest)
    if oldest is None:
        damage = tuple(text for loss in losses if isinstance(loss, SpoolCorruptError) for text in loss.damage)
        return SpoolCorruptError(" ".join(map(str, losses)), damage=damage)
    more = "; ".join(map(str, others[:3]))
    return DataLossError(
        f"{oldest} And {len(others)} more: {more}{'; …' if len(others) > 3 else ''}",
        topic=oldest.topic,
        partition=oldest.partition,
        first_offset=oldest.first_offset,
        last_offset=oldest.last_offset,
        records=oldest.records,
        others=others,
    )


class ErrorsToRaise:
    """See the module. The engine adds and withdraws errors; calls of the application raise them. Any thread may read
    this object.

    Attributes:
        undecided: The batches that wait for a decision, by lane and handle, with their errors.
        losses: The losses that have not been raised yet.
        damage: Partitions that wait because a batch is damaged on disk (`on_corrupt="raise"`), each with the batch's
            lane and the error.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self.undecided: dict[tuple[Lane, int], tuple[j.Batch, UndecidableError]] = {}
        self._shown: list[tuple[Lane, int]] = []
        """The undecided batches that the last raised error is about."""
        self.damage: dict[tuple[str, int], tuple[Lane, SpoolCorruptError]] = {}
        self.losses: collections.deque[DataLossError | SpoolCorruptError] = collections.deque()

    # -- undecidable batches -------------------------------------------------------------------------------------------

    @property
    def undecidable(self) -> bool:
        """Whether a batch waits for a decision."""
        return bool(self.undecided)

    def ask_about(self, lane: Lane, batch: j.Batch, error: UndecidableError) -> None:
        """Make the application's calls raise this error until the application decides about the batch."""
        with self._guard.lock:
            self.undecided[lane, batch.handle] = batch, error
            self._guard.waiters.notify_all()

    def hand_over(self, lane: Lane) -> None:
        """Stop raising errors about this lane's batches, because another producer owns the lane now."""
        with self._guard.lock:
            for key in tuple(key for key in self.undecided if key[0] is lane):
                del self.undecided[key]
            for address in tuple(address for address, (of, _) in self.damage.items() if of is lane):
                del self.damage[address]

    def take_shown(self) -> list[tuple[Lane, j.Batch]]:
        """Take the undecidable batches to which the caller's decision applies. No error is raised for them any more."""
        with self._guard.lock:
            keys = self._shown or list(self.undecided)
            self._shown = []
            return self._take(keys)

    def _take(self, keys: Iterable[tuple[Lane, int]]) -> list[tuple[Lane, j.Batch]]:
        # A signal handler may take some of these batches during the call, so check each key right before it is removed.
        return [(key[0], self.undecided.pop(key)[0]) for key in keys if key in self.undecided]

    def raise_undecidable(self) -> None:
        """Raise the error about all batches that wait for a decision, if there are any."""
        if not self.undecided:
            return
        with self._guard.lock:
            self._shown = list(self.undecided)
            errors = [error for _, error in self.undecided.values()]
        if len(errors) > 1:
            more = "; ".join(error.evidence for error in errors[1:4])
            note = f" The same of {len(errors) - 1} more batches: {more}{'; …' if len(errors) > 4 else ''}"
            raise UndecidableError(f"{errors[0].args[0]}.{note}", evidence=errors[0].evidence)
        if errors:
            raise UndecidableError(*errors[0].args, evidence=errors[0].evidence)

    # -- lost records --------------------------------------------------------------------------------------------------

    def lose(self, error: DataLossError | SpoolCorruptError) -> None:
        """Make the next `send`, `flush` or `close` raise this error, once."""
        with self._guard.lock:
            self.losses.append(error)
            self._guard.waiters.notify_all()

    def next_loss(self) -> DataLossError | SpoolCorruptError | None:
        """Take the oldest loss that has not been raised yet."""
        if not self.losses:
            return None
        with self._guard.lock:
            return self.losses.popleft() if self.losses else None  # another caller may have taken it

    def losses_left(self) -> DataLossError | SpoolCorruptError | None:
        """Take all losses that have not been raised yet, as one error."""
        with self._guard.lock:
            losses, self.losses = list(self.losses), collections.deque()
        return _one_loss(losses)

    # -- damaged batches -----------------------------------------------------------------------------------------------

    @property
    def damaged(self) -> bool:
        """Whether any partition waits because of a batch that is damaged on disk."""
        return bool(self.damage)

    def block(self, lane: Lane, address: tuple[str, int], error: SpoolCorruptError) -> None:
        """Note that a partition waits, because a batch of this lane is damaged on disk."""
        with self._guard.lock:
            self.damage[address] = lane, error
            self._guard.waiters.notify_all()

    def unblock(self, lane: Lane, address: tuple[str, int]) -> None:
        """Note that this lane's batch of the partition can be read again. Damage in another lane remains."""
        found = self.damage.get(address)
        if found is not None and found[0] is lane:
            self.damage.pop(address, None)

    def raise_damage(self, topic: str | None = None) -> None:
        """Raise an error if a partition of `topic` (None: of any topic) waits because of a batch that is damaged on
        disk.
        """
        if not self.damage:
            return
        for (name, partition), (_, error) in list(self.damage.items()):
            if topic in {None, name}:
                raise SpoolCorruptError(
                    f"{place_of(name, partition)} waits: {error.args[0]}. Other partitions"
                    " continue. Restore the file from a copy, or open with on_corrupt='quarantine': kafkasafe then"
                    " copies the damaged bytes to quarantine/, their records are lost, and all others are delivered",
                    damage=error.damage,
                ) from error
