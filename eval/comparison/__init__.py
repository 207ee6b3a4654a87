"""Comparison of evaluation runs: agents of several runs, paired by task, for `arboretum compare`."""
