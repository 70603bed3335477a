"""`kafkasafe.classify`: the verdict on any error, whoever raised it.

Kafka's codes are judged in the core (`kafkasafe._core.codes`). Here exceptions find their way to it: kafka-python's by
their code, everything else (its client-side errors, kafkasafe's own, the operating system's, TLS, tenacity's) by the
first class of their method resolution order that has a row.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
import difflib
import errno
import operator
import socket
import ssl
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import kafka.errors as kafka_errors
import tenacity

from kafkasafe import errors
from kafkasafe._core import codes
from kafkasafe._core.codes import NO_CONTEXT, ErrorAction, ErrorContext, Verdict
from kafkasafe.errors import ConfigError

__all__ = ["ErrorAction", "ErrorContext", "Verdict", "classify", "code_for"]

_RETRY: Final = ErrorAction.RETRY
_REFRESH: Final = ErrorAction.RETRY_AFTER_REFRESH
_ASK: Final = ErrorAction.ASK_BROKER
_FENCE: Final = ErrorAction.FENCE
_REJECT: Final = ErrorAction.REJECT_RECORD
_FATAL: Final = ErrorAction.FATAL


class _Row(NamedTuple):
    action: ErrorAction
    explanation: str
    at_risk: bool = False


# tenacity nests a RetryError in another where policies are nested; nothing nests deeper than people do.
_MAX_NESTING: Final = 16

_CONNECTION = (
    "Refresh metadata and retry: the connection failed; what was being written may have arrived, so write the"
    " same bytes under the same sequence."
)
_CONFIGURE = "Correct the call or the configuration: the message says what is wrong."

_TYPE_ROWS: Final[Mapping[type[BaseException], _Row]] = {
    # kafka-python's errors that carry no code
    kafka_errors.KafkaConnectionError: _Row(_REFRESH, _CONNECTION),
    kafka_errors.InvalidMetadataError: _Row(_REFRESH, "Refresh metadata and retry."),
    kafka_errors.KafkaTimeoutError: _Row(
        _RETRY, "Retry, or allow more time: no answer came in time; what was being written may have arrived."
    ),
    kafka_errors.Cancelled: _Row(_RETRY, "Retry: the request was given up before an answer came."),
    kafka_errors.RetriableError: _Row(_RETRY, "Retry with back-off."),
    kafka_errors.CommitFailedError: _Row(
        _FENCE,
        "Do not commit these offsets again: the group has rebalanced; poll, and commit what is assigned then.",
    ),
    kafka_errors.LogTruncationError: _Row(
        _ASK,
        "Find where the log diverged (OffsetForLeaderEpoch) and decide about the records behind it: some that"
        " were read are no longer in the log.",
        at_risk=True,
    ),
    kafka_errors.NoOffsetForPartitionError: _Row(
        _FATAL, "Seek to a position: no offset is committed, and auto.offset.reset forbids choosing one."
    ),
    kafka_errors.InvalidReceiveError: _Row(
        _FATAL,
        "Check the port and security_protocol: what came back is not Kafka's protocol (often TLS on one side only).",
    ),
    kafka_errors.KafkaProtocolError: _Row(
        _FATAL, "Report it with both versions: the answer could not be read."
    ),
    kafka_errors.UnsupportedCodecError: _Row(
        _FATAL, "Install the library of this compression, or choose another one."
    ),
    kafka_errors.TransactionAbortedError: _Row(
        _FATAL,
        "Do the whole transaction again: it was aborted, and none of its records is visible to read_committed readers.",
    ),
    kafka_errors.AuthorizationError: _Row(_FATAL, "Grant this user the right (ACL) that the message names."),
    kafka_errors.KafkaConfigurationError: _Row(_FATAL, _CONFIGURE),
    kafka_errors.IllegalArgumentError: _Row(_FATAL, _CONFIGURE),
    kafka_errors.IllegalStateError: _Row(_FATAL, _CONFIGURE),
    kafka_errors.KafkaError: _Row(_FATAL, "Read the message: kafka-python knows no retry for it."),
    # kafkasafe's own
    errors.UsageError: _Row(_FATAL, "Correct the call: nothing was accepted, nothing changed."),
    errors.RejectedError: _Row(
        _REJECT,
        "Put the record aside and go on: the cluster rejects it for good; it is kept in the spool's rejected/.",
    ),
    errors.DataLossError: _Row(
        _FATAL,
        "Data loss: put the named offsets back from where they are kept, and look for an unclean election, a wiped"
        " disk or a re-created topic.",
        at_risk=True,
    ),
    errors.UndecidableError: _Row(
        _ASK,
        "Look at the evidence and the topic, then decide: resolve_undecidable() sends the batch again or skips it.",
        at_risk=True,
    ),
    errors.DeliveryTimeoutError: _Row(
        _ASK,
        "Do not send it again: the record is in the spool and is delivered when the cluster takes it;"
        " kafkasafe spool ls shows what waits.",
    ),
    errors.LogDivergedError: _Row(
        _ASK,
        "Decide about the records that were read and are gone, then seek to event.at (to read what replaced them) or to"
        " event.position (to go on).",
        at_risk=True,
    ),
    errors.OffsetNotAvailableError: _Row(
        _RETRY,
        "Call again: nothing was concluded; the new leader is catching up, which takes it some moments.",
    ),
    errors.RemoteStorageNotReadyError: _Row(
        _RETRY, "Call again: positions are where they were; if it stays, look at the brokers' remote storage."
    ),
    errors.WaitTimeoutError: _Row(
        _RETRY, "Retry, or allow more time: what was accepted is kept and still delivered."
    ),
    errors.SpoolFullError: _Row(
        _RETRY,
        "Retry later or raise spool_max_bytes: the record was not accepted, all accepted ones are kept.",
    ),
    errors.LaneBusyError: _Row(
        _RETRY, "Retry when the owner has ended, or ask for no certain lane: another process owns this one."
    ),
    errors.SpoolWriteError: _Row(
        _FATAL,
        "Make room or replace the disk: a write failed; what was durable before still is, this record is not.",
    ),
    errors.SpoolCorruptError: _Row(
        _FATAL,
        "Look at the damage (kafkasafe spool verify), then open with on_corrupt='quarantine': all good records are"
        " delivered, the damaged bytes are copied aside.",
        at_risk=True,
    ),
    errors.SpoolError: _Row(_FATAL, "Read the message: nothing in the spool was changed."),
    errors.KafkaSafeError: _Row(_FATAL, "Read the message: it says what is safe and what to do."),
    # TLS
    ssl.SSLCertVerificationError: _Row(
        _FATAL,
        "Check ssl_cafile, the certificate's name and its dates: the broker's certificate is not trusted.",
    ),
    ssl.SSLEOFError: _Row(_REFRESH, _CONNECTION),
    ssl.SSLZeroReturnError: _Row(_REFRESH, _CONNECTION),
    ssl.SSLSyscallError: _Row(_REFRESH, _CONNECTION),
    ssl.SSLWantReadError: _Row(_RETRY, "Retry when the socket is readable."),
    ssl.SSLWantWriteError: _Row(_RETRY, "Retry when the socket is writable."),
    ssl.SSLError: _Row(
        _FATAL,
        "Check security_protocol, the port, the TLS versions and the client certificate: the TLS handshake failed.",
    ),
    # The operating system
    socket.gaierror: _Row(
        _REFRESH,
        "Retry; if it stays, correct bootstrap.servers or advertised.listeners: the name does not resolve.",
    ),
    socket.herror: _Row(_REFRESH, "Retry; if it stays, correct the host's name: it does not resolve."),
    ConnectionError: _Row(_REFRESH, _CONNECTION),
    TimeoutError: _Row(
        _REFRESH,
        "Refresh metadata and retry: no answer came in time; what was being written may have arrived, so write the"
        " same bytes under the same sequence.",
    ),
    InterruptedError: _Row(_RETRY, "Retry: a signal interrupted the call."),
    BlockingIOError: _Row(_RETRY, "Retry when the file or socket is ready."),
    OSError: _Row(_FATAL, "Read the message: the operating system refused, and no retry is known to help."),
    # Anything else
    asyncio.CancelledError: _Row(_FATAL, "Let it pass: somebody cancelled the task."),
    concurrent.futures.CancelledError: _Row(_FATAL, "Let it pass: somebody cancelled the call."),
    tenacity.TryAgain: _Row(_RETRY, "Retry: the function asked for it."),
    tenacity.RetryError: _Row(
        _FATAL, "Look at the result: the last try returned one, which the policy did not accept."
    ),
    BaseException: _Row(_FATAL, "Correct the program: this is not an error of Kafka or of the network."),
}

_CABLE = "Retry with back-off: the network or the host cannot be reached."
_DISK_FULL = "Make room on the disk, then retry: nothing was written."
_HANDLES = "Raise the limit of open files (ulimit -n) or close some, then retry."

_ERRNO_ROWS: Final[Mapping[int, _Row]] = {
    errno.ENETDOWN: _Row(_REFRESH, _CABLE),
    errno.ENETUNREACH: _Row(_REFRESH, _CABLE),
    errno.ENETRESET: _Row(_REFRESH, _CABLE),
    errno.EHOSTDOWN: _Row(_REFRESH, _CABLE),
    errno.EHOSTUNREACH: _Row(_REFRESH, _CABLE),
    errno.EADDRNOTAVAIL: _Row(_RETRY, "Retry later: no local port is free for the connection."),
    errno.ENOTCONN: _Row(_REFRESH, _CONNECTION),
    errno.ENOBUFS: _Row(_RETRY, "Retry: the kernel has no buffers left for the moment."),
    errno.EMFILE: _Row(_RETRY, _HANDLES),
    errno.ENFILE: _Row(_RETRY, _HANDLES),
    errno.ENOSPC: _Row(_RETRY, _DISK_FULL),
    errno.EDQUOT: _Row(_RETRY, _DISK_FULL),
    errno.EIO: _Row(
        _FATAL,
        "Stop writing to this disk and check it: it failed, and what was not yet fsynced may be gone.",
        at_risk=True,
    ),
    errno.EROFS: _Row(
        _FATAL, "Mount the file system read-write; after an error of the disk replace it first."
    ),
    errno.EACCES: _Row(_FATAL, "Give this user the right to the file or directory."),
    errno.EPERM: _Row(_FATAL, "Give this user the right to the file or directory."),
}


# Exceptions without a code that are known by name: our own and kafka-python's, then Java's of the same meaning. The
# roots (KafkaError) say nothing.
_NAMED: Final[Mapping[str, type[BaseException]]] = {
    **{
        kind.__name__: kind
        for kind in _TYPE_ROWS
        if kind.__module__ == kafka_errors.__name__ and kind is not kafka_errors.KafkaError
    },
    **{name: getattr(errors, name) for name in errors.__all__ if name != "KafkaSafeError"},
    "RemoteStorageNotReadyException": errors.RemoteStorageNotReadyError,
    "LogTruncationException": kafka_errors.LogTruncationError,
    "NoOffsetForPartitionException": kafka_errors.NoOffsetForPartitionError,
    "CommitFailedException": kafka_errors.CommitFailedError,
    "DisconnectException": kafka_errors.KafkaConnectionError,
    "RetriableException": kafka_errors.RetriableError,
}


def classify(
    error_or_code: BaseException | type[BaseException] | int | str,
    api: str | None = None,
    context: ErrorContext | Mapping[str, Any] | None = None,
) -> Verdict:
    """What an error means, and what to do about it.

    Pure: asks nobody, changes nothing. A code of Kafka that this version does not know, and an exception that has
    nothing to do with Kafka, have verdicts as well.

    Args:
        error_or_code: Kafka's error code or its name (`59`, `"UNKNOWN_PRODUCER_ID"`), the name of an exception's class
            as it stands in logs: Java's (`"org.apache.kafka.common.errors.TimeoutException"`, with or without its
            package), kafka-python's or kafkasafe's; or an exception: of kafka-python, of kafkasafe, of the operating
            system or TLS, or tenacity's `RetryError`, of which the last try's error is judged.
        api: The request that failed, `"produce"`, `"ListOffsets"`, …; None: any.
        context: What else is known, as `ErrorContext` or a mapping of its fields. With it 59 is told apart as in
            KAFKA-5793 (retention or loss), 45 by whether the batch was sent before, 1 and 9 by whether the topic is
            tiered (KIP-1007).

    Returns:
        The verdict. `api` in it is spelled as Kafka's message files do, in snake case.

    Raises:
        ConfigError: `api`, the name of an error or a field of `context` is not one (the message names the nearest), or
            is of a wrong type.
    """
    kind = None if api is None else _api(api)
    known = _context(context)
    if isinstance(error_or_code, type) and issubclass(error_or_code, BaseException):
        return _classify_exception(error_or_code, None, kind, known)
    if isinstance(error_or_code, BaseException):
        error = _unwrapped(error_or_code)
        return _classify_exception(type(error), error, kind, known)
    named = _NAMED.get(codes.class_name(error_or_code)) if isinstance(error_or_code, str) else None
    if named is not None:
        return _classify_exception(named, None, kind, known)
    return codes.classify_code(code_for(error_or_code), kind, known)


def code_for(code_or_name: int | str) -> int:
    """Kafka's error code for a number, a number in a string, or a name of Kafka or kafka-python.

    Raises:
        ConfigError: It is none; the message names the nearest.
    """
    if isinstance(code_or_name, str):
        text = code_or_name.strip()
        # A number that no request can carry is a code that nobody knows; one of 5,000 digits is a mistake.
        if len(text) <= 20 and text.removeprefix("-").isdecimal():
            return int(text)
        code = codes.code_of_name(text)
        if code is None:
            code = getattr(getattr(kafka_errors, text, None), "errno", None)
        if code is None:
            raise ConfigError(f"unknown Kafka error {text[:80]!r}{_nearest(text.upper(), codes.names())}")
        return int(code)
    if isinstance(code_or_name, bool):
        raise ConfigError(f"{code_or_name} is not an error code")
    try:
        return operator.index(code_or_name)
    except TypeError:
        raise ConfigError(
            f"An error is a number, a name or an exception, not {type(code_or_name).__name__}"
        ) from None


def _unwrapped(error: BaseException) -> BaseException:
    """The error of the last try in tenacity's RetryError; of a connection that broke, the TLS error that broke it."""
    for _ in range(_MAX_NESTING):
        if not isinstance(error, tenacity.RetryError):
            break
        last = error.last_attempt
        # A policy may also give up on results; and a future that is not done cannot be asked.
        inner = last.exception() if last.done() and not last.cancelled() else None
        if inner is None:
            break
        error = inner
    if isinstance(error, kafka_errors.KafkaConnectionError | ConnectionError) and isinstance(
        error.__cause__, ssl.SSLCertVerificationError
    ):
        return error.__cause__
    return error


def _classify_exception(
    kind: type[BaseException], error: BaseException | None, api: str | None, context: ErrorContext
) -> Verdict:
    code = getattr(kind if error is None else error, "errno", None)
    own_kind = issubclass(kind, errors.KafkaSafeError)
    if issubclass(kind, kafka_errors.BrokerResponseError) and type(code) is int and not own_kind:
        return codes.classify_code(code, api, context)
    row: _Row | None = None
    if issubclass(kind, OSError) and not issubclass(kind, ssl.SSLError | socket.gaierror | socket.herror):
        row = _ERRNO_ROWS.get(code) if type(code) is int else None
    if row is None:
        row = next(_TYPE_ROWS[base] for base in kind.__mro__ if base in _TYPE_ROWS)
    name = kind.__name__
    own = None
    if isinstance(error, errors.RejectedError) and error.code != -1:
        own, name = error.code, codes.classify_code(error.code).name
    return Verdict(own, name, api, row.action, row.at_risk, row.explanation)


# --- arguments --------------------------------------------------------------------------------------------------------


def _nearest(name: str, choices: Iterable[str]) -> str:
    near = difflib.get_close_matches(name[:80], list(choices), n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""


def _api(name: Any) -> str:
    known = codes.api_name(name) if isinstance(name, str) else None
    if known is None:
        raise ConfigError(
            f"{str(name)[:80]!r} is not a request of Kafka{_nearest(str(name).lower(), codes.APIS)}"
        )
    return known


_FIELDS: Final = {field.name: field for field in dataclasses.fields(ErrorContext)}
_FLAGS: Final = frozenset({"resend", "tiered", "in_log"})


def _context(given: ErrorContext | Mapping[str, Any] | None) -> ErrorContext:
    if given is None:
        return NO_CONTEXT
    if isinstance(given, ErrorContext):
        return given
    if not isinstance(given, Mapping):
        raise ConfigError(f"context is an ErrorContext or a mapping, not {type(given).__name__}")
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name not in _FIELDS:
            raise ConfigError(f"{str(name)[:80]!r} is nothing of a context{_nearest(str(name), _FIELDS)}")
        if value is None:
            continue
        wanted = bool if name in _FLAGS else int
        if type(value) is not wanted:
            raise ConfigError(
                f"{name} must be {'true or false' if wanted is bool else 'an integer'}, not {str(value)[:80]!r}"
            )
        values[name] = value
    return ErrorContext(**values)
