"""Certificates and keys as text in options (KIP-651), as secrets of Kubernetes give them.

Java's client takes PEM in the option itself; Python's `ssl` takes a private key from a file only. A `PemContext` is
made of the texts, again in each process of Spark, and leaves no key on a disk where the system has files in memory.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import ssl
import tempfile
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Self

__all__ = ["Pem", "PemContext", "pem_text"]

_BLOCK: Final = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", re.DOTALL)
_COLUMNS: Final = 64


def pem_text(value: str) -> str:
    r"""PEM with its lines as they should be; empty where there is no PEM in it.

    Options often have them otherwise: on one line, with spaces, or with `\n` as two characters.
    """
    blocks = []
    for kind, body in _BLOCK.findall(value.replace("\\n", "\n")):
        # One with headers is an old encrypted key, whose lines count.
        lines = body.strip() if ":" in body else "\n".join(textwrap.wrap("".join(body.split()), _COLUMNS))
        blocks.append(f"-----BEGIN {kind}-----\n{lines}\n-----END {kind}-----\n")
    return "".join(blocks)


@dataclass(frozen=True)
class Pem:
    """What a TLS context is made of. Each of authorities, certificate and key is text or a file.

    Attributes:
        authorities: Certificates that are trusted, as PEM.
        authorities_file: The same as a file. Neither: those that the system trusts.
        certificate: The client's own certificate chain, as PEM.
        certificate_file: The same as a file.
        key: Its private key, as PEM; may be part of the certificate's text or file.
        key_file: The same as a file.
        password: Of the key.
        revoked_file: A revocation list.
        check_hostname: Whether a broker's certificate has to name its host.
    """

    authorities: str | None = None
    authorities_file: str | None = None
    certificate: str | None = None
    certificate_file: str | None = None
    key: str | None = field(default=None, repr=False)
    key_file: str | None = None
    password: str | None = field(default=None, repr=False)
    revoked_file: str | None = None
    check_hostname: bool = True


class PemContext(ssl.SSLContext):
    """An `ssl.SSLContext` that can be pickled, and is equal to one of the same parts.

    Args:
        pem: What it is made of.

    Raises:
        ssl.SSLError: A text or file is no PEM, or certificate and key do not belong together.
        OSError: A file cannot be read.
    """

    _pem: Pem

    def __new__(cls, pem: Pem) -> Self:  # noqa: D102
        made = super().__new__(cls, ssl.PROTOCOL_TLS_CLIENT)
        made._pem = pem
        made.minimum_version = ssl.TLSVersion.TLSv1_2
        made.check_hostname = pem.check_hostname
        if pem.authorities or pem.authorities_file:
            made.load_verify_locations(cafile=pem.authorities_file, cadata=pem.authorities)
        else:
            made.load_default_certs()
        made._load_own(pem)
        if pem.revoked_file:
            made.load_verify_locations(pem.revoked_file)
            made.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
        return made

    def _load_own(self, pem: Pem) -> None:
        if not (pem.certificate or pem.certificate_file):
            return
        with contextlib.ExitStack() as stack:
            certificate, key = pem.certificate_file, pem.key_file
            if pem.certificate:
                certificate = stack.enter_context(_as_file(pem.certificate + (pem.key or "")))
            if pem.key:
                key = stack.enter_context(_as_file(pem.key))
            assert certificate is not None  # noqa: S101  # one of the two is there
            # Without a password OpenSSL would ask for it on the terminal.
            self.load_cert_chain(certificate, key, password=pem.password or str)

    def __reduce__(self) -> tuple[Any, ...]:
        return PemContext, (self._pem,)

    def __repr__(self) -> str:
        # Connections are shared by what the text of their options is: the same for the same parts, without the key.
        secret = repr((self._pem.key, self._pem.password)).encode()
        return f"PemContext({self._pem!r}, {hashlib.sha256(secret).hexdigest()[:16]})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PemContext) and other._pem == self._pem

    def __hash__(self) -> int:
        return hash(self._pem)


@contextlib.contextmanager
def _as_file(text: str) -> Iterator[str]:
    """A file of this process alone; in memory where there is such a thing."""
    if hasattr(os, "memfd_create"):
        number = os.memfd_create("kafkasafe-pem")
        try:
            os.write(number, text.encode())
            yield f"/proc/self/fd/{number}"
        finally:
            os.close(number)
        return
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:  # readable for this user only
        file.write(text)
        file.flush()
        yield file.name
