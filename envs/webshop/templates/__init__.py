"""Jinja templates, style sheet and script of the shop's web site."""
