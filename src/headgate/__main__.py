"""`python -m headgate` is the `headgate` command."""

from headgate.entrypoints.cli import main

if __name__ == "__main__":
    main()
