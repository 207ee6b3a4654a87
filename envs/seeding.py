"""Randomness that is the same on every machine, in every process and under every hash salt.

Three generators, each for one purpose:

* Gymnasium's `np_random` draws *which* task an unnamed `reset(seed=n)` opens;
* `random.Random(stable_seed(...))` builds the *level* of a task, from the task's name alone;
* `split_mix` (SplitMix64; Steele, Lea and Flood, OOPSLA 2014) decides *chance within an episode* (a slip on
  the ice, a bandit's payment). Its state is one integer, so a snapshot of it costs nothing.
"""

from __future__ import annotations

from collections.abc import Hashable
from hashlib import blake2b

_MASK = (1 << 64) - 1


def stable_seed(*parts: Hashable) -> int:
    """A 64-bit seed from strings, numbers and tuples of them, independent of the process's hash salt."""
    return int.from_bytes(blake2b(repr(parts).encode(), digest_size=8).digest(), "little")


def split_mix(state: int) -> tuple[int, float]:
    """One draw: `(next state, uniform float in [0, 1))` from a 64-bit state."""
    state = (state + 0x9E3779B97F4A7C15) & _MASK
    z = state
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return state, ((z ^ (z >> 31)) >> 11) * 2.0**-53
