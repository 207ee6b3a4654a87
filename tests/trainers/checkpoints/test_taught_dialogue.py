"""A run says when its model does not master the dialogue, and models carry the dialogue that they were taught."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from arboretum.trainers.checkpoints.taught_dialogue import advise_on_dialogue, is_mastered

for module in ("torch", "accelerate"):
    pytest.importorskip(module, reason="needs torch and accelerate: pip install 'arboretum-rl[lm]'")

from arboretum.agents.engines.shipped_models import model_source
from arboretum.trainers.checkpoints.export import export_checkpoint
from arboretum.trainers.checkpoints.run_folder import claim_run_folder
from arboretum.trainers.config.settings import DialogueConfig, HardwareConfig, LoraConfig, ValidationConfig
from arboretum.trainers.trainer import Trainer
from support.training import Make, finish


def taught(folder: Path | str) -> str | None:
    name = json.loads((Path(folder) / "config.json").read_text()).get("arboretum_dialogue")
    assert name is None or isinstance(name, str)
    return name


def counts(replies: int, invalid: int, truncated: int, prefix: str = "") -> dict[str, float]:
    return {
        "update": 1,
        f"{prefix}replies": replies,
        f"{prefix}invalid_replies": invalid,
        f"{prefix}truncated_replies": truncated,
    }


def test_advice_names_the_dialogue_that_the_model_was_taught() -> None:
    advice = advise_on_dialogue(counts(640, 640, 0), "think", "no_think", 400)
    assert advice is not None and advice.startswith(
        "update 1: no reply kept to dialogue 'think'; the model was taught"
    )
    assert advice.endswith("'no_think': start again with --dialogue no_think.")
    validation = advise_on_dialogue(counts(640, 630, 0, "validation/"), "think", "no_think", 400)
    assert validation is not None and "only 10 of 640 replies kept to" in validation


def test_advice_without_a_known_dialogue_names_another_cause_or_a_remedy() -> None:
    short = advise_on_dialogue(counts(640, 640, 600), "think", None, 24)
    assert (
        short is not None and "600 of 640 were cut off at their limit of 24 tokens: raise sampler.reply" in short
    )
    other = advise_on_dialogue(counts(640, 640, 0), "think", "think", 24)
    assert other is not None and "`arboretum sft --dialogue think`" in other


def test_dialogue_of_any_form_is_judged_by_legal_actions() -> None:
    hardly = {**counts(640, 0, 0), "valid_turns": 0.04}
    advice = advise_on_dialogue(hardly, "plain", "no_think", 24)
    assert advice == (
        "update 1: hardly an action was legal in dialogue 'plain'; the model was taught 'no_think': start again "
        "with --dialogue no_think."
    )
    assert advise_on_dialogue({**hardly, "valid_turns": 0.3}, "plain", "no_think", 24) is None
    # A model that was taught the dialogue, or none that is known, may just not play well yet.
    assert (
        advise_on_dialogue(hardly, "plain", "plain", 24) is advise_on_dialogue(hardly, "plain", None, 24) is None
    )


def test_no_advice_for_a_model_that_masters_its_dialogue() -> None:
    assert advise_on_dialogue(counts(640, 500, 0), "think", "no_think", 24) is None
    assert advise_on_dialogue({"update": 1}, "think", None, 24) is None


def test_shipped_model_carries_its_dialogue() -> None:
    assert taught(model_source("sapling")) == "no_think"


@pytest.mark.heavy
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("every", [0, 1])
def test_run_in_a_dialogue_that_the_model_was_not_taught_says_so_once(every: int, run_of: Make) -> None:
    config = run_of(
        "dr_grpo",
        model="sapling",
        dialogue=DialogueConfig("think"),
        validation=ValidationConfig(every=every, tasks=4),
    )
    trainer = Trainer(config)
    notes = [note for record in trainer.run() for note in record.notes if "dialogue" in note]
    trainer.close()
    assert notes == [
        f"update {0 if every else 1}: no reply kept to dialogue 'think'; the model was taught 'no_think': start "
        "again with --dialogue no_think."
    ]
    first = trainer.history[0]
    prefix = "validation/" if every else ""
    assert first[f"{prefix}invalid_replies"] == first[f"{prefix}replies"] > 0


@pytest.mark.heavy
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("lora", [None, LoraConfig(rank=2)])
def test_exported_models_carry_the_dialogue_of_their_training(
    lora: LoraConfig | None, warm_model: Path, tmp_path: Path, run_of: Make
) -> None:
    assert taught(warm_model) == "no_think"  # fine-tuned
    other = tmp_path / "other"
    shutil.copytree(warm_model, other, ignore=shutil.ignore_patterns("SHA256SUMS"))
    settings = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(settings | {"arboretum_dialogue": "tags"}))
    config = run_of("dr_grpo", model=str(other), hardware=HardwareConfig(device="cpu", lora=lora))
    claim_run_folder(config, resume=False)
    finish(Trainer(config)).close()
    assert taught(export_checkpoint(config.out)) == "no_think"


@pytest.mark.heavy
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("lora", [None, LoraConfig(rank=2)])
@pytest.mark.parametrize("known", [True, False])
def test_resumed_run_does_not_record_a_dialogue_that_its_model_does_not_master(
    known: bool, lora: LoraConfig | None, warm_model: Path, tmp_path: Path, run_of: Make
) -> None:
    model = tmp_path / "model"
    shutil.copytree(warm_model, model, ignore=shutil.ignore_patterns("SHA256SUMS"))
    settings = json.loads((model / "config.json").read_text()) | {"arboretum_dialogue": "no_think"}
    if not known:
        del settings["arboretum_dialogue"]
    (model / "config.json").write_text(json.dumps(settings))
    config = run_of(
        "dr_grpo",
        {"sampler.reply_tokens": 1},
        model=str(model),
        dialogue=DialogueConfig("think"),
        hardware=HardwareConfig(device="cpu", lora=lora),
        checkpoint_every=1,
    )
    claim_run_folder(config, resume=False)
    trainer = Trainer(config)
    while next(iter(trainer.run())).metrics["update"] < 1:
        pass
    trainer.close()
    finish(Trainer(config, resume=True)).close()
    assert taught(export_checkpoint(config.out)) == ("no_think" if known else None)


def test_dialogue_is_mastered_once_a_policy_has_learned_it() -> None:
    unable, able = counts(640, 640, 0, "validation/"), counts(640, 500, 0)
    assert not is_mastered([]) and not is_mastered([{"update": 1}, unable])
    assert is_mastered([unable, able]) and is_mastered([able])


@pytest.mark.heavy
@pytest.mark.usefixtures("one_thread")
def test_truncated_replies_are_counted(run_of: Make) -> None:
    """With one token a reply can hold no action, and every reply reaches its limit."""
    trainer = Trainer(run_of("dr_grpo", {"sampler.reply_tokens": 1}, validation=ValidationConfig(every=0)))
    record = next(trainer.run())
    trainer.close()
    replies = record.metrics["replies"]
    assert replies == record.metrics["truncated_replies"] == record.metrics["invalid_replies"] >= 12
    assert any("cut off at their limit of 1 tokens" in note for note in record.notes)
