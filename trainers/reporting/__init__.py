"""Metrics of a training run, and everything that displays them."""
