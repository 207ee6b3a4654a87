"""Benchmark of tree sampling against chains: episodes for equal tokens, encoded tokens, and growth with turns."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ...agents.dialogue import make_dialogue
from ...agents.engines.base import Sampling
from ...agents.engines.shipped_models import SAPLING, model_source
from ...agents.engines.transformers import TransformersEngine
from ...agents.episode import Episode
from ...agents.play import play
from ...envs.core import TextEnv
from ...eval.bench.row import Row, ratio
from ...eval.bench.threads import one_thread
from ...eval.bench.tiny import make_tiny_model
from ...eval.suite import Entry
from ..algorithms.samplers import Chains, Sampler, Trees
from ..sampling.policy_agent import PolicyAgent
from ..sampling.rollout_plan import plan_chains
from ..sampling.tasks import draw_tasks
from ..sampling.tree_growth import Prompt, TreeGrowth

PUBLISHED = Trees(trees=2, expansions=2, rounds=1)
"""Shape of Tree-GRPO's main results (arXiv:2509.21240): 6 episodes for the expected cost of 4 long ones.

An expansion of a uniformly drawn node leaves (T + 1) / 2 of T turns, so at 12 turns the cost is 4.2 episodes.
"""

WIDE = Trees(trees=2, expansions=6, rounds=1)
"""Widest shape of two trees in its ablation: 14 episodes for the expected cost of 8."""

TURNS = 12
"""Limit of turns where episodes are counted. An episode of Sokoban lasts that long unless it is solved."""

GROWTH_TURNS = (5, 10, 20, 50)
"""Turns of the episodes of which the growth of the cost is measured."""

_IN_FLIGHT = 8
_PROMPTS = 4
_REPLY, _GROWTH_REPLY = 24, 8


class Cost(NamedTuple):
    """Episodes of one run, and what they cost.

    Attributes:
        episodes: Complete episodes.
        turns: Turns of all episodes, shared ones counted in each.
        sampled: Sampled tokens.
        added: Sampled tokens and the prompt tokens that turns added to conversations, shared ones counted once.
        computed: Tokens that the model encoded, padding included.
        seconds: CPU time.
        longest: Tokens of the longest conversation.
    """

    episodes: int
    turns: int
    sampled: int
    added: int
    computed: int
    seconds: float
    longest: int


@dataclass
class Setup:
    """Model, environment and dialogue of a measurement.

    Attributes:
        engine: Engine with the model.
        env: Id of the environment.
        turns: Limit of turns, each of one action.
        reply_tokens: Maximum length of a reply in tokens.
        prompts: Number of prompts.
    """

    engine: TransformersEngine
    env: str
    turns: int
    reply_tokens: int
    prompts: int

    def roll_out(self, sampler: Sampler) -> Cost:
        """Roll out chains or trees from the same prompts, and measure their cost."""
        limits = {"max_turns": self.turns, "max_actions_per_turn": 1, "max_actions": None}
        agent = PolicyAgent(
            "policy",
            self.engine,
            make_dialogue("no_think", limits),
            Sampling(temperature=1.0, max_tokens=self.reply_tokens),
        )
        entry = Entry(self.env, self.env, {"max_steps": None}, "train", None)
        envs = [entry.make() for _ in range(_IN_FLIGHT)]
        tasks = draw_tasks(envs[0].tasks, 0, self.prompts, seed=0)
        self.engine.invalidate()
        computed, start = self.engine.computed_tokens, time.process_time()
        played = _roll_out(agent, envs, tasks, sampler)
        seconds = time.process_time() - start
        return _cost(played, self.engine.computed_tokens - computed, seconds)


def _roll_out(
    agent: PolicyAgent, envs: Sequence[TextEnv[Any]], tasks: Sequence[str], sampler: Sampler
) -> list[tuple[Episode, int]]:
    """Return episodes, each with the number of its first turns that another one paid for."""
    if not isinstance(sampler, Trees):
        jobs = plan_chains(tasks, sampler.rollouts, batch=0, seed=0).jobs
        return [(episode, 0) for episode in play(agent, envs, jobs)]
    prompts = [Prompt((0, number), task) for number, task in enumerate(tasks)]
    growth = TreeGrowth(prompts, sampler, seed=0, release=agent.release_held)
    with agent.holding():
        for episode in play(agent, envs, growth.jobs, keep={"forks"}):
            growth.add(episode)
    return [(one.episode, one.shared) for one in growth.episodes()]


def _cost(played: Sequence[tuple[Episode, int]], computed: int, seconds: float) -> Cost:
    turns = [turn for episode, shared in played for turn in episode.turns[shared:]]
    return Cost(
        len(played),
        sum(len(episode.turns) for episode, _ in played),
        sum(sum(turn.loss_mask or ()) for turn in turns),
        sum(len(turn.token_ids or ()) for turn in turns),
        computed,
        seconds,
        max(sum(len(turn.token_ids or ()) for turn in episode.turns) for episode, _ in played),
    )


def measure(
    peers: bool = False, prompts: int = 24, turns: Sequence[int] = GROWTH_TURNS, rounds: int = 3
) -> Iterator[Row]:
    """Yield the gain in episodes, the tokens encoded per new token, and the cost by number of turns.

    Args:
        peers: Unused; the baseline are chains.
        prompts: Prompts of the gain in episodes.
        turns: Turns per episode of the growth.
        rounds: Measurements of the growth.
    """
    del peers
    with one_thread():
        yield from _gain(prompts)
        yield from _growth(turns, rounds)


def _gain(prompts: int) -> Iterator[Row]:
    """Yield how many episodes trees give for the tokens of one chain, on long episodes of the sapling."""
    engine = TransformersEngine(str(model_source(SAPLING)), device="cpu", max_batch=_IN_FLIGHT)
    setup = Setup(engine, "TextSokoban-v0", TURNS, _REPLY, prompts)
    chains = setup.roll_out(Chains(rollouts=8))
    length = chains.turns / chains.episodes
    for shape, target in ((PUBLISHED, None), (WIDE, 1.5)):
        trees = setup.roll_out(shape)
        gain = (trees.episodes / trees.sampled) / (chains.episodes / chains.sampled)
        budget = trees.sampled / chains.sampled * chains.episodes / prompts
        sizes = f"M = {shape.trees}, N = {shape.expansions}, L = {shape.rounds}"
        details = (
            f"{trees.episodes / prompts:g} episodes for the tokens of {budget:.1f} chains of {length:.1f} turns"
        )
        yield Row(f"trees: episodes for equal tokens ({sizes})", gain, "x", target=target, details=details)
    yield Row(
        "trees: tokens encoded per new token",
        trees.computed / trees.added,
        "x",
        target=1.1,
        higher_is_better=False,
        details=f"chains {chains.computed / chains.added:.2f} x",
    )
    engine.close()


def _growth(turns: Sequence[int], rounds: int) -> Iterator[Row]:
    """Yield the growth of the CPU time per new token with the number of turns, for chains and trees."""
    kinds: dict[str, Sampler] = {"chains": Chains(rollouts=2), "trees": PUBLISHED}
    costs: dict[tuple[str, int], list[Cost]] = {(name, count): [] for name in kinds for count in turns}
    with tempfile.TemporaryDirectory() as folder:
        model = make_tiny_model(Path(folder) / "model", context=8192)
        engine = TransformersEngine(model, device="cpu", max_batch=_IN_FLIGHT)
        engine.end_ids = frozenset()  # All replies have the same length, so episodes last to the limit of turns.
        for _ in range(rounds):
            for name, count in costs:
                setup = Setup(engine, "TextFrozenLake-v0", count, _GROWTH_REPLY, _PROMPTS)
                costs[name, count].append(setup.roll_out(kinds[name]))
        engine.close()
    for (name, count), measured in costs.items():
        if count != turns[0]:
            yield _growth_row(name, (turns[0], count), costs[name, turns[0]], measured)


def _growth_row(name: str, turns: tuple[int, int], fewest: Sequence[Cost], more: Sequence[Cost]) -> Row:
    """Return the growth of the time per new token; its target is that of the longest conversation.

    Costs of the same round are compared, since the speed of a shared machine drifts.
    """
    before, after = ([cost.seconds / cost.added for cost in costs] for costs in (fewest, more))
    return Row(
        f"{name}: time per new token at {turns[1]} turns / at {turns[0]}",
        ratio(after, before),
        "x",
        target=more[0].longest / fewest[0].longest,
        higher_is_better=False,
        details=f"{1e6 * statistics.median(before):.0f} µs to {1e6 * statistics.median(after):.0f} µs, "
        f"conversations of {fewest[0].longest} to {more[0].longest} tokens",
    )
