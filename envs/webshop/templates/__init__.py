"""Pages of the shop: Jinja templates, one style sheet and a few lines of script."""
