"""Whether the offsets of a consumer can be part of an atomic batch."""

from __future__ import annotations

from typing import Any

from kafkasafe.errors import UsageError

__all__ = ["check_settings"]


def check_settings(consumer: Any) -> None:
    """Raise for a consumer whose settings break what an atomic batch promises.

    A consumer that commits by itself does so ahead of batches that wait in the spool. 1. It polls records 0 to 9, and
    a batch with them goes into the spool. 2. It commits 10. 3. The batch is dropped, or the machine is lost. 4. The
    group goes on at 10, and records 0 to 9 are in no output.

    One that does not ask for stable offsets is placed before records that are in a batch. 1. The batch with records 0
    to 9 waits in the spool of another process, or its markers are on their way. 2. The partition moves here, and the
    group has no offset yet. 3. The records are read again, and are in the output twice. (KIP-447: OffsetFetch with
    `require_stable`; kafka-python asks so where `isolation_level` is "read_committed".)

    Args:
        consumer: KafkaConsumer or SafeConsumer.

    Raises:
        UsageError: The message says which option to set.
    """
    if consumer.config.get("group_id") is None:
        raise UsageError(
            "This consumer is in no group (group_id): there are no offsets to be committed for it"
        )
    if consumer.config.get("enable_auto_commit"):
        raise UsageError(
            "This consumer commits by itself, ahead of batches that wait in the spool: if one of them is dropped, its"
            " group would be past the records. Open it with enable_auto_commit=False"
        )
    asks = getattr(
        consumer, "_asks_for_stable_offsets", consumer.config.get("isolation_level") == "read_committed"
    )
    if not asks:
        raise UsageError(
            "This consumer is given offsets that open transactions are about to change, and would read again what is in"
            ' a batch that is on its way: open it with isolation_level="read_committed", or use kafkasafe.SafeConsumer'
        )
