"""Studies: comparisons of recipes over several environments and seeds, from one warm start, on held-out tasks."""
