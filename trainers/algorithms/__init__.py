"""Algorithms as recipes of four replaceable parts: sampler, selector, credit and objective. Pure; no I/O."""
