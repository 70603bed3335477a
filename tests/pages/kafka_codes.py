"""docs/errors.md, from the table of error codes."""

from __future__ import annotations

from kafkasafe import ErrorAction, ErrorContext, Verdict, classify
from kafkasafe.codes import names as code_names
from tests.pages import DOCS

PATH = DOCS / "errors.md"

MEANING = {
    ErrorAction.SUCCESS: "nothing: the request was carried out",
    ErrorAction.RETRY: "send the same request again, to the same broker, after a pause",
    ErrorAction.RETRY_AFTER_REFRESH: "look up metadata, the coordinator or the controller first, then send it again",
    ErrorAction.ASK_BROKER: "the answer decides nothing: ask the broker for its state before you send again",
    ErrorAction.RESET_SEQUENCE: "send the batch under a new epoch, from sequence 0; nothing was lost",
    ErrorAction.FENCE: "a newer owner, epoch or generation took over: stop writing under this identity",
    ErrorAction.REJECT_RECORD: "these records will never be accepted: keep them elsewhere, and continue with the next ones",
    ErrorAction.FATAL: "no retry helps: change something, or notify an operator",
}

CONTEXTS = [
    (59, "produce", ErrorContext(last_acked_offset=1000, log_start_offset=1001)),
    (59, "produce", ErrorContext(last_acked_offset=1000, log_start_offset=1000)),
    (59, "produce", ErrorContext(log_start_offset=999)),
    (59, "produce", ErrorContext(last_acked_offset=1000, log_start_offset=-1)),
    (45, "produce", ErrorContext(resend=False)),
    (45, "produce", ErrorContext(resend=True)),
    (45, "produce", ErrorContext(in_log=True)),
    (45, "produce", ErrorContext(in_log=False)),
    (46, "produce", ErrorContext(in_log=False)),
    (1, "fetch", ErrorContext(tiered=True)),
    (1, "fetch", ErrorContext(tiered=True, position=500, log_start_offset=0)),
    (1, "fetch", ErrorContext(position=500, log_start_offset=900)),
    (9, "fetch", ErrorContext(tiered=True)),
]

HEAD = """# Kafka's error codes

This page lists the answers of `kafkasafe.classify(error_or_code, api, context)` and `kafkasafe classify`. [Errors of
kafkasafe](kafkasafe-errors.md) lists the exceptions of kafkasafe itself. `python -m tests.pages` writes this page from
the table in `kafkasafe/codes/rows.py`, and `tests/test_pages.py` fails if the page does not match the table. The flags
`retriable` and `refresh_metadata` equal those of the exception classes in Apache Kafka 4.3's `Errors`:
`tests/codes/test_classify.py` reads Kafka's flags from the Java classes and compares them. If kafkasafe's flags differ
from Kafka's on purpose, the note in italics says why.

```python
from kafkasafe import RetryPolicy, classify

verdict = classify(59, "produce", {"last_acked_offset": 1000, "log_start_offset": 1001})
verdict.action  # ErrorAction.RESET_SEQUENCE
verdict.data_at_risk  # False: retention removed the producer, nothing was lost
verdict.explanation  # the fix, in one sentence


@RetryPolicy(deadline_ms=30_000)  # classify decides whether to retry; pauses grow exponentially, with full jitter
def end_offset(): ...
```

`classify` takes Kafka's codes and names, and exceptions of kafka-python, kafkasafe, the operating system and TLS. For
tenacity's `RetryError`, `classify` judges the error of the last attempt. A code that is not in the table comes from a newer
Kafka. For such a code, `classify` answers `retry_after_refresh`, and draws no other conclusion.

## Retries

`retriable` is true for `retry`, `retry_after_refresh` and `reset_sequence`; `refresh_metadata` is true for
`retry_after_refresh`. `data_at_risk` means that acknowledged records may be lost, or that a consumer may skip
records. The tables below mark such errors with **!**. Do not only retry after an error with **!**: report the error to
an operator, or to code that repairs the loss.

`RetryPolicy` repeats a call only if the action is `retry` or `retry_after_refresh`. `examples/own_calls.py` uses one
`RetryPolicy` for calls of kafka-python's clients. With `wait=`, a `RetryPolicy` uses one of tenacity's wait strategies
instead of its own. `kafkasafe.metrics.install(policy)` exports the policy's retries, pauses and abandoned calls to
Prometheus. A program that uses tenacity itself can use
`tenacity.retry(retry=kafkasafe.retry_if_kafka_retriable(), ...)`.

## A record that the cluster rejected

A `RejectedError` is also kafka-python's own exception for its code, so that `except` clauses written for KafkaProducer
still work. Each code has a subclass, so `isinstance(error, RejectedError)` is true, and `type(error) is RejectedError`
is false.

```python
from kafka.errors import MessageSizeTooLargeError
from kafkasafe import RejectedError

try:
    raise RejectedError("The record is too large", code=10)
except MessageSizeTooLargeError as error:  # or `except RejectedError`, for every code
    assert isinstance(error, RejectedError)
    assert error.code == error.errno == 10
```

## Actions

| action | what to do |
|---|---|
"""


def _action(verdict: Verdict) -> str:
    return f"`{verdict.action.value}`" + (" **!**" if verdict.data_at_risk else "")


def _said(verdict: Verdict) -> str:
    return verdict.explanation + (f" *{verdict.note}*" if verdict.note else "")


def _known(context: ErrorContext) -> str:
    known = [
        f"{name} {str(value).lower()}"
        for name in ErrorContext.__slots__
        if (value := getattr(context, name)) is not None
    ]
    if (
        context.log_start_offset is not None
        and context.last_acked_offset is None
        and context.position is None
    ):
        known.insert(0, "nothing acknowledged")
    return ", ".join(known)


def text() -> str:
    lines = [HEAD + "\n".join(f"| `{action.value}` | {MEANING[action]} |" for action in ErrorAction)]
    lines += [
        "\n## Codes whose action depends on the context\n",
        "For some codes, the action depends on what else the caller knows. For code 59, the action depends on what was",
        "acknowledged and where the log starts (KAFKA-5793). For codes 45 and 46, the action depends on whether the log has",
        "the batch. For codes 1 and 9, the action depends on whether the topic is tiered (KIP-1007).\n",
        "| code | request | known | action | fix |\n|---|---|---|---|---|",
    ]
    for code, api, context in CONTEXTS:
        verdict = classify(code, api, context)
        lines.append(f"| {code} | {api} | {_known(context)} | {_action(verdict)} | {_said(verdict)} |")
    lines += [
        "\n## Requests for which a code has another action\n",
        "| request | code | action | fix |\n|---|---|---|---|",
    ]
    for api in ("produce", "fetch", "list_offsets", "describe_producers"):
        for code in code_names.all_codes():
            verdict, base = classify(code, api), classify(code)
            if (verdict.action, verdict.explanation) != (base.action, base.explanation):
                lines.append(f"| {api} | {code} {verdict.name} | {_action(verdict)} | {_said(verdict)} |")
    lines += ["\n## All codes\n", "| code | name | action | fix |\n|---|---|---|---|"]
    lines += [
        f"| {verdict.code} | {verdict.name} | {_action(verdict)} | {_said(verdict)} |"
        for verdict in map(classify, code_names.all_codes())
    ]
    return "\n".join(lines) + "\n"
