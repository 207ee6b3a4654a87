"""Definitions of the shipped saplings."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from ...agents.engines.shipped_models import BLOCKSWORLD_SAPLING, SAPLING, THOUGHTS_SAPLING
from ...envs.errors import unknown_name
from ..config.settings import DialogueConfig, EnvConfig, ExpertConfig
from .alfworld import ALFWORLD
from .family import Family, Source, Stage
from .search import SEARCH
from .tokenizer import BLOCKSWORLD_PIECES, CHAT_WITH_LIMIT, make_tokenizer

FROZENLAKE = EnvConfig("TextFrozenLake-v0", {"observation_format": "grid", "p_frozen": 0.8, "success_rate": 1.0})
"""FrozenLake with as many holes as in RAGEN's first paper, but not slippery, so that a plan of several actions
succeeds."""
SLIPPERY = EnvConfig("TextFrozenLake-v0")
"""FrozenLake with its defaults: slippery, with coordinates beside the board."""
SOKOBAN = EnvConfig("TextSokoban-v0")

_NO_LIMITS = {"max_turns": None, "max_actions": None}
UNLIMITED = DialogueConfig("no_think", _NO_LIMITS)
"""Up to five actions per reply, and the environment's own limit on actions, as in `arboretum eval`."""
ONE_ACTION = DialogueConfig("no_think", {**_NO_LIMITS, "max_actions_per_turn": 1})
THINKING = DialogueConfig("think", _NO_LIMITS)
THINKING_ONE_ACTION = DialogueConfig("think", {**_NO_LIMITS, "max_actions_per_turn": 1})

GRIDS = Family(
    "grids",
    SAPLING,
    "FrozenLake and Sokoban",
    # Only levels of the easiest sizes: larger ones, and more boxes, leave room for reinforcement learning.
    stages=(
        Stage(
            (
                Source(SOKOBAN, 81920),
                Source(SOKOBAN, 49152, dialogue=UNLIMITED),
                Source(SOKOBAN, 40960, dialogue=ONE_ACTION),
                Source(FROZENLAKE, 40960),
                Source(FROZENLAKE, 20480, dialogue=UNLIMITED),
                Source(FROZENLAKE, 16384, dialogue=ONE_ACTION),
                Source(SLIPPERY, 8192),
                Source(SLIPPERY, 12288, dialogue=UNLIMITED),
                Source(SLIPPERY, 12288, dialogue=ONE_ACTION),
            ),
            chunks=64,
            validations=8,
        ),
    ),
    held_out={"frozenlake": FROZENLAKE, "sokoban": SOKOBAN},
    # RAGEN's protocol without reasoning: up to five actions per reply, five replies and ten actions per episode.
    # The reasoning of a model of this size would only repeat its actions in words.
    dialogue=DialogueConfig("no_think"),
    tokenizer=partial(make_tokenizer, chat=CHAT_WITH_LIMIT),
    context=1024,
    width=96,
    microbatch_tokens=1024,
    validation_tasks=200,
)

_BLOCKS = {blocks: EnvConfig("TextBlocksworld-v0", {"blocks": blocks}) for blocks in (3, 4, 5)}
# A model is refused often, and demonstrations without refusals would not show how to go on.
_RECOVERING_EXPERT = ExpertConfig(noise=0.2, refused=0.5, learn_noise=False)

BLOCKSWORLD = Family(
    "blocksworld",
    BLOCKSWORLD_SAPLING,
    "Blocksworld with 3 to 5 blocks",
    # All sizes from the start, so that none is forgotten. The second stage anneals, so that sampled play comes
    # closer to greedy play.
    stages=(
        Stage(
            (Source(_BLOCKS[3], 4608), Source(_BLOCKS[4], 4992), Source(_BLOCKS[5], 4992)),
            _RECOVERING_EXPERT,
            lr=1e-3,
            lr_span=2.0,
            chunks=24,
            observation_weight=0.3,
            validations=3,
        ),
        Stage(
            (Source(_BLOCKS[3], 1152), Source(_BLOCKS[4], 1248), Source(_BLOCKS[5], 1248)),
            _RECOVERING_EXPERT,
            lr=5e-4,
            chunks=6,
            observation_weight=0.3,
            validations=1,
        ),
    ),
    held_out={f"{blocks} blocks": env for blocks, env in _BLOCKS.items()},
    dialogue=DialogueConfig("plain"),
    tokenizer=partial(make_tokenizer, pieces=BLOCKSWORLD_PIECES),
    batch=16,
    evaluation_tasks=128,
)

# The same model, environments and tokenizer: training continues where it ended.
THOUGHTS = replace(
    GRIDS,
    name="thoughts",
    model=THOUGHTS_SAPLING,
    summary="FrozenLake and Sokoban with thoughts",
    start=GRIDS.model,
    # A thought is the plan from here in words. Replies without thoughts are kept, for comparisons.
    stages=(
        Stage(
            (
                Source(FROZENLAKE, 16384, dialogue=THINKING_ONE_ACTION),
                Source(SOKOBAN, 8192, dialogue=THINKING_ONE_ACTION),
                Source(SLIPPERY, 4096, dialogue=THINKING_ONE_ACTION),
                Source(FROZENLAKE, 4096, dialogue=THINKING),
                Source(SOKOBAN, 4096, dialogue=THINKING),
                Source(FROZENLAKE, 5120, dialogue=ONE_ACTION),
                Source(SOKOBAN, 5120, dialogue=ONE_ACTION),
            ),
            lr=1e-3,
            chunks=16,
        ),
    ),
    dialogue=THINKING_ONE_ACTION,
)

FAMILIES: dict[str, Family] = {family.name: family for family in (GRIDS, BLOCKSWORLD, ALFWORLD, SEARCH, THOUGHTS)}


def find_family(name: str) -> Family:
    """Return a family by name.

    Raises:
        ConfigurationError: The name is unknown.
    """
    if name not in FAMILIES:
        raise unknown_name("sapling", name, FAMILIES)
    return FAMILIES[name]
