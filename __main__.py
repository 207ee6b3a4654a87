"""`python -m arboretum`: the same as the `arboretum` command."""

from .cli import main

if __name__ == "__main__":
    main()
