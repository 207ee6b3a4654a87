"""The training loop end to end, with a real (tiny) model in a real environment."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from arboretum.agents.base import Stop
from arboretum.agents.episode import Episode
from arboretum.envs.errors import ConfigurationError
from arboretum.envs.frozenlake.env import FrozenLake
from arboretum.trainers.algorithms.recipes import RECIPES
from arboretum.trainers.algorithms.selectors import Dynamic, NotEnoughGroups, Selection, Uncertainty

torch = pytest.importorskip("torch", reason="needs torch: pip install 'arboretum-rl[lm]'")
pytest.importorskip("accelerate", reason="needs accelerate: pip install 'arboretum-rl[lm]'")

from arboretum.agents.engines.transformers import TransformersEngine
from arboretum.trainers.checkpoints.export import export_checkpoint
from arboretum.trainers.checkpoints.run_folder import claim_run_folder
from arboretum.trainers.commands.train import train
from arboretum.trainers.config.settings import DialogueConfig, EnvConfig, HardwareConfig, ValidationConfig
from arboretum.trainers.data.rollouts import Rollouts
from arboretum.trainers.monitor import Monitor
from arboretum.trainers.reporting.report import write_report
from arboretum.trainers.reporting.samples import read_samples
from arboretum.trainers.sampling.failures import EpisodesFailed
from arboretum.trainers.sampling.tasks import draw_tasks
from arboretum.trainers.trainer import Trainer
from support.training import Make, equal, finish, weights

pytestmark = [pytest.mark.heavy, pytest.mark.usefixtures("one_thread")]


@pytest.mark.parametrize("name", list(RECIPES))
def test_every_recipe_trains_end_to_end(name: str, run_of: Make) -> None:
    changes: dict[str, object] = {"sampler.prompts": 4, "optimization.episodes_per_step": 4}
    if name == "dapo":
        changes["selector.max_batches"] = 3
    config = run_of(name, changes)
    config.check()
    claim_run_folder(config, resume=False)
    trainer = Trainer(config)
    before = weights(trainer)
    finish(trainer)
    lines = [json.loads(line) for line in (config.out / "metrics.jsonl").read_text().splitlines()]
    assert [line["update"] for line in lines] == [0, 1, 2]
    assert "validation/success" in lines[0] and "validation/success" in lines[2]
    trained = [line for line in lines[1:] if line["groups_kept"] > 0]
    assert trained, "no update found a group to train on"
    for line in trained:
        assert line["grad_norm"] > 0 and line["entropy"] > 0 and line["steps_skipped"] == 0
        assert line["mismatch_abs_max"] < 1e-4 and line["mismatch_ratio_max"] == pytest.approx(1, abs=1e-4)
        assert ("kl" in line) == RECIPES[name].needs_token_reference
        assert ("value_loss" in line) == (RECIPES[name].critic is not None)
        assert ("explained_variance" in line) == (RECIPES[name].critic is not None)
        assert "policy_loss" in line and 0 <= line["invalid_replies"] <= line["replies"] > 0
    after = weights(trainer)
    assert not equal(before, after) and all(value.isfinite().all() for value in after.values())
    folder = export_checkpoint(config.out)
    engine = TransformersEngine(folder, device="cpu")
    engine.close()
    trainer.close()


@pytest.mark.parametrize("name", ["grpo", "ppo", "gigpo"])
def test_easy_environment_is_solved_in_seconds(name: str, run_of: Make) -> None:
    """One small map, two steps to the goal, no slipping: success must rise to near certainty."""
    config = run_of(
        name,
        {
            "sampler.prompts": 4,
            "sampler.rollouts": 8,
            # The published penalty of gigpo for invalid turns is small against its rewards, so it takes longer.
            "optimization.updates": 14 if name == "gigpo" else 9,
            "optimization.lr": 5e-4,
            "optimization.episodes_per_step": 32,
        },
        env=EnvConfig("TextFrozenLake-v0", {"map": ("SF", "FG"), "success_rate": 1.0}, None),
        validation=ValidationConfig(every=0),
    )
    history = finish(Trainer(config)).history
    first, last = history[0]["success"], np.mean([record["success"] for record in history[-2:]])
    assert first < 0.75 and last > 0.9


def test_update_without_advantages_has_no_rate_of_training(run_of: Make) -> None:
    """One action cannot reach a goal that is four steps away, so that every return is 0."""
    lake = EnvConfig("TextFrozenLake-v0", {"map": ("SFF", "FFF", "FFG"), "success_rate": 1.0}, None)
    one = {"sampler.max_turns": 1, "sampler.max_actions_per_turn": 1, "sampler.max_actions": 1}
    settings = {**one, "sampler.format_penalty": 0.0}
    trainer = finish(Trainer(run_of("dr_grpo", settings, env=lake, validation=ValidationConfig(every=0))))
    for record in trainer.history:
        assert record["silent_groups"] == 1.0 and "tokens" not in record
        assert "trained_tokens_per_second" not in record and record["sampled_tokens_per_second"] > 0


def test_bfloat16_sampling_and_training_agree_within_rounding(run_of: Make) -> None:
    trainer = finish(Trainer(run_of("grpo", hardware=HardwareConfig(device="cpu", precision="bfloat16"))))
    assert all(value.dtype == torch.float32 for value in weights(trainer).values())
    assert trainer.history[1]["mismatch_abs"] < 0.05  # bfloat16's own rounding


# ---------------------------------------------------------------------- validation


def test_best_checkpoint_is_kept_beside_the_last(run_of: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    config = run_of("dr_grpo", {"optimization.updates": 4}, validation=ValidationConfig(every=1, tasks=4))
    trainer = Trainer(config)
    validate = trainer.sampler.validate
    scores = iter([0.0, 0.25, 0.75, 0.5, 0.75])

    def scripted(*arguments: Any) -> Any:
        result = validate(*arguments)
        return dataclasses.replace(result, success=result.success._replace(value=next(scores)))

    monkeypatch.setattr(trainer.sampler, "validate", scripted)
    finish(trainer)
    best, last = trainer.checkpoints.best, trainer.checkpoints.last
    assert best is not None and best.name == "update-000002"
    assert last is not None and last.name == "update-000004"
    assert sorted(path.name for path in best.parent.glob("update-*")) == [best.name, last.name]


# ---------------------------------------------------------------------- failures


def fail_in(monkeypatch: pytest.MonkeyPatch, tasks: Callable[[str], bool]) -> None:
    """Let the environment raise in every step of some tasks."""
    working = FrozenLake.step

    def step(self: Any, action: str) -> Any:
        if tasks(self.task):
            raise RuntimeError("the ice machine is out of order")
        return working(self, action)

    monkeypatch.setattr(FrozenLake, "step", step)


def test_episodes_with_an_error_count_as_unsolved(run_of: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of eight held-out tasks with two episodes each, the environment fails in one that the policy solves."""
    validation = ValidationConfig(every=1, tasks=8, repeats=2)
    config = run_of("dr_grpo", validation=validation, monitor=Monitor(failed=0.125))
    trainer = Trainer(config)
    whole = next(trainer.run())
    samples = trainer.sampler.validate(config.env, validation, 1.0, config.seed).samples
    victim = next(episode.task for episode in samples if episode.success)
    fail_in(monkeypatch, lambda task: task == victim)
    first = next(Trainer(config).run())
    assert first.metrics["validation/failed"] == 2 and whole.metrics["validation/failed"] == 0
    lost = 16 * (whole.metrics["validation/success"] - first.metrics["validation/success"])
    assert lost == pytest.approx(1) or lost == pytest.approx(2)
    assert whole.notes == []
    (note,) = first.notes
    assert note.startswith(
        "update 0: 2 of 16 validation episodes ended with an error, the last with: the environment failed: "
        "RuntimeError: the ice machine is out of order (test_trainer.py, line "
    )


def test_training_counts_episodes_with_an_error_and_trains_on_the_others(
    run_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes: dict[str, object] = {"sampler.prompts": 6, "optimization.updates": 1}
    config = run_of("dr_grpo", changes, validation=ValidationConfig(every=0))
    claim_run_folder(config, resume=False)
    trainer = Trainer(config)
    victim = draw_tasks(trainer.collector.env.tasks, 0, 6, config.seed)[2]
    fail_in(monkeypatch, lambda task: task == victim)
    (record,) = trainer.run()
    assert record.metrics["failed"] == 4 and record.metrics["episodes"] == 20 and record.metrics["grad_norm"] > 0
    solved = 24 * record.metrics["success"]
    assert solved > 0 and solved == pytest.approx(round(solved))
    assert record.notes[0].startswith("update 1: 4 of 24 episodes ended with an error, the last with: the env")
    trainer.close()
    page = write_report(config.out).read_text()
    assert "4 training episodes ended with an error" in page and "Failed episodes" in page


def test_redrawn_outcomes_with_an_error_are_left_out_until_they_are_too_many(
    run_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {"credit.redraws": 2, "optimization.updates": 3}
    trainer = Trainer(run_of("grove", changes, validation=ValidationConfig(every=0)))
    records = trainer.run()
    assert not next(records).notes
    working, calls = FrozenLake.restore, iter(range(1_000_000))
    every = 9

    def restore(self: Any, snapshot: Any, seed: int | None = None) -> None:
        if next(calls) % every == 0:
            raise RuntimeError("the ice machine is out of order")
        working(self, snapshot, seed)

    monkeypatch.setattr(FrozenLake, "restore", restore)
    record = next(records)
    assert record.metrics["grove/redrawn"] > 0 and record.metrics["failed"] == 0
    assert "redrawn outcomes ended with an error, the last with: RuntimeError: the ice machine" in record.notes[0]
    every = 2
    with pytest.raises(EpisodesFailed, match=r"redrawn outcomes ended with an error, .* raise --monitor"):
        next(records)
    assert trainer.checkpoints.index.last == trainer.state.update == 2


@pytest.mark.parametrize("place", ["training", "validation"])
def test_too_many_episodes_with_an_error_end_the_run_with_the_reason(
    place: str, run_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment fails after the second update, in a quarter of the training or in all held-out tasks."""
    config = run_of(
        "dr_grpo",
        {"sampler.prompts": 4, "optimization.updates": 9},
        validation=ValidationConfig(every=3 if place == "validation" else 0, tasks=8),
        checkpoint_every=9,
    )
    trainer = Trainer(config)
    records = trainer.run()
    while next(records).metrics["update"] < 2:
        pass
    trained = draw_tasks(trainer.collector.env.tasks, trainer.state.task, 4, config.seed)
    if place == "training":
        fail_in(monkeypatch, lambda task: task == trained[0])
        failed, done = "4 of 16 episodes", 2
    else:
        fail_in(monkeypatch, lambda task: task not in trained)
        failed, done = "8 of 8 validation episodes", 3
    with pytest.raises(EpisodesFailed) as failure:
        list(records)
    assert str(failure.value).startswith(
        f"{failed} ended with an error, the last with: the environment failed: RuntimeError: the ice machine is "
        "out of order (test_trainer.py, line "
    )
    assert str(failure.value).endswith("; mend the environment, or raise --monitor.failed, which is 0.2.")
    assert trainer.checkpoints.index.last == trainer.state.update == done
    after = weights(trainer)
    monkeypatch.undo()
    resumed = Trainer(config, resume=True)
    assert [record["update"] for record in resumed.history if record["update"]] == [1, 2]
    assert equal(weights(resumed), after)
    following = next(resumed.run()).metrics
    assert following["update"] == 3 and ("validation/success" in following) == (place == "validation")


def test_groups_are_selected_by_scaled_rewards(run_of: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    returns: set[float] = set()

    def select(self: Uncertainty, rollouts: Rollouts) -> Selection:
        returns.update(rollouts.returns(penalties=False).tolist())
        return Selection(tuple(range(rollouts.groups)))

    monkeypatch.setattr(Uncertainty, "select", select)
    changes = {"sampler.prompts": 6, "selector.name": "uncertainty", "rewards.scale": 10.0}
    next(Trainer(run_of("dr_grpo", changes, validation=ValidationConfig(every=0))).run())
    assert returns == {0.0, 10.0}


def test_only_samples_keep_their_exchanges(run_of: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer(run_of("dr_grpo", validation=ValidationConfig(every=2, tasks=8)))
    roll_out = trainer.sampler.roll_out
    kept: list[bool] = []

    def recording(*args: Any, **options: Any) -> list[Episode]:
        episodes = roll_out(*args, **options)
        kept.extend(bool(episode.exchanges) for episode in episodes)
        return episodes

    monkeypatch.setattr(trainer.sampler, "roll_out", recording)
    records = trainer.run()
    next(records)
    assert len(kept) == 8 and sum(kept) == 6
    next(records)
    assert len(kept) == 8 + 12 and sum(kept) == 6


def test_failed_validation_of_the_last_update_is_repeated_by_a_resumed_run(
    run_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes: dict[str, object] = {"sampler.prompts": 4, "optimization.updates": 2}
    config = run_of("dr_grpo", changes, validation=ValidationConfig(every=2, tasks=8))
    claim_run_folder(config, resume=False)
    trainer = Trainer(config)
    records = trainer.run()
    while next(records).metrics["update"] < 1:
        pass
    trained = draw_tasks(trainer.collector.env.tasks, trainer.state.task, 4, config.seed)
    fail_in(monkeypatch, lambda task: task not in trained)
    with pytest.raises(EpisodesFailed):
        list(records)
    monkeypatch.undo()
    resumed = Trainer(config, resume=True)
    (record,) = resumed.run()
    assert record.metrics["update"] == 2 and resumed.checkpoints.index.best == 2
    assert resumed.checkpoints.index.score == record.metrics["validation/success"]
    samples = Counter((sample["update"], sample["task"]) for sample in read_samples(config.out))
    assert {update for update, _ in samples} == {0, 2} and set(samples.values()) == {1}
    lines = [json.loads(line) for line in (config.out / "metrics.jsonl").read_text().splitlines()]
    assert [line["update"] for line in lines] == [0, 1, 2] and "validation/success" in lines[2]
    assert not list(Trainer(config, resume=True).run())


STRICT: dict[str, object] = {
    "sampler.prompts": 3,
    "optimization.updates": 9,
    "selector.max_batches": 2,
    "selector.on_exhausted": "raise",
}
"""Settings of a run that stops where too few groups are informative."""


@pytest.mark.parametrize("cause", ["errors", "groups"])
def test_update_that_fails_leaves_a_checkpoint_with_the_counters_of_its_start(
    cause: str, run_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second generation batch of update 2 ends with errors, or is the last without enough groups."""
    config = run_of("dapo", STRICT, validation=ValidationConfig(every=0), checkpoint_every=9)
    monkeypatch.setattr(Dynamic, "select", lambda self, rollouts: Selection((0, 1, 2)))
    trainer = Trainer(config)
    records = trainer.run()
    next(records)
    before = dataclasses.replace(trainer.state)
    monkeypatch.setattr(Dynamic, "select", lambda self, rollouts: Selection((0,)))
    if cause == "errors":
        later = draw_tasks(trainer.collector.env.tasks, trainer.state.task + 3, 3, config.seed)
        first = draw_tasks(trainer.collector.env.tasks, trainer.state.task, 3, config.seed)
        fail_in(monkeypatch, lambda task: task in later and task not in first)
    with pytest.raises(EpisodesFailed if cause == "errors" else NotEnoughGroups):
        next(records)
    monkeypatch.undo()
    resumed = Trainer(config, resume=True)
    assert resumed.state == before and before.update == 1


def test_run_that_would_stop_again_is_not_advised_to_go_on(
    run_of: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = run_of("dapo", STRICT, validation=ValidationConfig(every=0), checkpoint_every=1)
    kept = iter([(0, 1, 2)])
    monkeypatch.setattr(Dynamic, "select", lambda self, rollouts: Selection(next(kept, (0,))))
    assert train(config, console=Console(width=300)) == 1
    output = capsys.readouterr().out
    assert "Stopped (update 2 of 9): 2 generation batches had 2 of 3 informative groups" in output
    assert "update-000001 is kept; a resumed run would stop in the same way again, so begin a new one" in output
    assert "continue from it" not in output


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (Stop("the server is gone"), "sampling failed: the server is gone."),
        (
            RuntimeError("CUDA error: an illegal memory access"),
            "CUDA error: an illegal memory access",
        ),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB."), "CUDA out of memory. Tried to"),
    ],
)
def test_failure_of_the_engine_ends_the_run_and_leaves_the_last_checkpoint(
    error: Exception,
    message: str,
    run_of: Make,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = {"checkpoint_every": 1, "validation": ValidationConfig(every=0)}
    config = run_of("dr_grpo", {"optimization.updates": 4}, **options)
    working, metrics = TransformersEngine.collect, config.out / "metrics.jsonl"

    def collect(self: Any) -> Any:
        if metrics.read_text().count("\n") >= 2:
            raise error
        return working(self)

    monkeypatch.setattr(TransformersEngine, "collect", collect)
    assert train(config, console=Console(width=300)) == 1
    output = capsys.readouterr().out
    assert re.search(rf"Stopped \(update 3 of 4\): .*{re.escape(message)}", output, re.DOTALL)
    assert "update-000002 is kept; continue from it with: arboretum train --resume" in output
    monkeypatch.undo()
    assert finish(Trainer(config, resume=True)).state.update == 4


# ---------------------------------------------------------------------- models that do not fit the run


def test_prompt_longer_than_context_is_rejected(run_of: Make) -> None:
    with pytest.raises(ConfigurationError, match="do not fit into the model's context of 4096"):
        Trainer(run_of("dr_grpo", {"sampler.reply_tokens": 4096}))


def test_prompt_longer_than_context_is_rejected_before_loading_weights(run_of: Make, tmp_path: Path) -> None:
    """The folder of the model lacks the weights, which would be an error of its own."""
    bare = tmp_path / "bare"
    shutil.copytree(run_of("dr_grpo").model, bare, ignore=shutil.ignore_patterns("*.safetensors", "SHA256SUMS"))
    with pytest.raises(ConfigurationError, match="do not fit into the model's context"):
        Trainer(run_of("dr_grpo", {"sampler.reply_tokens": 4096}, model=str(bare)))
    with pytest.raises(ConfigurationError, match="cannot load the model"):
        Trainer(run_of("dr_grpo", model=str(bare)))
    with pytest.raises(ConfigurationError, match="template"):
        Trainer(run_of("dr_grpo", model=str(bare), dialogue=DialogueConfig("no_think", {}, "llama9")))


@pytest.mark.parametrize("selector", ["all", "dynamic"])
def test_updates_without_an_advantage_change_nothing_and_end_the_run(selector: str, run_of: Make) -> None:
    """One action cannot reach the goal, so every return is 0; grpo has an entropy bonus and a KL term."""
    changes: dict[str, object] = {
        "sampler.max_turns": 1,
        "sampler.max_actions_per_turn": 1,
        "sampler.max_actions": 1,
        "sampler.format_penalty": 0.0,
        "optimization.updates": 9,
        "selector.name": selector,
    }
    if selector == "dynamic":
        changes["selector.max_batches"] = 2
    monitor = Monitor(uninformative=3)
    env = EnvConfig("TextFrozenLake-v0", {"start_goal": "corners"})
    validation = ValidationConfig(every=5, tasks=4)
    config = run_of("grpo", changes, env=env, monitor=monitor, validation=validation)
    trainer = Trainer(config)
    before = weights(trainer)
    initial, *records = trainer.run()
    assert equal(weights(trainer), before)
    scores = [record.metrics.get("validation/success") for record in (initial, *records)]
    assert scores == [scores[0], None, None, scores[0]] and scores[0] is not None  # The last update is validated.
    assert [record.metrics["uninformative"] for record in records] == [1, 2, 3]
    assert "the policy is unchanged (3 in a row)" in records[-1].notes[0]
    reasons = {
        "all": "had no advantage: all episodes",
        "dynamic": "took no step: the selector dynamic kept no group",
    }
    assert trainer.stopped is not None and trainer.stopped.startswith(f"3 updates in a row {reasons[selector]}")
    resumed = Trainer(config, resume=True)
    assert resumed.state.uninformative == 3 and resumed.state.update == 3


def test_run_ends_with_the_update_in_which_its_tokens_are_spent(run_of: Make, tmp_path: Path) -> None:
    """The last update is validated and kept, and a resumed run counts the tokens of the part before."""
    whole = run_of("grpo", {"optimization.updates": 6}, out=tmp_path / "whole")
    claim_run_folder(whole, resume=False)
    finish(trainer := Trainer(whole))
    tokens = [record["sampled_tokens"] for record in trainer.history[1:]]
    limit = int(sum(tokens[:3])) - 1
    settings = {"optimization.updates": 6, "optimization.max_tokens": limit}
    config = run_of("grpo", settings, checkpoint_every=1, validation=ValidationConfig(every=5, tasks=6))
    claim_run_folder(config, resume=False)
    first = Trainer(config)
    for record in first.run():
        if record.metrics["update"] == 2:
            break
    first.close()
    finish(resumed := Trainer(config, resume=True))
    assert [record["update"] for record in resumed.history] == [0, 1, 2, 3]
    assert [record["sampled_tokens"] for record in resumed.history[1:]] == tokens[:3]
    assert "validation/success" in resumed.history[3] and resumed.checkpoints.last is not None
    assert resumed.state.tokens == sum(tokens[:3]) > limit


def test_engine_is_closed_if_a_later_part_cannot_be_made(run_of: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[TransformersEngine] = []

    def refuse(*arguments: Any, **settings: Any) -> None:
        raise ConfigurationError("no room")

    monkeypatch.setattr("arboretum.trainers.checkpoints.components.Learner", refuse)
    monkeypatch.setattr(TransformersEngine, "close", lambda engine: closed.append(engine))
    with pytest.raises(ConfigurationError, match="no room"):
        Trainer(run_of("dr_grpo", {}))
    assert len(closed) == 1
