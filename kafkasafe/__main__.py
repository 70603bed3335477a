"""`python -m kafkasafe`: the `kafkasafe` command."""

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command `kafkasafe`. If the command needs a missing package, say how to install it."""
    try:
        from kafkasafe.cli import main as run
    except ModuleNotFoundError as error:
        if error.name not in {"click", "rich", "typer"}:
            raise
        print(
            f"kafkasafe: the command line needs {error.name}: pip install 'kafkasafe[cli]'", file=sys.stderr
        )
        sys.exit(2)
    run()


if __name__ == "__main__":
    main()
