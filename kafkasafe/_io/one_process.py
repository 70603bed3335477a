"""What belongs to the process that opened it: it is neither pickled nor copied."""

from __future__ import annotations

from typing import Any, NoReturn

__all__ = ["OfOneProcess"]


class OfOneProcess:
    """Has threads, locks and connections: a copy would share them, or be without."""

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Of pickle and copy.

        Raises:
            TypeError: Always.
        """
        raise TypeError(
            f"A {type(self).__name__} belongs to the process that opened it and cannot be pickled or copied. Open one"
            " in each process: in the function that runs there, or in the pool's initializer (docs/processes.md)"
        )
