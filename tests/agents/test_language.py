"""Language agents: prompts, processing of replies, and the end of episodes.

The engine is scripted, a function from requests to replies; `test_engines_play.py` has real engines.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from arboretum.agents.base import Stop
from arboretum.agents.engines.base import Completion, Engine, Request, Usage
from arboretum.agents.play import Job, play
from arboretum.agents.registry import make_agent
from arboretum.envs.bandit import Bandit
from arboretum.envs.errors import ConfigurationError
from arboretum.envs.registry import make_env

Answer = Callable[[Request], str | Completion]


class Scripted(Engine):
    """Engine whose replies are the results of a function; the latest request is answered first.

    Args:
        answer: Function from a request to its reply.
        batch: Number of requests answered per call of `collect`.
    """

    def __init__(self, answer: Answer, batch: int = 2) -> None:
        self.name = "scripted"
        self.usage = Usage()
        self.answer = answer
        self.batch = batch
        self.requests: list[Request] = []
        self.waiting: list[Request] = []
        self.released: list[str] = []

    def submit(self, request: Request) -> None:
        assert request.conversation not in [r.conversation for r in self.waiting]
        self.requests.append(request)
        self.waiting.append(request)

    def collect(self) -> list[tuple[str, Completion]]:
        assert self.waiting, "collect() without a request"
        done = []
        for _ in range(min(self.batch, len(self.waiting))):
            request = self.waiting.pop()
            reply = self.answer(request)
            completion = reply if isinstance(reply, Completion) else Completion(reply, "stop")
            done.append((request.conversation, completion))
        return done

    def release(self, conversation: str) -> None:
        self.released.append(conversation)


def episodes(engine: Engine, agent: str, env_id: str, jobs: int = 1, envs: int = 4, **settings: Any) -> list[Any]:
    kwargs = settings.pop("kwargs", {})
    chosen = make_agent(agent, engine=engine, **settings)
    made = [make_env(env_id, **kwargs) for _ in range(min(envs, jobs))]
    return list(play(chosen, made, [Job(None, seed) for seed in range(jobs)]))


def last(request: Request) -> str:
    return request.messages[-1].content


def oracle(env_id: str, reply: str) -> Answer:
    """Return a function that solves the environment's levels, on a copy of the environment per conversation."""
    envs: dict[str, Any] = {}

    def answer(request: Request) -> str:
        env = envs.get(request.conversation)
        if env is None:  # find the level by its first observation
            first = request.messages[1].content
            for seed in range(64):
                env = make_env(env_id)
                if env.reset(seed=seed)[0] in first:
                    break
            else:
                raise AssertionError("unknown level")
            envs[request.conversation] = env
        plan = env.expert_actions()[:5]
        for action in plan:
            env.step(action)
        return reply.format(" || ".join(plan))

    return answer


def test_oracle_replies_solve_sokoban_over_several_turns() -> None:
    engine = Scripted(oracle("TextSokoban-v0", "<think>I see.</think><answer>{}</answer>"))
    played = episodes(engine, "think", "TextSokoban-v0", jobs=12, dialogue={"max_actions": None})
    assert len(played) == 12 and all(e.success and e.error is None for e in played)
    assert {e.seed for e in played} == set(range(12))
    assert all(turn.thought == "I see." and turn.penalty == 0.0 for e in played for turn in e.turns)
    assert len(set(engine.released)) == 12


def test_default_history_is_the_whole_conversation() -> None:
    engine = Scripted(lambda request: "<think>x</think><answer>Up</answer>")
    (episode,) = episodes(engine, "think", "TextSokoban-v0", dialogue={"max_turns": 5})
    final = engine.requests[-1]
    assert [m.role for m in final.messages] == [
        "system",
        *["user", "assistant"] * (len(episode.turns) - 1),
        "user",
    ]
    assert "Reward: -0.1" in last(final) or "Reward: 0.9" in last(final)
    assert len(episode.turns) == 5 and episode.truncated and not episode.success
    assert episode.details["ended"] == "the 5 turns are spent"


@pytest.mark.parametrize(("history", "most"), [("window", 6), ("single", 2)])
def test_truncated_history_limits_the_number_of_messages(history: str, most: int) -> None:
    engine = Scripted(lambda request: "<think>x</think><answer>Up</answer>")
    dialogue = {"history": history, "window": 3, "max_turns": 8}
    (episode,) = episodes(engine, "think", "TextSokoban-v0", dialogue=dialogue)
    assert len(episode.turns) == 8
    assert max(len(request.messages) for request in engine.requests) == most
    assert "Turn 8" in last(engine.requests[-1])


def test_malformed_reply_costs_a_turn_and_a_penalty_and_is_reported() -> None:
    replies = iter(
        ["gibberish", "<think>x</think><answer>Fly || Up</answer>", *["<think>x</think><answer>Up</answer>"] * 9]
    )
    engine = Scripted(lambda request: next(replies), batch=1)
    (episode,) = episodes(engine, "think", "TextSokoban-v0", kwargs={"max_steps": 10})
    first, second, third = episode.turns[:3]
    assert [(move.action, move.valid) for move in first.moves] == [("", False)]
    assert first.penalty == -0.1 and not first.well_formed
    assert "no action that the world accepts" in last(engine.requests[1])
    assert [move.valid for move in second.moves] == [False, True] and second.penalty == -0.1
    assert third.penalty == 0.0
    assert episode.total_penalty == pytest.approx(-0.2)
    assert episode.total_reward == pytest.approx(sum(m.reward for t in episode.turns for m in t.moves))


def test_replies_without_actions_reach_the_environments_step_limit() -> None:
    engine = Scripted(lambda request: "I would rather not.")
    unlimited = {"max_turns": None, "max_actions": None}
    (episode,) = episodes(engine, "think", "TextSokoban-v0", dialogue=unlimited, kwargs={"max_steps": 6})
    assert len(episode.turns) == 6 and episode.truncated and episode.invalid == 6


def test_action_budget_ends_the_episode() -> None:
    engine = Scripted(lambda request: "<think>x</think><answer>Up||Down||Up||Down||Up||Down</answer>")
    (episode,) = episodes(engine, "think", "TextSokoban-v0", dialogue={"max_actions": 7})
    assert [len(turn.moves) for turn in episode.turns] == [5, 2]
    assert episode.details["ended"] == "the 7 actions are spent"


LINE = {"map": ["SFFFFFFFFFG"], "success_rate": 1.0}
"""Lake whose goal is ten steps to the right of its start."""


@pytest.mark.parametrize(
    ("final", "moves", "success"),
    [
        ("Wait || Right", [False, True], True),
        ("Wait || Wait || Right || Left", [False, False, True], True),
        ("Left || Right", [True], False),
        ("Wait", [False], False),
    ],
)
def test_actions_after_a_refused_one_are_within_the_budget(final: str, moves: list[bool], success: bool) -> None:
    """A refused action uses none of RAGEN's ten, neither in an earlier turn nor in the last one."""
    answers = ["no action", "Right || Right || Right || Right", "Right || Right || Right || Right || Right", final]
    replies = iter(answers)
    budget = {"max_actions": 10, "max_turns": 4}
    engine = Scripted(lambda request: f"<answer>{next(replies)}</answer>")
    kwargs = {**LINE, "max_steps": 10, "count_refused": False}
    (episode,) = episodes(engine, "no_think", "TextFrozenLake-v0", dialogue=budget, kwargs=kwargs)
    assert [move.valid for move in episode.turns[-1].moves] == moves and episode.success is success
    assert [last(request).rpartition("Actions left: ")[2] for request in engine.requests] == [
        "10.",
        "10.",
        "6.",
        "1.",
    ]


def test_equal_replies_have_equal_actions_wherever_chance_ends_the_episode() -> None:
    """Credit compares turns by their state and actions, which must not say what happened."""
    engine = Scripted(lambda request: "<answer>Down || Wait || Down || Right || Right</answer>")
    agent = make_agent("no_think", engine=engine, dialogue={"max_actions": 2})
    env = make_env("TextFrozenLake-v0", map=["FFFF", "SHFF", "FFFF", "FFFG"], success_rate=0.34)
    played = list(play(agent, [env], [Job(None, seed) for seed in range(24)], keep={"states"}))
    assert {len(episode.turns[0].moves) for episode in played} >= {1, 3}
    assert {episode.terminated for episode in played} == {True, False}
    ended = {episode.turns[0].actions for episode in played if len(episode.turns[0].moves) > 1}
    assert ended == {("Down", "Wait", "Down")}
    # Nobody knows of an action after the end that it would have been refused.
    assert {episode.turns[0].actions for episode in played} == {*ended, ("Down", "Wait")}


def test_refused_actions_that_nothing_counts_need_a_limit_on_turns() -> None:
    engine = Scripted(lambda request: "I would rather not.")
    unlimited = {"max_turns": None, "max_actions": 10}
    with pytest.raises(Stop, match=r"would never end.*set max_turns"):
        episodes(engine, "think", "TextSokoban-v0", dialogue=unlimited, kwargs={"count_refused": False})
    (episode,) = episodes(
        engine, "think", "TextSokoban-v0", dialogue={"max_turns": 200}, kwargs={"count_refused": False}
    )
    assert len(episode.turns) == 200 and episode.invalid == 200


def test_react_prompt_has_three_examples_of_other_tasks() -> None:
    engine = Scripted(lambda request: "Thought: so\nAction: Up")
    (episode,) = episodes(engine, "react", "TextSokoban-v0", kwargs={"max_steps": 3, "split": "test"})
    system = engine.requests[0].messages[0].content
    assert "3 examples" in system
    assert system.count("Thought: My plan from here") + system.count("Thought: One step") >= 6
    assert episode.turns[0].observation not in system
    episodes(engine, "react", "TextSokoban-v0", kwargs={"max_steps": 3}, examples=1)
    assert "An example" in engine.requests[-1].messages[0].content


def test_examples_are_of_different_tasks() -> None:
    engine = Scripted(lambda request: "")
    episodes(engine, "react", "TextBandit-v0", examples=20, kwargs={"max_steps": 1})
    system = engine.requests[0].messages[0].content
    shown = [line for line in system.splitlines() if "The arms are" in line]
    assert len(shown) == len(set(shown)) == 20


class UnreadableBandit(Bandit):
    """Bandit that reads a file for its training split, which is missing."""

    def __init__(self, *, split: str | None = None, **options: Any) -> None:
        if split == "train":
            Path("no-such-folder/train.json").read_text()
        super().__init__(**options)


def test_examples_of_a_training_split_that_cannot_be_opened_are_not_of_the_split_that_is_played() -> None:
    with pytest.raises(Stop, match="split='train': FileNotFoundError"):
        episodes(Scripted(lambda request: ""), "react", f"{__name__}:UnreadableBandit", kwargs={"split": "test"})


def test_rejected_conversation_truncates_only_its_episode() -> None:
    def answer(request: Request) -> str | Completion:
        if "Teacher" in last(request):
            return Completion("", "rejected", error="the prompt is too long")
        return "Explorer"

    engine = Scripted(answer)
    played = episodes(engine, "direct", "TextBandit-v0", jobs=40, kwargs={"max_steps": 1})
    assert len(played) == 40 and all(episode.error is None for episode in played)
    ended = [episode for episode in played if episode.details.get("ended") == "the prompt is too long"]
    assert 0 < len(ended) < 40
    assert all(episode.truncated and not episode.success and episode.steps == 0 for episode in ended)


def test_engine_error_ends_the_run() -> None:
    def answer(request: Request) -> str | Completion:
        return Completion("", "error", error="the server said 500 five times")

    with pytest.raises(Stop, match="scripted failed: the server said 500 five times"):
        episodes(Scripted(answer), "direct", "TextBandit-v0", jobs=4)


def test_stop_raised_by_an_engine_ends_the_run() -> None:
    def answer(request: Request) -> str:
        raise Stop("the budget is spent")

    with pytest.raises(Stop, match="the budget is spent"):
        episodes(Scripted(answer), "direct", "TextBandit-v0", jobs=3)


def test_reflexion_retries_with_its_last_three_reflections() -> None:
    def answer(request: Request) -> str:
        if "did not solve it" in request.messages[0].content:
            return f"Note {last(request).count('> ')}."
        return "Thought: again\nAction: Up"

    engine = Scripted(answer)
    dialogue = {"max_turns": 2}
    (episode,) = episodes(engine, "reflexion", "TextSokoban-v0", dialogue=dialogue, trials=5)
    assert episode.details["trial"] == 5 and len(episode.trials) == 4
    assert [trial.details["trial"] for trial in episode.trials] == [1, 2, 3, 4]
    assert {trial.task for trial in episode.trials} == {episode.task}
    final = engine.requests[-1].messages[0].content
    assert (
        final.count("After attempt") == 3
        and "After attempt 1" not in final
        and "After attempt 4: Note 2." in final
    )
    again = type(episode).from_dict(episode.to_dict())
    assert again.to_dict() == episode.to_dict() and len(again.trials) == 4


@pytest.mark.parametrize(
    ("agent", "env_id", "separate", "reply"),
    [
        ("reflexion", "TextBandit-v0", "reflection", "Action: none"),
        ("search_o1", "TextSearchQA-v0", "reading", "<|begin_search_query|>born<|end_search_query|>"),
    ],
)
def test_conversations_of_separate_requests_are_released(
    agent: str, env_id: str, separate: str, reply: str
) -> None:
    engine = Scripted(lambda request: reply)
    settings: dict[str, Any] = {"kwargs": {"max_steps": 2}}
    if agent == "reflexion":
        settings |= {"examples": 0, "trials": 2}
    episodes(engine, agent, env_id, **settings)
    names = {request.conversation for request in engine.requests}
    assert any(name.endswith(separate) for name in names)
    assert names == set(engine.released)


def test_reflexion_stops_after_success() -> None:
    env = make_env("TextBandit-v0")
    env.reset(seed=0)
    (daring,) = env.expert_actions() or ()
    (steady,) = set(env.admissible_actions() or ()) - {daring}
    choices = iter([steady, steady, daring])

    def answer(request: Request) -> str:
        if "did not solve it" in request.messages[0].content:
            return "Take the other arm."
        return f"Thought: x\nAction: {next(choices)}"

    (episode,) = episodes(Scripted(answer), "reflexion", "TextBandit-v0", examples=0, trials=9)
    assert episode.success and episode.details["trial"] == 3
    assert [trial.success for trial in episode.trials] == [False, False]


@pytest.mark.parametrize(
    ("agent", "settings", "message"),
    [
        ("thinkk", {}, "did you mean think"),
        ("react", {"engine": None}, "needs a model"),
        ("react", {"sampling": {"temprature": 1}}, "did you mean temperature"),
        ("react", {"dialogue": {"max_turn": 1}}, "did you mean max_turns"),
        ("react", {"dialogue_name": "raect"}, "did you mean react"),
        ("react", {"examples": -1}, "examples must be an integer of at least 0, not -1"),
        ("think", {"sampling": {"temperature": -1}}, "temperature must be a number of at least 0, not -1"),
        ("think", {"sampling": {"temperature": float("nan")}}, "temperature must be a number .* not nan"),
        ("think", {"sampling": {"top_p": 90}}, "top_p must be a number of at least 0 and of at most 1, not 90"),
        ("think", {"sampling": {"top_k": -1}}, "top_k must be an integer of at least 0, not -1"),
        ("think", {"sampling": {"max_tokens": None}}, "max_tokens must be an integer of at least 1, not None"),
        ("think", {"sampling": {"stop": "END"}}, "stop must be a list of texts, not 'END'"),
        ("reflexion", {"trials": "many"}, "trials must be an integer of at least 1, not 'many'"),
        ("search_o1", {"searches": -1}, "searches must be an integer of at least 0, not -1"),
        ("search_o1", {"dialogue_name": "think"}, "needs the dialogue search_o1 .* not think"),
        ("search_o1", {"dialogue": {"history": "window"}}, 'with the history "full", not search_o1 with "window"'),
    ],
)
def test_invalid_agent_is_rejected(agent: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make_agent(agent, **{"engine": Scripted(lambda request: ""), **settings})


def test_search_o1_condenses_documents_separately_and_rejects_repeated_queries() -> None:
    """The model queries, repeats the query, gets a notice, and answers."""
    replies = iter(
        [
            "First I look. <|begin_search_query|> born <|end_search_query|>",
            "Once more. <|begin_search_query|> Born <|end_search_query|>",
            "So the answer is \\boxed{forty-two}.",
        ]
    )
    readings: list[str] = []

    def answer(request: Request) -> str:
        if "has just searched" in request.messages[0].content:
            readings.append(last(request))
            return "I skim.\n**Final Information**\nIt is forty-two."
        return next(replies)

    engine = Scripted(answer)
    (episode,) = episodes(engine, "search_o1", "TextSearchQA-v0", kwargs={"dataset": "encyclopedia"})
    assert [turn.moves[0].action for turn in episode.turns] == [
        "<search>born</search>",
        "<answer>forty-two</answer>",
    ]
    assert len(readings) == 1 and "Query: born" in readings[0] and "Doc 1" in readings[0]
    users = [m.content for m in engine.requests[-1].messages if m.role == "user"]
    assert users[1] == "<|begin_search_result|>\nIt is forty-two.\n<|end_search_result|>"
    assert "already" in users[2]
    assert not any("Doc 1" in text for text in users)  # only the condensed findings enter the conversation


def test_search_o1_reply_that_ends_in_a_delimiter_without_a_query_is_no_error() -> None:
    """The reply has a `<search>` element, which the environment executes, and a lone closing delimiter."""
    replies = iter(["<search>born</search> <|end_search_query|>", "\\boxed{unknown}"])
    engine = Scripted(lambda request: next(replies))
    (episode,) = episodes(engine, "search_o1", "TextSearchQA-v0", kwargs={"dataset": "encyclopedia"})
    assert episode.error is None
    assert [turn.moves[0].action[:8] for turn in episode.turns] == ["<search>", "<answer>"]


def test_search_o1_answers_at_its_search_limit() -> None:
    words = iter(["alpha", "beta", "gamma", "delta", "epsilon", "zeta"] * 9)
    marked = "<|begin_search_query|>{}<|end_search_query|>"

    def answer(request: Request) -> str:
        if "has just searched" in request.messages[0].content:
            return "nothing"
        if "limit is reached" in last(request):
            return "\\boxed{unknown}"
        return marked.format(next(words))

    kwargs = {"dataset": "encyclopedia", "max_steps": 12}
    (episode,) = episodes(Scripted(answer), "search_o1", "TextSearchQA-v0", kwargs=kwargs, searches=3)
    actions = [turn.moves[0].action for turn in episode.turns]
    assert [action[:8] for action in actions] == ["<search>"] * 3 + ["<answer>"]


@pytest.mark.parametrize(
    "setting", [{"dialogue_name": "think"}, {"dialogue": {"max_turns": 3}}, {"sampling": {"n": 1}}]
)
def test_settings_of_a_model_are_refused_for_an_agent_without_one(setting: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=f"{next(iter(setting))} has no effect on random"):
        make_agent("random", **setting)
