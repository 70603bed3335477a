"""`kafkasafe.classify`: the verdict on any error code or exception.

`kafkasafe.codes.rows` has the table of Kafka's error codes. This module maps exceptions to verdicts. A broker's error
from kafka-python is looked up by its code. All other exceptions (client-side errors of kafka-python, errors of
kafkasafe, of the operating system, of TLS, of tenacity) are looked up by their class in a table. A class without a row
gets the row of its nearest base class.
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
from kafkasafe.codes import names as code_names
from kafkasafe.codes import verdicts as codes
from kafkasafe.codes.verdicts import NO_CONTEXT, ErrorAction, ErrorContext, Verdict
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


# Largest number of RetryErrors to unwrap: if tenacity policies are nested, one RetryError contains another. Real
# programs nest far fewer.
_MAX_NESTING: Final = 16

_CONNECTION = (
    "Refresh metadata and retry: the connection failed, but the request may have arrived, so write the same bytes with"
    " the same sequence number."
)
_CONFIGURE = "Correct the call or the configuration: the message says what is wrong."

_TYPE_ROWS: Final[Mapping[type[BaseException], _Row]] = {
    # kafka-python's errors that carry no code
    kafka_errors.KafkaConnectionError: _Row(_REFRESH, _CONNECTION),
    kafka_errors.InvalidMetadataError: _Row(_REFRESH, "Refresh metadata and retry."),
    kafka_errors.KafkaTimeoutError: _Row(
        _RETRY, "Retry, or allow more time: no answer came in time, but the request may have arrived."
    ),
    kafka_errors.Cancelled: _Row(_RETRY, "Retry: the request was given up before an answer came."),
    kafka_errors.RetriableError: _Row(_RETRY, "Retry with back-off."),
    kafka_errors.CommitFailedError: _Row(
        _FENCE,
        "Do not commit these offsets again: the group has rebalanced; poll, then commit the newly assigned partitions.",
    ),
    kafka_errors.LogTruncationError: _Row(
        _ASK,
        "Find where the log diverged (OffsetForLeaderEpoch) and decide about the records after that offset: some that"
        " were read are no longer in the log.",
        at_risk=True,
    ),
    kafka_errors.NoOffsetForPartitionError: _Row(
        _FATAL, "Seek to a position: no offset is committed, and auto.offset.reset forbids choosing one."
    ),
    kafka_errors.InvalidReceiveError: _Row(
        _FATAL,
        "Check the port and security_protocol: the answer is not Kafka's protocol (often only one side uses TLS).",
    ),
    kafka_errors.KafkaProtocolError: _Row(
        _FATAL, "Report it with the versions of client and broker: the client cannot parse the answer."
    ),
    kafka_errors.UnsupportedCodecError: _Row(
        _FATAL, "Install the library for this compression, or choose another compression."
    ),
    kafka_errors.TransactionAbortedError: _Row(
        _FATAL,
        "Repeat the whole transaction: it was aborted, and read_committed consumers see none of its records.",
    ),
    kafka_errors.AuthorizationError: _Row(
        _FATAL, "Grant this user the permission (ACL) that the message names."
    ),
    kafka_errors.KafkaConfigurationError: _Row(_FATAL, _CONFIGURE),
    kafka_errors.IllegalArgumentError: _Row(_FATAL, _CONFIGURE),
    kafka_errors.IllegalStateError: _Row(_FATAL, _CONFIGURE),
    kafka_errors.KafkaError: _Row(_FATAL, "Read the message: kafka-python does not mark it as retriable."),
    # kafkasafe's own
    errors.UsageError: _Row(_FATAL, "Correct the call: it accepted no record and changed nothing."),
    errors.RejectedError: _Row(
        _REJECT,
        "Set the record aside and go on: the cluster rejects it permanently, and the spool keeps it in rejected/.",
    ),
    errors.DataLossError: _Row(
        _FATAL,
        "Data loss: produce the records at the named offsets again from their source, and look for an unclean election,"
        " a wiped disk or a recreated topic.",
        at_risk=True,
    ),
    errors.UndecidableError: _Row(
        _ASK,
        "Look at the evidence and the topic, then decide: resolve_undecidable() sends the batch again or skips it.",
        at_risk=True,
    ),
    errors.DeliveryTimeoutError: _Row(
        _ASK,
        "Do not send the record again: it is in the spool and is delivered when the cluster accepts it;"
        " kafkasafe spool ls shows pending records.",
    ),
    errors.LogDivergedError: _Row(
        _ASK,
        "Decide about the records that were read but are no longer in the log, then seek to event.divergent_offset (to"
        " read their replacements) or to event.resume_offset (to skip them).",
        at_risk=True,
    ),
    errors.OffsetNotAvailableError: _Row(
        _RETRY,
        "Call again: the look-up has no result, because the new leader is still catching up, which usually takes less"
        " than a second.",
    ),
    errors.RemoteStorageNotReadyError: _Row(
        _RETRY, "Call again: no position moved; if the error persists, look at the brokers' remote storage."
    ),
    errors.WaitTimeoutError: _Row(
        _RETRY, "Retry, or allow more time: accepted records are kept and still delivered."
    ),
    errors.SpoolFullError: _Row(
        _RETRY,
        "Retry later or raise spool_max_bytes: the record was not accepted, and all accepted records are kept.",
    ),
    errors.LaneBusyError: _Row(
        _RETRY, "Retry when the owner has ended, or do not set spool_lane: another process owns this lane."
    ),
    errors.SpoolWriteError: _Row(
        _FATAL,
        "Make room or replace the disk: a write failed; durable records are still durable, but this record is not.",
    ),
    errors.SpoolCorruptError: _Row(
        _FATAL,
        "Look at the damage (kafkasafe spool verify), then open the producer with on_corrupt='quarantine': it delivers"
        " the intact records and copies the damaged bytes to another file. If the damage destroyed marks, some intact"
        " records wait for a decision (resolve_undecidable).",
        at_risk=True,
    ),
    errors.SpoolError: _Row(_FATAL, "Read the message: nothing in the spool was changed."),
    errors.KafkaSafeError: _Row(_FATAL, "Read the message: it says what is safe and what to do."),
    # TLS
    ssl.SSLCertVerificationError: _Row(
        _FATAL,
        "Check ssl_cafile, the certificate's host name and its dates: the broker's certificate is not trusted.",
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
        "Retry; if the error persists, correct bootstrap.servers or advertised.listeners: the name does not resolve.",
    ),
    socket.herror: _Row(
        _REFRESH, "Retry; if the error persists, correct the host's name: it does not resolve."
    ),
    ConnectionError: _Row(_REFRESH, _CONNECTION),
    TimeoutError: _Row(
        _REFRESH,
        "Refresh metadata and retry: no answer came in time, but the request may have arrived, so write the same bytes"
        " with the same sequence number.",
    ),
    InterruptedError: _Row(_RETRY, "Retry: a signal interrupted the call."),
    BlockingIOError: _Row(_RETRY, "Retry when the file or socket is ready."),
    OSError: _Row(_FATAL, "Read the message: the operating system refused, and no retry is known to help."),
    # Anything else
    asyncio.CancelledError: _Row(_FATAL, "Do not catch it: the task was cancelled."),
    concurrent.futures.CancelledError: _Row(_FATAL, "Do not catch it: the call was cancelled."),
    tenacity.TryAgain: _Row(_RETRY, "Retry: the function requested a retry."),
    tenacity.RetryError: _Row(
        _FATAL, "Look at the result: the last attempt returned a value that the policy did not accept."
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
    errno.ENOBUFS: _Row(_RETRY, "Retry: the kernel has no free network buffers at the moment."),
    errno.EMFILE: _Row(_RETRY, _HANDLES),
    errno.ENFILE: _Row(_RETRY, _HANDLES),
    errno.ENOSPC: _Row(_RETRY, _DISK_FULL),
    errno.EDQUOT: _Row(_RETRY, _DISK_FULL),
    errno.EIO: _Row(
        _FATAL,
        "Stop writing to this disk and check it: it failed, and data that was not yet fsynced may be lost.",
        at_risk=True,
    ),
    errno.EROFS: _Row(
        _FATAL, "Mount the file system read-write; if the disk has failed, replace the disk first."
    ),
    errno.EACCES: _Row(_FATAL, "Give this user access to the file or directory."),
    errno.EPERM: _Row(_FATAL, "Give this user access to the file or directory."),
}


# Exceptions without a code, by class name: kafka-python's and our own, then Java's with the same meaning. The base
# classes (KafkaError, KafkaSafeError) are left out, because their names say nothing about the cause.
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
    """Return a verdict on an error: its meaning, and what the caller should do.

    The function is pure: no I/O, no state. Unknown error codes and exceptions that have nothing to do with Kafka get a
    verdict, too.

    Args:
        error_or_code: One of three things. (1) An error code of Kafka or its name (`59`, `"UNKNOWN_PRODUCER_ID"`). (2)
            The class name of an exception of Java, kafka-python or kafkasafe, as it appears in logs. For Java, the
            package may be left out: `"org.apache.kafka.common.errors.TimeoutException"` or `"TimeoutException"`. (3) An
            exception of kafka-python, kafkasafe, the operating system or TLS. For tenacity's `RetryError`, the verdict
            is about the last attempt's exception.
        api: The request that failed, such as `"produce"` or `"ListOffsets"`; None for any.
        context: For some codes, the verdict depends on these facts: an `ErrorContext`, or a mapping of its fields. Code
            59: whether retention removed the records or the cluster lost them (KAFKA-5793). Code 45: whether the batch
            was sent before. Codes 1 and 9: whether the topic is tiered (KIP-1007).

    Returns:
        The verdict. Its `api` is in snake case.

    Raises:
        ConfigError: `api`, the name of the error or a field of `context` is unknown or has the wrong type. If a name is
            unknown, the message suggests a similar one.
    """
    kind = None if api is None else _api(api)
    known = _context(context)
    if isinstance(error_or_code, type) and issubclass(error_or_code, BaseException):
        return _classify_exception(error_or_code, None, kind, known)
    if isinstance(error_or_code, BaseException):
        error = _unwrapped(error_or_code)
        return _classify_exception(type(error), error, kind, known)
    named = _NAMED.get(code_names.class_name(error_or_code)) if isinstance(error_or_code, str) else None
    if named is not None:
        return _classify_exception(named, None, kind, known)
    return codes.classify_code(code_for(error_or_code), kind, known)


def code_for(code_or_name: int | str) -> int:
    """Return Kafka's error code for a number, a number in a string, or an error name of Kafka or kafka-python.

    Raises:
        ConfigError: The name is unknown, or the type is wrong. If the name is unknown, the message suggests a similar
            one.
    """
    if isinstance(code_or_name, str):
        text = code_or_name.strip()
        # Accept any number of at most 20 characters: a newer version of Kafka may define it as an error code.
        if len(text) <= 20 and text.removeprefix("-").isdecimal():
            return int(text)
        code = code_names.code_of_name(text)
        if code is None:
            code = getattr(getattr(kafka_errors, text, None), "errno", None)
        if code is None:
            raise ConfigError(
                f"unknown Kafka error {text[:80]!r}{_nearest(text.upper(), code_names.names())}"
            )
        return int(code)
    if isinstance(code_or_name, bool):
        raise ConfigError(f"{code_or_name} is not an error code")
    try:
        return operator.index(code_or_name)
    except TypeError:
        raise ConfigError(
            f"An error must be a number, a name or an exception, not {type(code_or_name).__name__}"
        ) from None


def _unwrapped(error: BaseException) -> BaseException:
    """Return the exception inside a RetryError, or the certificate error that caused a connection error.

    Return any other exception itself.
    """
    for _ in range(_MAX_NESTING):
        if not isinstance(error, tenacity.RetryError):
            break
        last = error.last_attempt
        # There is no exception if the policy retried because of a return value, or if the last attempt is not done yet.
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
    known = code_names.api_name(name) if isinstance(name, str) else None
    if known is None:
        raise ConfigError(
            f"{str(name)[:80]!r} is not a Kafka request{_nearest(str(name).lower(), code_names.APIS)}"
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
        raise ConfigError(f"context must be an ErrorContext or a mapping, not {type(given).__name__}")
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name not in _FIELDS:
            raise ConfigError(
                f"{str(name)[:80]!r} is not a field of ErrorContext{_nearest(str(name), _FIELDS)}"
            )
        if value is None:
            continue
        wanted = bool if name in _FLAGS else int
        if type(value) is not wanted:
            raise ConfigError(
                f"{name} must be {'true or false' if wanted is bool else 'an integer'}, not {str(value)[:80]!r}"
            )
        values[name] = value
    return ErrorContext(**values)
