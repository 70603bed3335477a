"""One error for several losses, for the last call that can raise."""

from __future__ import annotations

from collections.abc import Sequence

from kafkasafe.errors import DataLossError, SpoolCorruptError

__all__ = ["one_loss"]


def one_loss(
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
