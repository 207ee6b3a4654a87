"""Trees of a training run: graphs of sampled trees, their file, and the page with rewritten thoughts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arboretum.agents.episode import Episode, Move, Turn
from arboretum.trainers.algorithms.credit.base import Advantages
from arboretum.trainers.algorithms.credit.cognitive import q_values, tree_paths
from arboretum.trainers.algorithms.recipes import RECIPES
from arboretum.trainers.checkpoints.run_folder import claim_run_folder
from arboretum.trainers.config.run import TrainingConfig
from arboretum.trainers.config.serialize import to_plain
from arboretum.trainers.config.settings import EnvConfig, ValidationConfig
from arboretum.trainers.data.cognitive_graph import (
    CognitiveGraph,
    DivergencePair,
    Graft,
    GraphDivergence,
    GraphEdge,
    GraphEpisode,
    GraphNode,
)
from arboretum.trainers.data.episodes import Branch, from_episodes
from arboretum.trainers.data.rollouts import Rollouts
from arboretum.trainers.reporting.forest_graphs import forest_graphs
from arboretum.trainers.reporting.report import write_report
from arboretum.trainers.reporting.trees import (
    GROUPS,
    StoredTree,
    TreeFile,
    TurnText,
    attach_grafts,
    choose_graphs,
    read_trees,
    to_tree,
)
from arboretum.trainers.sampling.grafting import GraftText
from support.pages import low_contrasts, set_width

Make = Callable[..., TrainingConfig]
HOSTILE = '<script>document.title="owned"</script><img src=x onerror="document.title=\'owned\'">'


class Letters:
    """Tokenizer whose tokens are the code points of characters."""

    def decode(self, ids: list[int], *, skip_special_tokens: bool) -> str:
        return "".join(map(chr, ids))


def turn(observation: str, action: str, reward: float = 0.0) -> Turn:
    ids = [ord(letter) for letter in f"{observation}>{action}!"]
    prompt = len(observation) + 1
    return Turn(
        observation,
        action,
        moves=[Move(action, reward, True, True)],
        token_ids=ids,
        logprobs=[0.0] * prompt + [-1.0] * (len(ids) - prompt),
        loss_mask=[0] * prompt + [1] * (len(ids) - prompt),
        actions=(action,),
    )


@pytest.fixture
def forest() -> Rollouts:
    """A tree of three episodes that share their first turn, two of them the second; and a chain of its group.

    a ─ b ─ c  return 1        x ─ y  return 0
        └── d  return 0
    └── e      return 1
    """
    a, b = turn("start", "a"), turn("A", "b")
    ways = [
        [a, b, turn("B", "c", 1.0)],
        [a, b, turn("B", "d")],
        [a, turn("A", "e", 1.0)],
        [turn("start", "x"), turn("X", "y")],
    ]
    episodes = [
        Episode("E", "t", k, "m", success=turns[-1].moves[0].reward > 0, turns=turns)
        for k, turns in enumerate(ways)
    ]
    alone = [replace(episodes[3], seed=9, turns=[turn("start", "z")])]
    branches = [None, Branch(0, 2), Branch(0, 1), None, None]
    return from_episodes([*episodes, *alone], ["g", "g", "g", "g", "h"], branches=branches)


def test_graph_of_sampled_trees_has_a_node_for_every_turn(forest: Rollouts) -> None:
    advantages = np.array([1.0, -1.0, 2.0, 0.0, 5.0])[forest.copies.episode]
    (graph,) = forest_graphs(forest, advantages)  # The second group has a single chain.
    assert graph.group == 0 and graph.mean == 0.5 and graph.std == pytest.approx(3**-0.5)
    found = {
        node.actions: (node.depth, node.episodes, node.q, node.advantage, node.observation) for node in graph.nodes
    }
    assert found == {
        (): (0, (0, 1, 2, 3), 0.5, 0.0, "start"),
        ("a",): (1, (0, 1, 2), pytest.approx(2 / 3), pytest.approx(2 / 3), "A"),
        ("b",): (2, (0, 1), 0.5, 0.0, "B"),
        ("c",): (3, (0,), 1.0, 1.0, None),
        ("d",): (3, (1,), 0.0, -1.0, None),
        ("e",): (2, (2,), 1.0, 2.0, None),
        ("x",): (1, (3,), 0.0, 0.0, "X"),
        ("y",): (2, (3,), 0.0, 0.0, None),
    }
    names = [node.actions[0] if node.actions else "" for node in graph.nodes]
    gaps = {
        names[one.node]: (names[one.best], names[one.worst], pytest.approx(one.gap)) for one in graph.divergences
    }
    assert gaps == {"": ("a", "x", 2 / 3), "a": ("e", "b", 0.5), "b": ("c", "d", 1.0)}
    weights = {(names[one.parent], names[one.child]): one.weight for one in graph.edges}
    assert weights["", "a"] == 0.75 and weights["a", "b"] == pytest.approx(2 / 3) and weights["b", "c"] == 0.5


@given(st.integers(0, 10_000))
def test_values_of_sampled_trees_are_those_of_the_backup(seed: int) -> None:
    rng = np.random.default_rng(seed)
    episodes: list[Episode] = []
    branches: list[Branch | None] = []
    for index in range(6):
        turns: list[Turn] = []
        branch = None
        if index:
            origin = int(rng.integers(index))
            branch = Branch(origin, int(rng.integers(0, len(episodes[origin].turns))))
            turns = episodes[origin].turns[: branch.turns]
        turns = [*turns, *(turn("o", "a", float(rng.integers(3))) for _ in range(int(rng.integers(1, 4))))]
        episodes.append(Episode("E", "t", index, "m", turns=turns))
        branches.append(branch)
    rollouts = from_episodes(episodes, ["g"] * 6, branches=branches)
    graphs = forest_graphs(rollouts, np.zeros(len(rollouts.copies.action)))
    paths = [rollouts.paths.turn[rollouts.paths.episode == k].tolist() for k in range(6)]
    q = q_values(tree_paths(paths), rollouts.returns(penalties=True), 1.0)
    by_turn = {key[-1] if key else None: value for key, value in q.items()}  # type: ignore[index]
    for graph in graphs:
        for node in graph.nodes:
            assert node.q == pytest.approx(by_turn[node.turns[0] if node.turns else None])


# ---------------------------------------------------------------------- file


def configure(folder: Path, **validation: Any) -> TrainingConfig:
    recipe = RECIPES["grpo"].with_settings({"optimization.updates": 10})
    settings = ValidationConfig(**{"every": 4, **validation})
    return TrainingConfig(recipe, EnvConfig("TextFrozenLake-v0"), "M", folder, validation=settings)


def write_trees(folder: Path, forest: Rollouts, updates: range = range(1, 11)) -> TreeFile:
    folder.mkdir(exist_ok=True)
    file = TreeFile(configure(folder), Letters())  # type: ignore[arg-type]
    for update in updates:
        file.add(update, forest, Advantages(np.zeros(len(forest.copies.action))), is_last=update == 10)
    return file


def test_trees_of_first_last_and_validated_updates_are_kept(tmp_path: Path, forest: Rollouts) -> None:
    file = write_trees(tmp_path, forest)
    assert [tree.update for tree in read_trees(tmp_path)] == [1, 4, 8, 10]
    file.truncate(4)
    assert [tree.update for tree in read_trees(tmp_path)] == [1, 4]
    file.truncate(0)
    assert read_trees(tmp_path) == []


def test_stored_turns_have_their_texts_and_episodes(tmp_path: Path, forest: Rollouts) -> None:
    write_trees(tmp_path, forest, range(1, 2))
    (stored,) = read_trees(tmp_path)
    texts = {one.action: one for one in stored.turns}
    assert texts["a"] == TurnText(texts["a"].node, (0, 1, 2), "a", "a!", "A")
    assert texts["b"].episodes == (0, 1) and texts["b"].observation == "B"
    assert texts["d"].reply == "d!" and texts["d"].observation == ""
    tree = to_tree(stored)
    (step,) = tree.nodes[texts["b"].node].steps
    assert (step.action, step.thought, step.observation, step.episodes) == ("b", "b!", "B", (0, 1))
    assert sorted(episode for node in tree.nodes for episode in node.ends) == [0, 1, 2, 3]
    long = replace(forest, turn_observation=tuple("x" * 9000 for _ in forest.turn_observation))
    write_trees(tmp_path, long, range(4, 5))
    cut = read_trees(tmp_path)[-1].turns[0].observation
    assert cut.startswith("x" * 4000 + " … (5000 more")


def test_damaged_and_foreign_lines_are_left_out(tmp_path: Path, forest: Rollouts) -> None:
    file = write_trees(tmp_path, forest, range(1, 5))
    path = tmp_path / "trees.jsonl"
    foreign = [json.dumps(one) for one in ({"update": 2, "graph": {}}, {"update": 2, "turns": [], "graph": 3}, 7)]
    path.write_text("\n".join([*foreign, *path.read_text().splitlines(), '{"update": 8, "gra']))
    assert [tree.update for tree in read_trees(tmp_path)] == [1, 4]
    file.truncate(1)
    assert [tree.update for tree in read_trees(tmp_path)] == [1]


def test_groups_with_most_to_see_are_chosen(forest: Rollouts) -> None:
    (graph,) = forest_graphs(forest, np.zeros(len(forest.copies.action)))
    plain = replace(graph, divergences=())
    flat = replace(plain, std=0.0)
    grafted = replace(graph, grafts=(Graft(0, "new", "old", True),))
    chosen = choose_graphs([flat, plain, graph, grafted, flat, flat])
    assert chosen == [grafted, graph, plain, flat] and len(chosen) == GROUPS


def test_corrections_belong_to_the_divergence_of_their_turns(forest: Rollouts) -> None:
    (graph,) = forest_graphs(forest, np.zeros(len(forest.copies.action)))
    turn = {node.actions[0]: node.turns[0] for node in graph.nodes if node.turns}
    at = {node.actions: place for place, node in enumerate(graph.nodes)}
    texts = [
        GraftText(DivergencePair(0, turn["c"], turn["d"], 1.0), "new", "old"),
        GraftText(DivergencePair(0, turn["e"], turn["b"], 0.5), "", "old", "empty"),
        GraftText(DivergencePair(1, turn["c"], turn["d"], 1.0), "of another group", "old"),
        GraftText(DivergencePair(0, turn["y"], turn["d"], 1.0), "of no divergence", "old"),
    ]
    grafts = attach_grafts(graph, texts).grafts
    assert grafts == (Graft(at["b",], "new", "old", True), Graft(at["a",], "", "old", False, "empty"))


# ---------------------------------------------------------------------- page


@pytest.fixture
def page(tmp_path: Path, forest: Rollouts) -> Path:
    """Report of a run with a sampled tree, and with merged episodes whose thoughts were rewritten."""
    folder = tmp_path / "run"
    write_trees(folder, forest, range(1, 2))
    thought = f"I go left. {HOSTILE}"
    graph = CognitiveGraph(
        group=2,
        task="P _ G",
        mean=0.5,
        std=0.577,
        nodes=(
            GraphNode(0, (), (0, 1, 2, 3), 0.5, 0.0, (), f"P _ G {HOSTILE}"),
            GraphNode(1, (0, 3), (0, 1), 1.0, 0.87, ("Right", "Right; Right"), None),
            GraphNode(1, (5, 7), (2, 3), 0.0, -0.87, ("Left",), "P _ G"),
        ),
        edges=(GraphEdge(0, 1, 2, 0.5), GraphEdge(0, 2, 2, 0.5)),
        divergences=(GraphDivergence(0, 1, 2, 1.0),),
        episodes=tuple(GraphEpisode(k, float(k < 2), k < 2, (0, 1 if k < 2 else 2)) for k in range(4)),
        grafts=(Graft(0, "The goal is to the right.", thought, True), Graft(0, thought, thought, False, "equal")),
    )
    texts = (
        TurnText(1, (0,), "Right", "The goal is right. <answer>Right</answer>", ""),
        TurnText(1, (1,), "Right\nRight", "<answer>Right || Right</answer>", ""),
        TurnText(2, (2, 3), "Left", thought, HOSTILE),
    )
    with (folder / "trees.jsonl").open("a") as file:
        file.write(json.dumps(StoredTree(4, graph, texts).to_dict()) + "\n")
    (folder / "run.json").write_text(json.dumps(to_plain(configure(folder))))
    return write_report(folder)


def test_page_needs_no_network_and_escapes_texts(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:)?//""", text)
    assert "@import" not in text and "url(" not in text
    assert HOSTILE not in text and "<script>document" not in text
    assert re.findall(r'class="tree" data-first="([^"]*)" data-second="[^"]*" data-third="([^"]*)"', text) == [
        ("update 1", "group 1: 2 of 4 solved"),
        ("update 4", "group 3: 2 of 4 solved"),
    ]


@pytest.mark.heavy
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_rewritten_thoughts_stand_beside_the_branches(page: Path, browser: Any, width: int, scheme: str) -> None:
    from selenium.webdriver.support.ui import Select, WebDriverWait

    set_width(browser, width, scheme)
    browser.get(page.as_uri())
    wait = WebDriverWait(browser, 60)
    wait.until(lambda _: len(browser.find_elements("css selector", "#graph .node")) == 8)
    Select(browser.find_element("id", "tree-first")).select_by_visible_text("update 4")
    wait.until(lambda _: len(browser.find_elements("css selector", "#graph .node")) == 3)

    def texts(selector: str) -> list[str]:
        return [one.get_property("textContent") for one in browser.find_elements("css selector", selector)]

    assert not browser.find_element("id", "tree-second").is_displayed()
    assert browser.find_elements("css selector", "#graph .graft")
    best, worst = browser.find_elements("css selector", "#node .branches:not(.grafted) .branch")
    assert "Best branch: Right" in best.text and "The goal is right." in best.text and "Q 1" in best.text
    assert "Worst branch: Left" in worst.text and HOSTILE in worst.text and "2 episodes" in worst.text
    assert texts("#node .rejected") == [f"I go left. {HOSTILE}"] * 2
    assert texts("#node .chosen") == ["The goal is to the right.", f"I go left. {HOSTILE}"]
    assert texts("#node .branches.grafted") and "not trained on: equal" in browser.find_element("id", "node").text
    assert (abs(best.rect["y"] - worst.rect["y"]) < 2) == (width > 600)
    assert browser.title == "grpo on TextFrozenLake-v0 · Arboretum report"
    best.find_element("css selector", "button").click()
    assert "advantage +0.87" in browser.find_element("id", "node").text
    assert "1 episode: episode 2" in browser.find_element("id", "node").text
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert low_contrasts(browser) == {}
    assert not [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]


@pytest.mark.heavy
def test_run_that_its_tokens_end_has_the_trees_of_its_last_update(
    run_of: Make, tmp_path: Path, one_thread: None
) -> None:
    from arboretum.trainers.trainer import Trainer

    settings = {"optimization.updates": 50, "optimization.max_tokens": 300}
    config = run_of("tree_grpo", settings, validation=ValidationConfig(every=10, tasks=2))
    last = [record.metrics["update"] for record in Trainer(config).run()][-1]
    assert 1 < last < 10
    assert {tree.update for tree in read_trees(config.out)} == {1, last}


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("tree_grpo", {}),
        ("grpo", {"credit.name": "cognitive", "credit.equivalence": "state", "objective.terms": ["surgical"]}),
    ],
)
def test_resumed_run_has_the_trees_of_an_uninterrupted_one(
    name: str, changes: dict[str, object], run_of: Make, tmp_path: Path, one_thread: None
) -> None:
    from arboretum.trainers.trainer import Trainer
    from support.training import finish

    settings = {"optimization.updates": 4, **changes}
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    claim_run_folder(uninterrupted := run_of(name, settings, out=whole), resume=False)
    finish(Trainer(uninterrupted))
    config = run_of(name, settings, out=broken, checkpoint_every=2)
    for record in Trainer(config).run():
        if record.metrics["update"] == 3:  # One update after the checkpoint: it must be made again.
            break
    # A tree of an update that the checkpoint does not have, and a line that a kill cut off.
    with (broken / "trees.jsonl").open("a") as file:
        file.write(json.dumps({"update": 3, "graph": {}, "turns": []}) + '\n{"upd')
    finish(Trainer(config, resume=True))
    assert (broken / "trees.jsonl").read_text() == (whole / "trees.jsonl").read_text()
    trees = read_trees(whole)
    assert {tree.update for tree in trees} == {1, 2, 4}
    if changes:
        assert any(tree.graph.grafts for tree in trees)
    else:
        assert any(len(turn.episodes) > 1 for tree in trees for turn in tree.turns)
    page = write_report(whole).read_text()
    assert page.count('class="tree"') == len(trees)
