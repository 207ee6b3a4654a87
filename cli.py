"""The `arboretum` command."""
