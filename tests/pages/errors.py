"""docs/kafkasafe-errors.md, from the docstrings of the errors.

The page itself is the source of three rows of each error's table: "raised by", "is my data safe?" and "what to do".
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from dataclasses import dataclass
from typing import Any, Final

import kafkasafe
from kafkasafe import aio, audit, lineage, spark
from kafkasafe.errors import KafkaSafeError
from tests.pages import DOCS, code, docstring, table

PATH: Final = DOCS / "kafkasafe-errors.md"

HOLDERS: Final[dict[str, Any]] = {
    "producer": kafkasafe.SafeProducer,
    "future": kafkasafe.RecordFuture,
    "batch": kafkasafe.AtomicBatch,
    "outcome": kafkasafe.BatchOutcome,
    "consumer": kafkasafe.SafeConsumer,
    "aio": aio,
    "audit": audit,
    "lineage": lineage,
    "spark": spark,
}
"""What the first word of a call stands for on the page."""

HEAD: Final = """# Errors of kafkasafe

<!-- Written by `python -m tests.pages` from kafkasafe/errors.py, except for the first rows of each error's table. -->

Every error below{but} is a `kafkasafe.KafkaSafeError`, and therefore a `kafka.errors.KafkaError`: `except` clauses that were
written for kafka-python catch it. [Kafka's error codes](errors.md) lists Kafka's own codes, and the answer of
`kafkasafe.classify` to each. [What kafkasafe promises](promises.md) explains the terms *spool* and *lane*.

Three rules cover most cases:

- **An exception from `send` means that its record was not accepted.** Records that were accepted before are not affected.
- **A record that `durable` or `get` confirmed is safe**, whatever a later call raises. The exceptions are a
  [`DataLossError`](#datalosserror) (the cluster lost acknowledged records) and a [`SpoolCorruptError`](#spoolcorrupterror)
  (the disk lost them).
- **A time-out takes nothing back.** After a time-out of `get`, `durable` or `flush` the record is still in the
  spool or in memory, and will be delivered. Do not send it again.

In the tables `producer` is a `SafeProducer`, `future` the result of `send`, `batch` the result of `producer.batch()`,
`outcome` is `batch.outcome`, and `consumer` a `SafeConsumer`. The same calls of `kafkasafe.aio` raise the same errors.

## Which call raises what

"""

THEIRS: Final = """
## Errors of kafka-python and Python

These calls also raise errors that are not kafkasafe's own:

| error | raised by | is my data safe? | what to do |
|---|---|---|---|
| `KafkaTimeoutError` | `producer.send` | this record was not accepted: callbacks of earlier records are too slow | let callbacks do less, then send it again |
| `KafkaTimeoutError` | `SafeConsumer`, `consumer.end_offsets` and the other look-ups | yes: nothing was read or skipped | the message has the reason, such as a wrong password |
| `TopicAuthorizationFailedError`, `UnknownTopicOrPartitionError`, `InvalidTopicError` | `producer.send` | this record was not accepted; earlier records of the topic stay in the spool | create the topic or grant the permission. `on_blocked_topic="accept"` takes records meanwhile ([blocked topics](operations.md#what-the-cluster-blocks)) |
| `MessageSizeTooLargeError` | `producer.send`, `batch.send` | this record was not accepted | raise `max_request_size`, or send less |
| `TypeError`, `ValueError` | `producer.send`, `batch.send` | this record was not accepted | correct the key, value, headers, topic, partition or timestamp |
| `RecursionError` | `producer.send` | this record was not accepted | call it from fewer nested calls |
| `TransactionAbortedError` | `future.durable`, `future.get` | the record was part of a transaction that the program aborted; it was never sent | nothing |
| `CommitFailedError`, `ProducerFencedError` | `producer.commit_transaction` | nothing of the transaction is visible | as with kafka-python: abort the transaction, or close the producer after `ProducerFencedError` |
| `CommitFailedError` | `consumer.commit` | the group gave the partitions to another member, which reads these records again | let `poll` come more often, or raise `max_poll_interval_ms` |
| `CorruptRecordError` | `consumer.poll`, `consumer.poll_arrow` | the position stays before the damaged batch | poll again, or `seek` past it |
| `OffsetOutOfRangeError`, `NoOffsetForPartitionError` | `consumer.poll` with `auto_offset_reset="none"` | the position did not move | `seek` |
| `IllegalStateError` | a closed consumer; a transactional call out of order | yes | correct the program |

## Each error

"""


@dataclass(frozen=True)
class Facts:
    """The calls that raise an error, what happened to the records, and what to do."""

    calls: tuple[str, ...] = ()
    data: str = ""
    action: str = ""


def facts() -> dict[str, Facts]:
    """The facts by error, in the order of the page. An error without a section gets one with empty rows."""
    sections = PATH.read_text(encoding="utf-8").partition("\n## Each error\n")[2].split("\n### ")[1:]
    found = {}
    for name, _, section in (each.partition("\n") for each in sections):
        rows = dict(re.findall(r"^\| (.+?) \| (.*?) ?\|$", section, re.MULTILINE))
        calls = tuple(re.findall(r"`([\w.]+)`", rows.get("raised by", "")))
        found[name] = Facts(calls, rows["is my data safe?"], rows["what to do"])
    return found


def errors() -> dict[str, type[Exception]]:
    """Every error that a program can meet, by name.

    Left out: those of `kafkasafe.testing` and `kafkasafe.demo`, which are of tests, and of `kafkasafe.cluster`, which no call
    raises.
    """
    found: dict[str, type[Exception]] = {}
    for module in pkgutil.walk_packages(kafkasafe.__path__, "kafkasafe."):
        if not any(
            part.startswith("_") or part in {"cluster", "demo", "testing"} for part in module.name.split(".")
        ):
            opened = importlib.import_module(module.name)
            exported = [getattr(opened, name) for name in getattr(opened, "__all__", ())]
            for each in [*exported, *(item for item in vars(opened).values() if _defined_in(item, opened))]:
                if _is_error(each):
                    found[each.__name__] = each
    order = list(facts())
    return dict(
        sorted(found.items(), key=lambda item: order.index(item[0]) if item[0] in order else len(order))
    )


def _is_error(item: object) -> bool:
    return (
        isinstance(item, type)
        and issubclass(item, Exception)
        and (issubclass(item, KafkaSafeError) or item.__name__ in kafkasafe.__all__)
    )


def _defined_in(item: object, module: Any) -> bool:
    return isinstance(item, type) and item.__module__ == module.__name__ and not item.__name__.startswith("_")


def call(name: str) -> object:
    """What a call on the page names."""
    holder, _, rest = name.partition(".")
    found = HOLDERS[holder] if rest else getattr(kafkasafe, holder)
    for part in rest.split(".") if rest else ():
        found = getattr(found, part)
    return found


def _link(name: str) -> str:
    return f"[`{name}`](#{name.lower()})"


def _section(name: str, error: type[Exception], known: Facts) -> str:
    said, attributes = docstring(error)
    kinds = [base.__name__ for base in error.__bases__ if base is not Exception]
    home = "kafkasafe.spark" if name in spark.__all__ else error.__module__
    where = "" if name in kafkasafe.__all__ else f"; import it from {code(home)}"
    *others, last = map(code, kinds)
    bases = f"{', '.join(others)} and {last}" if others else last
    lines = [f"### {name}\n", f"{said}\n", f"A subclass of {bases}{where}.\n"]
    rows = [("raised by", ", ".join(map(code, known.calls)))] if known.calls else []
    rows += [("is my data safe?", known.data), ("what to do", known.action)]
    rows += [(f"`.{each}`", text) for each, text in attributes.items()]
    lines.append(table(("", ""), rows))
    return "\n".join(lines)


def text() -> str:
    known = errors()
    said = facts()
    calls: dict[str, list[str]] = {}
    for name in known:
        for each in said.get(name, Facts()).calls:
            calls.setdefault(each, []).append(name)
    order = ["SafeProducer", "SafeConsumer", "producer", "future", "batch", "outcome", "consumer"]
    ranked = sorted(
        calls, key=lambda each: (order.index(head) if (head := each.split(".")[0]) in order else 99, each)
    )
    rows = [(code(each), ", ".join(map(_link, calls[each]))) for each in ranked]
    sections = "\n".join(_section(name, error, said.get(name, Facts())) for name, error in known.items())
    others = [code(name) for name, error in known.items() if not issubclass(error, KafkaSafeError)]
    but = f" except {' and '.join(others)}" if others else ""
    return HEAD.replace("{but}", but) + table(("call", "errors"), rows) + THEIRS + sections
