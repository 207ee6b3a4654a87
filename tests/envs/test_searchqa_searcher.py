"""The expert that searches: answers from what it was shown, and recovers from other actions."""

from __future__ import annotations

import random
from typing import Any

import pytest

from arboretum.agents.play import Job, play
from arboretum.agents.reference import SearchingExpertAgent
from arboretum.envs.registry import make_env
from arboretum.envs.searchqa.datasets import Question
from arboretum.envs.searchqa.searcher import next_action


def make_search(**options: Any) -> Any:
    return make_env("TextSearchQA-v0", dataset="encyclopedia", split="test", **options)


def search(env: Any, task: str, noise: float = 0.0) -> tuple[list[str], list[str], dict[str, Any]]:
    """Return observations, actions and the last info of the expert, with random searches in between."""
    rng = random.Random(task)
    observation, info = env.reset(options={"task": task})
    observations, actions = [observation], []
    done = False
    while not done:
        (action,) = env.searching_actions(observations, actions)
        if rng.random() < noise:
            action = env.random_action(rng)
            if "<answer>" in action:
                action = "I do not know."
        observation, _, terminated, truncated, info = env.step(action)
        observations.append(observation)
        actions.append(action)
        done = terminated or truncated
    return observations, actions, info


@pytest.mark.parametrize("hops", [1, 2, 3, 4])
@pytest.mark.parametrize(("protocol", "topk"), [("tags", 1), ("tags", 3), ("react", 1)])
def test_searching_expert_answers_questions_of_every_number_of_hops(hops: int, protocol: str, topk: int) -> None:
    env = make_search(hops=hops, protocol=protocol, topk=topk)
    for task in env.tasks[:60]:
        _, actions, info = search(env, task)
        assert info["success"] and len(actions) == hops + 1


@pytest.mark.parametrize("hops", [1, 2])
def test_answers_occur_in_a_passage_and_queries_in_what_was_shown(hops: int) -> None:
    env = make_search(hops=hops, topk=1)
    for task in env.tasks[:100]:
        observations, actions, info = search(env, task)
        for place, action in enumerate(actions[:-1]):
            query = action.removeprefix("<search>").removesuffix("</search>")
            assert query in " ".join(observations[: place + 1])
        assert info["answer"] in ("yes", "no") or info["answer"] in " ".join(observations[1:-1])


def test_searching_expert_does_not_use_the_evidence_or_the_gold_answer() -> None:
    env = make_search(hops=2, topk=1)
    other = make_search(hops=2, topk=1)
    for task in env.tasks[:20]:
        question = other._questions[task]
        other._questions[task] = Question(question.id, question.question, ("unknown",))
        assert search(other, task)[:2] == search(env, task)[:2]


def test_searching_expert_recovers_from_random_searches_and_refusals() -> None:
    env = make_search(hops=2, topk=1, max_steps=40)
    assert all(search(env, task, noise=0.4)[2]["success"] for task in env.tasks[:60])


def test_agent_plays_the_searching_expert() -> None:
    env = make_search(hops=2, topk=1)
    for episode in play(SearchingExpertAgent(), [env], [Job(task, 0) for task in env.tasks[:10]]):
        assert episode.success
        assert [turn.moves[0].action for turn in episode.turns] == search(env, episode.task)[1]


MAYOR = "Question: Who taught the mayor of Lolwick?"
PLACE = '\n\n<information>Doc 1(Title: "Lolwick") The mayor of Lolwick is Ana Ber. It is old.</information>\n\n'
OTHER = '\n\n<information>Doc 1(Title: "Cadale") The mayor of Cadale is Ulo Ther.</information>\n\n'


@pytest.mark.parametrize(
    ("question", "transcript", "expected"),
    [
        (MAYOR, [], ("search", "Lolwick")),
        (MAYOR, [("<search>Lolwick</search>", PLACE)], ("search", "Ana Ber")),
        # the wrong article
        (MAYOR, [("<search>Cadale</search>", OTHER)], ("search", "Lolwick")),
        (MAYOR, [("<search>Lolwick</search>", OTHER)], ("search", "Lolwick teacher")),
        (MAYOR, [("<search>Lolwick</search>", OTHER), ("<search>Lolwick teacher</search>", OTHER)], None),
        # not an action
        (MAYOR, [("Lolwick", "That action is not valid.")], ("search", "Lolwick")),
        (MAYOR, [("search[Lolwick]", "The mayor of Lolwick is Ana Ber. It is old.")], ("search", "Ana Ber")),
        ("Question: Who is the mayor of Lolwick?", [("<search>Lolwick</search>", PLACE)], ("answer", "Ana Ber")),
        ("Question: Who invented the telephone?", [], None),
    ],
)  # fmt: skip
def test_next_action_follows_from_the_transcript(
    question: str, transcript: list[tuple[str, str]], expected: tuple[str, str] | None
) -> None:
    observations = [question, *(reply for _, reply in transcript)]
    assert next_action(observations, [action for action, _ in transcript]) == expected
