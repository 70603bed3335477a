"""Groups of commands. Their help shows whole sentences."""

from __future__ import annotations

from typing import Any, Final

from typer.core import TyperCommand, TyperGroup

_LONGEST: Final = 10_000


class WholeSentences(TyperGroup):
    """A group of commands whose help shows the whole first sentence of each command. Click would cut the sentence at
    the end of the line.
    """

    def helps(self, ctx: Any) -> list[tuple[str, str]]:
        """The name and the help of each command, in the order of the output."""
        return [(name, (self.get_command(ctx, name) or self).help or "") for name in self.list_commands(ctx)]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write two columns: the name of each command, and a sentence that describes the command. A long sentence takes
        several lines.
        """
        with formatter.section("Commands"):
            formatter.write_dl(
                [
                    (name, TyperCommand(name, help=text).get_short_help_str(_LONGEST))
                    for name, text in self.helps(ctx)
                ]
            )
