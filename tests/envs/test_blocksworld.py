"""Blocksworld environment: plan mode, step limits, splits, determinism and expert."""

import json
import random
import re
from hashlib import sha256

import gymnasium as gym
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st

import arboretum  # noqa: F401
from arboretum.envs import ConfigurationError
from arboretum.envs.blocksworld.env import Blocksworld
from arboretum.envs.blocksworld.generation import FAMILIES, canonical_form, generate
from arboretum.envs.blocksworld.notation import vocabulary
from arboretum.envs.blocksworld.rules import Action
from arboretum.envs.blocksworld.solver import optimal_plan
from support.processes import outputs_under_hash_salts


def make(**kwargs):
    return gym.make("TextBlocksworld-v0", **kwargs).unwrapped


@pytest.mark.parametrize("notation", ["english", "pddl"])
@pytest.mark.parametrize("mode", ["step", "plan"])
@pytest.mark.parametrize("family", FAMILIES)
def test_gymnasium_env_checker_passes_for_every_variant(notation, mode, family):
    check_env(make(notation=notation, mode=mode, family=family))


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_vector_env_runs_plan_mode(vectorization):
    envs = gym.make_vec("TextBlocksworld-v0", 2, vectorization, mode="plan", blocks=15)
    observations, _ = envs.reset(seed=[1, 2])
    assert len(set(observations)) == 2
    observations, rewards, terminated, _, infos = envs.step(["nonsense", "[PLAN]\n[PLAN END]"])
    assert list(rewards) == [0, 0] and terminated.all()
    assert infos["failed_line"].tolist()[0] == 1
    envs.close()


def test_observation_and_problem_of_a_known_task():
    env = make(split="train")
    names, init, goal = generate("mixed", 5, "train/0")
    observation, info = env.reset(seed=0, options={"task": "train/0"})
    assert info == {"task": "train/0", "success": False, "valid": True, "changed": False}
    assert env.problem == (names, init, goal)
    now, wanted = observation.split("\n")
    assert now.startswith("Now ") and now.endswith(".") and wanted.startswith("Goal: ")
    assert now.count("is on ") == 5 and wanted.count("is on top of") == len(goal.on)


def test_refusal_names_the_unmet_precondition_and_keeps_the_state():
    env = make(family="stack", blocks=3)
    env.reset(seed=0)
    before = env.state_key()
    for action, words in {
        "stack the red block on top of the blue block": "the hand is not holding the red block",
        "put down the red block": "the hand is not holding the red block",
        "unstack the red block from on top of the blue block": "the red block is not on top of the blue block",
        "pick up the purple block": "the blocks are red, blue, orange",
        "fly": "Write for example: pick up the red block",
    }.items():
        observation, reward, _, _, info = env.step(action)
        assert words in observation and reward == 0 and not info["valid"] and not info["changed"]
        assert env.state_key() == before
    shown, *_ = env.step("pick up the red block")
    observation, *_ = env.step("pick up the blue block")
    refusal, *scene = observation.split("\n")
    assert refusal == "You cannot pick up the blue block: the hand is not empty."
    assert scene == shown.split("\n")
    observation, *_ = env.step("stack the red block on top of the red block")
    refusal, *scene = observation.split("\n")
    assert refusal == "You cannot stack the red block on top of the red block: the red block is not clear."
    assert scene == shown.split("\n")


def test_default_step_limit_is_twice_the_longest_plan():
    for blocks in (3, 8):
        env = make(blocks=blocks)
        env.reset(seed=0)
        assert env.max_steps == 8 * (blocks - 1)
        for step in range(env.max_steps):
            *_, terminated, truncated, _ = env.step("wait")
            assert truncated is (step == env.max_steps - 1) and not terminated
    env = make(max_steps=None)
    env.reset(seed=0)
    assert not any(env.step("wait")[3] for _ in range(200))


# ---------------------------------------------------------------------- plan mode


def plan_env(**kwargs):
    env = make(mode="plan", blocks=5, **kwargs)
    observation, _ = env.reset(seed=11, options={"task": 3})
    return env, observation, env.expert_actions()[0].split("\n")


def test_expert_plan_succeeds_in_one_reply():
    env, _, plan = plan_env()
    assert len(plan) == len(optimal_plan(env.problem.init, env.problem.goal))
    observation, reward, terminated, truncated, info = env.step("\n".join(["[PLAN]", *plan, "[PLAN END]"]))
    assert reward == 1.0 and terminated and not truncated
    assert info["success"] and info["valid"] and info["changed"] and info["lenient_success"]
    assert info["failed_line"] == 0 and observation.startswith("The plan reaches the goal.")
    assert env.step("again")[0] == observation


@pytest.mark.parametrize(
    ("reply", "failed_line", "lenient"),
    [
        (["Here is my plan:", "*"], 1, True),  # PlanBench would skip the sentence
        (["*", "That reaches the goal!"], -1, True),
        (["*0", "hmm", "*rest"], 2, True),
        (["pick up the fuchsia block", "*"], 1, True),
        (["pick up the gold block", "*"], 1, False),  # one of PlanBench's blocks, which this task does not have
        (["pick up the gold block or the red block", "*"], 1, True),  # two blocks, where the operator takes one
        (["put down the red", "*"], 1, True),
        (["put down, the red block", "*"], 1, True),  # "put-down," is another word
        (["pick up: put down the red block", "*"], 1, False),
        (["put down the red block", "*"], 1, False),  # readable, but cannot be done
        ([], 0, False),
    ],
)
def test_strict_and_lenient_verdicts_differ_on_lines_that_cannot_be_parsed(reply, failed_line, lenient):
    env, before, plan = plan_env()
    parts = {"*": plan, "*0": plan[:1], "*rest": plan[1:]}
    lines = [line for part in reply for line in parts.get(part, [part])]
    observation, reward, terminated, _, info = env.step("\n".join(lines))
    assert terminated and reward == 0.0 and not info["success"] and not info["valid"] and info["changed"]
    assert info["failed_line"] == (len(lines) if failed_line == -1 else failed_line)
    assert info["lenient_success"] is lenient
    assert observation.startswith("The plan fails") and observation.endswith(before)
    if failed_line:
        assert f"line {info['failed_line']}:" in observation


def test_lines_outside_the_markers_and_blank_lines_are_ignored():
    env, _, plan = plan_env()
    reply = ["I think about it.", "[PLAN]", "", *plan, "  ", "[PLAN END]", "Done."]
    assert env.step("\n".join(reply))[4]["success"]


def test_legal_plan_that_misses_the_goal_reports_the_open_facts():
    env, _, plan = plan_env()
    observation, reward, terminated, _, info = env.step("\n".join(plan[:-1]))
    assert terminated and reward == 0 and info["valid"] and info["changed"] and not info["success"]
    assert not info["lenient_success"] and "leaves open: the " in observation


@pytest.mark.parametrize(
    ("line", "operator", "blocks"),
    [
        ("Next, unstack the blue block from the red block, so that I hold the blue block.", "unstack", [1, 0]),
        ("unstack the red block, then pick up the red block", "pick-up", [0]),  # the first of the domain
        ("stack (red block) on (blue block)", "stack", [0, 1]),
        ("(stack a b)", "stack", [0, 1]),
        ("stack red on blue", None, []),
        ("stack the red block on top of the red block", None, []),
        ("unstacked the red block from the blue block", None, []),
        ("[stack the red block on the blue block]", None, []),
    ],
)
def test_lenient_parser_has_planbenchs_rules(line, operator, blocks):
    """A word is an operator; every block counts once, where it is first named with the word "block"."""
    action = vocabulary(tuple("abc"), "english").read_leniently(line)
    if operator is None:
        assert action is None
    else:
        assert action == Action(operator, *blocks)


def test_lenient_parser_reads_on_after_the_cost_line():
    """The line never ends a plan, since PlanBench's parser compares "[COST]" with text in lower case."""
    env, _, plan = plan_env()
    assert env.step("\n".join([plan[0], "[COST]", *plan[1:]]))[4]["lenient_success"]
    env, _, plan = plan_env()
    info = env.step("\n".join([*plan, "[COST]", "stack the red block on top of the blue block"]))[4]
    assert not info["success"] and not info["lenient_success"]


def test_each_of_several_plans_starts_at_the_initial_arrangement():
    env, before, plan = plan_env(max_steps=3)
    key = env.state_key()
    observation, _, terminated, truncated, info = env.step("\n".join(plan[:-1]))
    assert not terminated and not truncated and info["valid"] and not info["changed"]
    assert observation.endswith(before) and env.state_key() == key
    snapshot = env.snapshot()
    assert env.step("\n".join(plan))[2:4] == (True, False)
    env.restore(snapshot)
    assert env.render() is None
    env.step("nonsense")
    *_, terminated, truncated, info = env.step("nonsense")
    assert terminated and not truncated and not info["success"]


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=300))
def test_any_reply_is_scored(reply):
    env, _, _ = plan_env()
    _, reward, terminated, _, info = env.step(reply)
    assert terminated and reward == float(info["success"])
    assert not info["success"] or info["lenient_success"]


def test_reply_over_the_length_limit_is_refused():
    env, _, _ = plan_env()
    observation, *_, info = env.step("x\n" * 50_000)
    assert "100000" in observation and not info["valid"]


# ---------------------------------------------------------------------- tasks


def test_generated_tasks_have_not_changed():
    """Published results refer to tasks, so a change of them must be deliberate and needs a new id (-v1)."""
    problems = [
        generate(family, blocks, f"{split}/{index}")
        for family in FAMILIES
        for blocks in (4, 6, 15)
        for split in ("train", "valid", "test")
        for index in range(20)
    ]
    assert sha256(repr(problems).encode()).hexdigest()[:16] == "7b22fdade0ce7806"


@pytest.mark.parametrize(("family", "blocks"), [("mixed", 3), ("mixed", 4), ("mixed", 5), ("mixed", 6)])
def test_splits_share_no_task_up_to_renaming(family, blocks):
    # 1600 training tasks (RAGEN: 200 iterations of 8), 512 validation and test tasks
    sizes = {"train": 1600, "valid": 512, "test": 512}
    found = {
        split: {repr(canonical_form(generate(family, blocks, f"{split}/{i}"))) for i in range(size)}
        for split, size in sizes.items()
    }
    assert all(found.values())
    assert not found["train"] & found["test"] and not found["train"] & found["valid"]
    assert not found["valid"] & found["test"]


@pytest.mark.parametrize("family", ["stack", "unstack"])
@pytest.mark.parametrize("blocks", [3, 4, 6, 26])
def test_families_have_the_documented_starts_and_goals_and_disjoint_splits(family, blocks):
    found = {}
    for split in ("train", "valid", "test"):
        problems = [generate(family, blocks, f"{split}/{i}") for i in range(200)]
        found[split] = {(p.init, p.goal) for p in problems}
        for problem in problems:
            if family == "stack":
                assert set(problem.init) == {-1} and problem.goal.on
            else:
                assert max(problem.init) >= 0 and problem.goal.table == tuple(range(blocks))
    assert not found["train"] & found["test"] and not found["valid"] & found["test"]
    assert not found["train"] & found["valid"]


def check_plan_lengths(family, blocks, cell):
    mean, least, most = re.fullmatch(r"([\d.]+) \((\d+)–(\d+)\)", cell).groups()
    lengths = [
        len(optimal_plan(p.init, p.goal)) for p in (generate(family, blocks, f"test/{i}") for i in range(1000))
    ]
    assert (min(lengths), max(lengths)) == (int(least), int(most))
    assert sum(lengths) / 1000 == pytest.approx(float(mean), abs=0.051)


def documented_plan_lengths():
    """Yield family, number of blocks and cell of the table in the class docstring."""
    lines = [
        line.strip(" |").split(" | ") for line in Blocksworld.__doc__.splitlines() if "–" in line and "|" in line
    ]
    for blocks, *cells in lines:
        for family, cell in zip(("mixed", "stack", "unstack"), cells, strict=True):
            yield family, int(blocks), cell


def test_documented_plan_lengths_hold():
    check_plan_lengths(*next(one for one in documented_plan_lengths() if one[:2] == ("mixed", 8)))


@pytest.mark.heavy
def test_every_documented_plan_length_holds():
    cells = list(documented_plan_lengths())
    assert len(cells) == 21
    for cell in cells:
        check_plan_lengths(*cell)


def test_following_the_expert_plan_does_not_solve_again(monkeypatch):
    env = make(blocks=15)
    env.reset(seed=5)
    plan = env.expert_actions()
    from arboretum.envs.blocksworld import level

    def forbidden(*_):
        raise AssertionError("solved again")

    monkeypatch.setattr(level, "optimal_plan", forbidden)
    for number, action in enumerate(plan):
        assert env.expert_actions() == plan[number:]
        env.step(action)


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"family": "stak"}, "stack"),
        ({"notation": "german"}, "english"),
        ({"mode": "plans"}, "plan"),
        ({"blocks": 2}, "from 3 to 26"),
        ({"blocks": 27}, "from 3 to 26"),
        ({"blocks": "5"}, "integer"),
        ({"split": "tset"}, "test"),
        ({"data": "."}, "data= belongs to split='planbench'"),
        ({"max_steps": 0}, "positive"),
        ({"max_steps": "many"}, "positive"),
    ],
)
def test_bad_setting_raises_a_helpful_error(kwargs, words):
    with pytest.raises(ConfigurationError, match=words):
        make(**kwargs)


def test_snapshot_of_other_settings_is_rejected():
    env = make(blocks=4)
    env.reset(seed=0)
    for other in (make(blocks=5), make(blocks=4, notation="pddl"), make(blocks=4, mode="plan")):
        with pytest.raises(ConfigurationError, match="snapshot"):
            other.restore(env.snapshot())


SCRIPT = """
import json, gymnasium as gym, arboretum
out = []
for kwargs in ({}, {"blocks": 15}, {"family": "unstack", "split": "test"}, {"mode": "plan", "notation": "pddl"}):
    env = gym.make("TextBlocksworld-v0", **kwargs).unwrapped
    for seed in range(20):
        out += [env.reset(seed=seed)[0], env.expert_actions(), env.admissible_actions()]
print(json.dumps(out))
"""


def test_tasks_and_plans_are_independent_of_the_hash_salt():
    outputs = outputs_under_hash_salts(SCRIPT)
    assert len(outputs) == 1 and len(json.loads(outputs.pop())) == 240


def test_random_plan_succeeds_at_the_rate_of_random_steps() -> None:
    """Random plans are legal to the last line, and succeed at the rate of random actions in step mode."""
    plans = gym.make("TextBlocksworld-v0", mode="plan", blocks=3).unwrapped
    steps = gym.make("TextBlocksworld-v0", blocks=3).unwrapped
    successes = [0, 0]
    for n in range(400):
        rng = random.Random(n)
        plans.reset(seed=n)
        *_, info = plans.step(plans.random_action(rng))
        assert info["failed_line"] == 0
        successes[0] += info["success"]
        steps.reset(seed=n)
        over = False
        while not over:
            _, _, terminated, truncated, info = steps.step(steps.random_action(rng))
            over = terminated or truncated
        successes[1] += info["success"]
    # The difference of two binomial rates over 400 episodes has a standard error of at most 0.036.
    assert abs(successes[0] - successes[1]) / 400 < 4 * 0.036
