"""Benchmark of updates on prefix trees: speed and memory relative to the same episodes as chains.

Each comparison alternates between the two in one process. Peak memory is measured in a process for each.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ...eval.bench.row import Row, paired, ratio
from .forest import VOCABULARY, Forest, saved_fraction
from .update import run_system
from .update_ours import make_recipe

if TYPE_CHECKING:
    from ..data.rollouts import Rollouts
    from ..learning.learner import Learner

MODELS: dict[str, dict[str, int]] = {
    "0.46M": {
        "hidden_size": 96,
        "intermediate_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
    "18M": {
        "hidden_size": 512,
        "intermediate_size": 1536,
        "num_hidden_layers": 6,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
    },
}
"""Arguments of a Qwen2Config by the model's number of parameters; the first has the sizes of the shipped model."""

MICROBATCH_TOKENS = 8192
_MB = 2**20


class Case(NamedTuple):
    """One comparison.

    Attributes:
        model: Key of `MODELS`.
        forest: Sizes of the episodes.
        target: Speedup that a tree should reach; None only reports it.
    """

    model: str
    forest: Forest
    target: float | None


# Chains repeat half of the tokens: a branch leaves the first episode before nearly every turn. The micro-batches
# of chains are nearly full, so that memory is compared at equal sizes. The shipped model's context ends at 1024.
HALF_SHARED = (
    Case("0.46M", Forest(trees=6, branches=8, turns=9), 1.5),
    Case("0.46M", Forest(trees=4, branches=12, turns=16), None),
    Case("0.46M", Forest(trees=2, branches=14, turns=30), None),
    Case("18M", Forest(trees=1, branches=8, turns=9), 1.5),
    Case("18M", Forest(trees=1, branches=12, turns=16), 1.5),
)


def make_learner(model: str, share_prefixes: bool | None, microbatch_tokens: int | None) -> Learner:
    """Return a learner of GRPO with a random Qwen2 model on one thread of the CPU.

    Args:
        model: Key of `MODELS`.
        share_prefixes, microbatch_tokens: See `HardwareConfig`.
    """
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from ..learning.distributed import make_accelerator, make_optimizer
    from ..learning.learner import Learner
    from ..learning.policy import Policy

    torch.set_num_threads(1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = Qwen2ForCausalLM(
            Qwen2Config(
                vocab_size=VOCABULARY,
                max_position_embeddings=16384,
                tie_word_embeddings=True,
                bos_token_id=None,
                eos_token_id=0,
                **MODELS[model],
            )
        )
    recipe = make_recipe(1000)
    optimizer = make_optimizer(make_accelerator("cpu", "float32"), Policy(network), recipe.optimization)
    return Learner(
        recipe, optimizer, None, microbatch_tokens=microbatch_tokens, seed=0, share_prefixes=share_prefixes
    )


def compare(
    model: str, ours: tuple[Rollouts, bool | None], theirs: tuple[Rollouts, bool | None], rounds: int = 3
) -> float:
    """Return the speedup of one update over another; each is given by its rollouts and `share_prefixes`."""
    runs = []
    for rollouts, share_prefixes in (theirs, ours):
        learner = make_learner(model, share_prefixes, MICROBATCH_TOKENS)

        def run(learner: Learner = learner, rollouts: Rollouts = rollouts) -> int:
            assert learner.update(rollouts, update=0, temperature=1.0)["steps"] == 1
            return 1

        run()
        runs.append(run)
    baseline, own = paired(runs, rounds)
    return ratio(baseline, own)


def measure(peers: bool = False) -> Iterator[Row]:
    """Yield speed and memory of updates on trees relative to chains, in float32 on one thread.

    Both learn from the same random episodes, with micro-batches of 8192 tokens. Attention from shared tokens is
    computed once, but attention to them is not saved. So the speedup falls with the context, and more so for small
    models, in which attention takes most of the time.

    Args:
        peers: Unused; there is no original system.
    """
    del peers
    for model, forest, target in HALF_SHARED:
        trees, chains = (forest.rollouts(branched=branched) for branched in (True, False))
        context = max(map(len, trees.rows))
        what = f"update on trees, {model} parameters, context {context}"
        details = f"{100 * saved_fraction(trees):.0f} % of the tokens repeated by chains"
        yield Row(f"{what}: speed", compare(model, (trees, None), (chains, None)), "x", target, details=details)
        ours, theirs = (peak_memory(model, forest, branched=branched) for branched in (True, False))
        details = f"{ours / _MB:,.0f} MB, chains {theirs / _MB:,.0f} MB"
        yield Row(f"{what}: memory", ours / theirs, "x", 1.0, higher_is_better=False, details=details)
    alone = Forest(trees=24, branches=0, turns=9, group=8).rollouts(branched=False)
    speed = compare("0.46M", (alone, True), (alone, False), rounds=9)
    yield Row("update on chains that share nothing, with share_prefixes: speed", speed, "x", 0.97)
    for prompt in (128, 512):
        groups = _with_common_prompts(Forest(trees=32, branches=0, turns=5, prompt=prompt, group=8))
        speed = compare("0.46M", (groups, True), (groups, False))
        details = f"groups of 8 chains, prompt of {prompt} in a context of {max(map(len, groups.rows))} tokens"
        yield Row("update on chains with common prompts, share_prefixes=true: speed", speed, "x", details=details)


def _with_common_prompts(forest: Forest) -> Rollouts:
    """Return unbranched episodes in groups, the first prompt of each of which is that of the group's first one."""
    from dataclasses import replace

    rollouts = forest.rollouts(branched=False)
    tokens = list(rollouts.turn_tokens)
    for number in range(len(rollouts.episode_leaf)):
        tokens[number * forest.turns] = tokens[number // forest.group * forest.group * forest.turns].copy()
        # The replies differ from their first token on.
        tokens[number * forest.turns][forest.prompt] = number % forest.group
    return replace(rollouts, turn_tokens=tuple(tokens))


def peak_memory(
    model: str, forest: Forest, *, branched: bool, microbatch_tokens: int = MICROBATCH_TOKENS
) -> float:
    """Return the peak memory of an update in bytes, relative to the memory before, measured in a new process."""
    settings = {
        "model": model,
        "forest": vars(forest),
        "branched": branched,
        "microbatch_tokens": microbatch_tokens,
    }
    with tempfile.TemporaryDirectory() as folder:
        return float(run_system("trees_update", Path(folder), settings)["memory"])


def run(settings: dict[str, Any]) -> str:
    """Make one update, and return the report of the stopwatch; see `peak_memory`."""
    from .workload import Stopwatch

    rollouts = Forest(**settings["forest"]).rollouts(branched=settings["branched"])
    learner = make_learner(settings["model"], None, settings["microbatch_tokens"])
    stopwatch = Stopwatch()
    with stopwatch.update():
        learner.update(rollouts, update=0, temperature=1.0)
    return stopwatch.report(sum(map(len, rollouts.rows)))


if __name__ == "__main__":
    print(run(json.loads(sys.argv[2])))  # noqa: T201
