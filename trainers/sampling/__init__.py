"""Choosing which episodes to roll out, and rolling them out with the current policy."""
