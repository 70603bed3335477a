"""Certificates and keys given as text in options (KIP-651), for example from Kubernetes secrets.

Java's client accepts PEM text in an option, but Python's `ssl` reads a private key only from a file. A `PemContext`
loads the texts once in each process of Spark. On systems with in-memory files, a `PemContext` never writes a key to
disk.
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

_BLOCK: Final = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", re.DOTALL)
_COLUMNS: Final = 64


def pem_text(value: str) -> str:
    r"""Restores the line breaks of PEM text. Returns an empty string if the value contains no PEM.

    In options, PEM text is often on one line, with spaces instead of line breaks, or with `\n` as two characters.
    """
    blocks = []
    for kind, body in _BLOCK.findall(value.replace("\\n", "\n")):
        # A PEM block with headers is a key in the old encrypted format. The line breaks of such a block are
        # significant, so keep them.
        lines = body.strip() if ":" in body else "\n".join(textwrap.wrap("".join(body.split()), _COLUMNS))
        blocks.append(f"-----BEGIN {kind}-----\n{lines}\n-----END {kind}-----\n")
    return "".join(blocks)


@dataclass(frozen=True)
class Pem:
    """The parts of a TLS context. Authorities, certificate and key may each be text or a file.

    Attributes:
        authorities: Trusted certificates, as PEM text.
        authorities_file: Path of a file with trusted certificates. If neither text nor file is given, the system's
            trusted certificates apply.
        certificate: The client's own certificate chain, as PEM text.
        certificate_file: Path of a file with the client's own certificate chain.
        key: The client's private key, as PEM text. Not needed if the certificate's text or file contains the key.
        key_file: Path of a file with the client's private key.
        password: Password of the key.
        revoked_file: Path of a file with the certificate revocation list.
        check_hostname: Whether a broker's certificate must name the broker's host.
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
    """An `ssl.SSLContext` that can be pickled. Contexts with the same parts are equal.

    Args:
        pem: The parts of the context.

    Raises:
        ssl.SSLError: A text or file is not PEM, or the certificate and the key do not match.
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
            assert certificate is not None  # noqa: S101  # checked above: there is a text or a file
            # If there is no password, pass the function `str`: calling it returns an empty password. Without a
            # function, OpenSSL would ask for a password on the terminal.
            self.load_cert_chain(certificate, key, password=pem.password or str)

    def __reduce__(self) -> tuple[Any, ...]:
        return PemContext, (self._pem,)

    def __repr__(self) -> str:
        # Tasks share connections if the `repr` of their options is equal. So equal contexts must have an equal `repr`.
        # The `repr` contains a hash instead of the key and the password, which must stay secret.
        secret = repr((self._pem.key, self._pem.password)).encode()
        return f"PemContext({self._pem!r}, {hashlib.sha256(secret).hexdigest()[:16]})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PemContext) and other._pem == self._pem

    def __hash__(self) -> int:
        return hash(self._pem)


@contextlib.contextmanager
def _as_file(text: str) -> Iterator[str]:
    """Yields the path of a file with this text. On Linux, the file exists only in memory."""
    if hasattr(os, "memfd_create"):
        number = os.memfd_create("kafkasafe-pem")
        try:
            os.write(number, text.encode())
            yield f"/proc/self/fd/{number}"
        finally:
            os.close(number)
        return
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:  # only this user can read it
        file.write(text)
        file.flush()
        yield file.name
