"""Commands of kafkasafe, run in this process."""

from __future__ import annotations

import pytest

from kafkasafe import cli


def run(capsys, *arguments):
    """Runs a command. Returns its exit code, and what it printed on standard output and on standard error."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        cli.main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return ended.value.code, captured.out, captured.err
