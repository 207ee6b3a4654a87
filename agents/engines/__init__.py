"""Engines: what turns messages or tokens into a reply."""
