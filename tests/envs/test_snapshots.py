"""Snapshots that are damaged, mixed up or made up: `restore` refuses them in one sentence, or continues."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import arboretum  # noqa: F401
from arboretum.agents.episode import Episode
from arboretum.agents.play import Job, play
from arboretum.agents.reference import RandomAgent
from arboretum.envs import ConfigurationError, Snapshot, TextEnv
from arboretum.envs.alfworld.generator import generate_file
from arboretum.envs.frozenlake.env import FrozenLake
from arboretum.envs.plain import plain_info
from arboretum.envs.registry import ENVS
from arboretum.envs.retrieval import Document
from arboretum.envs.retrieval.bm25 import BM25
from support.environments import embedded_data, make  # noqa: F401 (a fixture for all tests here)

IDS = [spec.id for spec in ENVS]
HOSTILE: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    10**30,
    1.0,
    float("nan"),
    "",
    "x",
    "any/99999999999",
    "nowhere/0",
    "map",
    b"x",
    (),
    ("a", "b"),
    (1, 2, 3),
    frozenset({None}),
    [],
    {},
    [[1], "a"],
    object(),
    np.arange(3),
    np.float64(1.0),
    range(3),
)
MANY_STATES = {"TextFrozenLake-v0", "TextBlocksworld-v0", "TextSearchQA-v0"}
"""Environments in which a state of another task can be one of this task, too: a cell, an arrangement, a text."""
FREE = {"steps", "max_steps", "rng_state"}
"""Fields of which another value of the right kind can make another valid snapshot."""


def snapshots(env: TextEnv[Any], task: int) -> list[Snapshot]:
    """Return snapshots of one episode of a task: its start, its middle and its end."""
    env.reset(seed=0, options={"task": task})
    found = [env.snapshot()]
    for action in env.expert_actions() or ():
        env.step(action)
        found.append(env.snapshot())
    return [found[0], found[len(found) // 2], found[-1]]


def everything(env: TextEnv[Any]) -> tuple[Any, ...]:
    """Return everything that a refused snapshot must leave as it is."""
    return env.snapshot(), env.state_key(), env.render(), env.admissible_actions(), env.expert_actions()


def continue_from(env: TextEnv[Any]) -> list[Any]:
    """Play ten steps and return what they return; also call every other method of the environment."""
    rng = random.Random(3)
    records: list[Any] = [env.state_key(), env.render(), env.admissible_actions(), env.expert_actions()]
    for _ in range(10):
        records += [env.step(env.random_action(rng) if rng.random() < 0.8 else "no such action"), env.state_key()]
    return records


def mutants(snapshot: Snapshot, others: list[Snapshot]) -> Iterator[tuple[str, Snapshot]]:
    """Yield the name of each field, the state's included, and snapshots with another value of that field."""
    for name in Snapshot._fields:
        for value in (*HOSTILE, *(getattr(other, name) for other in others)):
            yield name, snapshot._replace(**{name: value})
    state = snapshot.state
    for name in getattr(state, "_fields", ()):
        part = getattr(state, name)
        for value in HOSTILE:
            yield f"state.{name}", snapshot._replace(state=state._replace(**{name: value}))
            for inner in getattr(part, "_fields", ()):
                changed = state._replace(**{name: part._replace(**{inner: value})})
                yield f"state.{name}.{inner}", snapshot._replace(state=changed)


@pytest.mark.parametrize(
    "id", [pytest.param(id, marks=[pytest.mark.heavy] if id == "TextBoxoban-v0" else []) for id in IDS]
)  # Boxoban's expert takes long.
def test_mutated_snapshot_is_refused_or_continues_as_the_snapshot_that_it_equals(id: str) -> None:
    source, env, twin = (make(id, render_mode="ansi") for _ in range(3))
    other_env = make("TextFrozenLake-v0" if id.startswith("TextBandit") else "TextBandit-v0")
    own = snapshots(source, 1)
    others = [*own, *snapshots(source, 2), *snapshots(other_env, 0)]
    env.reset(seed=8, options={"task": 3})
    current = everything(env)
    refused = 0
    for snapshot in own:
        twin.restore(snapshot)
        expected = continue_from(twin)
        for name, mutant in mutants(snapshot, others):
            try:
                env.restore(mutant)
            except ConfigurationError as error:
                assert 20 < len(str(error)) < 2000 and "\n" not in str(error)
                refused += 1
                continue
            records = continue_from(env)
            if repr(mutant) == repr(snapshot):
                assert records == expected, (name, mutant)
            elif name == "state":
                assert id in MANY_STATES or any(mutant.state == other.state for other in own), mutant
            else:
                assert name in FREE or name.startswith("state."), (name, mutant)
            env.reset(seed=8, options={"task": 3})
        assert everything(env) == current  # also after the last refusal
    assert refused > 500


@pytest.mark.parametrize("id", IDS)
def test_values_that_are_no_snapshots_are_refused(id: str) -> None:
    env = make(id)
    env.reset(seed=0)
    snapshot = env.snapshot()
    for value in (
        *HOSTILE,
        tuple(snapshot),
        list(snapshot),
        snapshot._asdict(),
        json.dumps(snapshot, default=str),
    ):
        with pytest.raises(ConfigurationError, match="a snapshot is expected"):
            env.restore(value)
    assert env.snapshot() == snapshot


@pytest.mark.parametrize("id", IDS)
@pytest.mark.parametrize("seed", [-1, 1.5, True, "x", np.array([1, 2])], ids=repr)
def test_branch_seed_of_the_wrong_kind_is_refused(id: str, seed: Any) -> None:
    env = make(id)
    env.reset(seed=0)
    snapshot = env.snapshot()
    with pytest.raises(ConfigurationError, match="non-negative integer or None"):
        env.restore(snapshot, seed=seed)
    assert env.snapshot() == snapshot


# ---------------------------------------------------------------------- one task name, other data


def alfworld(folder: Path, number: int) -> TextEnv[Any]:
    place = folder / str(number) / "json_2.1.1/train/pick_and_place_simple-Mug-None-Desk-1/trial_1"
    place.mkdir(parents=True)
    (place / "game.tw-pddl").write_text(json.dumps(generate_file(f"train/{number}")))
    return make("TextALFWorld-v0", data=folder / str(number))


def boxoban(folder: Path, number: int) -> TextEnv[Any]:
    rows = ["#####", "#@  #", "#$  #", "#.  #", "#   #", "#####"]
    rows[4] = rows[4][: 1 + number] + "#" + rows[4][2 + number :]
    path = folder / str(number) / "medium/valid/000.txt"
    path.parent.mkdir(parents=True)
    path.write_text("; 0\n" + "\n".join(rows) + "\n\n")
    return make("TextBoxoban-v0", data=folder / str(number))


def blocksworld(folder: Path, number: int) -> TextEnv[Any]:
    goal = ("(on a b) (on b c)", "(on c b) (on b a)")[number]
    path = folder / str(number) / "instance-1.pddl"
    path.parent.mkdir(parents=True)
    path.write_text(
        "(define (problem p) (:domain blocksworld-4ops) (:objects a b c)\n"
        "(:init (handempty) (ontable a) (ontable b) (ontable c) (clear a) (clear b) (clear c))\n"
        f"(:goal (and {goal})))\n"
    )
    return make("TextBlocksworld-v0", data=folder / str(number), split="planbench")


def searchqa(folder: Path, number: int) -> TextEnv[Any]:
    path = folder / str(number) / "test.jsonl"
    path.parent.mkdir(parents=True)
    row = {"id": "q", "question": "What is it?", "golden_answers": [("yes", "no")[number]]}
    path.write_text(json.dumps(row) + "\n")
    corpus = BM25.of([Document("0", '"Paris"\nParis is a city.')])
    return make("TextSearchQA-v0", data=path, retriever=corpus)


def webshop(folder: Path, number: int) -> TextEnv[Any]:
    """A shop whose catalog has the same file names in either folder, but other prices."""
    folder = folder / str(number)
    folder.mkdir()
    products = [
        {
            "asin": f"B00000000{n}",
            "name": f"lamp {n}",
            "category": "home",
            "query": "lamp",
            "product_category": "Home › Lamps",
            "pricing": f"${10 + number}.00",
            "small_description": ["a lamp"],
            "full_description": "a lamp",
            "customization_options": {},
            "images": [""],
        }
        for n in range(9)
    ]
    mined = {
        row["asin"]: {"attributes": ["bright"], "instruction": "find a lamp", "instruction_attributes": ["bright"]}
        for row in products
    }
    (folder / "items_shuffle.json").write_text(json.dumps(products))
    (folder / "items_ins_v2.json").write_text(json.dumps(mined))
    return make("TextWebShop-v0", data=folder)


@pytest.mark.parametrize("build", [alfworld, boxoban, blocksworld, searchqa, webshop])
def test_snapshot_of_other_data_under_the_same_task_name_is_refused(
    build: Callable[[Path, int], TextEnv[Any]], tmp_path: Path
) -> None:
    one, other = build(tmp_path, 0), build(tmp_path, 1)
    assert list(one.tasks) == list(other.tasks)
    for env in (one, other):
        env.reset(seed=0, options={"task": 0})
    key = other.state_key()
    with pytest.raises(ConfigurationError, match="snapshot belongs to"):
        other.restore(one.snapshot())
    assert other.state_key() == key
    (tmp_path / "copy").mkdir()
    copy = build(tmp_path / "copy", 0)
    copy.restore(one.snapshot())
    assert copy.state_key() == one.state_key()


class NumpyLake(FrozenLake):
    """Lake that says with NumPy's values what an action did, as an environment on arrays does."""

    def _apply(self, action: str) -> Any:
        observation, reward, *flags = super()._apply(action)
        return (observation, np.float64(reward), *map(np.bool_, flags))

    def _details(self) -> dict[str, Any]:
        return {
            "depth": np.float32(0.5),
            "visits": np.int64(self._steps),
            "board": np.arange(3),
            "deep": {"x": [np.int8(2)]},
        }


def test_values_of_numpy_are_plain_in_snapshots_and_records() -> None:
    env = NumpyLake(split="test")
    (episode,) = play(RandomAgent(), [env], [Job("test/0", 3)])
    assert episode.terminated is True or episode.truncated is True
    assert episode.details == {"depth": 0.5, "visits": env.steps} and type(episode.details["visits"]) is int
    assert json.loads(json.dumps(plain_info(env._info(True, True)))) == {
        "task": "test/0",
        "success": episode.success,
        "valid": True,
        "changed": True,
        "depth": 0.5,
        "visits": env.steps,
        "board": [0, 1, 2],
        "deep": {"x": [2]},
    }
    assert Episode.from_dict(json.loads(json.dumps(episode.to_dict()))).turns[0].moves == episode.turns[0].moves
    copy = NumpyLake(split="test")
    copy.restore(env.snapshot())
    assert (copy.steps, copy.state_key()) == (env.steps, env.state_key()) and copy.steps > 0


@pytest.mark.parametrize("value", ["False", 2, None])
def test_count_refused_of_another_kind_is_refused(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="count_refused must be True or False"):
        FrozenLake(count_refused=value)
