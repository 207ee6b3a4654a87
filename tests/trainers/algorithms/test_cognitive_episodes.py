"""T-STAR's graphs of episodes of the real environments."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import arboretum  # noqa: F401 (registers the environments)
from arboretum.agents.base import Agent, Reply, Seat
from arboretum.agents.forks import Origin
from arboretum.agents.play import Job, play
from arboretum.agents.reference import ExpertAgent, RandomAgent
from arboretum.trainers.algorithms.credit.cognitive_credit import Cognitive
from arboretum.trainers.data.cognitive_graph import CognitiveGraph
from arboretum.trainers.data.episodes import Branch, from_episodes
from arboretum.trainers.data.rollouts import Rollouts

TOKENS = {"token_ids": [7, 8], "logprobs": [0.0, -1.0], "loss_mask": [0, 1]}
STATE = Cognitive(equivalence="state")


@pytest.fixture(autouse=True)
def generated_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Play on generated data, whatever data is installed."""
    monkeypatch.delenv("ARBORETUM_DATA", raising=False)


class WithTokens(Agent):
    """Agent whose replies have tokens, which rollouts require; they are not the text's."""

    name = "with tokens"

    def __init__(self, agent: Agent) -> None:
        self.agent = agent

    def act(self, seats: Sequence[Seat]) -> list[Reply | None]:
        return [reply and replace(reply, **TOKENS) for reply in self.agent.act(seats)]  # type: ignore[arg-type]


class Scripted(Agent):
    """Agent that takes the actions of the script that the episode's seed numbers."""

    name = "scripted"

    def __init__(self, scripts: Sequence[Sequence[str]]) -> None:
        self.scripts = scripts

    def act(self, seats: Sequence[Seat]) -> list[Reply | None]:
        replies: list[Reply | None] = []
        for seat in seats:
            script, done = self.scripts[seat.episode.seed], len(seat.episode.turns)
            ends = None if done + 1 < len(script) else "the script ends"
            replies.append(Reply((script[done],), quit=ends))
        return replies


def rollouts_of(agent: Agent, env: str, seeds: Sequence[int], *, tasks: int = 1, **options: Any) -> Rollouts:
    """Return one group of episodes for each task, with these seeds."""
    envs = [gym.make(env, **options) for _ in range(2)]
    names = list(itertools.islice(envs[0].unwrapped.tasks, tasks))  # type: ignore[attr-defined]
    jobs = [Job(name, seed) for name in names for seed in seeds]
    order = {(job.task, job.seed): number for number, job in enumerate(jobs)}
    played = list(play(WithTokens(agent), envs, jobs, max_turns=12, keep={"states", "choices"}))
    played.sort(key=lambda episode: order[episode.task, episode.seed])
    assert not any(episode.error for episode in played)
    return from_episodes(played, [episode.task for episode in played])


def scripted(env: str, *scripts: Sequence[str], **options: Any) -> Rollouts:
    return rollouts_of(Scripted(scripts), env, range(len(scripts)), **options)


def node(graph: CognitiveGraph, episode: int, depth: int) -> int:
    """Return the node of an episode after `depth` turns."""
    return graph.episodes[episode].path[depth]


def test_moves_of_different_order_to_one_cell_merge_on_the_lake() -> None:
    lake = {"map": ["SFF", "FFF", "FFG"], "success_rate": 1.0}
    rollouts = scripted(
        "TextFrozenLake-v0",
        ["Right", "Down", "Right"],
        ["Down", "Right", "Down"],
        ["Right", "Right", "Down"],
        **lake,
    )
    graph = STATE.assign(rollouts).graphs[0]
    assert node(graph, 0, 1) == node(graph, 2, 1) != node(graph, 1, 1)
    assert node(graph, 0, 2) == node(graph, 1, 2) != node(graph, 2, 2)
    prefix = Cognitive(equivalence="state", merging="prefix").assign(rollouts).graphs[0]
    assert node(prefix, 0, 1) == node(prefix, 2, 1) and node(prefix, 0, 2) != node(prefix, 1, 2)


def test_pushes_of_different_order_to_one_position_do_not_merge_in_sokoban(tmp_path: Path) -> None:
    board = ["#" * 10, *("#" + " " * 8 + "#" for _ in range(8)), "#" * 10]
    board[3], board[4], board[5] = "#   $    #", "#  @     #", "#     .  #"
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "000.txt").write_text("\n".join(["; 0", *board, ""]), encoding="utf-8")
    right_first = ["Up", "Right", "Up", "Right", "Down", "Left", "Down", "Left"]
    down_first = ["Up", "Up", "Right", "Down", "Left", "Down", "Right", "Left"]
    rollouts = scripted(
        "TextBoxoban-v0",
        ["Left", "Right", *right_first],
        ["Right", "Left", *right_first],
        ["Left", "Right", *down_first],
        data=tmp_path,
    )
    at_nine = [next(t for t, e in zip(*rollouts.paths, strict=True) if e == i) + 8 for i in range(3)]
    states = [rollouts.turn_next_state[turn] for turn in at_nine]
    assert states[0] == states[1] == states[2] and len(set(states)) == 1
    graph = STATE.assign(rollouts).graphs[0]
    assert node(graph, 0, 1) != node(graph, 1, 1)
    assert node(graph, 0, 2) == node(graph, 1, 2) == node(graph, 2, 2)
    assert node(graph, 0, 9) == node(graph, 1, 9) != node(graph, 2, 9)
    unordered = Cognitive(equivalence="state", history="set").assign(rollouts).graphs[0]
    assert node(unordered, 0, 9) == node(unordered, 2, 9)


def test_searches_of_different_order_merge_only_as_a_set() -> None:
    one, other, answer = ("<search>Jaimdale</search>", "<search>Wengard</search>", "<answer>no</answer>")
    rollouts = scripted(
        "TextSearchQA-v0", [one, other, answer], [other, one, answer], [one, other, answer], dataset="encyclopedia"
    )
    graph = STATE.assign(rollouts).graphs[0]
    assert node(graph, 0, 2) == node(graph, 2, 2) != node(graph, 1, 2)
    unordered = Cognitive(equivalence="state", history="set").assign(rollouts).graphs[0]
    assert node(unordered, 0, 2) == node(unordered, 1, 2)


def test_equal_episodes_of_the_expert_are_one_path() -> None:
    rollouts = rollouts_of(ExpertAgent(), "TextALFWorld-v0", range(3))
    result = STATE.assign(rollouts)
    graph = result.graphs[0]
    assert {len(node.episodes) for node in graph.nodes} == {3} and len(graph.edges) == len(graph.nodes) - 1
    assert result.metrics["graph/merge_ratio"] == pytest.approx(2 / 3)
    assert not result.advantages.any()


def test_turn_that_branches_share_is_one_node_that_counts_every_episode() -> None:
    """Two further episodes continue the first one after its first and its second turn."""
    scripts = [["Right", "Down", "Right", "Down"], ["Down", "Right", "Right", "Down"], ["", "", "Down", "Right"]]
    agent = WithTokens(Scripted([*scripts, ["", "Right", "Down", "Down"]]))
    env = gym.make("TextFrozenLake-v0", map=["SFF", "FFF", "FFG"], success_rate=1.0)
    task = env.unwrapped.tasks[0]  # type: ignore[attr-defined]
    (first,) = play(agent, [env], [Job(task, 0)], keep={"states", "forks"})
    jobs = [Job(task, 1), Job(task, 2, Origin(first, 2)), Job(task, 3, Origin(first, 1))]
    others = list(play(agent, [env], jobs, keep={"states", "forks"}))
    rollouts = from_episodes([first, *others], ["g"] * 4, branches=[None, None, Branch(0, 2), Branch(0, 1)])
    assert rollouts.turns == 4 + 4 + 2 + 3
    result = STATE.assign(rollouts)
    graph = result.graphs[0]
    assert [len(found.episodes) for found in graph.nodes if found.depth == 1] == [3, 1]
    at_center = graph.nodes[node(graph, 0, 2)]
    assert at_center.episodes == (0, 1, 2) and len(at_center.turns) == 2
    weights = {(edge.parent, edge.child): edge.weight for edge in graph.edges}
    assert weights[0, node(graph, 0, 1)] == 0.75
    assert weights[node(graph, 0, 1), node(graph, 0, 2)] == pytest.approx(2 / 3)
    # All copies of a shared token have the advantage of its node.
    copies = rollouts.copies
    for turn in range(rollouts.turns):
        assert len(set(result.advantages[rollouts.paths.turn[copies.path] == turn])) == 1


@pytest.mark.parametrize(
    ("env", "options"),
    [
        ("TextFrozenLake-v0", {}),
        ("TextSokobanEasy-v0", {}),
        ("TextBlocksworld-v0", {}),
        ("TextALFWorld-v0", {}),
        ("TextSearchQA-v0", {"dataset": "encyclopedia"}),
        ("TextWebShop-v0", {}),
    ],
)
def test_random_episodes_merge_exactly_where_state_effects_and_depth_agree(env: str, options: Any) -> None:
    """Every pair of turns is compared with the definition."""
    rollouts = rollouts_of(RandomAgent(), env, range(6), tasks=2, **options)
    number = {
        turn: (graph.group, position)
        for graph in STATE.assign(rollouts).graphs
        for position, found in enumerate(graph.nodes)
        for turn in found.turns
    }
    inner = sorted(set(rollouts.turn_parent.tolist()) - {-1})
    group = dict(zip(rollouts.paths.turn.tolist(), rollouts.group[rollouts.paths.episode].tolist(), strict=True))

    def situation(turn: int) -> Any:
        path = rollouts.conversation(turn)
        effects = [effect.lower() for before in path for effect in rollouts.turn_effects[before] or ()]
        return group[turn], len(path), effects, rollouts.turn_next_state[turn]

    for one, other in itertools.combinations(inner, 2):
        assert (number[one] == number[other]) == (situation(one) == situation(other))
    assert len(set(number.values())) <= rollouts.turns
