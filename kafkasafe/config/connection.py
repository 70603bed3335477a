"""Checks of the connection options, which both clients have: addresses, TLS, SASL."""

from __future__ import annotations

import difflib
import ipaddress
import os
import re
import ssl
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import NoneType
from typing import Any, Final
from urllib.parse import urlsplit

from kafka.net.sasl import SASL_MECHANISMS
from kafka.net.sasl.oauth import AbstractTokenProvider

from kafkasafe.config.values import choice, duration, number, optional, sendable
from kafkasafe.errors import ConfigError

_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_PROXIES: Final = ("socks5", "socks5h", "http")
_OLDEST_VERSION: Final = (0, 8)
"""The oldest version of brokers that kafka-python supports."""
_TLS_FILES: Final = ("ssl_cafile", "ssl_certfile", "ssl_keyfile", "ssl_crlfile")
_TLS: Final = (*_TLS_FILES, "ssl_context", "ssl_password")
_SASL: Final = (
    "sasl_mechanism",
    "sasl_plain_username",
    "sasl_plain_password",
    "sasl_kerberos_name",
    "sasl_kerberos_domain_name",
    "sasl_oauth_token_provider",
)
_SECRET_TEXTS: Final = ("sasl_plain_username", "sasl_plain_password", "ssl_password")


def check_connection(options: Mapping[str, Any]) -> None:
    """Refuse wrong values that kafka-python would accept silently, or reject with an unclear error."""
    protocol = options["security_protocol"]
    if protocol not in _PROTOCOLS:
        # For an unknown name, kafka-python would raise no error and connect without encryption.
        hint = f"; did you mean {_near_protocol(protocol)!r}?" if isinstance(protocol, str) else ""
        raise ConfigError(f"security_protocol must be one of {', '.join(_PROTOCOLS)}, not {protocol!r}{hint}")
    _check_servers(options["bootstrap_servers"])
    for name, check in _CHECKS.items():
        check(options, name)
    if not callable(options["selector"]):
        raise ConfigError(
            f"selector must be a class such as selectors.DefaultSelector, not {options['selector']!r}"
        )
    for name in _SECRET_TEXTS:
        if not isinstance(options[name], (str, NoneType)):
            # The message must not contain the value, which may be a password.
            raise ConfigError(f"{name} must be a str, not {type(options[name]).__name__}")
        try:
            (options[name] or "").encode()
        except UnicodeEncodeError:
            raise ConfigError(f"{name} cannot be written as UTF-8") from None
    _check_tls(options)
    _check_sasl(options)


def unprotected(options: Mapping[str, Any]) -> Iterator[tuple[list[str], str]]:
    """Yield the given options that have no effect, because `security_protocol` does not use them: first the SASL
    options, then the TLS options.

    Call this function after `check_connection`. kafka-python itself does not report options without an effect.

    Yields:
        The options' names, and the reason.
    """
    protocol = options["security_protocol"]
    sasl = [name for name in _SASL if options[name]]
    if sasl and not protocol.startswith("SASL"):
        fit = "SASL_SSL" if protocol == "SSL" else "SASL_SSL or SASL_PLAINTEXT"
        reason = f"security_protocol={protocol} connects without authentication; set {fit}"
        yield sasl, reason
    tls = [name for name in _TLS if options[name]]
    if tls and not protocol.endswith("SSL"):
        fit = "SASL_SSL" if protocol == "SASL_PLAINTEXT" or sasl else "SSL"
        yield tls, f"security_protocol={protocol} connects without encryption; set {fit}"


def _client_id(options: Mapping[str, Any], name: str) -> None:
    if not isinstance(options[name], (str, NoneType)):
        raise ConfigError(f"{name} must be a str, not {options[name]!r}")
    sendable(name, options[name] or "")


def _version(options: Mapping[str, Any], name: str) -> None:
    version = options[name]
    if isinstance(version, str) and re.fullmatch(r"\d+(\.\d+)*", version, re.ASCII):
        version = tuple(map(int, version.split(".")))
    if version in {None, "auto"} if isinstance(version, (str, NoneType)) else _is_version(version):
        return
    raise ConfigError(
        f"{name} must be None or a tuple of numbers such as (2, 8), not {options[name]!r}. With None, the client asks"
        " the brokers"
    )


def _is_version(version: Any) -> bool:
    return (
        isinstance(version, tuple)
        and all(type(part) is int for part in version)
        and version >= _OLDEST_VERSION
    )


def _endless(options: Mapping[str, Any], name: str) -> None:
    if duration(options, name) == 0:
        raise ConfigError(
            f"{name}={options[name]!r} would close each connection at once; float('inf') keeps idle connections open"
        )


def _proxy(options: Mapping[str, Any], name: str) -> None:
    try:
        parts = urlsplit(options[name]) if isinstance(options[name], str) else None
        if parts is not None and parts.scheme in _PROXIES and parts.hostname and parts.port:
            return
    except ValueError:
        # The text is not a URL, or the URL has no port.
        pass
    # The message must not contain the value, because the value may contain a password.
    raise ConfigError(f"{name} must be SCHEME://HOST:PORT, where SCHEME is one of {', '.join(_PROXIES)}")


def _socket_options(options: Mapping[str, Any], name: str) -> None:
    given = options[name]
    listed = list(given) if isinstance(given, (list, tuple, set, frozenset)) else [None]
    for each in listed:
        if not (
            isinstance(each, (list, tuple))
            and len(each) == 3
            and all(type(part) is int for part in each[:2])
            and isinstance(each[2], (int, bytes))
        ):
            raise ConfigError(
                f"{name} must be a list of arguments of socket.setsockopt, such as"
                f" (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), not {given!r}"
            )


_buffer: Final = optional(number(least=-1, most=0x7FFF_FFFF))
_CHECKS: Final[Mapping[str, Callable[[Mapping[str, Any], str], object]]] = {
    "client_id": _client_id,
    "client_dns_lookup": choice("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"),
    "api_version": _version,
    "metadata_max_age_ms": duration,
    "reconnect_backoff_ms": duration,
    "reconnect_backoff_max_ms": duration,
    "connections_max_idle_ms": _endless,
    "receive_message_max_bytes": number(least=1024),
    "receive_buffer_bytes": _buffer,
    "send_buffer_bytes": _buffer,
    "socket_options": optional(_socket_options),
    "proxy_url": optional(_proxy),
    "socks5_proxy": optional(_proxy),
}
"""Checks of options that both clients have. Without these checks, kafka-python would raise an error that does not name
the option, or would fail to connect.
"""


def _near_protocol(given: str) -> str:
    """Guess the intended protocol: with SASL if the name contains SAS, and with TLS unless a word begins with PLAIN."""
    words = set(re.split(r"[^A-Z]+", given.upper()))
    if any("SAS" in word for word in words):
        return "SASL_PLAINTEXT" if any(word.startswith("PLAIN") for word in words) else "SASL_SSL"
    return "PLAINTEXT" if any(word.startswith("PLAIN") for word in words) else "SSL"


def _check_servers(servers: Any) -> None:
    names = servers.split(",") if isinstance(servers, str) else servers
    if not isinstance(names, (list, tuple, set, frozenset)) or not names:
        raise ConfigError(f"bootstrap_servers must be 'host:port' or a list of them, not {servers!r}")
    for name in names:
        if not isinstance(name, str) or not _is_address(re.sub("^.*://", "", name.strip())):
            raise ConfigError(
                f"bootstrap_servers must be 'host:port' or a list of them; {name!r} is not host:port"
            )


def _is_address(text: str) -> bool:
    """Return whether kafka-python can parse the text as host, host:port, [v6], [v6]:port or a bare IPv6 address."""
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        return bool(host and bracket) and (not rest or (rest[0] == ":" and _is_port(rest[1:])))
    if text.count(":") > 1:
        try:
            return ipaddress.ip_address(text).version == 6
        except ValueError:
            return False
    host, colon, port = text.partition(":")
    return bool(host.strip()) and (not colon or _is_port(port))


def _is_port(text: str) -> bool:
    return text.strip().isdecimal() and 0 < int(text) < 65_536


def _check_tls(options: Mapping[str, Any]) -> None:
    context = options["ssl_context"]
    if context is not None and not isinstance(context, ssl.SSLContext):
        raise ConfigError(f"ssl_context must be an ssl.SSLContext, not {type(context).__name__}")
    files = [name for name in _TLS_FILES if options[name] is not None]
    for name in files:
        path = options[name]
        if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
            raise ConfigError(f"{name} must be the path of a file, not {path!r}")
        try:
            with Path(path).open("rb"):
                pass
        except OSError as error:
            raise ConfigError(f"{name}: {error.strerror}: {os.fspath(path)!r}") from None
        except ValueError as error:  # the path has a null byte, or characters that no file name can have
            raise ConfigError(f"{name}={os.fspath(path)!r} cannot be the path of a file: {error}") from None
    if context is not None or not files or options["security_protocol"] not in {"SSL", "SASL_SSL"}:
        return
    trial = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for name in files:
        if name == "ssl_keyfile":
            continue  # the key is loaded together with the certificate
        try:
            if name == "ssl_certfile":
                # Always pass a password: without one, OpenSSL asks for it on the terminal.
                trial.load_cert_chain(
                    options[name], options["ssl_keyfile"], password=options["ssl_password"] or str
                )
            else:
                trial.load_verify_locations(options[name])
        except (OSError, ValueError) as error:
            also = " (with ssl_keyfile and ssl_password)" if name == "ssl_certfile" else ""
            why = getattr(error, "reason", None) or error
            raise ConfigError(
                f"{name}={os.fspath(options[name])!r} cannot be used{also}: {why}. Give a PEM file"
            ) from None


def _check_sasl(options: Mapping[str, Any]) -> None:
    mechanism = options["sasl_mechanism"]
    known = sorted(SASL_MECHANISMS)
    if mechanism is not None and mechanism not in known:
        near = difflib.get_close_matches(str(mechanism).upper(), known, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"sasl_mechanism must be one of {', '.join(known)}, not {mechanism!r}{hint}")
    provider = options["sasl_oauth_token_provider"]
    if provider is not None and not isinstance(provider, AbstractTokenProvider):
        # The message must not contain the value, which may be a token.
        raise ConfigError(
            "sasl_oauth_token_provider must be an object of a subclass of"
            f" kafka.net.sasl.oauth.AbstractTokenProvider, not {type(provider).__name__}"
        )
    if not options["security_protocol"].startswith("SASL"):
        return
    if mechanism is None:
        raise ConfigError(
            f"security_protocol={options['security_protocol']} needs sasl_mechanism, one of {', '.join(known)}"
        )
    if mechanism == "AWS_MSK_IAM" and options["security_protocol"] != "SASL_SSL":
        raise ConfigError("sasl_mechanism=AWS_MSK_IAM needs security_protocol=SASL_SSL")
    if mechanism == "PLAIN" or mechanism.startswith("SCRAM-"):
        for name in ("sasl_plain_username", "sasl_plain_password"):
            if not options[name]:
                raise ConfigError(f"sasl_mechanism={mechanism} needs {name}")
    if mechanism == "OAUTHBEARER" and provider is None:
        raise ConfigError(
            "sasl_mechanism=OAUTHBEARER needs sasl_oauth_token_provider, a subclass of"
            " kafka.net.sasl.oauth.AbstractTokenProvider"
        )


def check_types(options: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Refuse a string where a number or a boolean is expected. kafka-python would fail much later, or treat the string
    as True.
    """
    for name, value in options.items():
        default = defaults.get(name)
        if isinstance(default, bool) and isinstance(value, (str, bytes)):
            raise ConfigError(f"{name} must be True or False, not {value!r}")
        if isinstance(default, (int, float)) and not isinstance(value, (int, float, type(None))):
            raise ConfigError(f"{name} must be a number, not {value!r}")
