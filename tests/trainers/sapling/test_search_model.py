"""The shipped model of search: tokens of names, fresh encyclopedias, play above random, and training."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from arboretum.envs.registry import make_env
from arboretum.envs.searchqa.encyclopedia import Encyclopedia, encyclopedia
from support.shipped_models import solves_more_than_random_actions, train_by_command

pytest.importorskip("torch", reason="needs torch: pip install 'arboretum-rl[lm]'")
pytest.importorskip("accelerate", reason="needs accelerate: pip install 'arboretum-rl[lm]'")

from arboretum.trainers.sapling.search import SEARCH, SEARCH_PIECES
from arboretum.trainers.sapling.tokenizer import make_tokenizer

MODEL = "sapling-search"
TOKENIZER = make_tokenizer(1024, SEARCH_PIECES)


def make_search(**options: Any) -> Any:
    return make_env("TextSearchQA-v0", dataset="encyclopedia", topk=1, **options)


def encode(text: str) -> list[int]:
    return list(TOKENIZER.encode(text, add_special_tokens=False))


def contains(ids: list[int], part: list[int]) -> bool:
    return any(ids[start : start + len(part)] == part for start in range(len(ids) - len(part) + 1))


@pytest.mark.parametrize("hops", [1, 2])
def test_names_and_facts_are_the_same_tokens_in_questions_passages_and_actions(hops: int) -> None:
    """Otherwise an answer could not be copied from the passage, nor a query from the question."""
    env = make_search(split="test", hops=hops)
    for task in env.tasks[:100]:
        observation, _ = env.reset(options={"task": task})
        shown = [encode(observation)]
        for action in env.expert_actions():
            argument = re.sub(r"<.*?>", "", action)
            is_last = action.startswith("<answer>")
            if not (is_last and argument in ("yes", "no")):
                assert any(contains(ids, encode(argument)) for ids in shown), argument
            assert contains(encode(action), encode(argument))
            observation, *_ = env.step(action)
            shown.append(encode(observation))


def test_phrases_of_passages_are_one_token_each() -> None:
    env = make_search(split="test", hops=1)
    for task in env.tasks[:100]:
        env.reset(options={"task": task})
        observation, *_ = env.step(env.expert_actions()[0])
        ids = encode(observation)
        assert TOKENIZER.decode(ids) == observation and len(ids) < len(observation) / 2.5
    passage = "The emblem of the Lolin Press shows a plough. The Lolin Press has 1862 members"
    pieces = [TOKENIZER.decode([i]) for i in encode(passage)]
    name = ["Lo", "li", "n", " Press"]
    assert pieces == [
        *("The emblem of the ", *name, " shows a ", "plough", ". "),
        *("The ", *name, " has ", "18", "62", " members"),
    ]


def test_every_chunk_has_an_encyclopedia_of_its_own_and_none_is_that_of_the_evaluation() -> None:
    chunks = sum(stage.chunks for stage in SEARCH.stages)
    for stage in SEARCH.stages:
        for source in stage.sources:
            seeds = [source.environment(chunk).kwargs["encyclopedia_seed"] for chunk in range(chunks)]
            assert len(set(seeds)) == chunks and 0 not in seeds
            assert all(source.environment(chunk).kwargs["topk"] == 1 for chunk in range(chunks))
    assert not any("encyclopedia_seed" in env.kwargs for env in SEARCH.held_out.values())


def test_people_of_the_evaluation_occur_in_no_encyclopedia_of_the_training() -> None:
    chunks = sum(stage.chunks for stage in SEARCH.stages)
    tested = set(encyclopedia(0).titles["test", "person"])
    for seed in range(1, chunks + 1):
        assert tested.isdisjoint(Encyclopedia(seed).articles)


@pytest.mark.parametrize("hops", [1, 2])
def test_shipped_model_answers_more_questions_than_random_actions(hops: int) -> None:
    env = make_search(split="test", hops=hops)
    assert solves_more_than_random_actions(MODEL, env, 48)


def test_shipped_model_trains_with_few_refused_replies(tmp_path: Path) -> None:
    settings = {
        "sampler.prompts": 3,
        "sampler.rollouts": 4,
        "sampler.reply_tokens": 32,
        "optimization.updates": 2,
        "optimization.episodes_per_step": 12,
    }
    env = "TextSearchQA-v0 --env-arg dataset=encyclopedia --env-arg hops=2 --env-arg topk=1"
    updates = train_by_command(MODEL, env, settings, tmp_path / "run")
    assert len(updates) == 2
    for record in updates:
        assert record["invalid_replies"] < 0.2 * record["replies"]
