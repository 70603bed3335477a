"""`python -m kafkasafe.cli`: the `kafkasafe` command."""

from kafkasafe.cli import main

if __name__ == "__main__":
    main()
