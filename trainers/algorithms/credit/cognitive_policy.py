"""Functional equivalence of steps by the policy: divergence of its action distributions (arXiv:2604.07165, eq. 2).

Where both contexts list the same admissible actions, the divergence is exact over that list. Where neither lists
any, it is estimated from sampled actions (eq. 18). Contexts with different lists are not equivalent: an action
that only one of them admits has probability 0 in the other, so that the larger of the two divergences is infinite.
All contexts of an update are scored in one call.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal, NamedTuple

import numpy as np

from ....envs.seeding import stable_seed
from ...data.rollouts import Rollouts
from ...data.segments import BoolArray, FloatArray, IntArray
from .base import PolicyProbe
from .cognitive import Symmetrize, exact_kl, find_root, merge_steps, sampled_kl
from .cognitive_steps import Steps

Contexts = Literal["all", "undecided", "one"]


@dataclass(frozen=True)
class PolicyRule:
    """Settings of the comparison.

    Attributes:
        threshold: ε_kl.
        samples: Sampled actions K per context.
        estimator: Estimate from samples; see `sampled_kl`.
        symmetrize: Combination of the two directions; see `merge_steps`.
        contexts: See `Cognitive.kl_contexts`; "one" is the only value that is read here.
    """

    threshold: float
    samples: int
    estimator: Literal["k1", "k3"]
    symmetrize: Symmetrize
    contexts: Contexts = "undecided"


class Comparison(NamedTuple):
    """Result of a comparison by the policy.

    Attributes:
        classes: Sets of equivalent contexts, [S].
        pairs: Compared pairs of turns.
        separate: Pairs of turns that were not compared, since they list different actions.
        contexts: Distinct scored contexts.
    """

    classes: IntArray
    pairs: int
    separate: int
    contexts: int


def compare_by_policy(
    rollouts: Rollouts,
    steps: Steps,
    classes: IntArray,
    probe: PolicyProbe,
    rule: PolicyRule,
    undecided: BoolArray | None = None,
) -> Comparison:
    """Join sets of contexts in which the policy acts alike.

    Args:
        rollouts: Episodes, with the choices of their turns.
        steps: Their properties.
        classes: Sets of identical contexts, [S].
        probe: Policy.
        rule: Settings.
        undecided: Mask of the turns to compare, [S]; see `undecided_steps`. None compares all.

    Returns:
        The joined sets. They depend on the order neither of the episodes nor of the groups, except in the one
        direction of a pair that `symmetrize="forward"` reads.
    """
    sets, separate = _comparable_sets(rollouts, steps, classes, undecided)
    tokens: dict[bytes, IntArray] = {}
    keys = [[_add_context(tokens, rollouts, turn, steps) for turn in turns] for turns, _ in sets]
    if rule.contexts == "one":
        chosen = _choose_contexts(rollouts, steps, classes, [turns for turns, _ in sets], keys)
        keys = [[key for key, _ in row] for row in chosen]
        sets = [([turn for _, turn in row], choices) for row, (_, choices) in zip(chosen, sets, strict=True)]
    divergences = _divergences(keys, [choices for _, choices in sets], tokens, probe, rule)
    joined = list(range(int(classes.max(initial=-1)) + 1))
    pairs = 0
    for (turns, _), divergence in zip(sets, divergences, strict=True):
        own = classes[turns]
        same = own[:, None] == own[None, :]
        pairs += int((~same).sum()) // 2
        divergence[same] = -np.inf
        for members in merge_steps(
            divergence, [0] * len(turns), threshold=rule.threshold, symmetrize=rule.symmetrize
        ):
            for number in own[members[1:]].tolist():
                joined[find_root(joined, number)] = find_root(joined, int(own[members[0]]))
    merged = np.array([find_root(joined, number) for number in classes.tolist()], dtype=np.int64)
    return Comparison(merged, pairs, separate, len({key for row in keys for key in row}))


Choices = tuple[str, ...] | None


def _comparable_sets(
    rollouts: Rollouts, steps: Steps, classes: IntArray, undecided: BoolArray | None
) -> tuple[list[tuple[list[int], Choices]], int]:
    """Return the sets of turns to compare with their lists of actions, and the pairs with different lists."""
    buckets: dict[Hashable, dict[Choices, list[int]]] = {}
    has_tokens = np.isin(np.arange(rollouts.turns), rollouts.action_turn)
    for turn, (child, bucket, first) in enumerate(
        zip(steps.child.tolist(), steps.bucket.tolist(), steps.first_set.tolist(), strict=True)
    ):
        # Without a sampled token the next prompt was not answered, and no context is left to score.
        if child >= 0 and has_tokens[child] and (undecided is None or undecided[turn]):
            listed = rollouts.turn_choices[child]
            choices = None if listed is None else tuple(sorted(set(listed)))
            buckets.setdefault((bucket, first), {}).setdefault(choices, []).append(turn)
    sets = []
    separate = 0
    for by_choices in buckets.values():
        sizes = [len(turns) for turns in by_choices.values()]
        separate += (sum(sizes) ** 2 - sum(size**2 for size in sizes)) // 2
        sets += [
            (turns, choices) for choices, turns in by_choices.items() if len(set(classes[turns].tolist())) > 1
        ]
    return sets, separate


def _choose_contexts(
    rollouts: Rollouts,
    steps: Steps,
    classes: IntArray,
    sets: Sequence[Sequence[int]],
    keys: Sequence[Sequence[bytes]],
) -> list[list[tuple[bytes, int]]]:
    """Return key and turn of one context of each class in each set, such that few tokens are encoded.

    A context is the beginning of every later one of its conversation. From the deepest sets on, the context with
    the fewest tokens that no chosen one begins with is chosen; of equal ones that with the smallest key, so that
    the choice does not depend on the order of the episodes.
    """
    chosen: list[list[tuple[bytes, int]]] = [[] for _ in sets]
    encoded: set[int] = set()
    for number in sorted(range(len(sets)), key=lambda n: (-int(steps.depth[sets[n][0]]), min(keys[n]))):
        members: dict[int, list[tuple[bytes, int]]] = {}
        for key, turn in sorted(zip(keys[number], sets[number], strict=True)):
            members.setdefault(int(classes[turn]), []).append((key, turn))
        for candidates in members.values():
            paths = [rollouts.conversation(int(steps.child[turn])) for _, turn in candidates]
            costs = [sum(len(rollouts.turn_tokens[one]) for one in path if one not in encoded) for path in paths]
            best = costs.index(min(costs))
            chosen[number].append(candidates[best])
            encoded.update(paths[best])
    return chosen


def _add_context(contexts: dict[bytes, IntArray], rollouts: Rollouts, turn: int, steps: Steps) -> bytes:
    """Add the tokens of the conversation after a turn, up to the policy's next reply; return their digest."""
    child = int(steps.child[turn])
    first = int(rollouts.action_offset[np.searchsorted(rollouts.action_turn, child)])
    before = [rollouts.turn_tokens[other] for other in rollouts.conversation(child)[:-1]]
    tokens = np.concatenate([*before, rollouts.turn_tokens[child][:first]])
    key = blake2b(tokens.tobytes(), digest_size=16).digest()
    contexts.setdefault(key, tokens)
    return key


def _divergences(
    keys: Sequence[Sequence[bytes]],
    choices: Sequence[Choices],
    tokens: Mapping[bytes, IntArray],
    probe: PolicyProbe,
    rule: PolicyRule,
) -> list[FloatArray]:
    """Return the matrix of divergences KL(i ‖ j) of each set of contexts."""
    free = {key for row, listed in zip(keys, choices, strict=True) if listed is None for key in row}
    samples = _sample(free, tokens, probe, rule.samples)
    wanted: tuple[dict[bytes, set[str]], dict[bytes, set[str]]] = ({}, {})
    for row, listed in zip(keys, choices, strict=True):
        actions = set(listed) if listed is not None else {action for key in row for action in samples[key]}
        for key in row:
            wanted[listed is not None].setdefault(key, set()).update(actions)
    scores = [_log_scores(wanted[exact], tokens, probe, normalize=exact) for exact in (False, True)]
    matrices = []
    for row, listed in zip(keys, choices, strict=True):
        table = scores[listed is not None]
        if listed is not None:
            logp = np.array([[table[key][action] for action in listed] for key in row])
            matrices.append(exact_kl(logp[:, None], logp[None]))
            continue
        directions = []
        for i, key in enumerate(row):
            logp = np.array([[table[other][action] for action in samples[key]] for other in row])
            directions.append(sampled_kl(logp[i], logp, rule.estimator))
        matrices.append(np.stack(directions))
    return matrices


def _sample(
    keys: set[bytes], tokens: Mapping[bytes, IntArray], probe: PolicyProbe, count: int
) -> dict[bytes, list[str]]:
    """Return sampled actions of each context.

    The order of the contexts and the seed depend on their tokens alone, so that the samples are the same in any
    order of the episodes.
    """
    if not keys:
        return {}
    order = sorted(keys)
    seed = stable_seed("cognitive", *(key.hex() for key in order)) >> 1
    return dict(zip(order, probe.sample_actions([tokens[key] for key in order], count, seed), strict=True))


def _log_scores(
    wanted: Mapping[bytes, set[str]], tokens: Mapping[bytes, IntArray], probe: PolicyProbe, *, normalize: bool
) -> dict[bytes, dict[str, float]]:
    """Return the score of each wanted action in each context."""
    if not wanted:
        return {}
    order = sorted(wanted)
    actions = [sorted(wanted[key]) for key in order]
    scores = probe.action_logprobs([tokens[key] for key in order], actions, normalize=normalize)
    return {
        key: dict(zip(texts, values.tolist(), strict=True))
        for key, texts, values in zip(order, actions, scores, strict=True)
    }
