"""Warm starts: expert episodes are token-exact, of the quality asked for, and what is learnt is them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from arboretum.agents.dialogue import make_dialogue
from arboretum.agents.episode import Episode
from arboretum.envs.errors import ConfigurationError
from arboretum.eval.suite import Entry

torch = pytest.importorskip("torch", reason="needs torch: pip install 'arboretum[lm]'")
pytest.importorskip("accelerate", reason="needs accelerate: pip install 'arboretum[lm]'")

from arboretum.agents.engines.local.load import load_tokenizer
from arboretum.trainers.config.settings import ExpertConfig
from arboretum.trainers.sampling.demonstrations import collect_demonstrations, demonstration_quality

pytestmark = pytest.mark.heavy


def shown(
    model: Path, world: str, dialogue: str, expert: ExpertConfig, count: int = 24, **settings: object
) -> list[Episode]:
    return collect_demonstrations(
        Entry(world, world, split="train"),
        count,
        tokenizer=load_tokenizer(model),
        context=4096,
        dialogue=make_dialogue(dialogue, settings),
        expert=expert,
    )


@pytest.mark.parametrize("dialogue", ["think", "no_think", "react", "plain"])
def test_demonstrations_are_what_a_perfect_model_would_have_sampled(warm_model: Path, dialogue: str) -> None:
    """Every reply parses, ends where sampling would end, and its tokens decode to it."""
    tokenizer = load_tokenizer(warm_model)
    kind = make_dialogue(dialogue)
    for episode in shown(warm_model, "TextSokoban-v0", dialogue, ExpertConfig(), 6):
        assert episode.success
        for turn in episode.turns:
            assert turn.well_formed and all(move.valid for move in turn.moves) and turn.penalty == 0
            assert turn.token_ids is not None and turn.loss_mask is not None
            said = [i for i, m in zip(turn.token_ids, turn.loss_mask, strict=True) if m]
            text = kind.prefill + tokenizer.decode(said)
            if kind.stop and turn.reply.endswith(kind.stop):
                assert text == turn.reply
            else:
                assert text == turn.reply + "<|im_end|>"
        whole = [i for turn in episode.turns for i in turn.token_ids or ()]
        conversation = tokenizer.decode(whole)
        assert conversation.count("<|im_start|>assistant") == len(episode.turns)


def test_noise_makes_the_expert_worse(warm_model: Path) -> None:
    rates = [
        demonstration_quality(
            shown(warm_model, "TextSokoban-v0", "no_think", ExpertConfig(noise=noise, keep="all"), 60)
        )["success"]
        for noise in (0.0, 0.3, 1.0)
    ]
    assert rates[0] == 1.0 and rates[0] > rates[1] > rates[2]


def test_only_solved_episodes_are_kept_unless_all_are_asked_for(warm_model: Path) -> None:
    episodes = shown(warm_model, "TextSokoban-v0", "no_think", ExpertConfig(noise=0.4), 30)
    assert len(episodes) == 30 and all(episode.success for episode in episodes)
    assert len({episode.seed for episode in episodes}) == 30


def test_budgets_that_no_expert_can_keep_to_are_said(warm_model: Path) -> None:
    with pytest.raises(ConfigurationError, match="raise max_turns"):
        shown(warm_model, "TextSokobanHard-v0", "no_think", ExpertConfig(), 4, max_turns=1, max_actions_per_turn=1)


def test_learning_lowers_the_loss_on_demonstrations_never_seen(warm_model: Path) -> None:
    records = [json.loads(line) for line in (warm_model.parent / "metrics.jsonl").read_text().splitlines()]
    unseen = [record["held_out/loss"] for record in records if "held_out/loss" in record]
    assert unseen[-1] < 0.2 * unseen[0]
    assert sum(record["skipped"] for record in records) == 0
    assert records[-1]["step"] == 20  # 160 episodes, 16 a step, twice


def test_a_warm_model_keeps_to_the_format(warm_model: Path) -> None:
    from arboretum.agents.engines.base import Sampling
    from arboretum.agents.engines.transformers import TransformersEngine
    from arboretum.agents.language import LanguageAgent
    from arboretum.agents.play import Job, play

    engine = TransformersEngine(warm_model, device="cpu")
    kind = make_dialogue(
        "no_think", {"max_turns": 3, "max_actions_per_turn": 2, "max_actions": 6, "show_reward": False}
    )
    agent = LanguageAgent("warm", engine, kind, Sampling(temperature=1.0, max_tokens=12))
    entry = Entry("w", "TextFrozenLake-v0", split="test")
    episodes = list(play(agent, [entry.make() for _ in range(16)], [Job(f"test/{n}", n) for n in range(16)]))
    engine.close()
    turns = [turn for episode in episodes for turn in episode.turns]
    assert sum(turn.well_formed for turn in turns) / len(turns) > 0.6


@pytest.mark.parametrize("lora", [None, 4])
def test_a_resumed_warm_start_continues_to_the_same_numbers(
    warm_model: Path, tmp_path: Path, lora: int | None
) -> None:
    """Interrupted in its second epoch, three steps beyond its last checkpoint."""
    from safetensors.torch import load_file

    from arboretum.trainers.config.run import SFTConfig
    from arboretum.trainers.config.settings import (
        DialogueConfig,
        EnvConfig,
        HardwareConfig,
        LoraConfig,
        SFTSettings,
    )
    from arboretum.trainers.sft import SFTTrainer

    def lesson(name: str) -> SFTConfig:
        return SFTConfig(
            EnvConfig("TextFrozenLake-v0"),
            str(warm_model),
            tmp_path / name,
            dialogue=DialogueConfig("no_think"),
            hardware=HardwareConfig(device="cpu", lora=LoraConfig(rank=lora) if lora else None),
            sft=SFTSettings(episodes=48, batch=8, lr=1e-3, warmup=2),
            checkpoint_every=5,
        )

    def numbers(records: list[dict[str, float]]) -> list[dict[str, float]]:
        return [{name: value for name, value in record.items() if "second" not in name} for record in records]

    torch.manual_seed(0)  # adapters begin at random
    whole = SFTTrainer(lesson("whole"))
    assert [record["step"] for record in whole.run()] == list(range(1, 13))
    expected = load_file(whole.export() / "model.safetensors")
    torch.manual_seed(0)
    first = SFTTrainer(lesson("cut"))
    for record in first.run():
        if record["step"] == 8:
            break
    assert first.checkpoints.index.last == 5
    second = SFTTrainer(lesson("cut"), resume=True)
    assert [record["step"] for record in second.run()] == list(range(6, 13))
    assert numbers(second.history) == numbers(whole.history)
    written = [json.loads(line) for line in (tmp_path / "cut" / "metrics.jsonl").read_text().splitlines()]
    assert written == second.history
    found = load_file(second.export() / "model.safetensors")
    assert found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in found)
    assert not (tmp_path / "cut" / "checkpoints").exists()


def test_a_warm_start_is_resumed_only_as_it_was_begun(warm_model: Path, tmp_path: Path) -> None:
    from arboretum.trainers.checkpoints.run_folder import claim_run_folder
    from arboretum.trainers.config.run import SFTConfig
    from arboretum.trainers.config.settings import EnvConfig

    begun = SFTConfig(EnvConfig("TextFrozenLake-v0"), str(warm_model), tmp_path)
    claim_run_folder(begun, resume=False)
    claim_run_folder(begun, resume=False)  # there is nothing yet to be lost
    (tmp_path / "checkpoints" / "update-000001").mkdir(parents=True)
    (tmp_path / "checkpoints" / "index.json").write_text('{"last": 1}')
    with pytest.raises(ConfigurationError, match="continue it with --resume"):
        claim_run_folder(begun, resume=False)
    with pytest.raises(ConfigurationError, match=r"started with another sft \(lr was 1e-05 and is 0.1\)"):
        claim_run_folder(dataclasses.replace(begun, sft=dataclasses.replace(begun.sft, lr=0.1)), resume=True)
    claim_run_folder(begun, resume=True)
    (tmp_path / "run.json").write_text('{"recipe": {"name": "grpo"}}')
    with pytest.raises(ConfigurationError, match="another kind of run"):
        claim_run_folder(begun, resume=True)
