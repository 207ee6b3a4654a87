"""Sampled episodes as arrays, and the micro-batches made from them."""
