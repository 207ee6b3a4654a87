"""Labels of decisions: positions worked by hand, equations over whole episodes, and replays that differ."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import arboretum  # noqa: F401
from arboretum.agents.base import Agent, Reply, Seat
from arboretum.agents.episode import Episode
from arboretum.agents.play import Job, play
from arboretum.agents.registry import make_agent
from arboretum.envs import Optimum, TextEnv
from arboretum.envs.open_episode import own_class
from arboretum.envs.registry import ENVS
from arboretum.envs.sokoban import board_env
from arboretum.envs.sokoban.distances import level_distances
from arboretum.envs.sokoban.generator import Spec, generate
from arboretum.envs.sokoban.rules import STANDARD, Masks
from arboretum.envs.sokoban.solver import OutOfBudget, solve
from arboretum.eval.decisions import Decision, EpisodeDecisions, Unlabelled, label_episode
from arboretum.eval.decisions.file import plain_labels
from arboretum.eval.decisions.labels import judge
from arboretum.eval.decisions.statistics import summarize_decisions
from arboretum.eval.store import EpisodeKey
from support.environments import embedded_data, make  # noqa: F401 (a fixture for all tests here)

IDS = [spec.id for spec in ENVS]
OVER_SHORTEST_KNOWN = {"TextWebShop-v0", "TextSearchQA-v0"}
STOCHASTIC = {"TextBandit-v0", "TextBanditRev-v0", "TextFrozenLake-v0"}
MEASURES = {"TextBandit-v0": "payment", "TextBanditRev-v0": "payment", "TextWebShop-v0": "score"}

CORNER = ["##########", "#        #", "#$       #", "#@       #", "#.       #", *["#        #"] * 4, "##########"]
"""One push down short of nothing: the player must walk around the box (four steps) and push it down twice."""


class Scripted(Agent):
    """Agent that takes given actions, one per turn, and then quits."""

    name = "scripted"

    def __init__(self, actions: Sequence[str], trials: Sequence[Sequence[str]] = ()) -> None:
        self.trials = [*trials, actions]
        self.trial = 0

    def begin(self, seat: Seat) -> None:
        seat.memory = list(self.trials[self.trial])

    def act(self, seats: Sequence[Seat]) -> list[Reply | None]:
        replies: list[Reply | None] = []
        for seat in seats:
            actions = (seat.memory.pop(0),) if seat.memory else ()
            replies.append(Reply(actions, quit=None if seat.memory else "no more actions"))
        return replies

    def again(self, seat: Seat) -> bool:
        self.trial += 1
        return self.trial < len(self.trials)


def play_one(env: TextEnv[Any], agent: Agent | Sequence[str], task: str | None = None, seed: int = 0) -> Episode:
    player = agent if isinstance(agent, Agent) else Scripted(agent)
    (episode,) = play(player, [env], [Job(task, seed)])
    return episode


def labels_of(env: TextEnv[Any], episode: Episode) -> EpisodeDecisions:
    found = label_episode(env, episode)
    assert isinstance(found, EpisodeDecisions), found
    return found


def corner(tmp_path: Path, **kwargs: Any) -> TextEnv[Any]:
    path = tmp_path / "boxoban" / "train" / "000.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("; 0\n" + "\n".join(CORNER) + "\n")
    return make("TextBoxoban-v0", data=tmp_path / "boxoban", **kwargs)


# ---------------------------------------------------------------------- what environments declare


@pytest.mark.parametrize("id", IDS)
def test_every_environment_declares_whether_its_optimum_is_proven_and_of_what(id: str) -> None:
    env = make(id)
    assert env.optimum_is_exact is (id not in OVER_SHORTEST_KNOWN)
    assert env.optimum_measure == MEASURES.get(id, "probability of success")
    assert not env.replay_is_costly


@pytest.mark.parametrize("id", IDS)
def test_optimum_after_an_action_leaves_the_episode_as_it_was(id: str) -> None:
    env = make(id)
    env.reset(seed=3)
    before = env.snapshot()
    for action in [*(env.admissible_actions() or ())[:4], *(env.expert_actions() or ())[:1], "no such action"]:
        assert env.optimum_after(action) is not None
        assert env.snapshot() == before


@pytest.mark.parametrize("id", [id for id in IDS if id not in STOCHASTIC])
def test_optimum_after_an_action_is_the_optimum_of_the_next_state(id: str) -> None:
    env = make(id)
    env.reset(seed=1)
    rng = random.Random(0)
    for _ in range(6):
        action = env.random_action(rng)
        expected = env.optimum_after(action)
        _, _, terminated, truncated, _ = env.step(action)
        assert env.optimum() == expected
        if terminated or truncated:
            break


def test_action_with_random_outcome_and_no_expectation_is_not_judged() -> None:
    env = make("TextWebShop-v0")
    env.reset(seed=0)
    assert env.optimum_after("search[<r>]") is None
    episode = play_one(env, ["search[shoes]", "click[back to search]", "search[<r>]"])
    labels = labels_of(env, episode)
    assert [d.fatal for d in labels.decisions] == [False, False, None] and labels.unknown == 1


# ---------------------------------------------------------------------- positions worked by hand


def test_push_into_a_corner_is_fatal_at_that_move(tmp_path: Path) -> None:
    env = corner(tmp_path)
    episode = play_one(env, ["Right", "Left", "Up", "Down", "Right"])
    labels = labels_of(env, episode)
    assert [d.fatal for d in labels.decisions] == [False, False, True, False, False]
    assert labels.first_fatal == 3 and labels.outcome == "dead end"
    assert labels.decisions[2] == Decision(False, 1.0, None, True, False, False)
    assert [d.optimal for d in labels.decisions] == [True, False, False, None, None]  # nothing left to lose
    assert labels.value_regret == 1.0 and labels.step_regret == 2.0 and labels.judged == 3


def test_detour_costs_two_steps_and_a_blocked_move_one(tmp_path: Path) -> None:
    env = corner(tmp_path)
    way = ["Right", "Up", "Up", "Left", "Down", "Down"]
    detour = labels_of(env, play_one(env, ["Down", "Up", *way]))
    assert [d.step_regret for d in detour.decisions] == [2.0, *[0.0] * 7]
    assert [d.returned for d in detour.decisions[:3]] == [False, True, False]
    assert detour.outcome == "solved" and detour.optimal == 7
    blocked = labels_of(env, play_one(env, ["Left", "Left", *way]))
    assert [d.step_regret for d in blocked.decisions] == [1.0, 1.0, *[0.0] * 6]
    assert [d.repeated for d in blocked.decisions] == [False, True, *[False] * 6]
    refused = labels_of(env, play_one(env, ["push the box", *way]))
    assert [d.step_regret for d in refused.decisions] == [1.0, *[0.0] * 6]
    assert not any(d.returned for d in (*blocked.decisions, *refused.decisions))


def test_too_few_remaining_steps_are_told_from_a_dead_end(tmp_path: Path) -> None:
    env = corner(tmp_path, max_steps=7)
    labels = labels_of(env, play_one(env, ["Left", "Left", *["Right", "Left"] * 3]))
    assert labels.outcome == "out of steps" and labels.first_fatal == 2
    assert labels_of(env, play_one(env, ["Up"])).outcome == "dead end"
    assert labels_of(corner(tmp_path, max_steps=5), play_one(env, ["Right"])).outcome == "impossible"


def test_labels_do_not_depend_on_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment may have none; its fatal decisions are told from a lack of steps all the same."""
    env = make("TextSokoban-v0", max_steps=20)
    episodes = [play_one(env, make_agent("random"), env.tasks[number], number) for number in range(30)]
    expected = [labels_of(env, episode) for episode in episodes]
    assert {"dead end", "out of steps"} <= {labels.outcome for labels in expected}
    monkeypatch.setattr(own_class(type(env)), "snapshot", None)
    assert [labels_of(env, episode) for episode in episodes] == expected


def test_limits_of_the_agent_do_not_enter_the_optimum(tmp_path: Path) -> None:
    env = corner(tmp_path)
    labels = labels_of(env, play_one(env, ["Right", "Up"]))
    assert labels.outcome == "unfinished" and labels.optimal == 2 and labels.first_fatal is None


def test_same_action_in_the_same_state_is_repeated_and_earlier_states_are_returns(tmp_path: Path) -> None:
    env = corner(tmp_path)
    labels = labels_of(env, play_one(env, ["Right", "Left", "Right", "Left", "Down"]))
    assert [d.repeated for d in labels.decisions] == [False, False, True, True, False]
    assert [d.returned for d in labels.decisions] == [False, True, True, True, False]


def test_slip_of_the_ice_is_not_charged_to_the_action() -> None:
    # One row, S and G, success rate 0.8, two steps. V1 = 0.8 and V2 = 0.8 + 0.2 V1 = 0.96. Left never reaches G:
    # Q2 = V1 = 0.8. Up slips onto G with probability 0.1: Q2 = 0.1 + 0.9 V1 = 0.82.
    env = make("TextFrozenLake-v0", map=["SG"], success_rate=0.8, max_steps=2)
    outcomes = set()
    for seed in range(150):
        episode = play_one(env, ["Up", "Right"], "map", seed)
        labels = labels_of(env, episode)
        assert labels.decisions[0].value_regret == pytest.approx(0.14)
        assert not labels.decisions[0].optimal and not labels.decisions[0].fatal
        assert all(d.optimal and d.value_regret == 0.0 for d in labels.decisions[1:])
        outcomes.add((len(labels.decisions), labels.outcome))
    assert outcomes == {(1, "solved"), (2, "solved"), (2, "chance")}
    lost = labels_of(env, play_one(env, ["Left", "Left"], "map"))
    assert [d.value_regret for d in lost.decisions] == pytest.approx([0.16, 0.8])
    assert lost.decisions[1].fatal and lost.outcome == "out of steps" and lost.value_regret == pytest.approx(0.96)


def test_regrets_on_a_lake_equal_a_solution_of_the_decision_process_by_recursion() -> None:
    desc, rate, limit = ("SFH", "FFF", "HFG"), 1 / 3, 6
    table = gym.make("FrozenLake-v1", desc=list(desc), success_rate=rate).unwrapped.P

    @cache
    def q(cell: int, action: int, left: int) -> float:
        outcomes = table[cell][action]
        return sum(p * (reward if ends else v(after, left - 1)) for p, after, reward, ends in outcomes)

    def v(cell: int, left: int) -> float:
        return max(q(cell, action, left) for action in range(4)) if left else 0.0

    env = make("TextFrozenLake-v0", map=desc, success_rate=rate, max_steps=limit)
    agent = make_agent("random")
    for seed in range(25):
        episode = play_one(env, agent, "map", seed)
        labels = labels_of(env, episode)
        actions = [move.action for turn in episode.turns for move in turn.moves]
        env.reset(seed=seed, options={"task": "map"})
        for number, (action, label) in enumerate(zip(actions, labels.decisions, strict=True)):
            cell, left = env.snapshot().state, limit - number
            direction = ("Left", "Down", "Right", "Up").index(action)
            assert label.value_regret == pytest.approx(v(cell, left) - q(cell, direction, left), abs=1e-8)
            env.step(action)


@pytest.mark.parametrize("kwargs", [{"max_steps": None}, {"success_rate": 1.0}, {"max_steps": 10}], ids=str)
def test_expert_on_any_lake_has_no_regret_and_its_opposite_has(kwargs: dict[str, Any]) -> None:
    env = make("TextFrozenLake-v0", **kwargs)
    opposite = {"Left": "Right", "Right": "Left", "Up": "Down", "Down": "Up"}
    for seed, task in enumerate(env.tasks[:15]):
        env.reset(seed=seed, options={"task": task})
        plan = env.expert_actions() or [""]
        before = env.optimum()
        assert judge(before, env.optimum_after(plan[0]), True, False, False).optimal
        after = env.optimum_after(opposite[plan[0]])
        assert before is not None and after is not None and after.value <= before.value + 1e-12
        labels = labels_of(env, play_one(env, make_agent("expert"), task, seed))
        assert labels.value_regret == labels.step_regret == 0.0


def test_lost_attempts_are_blamed_on_decisions_that_gave_away_half_of_the_chance() -> None:
    # Down into the hole with probability 0.8: nearly all of the attainable probability is given away.
    env = make("TextFrozenLake-v0", map=["SFG", "HFF"], success_rate=0.8, max_steps=20)
    outcomes = {labels_of(env, play_one(env, ["Down"], "map", seed)).outcome for seed in range(40)}
    assert outcomes == {"risk", "unfinished"}  # in the hole, or still beside it
    outcomes = {labels_of(env, play_one(env, make_agent("expert"), "map", seed)).outcome for seed in range(60)}
    assert outcomes <= {"solved", "chance"} and "solved" in outcomes


@pytest.mark.parametrize("id", ["TextBandit-v0", "TextBanditRev-v0"])
def test_regret_of_the_safe_arm_is_the_difference_of_mean_payments(id: str) -> None:
    env = make(id)
    env.reset(seed=0, options={"task": 0})
    risky = (env.expert_actions() or [""])[0]
    safe = next(arm for arm in env.admissible_actions() or () if arm != risky)
    task = env.task
    wrong = labels_of(env, play_one(env, ["no arm", safe], task))
    assert [d.step_regret for d in wrong.decisions] == [1.0, None]
    assert wrong.decisions[1].value_regret == pytest.approx(0.10) and wrong.outcome == "worse end"
    assert not wrong.decisions[1].fatal and wrong.measure == "payment"
    for seed in range(12):  # whatever the arm pays
        right = labels_of(env, play_one(env, [risky], task, seed))
        assert right.decisions == (Decision(True, 0.0, 0.0, False, False, False),) and right.outcome == "solved"


def test_unknown_optimum_is_not_labelled_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def give_up(*args: Any) -> None:
        raise OutOfBudget

    env = make("TextBoxoban-v0", generated=True)
    episode = play_one(env, ["Up", "Down"])
    monkeypatch.setattr(board_env, "find_plan", give_up)
    assert env.optimum() is None
    labels = labels_of(env, episode)
    assert labels.outcome == "unknown" and labels.unknown == 2 and labels.judged == 0
    assert labels.decisions[0] == Decision(None, None, None, None, False, False)


def test_plan_by_pushes_alone_is_no_proven_optimum(monkeypatch: pytest.MonkeyPatch) -> None:
    real = board_env.find_plan

    def by_pushes(masks: Masks, objective: str = "moves") -> list[str] | None:
        if objective == "moves":
            raise OutOfBudget
        return real(masks, "pushes")

    monkeypatch.setattr(board_env, "find_plan", by_pushes)
    env = make("TextBoxoban-v0", generated=True)
    env.reset(seed=0)
    assert env.expert_actions() and env.optimum() is None


def test_negative_regret_counts_only_where_the_optimum_is_not_proven() -> None:
    before, better = Optimum(0.5, 4), Optimum(0.75, 2)
    assert judge(before, better, False, False, False) == Decision(True, -0.25, None, False, False, False)
    assert judge(before, better, True, False, False).value_regret == 0.0
    assert judge(None, better, True, False, False).optimal is None


def test_fatal_action_is_not_optimal_however_small_the_loss() -> None:
    lost = judge(Optimum(1e-11, 24), Optimum(0.0, None), True, False, False)
    assert (lost.optimal, lost.fatal) == (False, True)
    assert plain_labels(EpisodeDecisions((lost,), "success", True, "probability of success"))["marks"] == "f"


# ---------------------------------------------------------------------- properties


@pytest.mark.parametrize("id", IDS)
def test_expert_takes_optimal_actions_only(id: str) -> None:
    env = make(id)
    tasks = list(env.tasks[:25] if id != "TextBoxoban-v0" else env.tasks[:2])
    jobs = [Job(task, seed) for seed, task in enumerate(tasks)]
    solved = 0
    for episode in play(make_agent("expert"), [env], jobs):
        labels = labels_of(make(id), episode)
        assert all(d.optimal and d.value_regret == d.step_regret == 0.0 for d in labels.decisions), labels
        assert labels.outcome in ("solved", "chance", "worse end")
        solved += labels.outcome == "solved"
    assert solved and (solved == len(tasks) or id in STOCHASTIC | {"TextWebShop-v0"})


class Wavering(Agent):
    """Expert that takes a random action with probability 0.3."""

    name = "wavering"

    def act(self, seats: Sequence[Seat]) -> list[Reply | None]:
        replies: list[Reply | None] = []
        for seat in seats:
            plan = seat.env.expert_actions() if seat.rng.random() > 0.3 else None
            replies.append(Reply((plan[0] if plan else seat.env.random_action(seat.rng),)))
        return replies


@pytest.mark.parametrize("id", [id for id in IDS if id not in STOCHASTIC | OVER_SHORTEST_KNOWN])
def test_step_regrets_of_a_solved_episode_sum_to_its_additional_length(id: str) -> None:
    env = make(id)
    count = 2 if id == "TextBoxoban-v0" else 20
    solved = longer = 0
    for seed, episode in enumerate(play(Wavering(), [env], [Job(env.tasks[k], k) for k in range(count)])):
        labels = labels_of(make(id), episode)
        if episode.success:
            env.reset(seed=seed, options={"task": episode.task})
            shortest = len(env.expert_actions() or [])
            assert labels.step_regret == episode.steps - max(1, shortest)
            assert labels.outcome == "solved" and labels.value_regret == 0.0
            solved += 1
            longer += episode.steps > shortest
        else:
            assert labels.value_regret == 1.0 and labels.first_fatal is not None
    assert (longer and solved) or id == "TextBoxoban-v0"


@pytest.mark.parametrize("boxes", [1, 2])
def test_table_of_distances_equals_the_search_in_every_visited_position(boxes: int) -> None:
    env = make("TextSokoban-v0", size=7, boxes=boxes)
    rng = random.Random(boxes)
    dead = 0
    for seed in range(6):
        env.reset(seed=seed)
        for _ in range(25):
            board, player, _ = env.snapshot().state
            masks = Masks.of(board, STANDARD)
            plan = solve(masks)
            assert level_distances(masks).find(board, player, STANDARD) == (None if plan is None else len(plan))
            dead += plan is None
            if env.step(rng.choice(env.admissible_actions() or ("",)))[2]:
                break
    assert dead


def test_large_boards_are_searched_instead_of_tabulated() -> None:
    board = generate(Spec(size=10, boxes=4, shortest=10, longest=40), "any/0")
    assert level_distances(Masks.of(board, STANDARD)).states > 2_000
    unpaired = Masks.of("#####\n#PXO#\n#_O_#\n#####", STANDARD)  # two targets, one box
    assert level_distances(unpaired).states == float("inf")


# ---------------------------------------------------------------------- replays


def test_last_trial_of_an_agent_that_retries_is_labelled() -> None:
    env = make("TextFrozenLake-v0")
    agent = Scripted(["Right", "Down", "Right"], trials=[["Left"], ["Up", "Up"]])
    (episode,) = play(agent, [env], [Job(env.tasks[0], 5)])
    assert len(episode.trials) == 2
    labels = labels_of(env, Episode.from_dict(episode.to_dict()))
    assert len(labels.decisions) == episode.steps


def test_replay_on_other_data_is_not_labelled_and_says_why(tmp_path: Path) -> None:
    episode = play_one(corner(tmp_path / "a"), ["Right", "Up"])
    CORNER_MOVED = [*CORNER[:4], "# .      #", *CORNER[5:]]
    path = tmp_path / "b" / "train" / "000.txt"
    path.parent.mkdir(parents=True)
    path.write_text("; 0\n" + "\n".join(CORNER_MOVED) + "\n")
    found = label_episode(make("TextBoxoban-v0", data=tmp_path / "b"), episode)
    assert (
        isinstance(found, Unlabelled) and "differs from the record in the observation at action 1" in found.reason
    )
    path = tmp_path / "c" / "train" / "000.txt"
    path.parent.mkdir(parents=True)
    path.write_text("; 7\n" + "\n".join(CORNER) + "\n")
    found = label_episode(make("TextBoxoban-v0", data=tmp_path / "c"), episode)
    assert isinstance(found, Unlabelled) and "The task cannot be opened: unknown task" in found.reason


@pytest.mark.parametrize(
    ("field", "value", "what"),
    [
        ("reward", 5.0, "reward"),
        ("valid", False, "effect"),
        ("changed", False, "effect"),
        ("action", "Down", "effect"),
    ],
)
def test_altered_move_is_noticed(tmp_path: Path, field: str, value: Any, what: str) -> None:
    env = corner(tmp_path)
    episode = play_one(env, ["Right", "Right"])
    move = episode.turns[0].moves[0]
    setattr(move, field, value)
    if field == "action":
        move.action = "push"
    found = label_episode(env, episode)
    assert isinstance(found, Unlabelled) and f"in the {what}" in found.reason and "action 1" in found.reason


def test_altered_end_is_noticed(tmp_path: Path) -> None:
    env = corner(tmp_path)
    way = ["Right", "Up", "Up", "Left", "Down", "Down"]
    episode = play_one(env, way)
    episode.success = False
    assert isinstance(label_episode(env, episode), Unlabelled)
    episode = play_one(env, way)
    episode.turns.append(episode.turns[-1])
    assert isinstance(label_episode(env, episode), Unlabelled)
    episode = play_one(env, way)
    episode.final_observation += " "
    assert isinstance(label_episode(env, episode), Unlabelled)
    shorter = corner(tmp_path, max_steps=3)
    assert isinstance(label_episode(shorter, play_one(env, way)), Unlabelled)
    broken = play_one(env, way)
    broken.error = "The time is over."
    assert label_episode(env, broken) == Unlabelled("The episode broke off.")


def test_regrets_of_a_shopper_sum_to_the_score_that_was_lost() -> None:
    """Also where the best known purchase turns out to be better than was known: its regret is negative."""
    env = make("TextWebShop-v0", max_steps=8)
    for seed in range(12):
        env.reset(seed=seed)
        first, rng, actions, score, ended = env.optimum(), random.Random(seed), [], 0.0, False
        while not ended:
            actions.append(env.random_action(rng))
            _, score, terminated, truncated, _ = env.step(actions[-1])
            ended = terminated or truncated
        episode = play_one(env, actions, seed=seed)
        labels = labels_of(env, episode)
        assert labels.value_regret == pytest.approx(first.value - score)
        assert not (labels.first_fatal and score > 0.0)


def test_interval_of_what_decisions_lost_does_not_reach_below_zero() -> None:
    """Of two tasks, one lost everything: Student's interval with one degree of freedom is 0.5 ± 6.4."""
    env = gym.make("TextFrozenLake-v0", map=("SF", "HG"), success_rate=1.0)
    labels = {
        EpisodeKey("me", "Lake", f"{number}", 0): labels_of(env, play_one(env, actions, "map"))
        for number, actions in enumerate((["Down"], ["Right", "Down"]))
    }
    (line,) = summarize_decisions({("Lake", "me"): 2}, labels)
    assert line.value_regret == pytest.approx((0.5, 0.0, 0.5 + 12.706 * 0.5), abs=1e-3)
    assert line.step_regret == (0.0, 0.0, 0.0)
