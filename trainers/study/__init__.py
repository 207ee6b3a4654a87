"""Studies: several recipes, worlds and seeds from one warm start, measured on held-out tasks."""
