"""Training runs in the viewer: the list, the page with charts, trees and samples, and a run in progress."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from arboretum.agents.episode import Episode, Move, Turn
from arboretum.trainers.algorithms.recipes import RECIPES
from arboretum.trainers.config.run import TrainingConfig
from arboretum.trainers.config.serialize import to_plain
from arboretum.trainers.config.settings import EnvConfig, ValidationConfig
from arboretum.trainers.data.cognitive_graph import (
    CognitiveGraph,
    GraphDivergence,
    GraphEdge,
    GraphEpisode,
    GraphNode,
)
from arboretum.trainers.reporting.trees import StoredTree, TurnText
from support.pages import low_contrasts, set_width

pytest.importorskip("flask")

from arboretum.envs.web_server import WebServer
from arboretum.eval.viewer.app import Site, create_app
from arboretum.eval.viewer.library import Library
from arboretum.trainers.reporting.viewer import TrainingPages

HOSTILE = '<script>document.title="owned"</script><img src=x onerror="document.title=\'owned\'">'
UPDATES = 12


def record(update: int) -> dict[str, float]:
    """Return the metrics of an update, with a validation after every fourth one."""
    metrics: dict[str, float] = {"update": update}
    if update:
        metrics |= {"success": 0.2 + update / 50, "return": 0.2, "entropy": 1.5 - update / 20}
    if update % 4 == 0:
        rate = 0.25 + update / 40 if update else 0.9  # of the untrained model, which is no result of the run
        metrics |= {"validation/success": rate, "validation/low": rate - 0.1, "validation/high": rate + 0.1}
        metrics["validation/return"] = rate
    return metrics


def write_metrics(folder: Path, done: int) -> None:
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record(n)) + "\n" for n in range(done + 1)))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Unfinished training run with hostile texts in its samples and trees."""
    folder = tmp_path / "runs" / "study" / "grpo-0"
    folder.mkdir(parents=True)
    recipe = RECIPES["grpo"].with_settings({"optimization.updates": UPDATES})
    config = TrainingConfig(
        recipe, EnvConfig("TextFrozenLake-v0"), "sapling", folder, validation=ValidationConfig(every=4, tasks=8)
    )
    (folder / "run.json").write_text(json.dumps(to_plain(config)))
    write_metrics(folder, 7)
    moves = [Move("Right", 1.0, True, True)]
    turns = [Turn(f"P _ G {HOSTILE}", f"<answer>Right</answer> {HOSTILE}", HOSTILE, moves)]
    episode = Episode("TextFrozenLake-v0", "valid/1", 1, "policy", True, True, turns=turns, final_observation="√")
    (folder / "samples.jsonl").write_text(json.dumps({"update": 4, **episode.to_dict()}) + "\n")
    graph = CognitiveGraph(
        group=0,
        task="P _ G",
        mean=0.5,
        std=0.577,
        nodes=(
            GraphNode(0, (), (0, 1), 0.5, 0.0, (), f"P _ G {HOSTILE}"),
            GraphNode(1, (0,), (0,), 1.0, 0.87, ("Right",), None),
            GraphNode(1, (1,), (1,), 0.0, -0.87, ("Left",), "P _ G"),
        ),
        edges=(GraphEdge(0, 1, 1, 0.5), GraphEdge(0, 2, 1, 0.5)),
        divergences=(GraphDivergence(0, 1, 2, 1.0),),
        episodes=(GraphEpisode(0, 1.0, True, (0, 1)), GraphEpisode(1, 0.0, False, (0, 2))),
    )
    texts = (TurnText(1, (0,), "Right", HOSTILE, ""), TurnText(2, (1,), "Left", HOSTILE, HOSTILE))
    (folder / "trees.jsonl").write_text(json.dumps(StoredTree(4, graph, texts).to_dict()) + "\n")
    return folder


@pytest.fixture
def app(run: Path) -> Any:
    return create_app(Site(Library(run.parent.parent), {}, [TrainingPages()]))


def test_list_and_page_show_progress_and_validations(app: Any, run: Path) -> None:
    client = app.test_client()
    home = client.get("/").get_data(as_text=True)
    assert "/training/study/grpo-0" in home and f"7 of {UPDATES} updates" in home and "35.0" in home
    assert "90.0" not in home
    response = client.get("/training/study/grpo-0")
    page = response.get_data(as_text=True)
    assert f"7 of {UPDATES} updates" in page and "data-live" in page and page.count("<svg") >= 3
    assert HOSTILE not in page and "<script>" not in page
    policy = response.headers["Content-Security-Policy"]
    assert "script-src 'self'" in policy and "style-src 'self'" in policy
    part = client.get("/training/study/grpo-0?live=1").get_data(as_text=True)
    assert "class=\"tree\"" in page and "class=\"tree\"" not in part and "class=\"charts\"" in part  # fmt: skip
    write_metrics(run, UPDATES)
    page = client.get("/training/study/grpo-0").get_data(as_text=True)
    assert f"{UPDATES} of {UPDATES} updates" in page and "data-live" not in page


def test_damaged_training_runs_are_listed_with_their_fault(app: Any, run: Path) -> None:
    for name, content in (("metrics", "[1]\n"), ("version", None)):
        copy = run.with_name(name)
        shutil.copytree(run, copy)
        if content is None:
            settings = json.loads((copy / "run.json").read_text())
            del settings["recipe"]["optimization"]
            (copy / "run.json").write_text(json.dumps(settings))
        else:
            (copy / "metrics.jsonl").write_text(content)
    (run.with_name("cut")).mkdir()
    (run.with_name("cut") / "run.json").write_text((run / "run.json").read_text()[:300])
    client = app.test_client()
    home = client.get("/").get_data(as_text=True)
    assert home.count("cannot be read") == 2
    assert "<strong>study/cut</strong>" in home and "is not JSON" in home
    assert client.get("/run/study/cut").status_code == 500
    for name in ("metrics", "version"):
        response = client.get(f"/training/study/{name}")
        assert response.status_code == 500 and "Cannot be read" in response.get_data(as_text=True)
    assert client.get("/training/study/none").status_code == 404
    assert client.get("/run/study/grpo-0").status_code == 404


@pytest.fixture
def address(app: Any) -> Iterator[str]:
    pytest.importorskip("waitress")
    server = WebServer(app, "The viewer", "127.0.0.1", 0, threads=4)
    server.start()
    yield server.url
    stopping = threading.Thread(target=server.stop)
    stopping.start()
    stopping.join(5)  # The browser holds its connections for longer.


@pytest.mark.heavy
def test_charts_follow_the_run_and_trees_and_samples_can_be_read(browser: Any, address: str, run: Path) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

    browser.get(f"{address}/training/study/grpo-0")

    def text(selector: str) -> str:
        # In one call: the page replaces its elements while it follows the run.
        return str(browser.execute_script("return document.querySelector(arguments[0]).innerText", selector))

    wait = WebDriverWait(browser, 60, 0.05)
    wait.until(lambda _: browser.find_elements(By.CSS_SELECTOR, "#graph .node"))
    wait.until(lambda _: "valid/1" in text("#title"))
    assert browser.title != "owned" and "onerror" in text("#episode")
    for width in (1280, 390):
        for scheme in ("light", "dark"):
            set_width(browser, width, scheme)
            window, content = browser.execute_script("return [innerWidth, document.documentElement.scrollWidth]")
            assert content <= window
            assert low_contrasts(browser) == {}
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []
    write_metrics(run, UPDATES)
    wait.until(lambda _: text("#progress").startswith(f"{UPDATES} of {UPDATES}"))
    assert browser.find_elements(By.CSS_SELECTOR, "#graph .node"), "what is read stays in place"
