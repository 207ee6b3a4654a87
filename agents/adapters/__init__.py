"""Environments in the loops of other projects, each of which is imported only by its own module."""
