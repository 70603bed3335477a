"""Pictures of the benchmarks."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

__all__ = ["save"]


def save(figure: Figure, path: Path) -> None:
    """Writes a figure as SVG without a date, so that the same figure always gives the same file."""
    figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
    # matplotlib writes spaces at the ends of lines, so strip them.
    lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join(line.rstrip() for line in lines) + "\n", encoding="utf-8")
