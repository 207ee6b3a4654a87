"""The tokenizer of ALFWorld's sapling: names are single tokens, and episodes are short."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'arboretum-rl[lm]'")
pytest.importorskip("accelerate", reason="needs accelerate: pip install 'arboretum-rl[lm]'")

from arboretum.agents.dialogue import make_dialogue
from arboretum.envs.registry import make_env
from arboretum.eval.suite import Entry
from arboretum.trainers.config.settings import ExpertConfig
from arboretum.trainers.sampling.demonstrations import collect_demonstrations
from arboretum.trainers.sapling.alfworld import alfworld_tokenizer

TOKENIZER = alfworld_tokenizer()


def pieces_of(text: str) -> list[str]:
    return [TOKENIZER.decode([i]) for i in TOKENIZER.encode(text, add_special_tokens=False)]


@pytest.mark.parametrize("homes", ["easy", "full"])
def test_names_are_one_token_each_and_no_word_is_spelled_out(homes: str) -> None:
    env = make_env("TextALFWorld-v0", homes=homes, split="valid_unseen")
    for index in range(12):
        observation, _ = env.reset(options={"task": f"valid_unseen/{index}"})
        texts = [observation, *env.admissible_actions()]
        for action in [*(env.expert_actions() or ()), "help", "look", "inventory", "fly"]:
            observation, *_ = env.step(action)
            texts += [observation, *env.admissible_actions()]
        for text in texts:
            pieces = pieces_of(text)
            assert "".join(pieces) == text
            assert not any(len(piece) == 1 and piece.isalnum() for piece in pieces)
            if not text.startswith("\n"):  # the reply to `help` is one token
                names = re.findall(r"[a-z]+ \d+", text)
                assert [piece for piece in pieces if re.fullmatch(r"[a-z]+ \d+", piece)] == names


@pytest.mark.parametrize(("homes", "mean"), [("easy", 200), ("full", 400)])
def test_demonstrations_are_short(homes: str, mean: int) -> None:
    """Far below the context of 2,048 tokens, so that the full history fits."""
    episodes = collect_demonstrations(
        Entry("homes", "TextALFWorld-v0", {"homes": homes}, split="train"),
        24,
        tokenizer=TOKENIZER,
        context=2048,
        dialogue=make_dialogue("plain"),
        expert=ExpertConfig(noise=0.2, refused=0.5, searching=True, keep="all"),
    )
    lengths = [sum(len(turn.token_ids or ()) for turn in episode.turns) for episode in episodes]
    assert sum(lengths) < mean * len(lengths) and max(lengths) < 1024
