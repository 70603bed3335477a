"""Builds the message about a marker that does not match the checkpoint. The message names the remedies."""

from __future__ import annotations

from kafkasafe.spark.txn import Marker, MarkerVerdict


def mismatch(
    verdict: MarkerVerdict,
    marker: Marker | None,
    batch_id: int,
    query_id: str,
    *,
    app_id: str,
    marker_topic: str,
) -> str:
    """Describes the mismatch and what to do about it. None of the remedies loses rows."""
    app, following = app_id, 0 if marker is None else marker.next_batch_id
    held = "" if marker is None or marker.rows is None else f" ({marker.rows} rows)"
    owner = "" if marker is None else marker.query_id
    accept = (
        f"start once with onMarkerMismatch=accept: then the sink writes everything from batch {batch_id} on and"
        " replaces the marker. It skips nothing, so rows that were committed before are written a second time."
    )
    restore = f" Nothing was written. If the newest checkpoint still exists, restore it. Otherwise {accept}"
    match verdict:
        case MarkerVerdict.MISSING:
            return (
                f"There is no marker for txnAppId {app!r}, but batches before {batch_id} must have written one:"
                " another sink wrote them, txnAppId was changed, or the marker topic"
                f" {marker_topic!r} was deleted. Nothing was written. Start once with"
                f" onMarkerMismatch=accept: then the sink writes batch {batch_id} and the marker. If an earlier run"
                " committed this very batch, its rows are written a second time."
            )
        case MarkerVerdict.OTHER_QUERY:
            owner = f"query {owner!r}" if owner else "no known streaming query (perhaps a batch job)"
            mine = f"this is query {query_id!r}" if query_id else "this is a batch job, or Spark Connect"
            return (
                f"The marker of txnAppId {app!r} belongs to {owner}, but {mine}: the checkpoint was deleted or"
                " belongs to another query. Batch ids of different queries cannot be compared. Nothing was written."
                " Use a new txnAppId with a new checkpoint. Or start once with onMarkerMismatch=accept, which"
                " assigns the marker to this query and writes all rows that it reads. Rows that the old query wrote"
                " and this one reads again are written a second time."
            )
        case MarkerVerdict.GAP:
            return (
                f"The marker of txnAppId {app!r} says that batch {following} comes next, but Spark runs {batch_id}:"
                " this sink never wrote the batches in between. Nothing was written. Call the sink for every"
                " micro-batch, even an empty one. With onMarkerMismatch=accept for one start, the sink writes from"
                f" batch {batch_id} on; you must then write batches {following} to {batch_id - 1} yourself."
            )
        case MarkerVerdict.ROLLED_BACK:
            return (
                f"Batches up to {following - 1} of txnAppId {app!r} are committed, but Spark runs {batch_id}: the"
                " checkpoint is older than the topic, perhaps restored from a copy. Its batches may hold other rows"
                f" than those committed under these batch ids.{restore}"
            )
        case MarkerVerdict.OTHER_ROWS:
            return (
                f"Batch {batch_id} of txnAppId {app!r} is committed{held}, but Spark runs a batch {batch_id} with"
                " other rows: the checkpoint lost its last batch (restored from a copy, or its storage lost it),"
                " and Spark planned the batch again from the records that exist now. Another possible cause, if only"
                f" the numbers of rows were compared: the query produces a different number each time.{restore}"
            )
        case _:
            return (
                f"A batch {batch_id} of txnAppId {app!r} is committed, but by an older kafkasafe that did not"
                " record its rows. So it cannot be determined whether Spark now runs the same rows or others under"
                " this batch id. Nothing was written. If this checkpoint wrote the batch and was never restored"
                " from a copy, run this batch once with the version of kafkasafe that wrote the marker: that version"
                f" skips the batch. Otherwise {accept}"
            )
