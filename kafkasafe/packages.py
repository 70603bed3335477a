"""Imports the optional package pyarrow, which kafkasafe's extra `arrow` installs."""

from __future__ import annotations

from typing import Any


class MissingPackageError(ImportError):
    """A package is not installed. The message says which extra of kafkasafe installs the package."""


def pyarrow_for(what: str) -> Any:
    """Import pyarrow, which takes 22 MB of memory.

    Args:
        what: Name of the module or function that needs pyarrow, for the error message.

    Raises:
        MissingPackageError: pyarrow is not installed.
    """
    try:
        import pyarrow as pa
    except ImportError as error:
        raise MissingPackageError(f"{what} needs pyarrow: pip install 'kafkasafe[arrow]'") from error
    return pa
