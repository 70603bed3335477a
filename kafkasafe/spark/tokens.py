"""Tokens for SASL/OAUTHBEARER from a function that is named: options are text, and are sent to other machines."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from kafka.net.sasl.oauth import AbstractTokenProvider

__all__ = ["TokenFunction", "function_of"]


def function_of(name: str) -> Callable[..., Any]:
    """The function `package.module:function`.

    Raises:
        ImportError: There is no such module.
        AttributeError: It has no such function.
    """
    module, _, function = name.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return found


class TokenFunction(AbstractTokenProvider):
    """Asks `package.module:function` for a token whenever a connection is opened or authenticated again.

    The function takes nothing and returns the token, or the token and a dict of SASL extensions (text → text, as some
    clusters want them). It is called on the network thread: it should keep a token for as long as it is valid.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._extensions: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"TokenFunction({self._name!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TokenFunction) and other._name == self._name

    def __hash__(self) -> int:
        return hash(self._name)

    def token(self) -> str:
        """A token that is valid now."""
        made: Any = function_of(self._name)()
        token, extensions = made if isinstance(made, tuple) else (made, {})
        if not isinstance(token, str) or not token:
            raise TypeError(f"{self._name} returned {type(token).__name__}: a token is text")
        self._extensions = dict(extensions)
        return token

    def extensions(self) -> dict[str, str]:
        """Those that came with the latest token."""
        return self._extensions
