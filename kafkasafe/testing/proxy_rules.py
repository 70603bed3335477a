"""The rules of `FaultProxy`: which requests they match, and what they change."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from kafkasafe.errors import UsageError
from kafkasafe.kafkapython import frames
from kafkasafe.kafkapython.frames import Api, Level

__all__ = ["Call", "Exchange", "Pending", "Rule", "Rules"]


@dataclass(frozen=True, slots=True)
class Call:
    """A request that the proxy received.

    Attributes:
        time: When it arrived, `time.monotonic()` in seconds.
        api: Name of the API; its number as text if kafka-python does not know it.
        version: API version.
        node: Node id of the broker to which it was addressed.
        client_id: The client's id.
        connection: Number of the connection.
        partitions: All (topic, partition) that it names; partition -1 if it names only the topic. A Fetch within a
            session names only the partitions that changed.
        forwarded: Whether a broker got the request, or a part of it.
    """

    time: float
    api: str
    version: int
    node: int
    client_id: str
    connection: int
    partitions: tuple[tuple[str, int], ...]
    forwarded: bool = True


@dataclass(slots=True, eq=False)
class Exchange:
    """A request and its response, as passed to predicates and edits.

    Attributes:
        call: The request in brief.
        request: kafka-python's object.
        response: kafka-python's object; None for rules that act before forwarding.
    """

    call: Call
    request: Any
    response: Any = None


Edit = Callable[[Exchange], None]


@dataclass(slots=True)
class Effects:
    """The effects on one response as a whole."""

    delay_s: float = 0.0
    copies: int = 1
    truncate_to: int | None = None
    drop: bool = False
    mute: bool = False
    hang_up: bool = False


class Rule:
    """The faults that the proxy causes for matching requests and responses. Made by `FaultProxy.on`; thread-safe.

    The effects of its methods accumulate, and each method returns the rule. Each call takes effect at once. So
    configure related effects in one call, or begin with `when`. Rules act in the order in which they were made. If two
    set the same field, the later one wins.

    Attributes:
        hits: How often the rule has acted.
    """

    def __init__(self, _rules: Rules, api: Api | None, topic: str | None, partition: int | None) -> None:
        self.hits = 0
        self._rules = _rules
        self._api = api
        self._topic = topic
        self._partition = partition
        self._predicates: list[Callable[[Exchange], bool]] = []
        self._skip = 0
        self._times: int | None = None
        # The fields to set, in order: (level, fields).
        self._fields: list[tuple[Level, dict[str, Any]]] = []
        self._edits: list[Edit] = []
        self._leave_out = False
        self._additions: list[tuple[str, int, dict[str, Any]]] = []
        self._effects = Effects()
        self._unforwarded: str = ""  # "answer", "drop", "hang up"; "" forwards the request

    def __repr__(self) -> str:
        name = "any request" if self._api is None else self._api.name
        where = "" if self._topic is None else f" of {self._topic}"
        where += "" if self._partition is None else f"-{self._partition}"
        return f"<Rule for {name}{where}, {self.hits} hits>"

    # -- Conditions ----------------------------------------------------------------------------------------------

    def when(self, predicate: Callable[[Exchange], bool]) -> Self:
        """Acts only if the predicate returns True. The proxy's thread calls it, so it must not block."""
        self._predicates.append(predicate)
        return self

    def after(self, count: int) -> Self:
        """Ignores the first `count` matching requests."""
        self._skip = count
        return self

    # -- Changes of the answer -----------------------------------------------------------------------------------

    def answer(
        self, code: int, *, times: int | None = None, level: Level | None = None, **fields: Any
    ) -> Self:
        """Puts an error into the answer, although the broker carries out the request.

        The answer's other fields get the values that a broker sends with an error (a base offset of -1 …), unless
        `fields` overrides them.

        Args:
            code: Kafka's error code; 0 for success.
            times: How often the rule acts; by default always.
            level: "partition", "topic" or "top": which error code to set. Default: the partitions' if the answer has
                partitions. Default for Metadata: the topics', unless the rule names a partition.
            fields: Other fields to set, at any level.

        Raises:
            UsageError: The API's answers have no such field.
        """
        self._answer(code, level, fields)
        return self._limit(times)

    def answer_without_forwarding(
        self, code: int = 0, *, times: int | None = None, level: Level | None = None, **fields: Any
    ) -> Self:
        """Like `answer`, but no broker gets the request. If the request names several partitions, a broker gets the
        request without this partition.

        A Metadata request is forwarded nevertheless, without the topic if it names it, because the answer must name the
        brokers.
        """
        self._answer(code, level, fields)
        self._unforwarded = "answer"
        return self._limit(times)

    def set(self, *, times: int | None = None, **fields: Any) -> Self:
        """Changes fields of the answer. Structs can be dicts. Ignores fields that the answer's version does not have.

        Raises:
            UsageError: The API's answers have no such field.
        """
        for name, value in fields.items():
            self._fields.append((self._known().level_of(name), {name: value}))
        return self._limit(times)

    def edit(self, change: Edit, *, times: int | None = None) -> Self:
        """Calls `change` with the exchange on the proxy's thread. It may modify the exchange's `response`."""
        self._edits.append(change)
        return self._limit(times)

    def leave_out(self, *, times: int | None = None) -> Self:
        """Removes the rule's topic or partition from the answer."""
        self._leave_out = True
        return self._limit(times)

    def add(self, topic: str, partition: int, *, times: int | None = None, **fields: Any) -> Self:
        """Adds a partition to the answer that the request did not name."""
        self._additions.append((topic, partition, fields))
        return self._limit(times)

    # -- Delivery ------------------------------------------------------------------------------------------------

    def drop(self, *, times: int | None = None, forward: bool = True, mute: bool = True) -> Self:
        """Never delivers the answer.

        Args:
            times: How often the rule acts; by default always.
            forward: False: the broker does not get the request either.
            mute: True: nothing more arrives on this connection, as after a network failure. False: later answers
                arrive, which no real broker would do.
        """
        self._effects.drop = True
        self._effects.mute = mute
        if not forward:
            self._unforwarded = "drop"
        return self._limit(times)

    def delay(self, seconds: float, *, times: int | None = None) -> Self:
        """Delays the answer, and all later ones on the connection, by that much."""
        self._effects.delay_s = seconds
        return self._limit(times)

    def duplicate(self, copies: int = 2, *, times: int | None = None) -> Self:
        """Delivers the answer this many times."""
        self._effects.copies = copies
        return self._limit(times)

    def truncate(self, size_bytes: int, *, times: int | None = None, hang_up: bool = False) -> Self:
        """Delivers only the first bytes of the answer.

        Args:
            size_bytes: How many bytes to deliver, without the frame's size field.
            times: How often the rule acts; by default always.
            hang_up: True: the size field has the full size, and the connection closes in the middle. False: the frame
                is complete, but its content is too short.
        """
        self._effects.truncate_to = size_bytes
        self._effects.hang_up = hang_up
        return self._limit(times)

    def hang_up(self, *, times: int | None = None, forward: bool = True) -> Self:
        """Closes the connection instead of answering; with `forward=False` before the broker gets the request."""
        self._effects.drop = True
        self._effects.hang_up = True
        if not forward:
            self._unforwarded = "hang up"
        return self._limit(times)

    # -- Lifecycle -----------------------------------------------------------------------------------------------

    def remove(self) -> None:
        """Ends the rule. `hits` keeps its value."""
        self._rules.remove(self)

    def wait(self, hits: int = 1, timeout_s: float = 10.0) -> None:
        """Waits until the rule has acted this often.

        Raises:
            TimeoutError: The rule has not acted this often within that time.
        """
        with self._rules.changed:
            if not self._rules.changed.wait_for(lambda: self.hits >= hits, timeout_s):
                raise TimeoutError(f"{self!r}: fewer than {hits} hits within {timeout_s} s")

    # -- On the proxy's thread -----------------------------------------------------------------------------------

    def _known(self) -> Api:
        if self._api is None:
            raise UsageError("Only the answers of one API can be changed: name it in on()")
        return self._api

    def _limit(self, times: int | None) -> Self:
        if times is not None:
            self._times = times
        return self

    def _answer(self, code: int, level: Level | None, fields: Mapping[str, Any]) -> None:
        api = self._known()
        if level is None:
            level = self._default_level(api)
        name = api.error_field(level)
        if name is None:
            raise UsageError(f"{api.name} has no error code at level {level!r}")
        beside = api.beside_error(level) if code else {}
        others = [(api.level_of(key), {key: value}) for key, value in fields.items()]
        self._fields += [(level, {**beside, name: code}), *others]

    def _default_level(self, api: Api) -> Level:
        levels: tuple[Level, ...] = ("partition", "topic", "top")
        if api.name == "Metadata":
            levels = ("partition",) if self._partition is not None else ("topic",)
        for level in levels:
            if api.error_field(level) is not None:
                return level
        raise UsageError(f"{api.name} has no error code")

    @property
    def _spent(self) -> bool:
        return self._times is not None and self.hits >= self._times

    def _fits(self, name: str, partitions: Iterable[tuple[str, int]]) -> bool:
        if self._api is not None and self._api.name != name:
            return False
        return self._topic is None or any(self._names(*which) for which in partitions)

    def _names(self, topic: str, partition: int) -> bool:
        return self._topic in {None, topic} and self._partition in {None, partition}

    def _acts(self, exchange: Exchange) -> bool:
        """Returns whether the rule acts on this matching exchange, and counts it."""
        if self._spent or not all(predicate(exchange) for predicate in self._predicates):
            return False
        if self._skip:
            self._skip -= 1
            return False
        with self._rules.changed:
            self.hits += 1
            self._rules.changed.notify_all()
        return True

    def _set_fields(self, level: Level, target: Any) -> None:
        for at, fields in self._fields:
            if at == level:
                if level == "top":
                    frames.assign_outside(target, fields)
                else:
                    frames.assign(target, fields)

    def _change(self, exchange: Exchange, response: frames.Response, names: Mapping[uuid.UUID, str]) -> None:
        self._set_fields("top", response.message)
        for spot in frames.spots(response.message, names):
            partitions = spot.partitions or []
            if self._topic not in {None, spot.name}:
                continue
            if self._leave_out and (self._partition is None or not partitions):
                spot.container.remove(spot.topic)
                continue
            if self._partition is None or self._partition in spot.numbers():
                self._set_fields("topic", spot.topic)
            for entry in [e for e in partitions if self._names(spot.name, spot.number_of(e))]:
                if self._leave_out:
                    partitions.remove(entry)
                elif spot.number is not None:
                    self._set_fields("partition", entry)
        for topic, partition, fields in self._additions:
            frames.assign(frames.put(response, names, topic, partition), fields)
        for change in self._edits:
            change(exchange)


@dataclass(slots=True, eq=False)
class Pending:
    """A request whose response was not delivered to the client yet."""

    call: Call
    request: frames.RequestFrame
    applied: list[Rule] = field(default_factory=list)
    """Rules that acted before the request was forwarded."""
    synthetic: list[tuple[Rule, str, int]] = field(default_factory=list)
    """(rule, topic, partition) of the parts that the broker did not get; partition -1 for the topic as a whole."""
    forwarded: bool = True
    silent: bool = False
    """No response will come, because the request was dropped before a broker got it."""
    parts: list[bytes] | None = None
    """The response to deliver to the client."""
    due: float = 0.0
    effects: Effects = field(default_factory=Effects)


class Rules:
    """The rules of a proxy. Applies them to requests and responses. Thread-safe.

    Attributes:
        changed: Notified when a rule has acted.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self._all: tuple[Rule, ...] = ()

    def __len__(self) -> int:
        return len(self._all)

    def add(self, api: Api | None, topic: str | None, partition: int | None) -> Rule:
        """Makes a rule."""
        rule = Rule(self, api, topic, partition)
        with self.changed:
            self._all = (*self._all, rule)
        return rule

    def remove(self, rule: Rule) -> None:
        """Ends a rule."""
        with self.changed:
            self._all = tuple(other for other in self._all if other is not rule)

    def clear(self) -> None:
        """Ends all rules."""
        with self.changed:
            self._all = ()

    # -- On the proxy's thread -----------------------------------------------------------------------------------

    def concern(self, api: Api) -> bool:
        """Returns whether a rule may act on answers of this API."""
        return any(rule._api in {None, api} and not rule._spent for rule in self._all)

    def hold_back(self, pending: Pending, frame: bytes, names: Mapping[uuid.UUID, str]) -> bytes:
        """Applies rules before the broker gets the request. Returns the frame for the broker, without its size."""
        request = pending.request
        changed = False
        for rule in self._all:
            if not rule._unforwarded or not rule._fits(pending.call.api, pending.call.partitions):
                continue
            if not rule._acts(Exchange(pending.call, request.message)):
                continue
            pending.applied.append(rule)
            if rule._unforwarded != "answer":
                _add_effects(pending, rule)
                pending.forwarded = False
                pending.silent = True
                return frame
            before = len(pending.synthetic)
            for spot in frames.spots(request.message, names):
                if spot.partitions:
                    for entry in [e for e in spot.partitions if rule._names(spot.name, spot.number_of(e))]:
                        spot.partitions.remove(entry)
                        pending.synthetic.append((rule, spot.name, spot.number_of(entry)))
                    empty = not spot.partitions
                else:
                    empty = rule._topic in {None, spot.name}
                    if empty:
                        pending.synthetic.append((rule, spot.name, -1))
                if empty:
                    spot.container.remove(spot.topic)
            changed = changed or len(pending.synthetic) > before
        if not pending.applied:
            return frame
        # Without brokers, a Metadata answer would be useless. So the broker gets the request in any case.
        rest = frames.spots(request.message, names) or pending.call.api == "Metadata"
        pending.forwarded = bool(changed and rest)
        return request.encode()[frames.SIZE_BYTES :] if changed else frame

    def apply_blind(self, pending: Pending) -> None:
        """Applies rules to an answer that is not decoded."""
        for rule in self._all:
            known = rule._api is None or rule._api is pending.request.api
            if known and not rule._unforwarded and rule._fits(pending.call.api, pending.call.partitions):
                exchange = Exchange(pending.call, pending.request.message)
                if rule._acts(exchange):
                    _add_effects(pending, rule)

    def apply(self, pending: Pending, response: frames.Response, names: Mapping[uuid.UUID, str]) -> bool:
        """Applies rules to a decoded answer. Returns whether they changed it."""
        changed = False
        message = response.message
        exchange = Exchange(pending.call, pending.request.message, message)
        for rule in pending.applied:
            _add_effects(pending, rule)
            if any(rule is other for other, _, _ in pending.synthetic):
                rule._set_fields("top", message)
            else:
                rule._change(exchange, response, names)
            changed = True
        for rule, topic, partition in pending.synthetic:
            api = pending.request.api
            lone = partition < 0 or (api is not None and api.error_field("partition") is None)
            entry = frames.put(response, names, topic, None if lone else partition)
            rule._set_fields("topic" if lone else "partition", entry)
        named = [
            (spot.name, number) for spot in frames.spots(message, names) for number in spot.numbers() or [-1]
        ] or list(pending.call.partitions)
        for rule in self._all:
            if rule._unforwarded and not (
                # A request cannot ask for all topics except one.
                rule._unforwarded == "answer" and pending.call.api == "Metadata" and not pending.applied
            ):
                continue
            if not rule._fits(pending.call.api, named) or not rule._acts(exchange):
                continue
            _add_effects(pending, rule)
            if rule._fields or rule._edits or rule._leave_out or rule._additions:
                rule._change(exchange, response, names)
                changed = True
        return changed


def _add_effects(pending: Pending, rule: Rule) -> None:
    mine, more = pending.effects, rule._effects
    mine.delay_s += more.delay_s
    mine.copies = max(mine.copies, more.copies)
    if more.truncate_to is not None:
        mine.truncate_to = more.truncate_to
    mine.drop |= more.drop
    mine.mute |= more.mute
    mine.hang_up |= more.hang_up
