"""`python -m arboretum`, and the `arboretum` command."""

import sys


def main() -> None:
    """Run the command; Ctrl-C while its modules are imported ends it with status 130, as it does later."""
    try:
        from .cli import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
