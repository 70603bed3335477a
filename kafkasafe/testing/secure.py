"""Listeners with TLS and SASL for `KafkaCluster`: their settings, and a certificate made with openssl or keytool."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from kafkasafe.errors import ConfigError

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_RESERVED: Final = frozenset({"CLIENT", "INNER", "CONTROLLER"})
_PASSWORD: Final = "kafkasafe"  # noqa: S105 - this password protects a key that exists only during a test
_SUBJECT: Final = "DNS:localhost,IP:127.0.0.1"
_LOGIN: Final = "org.apache.kafka.common.security"


def check_listeners(listeners: Mapping[str, str], users: Mapping[str, str], version: tuple[int, ...]) -> None:
    """Raises ConfigError if these listeners or users are invalid."""
    for name, protocol in listeners.items():
        if not re.fullmatch(r"[A-Z][A-Z0-9_]*", name) or name in _RESERVED:
            raise ConfigError(
                f"listeners: {name!r} must be a name in capitals, and none of {', '.join(sorted(_RESERVED))}"
            )
        if protocol not in PROTOCOLS:
            raise ConfigError(f"listeners: {name} must be one of {', '.join(PROTOCOLS)}, not {protocol!r}")
    if listeners and version < (2, 0):
        raise ConfigError("listeners need Kafka 2.0 or later")
    if not users and any(protocol.startswith("SASL") for protocol in listeners.values()):
        raise ConfigError("users: a listener with SASL needs a user; leave users out for alice")
    for user, password in users.items():
        if not re.fullmatch(r"[\w.-]+", user) or not re.fullmatch(r"[^\"\\\n]+", password):
            raise ConfigError(f"users: {user!r} and its password must be plain words")


def mechanisms_of(version: tuple[int, ...]) -> tuple[str, ...]:
    """The SASL mechanisms of a listener. SCRAM needs the API that creates users, which Kafka has since 2.7 with
    ZooKeeper, and since 3.5 in KRaft mode.
    """
    return MECHANISMS if version >= (3, 5) or (2, 7) <= version < (3, 0) else MECHANISMS[:1]


def listener_settings(
    name: str, protocol: str, store: Path, users: Mapping[str, str], mechanisms: Sequence[str]
) -> dict[str, str]:
    """A broker's settings for one listener."""
    prefix = f"listener.name.{name.lower()}."
    settings: dict[str, str] = {}
    if protocol.endswith("SSL"):
        settings |= {
            f"{prefix}ssl.keystore.type": "PKCS12",
            f"{prefix}ssl.keystore.location": str(store),
            f"{prefix}ssl.keystore.password": _PASSWORD,
            f"{prefix}ssl.key.password": _PASSWORD,
        }
    if protocol.startswith("SASL"):
        settings[f"{prefix}sasl.enabled.mechanisms"] = ",".join(mechanisms)
        for mechanism in mechanisms:
            login = f"{_LOGIN}.scram.ScramLoginModule required;"
            if mechanism == "PLAIN":
                known = "".join(f' user_{user}="{password}"' for user, password in users.items())
                login = f"{_LOGIN}.plain.PlainLoginModule required{known};"
            settings[f"{prefix}{mechanism.lower()}.sasl.jaas.config"] = login
    return settings


def make_certificate(directory: Path, java: Path) -> tuple[Path, Path]:
    """Makes a self-signed certificate for 127.0.0.1 and localhost.

    Args:
        directory: Directory of the files.
        java: A `java` executable. If openssl is missing, this function uses the keytool on PATH, or the keytool next to
            `java`.

    Returns:
        (the certificate as PEM, for clients; the key store as PKCS12, for brokers).

    Raises:
        ConfigError: There is neither openssl nor keytool.
    """
    directory.mkdir(parents=True, exist_ok=True)
    certificate, key, store = (directory / name for name in ("ca.pem", "key.pem", "store.p12"))
    keytool = shutil.which("keytool") or shutil.which("keytool", path=str(java.parent))
    if openssl := shutil.which("openssl"):
        _run(
            *(
                openssl,
                "req",
                "-x509",
                "-newkey",
                "rsa:2048",
                "-nodes",
                "-days",
                "30",
                "-subj",
                "/CN=localhost",
            ),
            *("-addext", f"subjectAltName={_SUBJECT}", "-keyout", str(key), "-out", str(certificate)),
        )
        _run(
            *(openssl, "pkcs12", "-export", "-name", "broker", "-passout", f"pass:{_PASSWORD}"),
            *("-in", str(certificate), "-inkey", str(key), "-out", str(store)),
        )
        key.unlink()
    elif keytool:
        _make_with_keytool(keytool, certificate, store)
    else:
        raise ConfigError("A listener with TLS needs openssl or keytool (of a JDK) to make its certificate")
    return certificate, store


def _make_with_keytool(keytool: str, certificate: Path, store: Path) -> None:
    common = ("-alias", "broker", "-storetype", "PKCS12", "-keystore", str(store), "-storepass", _PASSWORD)
    _run(
        *(keytool, "-genkeypair", *common, "-keyalg", "RSA", "-keysize", "2048", "-validity", "30"),
        *("-dname", "CN=localhost", "-ext", f"san={_SUBJECT.lower()}", "-ext", "bc:critical=ca:true"),
    )
    _run(keytool, "-exportcert", *common, "-rfc", "-file", str(certificate))


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise ConfigError(f"{command[0]} could not make a certificate: {done.stderr.strip()[-500:]}")
