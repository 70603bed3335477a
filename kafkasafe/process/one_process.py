"""Objects that belong to the process that opened them, and cannot be pickled or copied."""

from __future__ import annotations

from typing import Any, NoReturn


def stays_with_producer(self: object, _protocol: Any) -> NoReturn:
    """The `__reduce_ex__` of futures, which pickle and copy call.

    Raises:
        TypeError: Always.
    """
    raise TypeError(
        f"A {type(self).__name__} belongs to its producer and cannot be pickled or copied. Pass on its metadata,"
        " available once the cluster has acknowledged the record, or the data that was sent"
    )


class OfOneProcess:
    """Base class of objects with threads, locks and connections, which a copy would share or lack."""

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Called by pickle and copy.

        Raises:
            TypeError: Always.
        """
        raise TypeError(
            f"A {type(self).__name__} belongs to the process that opened it and cannot be pickled or copied. Open one"
            " in each process: in the function that runs there, or in the pool's initializer (docs/processes.md)"
        )
