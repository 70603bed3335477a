"""The part of docs/options.md that follows from the table of options."""

from __future__ import annotations

import textwrap
from typing import Final

from kafkasafe.config.table import FILES_ONLY
from tests.pages import DOCS, code, filled

PATH: Final = DOCS / "options.md"


def text() -> str:
    names = ", ".join(map(code, FILES_ONLY))
    said = (
        f'With `spool="never"`, options about files raise a `ConfigError`: {names}. `KAFKASAFE_SPOOL_DIR` is ignored,'
        " because it may be set for other producers on the machine."
    )
    return filled(PATH, {"files only": "\n".join(textwrap.wrap(said, 140)) + "\n"})
