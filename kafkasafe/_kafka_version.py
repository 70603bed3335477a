"""The releases of kafka-python with which kafkasafe works. `import kafkasafe` refuses any other release.

`kafkasafe/kafkapython` extends classes of kafka-python that are not public. Other releases of kafka-python lack some
names of these classes. Without this check, kafkasafe would fail later, with an error that does not mention the release.

pyproject.toml requires the same releases of kafka-python, as a test checks.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Final

OLDEST: Final = (3, 0, 9)
"""The oldest release that works with kafkasafe."""

FIRST_WITHOUT: Final = (3, 1)
"""The first release after `OLDEST` that does not work with kafkasafe. Its pre-releases do not work either."""


def check() -> None:
    """Refuse an installed kafka-python that kafkasafe does not work with.

    This function reads kafka-python's version from a file instead of importing the package, because Python 3.12 cannot
    import its older releases. If the version's file is missing, as in a frozen program, any release is accepted.

    Raises:
        ImportError: The release is older than `OLDEST`, or it is `FIRST_WITHOUT` or newer. Or Python runs with -O.
    """
    if not __debug__:
        # `TaggedFields.decode_empty` reads a byte in an assert statement, which -O removes.
        raise ImportError(
            "kafkasafe does not work under python -O or PYTHONOPTIMIZE: kafka-python reads the brokers' responses in"
            " assert statements, which -O removes. No spool was opened or changed. Run the program without -O"
        )
    folder, version = _installed()
    release = _release(version)
    if not release or OLDEST <= release < FIRST_WITHOUT:
        return
    oldest, without = (".".join(map(str, each)) for each in (OLDEST, FIRST_WITHOUT))
    raise ImportError(
        f"kafkasafe works with kafka-python {oldest} and newer releases below {without}, but {folder} has version"
        f" {version}. No spool was opened or changed. Install a release that works:"
        f" pip install 'kafka-python>={oldest},<{without}'",
        name="kafka",
        path=folder,
    )


def _installed() -> tuple[str, str]:
    """Return the folder of the package `kafka`, and its version. The version is empty if it cannot be read."""
    try:
        spec = find_spec("kafka")
    except ValueError:  # the program has replaced kafka-python by a module of its own
        return "", ""
    if spec is None or spec.origin is None:
        return "", ""
    folder = os.path.dirname(spec.origin)  # noqa: PTH120 - importing pathlib takes longer than this whole check
    try:
        with open(os.path.join(folder, "version.py"), encoding="utf-8") as file:  # noqa: PTH118, PTH123 - the same
            words = file.read().replace('"', "'").split("'")
    except (OSError, UnicodeError):
        return folder, ""
    return folder, words[1] if len(words) > 1 else ""


def _release(version: str) -> tuple[int, ...]:
    """Return the numbers of a version: (3, 1, 0) for "3.1.0.dev" and "3.1.0rc1"."""
    numbers = []
    for part in version.split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if digits:
            numbers.append(int(digits))
        if digits != part:
            break
    return tuple(numbers)
