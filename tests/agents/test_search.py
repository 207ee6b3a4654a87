"""Search over forks: best of n, and Monte-Carlo tree search, with the shipped model in real environments."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from arboretum.agents.base import Agent, Reply, Seat, Stop
from arboretum.agents.engines.base import Completion, Engine, Request, Usage
from arboretum.agents.episode import Episode
from arboretum.agents.exchange import TURN
from arboretum.agents.play import Job, play
from arboretum.agents.registry import make_agent
from arboretum.envs.core import TextEnv
from arboretum.envs.errors import ConfigurationError
from arboretum.envs.frozenlake.env import FrozenLake
from arboretum.envs.registry import make_env

pytestmark = pytest.mark.heavy
torch = pytest.importorskip("torch", reason="needs torch: pip install 'arboretum-rl[lm]'")

SETTINGS: dict[str, dict[str, Any]] = {"best_of_n": {"n": 4}, "mcts": {"simulations": 6, "tokens": 300}}


@pytest.fixture(scope="module")
def engine() -> Any:
    from arboretum.agents.engines.registry import make_engine

    engine = make_engine("transformers", "sapling", device="cpu")
    yield engine
    engine.close()


def run(
    engine: Engine,
    name: str,
    env_id: str = "TextSokoban-v0",
    tasks: int = 4,
    in_flight: int = 8,
    dialogue: dict[str, Any] | None = None,
    max_turns: int | None = None,
    **settings: Any,
) -> list[Episode]:
    sampling = {"temperature": 1.0, "max_tokens": 16}
    agent = make_agent(name, engine=engine, sampling=sampling, dialogue=dialogue, **settings)
    envs = [make_env(env_id) for _ in range(min(in_flight, tasks))]
    jobs = [Job(f"test/{task}", 100 + task) for task in range(tasks)]
    episodes = sorted(play(agent, envs, jobs, max_turns=max_turns), key=lambda episode: episode.seed)
    assert len(episodes) == tasks
    return episodes


def solved(episodes: Sequence[Episode]) -> int:
    return sum(episode.success for episode in episodes)


# ---------------------------------------------------------------------- results


@pytest.mark.parametrize("env_id", ["TextSokoban-v0", "TextFrozenLake-v0"])
def test_best_of_8_solves_more_than_direct_sampling_at_the_same_temperature(env_id: str, engine: Any) -> None:
    direct = run(engine, "no_think", env_id, 8)
    best = run(engine, "best_of_n", env_id, 8, n=8)
    assert solved(best) > solved(direct)
    assert all(episode.details["completion_tokens"] >= 8 * 2 for episode in best)


def test_tree_search_solves_more_than_direct_sampling_within_its_budget(engine: Any) -> None:
    # RAGEN's limit: episodes that fail end early.
    limit = {"max_actions": 10}
    direct = run(engine, "no_think", tasks=16, dialogue=limit)
    found = run(engine, "mcts", tasks=16, dialogue=limit, tokens=600)
    assert solved(found) > solved(direct)
    assert all(episode.details["completion_tokens"] <= 600 + 16 for episode in found)


def test_more_branches_never_lower_the_return(engine: Any) -> None:
    # The first branches of a larger n are those of a smaller one.
    returns = [[episode.total_reward for episode in run(engine, "best_of_n", n=n)] for n in (1, 3, 6)]
    for few, more in pairwise(returns):
        assert all(a <= b + 1e-9 for a, b in zip(few, more, strict=True))
    assert sum(returns[2]) > sum(returns[0])


@pytest.mark.parametrize("name", SETTINGS)
def test_search_depends_on_the_seed_only(name: str, engine: Any) -> None:
    def key(episode: Episode) -> Any:
        turns = [(turn.reply, turn.moves, turn.token_ids) for turn in episode.turns]
        cost = {k: v for k, v in episode.details.items() if k != "cached_tokens"}
        return turns, cost

    together, alone = (run(engine, name, in_flight=n, tasks=3, **SETTINGS[name]) for n in (3, 1))
    assert [key(episode) for episode in together] == [key(episode) for episode in alone]


# ---------------------------------------------------------------------- the recorded episode


class Scripted(Agent):
    """Agent that takes the actions of a recorded episode."""

    name = "scripted"

    def __init__(self, episode: Episode) -> None:
        self.script = episode

    def act(self, seats: Sequence[Seat]) -> list[Reply | None]:
        return [Reply(self.script.turns[len(seat.episode.turns)].actions or ()) for seat in seats]


def test_tree_search_does_not_touch_the_randomness_of_the_played_episode(engine: Any) -> None:
    for episode in run(engine, "mcts", "TextFrozenLake-v0", simulations=6, max_turns=5):
        job = Job(episode.task, episode.seed)
        (again,) = play(Scripted(episode), [make_env("TextFrozenLake-v0")], [job], max_turns=len(episode.turns))
        assert [turn.observation for turn in again.turns] == [turn.observation for turn in episode.turns]
        assert again.final_observation == episode.final_observation


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("history", ["full", "window"])
def test_recorded_tokens_of_a_search_have_their_logprobs_in_a_plain_forward_pass(
    name: str, history: str, engine: Any
) -> None:
    dialogue = {"history": history, "window": 2, "max_turns": 5}
    for episode in run(engine, name, "TextFrozenLake-v0", 3, dialogue=dialogue, **SETTINGS[name]):
        sequences: list[list[Any]] = []
        for turn in episode.turns:
            if turn.restart or not sequences:
                sequences.append([])
            if turn.token_ids is not None:
                sequences[-1].append(turn)
        for turns in sequences:
            ids = [token for turn in turns for token in turn.token_ids]
            mask = [m for turn in turns for m in turn.loss_mask]
            recorded = [p for turn in turns for p in turn.logprobs]
            with torch.no_grad():
                logits = engine.model(torch.tensor([ids])).logits[0].float()
            expected = torch.log_softmax(logits, -1)
            for i in [i for i, m in enumerate(mask) if m]:
                assert recorded[i] == pytest.approx(float(expected[i - 1, ids[i]]), abs=2e-3)


@pytest.mark.parametrize("name", SETTINGS)
def test_episode_keeps_the_exchanges_of_the_played_turns_only(name: str, engine: Any) -> None:
    for episode in run(engine, name, **SETTINGS[name]):
        sampled = [turn for turn in episode.turns if turn.token_ids is not None]
        assert [exchange.turn for exchange in episode.exchanges] == list(range(len(sampled)))
        for exchange, turn in zip(episode.exchanges, sampled, strict=True):
            assert exchange.purpose == TURN and exchange.answer == turn.reply
            assert turn.observation in exchange.messages[-1].content
        assert Episode.from_dict(episode.to_dict()).exchanges == episode.exchanges


# ---------------------------------------------------------------------- cost and limits


@pytest.mark.parametrize("name", SETTINGS)
def test_details_have_the_whole_cost(name: str, engine: Any) -> None:
    before = engine.usage.completion_tokens
    episodes = run(engine, name, **SETTINGS[name])
    assert (
        sum(episode.details["completion_tokens"] for episode in episodes)
        == engine.usage.completion_tokens - before
    )
    for episode in episodes:
        played = sum(sum(turn.loss_mask or ()) for turn in episode.turns)
        assert episode.details["completion_tokens"] >= played > 0
        assert episode.details["simulated_steps"] > 0
    assert engine._cache.idle_tokens == 0  # All conversations are released.


@pytest.mark.parametrize("tokens", [16, 40, 150])
def test_budget_is_exceeded_by_one_reply_at_most(tokens: int, engine: Any) -> None:
    for episode in run(engine, "mcts", tasks=8, tokens=tokens):
        assert episode.details["completion_tokens"] < tokens + 16
        if not episode.terminated:
            ended = str(episode.details["ended"])
            assert ended == f"the {tokens} tokens of the search are spent" or "fills the context" in ended


def test_branches_end_at_the_turn_limit_of_the_episode(engine: Any) -> None:
    for episode in run(engine, "best_of_n", max_turns=2, dialogue={"max_actions_per_turn": 1}, n=4):
        assert len(episode.turns) <= 2
        assert episode.details["simulated_steps"] <= 4 * 2


def test_branches_are_forked_not_computed_again(engine: Any) -> None:
    before = engine.computed_tokens
    episodes = run(engine, "mcts", tasks=4, simulations=8, max_turns=6)
    computed = engine.computed_tokens - before
    prompts = sum(episode.details["prompt_tokens"] for episode in episodes)
    cached = sum(episode.details["cached_tokens"] for episode in episodes)
    assert cached > 0.7 * prompts
    # What is computed is what no branch had computed before, up to padding.
    assert computed < 1.5 * (prompts - cached + sum(episode.details["completion_tokens"] for episode in episodes))


# ---------------------------------------------------------------------- failures


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("best_of_n", {"n": 0}, "n must be an integer of at least 1, not 0"),
        ("best_of_n", {"n": "many"}, "n must be an integer of at least 1, not 'many'"),
        ("best_of_n", {"select": "votes"}, "select 'votes'"),
        ("mcts", {"simulations": 0}, "simulations must be an integer of at least 1"),
        ("mcts", {"width": 1}, "width must be an integer of at least 2"),
        ("mcts", {"exploration": -1}, "exploration must be a number of at least 0"),
        ("mcts", {"tokens": 15}, "a budget of 15 tokens per episode is less than one reply of up to 16 tokens"),
    ],
)
def test_settings_that_cannot_work_are_rejected(
    name: str, settings: dict[str, Any], message: str, engine: Any
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make_agent(name, engine=engine, sampling={"max_tokens": 16}, **settings)


@pytest.mark.parametrize("name", SETTINGS)
def test_greedy_search_is_rejected(name: str, engine: Any) -> None:
    with pytest.raises(ConfigurationError, match="the temperature is 0; pass --temperature 1"):
        make_agent(name, engine=engine, sampling={"temperature": 0.0})


@pytest.mark.parametrize("name", SETTINGS)
def test_environment_without_snapshots_is_refused(name: str, engine: Any) -> None:
    class Opaque(FrozenLake):
        snapshot = None  # type: ignore[assignment]

    with pytest.raises(Stop, match=rf"agent {name} searches .* Opaque has no snapshot\(\); define"):
        list(play(make_agent(name, engine=engine), [Opaque()], [Job(None, 0)]))


@pytest.mark.parametrize(
    ("method", "kind"),
    [("step", ConnectionError), ("restore", ConnectionError), ("restore", SystemExit), ("state_key", SystemExit)],
)
@pytest.mark.parametrize("name", SETTINGS)
def test_failure_of_the_environment_in_a_branch_ends_only_its_episode(
    name: str, method: str, kind: type[BaseException], engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, calls = getattr(FrozenLake, method), 0

    def broken(self: FrozenLake, *arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 5:
            raise kind("the lake is gone")
        return original(self, *arguments, **options)

    if (name, method) == ("best_of_n", "state_key"):
        pytest.skip("best_of_n needs no state keys")
    monkeypatch.setattr(FrozenLake, method, broken)
    episodes = run(engine, name, "TextFrozenLake-v0", 4, **SETTINGS[name])
    (failed,) = [episode for episode in episodes if episode.error is not None]
    assert f"{kind.__name__}: the lake is gone (test_search.py, line " in str(failed.error)


def test_best_of_n_breaks_off_where_the_environment_does_not_repeat_itself(engine: Any) -> None:
    class Drifting(FrozenLake):
        def restore(self, snapshot: Any, seed: int | None = None) -> None:
            super().restore(snapshot, next(seeds))

    seeds = iter(range(1000))
    agent = make_agent("best_of_n", engine=engine, sampling={"max_tokens": 16}, dialogue={"max_turns": 5}, n=4)
    episodes = list(play(agent, [Drifting(success_rate=1 / 3)], [Job(None, seed) for seed in range(8)]))
    errors = [str(episode.error) for episode in episodes if episode.error is not None]
    assert errors and all("the environment does not repeat itself" in error for error in errors)


@pytest.mark.parametrize("name", SETTINGS)
def test_time_limit_ends_a_search(name: str, engine: Any) -> None:
    agent = make_agent(name, engine=engine, sampling={"max_tokens": 16})
    (episode,) = play(agent, [make_env("TextSokoban-v0")], [Job("test/1", 1)], time_limit=0.01)
    assert episode.error == "the time limit of 0.01 s per episode expired"
    assert engine._cache.idle_tokens == 0


class Directions(Engine):
    """Engine without tokens, which answers with a word that depends on the seed of the request."""

    name = "directions"

    def __init__(self, *words: str) -> None:
        self.words = words or ("Up", "Down", "Left", "Right")
        self.usage = Usage()
        self._waiting: list[Request] = []

    def submit(self, request: Request) -> None:
        self._waiting.append(request)

    def collect(self) -> list[tuple[str, Completion]]:
        words = [self.words[request.seed % len(self.words)] for request in self._waiting]
        names = [request.conversation for request in self._waiting]
        self._waiting.clear()
        done = [Completion(f"<answer>{word}</answer>", "stop", usage=Usage(10, 0, 3)) for word in words]
        return list(zip(names, done, strict=True))


@pytest.mark.parametrize("name", SETTINGS)
def test_search_works_with_engines_without_tokens_and_logprobs(name: str) -> None:
    blind, seeing = (run(Directions(), one, max_turns=8, tasks=8) for one in ("no_think", name))
    assert sum(episode.total_reward for episode in seeing) > sum(episode.total_reward for episode in blind)
    assert all(episode.details["completion_tokens"] > 50 for episode in seeing)


@pytest.mark.parametrize(("first", "simulations"), [("Right", 0), ("Wait || Right", 0), ("Wait", 6)])
def test_tree_search_takes_replies_that_differ_beyond_the_budget_for_one_move(
    first: str, simulations: int
) -> None:
    engine = Directions(f"{first} || Up", f"{first} || Down")
    agent = make_agent(
        "mcts", engine=engine, sampling={"temperature": 1.0}, simulations=6, dialogue={"max_actions": 1}
    )
    env = make_env("TextFrozenLake-v0", map=["FFF", "SFF", "FFG"])
    (episode,) = play(agent, [env], [Job(None, 0)])
    assert episode.truncated and episode.details["simulations"] == simulations


class Wager(TextEnv[tuple[str]]):
    """The first action wins 0.8 ("safe"), or 1 or nothing ("gamble"); the second shows what."""

    instructions = "Write safe or gamble, and then either once more."

    def __init__(self, has_key: bool) -> None:
        super().__init__(config={"has_key": has_key}, max_steps=2)
        self.tasks, self.has_key = ["wager"], has_key

    def _open(self, task: str) -> tuple[str]:
        return ("start",)

    def _observe(self) -> str:
        return "Choose." if self._state == ("start",) else "Chosen."

    def _apply(self, action: str) -> Any:
        if self._state == ("start",):
            won = "good" if self._random() < 0.5 else "bad"
            self._state = ("safe" if action == "safe" else won,)
            return self._observe(), 0.0, False, False, True, True
        reward = {"safe": 0.8, "good": 1.0, "bad": 0.0}[self._state[0]]
        return "Over.", reward, True, reward > 0, True, True

    def state_key(self) -> Any:
        return self._state if self.has_key else None

    def admissible_actions(self) -> tuple[str, ...]:
        return "safe", "gamble"

    def expert_actions(self) -> list[str]:
        return ["safe", "safe"]


def test_tree_search_averages_over_outcomes_without_a_state_key() -> None:
    chosen = {}
    for has_key in (True, False):
        agent = make_agent(
            "mcts",
            engine=Directions("safe", "gamble"),
            sampling={"temperature": 1.0},
            simulations=100,
            parallel=1,
        )
        episodes = list(play(agent, [Wager(has_key)], [Job("wager", seed) for seed in range(12)]))
        assert [episode.error for episode in episodes] == [None] * 12
        chosen[has_key] = sum(episode.turns[0].moves[0].action == "gamble" for episode in episodes)
    assert max(chosen.values()) <= 1  # One samples no "safe" in its first turn.
