"""Trees of stored episodes: what is merged, the values, the layout, and the page in a browser."""

from __future__ import annotations

import base64
import gzip
import json
import os
import random
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from arboretum.agents.episode import Episode, Move, Turn
from arboretum.envs.frozenlake.env import FrozenLake
from arboretum.eval.agents import NamedAgent
from arboretum.eval.episode_trees import NamedEpisode, TurnEnd, find_ends, merge_episodes
from arboretum.eval.evaluate import evaluate
from arboretum.eval.planning import Scope
from arboretum.eval.results import report
from arboretum.eval.tree_layout import Link, lay_out
from arboretum.eval.trees import Edge, Node, Outcome, Place, Tree, find_divergences, pack_trees, tree_record
from arboretum.trainers.algorithms.credit.cognitive import divergences, layer_paths, q_values
from support.pages import low_contrasts, set_width

HOSTILE = '<script>document.title="owned"</script><img src=x onerror="document.title=\'owned\'">'


def unpack(data: str) -> Any:
    return json.loads(gzip.decompress(base64.b64decode(data)))


def embedded(page: Path) -> list[dict[str, Any]]:
    """Return the trees that a page embeds."""
    found = re.findall(r'<script type="text/plain" class="tree"[^>]*>([^<]*)</script>', page.read_text())
    return [unpack(data) for data in found]


# ---------------------------------------------------------------------- merging


def play_moves(env: FrozenLake, moves: str, label: str) -> NamedEpisode:
    """Play moves, one per turn, from the start of task 0 with seed 0."""
    names = {"L": "Left", "R": "Right", "U": "Up", "D": "Down"}
    observation, info = env.reset(seed=0, options={"task": env.tasks[0]})
    episode = Episode("TextFrozenLake-v0", env.tasks[0], 0, "agent")
    for letter in moves:
        turn = Turn(observation, names[letter], actions=(names[letter],))
        observation, reward, episode.terminated, _, info = env.step(names[letter])
        turn.moves.append(Move(names[letter], float(reward), info["valid"], info["changed"]))
        episode.turns.append(turn)
    episode.success, episode.final_observation = info["success"], observation
    return NamedEpisode(label, episode)


@pytest.fixture
def lake() -> FrozenLake:
    """Lake on which no step slips."""
    return FrozenLake(map=["SFFF", "FFFF", "FFHF", "FFFG"], success_rate=1.0, max_steps=8)


def test_two_ways_to_a_state_are_merged_after_equally_many_actions(lake: FrozenLake) -> None:
    episodes = [play_moves(lake, moves, f"e{k}") for k, moves in enumerate(["RDRRDD", "DRRD", "RDRD", "RDDDRR"])]
    ends, notes = find_ends(lake, episodes)
    assert notes == ()
    tree = merge_episodes("t", episodes, ends)
    # RD and DR meet after two actions, RDRD and DRRD in the hole, and the two others on the goal.
    by_episodes = {(node.depth, node.episodes): node for node in tree.nodes}
    assert set(by_episodes) == {
        (0, (0, 1, 2, 3)),
        (1, (0, 2, 3)),
        (1, (1,)),
        (2, (0, 1, 2, 3)),
        (3, (0, 1, 2)),
        (3, (3,)),
        (4, (0,)),
        (4, (1, 2)),
        (4, (3,)),
        (5, (0,)),
        (5, (3,)),
        (6, (0, 3)),
    }
    assert [episode.success for episode in tree.episodes] == [True, False, False, True]
    assert by_episodes[4, (1, 2)].value == 0.0 and by_episodes[4, (1, 2)].ends == (1, 2)
    assert by_episodes[3, (0, 1, 2)].value == pytest.approx(1 / 3)
    assert by_episodes[2, (0, 1, 2, 3)].value == tree.nodes[0].value == pytest.approx(0.5)
    assert tree.value_name == "success"
    gaps = {tree.nodes[one.node].depth: one.gap for one in tree.divergences}
    assert gaps == {2: pytest.approx(2 / 3), 3: pytest.approx(1.0)}
    # Both ways to the merged state are shown.
    assert {step.action for step in by_episodes[2, (0, 1, 2, 3)].steps} == {"Down", "Right"}


def test_equal_states_after_different_modifying_actions_are_not_merged(lake: FrozenLake) -> None:
    episodes = [play_moves(lake, moves, moves) for moves in ("RD", "DR", "RD")]
    way_a = [TurnEnd("x", ("take key",)), TurnEnd("z", ())]
    way_b = [TurnEnd("y", ()), TurnEnd("z", ("take key",))]
    way_c = [TurnEnd("x", ("take coin",)), TurnEnd("z", ())]
    tree = merge_episodes("t", episodes, [way_a, way_b, way_c])
    # The key was taken on both of the first two ways, at different times; on the third the coin.
    assert {node.episodes for node in tree.nodes if node.depth == 2} == {(0, 1), (2,)}
    assert {node.episodes for node in tree.nodes if node.depth == 1} == {(0,), (1,), (2,)}


def test_damaged_replay_falls_back_to_observations(lake: FrozenLake) -> None:
    episodes = [play_moves(lake, moves, moves) for moves in ("RD", "DR", "RR")]
    ends, notes = find_ends(lake, episodes)
    merged = merge_episodes("t", episodes, ends)
    other = FrozenLake(map=["SFFF", "FFFF", "FFFF", "FFFG"], success_rate=1.0)  # It has no hole.
    for env in (other, None):
        ends, notes = find_ends(env, episodes)
        assert len(notes) == 1 and "could not be replayed" in notes[0]
        fallback = merge_episodes("t", episodes, ends, notes)
        # A move on the lake changes the state, and by its record alone counts as a modification.
        assert len(fallback.nodes) == len(merged.nodes) + 1
        assert {node.episodes for node in fallback.nodes if node.depth == 2} == {(0,), (1,), (2,)}


# ---------------------------------------------------------------------- values, divergences, layout


@st.composite
def layered_paths(draw: st.DrawFn) -> tuple[list[list[int]], list[float]]:
    """Labels of the steps of some episodes, and their outcomes."""
    count = draw(st.integers(2, 8))
    paths = [draw(st.lists(st.integers(0, 2), min_size=1, max_size=6)) for _ in range(count)]
    return paths, [float(draw(st.integers(0, 4))) for _ in range(count)]


@given(layered_paths())
def test_values_and_divergences_are_those_of_the_backup(case: tuple[list[list[int]], list[float]]) -> None:
    """T-STAR's formulas of the trainers, on the same merged paths, with γ = 1."""
    labels, outcomes = case
    episodes = []
    for outcome, steps in zip(outcomes, labels, strict=True):
        turns = [Turn("o", "a", moves=[Move("a", 0.0, True, True)]) for _ in steps]
        turns[-1].moves[0].reward = outcome
        episodes.append(NamedEpisode("", Episode("E", "t", 0, "a", final_observation="o", turns=turns)))
    tree = merge_episodes("t", episodes, [[TurnEnd(label, ()) for label in steps] for steps in labels])
    paths = layer_paths(labels)
    q = q_values(paths, np.array(outcomes), 1.0)
    ours = {(node.depth, node.episodes): node.value for node in tree.nodes}
    for key, value in q.items():
        through = tuple(i for i, path in enumerate(paths) if key == () or key in path)
        depth = 0 if key == () else key[0] + 1  # type: ignore[index]
        assert ours[depth, through] == pytest.approx(value)
    gap = 0.3 * (max(outcomes) - min(outcomes))
    assert len(tree.divergences) == len(divergences(paths, q, gap))
    assert [one.gap for one in find_divergences(tree.edges, [node.value for node in tree.nodes], gap)] == [
        one.gap for one in tree.divergences
    ]


@given(st.integers(0, 10_000), st.integers(1, 30), st.integers(0, 30))
def test_layout_keeps_nodes_apart_and_edges_forward(seed: int, nodes: int, extra: int) -> None:
    rng = random.Random(seed)
    links = [Link(rng.randrange(node), node) for node in range(1, nodes)]
    links += [Link(*sorted(rng.sample(range(nodes), 2))) for _ in range(extra if nodes > 1 else 0)]
    layout = lay_out(nodes, links)
    assert layout == lay_out(nodes, links)
    assert min(layout.lane) >= 0
    for link, route in zip(links, layout.routes, strict=True):
        assert route[0] == (layout.layer[link.source], layout.lane[link.source])
        assert route[-1] == (layout.layer[link.target], layout.lane[link.target])
        assert all(after[0] == before[0] + 1 for before, after in pairwise(route))
    for layer in set(layout.layer):
        lanes = sorted(lane for at, lane in zip(layout.layer, layout.lane, strict=True) if at == layer)
        assert all(b - a >= 1 - 2e-3 for a, b in pairwise(lanes))


@given(st.integers(0, 10_000), st.integers(1, 40))
def test_trees_are_drawn_without_crossings(seed: int, nodes: int) -> None:
    rng = random.Random(seed)
    layout = lay_out(nodes, links := [Link(rng.randrange(node), node) for node in range(1, nodes)])
    for a in links:
        for b in links:
            if layout.layer[a.source] == layout.layer[b.source]:
                order = (
                    layout.lane[a.source] - layout.lane[b.source],
                    layout.lane[a.target] - layout.lane[b.target],
                )
                assert order[0] * order[1] >= 0


def test_graph_with_a_cycle_is_rejected() -> None:
    with pytest.raises(ValueError, match="cycle"):
        lay_out(2, [Link(0, 1), Link(1, 0)])


def chain(length: int) -> Tree:
    """Tree of an episode of this length, and of another that ends after its first step."""
    nodes = tuple(Node(k, 0.5, (0, 1) if k < 2 else (0,), (), (1,) if k == 1 else ()) for k in range(length))
    edges = tuple(Edge(k, k + 1, (0, 1) if k == 0 else (0,)) for k in range(length - 1))
    return Tree("t", "success", "o", (Outcome("a", 1.0, True), Outcome("b", 0.0, False)), nodes, edges)


def test_runs_without_a_branch_are_folded() -> None:
    record = tree_record(chain(12))
    # Start; step 1, at which an episode ends; steps 2 to 10 as one; the end.
    assert [len(node["steps"]) for node in record["nodes"]] == [1, 1, 9, 1]
    assert [node["depth"] for node in record["nodes"]] == [0, 1, 2, 11]
    assert [edge[:3] for edge in record["edges"]] == [[0, 1, [0, 1]], [1, 2, [0]], [2, 3, [0]]]
    assert len(tree_record(chain(5))["nodes"]) == 5  # Steps 2 and 3 are too few.


def test_trees_beyond_the_size_limit_are_left_out() -> None:
    trees = [(Place("e", "a", str(k)), chain(4)) for k in range(5)]
    packed, left_out = pack_trees(trees)
    size = len(packed[0].data)
    assert (len(packed), left_out) == (5, 0)
    packed, left_out = pack_trees(trees, max_bytes=3 * size)
    assert (len(packed), left_out) == (3, 2)


# ---------------------------------------------------------------------- the page


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Evaluation of the random agent with six episodes per task, whose observations contain hostile markup."""
    folder = tmp_path_factory.mktemp("trees")
    suite = folder / "suite.yaml"
    suite.write_text(
        "name: lakes\nentries:\n"
        "  - {name: Lake, env: TextFrozenLake-v0, split: test, tasks: 3, repeats: 6, max_steps: 12}\n"
        "  - {name: Bandit, env: TextBandit-v0, split: test, tasks: 2, repeats: 4}\n"
    )
    observe = FrozenLake._observe
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FrozenLake, "_observe", lambda self: f"{observe(self)} {HOSTILE} </script>")
        with Path(os.devnull).open("w") as sink:
            evaluate(
                str(suite),
                [NamedAgent("random")],
                out=folder / "run",
                references=False,
                console=Console(file=sink),
            )
    return folder / "run"


def test_page_embeds_trees_and_escapes_observations(run: Path) -> None:
    text = (run / "report.html").read_text(encoding="utf-8")
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:)?//""", text)
    assert "@import" not in text and "url(" not in text and "innerHTML" not in text
    assert HOSTILE not in text and "<script>document" not in text
    trees = embedded(run / "report.html")
    assert len(trees) >= 3
    for tree in trees:
        episodes = len(tree["episodes"])
        assert sorted(e for node in tree["nodes"] for e in node["ends"]) == list(range(episodes))
        assert tree["nodes"][0]["episodes"] == list(range(episodes))
    lakes = [tree for tree in trees if len(tree["episodes"]) == 6]
    assert any(HOSTILE in tree["observation"] for tree in lakes)


def test_report_of_a_stored_run_has_the_same_trees_or_merges_by_observation(run: Path, tmp_path: Path) -> None:
    page = tmp_path / "again.html"
    report([run], page)
    lakes = [tree for tree in embedded(page) if len(tree["episodes"]) == 6]
    bandits = [tree for tree in embedded(page) if len(tree["episodes"]) == 4]
    # Without the patch, the environment answers otherwise than it did in the run.
    assert lakes and all("could not be replayed" in tree["notes"][0] for tree in lakes)
    assert all(not tree["notes"] for tree in bandits)
    stored = [tree for tree in embedded(run / "report.html") if len(tree["episodes"]) == 4]
    assert stored == bandits


def test_run_without_repeats_has_no_trees(tmp_path: Path) -> None:
    with Path(os.devnull).open("w") as sink:
        evaluate(
            "TextFrozenLake-v0",
            [NamedAgent("random")],
            scope=Scope(limit=2),
            out=tmp_path / "run",
            console=Console(file=sink),
        )
    text = (tmp_path / "run" / "report.html").read_text()
    assert 'class="tree"' not in text and "<h2>Trees</h2>" not in text


@pytest.mark.parametrize("success_rate", [1.0, 0.5])
def test_earlier_attempts_of_an_agent_that_retries_are_in_its_tree(tmp_path: Path, success_rate: float) -> None:
    from arboretum.agents.base import Agent, Reply, Seat
    from arboretum.eval.agents import GivenAgent

    class Persistent(Agent):
        """Agent that walks right, then, in a second attempt, down."""

        name = "persistent"

        def act(self, seats: Any) -> list[Reply | None]:
            return [Reply(("Right" if not seat.episode.trials else "Down",)) for seat in seats]

        def again(self, seat: Seat) -> bool:
            seat.episode.details["trial"] = len(seat.episode.trials) + 1
            return not seat.episode.success and not seat.episode.trials

    suite = tmp_path / "suite.yaml"
    suite.write_text(
        "name: s\nentries:\n  - {name: Lake, env: TextFrozenLake-v0, max_steps: 3, "
        f"kwargs: {{map: [SFFF, FFFF, FFFG], success_rate: {success_rate}}}}}\n"
    )
    with Path(os.devnull).open("w") as sink:
        evaluate(
            str(suite),
            [GivenAgent(Persistent())],
            out=tmp_path / "run",
            references=False,
            console=Console(file=sink),
        )
    (tree,) = embedded(tmp_path / "run" / "report.html")
    assert [episode[0] for episode in tree["episodes"]] == ["episode 1, attempt 1", "episode 1"]
    assert tree["notes"] == []  # Each attempt has random events of its own, which a replay repeats.
    if success_rate == 1.0:
        assert len(tree["nodes"]) == 7  # The attempts have no state in common but the start.


def open_page(browser: Any, page: Path, width: int, scheme: str = "light") -> Any:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

    set_width(browser, width, scheme)
    browser.get(page.as_uri())
    WebDriverWait(browser, 60).until(lambda _: browser.find_elements(By.CSS_SELECTOR, "#graph .node"))
    return lambda selector: browser.find_elements(By.CSS_SELECTOR, selector)


@pytest.mark.heavy
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_tree_fits_the_window_and_is_legible(run: Path, browser: Any, width: int, scheme: str) -> None:
    find = open_page(browser, run / "report.html", width, scheme)
    (tree,) = embedded(run / "report.html")[:1]
    assert len(find("#graph .node")) == len(tree["nodes"])
    assert len(find("#graph svg > path")) == len(tree["edges"])
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    card = "const c = document.querySelector('#trees'); return c.scrollWidth <= c.clientWidth"
    assert browser.execute_script(card)
    assert low_contrasts(browser) == {}
    # Time runs down on a phone, and to the right on a wide window.
    start, *_ = boxes = [one.rect for one in find("#graph .shape")]
    assert all(box["y" if width < 600 else "x"] >= start["y" if width < 600 else "x"] for box in boxes)
    clipped = """const box = document.querySelector("#graph svg").getBoundingClientRect();
      return [...document.querySelectorAll("#graph text")].map(t => t.getBoundingClientRect())
        .filter(t => t.left < box.left || t.right > box.right || t.bottom > box.bottom).length"""
    assert browser.execute_script(clipped) == 0
    # The number on a node can be read on the color of its value.
    contrast = """const linear = v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
      const light = c => { const [r, g, b] = c.match(/[0-9.]+/g).map(v => linear(v / 255));
        return .2126 * r + .7152 * g + .0722 * b; };
      return [...document.querySelectorAll("#graph .node")].map(n => {
        const [a, b] = [".shape", ".count"].map(s => light(getComputedStyle(n.querySelector(s)).fill));
        return (Math.max(a, b) + .05) / (Math.min(a, b) + .05); })"""
    assert min(browser.execute_script(contrast)) >= 4.5
    assert not [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]


@pytest.mark.heavy
@pytest.mark.parametrize("width", [390, 1280])
def test_keys_move_along_the_tree_and_hostile_text_is_text(run: Path, browser: Any, width: int) -> None:
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import Select, WebDriverWait

    find = open_page(browser, run / "report.html", width)
    (tree,) = embedded(run / "report.html")[:1]
    ahead, back = (Keys.ARROW_DOWN, Keys.ARROW_UP) if width < 600 else (Keys.ARROW_RIGHT, Keys.ARROW_LEFT)

    def selected() -> int:
        return [one.get_attribute("aria-pressed") for one in find("#graph .node")].index("true")

    def press(key: str) -> None:
        browser.switch_to.active_element.send_keys(key)

    assert [one.get_attribute("tabindex") for one in find("#graph .node")].count("0") == 1
    find("#graph .node[aria-pressed=true]")[0].click()
    browser.execute_script("document.querySelector('#graph .node[aria-pressed=true]').focus()")
    press(Keys.HOME)
    assert selected() == 0 and find("#node h3")[0].text == "Start"
    assert HOSTILE in find("#node")[0].text and browser.title == "lakes · Arboretum report"
    press(ahead)
    child = selected()
    assert [0, child] in [edge[:2] for edge in tree["edges"]]
    node = tree["nodes"][child]
    assert find("#node h3")[0].text == f"Step 1: {node['steps'][0][0][0]}"
    assert f"{len(node['episodes'])} of 6 episodes" in find("#node")[0].text
    assert browser.switch_to.active_element.get_attribute("aria-pressed") == "true"
    press(back)
    assert selected() == 0
    # The list of next steps leads on, too, for touch.
    find("#node .next button")[0].click()
    assert selected() != 0
    Select(find("#tree-episode")[0]).select_by_index(1)
    passed = [k for k, one in enumerate(tree["nodes"]) if 0 in one["episodes"]]
    faded = [k for k, one in enumerate(find("#graph .node")) if "faded" not in one.get_attribute("class")]
    assert faded == passed
    Select(find("#tree-third")[0]).select_by_index(1)
    other = embedded(run / "report.html")[1]
    WebDriverWait(browser, 20).until(lambda _: len(find("#graph .node")) == len(other["nodes"]))


@pytest.mark.heavy
@pytest.mark.parametrize("width", [390, 1280])
def test_branches_of_a_divergence_are_compared(run: Path, browser: Any, width: int) -> None:
    find = open_page(browser, run / "report.html", width)
    tree = next(one for one in embedded(run / "report.html") if one["divergences"])
    assert tree == embedded(run / "report.html")[0]  # It shows most, so it comes first.
    _, best, worst, gap = tree["divergences"][0]
    shown, other = find("#node .branch")
    assert f"{gap:.3g}" in find("#node")[0].text
    for box, branch, name in ((shown, best, "Best"), (other, worst, "Worst")):
        step = tree["nodes"][branch]["steps"][0][0]
        assert f"{name} branch: {step[0]}" in box.text
        assert box.find_elements("css selector", "pre")[-1].get_property("textContent") == step[2]
    beside = abs(shown.rect["y"] - other.rect["y"]) < 2
    assert beside == (width > 600)  # One below the other on a phone.
    assert len(find("#graph path.best")) == len({tuple(one[:2]) for one in tree["divergences"]})
