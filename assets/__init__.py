"""Packaged data."""
