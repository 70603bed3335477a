"""What happens in a history: settings, and events as data. A seed makes both."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happens. `a`, `b` and `c` are all that is random in it."""

    name: str
    a: int
    b: int
    c: int

    def __str__(self) -> str:
        return f"{self.name}({self.a}, {self.b}, {self.c})"


@dataclass(frozen=True, slots=True)
class Settings:
    """What kind of world it is.

    Attributes:
        spool: Of all producers.
        workers: Producers on the spool directory.
        partitions: Of the topic.
        brokers: How many.
        describes: Brokers know DescribeProducers.
        late_topic: The topic is made by an event, and the partitions of records are chosen when it is there.
        old: How many of a hundred batches have old timestamps.
        poison: How many of a hundred records a compacted topic refuses, because they have no key.
        huge: How many of a hundred records are too large for the topic.
        stubborn: How many of a hundred records the leader fails on.
        segment_bytes: Of the spool.
        spool_bytes: How large the spool may grow.
        memory_bytes: Durable batches that are also in memory.
        budget_bytes: The same, with those that were read back to be sent.
        packs: Whatever is far from its turn is packed.
        refused_s: `blocked_timeout_ms`.
        heals: `on_data_loss="restore"`, or "event".
        heals_recreated: `restore_recreated_topics`.
        retains: The spool keeps everything that was acknowledged.
        loses: The cluster loses what it acknowledged.
        own_names: Each worker has a client id of its own.
        version: Of the brokers. Requests to those of 2.8.2 name topics, not their ids.
    """

    spool: str = "always"
    workers: int = 1
    partitions: int = 2
    brokers: int = 3
    describes: bool = True
    late_topic: bool = False
    old: int = 0
    poison: int = 0
    huge: int = 0
    stubborn: int = 0
    segment_bytes: int = 4 << 20
    spool_bytes: int = 16 << 20
    memory_bytes: int = 16 << 20
    budget_bytes: int = 32 << 20
    packs: bool = False
    refused_s: float = 604_800.0
    heals: bool = True
    heals_recreated: bool = False
    retains: bool = False
    loses: bool = False
    own_names: bool = False
    version: str = "4.3.0"


@dataclass(frozen=True, slots=True)
class Kind:
    """What plans of a kind are like.

    Attributes:
        share: How many of all seeds are of it, in comparison.
        weights: How often each event comes, in comparison; added to `_ALWAYS`.
        settings: By name, the values that are drawn from.
        steps: How many events, drawn from these.
    """

    share: int
    weights: Mapping[str, int]
    settings: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    steps: Sequence[int] = (15, 25, 40)


@dataclass(frozen=True, slots=True)
class Plan:
    """A history before it happens."""

    seed: int
    kind: str
    settings: Settings
    events: tuple[Event, ...]

    def only(self, keep: Sequence[int]) -> Plan:
        """The same with some of the events."""
        return replace(self, events=tuple(self.events[at] for at in keep))


_ALWAYS: Final = {"send": 30, "wait": 20}
_NETWORK: Final = {
    "outage": 3,
    "swallow": 5,
    "late": 4,
    "cut": 4,
    "stall": 2,
    "deaf": 2,
    "slow": 2,
    "throttle": 1,
}
_BROKERS: Final = {"lead": 4, "broker": 4, "pause": 2, "lag": 3, "code": 5, "foreign": 2}
_DISK: Final = {"disk": 4, "full": 1}
_CRASHES: Final = {"kill": 6, "crash_at": 5, "close": 2, "freeze": 2}
_AGE: Final = {"forget": 2, "sleep": 1, "clock": 1}
_ALL: Final = _NETWORK | _BROKERS | _DISK | _CRASHES | _AGE

KINDS: Final[Mapping[str, Kind]] = {
    "all": Kind(
        30,
        _ALL | {"limit": 1, "spill": 1},
        {
            "spool": ("always", "always", "on_error"),
            "brokers": (1, 3, 3),
            "partitions": (1, 2, 2, 3),
            "describes": (True, True, True, False),
            "segment_bytes": (1500, 4000, 4 << 20),
            "memory_bytes": (0, 2000, 16 << 20),
        },
    ),
    "calm network": Kind(
        5, _DISK | _CRASHES, {"spool": ("always", "on_error"), "segment_bytes": (1500, 4 << 20), "brokers": (1,)}
    ),
    "lanes": Kind(
        15,
        _NETWORK | {"kill": 12, "crash_at": 6, "close": 4, "freeze": 3, "lead": 2, "disk": 2},
        {"workers": (2, 2, 3), "partitions": (1, 2), "spool": ("always", "always", "on_error"), "brokers": (1, 3)},
    ),
    "adopted": Kind(
        10,
        {"darkness": 5, "long": 10, "gone": 10, "kill": 5, "want": 4, "swallow": 3, "cut": 2, "disk": 1, "close": 1},
        {
            "own_names": (True, True, False),
            "workers": (2, 3, 3),
            "partitions": (1, 1, 2),
            "spool": ("always", "always", "on_error"),
            "late_topic": (False, False, False, True),
            "segment_bytes": (1500, 4 << 20),
            "brokers": (1,),
        },
    ),
    "blind": Kind(
        8,
        _NETWORK | _BROKERS | _CRASHES | {"limit": 3, "forget": 1},
        {"describes": (False,), "partitions": (1,), "segment_bytes": (1500, 4 << 20), "brokers": (1, 3)},
    ),
    "pipeline": Kind(
        6,
        {"send": 30, "code": 16, "lead": 3, "late": 3, "swallow": 3, "kill": 3, "outage": 1},
        {"partitions": (1,), "brokers": (1, 3), "memory_bytes": (0, 16 << 20)},
    ),
    "disk": Kind(
        6,
        {"disk": 16, "code": 4, "limit": 6, "swallow": 3, "kill": 6, "outage": 2, "crash_at": 2},
        {
            "partitions": (1,),
            "brokers": (1,),
            "poison": (5, 20),
            "huge": (0, 20),
            "spool": ("always", "always", "on_error"),
        },
    ),
    "late topic": Kind(
        10,
        _NETWORK | _DISK | _CRASHES | {"create": 3, "spill": 1, "uplink": 2},
        {"late_topic": (True,), "partitions": (1, 2, 3), "spool": ("always", "always", "on_error"), "brokers": (1, 3)},
    ),
    "old": Kind(
        8,
        _NETWORK | _BROKERS | _CRASHES | {"forget": 4, "expire": 6, "uplink": 2, "sleep": 3, "clock": 3},
        {"old": (30, 100), "partitions": (1, 1, 2), "brokers": (1, 3)},
    ),
    "refused": Kind(
        10,
        _NETWORK | _CRASHES | {"disk": 2, "limit": 4, "code": 3},
        {
            "poison": (0, 5, 20),
            "huge": (0, 5, 20),
            "stubborn": (0, 0, 3),
            "refused_s": (30.0, 604_800.0),
            "partitions": (1, 2),
            "spool": ("always", "always", "on_error"),
            "brokers": (1, 3),
            "segment_bytes": (2500, 4 << 20),
        },
    ),
    "denied": Kind(
        8,
        {"outage": 2, "swallow": 3, "cut": 3, "kill": 3, "deny": 6, "missing": 4, "code": 6},
        {"refused_s": (20.0, 604_800.0), "partitions": (1, 2), "brokers": (1,), "late_topic": (False, False, True)},
    ),
    "lossy": Kind(
        10,
        _NETWORK | _CRASHES | {"unclean": 10, "wipe": 2, "lead": 3, "code": 2, "foreign": 1},
        {
            "loses": (True,),
            "retains": (True, True, True, False),
            "heals": (True, True, True, False),
            "partitions": (1, 1, 2),
            "segment_bytes": (1500, 4 << 20),
            "brokers": (1, 3),
        },
    ),
    "recreated": Kind(
        4,
        _NETWORK | _CRASHES | {"recreate": 6, "lead": 2},
        {"loses": (True,), "retains": (True, False), "heals_recreated": (False, True), "partitions": (1, 2), "brokers": (1,)},
    ),
    "trimmed": Kind(
        4,
        _NETWORK | _CRASHES | {"trim": 8, "forget": 3, "lead": 2},
        {"partitions": (1, 2), "brokers": (1, 3), "describes": (True, False)},
    ),
    "strangers": Kind(
        4, _NETWORK | {"kill": 4, "close": 2, "stranger": 8}, {"partitions": (1, 2), "brokers": (1,)}, (10, 20)
    ),
    "many": Kind(
        4,
        {"outage": 6, "swallow": 4, "cut": 4, "uplink": 4, "stall": 2, "code": 4, "kill": 3, "lead": 3},
        {
            "partitions": (20, 40),
            "memory_bytes": (0, 2000),
            "budget_bytes": (600, 4000),
            "packs": (True, True, False),
            "brokers": (1, 3),
        },
    ),
    "full": Kind(
        4,
        _NETWORK | {"kill": 3, "full": 8, "disk": 4, "crash_at": 2},
        {"segment_bytes": (2000, 4000), "spool_bytes": (20_000, 40_000), "memory_bytes": (0, 4000), "packs": (False, True), "brokers": (1,)},
    ),
    "room": Kind(
        0,  # see `_BESIDE`, as of all that follow
        {"strand": 12, "outage": 2, "swallow": 3, "kill": 4, "crash_at": 4, "disk": 2, "deny": 2, "lead": 2, "send": 30},
        {
            "segment_bytes": (1000, 1500),
            "spool_bytes": (8_000, 10_000),
            "memory_bytes": (0, 16 << 20),
            "refused_s": (20.0, 604_800.0),
            "partitions": (2, 3),
            "brokers": (1, 3),
        },
        (50, 80),
    ),
    # Each of these looks at one thing that is rare in the others.
    "late refusals": Kind(
        0,
        {"late": 20, "limit": 20},
        {"describes": (False,), "partitions": (1,), "brokers": (1,)},
        (25, 40),
    ),
    "holes": Kind(
        0,
        {"code": 20, "broker": 8, "outage": 6, "kill": 8},
        {"describes": (False,), "partitions": (1,), "brokers": (1,), "segment_bytes": (1000, 4 << 20)},
    ),
    "first lives": Kind(
        0,
        {"kill": 12, "swallow": 12, "broker": 4, "expire": 10, "send": 20, "wait": 20},
        {"old": (100,), "partitions": (1, 2), "brokers": (1,)},
        (10, 15),
    ),
    "all refused": Kind(
        0,
        {"send": 30, "disk": 3, "full": 1, "kill": 4, "crash_at": 4, "close": 2, "swallow": 2, "cut": 1},
        {
            "poison": (70, 100),
            "huge": (0, 20),
            "partitions": (1, 2),
            "spool": ("always", "always", "on_error"),
            "brokers": (1, 3),
            "segment_bytes": (2500, 4 << 20),
        },
    ),
    "broken": Kind(
        0,
        _NETWORK | {"break": 12, "full": 2, "disk": 4, "kill": 5, "crash_at": 4, "close": 2, "spill": 2, "lead": 2, "code": 3}
        | {"forget": 1, "create": 2},
        {
            "spool": ("on_error",),
            "late_topic": (False, False, False, True),
            "poison": (0, 0, 0, 10),
            "huge": (0, 0, 0, 10),
            "partitions": (1, 2),
            "segment_bytes": (1500, 4 << 20),
            "packs": (True, False),
            "brokers": (1, 3),
        },
    ),
    "former topics": Kind(
        0,
        _NETWORK | {"kill": 3, "crash_at": 2, "close": 2, "freeze": 1, "replace": 10, "lead": 3, "lag": 2},
        {
            "version": ("4.3.0", "4.3.0", "2.8.2"),
            "loses": (True,),
            "retains": (True, False),
            "heals_recreated": (False, True),
            "partitions": (1, 2, 3),
            "brokers": (3,),
        },
    ),
    "adopted in little room": Kind(
        0,
        {"darkness": 4, "long": 4, "gone": 4, "kill": 10, "create": 2, "want": 4, "swallow": 2, "close": 1, "send": 40},
        {
            "own_names": (True, True, False),
            "workers": (2, 3, 3),
            "partitions": (1, 1, 2),
            "late_topic": (True, True, False),
            "segment_bytes": (1000, 1500),
            "spool_bytes": (8_000, 10_000),
            "memory_bytes": (0, 16 << 20),
            "packs": (False, False, True),
            "huge": (0, 0, 10),
            "brokers": (1,),
        },
    ),
}  # fmt: skip

_PERIOD: Final = 24
_BESIDE: Final = {
    2: "former topics",
    5: "room",
    8: "late refusals",
    14: "holes",
    17: "all refused",
    19: "adopted in little room",
    20: "first lives",
    22: "broken",
}
"""Kinds that came later, by a seed's remainder: so all other seeds stand for the histories that they stood for before."""
_UNITS: Final = frozenset({11, 23})


def is_of_units(seed: int) -> bool:
    """A seed that stands for a storm of atomic batches, if no kind is asked for: such a storm has no `Plan`."""
    return seed % _PERIOD in _UNITS


def plan_of(seed: int, kind: str = "") -> Plan:
    """The history that a seed stands for, of its own kind or of the one that is asked for."""
    rng = random.Random(f"{seed} {kind}")
    name = kind
    if not name:
        drawn = rng.choices(list(KINDS), [each.share for each in KINDS.values()])[0]
        name = _BESIDE.get(seed % _PERIOD, drawn)
    found = KINDS[name]
    settings = Settings(**{key: rng.choice(values) for key, values in found.settings.items()})
    weights = _ALWAYS | found.weights
    names = rng.choices(list(weights), list(weights.values()), k=rng.choice(found.steps))
    events = [Event(each, *(rng.randrange(1 << 16) for _ in range(3))) for each in names]
    return Plan(seed, name, settings, tuple(events))
