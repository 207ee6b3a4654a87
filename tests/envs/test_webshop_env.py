"""Tests of WebShop on its generated catalog: Gymnasium's contract, snapshots, the expert, refusals, sharing."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st

import arboretum  # noqa: F401  (registers the environments)
from arboretum.envs.errors import ConfigurationError
from arboretum.envs.webshop import WebShop
from arboretum.envs.webshop.goals import Goal
from arboretum.envs.webshop.pages import to_json


@pytest.fixture(scope="module", autouse=True)
def no_data() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("ARBORETUM_DATA", raising=False)
        yield


@pytest.fixture(scope="module")
def env() -> WebShop:
    return WebShop(tagger="letters", admissible=True)


@pytest.mark.parametrize("mode", ["text", "text_rich", "html", "url"])
def test_environment_passes_gymnasium_checker(mode: str) -> None:
    check_env(gym.make("TextWebShop-v0", observation_mode=mode).unwrapped)


def test_expert_meets_every_goal_of_the_generated_shop(env: WebShop) -> None:
    assert len(env.tasks) > 2000
    for task in range(0, len(env.tasks), 25):
        env.reset(options={"task": task})
        plan = env.expert_actions()
        assert plan is not None and len(plan) <= 15
        for action in plan:
            assert action.startswith("search[") or action in (env.admissible_actions() or ())
            _, reward, terminated, _, info = env.step(action)
            assert info["valid"]
        assert (reward, terminated, info["success"], info["score"]) == (1.0, True, True, 1.0)
        assert info["tagger"] == "letters"
        assert info["reward_parts"]["r_price"] is True
        assert env.expert_actions() is None
        assert env.admissible_actions() == ()


def test_expert_succeeds_from_any_page(env: WebShop) -> None:
    """After random clicks other than the purchase, the expert's plan still earns the full reward."""
    free = WebShop(tagger="letters", max_steps=None)
    for seed in range(30):
        free.reset(seed=seed)
        for step in range(seed % 9):
            actions = [a for a in free.admissible_actions() or () if a != "click[buy now]"]
            free.step(actions[(seed * 7 + step * 5) % len(actions)])
        plan = free.expert_actions()
        assert plan
        info: dict[str, Any] = {}
        for action in plan:
            info = free.step(action)[4]
        assert info["success"], (seed, plan)


def test_purchase_of_a_wrong_product_is_no_success(env: WebShop) -> None:
    env.reset(options={"task": "0"})
    other = next(p for p in map(env.shop.catalog.product, range(50)) if p.query != env.goal.query)
    _, _, _, _, info = env.step(f"search[{other.title}]")
    assert other.asin.lower() in info["available"]["clickables"]
    env.step(f"click[{other.asin}]")
    _, reward, terminated, _, info = env.step("click[Buy Now]")
    assert terminated and 0 <= reward < 1 and not info["success"]
    assert info["reward_parts"]["query_match"] is False


def test_splits_are_the_published_ranges_of_goals(env: WebShop) -> None:
    test, dev, train = (WebShop(split=split).tasks for split in ("test", "dev", "train"))
    assert (test[0], test[-1], dev[0], dev[-1], train[0]) == ("0", "499", "500", "1499", "1500")
    assert len(test) + len(dev) + len(train) == len(env.tasks)
    assert "500" not in test and "0500" not in dev and "x" not in dev and "500" in dev
    human = WebShop(human_goals=True, num_products=60)
    assert human.goal if human.reset(seed=1) else None
    with pytest.raises(ConfigurationError, match="begins at goal 1500"):
        WebShop(split="train", human_goals=True, num_products=60)
    with pytest.raises(ConfigurationError, match="did you mean"):
        WebShop(split="tset")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"observation_mode": "txt"}, "did you mean text"),
        ({"search": "bm52"}, "did you mean bm25"),
        ({"tagger": "space"}, "did you mean spacy"),
        ({"num_products": 0}, "num_products must be a positive integer"),
        ({"num_prev_obs": -1}, "num_prev_obs must be 0"),
        ({"load_seed": None}, "load_seed must be an integer"),
        ({"data": "/nowhere/at/all"}, "not a folder"),
        ({"filter_goals": lambda index, goal: False}, "there is no goal"),
    ],
)
def test_invalid_configuration_is_rejected(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        WebShop(**options)


@pytest.mark.parametrize(
    "action",
    ["", "search", "search[]", "Search[lamp]", "click[]", "click[nothing]", "click[search]", "click[buy now]",
     "[x]", "search[a[b]c]", "click[Search\n]", "think[hm]", "search[<a> x]", "search[<c>]", "\ud800",
     "click" * 2000, f"search[{'lamp ' * 1000}]"],
)  # fmt: skip
def test_invalid_action_on_the_start_page_changes_nothing(env: WebShop, action: str) -> None:
    first, _ = env.reset(seed=3)
    key = env.state_key()
    observation, reward, terminated, _, info = env.step(action)
    assert (reward, terminated, info["valid"], info["changed"]) == (0.0, False, False, False)
    assert env.state_key() == key
    assert observation == first or "cannot be answered" in observation


@given(st.text(max_size=40))
@settings(max_examples=150, deadline=None)
def test_arbitrary_text_gives_a_valid_observation(text: str) -> None:
    env = WebShop(observation_mode="html", max_steps=None)
    env.reset(seed=5)
    for action in (
        text,
        f"search[{text}]",
        f"click[{text}]",
        "click[next >]",
        "click[< prev]",
        f"search[<q> {text}]",
    ):
        observation = env.step(action)[0]
        assert observation in env.observation_space
        assert "<script>" not in observation


def test_markup_in_searches_is_escaped() -> None:
    env = WebShop(observation_mode="html")
    env.reset(seed=5)
    page = env.step('search[<script>alert(1)</script> "lamp"]')[0]
    assert "<script>alert" not in page
    assert to_json({"a": "</script>'&"}) == '{"a": "\\u003c/script\\u003e\\u0027\\u0026"}'


def test_result_pages_past_the_end_are_empty(env: WebShop) -> None:
    env.reset(seed=0)
    env.step("search[lamp]")
    for page in range(2, 8):
        observation, _, _, _, info = env.step("click[next >]")
        assert info["valid"] and f"Page {page} (Total results: " in observation
    assert info["available"]["clickables"] == ["back to search", "< prev", "next >"]
    assert "Page 1 (Total results: 0)" in env.step("search[zzzz]")[0]


def test_random_search_repeats_after_restoring_a_snapshot(env: WebShop) -> None:
    """A search for `<r>` draws products: the same ones after a restore, others with another seed."""
    env.reset(seed=11, options={"task": "4"})
    start = env.snapshot()
    first = [env.step(a)[0] for a in ("search[<r>]", "click[next >]")]
    env.restore(pickle.loads(pickle.dumps(start)))
    assert [env.step(a)[0] for a in ("search[<r>]", "click[next >]")] == first
    env.reset(seed=12, options={"task": "4"})
    assert env.step("search[<r>]")[0] != first[0]


def test_optimum_of_random_results_counts_on_no_page_that_is_drawn_anew() -> None:
    short = WebShop(tagger="letters", max_steps=5)
    short.reset(seed=0)
    for action in ("search[<r>]", "click[next >]"):
        short.step(action)
    optimum, plan = short.optimum(), short.expert_actions()
    assert plan and plan[0].startswith("click[g")
    assert [short.optimum() for _ in range(5)] == [optimum] * 5
    for action in plan:
        _, reward, *_ = short.step(action)
    assert optimum == (reward, len(plan))


def test_error_of_a_custom_tagger_is_not_taken_for_a_search_without_an_answer(env: WebShop) -> None:
    def broken(title: str) -> list[str]:
        raise ValueError("out of nouns")

    env.reset(seed=0)
    tagged = WebShop(tagger=broken)
    tagged.reset(seed=0)
    *plan, purchase = env.expert_actions() or []
    for action in plan:
        tagged.step(action)
    with pytest.raises(ValueError, match="out of nouns"):
        tagged.step(purchase)


def test_snapshot_restored_in_another_process_continues_identically(env: WebShop) -> None:
    env.reset(options={"task": "7"})
    plan = env.expert_actions() or []
    env.step(plan[0])
    env.step(plan[1])
    code = """
import pickle, sys
from arboretum.envs.webshop import WebShop
env = WebShop(tagger="letters", admissible=True)
env.restore(pickle.loads(sys.stdin.buffer.read()))
observations = [env.step(action)[:2] for action in env.expert_actions()]
sys.stdout.buffer.write(pickle.dumps(observations))
"""
    child = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(env.snapshot()), capture_output=True)
    assert child.returncode == 0, child.stderr.decode()
    assert pickle.loads(child.stdout) == [env.step(action)[:2] for action in env.expert_actions() or []]
    assert len(pickle.dumps(env.snapshot())) < 4000


def test_state_key_ignores_action_counts_and_option_order(env: WebShop) -> None:
    env.reset(options={"task": "7"})
    plan = env.expert_actions() or []
    search, product, *options, _ = plan
    env.step(search)
    env.step(product)
    before = env.state_key()
    env.step("click[features]")
    assert env.state_key() != before
    env.step("click[< prev]")
    assert env.state_key() == before, "action counts are not part of the key"
    if len(options) > 1:
        env.step(options[0])
        env.step(options[1])
        chosen = env.state_key()
        env.reset(options={"task": "7"})
        for action in (search, product, options[1], options[0]):
            env.step(action)
        assert env.state_key() == chosen, "the order of choices is not part of the key"


def test_state_key_tells_pages_apart_that_mark_visited_products() -> None:
    env = WebShop(observation_mode="html", split="test")
    env.reset(options={"task": 0})
    search, product = (env.expert_actions() or [])[:2]
    before = env.step(search)[0], env.state_key()
    env.step(product)
    after = env.step("click[< prev]")[0], env.state_key()
    assert before[0] != after[0] and before[1] != after[1]


def test_history_precedes_the_observation() -> None:
    env = WebShop(num_prev_obs=1, num_prev_actions=2)
    start, _ = env.reset(seed=0)
    plain = WebShop()
    plain.reset(seed=0)
    results = plain.step("search[lamp]")[0]
    assert env.step("search[lamp]")[0] == f"{start} [SEP] search[lamp] [SEP] {results}"
    key = env.state_key()
    observation, _, _, _, info = env.step("nonsense")
    assert observation == f"search[lamp] [SEP] {results} [SEP] nonsense [SEP] {results}"
    assert not info["valid"] and info["changed"] and env.state_key() != key
    assert not plain.step("nonsense")[4]["changed"]


def test_environments_share_one_shop() -> None:
    envs = [WebShop(tagger="letters") for _ in range(8)]
    assert len({id(env.shop) for env in envs}) == 1
    assert WebShop(load_seed=1).shop is not envs[0].shop
    assert WebShop(load_seed=1).shop.catalog is envs[0].shop.catalog


def test_load_seed_changes_only_price_limits() -> None:
    one, two = WebShop(load_seed=1).shop.goals, WebShop(load_seed=2).shop.goals
    assert [g.words for g in one[:50]] == [g.words for g in two[:50]]
    assert [g.price_upper for g in one[:50]] != [g.price_upper for g in two[:50]]
    limits = {g.price_upper for g in one}
    assert limits <= {10.0 * step for step in range(2, 100)} | {1_000_000.0}


def test_goal_filter_goal_limit_and_custom_tagger_are_applied() -> None:
    def tea(index: int, goal: Goal) -> bool:
        return "tea" in goal.query

    env = WebShop(filter_goals=tea, limit_goals=12, tagger=lambda title: title.lower().split()[1:3])
    assert len(env.tasks) == 12
    env.reset(seed=0)
    for action in env.expert_actions() or []:
        _, reward, _, _, info = env.step(action)
    assert "tea" in env.goal.query and reward == 1.0
    assert "lambda" in info["tagger"]


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_vectorized_environments_step_together(vectorization: str) -> None:
    envs = gym.make_vec("TextWebShop-v0", num_envs=2, vectorization_mode=vectorization)
    try:
        envs.reset(seed=1)
        observations, rewards, *_ = envs.step(("search[tea]", "search[red lamp]"))
        assert all("Total results" in text for text in observations)
        assert rewards.tolist() == [0.0, 0.0]
    finally:
        envs.close()
