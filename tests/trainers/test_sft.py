"""Supervised fine-tuning: demonstrations are token-exact and of the requested quality, and models imitate them."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from arboretum.agents.dialogue import Parsed, make_dialogue
from arboretum.agents.dialogue.plain import Plain
from arboretum.agents.episode import Episode
from arboretum.envs.errors import ConfigurationError, DataError
from arboretum.envs.frozenlake import FrozenLake
from arboretum.eval.suite import Entry

torch = pytest.importorskip("torch", reason="needs torch: pip install 'arboretum-rl[lm]'")
pytest.importorskip("accelerate", reason="needs accelerate: pip install 'arboretum-rl[lm]'")

from arboretum.agents.engines.local.load import load_tokenizer
from arboretum.trainers.commands.fine_tune import fine_tune
from arboretum.trainers.config.run import SFTConfig
from arboretum.trainers.config.settings import (
    DialogueConfig,
    EnvConfig,
    ExpertConfig,
    HardwareConfig,
    LoraConfig,
    SFTSettings,
)
from arboretum.trainers.sampling.demonstrations import collect_demonstrations, demonstration_quality
from arboretum.trainers.sft import SFTTrainer
from arboretum.trainers.state import Activity
from support.training import without_times

pytestmark = pytest.mark.heavy


def demonstrations(
    model: Path, env: str, dialogue: str, expert: ExpertConfig, count: int = 24, **settings: object
) -> list[Episode]:
    return collect_demonstrations(
        Entry(env, env, split="train"),
        count,
        tokenizer=load_tokenizer(model),
        context=4096,
        dialogue=make_dialogue(dialogue, settings),
        expert=expert,
    )


# ---------------------------------------------------------------------- demonstrations


@pytest.mark.parametrize("name", ["think", "no_think", "react", "plain"])
def test_demonstrations_are_episodes_that_a_perfect_model_could_sample(warm_model: Path, name: str) -> None:
    """Every reply parses, ends where sampling would end, and its tokens decode to it."""
    tokenizer = load_tokenizer(warm_model)
    dialogue = make_dialogue(name)
    for episode in demonstrations(warm_model, "TextSokoban-v0", name, ExpertConfig(), 6):
        assert episode.success
        for turn in episode.turns:
            assert turn.well_formed and all(move.valid for move in turn.moves) and turn.penalty == 0
            assert turn.token_ids is not None and turn.loss_mask is not None
            sampled = [token for token, mask in zip(turn.token_ids, turn.loss_mask, strict=True) if mask]
            text = dialogue.prefill + tokenizer.decode(sampled)
            if dialogue.stop and turn.reply.endswith(dialogue.stop):
                assert text == turn.reply
            else:
                assert text == turn.reply + "<|im_end|>"
        tokens = [token for turn in episode.turns for token in turn.token_ids or ()]
        conversation = tokenizer.decode(tokens)
        assert conversation.count("<|im_start|>assistant") == len(episode.turns)


def test_noise_lowers_the_success_of_the_expert(warm_model: Path) -> None:
    rates = [
        demonstration_quality(
            demonstrations(warm_model, "TextSokoban-v0", "no_think", ExpertConfig(noise=noise, keep="all"), 60)
        )["success"]
        for noise in (0.0, 0.3, 1.0)
    ]
    assert rates[0] == 1.0 and rates[0] > rates[1] > rates[2]


def test_only_solved_episodes_are_kept_by_default(warm_model: Path) -> None:
    episodes = demonstrations(warm_model, "TextSokoban-v0", "no_think", ExpertConfig(noise=0.4), 30)
    assert len(episodes) == 30 and all(episode.success for episode in episodes)
    assert len({episode.seed for episode in episodes}) == 30


def test_budget_too_small_for_the_expert_is_reported(warm_model: Path) -> None:
    budget = {"max_turns": 1, "max_actions_per_turn": 1}
    with pytest.raises(ConfigurationError, match="raise max_turns"):
        demonstrations(warm_model, "TextSokobanHard-v0", "no_think", ExpertConfig(), 4, **budget)


def test_option_of_the_dialogue_in_the_environment_holds_in_demonstrations(
    warm_model: Path, tmp_path: Path
) -> None:
    turns = []
    for options in ({}, {"max_turns": 1}):
        config = SFTConfig(
            EnvConfig("TextFrozenLake-v0", dialogue=options),
            str(warm_model),
            tmp_path,
            dialogue=DialogueConfig("no_think"),
            sft=SFTSettings(episodes=8),
            expert=ExpertConfig(keep="all"),
        )
        trainer = SFTTrainer(config)
        assert trainer.sampler.dialogue.max_turns == options.get("max_turns", 5)
        turns.append(max(len(one.turns) for one in trainer.demonstrations))
        trainer.close()
    assert turns[1] == 1


class Loud(Plain):
    """Dialogue that inherits how `Plain` writes demonstrations, and parses another form."""

    def parse(self, reply: str) -> Parsed:
        return Parsed((reply[4:],), None, True) if reply.startswith("Do: ") else Parsed((), None, False)


@pytest.mark.parametrize("keep", ["solved", "all"])
def test_dialogue_that_refuses_its_own_demonstrations_is_named_with_one_of_them(
    warm_model: Path, tmp_path: Path, keep: Any
) -> None:
    config = SFTConfig(
        EnvConfig("TextFrozenLake-v0"),
        str(warm_model),
        tmp_path / "run",
        dialogue=DialogueConfig(f"{__name__}:Loud"),
        hardware=HardwareConfig(device="cpu"),
        expert=ExpertConfig(keep=keep),
    )
    message = (
        r"^Loud\.parse \(test_sft\.py, line \d+\) refuses the demonstration '\w+' of its own dialogue; have"
        r" Dialogue\.demonstrate \(\w+\.py, line \d+\) write replies that it accepts\.$"
    )
    with pytest.raises(ConfigurationError, match=message):
        fine_tune(config, console=Console(file=io.StringIO()))
    assert not (tmp_path / "run").exists()


# ---------------------------------------------------------------------- training


def test_fine_tuning_lowers_the_loss_on_held_out_demonstrations(warm_model: Path) -> None:
    records = [json.loads(line) for line in (warm_model.parent / "metrics.jsonl").read_text().splitlines()]
    held_out = [record["held_out/loss"] for record in records if "held_out/loss" in record]
    assert held_out[-1] < 0.2 * held_out[0]
    assert sum(record["skipped"] for record in records) == 0
    assert records[-1]["step"] == 20  # 160 episodes in batches of 16, twice


def test_fine_tuned_model_replies_in_the_format_of_the_dialogue(warm_model: Path) -> None:
    from arboretum.agents.engines.base import Sampling
    from arboretum.agents.engines.transformers import TransformersEngine
    from arboretum.agents.language import LanguageAgent
    from arboretum.agents.play import Job, play

    engine = TransformersEngine(warm_model, device="cpu")
    budget = {"max_turns": 3, "max_actions_per_turn": 2, "max_actions": 6, "show_reward": False}
    agent = LanguageAgent(
        "warm", engine, make_dialogue("no_think", budget), Sampling(temperature=1.0, max_tokens=12)
    )
    entry = Entry("w", "TextFrozenLake-v0", split="test")
    episodes = list(play(agent, [entry.make() for _ in range(16)], [Job(f"test/{n}", n) for n in range(16)]))
    engine.close()
    turns = [turn for episode in episodes for turn in episode.turns]
    assert sum(turn.well_formed for turn in turns) / len(turns) > 0.6


@pytest.mark.parametrize("lora", [None, 4])
def test_resumed_run_continues_to_the_same_numbers(warm_model: Path, tmp_path: Path, lora: int | None) -> None:
    """The run is interrupted in its second epoch, three steps after its last checkpoint."""
    from safetensors.torch import load_file

    def config(name: str) -> SFTConfig:
        return SFTConfig(
            EnvConfig("TextFrozenLake-v0"),
            str(warm_model),
            tmp_path / name,
            dialogue=DialogueConfig("no_think"),
            hardware=HardwareConfig(device="cpu", lora=LoraConfig(rank=lora) if lora else None),
            sft=SFTSettings(episodes=48, batch=8, lr=1e-3, warmup=2),
            checkpoint_every=5,
        )

    uninterrupted = SFTTrainer(config("uninterrupted"))
    assert [record["step"] for record in uninterrupted.run()] == list(range(1, 13))
    expected = load_file(uninterrupted.export() / "model.safetensors")
    interrupted = SFTTrainer(config("interrupted"))
    for record in interrupted.run():
        if record["step"] == 8:
            break
    assert interrupted.checkpoints.index.last == 5
    resumed = SFTTrainer(config("interrupted"), resume=True)
    assert [record["step"] for record in resumed.run()] == list(range(6, 13))
    assert without_times(resumed.history) == without_times(uninterrupted.history)
    written = [json.loads(line) for line in (tmp_path / "interrupted" / "metrics.jsonl").read_text().splitlines()]
    assert written == resumed.history
    found = load_file(resumed.export() / "model.safetensors")
    assert found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in found)
    assert not (tmp_path / "interrupted" / "checkpoints").exists()


def test_damaged_checkpoint_is_reported_before_demonstrations_are_rolled_out(
    warm_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = SFTConfig(
        EnvConfig("TextFrozenLake-v0"),
        str(warm_model),
        tmp_path / "run",
        dialogue=DialogueConfig("no_think"),
        hardware=HardwareConfig(device="cpu"),
        sft=SFTSettings(episodes=16, epochs=1, batch=8, warmup=0),
        checkpoint_every=1,
    )
    activity = Activity()
    phases: list[str] = []
    begin = activity.begin
    monkeypatch.setattr(activity, "begin", lambda name, *rest: (phases.append(name), begin(name, *rest)))
    trainer = SFTTrainer(config, activity=activity)
    assert len(list(trainer.run())) == 2
    last = trainer.checkpoints.last
    assert last is not None
    assert phases[phases.index("demonstrating") + 1 :] == [
        "evaluating held-out demonstrations",
        "updating",
        "saving a checkpoint",
        "updating",
        "evaluating held-out demonstrations",
    ]
    assert activity.place == "step 2 of 2" and activity.phase is None
    (last / "metrics.json").write_text("[]")
    monkeypatch.setattr("arboretum.trainers.sft.collect_demonstrations", lambda *_, **__: pytest.fail("too late"))
    with pytest.raises(DataError, match="is damaged"):
        SFTTrainer(config, resume=True)


def test_failed_demonstrations_are_counted_aloud(
    warm_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, reset, step = 0, FrozenLake.reset, FrozenLake.step

    def counting(self: FrozenLake, **options: Any) -> Any:
        nonlocal opened
        opened += 1
        self.__dict__["thawed"] = opened in (2, 5)
        return reset(self, **options)

    def thawing(self: FrozenLake, action: str) -> Any:
        if self.__dict__["thawed"]:
            raise OSError("no ice")
        return step(self, action)

    monkeypatch.setattr(FrozenLake, "reset", counting)
    monkeypatch.setattr(FrozenLake, "step", thawing)
    config = SFTConfig(
        EnvConfig("TextFrozenLake-v0"),
        str(warm_model),
        tmp_path / "run",
        dialogue=DialogueConfig("no_think"),
        hardware=HardwareConfig(device="cpu", in_flight=1),
        sft=SFTSettings(episodes=16, epochs=1, batch=8, warmup=0),
    )
    console = Console(file=io.StringIO(), width=200)
    assert fine_tune(config, console=console) == 0
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    place = lines.index(next(line for line in lines if line.startswith("16 demonstrations: success 1, ")))
    assert re.fullmatch(
        r"2 of \d+ demonstrations ended with an error, the last with: the environment failed: OSError: no ice "
        r"\(test_sft\.py, line \d+, in thawing\); they are left out\.",
        lines[place + 1],
    )
