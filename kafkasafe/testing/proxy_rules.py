"""The rules of `FaultProxy`: which requests they match, and what they change."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from kafkasafe.errors import UsageError
from kafkasafe.kafkapython import frames
from kafkasafe.kafkapython.frames import Api, Level


@dataclass(frozen=True, slots=True)
class Call:
    """A request that the proxy received.

    Attributes:
        time: Time at which the request arrived (`time.monotonic()`).
        api: Name of the API; its number as text if kafka-python does not know the API.
        version: API version.
        node: Node id of the broker to which the client sent the request.
        client_id: The client's id.
        connection: Number of the client's connection to the proxy.
        partitions: All (topic, partition) that the request names. The partition is -1 if the request names only the
            topic. A Fetch within a session names only the partitions that changed.
        forwarded: Whether a broker got at least a part of the request.
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
        request: kafka-python's request object.
        response: kafka-python's response object. None before the request is forwarded, and if the answer cannot be
            decoded.
    """

    call: Call
    request: Any
    response: Any = None


Edit = Callable[[Exchange], None]


@dataclass(frozen=True, slots=True)
class Effects:
    """The effects on one response as a whole."""

    delay_s: float = 0.0
    copies: int = 1
    truncate_to: int | None = None
    drop: bool = False
    mute: bool = False
    hang_up: bool = False

    def __add__(self, more: Effects) -> Effects:
        return Effects(
            self.delay_s + more.delay_s,
            max(self.copies, more.copies),
            self.truncate_to if more.truncate_to is None else more.truncate_to,
            self.drop or more.drop,
            self.mute or more.mute,
            self.hang_up or more.hang_up,
        )


class Intervention:
    """The content of one rule: which requests it matches, and what it changes. `Rule` sets the content, and `Rules`
    applies it on the proxy's thread.

    Args:
        changed: Condition that is notified each time the intervention has acted on a request.
        api: The API of the requests; None for any.
        topic: The topic that a request must name; None for any.
        partition: The partition of this topic; None for any.

    Attributes:
        hits: How often the intervention has acted.
        unforwarded: What happens instead of forwarding the request: "answer", "drop" or "hang up". Empty if the request
            is forwarded.
        effects: The effects on a response as a whole.
        fields: The values to set in a response, in this order. Each entry is a level, such as "topic", and a dict from
            the names of fields at this level to their values.
    """

    def __init__(
        self, changed: threading.Condition, api: Api | None, topic: str | None, partition: int | None
    ) -> None:
        self.api = api
        self.topic = topic
        self.partition = partition
        self.hits = 0
        self.unforwarded = ""
        self.effects = Effects()
        self.fields: list[tuple[Level, dict[str, Any]]] = []
        self._changed = changed
        self._predicates: list[Callable[[Exchange], bool]] = []
        self._skip = 0
        self._times: int | None = None
        self._edits: list[Edit] = []
        self._leaves_out = False
        self._additions: list[tuple[str, int, dict[str, Any]]] = []

    def __str__(self) -> str:
        name = "any request" if self.api is None else self.api.name
        where = "" if self.topic is None else f" of {self.topic}"
        where += "" if self.partition is None else f"-{self.partition}"
        return f"{name}{where}"

    # -- Configuration -------------------------------------------------------------------------------------------

    def require(self, predicate: Callable[[Exchange], bool]) -> None:
        """Makes the intervention act only if `predicate` returns True."""
        self._predicates.append(predicate)

    def skip(self, count: int) -> None:
        """Ignores the first `count` matching requests."""
        self._skip = count

    def limit(self, times: int | None) -> None:
        """Makes the intervention act at most `times` times. None does not change the limit."""
        if times is not None:
            self._times = times

    def hold_back(self, instead: str) -> None:
        """Stops the proxy from forwarding matching requests, or the matching parts of requests. For `instead` see
        `unforwarded`.
        """
        self.unforwarded = instead

    def affect(self, **effects: Any) -> None:
        """Sets effects on a response as a whole."""
        self.effects = replace(self.effects, **effects)

    def edit(self, change: Edit) -> None:
        """Calls `change` with each exchange."""
        self._edits.append(change)

    def leave_out(self) -> None:
        """Removes the topic or partition from the answer."""
        self._leaves_out = True

    def add(self, topic: str, partition: int, fields: dict[str, Any]) -> None:
        """Adds a partition to the answer."""
        self._additions.append((topic, partition, fields))

    def known_api(self) -> Api:
        """Returns the API whose answers are changed.

        Raises:
            UsageError: The intervention is for any API.
        """
        if self.api is None:
            raise UsageError("Only the answers of one API can be changed: name it in on()")
        return self.api

    def answer(self, code: int, level: Level | None, fields: Mapping[str, Any]) -> None:
        """Puts an error into the answer. See `Rule.answer`."""
        api = self.known_api()
        if level is None:
            level = self._default_level(api)
        name = api.error_field(level)
        if name is None:
            raise UsageError(f"{api.name} has no error code at level {level!r}")
        beside = api.beside_error(level) if code else {}
        others = [(api.level_of(key), {key: value}) for key, value in fields.items()]
        self.fields += [(level, {**beside, name: code}), *others]

    def _default_level(self, api: Api) -> Level:
        levels: tuple[Level, ...] = ("partition", "topic", "top")
        if api.name == "Metadata":
            levels = ("partition",) if self.partition is not None else ("topic",)
        for level in levels:
            if api.error_field(level) is not None:
                return level
        raise UsageError(f"{api.name} has no error code")

    # -- On the proxy's thread -----------------------------------------------------------------------------------

    @property
    def spent(self) -> bool:
        """Whether the intervention has already acted `times` times, and so does not act again."""
        return self._times is not None and self.hits >= self._times

    @property
    def changes_answers(self) -> bool:
        """Whether the intervention changes the content of answers."""
        return bool(self.fields or self._edits or self._leaves_out or self._additions)

    def fits(self, name: str, partitions: Iterable[tuple[str, int]]) -> bool:
        """Returns whether the intervention matches a request or answer with this API and these partitions."""
        if self.api is not None and self.api.name != name:
            return False
        return self.topic is None or any(self.names(*which) for which in partitions)

    def names(self, topic: str, partition: int) -> bool:
        """Returns whether the intervention concerns this partition."""
        return self.topic in {None, topic} and self.partition in {None, partition}

    def acts(self, exchange: Exchange) -> bool:
        """Returns whether the intervention acts on a matching exchange, and counts a hit if it does."""
        if self.spent or not all(predicate(exchange) for predicate in self._predicates):
            return False
        if self._skip:
            self._skip -= 1
            return False
        with self._changed:
            self.hits += 1
            self._changed.notify_all()
        return True

    def set_fields(self, level: Level, target: Any) -> None:
        """Sets the fields of one level."""
        for at, fields in self.fields:
            if at == level:
                if level == "top":
                    frames.assign_outside(target, fields)
                else:
                    frames.assign(target, fields)

    def change(self, exchange: Exchange, response: frames.Response, names: Mapping[uuid.UUID, str]) -> None:
        """Changes an answer."""
        self.set_fields("top", response.message)
        for spot in frames.spots(response.message, names):
            partitions = spot.partitions or []
            if self.topic not in {None, spot.name}:
                continue
            if self._leaves_out and (self.partition is None or not partitions):
                spot.container.remove(spot.topic)
                continue
            if self.partition is None or self.partition in spot.numbers():
                self.set_fields("topic", spot.topic)
            for entry in [e for e in partitions if self.names(spot.name, spot.number_of(e))]:
                if self._leaves_out:
                    partitions.remove(entry)
                elif spot.number is not None:
                    self.set_fields("partition", entry)
        for topic, partition, fields in self._additions:
            frames.assign(frames.put(response, names, topic, partition), fields)
        for change in self._edits:
            change(exchange)


class Rule:
    """The faults that the proxy causes for matching requests and responses. Made by `FaultProxy.on`; thread-safe.

    The effects of several method calls accumulate, and each method returns the rule. Each call takes effect at once. So
    configure related effects in one call, or call `when` first. Rules act in the order in which they were made. If two
    rules set the same field, the later rule wins.
    """

    def __init__(self, _rules: Rules, _intervention: Intervention) -> None:
        self._rules = _rules
        self._does = _intervention

    @property
    def hits(self) -> int:
        """How often the rule has acted."""
        return self._does.hits

    def __repr__(self) -> str:
        return f"<Rule for {self._does}, {self.hits} hits>"

    # -- Conditions ----------------------------------------------------------------------------------------------

    def when(self, predicate: Callable[[Exchange], bool]) -> Self:
        """Acts only if `predicate` returns True. The proxy's thread calls `predicate`, which must not block."""
        self._does.require(predicate)
        return self

    def after(self, count: int) -> Self:
        """Ignores the first `count` matching requests."""
        self._does.skip(count)
        return self

    # -- Changes of the answer -----------------------------------------------------------------------------------

    def answer(
        self, code: int, *, times: int | None = None, level: Level | None = None, **fields: Any
    ) -> Self:
        """Puts an error into the answer, although the broker carries out the request.

        The answer's other fields get the values that a broker sends with an error, such as a base offset of -1.
        `fields` can override them.

        Args:
            code: Kafka's error code; 0 for success.
            times: How many times the rule acts; by default always.
            level: Which error code to set: "partition", "topic" or "top". The default is the first of the three levels
                at which the API's answers have an error code. For Metadata, the default is "topic", unless the rule
                names a partition.
            fields: Other fields to set, at any level.

        Raises:
            UsageError: The API's answers have no error code at this level, or no such field.
        """
        self._does.answer(code, level, fields)
        return self._limit(times)

    def answer_without_forwarding(
        self, code: int = 0, *, times: int | None = None, level: Level | None = None, **fields: Any
    ) -> Self:
        """Like `answer`, but no broker gets the request. If the request also names partitions that the rule does not
        match, the broker gets the request for only these other partitions.

        The proxy always forwards a Metadata request, because the answer must name the brokers. But first it removes
        from the request the topics that the rule matches.
        """
        self._does.answer(code, level, fields)
        self._does.hold_back("answer")
        return self._limit(times)

    def set(self, *, times: int | None = None, **fields: Any) -> Self:
        """Changes fields of the answer. For a struct, give a dict. Ignores fields that the answer's version does not
        have.

        Raises:
            UsageError: The API's answers have no such field.
        """
        for name, value in fields.items():
            self._does.fields.append((self._does.known_api().level_of(name), {name: value}))
        return self._limit(times)

    def edit(self, change: Edit, *, times: int | None = None) -> Self:
        """Calls `change` with the exchange on the proxy's thread. `change` may modify the exchange's `response`."""
        self._does.edit(change)
        return self._limit(times)

    def leave_out(self, *, times: int | None = None) -> Self:
        """Removes the rule's topic or partition from the answer."""
        self._does.leave_out()
        return self._limit(times)

    def add(self, topic: str, partition: int, *, times: int | None = None, **fields: Any) -> Self:
        """Adds to the answer a partition that the request did not name."""
        self._does.add(topic, partition, fields)
        return self._limit(times)

    # -- Delivery ------------------------------------------------------------------------------------------------

    def drop(self, *, times: int | None = None, forward: bool = True, mute: bool = True) -> Self:
        """Never delivers the answer.

        Args:
            times: How many times the rule acts; by default always.
            forward: False: the request is not forwarded to the broker at all.
            mute: True: nothing more arrives on this connection, as after a network failure. False: later answers
                arrive, although a real broker never skips an answer.
        """
        self._does.affect(drop=True, mute=mute)
        if not forward:
            self._does.hold_back("drop")
        return self._limit(times)

    def delay(self, seconds: float, *, times: int | None = None) -> Self:
        """Delivers the answer `seconds` later. Later answers on the connection wait for the delayed answer."""
        self._does.affect(delay_s=seconds)
        return self._limit(times)

    def duplicate(self, copies: int = 2, *, times: int | None = None) -> Self:
        """Delivers the answer `copies` times."""
        self._does.affect(copies=copies)
        return self._limit(times)

    def truncate(self, size_bytes: int, *, times: int | None = None, hang_up: bool = False) -> Self:
        """Delivers only the first bytes of the answer.

        Args:
            size_bytes: Number of bytes to deliver, not counting the frame's size field.
            times: How many times the rule acts; by default always.
            hang_up: True: the size field contains the full size, and the connection closes in the middle of the frame.
                False: the size field contains the number of delivered bytes, so the frame is complete, but its content
                is too short.
        """
        self._does.affect(truncate_to=size_bytes, hang_up=hang_up)
        return self._limit(times)

    def hang_up(self, *, times: int | None = None, forward: bool = True) -> Self:
        """Closes the connection instead of answering. With `forward=False`, the broker does not get the request."""
        self._does.affect(drop=True, hang_up=True)
        if not forward:
            self._does.hold_back("hang up")
        return self._limit(times)

    # -- Lifecycle -----------------------------------------------------------------------------------------------

    def remove(self) -> None:
        """Ends the rule. `hits` keeps its value."""
        self._rules.remove(self._does)

    def wait(self, hits: int = 1, timeout_s: float = 10.0) -> None:
        """Waits until the rule has acted `hits` times.

        Raises:
            TimeoutError: The rule had not acted `hits` times when `timeout_s` had passed.
        """
        with self._rules.changed:
            if not self._rules.changed.wait_for(lambda: self.hits >= hits, timeout_s):
                raise TimeoutError(f"{self!r}: fewer than {hits} hits within {timeout_s} s")

    def _limit(self, times: int | None) -> Self:
        self._does.limit(times)
        return self


@dataclass(slots=True, eq=False)
class Pending:
    """A request whose response has not been delivered to the client yet."""

    call: Call
    request: frames.RequestFrame
    applied: list[Intervention] = field(default_factory=list)
    """Rules that acted before the request was forwarded."""
    synthetic: list[tuple[Intervention, str, int, uuid.UUID | None]] = field(default_factory=list)
    """The parts of the request that the broker did not get: (rule, topic, partition, topic id). The partition is -1 for
    a whole topic. The topic id is None if the request does not contain it.
    """
    forwarded: bool = True
    parts: list[bytes] | None = None
    """The response to deliver to the client, in pieces. None while there is no response yet; empty if the client never
    gets a response.
    """
    due: float = 0.0
    effects: Effects = Effects()

    @property
    def size_bytes(self) -> int:
        """Size of the response to deliver; 0 while none exists."""
        return sum(map(len, self.parts or ()))

    def affect(self, effects: Effects) -> None:
        """Adds effects on the response."""
        self.effects += effects

    def swallow(self) -> None:
        """Drops the request: the broker does not get it, and the client gets no response."""
        self.forward(False)
        self.parts = []

    def forward(self, on: bool) -> None:
        """Stores whether the broker gets at least a part of the request."""
        self.forwarded, self.call = on, replace(self.call, forwarded=on)

    def answer(self, parts: list[bytes], due: float) -> None:
        """Sets the bytes that the client gets at `due` (on the clock of `time.monotonic()`) or later."""
        self.parts, self.due = parts, due


class Rules:
    """The rules of a proxy. Applies them to requests and responses. Thread-safe.

    Attributes:
        changed: Notified when a rule has acted.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self._all: tuple[Intervention, ...] = ()

    def __len__(self) -> int:
        return len(self._all)

    def add(self, api: Api | None, topic: str | None, partition: int | None) -> Rule:
        """Makes a rule."""
        intervention = Intervention(self.changed, api, topic, partition)
        with self.changed:
            self._all = (*self._all, intervention)
        return Rule(self, intervention)

    def remove(self, intervention: Intervention) -> None:
        """Ends a rule."""
        with self.changed:
            self._all = tuple(other for other in self._all if other is not intervention)

    def clear(self) -> None:
        """Ends all rules."""
        with self.changed:
            self._all = ()

    # -- On the proxy's thread -----------------------------------------------------------------------------------

    def concern(self, api: Api) -> bool:
        """Returns whether there is a rule that may act on answers of this API."""
        return any(rule.api in {None, api} and not rule.spent for rule in self._all)

    def hold_back(self, pending: Pending, frame: bytes, names: Mapping[uuid.UUID, str]) -> bytes:
        """Applies rules before the broker gets the request. Returns the frame for the broker, without the size
        field.
        """
        request = pending.request
        changed = False
        for rule in self._all:
            if not rule.unforwarded or not rule.fits(pending.call.api, pending.call.partitions):
                continue
            if not rule.acts(Exchange(pending.call, request.message)):
                continue
            pending.applied.append(rule)
            if rule.unforwarded != "answer":
                pending.affect(rule.effects)
                pending.swallow()
                return frame
            before = len(pending.synthetic)
            for spot in frames.spots(request.message, names):
                topic_id = frames.id_of(spot.topic)
                if spot.partitions:
                    for entry in [e for e in spot.partitions if rule.names(spot.name, spot.number_of(e))]:
                        spot.partitions.remove(entry)
                        pending.synthetic.append((rule, spot.name, spot.number_of(entry), topic_id))
                    empty = not spot.partitions
                else:
                    empty = rule.topic in {None, spot.name}
                    if empty:
                        pending.synthetic.append((rule, spot.name, -1, topic_id))
                if empty:
                    spot.container.remove(spot.topic)
            changed = changed or len(pending.synthetic) > before
        if not pending.applied:
            return frame
        # A Metadata answer must name brokers, so forward a Metadata request even without topics.
        rest = frames.spots(request.message, names) or pending.call.api == "Metadata"
        pending.forward(bool(changed and rest))
        return request.encode()[frames.SIZE_BYTES :] if changed else frame

    def apply_blind(self, pending: Pending) -> None:
        """Applies rules to an answer that is not decoded."""
        for rule in self._all:
            known = rule.api is None or rule.api is pending.request.api
            if known and not rule.unforwarded and rule.fits(pending.call.api, pending.call.partitions):
                exchange = Exchange(pending.call, pending.request.message)
                if rule.acts(exchange):
                    pending.affect(rule.effects)

    def apply(self, pending: Pending, response: frames.Response, names: Mapping[uuid.UUID, str]) -> bool:
        """Applies rules to a decoded answer. Returns whether they changed it."""
        changed = False
        message = response.message
        exchange = Exchange(pending.call, pending.request.message, message)
        for rule in pending.applied:
            pending.affect(rule.effects)
            if any(rule is other for other, *_ in pending.synthetic):
                rule.set_fields("top", message)
            else:
                rule.change(exchange, response, names)
            changed = True
        for rule, topic, partition, topic_id in pending.synthetic:
            api = pending.request.api
            lone = partition < 0 or (api is not None and api.error_field("partition") is None)
            entry = frames.put(response, names, topic, None if lone else partition, topic_id)
            rule.set_fields("topic" if lone else "partition", entry)
        named = [
            (spot.name, number) for spot in frames.spots(message, names) for number in spot.numbers() or [-1]
        ] or list(pending.call.partitions)
        for rule in self._all:
            if rule.unforwarded and not (
                # A Metadata request for all topics cannot exclude a single topic, so the rule changes the answer.
                rule.unforwarded == "answer" and pending.call.api == "Metadata" and not pending.applied
            ):
                continue
            if not rule.fits(pending.call.api, named) or not rule.acts(exchange):
                continue
            pending.affect(rule.effects)
            if rule.changes_answers:
                rule.change(exchange, response, names)
                changed = True
        return changed
