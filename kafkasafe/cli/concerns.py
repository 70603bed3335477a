"""Rules that find settings of topics and brokers that break a producer's promises. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

_DAY_MS: Final = 86_400_000


@dataclass(frozen=True, slots=True)
class Concern:
    """One setting with an unsuitable value.

    Attributes:
        level: Either "breaks" (with this value, a promise does not hold) or "note" (the promise holds, but users should
            know of a limit).
    """

    level: Literal["breaks", "note"]
    setting: str
    value: str
    reason: str
    fix: str


def concerns_of(
    topic: Mapping[str, str | None],
    broker: Mapping[str, str | None],
    *,
    replicas: int,
    outage_ms: int,
    assumed_expiration_ms: int,
) -> list[Concern]:
    """Returns the concerns about a topic's settings. Skips settings that the brokers are too old to report.

    Args:
        topic: The topic's settings, with defaults.
        broker: Settings of a broker.
        replicas: Number of replicas of the partition with the fewest replicas; 0: unknown.
        outage_ms: Longest outage, of the cluster or of a client, that must not break a promise.
        assumed_expiration_ms: The producers' option `producer_id_expiration_ms`.
    """
    found: list[Concern] = []

    def add(level: Literal["breaks", "note"], setting: str, value: object, reason: str, fix: str) -> None:
        found.append(Concern(level, setting, str(value), reason, fix))

    if replicas == 1:
        add("breaks", "replication factor", 1, "what one disk loses is lost", "3 replicas")
    least = _number(topic.get("min.insync.replicas"))
    if least is not None and least < 2:
        reason = (
            "with acks=all, one replica can be enough for an acknowledgement: if that replica is lost, the"
            " record is lost"
        )
        add("breaks", "min.insync.replicas", least, reason, "min.insync.replicas=2, with 3 replicas")
    if topic.get("unclean.leader.election.enable") == "true":
        reason = "a replica that misses acknowledged records may become leader"
        fix = "unclean.leader.election.enable=false"
        add("breaks", "unclean.leader.election.enable", "true", reason, fix)
    policy = topic.get("cleanup.policy") or ""
    if "delete" in policy:
        kept = _number(topic.get("retention.ms"))
        if kept is not None and 0 <= kept < outage_ms:
            reason = (
                f"after an outage of {_span(outage_ms)} the proof of appended batches may be deleted already"
            )
            add("breaks", "retention.ms", kept, reason, f"retention.ms={outage_ms} or more")
        size = _number(topic.get("retention.bytes"))
        if size is not None and size >= 0:
            reason = "how long the log reaches back depends on how much is written"
            add("note", "retention.bytes", size, reason, "retention.bytes=-1, or room for the longest outage")
    if "compact" in policy:
        reason = "after an outage, compaction may already have removed the batch that the producer looks for"
        fix = f"min.compaction.lag.ms={outage_ms} or more"
        lag = _number(topic.get("min.compaction.lag.ms"))
        if lag is None or lag < outage_ms:
            add("note", "cleanup.policy", policy, reason, fix)
    if topic.get("message.timestamp.type") != "LogAppendTime":
        for name in ("message.timestamp.before.max.ms", "message.timestamp.difference.max.ms"):
            before = _number(topic.get(name))
            if before is not None and before < outage_ms:
                reason = f"a record that waited for {_span(outage_ms)} is refused for its timestamp"
                add("breaks", name, before, reason, f"{name}={outage_ms} or more")
    expires = _number(broker.get("producer.id.expiration.ms"))
    if expires is not None and expires < assumed_expiration_ms:
        reason = (
            f"producers assume {assumed_expiration_ms}: they would trust a leader that has forgotten them"
        )
        fix = f"producer_id_expiration_ms={expires} as an option of the producers"
        add("breaks", "producer.id.expiration.ms", expires, reason, fix)
    elif expires is not None and expires < outage_ms:
        reason = f"after an outage of {_span(outage_ms)} only the log itself shows what was appended"
        add(
            "note",
            "producer.id.expiration.ms",
            expires,
            reason,
            f"producer.id.expiration.ms={outage_ms} or more",
        )
    return found


def _number(text: str | None) -> int | None:
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def _span(ms: int) -> str:
    if ms % _DAY_MS == 0:
        return f"{ms // _DAY_MS} d"
    return f"{ms / 3_600_000:g} h"
