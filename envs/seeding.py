"""Randomness that is reproducible across machines, processes and hash salts.

Three generators, each for one purpose:

* Gymnasium's `np_random` draws the *task* that an unnamed `reset(seed=n)` opens.
* `random.Random(stable_seed(...))` generates the *level* of a task from the task's name alone.
* `split_mix` (SplitMix64; Steele, Lea and Flood, OOPSLA 2014) draws the *random events within an episode*, such as
  a slip on the ice or a bandit's payment. Its state is one integer, so it adds nothing to the cost of a snapshot.
"""

from __future__ import annotations

from collections.abc import Hashable
from hashlib import blake2b

_MASK = (1 << 64) - 1


def stable_seed(*parts: Hashable) -> int:
    """Return a 64-bit seed derived from `parts`, independent of the process's hash salt.

    Args:
        parts: Strings, numbers and tuples of them; anything whose `repr` is the same in every process.
    """
    return int.from_bytes(blake2b(repr(parts).encode(), digest_size=8).digest(), "little")


def split_mix(state: int) -> tuple[int, float]:
    """Draw one number from a 64-bit SplitMix64 state.

    Returns:
        The next state, and a uniform float in [0, 1).
    """
    state = (state + 0x9E3779B97F4A7C15) & _MASK
    z = state
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return state, ((z ^ (z >> 31)) >> 11) * 2.0**-53
