"""Gets SASL/OAUTHBEARER tokens from a function that the user names.

The user gives the function's name, because Spark sends options to other machines as text.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from kafka.net.sasl.oauth import AbstractTokenProvider


def function_of(name: str) -> Callable[..., Any]:
    """Imports the function `package.module:function`.

    Raises:
        ImportError: The module does not exist.
        AttributeError: The module has no such function.
    """
    module, _, function = name.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return found


class TokenFunction(AbstractTokenProvider):
    """Calls `package.module:function` to get a token, whenever a connection is opened or authenticated again.

    The function takes no arguments. The function returns the token, or a tuple of the token and a dict of SASL
    extensions (text → text), which some clusters need. The function runs on the network thread, so it should cache a
    token while the token is valid.
    """

    def __init__(self, name: str) -> None:
        self._function = name
        self._extensions: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"TokenFunction({self._function!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TokenFunction) and other._function == self._function

    def __hash__(self) -> int:
        return hash(self._function)

    def token(self) -> str:
        """Returns a currently valid token."""
        made: Any = function_of(self._function)()
        token, extensions = made if isinstance(made, tuple) else (made, {})
        if not isinstance(token, str) or not token:
            raise TypeError(
                f"{self._function} returned {type(token).__name__}: a token must be non-empty text"
            )
        self._extensions = dict(extensions)
        return token

    def extensions(self) -> dict[str, str]:
        """Returns the SASL extensions of the latest token."""
        return self._extensions
