"""Forks of episodes: the state before a turn, restored for further episodes that share the turns before it."""

from __future__ import annotations

import pickle
import random
import re
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import arboretum
from arboretum.agents.base import Agent, Reply, Seat, Stop
from arboretum.agents.episode import Episode
from arboretum.agents.forks import CannotFork, Origin
from arboretum.agents.play import Job, play
from arboretum.agents.reference import RandomAgent
from arboretum.envs.bandit import Bandit
from arboretum.envs.core import TextEnv
from arboretum.envs.frozenlake.env import FrozenLake
from arboretum.envs.registry import ENVS
from support.environments import embedded_data, make

__all__ = ["embedded_data"]


class Scripted(Agent):
    """Agent that takes the actions of a recorded episode."""

    name = "scripted"

    def __init__(self, episode: Episode) -> None:
        self.script = episode

    def act(self, seats: Sequence[Seat]) -> list[Reply | None]:
        return [
            Reply(tuple(move.action for move in self.script.turns[len(seat.episode.turns)].moves))
            for seat in seats
        ]


def record(env: TextEnv[Any], seed: int = 0, agent: Agent | None = None, **options: Any) -> Episode:
    options = {"max_turns": 8, "keep": {"forks", "states", "choices"}, **options}
    (episode,) = play(agent or RandomAgent(), [env], [Job(None, seed)], **options)
    assert episode.error is None
    return episode


@pytest.mark.parametrize("env_id", [spec.id for spec in ENVS])
def test_replayed_moves_of_a_fork_give_the_recorded_observations(env_id: str) -> None:
    env = make(env_id)
    for seed in range(3):
        episode = record(env, seed)
        turns = random.Random(seed).randrange(len(episode.turns))
        agent, job = Scripted(episode), Job(episode.task, 1000 + seed, Origin(episode, turns, redraw=False))
        # Another environment of the id, in the middle of another episode.
        other = make(env_id)
        other.reset(seed=77)
        (branch,) = play(agent, [other], [job], max_turns=8)
        assert branch.error is None and branch.agent == "scripted" and branch.seed == 1000 + seed
        assert [turn.observation for turn in branch.turns] == [turn.observation for turn in episode.turns]
        assert [turn.moves for turn in branch.turns] == [turn.moves for turn in episode.turns]
        assert branch.final_observation == episode.final_observation
        assert (branch.success, branch.terminated) == (episode.success, episode.terminated)
        assert branch.details["reused_turns"] == turns
        assert all(a is b for a, b in zip(branch.turns[:turns], episode.turns, strict=False))


def test_branches_of_slippery_ice_draw_new_randomness_unless_told_to_repeat_it() -> None:
    env = make("TextFrozenLake-v0", max_steps=60)
    ends: dict[bool, set[Any]] = {True: set(), False: set()}
    episode = next(e for e in (record(env, seed, max_turns=30) for seed in range(50)) if len(e.turns) > 8)
    for redraw, seen in ends.items():
        jobs = [Job(episode.task, seed, Origin(episode, 2, redraw)) for seed in range(20)]
        for branch in play(Scripted(episode), [env], jobs, max_turns=6, keep={"states"}):
            seen.add(tuple(turn.state_key for turn in branch.turns[2:]))
    assert len(ends[True]) > 5
    assert len(ends[False]) == 1
    # The same seed gives the same branch.
    job = Job(episode.task, 5, Origin(episode, 2))
    one, other = (next(iter(play(RandomAgent(), [env], [job]))) for _ in range(2))
    assert [turn.moves for turn in one.turns] == [turn.moves for turn in other.turns]


def test_fork_of_a_branch_continues_from_both_parts_of_it() -> None:
    env = make("TextSokoban-v0")
    episode = record(env)
    branch = next(
        iter(play(RandomAgent(), [env], [Job(None, 9, Origin(episode, 3))], max_turns=8, keep={"forks"}))
    )
    for turns in (2, 3, 6):
        (twig,) = play(Scripted(branch), [env], [Job(None, 4, Origin(branch, turns))], max_turns=8)
        assert [turn.observation for turn in twig.turns] == [turn.observation for turn in branch.turns]
        assert twig.final_observation == branch.final_observation


def test_forks_are_picklable_and_not_stored() -> None:
    episode = record(make("TextSokoban-v0"))
    copy = pickle.loads(pickle.dumps(episode))
    (branch,) = play(Scripted(copy), [make("TextSokoban-v0")], [Job(None, 0, Origin(copy, 4))], max_turns=8)
    assert branch.final_observation == episode.final_observation
    stored = episode.to_dict()
    assert not {"fork", "effects", "choices", "state_key"} & set(stored["turns"][0])
    with pytest.raises(CannotFork, match="has no fork; play it with keep="):
        list(play(RandomAgent(), [make("TextSokoban-v0")], [Job(None, 0, Origin(Episode.from_dict(stored), 4))]))


@pytest.mark.parametrize("turns", [-1, 8])
def test_fork_outside_the_episode_is_rejected(turns: int) -> None:
    env = make("TextSokoban-v0")
    with pytest.raises(CannotFork, match="an episode of 8 turns cannot be forked before turn"):
        list(play(RandomAgent(), [env], [Job(None, 0, Origin(record(env), turns))]))


def test_fork_for_a_job_of_another_task_is_rejected() -> None:
    env = make("TextSokoban-v0")
    with pytest.raises(CannotFork, match="cannot continue an episode of task"):
        list(play(RandomAgent(), [env], [Job("test/999", 0, Origin(record(env), 2))]))


@pytest.mark.parametrize("count", [1, 3])
def test_jobs_appended_to_a_queue_while_it_is_played_are_played(count: int) -> None:
    """With more environments than jobs, the queue is found empty before the first episode ends."""
    envs = [make("TextSokoban-v0") for _ in range(count)]
    jobs = deque([Job("test/1", 1)])
    played = []
    for episode in play(RandomAgent(), envs, jobs, max_turns=6, keep={"forks"}):
        played.append(episode)
        if len(played) < 5:
            jobs.append(Job(None, len(played), Origin(episode, 5)))
    assert [episode.details.get("reused_turns") for episode in played] == [None, 5, 5, 5, 5]


@pytest.mark.parametrize("method", ["restore", "step", "snapshot"])
def test_error_in_a_forked_environment_ends_only_its_episode(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    env = make("TextFrozenLake-v0")
    episode = next(e for e in (record(env, seed) for seed in range(50)) if len(e.turns) > 4)
    original, calls = getattr(FrozenLake, method), 0

    def broken(self: FrozenLake, *arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise ConnectionError("the lake is gone")
        return original(self, *arguments, **options)

    monkeypatch.setattr(FrozenLake, method, broken)
    jobs = [Job(None, seed, Origin(episode, 3)) for seed in range(4)]
    branches = list(play(RandomAgent(), [make("TextFrozenLake-v0")], jobs, keep={"forks"}))
    (failed,) = [branch for branch in branches if branch.error is not None]
    assert len(branches) == 4 and "ConnectionError: the lake is gone (test_forks.py, line " in str(failed.error)


class Opaque(FrozenLake):
    """Lake without snapshots."""

    snapshot = None  # type: ignore[assignment]


class Replayable(Opaque):
    """Lake without snapshots on which no step slips."""

    deterministic = True


def test_environment_without_snapshots_is_forked_by_replay_if_it_is_deterministic() -> None:
    env = Replayable(success_rate=1.0)
    episode = next(e for e in (record(env, seed) for seed in range(50)) if len(e.turns) > 4)
    (branch,) = play(Scripted(episode), [env], [Job(None, 3, Origin(episode, 3))], max_turns=8)
    assert [turn.observation for turn in branch.turns] == [turn.observation for turn in episode.turns]


def test_environment_without_snapshots_and_not_deterministic_is_refused() -> None:
    with pytest.raises(CannotFork, match=r"Opaque cannot be forked: it has no snapshot\(\).*deterministic = True"):
        record(Opaque())
    assert record(Opaque(), keep=()).turns


def test_replay_that_differs_from_the_record_is_an_error_of_the_episode() -> None:
    env = Replayable(success_rate=1.0)
    episode = next(e for e in (record(env, seed) for seed in range(50)) if len(e.turns) > 4)
    episode.turns[2].observation = "another board"
    (branch,) = play(RandomAgent(), [env], [Job(None, 3, Origin(episode, 3))])
    assert "gave another observation before turn 3" in str(branch.error)


def test_agent_with_a_memory_that_it_cannot_save_is_refused() -> None:
    class Remembering(RandomAgent):
        def begin(self, seat: Seat) -> None:
            seat.memory = ["everything"]

    with pytest.raises(
        Stop, match=r"cannot be forked: Remembering keeps a memory .* define save\(\) and resume\(\)"
    ):
        record(make("TextSokoban-v0"), agent=Remembering())


def test_example_of_the_page_forks_an_episode(capsys: pytest.CaptureFixture[str]) -> None:
    page = Path(arboretum.__file__).parent / "docs" / "search-agents.md"
    (code,) = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    exec(compile(code, str(page), "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4 and all(line.startswith("1 ") for line in lines) and len(set(lines)) > 1


# ---------------------------------------------------------------------- effects and choices


def effects(env_id: str, actions: Sequence[str], **options: Any) -> list[tuple[str, ...] | None]:
    """Return the effects of each action, played as a turn of its own."""
    env = make(env_id, **options)

    class Player(RandomAgent):
        def act(self, seats: Sequence[Seat]) -> list[Reply | None]:
            (seat,) = seats
            turns = seat.episode.turns
            return [Reply((actions[len(turns)],), quit="done" if len(turns) + 1 == len(actions) else None)]

    (episode,) = play(Player(), [env], [Job(env.tasks[0], 0)], keep={"states"})
    return [turn.effects for turn in episode.turns]


def test_effects_are_the_actions_that_t_star_counts() -> None:
    searches = ["<search>Paris</search>", "no action", "<search>Paris</search>", "<answer>Rome</answer>"]
    assert effects("TextSearchQA-v0", searches, dataset="encyclopedia") == [
        (searches[0],),
        (),
        (searches[2],),
        (),
    ]
    assert effects("TextFrozenLake-v0", ["Up", "Left"]) == [(), ()]
    words = ["search[red shoes]", "click[back to search]", "search[blue shoes]", "click[next >]", "click[nothing]"]
    counted = effects("TextWebShop-v0", words)
    assert counted == [(words[0],), (), (words[2],), (), ()]
    walk = effects("TextALFWorld-v0", ["look", "inventory", "dance"])
    assert walk == [(), (), ()]


def test_pushes_are_the_effects_in_sokoban() -> None:
    env = make("TextSokoban-v0")
    for index in range(5):
        env.reset(seed=0, options={"task": index})
        while plan := env.expert_actions():
            boxes = {i for i, cell in enumerate(str(env.state_key())) if cell in "X√"}
            before = env.state_key()
            *_, info = env.step(plan[0])
            pushed = boxes != {i for i, cell in enumerate(str(env.state_key())) if cell in "X√"}
            assert env.counts_as_effect(plan[0], before, info) == pushed


def test_limits_are_the_smaller_ones_of_loop_and_environment() -> None:
    env = make("TextFrozenLake-v0", max_steps=3)
    (episode,) = play(RandomAgent(), [env], [Job(env.tasks[0], 0)], max_turns=5, keep={"limits"})
    turns = episode.turns
    assert [turn.limits for turn in turns] == [(5 - n, 3 - n) for n in range(len(turns))]
    assert [turn.limits_after for turn in turns] == [(4 - n, 2 - n) for n in range(len(turns))]
    env = make("TextFrozenLake-v0", max_steps=None)
    (episode,) = play(RandomAgent(), [env], [Job(env.tasks[0], 0)], max_turns=50, keep={"limits"})
    assert episode.turns[0].limits == (50, None) and "limits" not in episode.turns[0].to_dict()
    (episode,) = play(RandomAgent(), [env], [Job(env.tasks[0], 0)], max_turns=50)
    assert episode.turns[0].limits is None


def test_choices_are_the_admissible_actions_before_the_turn() -> None:
    episode = record(make("TextBandit-v0"))
    assert isinstance(make("TextBandit-v0"), Bandit)
    assert episode.turns[0].choices is not None and set(episode.turns[0].choices) == set(episode.task.split("/"))
    assert record(make("TextSearchQA-v0", dataset="encyclopedia")).turns[0].choices is None
