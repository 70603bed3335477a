"""The modules that decide and do nothing else. import-linter holds this: its contract in pyproject.toml lists them."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Final


def _listed() -> frozenset[str]:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    (modules,) = (
        each["source_modules"] for each in contracts if each["name"].startswith("What decides is pure")
    )
    return frozenset(modules)


_PURE: Final = _listed()


def is_pure_module(name: str) -> bool:
    """Whether `name` is such a module, or below one; with the dotted name of a class or a function, whether its module is."""
    parts = name.split(".")
    return any(".".join(parts[:size]) in _PURE for size in range(1, len(parts) + 1))
