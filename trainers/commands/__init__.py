"""Commands and functions that train: checks before, progress meanwhile, a model at the end."""
