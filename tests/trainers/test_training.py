"""Training end to end, with a real (tiny) model in a real world."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arboretum.envs.errors import ConfigurationError
from arboretum.envs.frozenlake.env import FrozenLake
from arboretum.trainers.algorithms.recipes import RECIPES

torch = pytest.importorskip("torch", reason="needs torch: pip install 'arboretum[lm]'")
pytest.importorskip("accelerate", reason="needs accelerate: pip install 'arboretum[lm]'")

from arboretum.agents.engines.transformers import TransformersEngine
from arboretum.trainers.algorithms.recipe import Optimization
from arboretum.trainers.checkpoints.run_folder import claim_run_folder
from arboretum.trainers.config.run import TrainingConfig
from arboretum.trainers.config.settings import (
    DialogueConfig,
    EnvConfig,
    HardwareConfig,
    LoraConfig,
    ValidationConfig,
)
from arboretum.trainers.data.rollouts import Rollouts
from arboretum.trainers.learning.optimizer import Diverged, lr_factor
from arboretum.trainers.train import export_checkpoint
from arboretum.trainers.trainer import Trainer

pytestmark = pytest.mark.heavy

Make = Callable[..., TrainingConfig]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def weights(training: Trainer) -> dict[str, Any]:
    return {name: value.clone() for name, value in training.optimizer.policy.state_dict().items()}


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def numbers(history: list[dict[str, float]]) -> list[dict[str, float]]:
    """The metrics without those of time."""
    return [{k: v for k, v in record.items() if "second" not in k} for record in history]


def finish(training: Trainer) -> Trainer:
    for _ in training.run():
        pass
    return training


def some_rollouts(training: Trainer, spread: bool = False) -> Rollouts:
    """Rollouts of the run's world; with `spread` the rewards are made to differ."""
    rollouts, failed = training.collector.roll_out(1.0)
    assert failed == 0
    if spread:
        rewards = np.random.default_rng(0).normal(size=rollouts.turns)
        rollouts = dataclasses.replace(rollouts, turn_reward=rewards)
    return rollouts


@pytest.mark.parametrize("name", list(RECIPES))
def test_every_recipe_trains_end_to_end(name: str, run_of: Make) -> None:
    changes: dict[str, object] = {"sampler.prompts": 4, "optimization.episodes_per_step": 4}
    if name == "dapo":
        changes["selector.max_batches"] = 3
    run = run_of(name, changes)
    run.check()
    claim_run_folder(run, resume=False)
    training = Trainer(run)
    before = weights(training)
    finish(training)
    lines = [json.loads(line) for line in (run.out / "metrics.jsonl").read_text().splitlines()]
    assert [line["update"] for line in lines] == [0, 1, 2]
    assert "validation/success" in lines[0] and "validation/success" in lines[2]
    learnt = [line for line in lines[1:] if line["groups_kept"] > 0]
    assert learnt, "no update found a group to learn from"
    for line in learnt:
        assert line["grad_norm"] > 0 and line["entropy"] > 0 and line["steps_skipped"] == 0
        assert line["mismatch_abs_max"] < 1e-4 and line["mismatch_ratio_max"] == pytest.approx(1, abs=1e-4)
        assert ("kl" in line) == RECIPES[name].needs_reference
        assert ("value_loss" in line) == (RECIPES[name].critic is not None)
    after = weights(training)
    assert not same(before, after) and all(value.isfinite().all() for value in after.values())
    folder = export_checkpoint(run.out)
    engine = TransformersEngine(folder, device="cpu")
    engine.close()
    training.close()


@pytest.mark.parametrize("name", ["ppo", "gigpo", "dapo_tstar"])
def test_a_resumed_run_continues_to_the_same_numbers(name: str, run_of: Make, tmp_path: Path) -> None:
    changes: dict[str, object] = {"optimization.updates": 4, "optimization.schedule": "cosine"}
    whole = finish(Trainer(run_of(name, changes, out=tmp_path / "whole")))
    halved = run_of(name, changes, out=tmp_path / "halved", checkpoint_every=2)
    first = Trainer(halved)
    for record in first.run():
        if record.metrics["update"] == 3:  # one further than the checkpoint: it must be made again
            break
    second = Trainer(halved, resume=True)
    assert second.state.update == 2
    finish(second)
    assert numbers(second.history) == numbers(whole.history)
    assert same(weights(second), weights(whole))
    written = [json.loads(line) for line in (halved.out / "metrics.jsonl").read_text().splitlines()]
    assert numbers(written) == numbers(whole.history)


def test_a_killed_run_resumes_to_the_same_numbers(run_of: Make, tmp_path: Path) -> None:
    changes: dict[str, object] = {"optimization.updates": 5}
    whole = finish(Trainer(run_of("grpo", changes, out=tmp_path / "whole")))
    run = run_of("grpo", changes, out=tmp_path / "killed", checkpoint_every=1)
    code = (
        "import sys, pickle, torch; torch.set_num_threads(1)\n"
        "from arboretum.trainers.trainer import Training\n"
        "[None for _ in Training(pickle.load(sys.stdin.buffer)).run()]"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert child.stdin is not None
    child.stdin.write(pickle.dumps(run))
    child.stdin.close()
    deadline = time.monotonic() + 120
    path = run.out / "metrics.jsonl"
    while not (path.exists() and path.read_text().count("\n") >= 3):
        assert child.poll() is None and time.monotonic() < deadline
        time.sleep(0.005)
    child.send_signal(signal.SIGKILL)  # right after an update was written down: amid its checkpoint
    child.wait()
    training = Trainer(run, resume=True)
    assert 0 < training.state.update < 5
    finish(training)
    assert numbers(training.history) == numbers(whole.history)
    assert same(weights(training), weights(whole))


def test_lora_trains_adapters_only_resumes_and_exports_a_plain_folder(run_of: Make, tmp_path: Path) -> None:
    hardware = HardwareConfig(device="cpu", lora=LoraConfig(rank=4, alpha=8), gradient_checkpointing=True)
    changes: dict[str, object] = {"optimization.updates": 3, "optimization.lr": 1e-2}
    whole = finish(Trainer(run_of("grpo", changes, out=tmp_path / "whole", hardware=hardware)))
    run = run_of("grpo", changes, out=tmp_path / "halved", hardware=hardware, checkpoint_every=1)
    claim_run_folder(run, resume=False)
    first = Trainer(run)
    start = weights(first)
    for record in first.run():
        if record.metrics["update"] == 1:
            break
    second = finish(Trainer(run, resume=True))
    assert numbers(second.history) == numbers(whole.history)
    after = weights(second)
    changed = {name for name in after if not torch.equal(after[name], start[name])}
    assert changed and all("lora_" in name for name in changed)
    from transformers import AutoModelForCausalLM

    to_plain = AutoModelForCausalLM.from_pretrained(export_checkpoint(run.out, "last"))
    assert not any("lora" in name for name, _ in to_plain.named_parameters())
    ids = torch.arange(20).unsqueeze(0)
    with torch.no_grad():
        expected = second.optimizer.policy.model.eval()(input_ids=ids).logits
        assert torch.allclose(to_plain(input_ids=ids).logits, expected, atol=1e-4)


@pytest.mark.parametrize("name", ["grpo", "ppo", "gigpo"])
def test_training_solves_a_world_that_can_be_solved_in_seconds(name: str, run_of: Make) -> None:
    """One small map, two steps to the goal, no slipping: success must rise to near certainty."""
    run = run_of(
        name,
        {
            "sampler.prompts": 4,
            "sampler.rollouts": 8,
            "optimization.updates": 9,
            "optimization.lr": 5e-4,
            "optimization.episodes_per_step": 32,
        },
        world=EnvConfig("TextFrozenLake-v0", {"map": ("SF", "FG"), "success_rate": 1.0}, None),
        validation=ValidationConfig(every=0),
    )
    history = finish(Trainer(run)).history
    first, last = history[0]["success"], np.mean([record["success"] for record in history[-2:]])
    assert first < 0.75 and last > 0.9


def test_the_reference_is_the_first_policy_and_stays_so(run_of: Make) -> None:
    training = Trainer(run_of("grpo", {"optimization.lr": 1e-2}, validation=ValidationConfig(every=0)))
    rollouts = some_rollouts(training, spread=True)
    first, _ = training.learner.score(rollouts, 1.0)
    reference, _ = training.learner.score(rollouts, 1.0, reference=True)
    assert np.array_equal(first, reference)
    training.learner.update(rollouts, update=0, temperature=1.0)
    moved, _ = training.learner.score(rollouts, 1.0)
    again, _ = training.learner.score(rollouts, 1.0, reference=True)
    assert np.array_equal(again, reference) and not np.allclose(moved, first)


def test_scores_are_those_of_a_plain_forward_pass(run_of: Make) -> None:
    training = Trainer(run_of("grpo", validation=ValidationConfig(every=0)))
    rollouts = some_rollouts(training)
    found, _ = training.learner.score(rollouts, 0.7)
    model = training.optimizer.policy.model.eval()
    for row, ids in enumerate(rollouts.rows):
        mine = np.flatnonzero(rollouts.action_row == row)
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids.tolist()])).logits[0].double() / 0.7
        logp = torch.log_softmax(logits, -1)
        expected = [float(logp[p - 1, ids[p]]) for p in rollouts.action_position[mine]]
        assert np.allclose(found[mine], expected, atol=1e-5)


@pytest.mark.parametrize("name", ["ppo", "grpo", "dr_grpo"])
def test_what_is_learnt_does_not_depend_on_micro_batches(name: str, run_of: Make) -> None:
    after = []
    for microbatch_tokens in (100_000, 600):
        run = run_of(
            name,
            {"optimization.episodes_per_step": 12},
            hardware=HardwareConfig(device="cpu", microbatch_tokens=microbatch_tokens),
            validation=ValidationConfig(every=0),
        )
        training = Trainer(run)
        rollouts = some_rollouts(training, spread=True)
        # Adam divides by the gradient's size, so compare the gradient's own effect: plain descent.
        policy = training.optimizer.policy
        grads: dict[str, Any] = {}
        step = training.optimizer.optimizer.step
        training.optimizer.optimizer.step = lambda step=step, grads=grads, policy=policy: (
            grads.update({n: p.grad.clone() for n, p in policy.named_parameters() if p.grad is not None}),
            step(),
        )
        training.learner.update(rollouts, update=0, temperature=1.0)
        after.append(grads)
    assert after[0].keys() == after[1].keys() and after[0]
    for key, gradient in after[0].items():
        assert torch.allclose(gradient, after[1][key], rtol=1e-4, atol=1e-6), key


def test_rows_without_advantage_are_spared_the_way_back_and_change_nothing(run_of: Make) -> None:
    """Against the same update with every row sent forward and back."""
    after, reports, backward = [], [], []
    for spare in (True, False):
        run = run_of("dr_grpo", {"optimization.episodes_per_step": 12}, validation=ValidationConfig(every=0))
        training = Trainer(run)
        rollouts = some_rollouts(training, spread=True)
        quiet = rollouts.group[rollouts.turn_episode] == 0
        rollouts = dataclasses.replace(
            rollouts,
            turn_reward=np.where(quiet, 0.0, rollouts.turn_reward),
            turn_penalty=np.zeros(rollouts.turns),
        )
        if not spare:
            none = np.zeros(rollouts.actions, dtype=bool)
            training.learner._silent = lambda *_, none=none: none  # type: ignore[method-assign]
        tokens, policy = [], training.optimizer.policy
        policy.register_forward_hook(
            lambda _, args, kwargs, out, tokens=tokens: tokens.append(len(out[0]) if out[0].requires_grad else 0),
            with_kwargs=True,
        )
        reports.append(training.learner.update(rollouts, update=0, temperature=1.0))
        after.append(weights(training))
        backward.append(sum(tokens))
    assert reports[0] == pytest.approx(reports[1], rel=1e-4, abs=1e-6)
    assert 0 < backward[0] < backward[1]
    for name, weight in after[0].items():
        assert torch.allclose(weight, after[1][name], atol=1e-6), name


def test_an_update_makes_better_actions_likelier(run_of: Make) -> None:
    """The sign of everything: log-probabilities rise where the advantage is positive, and fall where negative."""
    training = Trainer(run_of("dr_grpo", {"optimization.lr": 1e-4}, validation=ValidationConfig(every=0)))
    rollouts = some_rollouts(training, spread=True)
    advantages = training.run.recipe.credit.assign(rollouts).advantages
    before, _ = training.learner.score(rollouts, 1.0)
    training.learner.update(rollouts, update=0, temperature=1.0)
    after, _ = training.learner.score(rollouts, 1.0)
    assert float(((after - before) * advantages).sum()) > 0


@pytest.mark.parametrize(("temperature", "cap"), [(1.0, 1.01), (0.7, 1.01), (0.7, None)])
def test_a_stale_sampler_is_corrected_as_the_formula_says(
    temperature: float, cap: float | None, run_of: Make
) -> None:
    """The gradient is that of -Σ w · min(π / π_sampler, C) · A · log π, by plain forward passes."""
    run = run_of(
        "dr_grpo",
        {
            "sampler.temperature": temperature,
            "objective.mismatch.cap": cap,
            "optimization.episodes_per_step": 12,
            "optimization.max_grad_norm": 1e6,
        },
        validation=ValidationConfig(every=0),
    )
    training = Trainer(run)
    played, _ = training.collector.roll_out(temperature)
    rewards = np.random.default_rng(0).normal(size=played.turns)
    rollouts = dataclasses.replace(played, turn_reward=rewards)
    model = training.optimizer.policy.model
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * parameter.std() * torch.randn(parameter.shape, generator=generator)
    advantages = run.recipe.credit.assign(rollouts).advantages
    losses, ratios = [], []
    for row, ids in enumerate(rollouts.rows):
        mine = np.flatnonzero(rollouts.action_row == row)
        logits = model(input_ids=torch.tensor([ids.tolist()])).logits[0] / temperature
        places = rollouts.action_position[mine]
        logp = torch.log_softmax(logits, -1)[places - 1, torch.tensor(ids)[places]]
        ratio = torch.exp(logp.detach() - torch.tensor(rollouts.logprobs[mine]))
        weight = torch.ones_like(ratio) if cap is None else ratio.clamp(max=cap)
        losses.append(-(weight * torch.tensor(advantages[mine]) * logp).sum())
        ratios.append(ratio)
    length = run.recipe.objective.norm_length
    assert length is not None
    expected = torch.autograd.grad(
        sum(losses) / (rollouts.episodes * length), list(model.parameters()), allow_unused=True
    )
    seen = torch.cat(ratios)
    assert cap is None or 0.02 < float((seen > cap).float().mean()) < 0.9, "the test needs both sides of the cap"
    found: list[Any] = []
    step = training.optimizer.optimizer.step
    training.optimizer.optimizer.step = lambda: (found.extend(p.grad.clone() for p in model.parameters()), step())
    report = training.learner.update(rollouts, update=0, temperature=temperature)
    for mine_, theirs in zip(found, expected, strict=True):
        assert torch.allclose(mine_, theirs.to(mine_), rtol=1e-3, atol=1e-7)
    assert report["mismatch_ratio_max"] == pytest.approx(float(seen.max()), rel=1e-3)
    assert report["mismatch_abs"] == pytest.approx(float(seen.log().abs().mean()), rel=1e-3)
    assert report["mismatch_kl"] == pytest.approx(float((seen - 1 - seen.log()).mean()), rel=1e-2)
    assert report["mismatch_weight"] == pytest.approx(float(seen.clamp(max=cap).mean()) if cap else 1.0, rel=1e-3)


def test_a_step_with_a_nan_gradient_is_skipped_and_three_in_a_row_stop_the_run(run_of: Make) -> None:
    run = run_of(
        "dr_grpo",
        {"optimization.updates": 6, "optimization.episodes_per_step": 12},
        validation=ValidationConfig(every=0),
        checkpoint_every=1,
    )
    training = Trainer(run)
    poisoned = {2, 4, 5, 6}  # of the updates, from 1
    parameter = next(training.optimizer.policy.model.parameters())
    parameter.register_hook(lambda grad: grad * math.nan if training.state.update + 1 in poisoned else grad)
    states = [weights(training)]
    with pytest.raises(Diverged, match="3 steps in a row"):
        for _ in training.run():
            states.append(weights(training))
    assert [record["steps_skipped"] for record in training.history] == [0, 1, 0, 1, 1]
    assert same(states[1], states[2]) and not same(states[2], states[3]) and same(states[3], states[5])
    assert not same(states[0], states[1])
    assert all(value.isfinite().all() for value in states[-1].values())
    assert all(math.isfinite(value) for record in training.history for value in record.values())
    resumed = Trainer(run, resume=True)
    assert resumed.state.update == 5 and same(weights(resumed), states[5])
    assert resumed.optimizer.skipped_in_a_row == 2 and resumed.optimizer.skipped == 3


def test_the_critic_learns_alone_during_its_warm_up(run_of: Make) -> None:
    run = run_of("ppo", {"critic.warmup": 1, "critic.lr": 1e-3}, validation=ValidationConfig(every=0))
    training = Trainer(run)
    states = [weights(training)]
    for _ in training.run():
        states.append(weights(training))
    policy = [{k: v for k, v in state.items() if k.startswith("causal")} for state in states]
    critic = [{k: v for k, v in state.items() if k.startswith("critic")} for state in states]
    assert same(policy[0], policy[1]) and not same(policy[1], policy[2])
    assert not same(critic[0], critic[1]) and not same(critic[1], critic[2])


def test_in_bfloat16_sampling_and_learning_still_agree(run_of: Make) -> None:
    run = run_of("grpo", hardware=HardwareConfig(device="cpu", precision="bfloat16"))
    training = finish(Trainer(run))
    assert all(value.dtype == torch.float32 for value in weights(training).values())
    assert training.history[1]["mismatch_abs"] < 0.05  # of bfloat16's own rounding


def test_the_best_checkpoint_is_kept_beside_the_last(run_of: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of("dr_grpo", {"optimization.updates": 4}, validation=ValidationConfig(every=1, tasks=4))
    training = Trainer(run)
    found = training.sampler.validate
    scores = iter([0.0, 0.25, 0.75, 0.5, 0.75])

    def scripted(*arguments: Any) -> Any:
        score = found(*arguments)
        return dataclasses.replace(score, success=score.success._replace(value=next(scores)))

    monkeypatch.setattr(training.sampler, "validate", scripted)
    finish(training)
    best, last = training.checkpoints.best, training.checkpoints.last
    assert best is not None and best.name == "update-000002"
    assert last is not None and last.name == "update-000004"
    assert sorted(path.name for path in best.parent.glob("update-*")) == [best.name, last.name]


def test_two_processes_learn_what_one_learns(run_of: Make, tmp_path: Path) -> None:
    """Data-parallel on the CPU (gloo), started as Accelerate's and torch's launchers do."""
    code = (
        "import sys, pickle, torch; torch.set_num_threads(1)\n"
        "from arboretum.trainers.trainer import Training\n"
        "training = Training(pickle.load(open(sys.argv[1], 'rb')))\n"
        "[None for _ in training.run()]\n"
        "assert training.accelerator.num_processes == 2\n"
        "training.is_main and torch.save(training.optimizer.policy.state_dict(), sys.argv[2])\n"
    )
    changes = {"optimization.updates": 3}
    options = {
        "validation": ValidationConfig(every=1, tasks=4),
        "hardware": HardwareConfig(device="cpu", microbatch_tokens=2000),
    }
    one = finish(Trainer(run_of("ppo", changes, out=tmp_path / "one", **options)))
    (tmp_path / "child.py").write_text(code)
    (tmp_path / "run.pickle").write_bytes(pickle.dumps(run_of("ppo", changes, out=tmp_path / "two", **options)))
    arguments = [str(tmp_path / name) for name in ("child.py", "run.pickle", "weights.pt")]
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    subprocess.run(
        [*launch, *arguments],
        check=True,
        timeout=200,
        env={**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"},
    )
    two = torch.load(tmp_path / "weights.pt")
    for name, value in weights(one).items():
        assert torch.allclose(two[name], value, rtol=0, atol=1e-5), name
    lines = [json.loads(line) for line in (tmp_path / "two" / "metrics.jsonl").read_text().splitlines()]
    for mine, theirs in zip(numbers(one.history), numbers(lines), strict=True):
        assert mine.keys() == theirs.keys()
        assert all(theirs[key] == pytest.approx(value, rel=1e-3, abs=1e-4) for key, value in mine.items())


def test_the_learning_rate_follows_its_schedule() -> None:
    linear = Optimization(updates=10, warmup=2, schedule="linear")
    assert [lr_factor(linear, n) for n in (0, 1, 2, 6, 10)] == [0.5, 1.0, 1.0, 0.5, 0.0]
    cosine = Optimization(updates=8, schedule="cosine")
    assert lr_factor(cosine, 0) == 1.0 and lr_factor(cosine, 4) == pytest.approx(0.5)
    assert lr_factor(Optimization(updates=10), 9) == 1.0


def test_a_prompt_too_long_for_the_model_is_said_at_once(run_of: Make) -> None:
    with pytest.raises(ConfigurationError, match="do not fit into the model's context of 4096"):
        Trainer(run_of("dr_grpo", {"sampler.reply_tokens": 4096}))


def test_what_a_model_cannot_take_is_said_before_its_weights_are_read(run_of: Make, tmp_path: Path) -> None:
    """A model without weights: what is wrong with the prompts is said first."""
    bare = tmp_path / "bare"
    shutil.copytree(run_of("dr_grpo").model, bare, ignore=shutil.ignore_patterns("*.safetensors"))
    with pytest.raises(ConfigurationError, match="do not fit into the model's context"):
        Trainer(run_of("dr_grpo", {"sampler.reply_tokens": 4096}, model=str(bare)))
    with pytest.raises(ConfigurationError, match="cannot load the model"):
        Trainer(run_of("dr_grpo", model=str(bare)))
    with pytest.raises(ConfigurationError, match="template"):
        Trainer(run_of("dr_grpo", model=str(bare), dialogue=DialogueConfig("no_think", {}, "llama9")))


def test_a_look_that_found_nothing_is_no_score(run_of: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The world fails in every held-out episode of the first look; the looks after it are scored as ever."""
    training = Trainer(run_of("dr_grpo", validation=ValidationConfig(every=1, tasks=4)))
    usual = FrozenLake.step

    def fails(self: Any, action: str) -> Any:
        raise RuntimeError("the ice machine is out of order")

    monkeypatch.setattr(FrozenLake, "step", fails)
    records = training.run()
    first = next(records)
    monkeypatch.setattr(FrozenLake, "step", usual)
    assert first.metrics["validation/failed"] == 4 and "validation/success" not in first.metrics
    assert any("no score" in note for note in first.notes)
    rest = list(records)
    assert all("validation/success" in record.metrics for record in rest)
    assert training.checkpoints.index.score == max(record.metrics["validation/success"] for record in rest)
    assert "NaN" not in (training.run.out / "metrics.jsonl").read_text()


@pytest.mark.parametrize(
    ("recipe", "passes", "passes_saved"),
    [("grpo", ["policy", "reference"], ["reference"]), ("ppo", ["policy", "reference"], ["critic", "reference"])],
)
def test_the_samplers_probabilities_are_the_old_policys(
    run_of: Callable[..., Any], recipe: str, passes: list[str], passes_saved: list[str]
) -> None:
    """Two steps an update: with and without a pass that scores all tokens again, the same within rounding."""
    weights, reports = [], []
    for own in (True, False):
        training = Trainer(run_of(recipe, {"optimization.episodes_per_step": 6, "objective.kl.coef": 0.01}))
        learner = training.learner
        assert learner.own_samples  # float32: what a run on the CPU does by itself
        learner.own_samples = own
        scored: list[str] = []
        score = learner.score

        def counted(*args: Any, score: Any = score, scored: list[str] = scored, **options: Any) -> Any:
            what = "policy" if options.get("use_policy", True) else "critic"
            scored.append("reference" if options.get("reference") else what)
            return score(*args, **options)

        learner.score = counted
        rollouts, _ = training.collector.roll_out(1.0)
        reports.append(learner.update(rollouts, update=0, temperature=1.0))
        assert scored == (passes_saved if own else passes)
        weights.append([p.detach().clone() for p in training.optimizer.policy.model.parameters()])
        training.close()
    for ours, theirs in zip(*weights, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-5)
    ours, theirs = reports
    assert ours["steps"] == 2 and ours["mismatch_abs_max"] < 1e-4
    for name in ("clip_upper", "approx_kl", "entropy", "kl", "grad_norm", "mismatch_abs", "tokens"):
        assert ours[name] == pytest.approx(theirs[name], rel=1e-3, abs=1e-6), name
