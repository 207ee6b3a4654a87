"""Random branched episodes, and learners of tiny random models to update from them. Needs PyTorch."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch

from arboretum.agents.episode import Episode, Move, Turn
from arboretum.trainers.algorithms.credit.gae import Gae
from arboretum.trainers.algorithms.credit.group import Group
from arboretum.trainers.algorithms.objectives.settings import Kl, Objective
from arboretum.trainers.algorithms.recipe import Critic, Optimization, Recipe
from arboretum.trainers.data.episodes import Branch, from_episodes
from arboretum.trainers.data.rollouts import Rollouts
from arboretum.trainers.learning.distributed import make_accelerator, make_optimizer
from arboretum.trainers.learning.learner import Learner
from arboretum.trainers.learning.policy import Policy
from arboretum.trainers.learning.reference import Reference

VOCABULARY = 40
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.15,  # Large enough that attention is far from uniform.
    "bos_token_id": None,
    "eos_token_id": 0,
    "pad_token_id": 0,
}


def forest_episodes(seed: int, episodes: int = 8, per_group: int = 4) -> tuple[list[Episode], list[Branch | None]]:
    """Return episodes of random tokens, most of which branch off an earlier one of their group."""
    rng = np.random.default_rng(seed)
    played: list[Episode] = []
    branches: list[Branch | None] = []
    for index in range(episodes):
        first = index // per_group * per_group
        branch, turns = None, []
        if index > first and rng.random() < 0.8:
            origin = int(rng.integers(first, index))
            branch = Branch(origin, int(rng.integers(0, len(played[origin].turns))))
            turns = played[origin].turns[: branch.turns]
        for _ in range(int(rng.integers(2, 4))):
            turns = [*turns, _turn(rng, restart=bool(turns) and bool(rng.random() < 0.1))]
        played.append(Episode("Env", "t", index, "model", turns=turns))
        branches.append(branch)
    return played, branches


def _turn(rng: np.random.Generator, *, restart: bool) -> Turn:
    given, reply = int(rng.integers(8, 30)), int(rng.integers(1, 12))
    return Turn(
        "observation",
        "reply",
        moves=[Move("go", float(rng.normal()), True, True)],
        token_ids=rng.integers(0, VOCABULARY, given + reply).tolist(),
        logprobs=[0.0] * given + rng.normal(-3.5, 1.0, reply).tolist(),
        loss_mask=[0] * given + [1] * reply,
        restart=restart or None,
    )


def forest_and_chains(seed: int, episodes: int = 8, per_group: int = 4) -> tuple[Rollouts, Rollouts]:
    """Return the same episodes as a forest, and as chains that repeat what they share."""
    played, branches = forest_episodes(seed, episodes, per_group)
    groups = [index // per_group for index in range(episodes)]
    return from_episodes(played, groups, branches=branches), from_episodes(played, groups)


def tiny_model(architecture: str = "qwen2", **sizes: Any) -> Any:
    """Return a random causal language model of two layers."""
    from transformers import AutoConfig, AutoModelForCausalLM

    if architecture == "gpt2":
        sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 512, **sizes}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        config = AutoConfig.for_model(architecture, **{**SIZES, **sizes})
        return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")


def ppo_recipe(*, with_critic: bool = True) -> Recipe:
    """Return a recipe with every kind of term: clipping, KL and entropy in the loss, two passes, and a critic."""
    return Recipe(
        name="everything",
        about="A recipe for tests.",
        credit=Gae() if with_critic else Group(),
        objective=Objective(aggregation="seq-mean-token-mean", dual_clip=3.0, entropy_coef=0.01, kl=Kl(coef=0.05)),
        critic=Critic(lr=1e-4) if with_critic else None,
        optimization=Optimization(lr=1e-4, passes=2, episodes_per_step=4, max_grad_norm=1e6),
    )


def forest_learner(recipe: Recipe, model: Any = None, *, precision: str = "float32", **options: Any) -> Learner:
    """Return a learner on the CPU; its critic, if any, and its reference have random weights of their own."""
    accelerator = make_accelerator("cpu", precision)
    model = tiny_model() if model is None else model
    reference = None
    if recipe.needs_reference:
        reference = Reference(model)
        if reference._copy is not None:
            _perturb(reference._copy)
    policy = Policy(model, critic=recipe.critic is not None)
    if policy.critic is not None:
        _perturb(policy.critic)
    optimizer = make_optimizer(accelerator, policy, recipe.optimization, recipe.critic)
    settings = {"microbatch_tokens": 400, "seed": 0, "reuse_sampler_logprobs": True, **options}
    return Learner(recipe, optimizer, reference, **settings)


@torch.no_grad()  # type: ignore[untyped-decorator]
def _perturb(module: torch.nn.Module) -> None:
    generator = torch.Generator().manual_seed(2)
    for parameter in module.parameters():
        parameter += 0.05 * torch.randn(parameter.shape, generator=generator)


def step_gradients(learner: Learner) -> list[dict[str, Any]]:
    """Return a list to which every optimizer step will append its gradients by name."""
    steps: list[dict[str, Any]] = []
    policy = learner.optimizer.policy
    learner.optimizer.torch_optimizer.register_step_pre_hook(
        lambda *_: steps.append(
            {name: p.grad.clone() for name, p in policy.named_parameters() if p.grad is not None}
        )
    )
    return steps


def with_settings(recipe: Recipe, **objective: Any) -> Recipe:
    """Return the recipe with other settings of the objective."""
    return dataclasses.replace(recipe, objective=dataclasses.replace(recipe.objective, **objective))
