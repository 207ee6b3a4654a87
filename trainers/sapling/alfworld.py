"""Definition of the sapling of ALFWorld: its vocabulary, derived from the generated homes, and its pretraining."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...agents.engines.shipped_models import ALFWORLD_SAPLING
from ...envs.alfworld.domain import household_text
from ...envs.alfworld.gamefile import read_dialect
from ...envs.alfworld.generator import SENTENCES, THING_COUNTS
from ...envs.alfworld.homes import ROOMS, THINGS, receptacle_type
from ...envs.alfworld.rules import REFUSAL
from ..config.settings import DialogueConfig, EnvConfig, ExpertConfig
from .family import Family, Source, Stage
from .tokenizer import make_tokenizer

if TYPE_CHECKING:
    from transformers import Qwen2Tokenizer

_MAX_STEPS = 50

_BANNER = "-= Welcome to TextWorld, ALFRED! =-\n\n"
_VIEW = "You are in the middle of a room. Looking quickly around you, you see "
_PHRASES = (
    *(f"{_BANNER}{_VIEW}a ", _VIEW, "a ", ".\n\nYour task is to: "),
    *(", a ", ", and a ", ", ", ", and ", "nothing.", "."),
    # furniture and its content
    *("You arrive at ", ". On the ", ". The ", "On the ", "The ", "You open the ", "You close the "),
    *(" is closed.", ", you see a ", ", you see nothing."),
    *(" is open. In it, you see a ", " is open. In it, you see nothing."),
    # replies to other actions
    *("You pick up the ", " from the ", "You move the ", " to the ", "You turn on the ", "You sliced the "),
    *("You clean the ", "You heat the ", "You cool the ", " using the ", " with the ", "You are carrying: a "),
    *("You are not carrying anything.", "You are facing the ", ". Next to it, you see nothing."),
    *(". Next to it, you see a ", "This is a normal ", ". In it, you see nothing.", ". In it, you see a "),
    *("This is a hot ", "This is a clean ", "This is a cold ", "This is a hot and clean "),
    *("This is a cool and clean ", "There's nothing special about "),
    f"{REFUSAL}\nYour last reply held no action that the world accepts. Reply with the action and nothing else.",
    REFUSAL,
)


def alfworld_tokenizer(context: int = 2048) -> Qwen2Tokenizer:
    """Return the tokenizer; see `make_tokenizer`."""
    return make_tokenizer(context, alfworld_pieces())


def alfworld_pieces() -> tuple[str, ...]:
    """Return the texts that are one token each.

    A name with its number, such as "drawer 2", is the same token in observations and in actions, so that it can
    be copied from one to the other. All names of generated homes are listed; others are encoded byte by byte.
    """
    dialect = read_dialect(household_text("pddl"), household_text("twl"))
    commands = [piece for template in dialect.wording.templates.values() for piece in template]
    sentences = [part for pair in SENTENCES.values() for text in pair for part in re.split(r"\{[or]\}", text)]
    help_text = household_text("twl").rpartition('feedback :: "\n')[2].partition('"')[0]
    return tuple(
        dict.fromkeys(
            [
                *(f"Turn {turn}\n" for turn in range(1, _MAX_STEPS + 1)),
                *_PHRASES,
                help_text,
                *(piece for piece in commands if isinstance(piece, str)),
                *(part for part in sentences if part),
                *_names(),
            ]
        )
    )


def _names() -> Iterator[str]:
    """Yield the kinds of furniture and objects, each followed by its names with numbers."""
    counts: dict[str, int] = {}
    for room in ROOMS.values():
        for kind, furniture in room.items():
            name = receptacle_type(kind).removesuffix("Type").lower()
            counts[name] = max(counts.get(name, 0), furniture.max_count)
    for things in THINGS.values():
        counts |= {kind.lower(): max(THING_COUNTS) for kind in things}
    for name, count in counts.items():
        yield name
        yield from (f"{name} {number}" for number in range(1, count + 1))


_HOMES = {homes: EnvConfig("TextALFWorld-v0", {"homes": homes}) for homes in ("easy", "full")}
# Half of the random actions are refused, as those of a model often are. An episode in which they use up the steps
# teaches as much as a solved one.
_EXPERT = ExpertConfig(noise=0.2, refused=0.5, learn_noise=False, searching=True, keep="all")

ALFWORLD = Family(
    "alfworld",
    ALFWORLD_SAPLING,
    "ALFWorld in generated homes",
    # The second stage anneals, so that sampled play comes closer to greedy play.
    stages=(
        Stage(
            (Source(_HOMES["easy"], 18432), Source(_HOMES["full"], 12288)),
            _EXPERT,
            lr_span=2.0,
            chunks=24,
            observation_weight=0.3,
            validations=3,
        ),
        Stage(
            (Source(_HOMES["easy"], 6144), Source(_HOMES["full"], 4096)),
            _EXPERT,
            lr=1e-3,
            chunks=8,
            observation_weight=0.3,
            validations=1,
        ),
    ),
    held_out={f"{homes} homes": env for homes, env in _HOMES.items()},
    dialogue=DialogueConfig("plain"),
    tokenizer=alfworld_tokenizer,
    batch=16,
    microbatch_tokens=1024,
    validation_split="valid_seen",
    test_split="valid_unseen",
    validation_tasks=48,
    evaluation_tasks=128,
)
