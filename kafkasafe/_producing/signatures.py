"""Finds out how many arguments a function of the application takes: kafka-python's interfaces have older and newer
forms.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

__all__ = ["takes"]


def takes(function: Callable[..., Any], arguments: int) -> bool:
    """Return whether a function can be called with this number of positional arguments."""
    try:
        inspect.signature(function).bind(*range(arguments))
    except TypeError:
        return False
    except ValueError:  # functions written in C may have no signature
        return True
    return True
