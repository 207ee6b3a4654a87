"""RAGEN's settings, given on the command line, change what is rolled out and trained on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tyro

torch = pytest.importorskip("torch", reason="needs torch: pip install 'arboretum-rl[lm]'")
pytest.importorskip("accelerate", reason="needs accelerate: pip install 'arboretum-rl[lm]'")

from arboretum.agents.episode import Episode
from arboretum.trainers.checkpoints.stored_config import resolve_training_config
from arboretum.trainers.config.cli_options import TrainOptions
from arboretum.trainers.trainer import Trainer

pytestmark = pytest.mark.heavy


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


Update = tuple[dict[str, float], list[Episode], Trainer]


@pytest.fixture
def update(warm_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that makes one update of StarPO with `--set` settings and records its episodes."""

    def make(*settings: str, out: str = "run") -> Update:
        defaults = [
            "sampler.prompts=2",
            "sampler.rollouts=3",
            "sampler.reply_tokens=12",
            "sampler.think=false",
            "sampler.max_turns=3",
            "sampler.max_actions_per_turn=2",
            "sampler.max_actions=6",
            "optimization.updates=1",
            "optimization.episodes_per_step=3",
            "optimization.lr=1e-4",
        ]
        arguments = ["--env", "TextFrozenLake-v0", "--model", str(warm_model), "--out", str(tmp_path / out)]
        arguments += ["--device", "cpu", "--dialogue-arg", "show_reward=false", "--validation.every", "0"]
        for setting in (*defaults, *settings):
            arguments += ["--set", setting]
        trainer = Trainer(resolve_training_config("starpo", tyro.cli(TrainOptions, args=arguments)))
        episodes: list[Episode] = []
        roll_out = trainer.sampler.roll_out

        def record_episodes(*positional: Any, **named: Any) -> list[Episode]:
            sampled = roll_out(*positional, **named)
            episodes.extend(sampled)
            return sampled

        monkeypatch.setattr(trainer.sampler, "roll_out", record_episodes)
        (record,) = trainer.run()
        return record.metrics, episodes, trainer

    return make


def test_prompts_and_rollouts_determine_the_episodes_of_an_update(update: Any) -> None:
    metrics, episodes, _ = update("sampler.prompts=3", "sampler.rollouts=4")
    assert sorted(Counter(episode.task for episode in episodes).values()) == [4, 4, 4]
    assert len({episode.seed for episode in episodes}) == 12 == metrics["episodes"]
    for task in {episode.task for episode in episodes}:  # The rollouts of a prompt start on the same board.
        assert len({episode.turns[0].observation for episode in episodes if episode.task == task}) == 1


def test_turn_and_action_budgets_bound_the_episodes(update: Any) -> None:
    _, episodes, _ = update("sampler.prompts=4", "sampler.rollouts=4")
    assert max(len(episode.turns) for episode in episodes) == 3
    assert max(len(turn.moves) for episode in episodes for turn in episode.turns) == 2
    _, episodes, _ = update("sampler.max_turns=2", out="turns")
    assert max(len(episode.turns) for episode in episodes) == 2
    _, episodes, _ = update("sampler.max_actions_per_turn=1", out="per-turn")
    assert {len(turn.moves) for episode in episodes for turn in episode.turns} <= {0, 1}
    _, episodes, _ = update("sampler.max_actions=3", "sampler.rollouts=6", out="per-episode")
    assert max(episode.steps - episode.invalid for episode in episodes) == 3  # Refused actions are not counted.


def test_think_selects_the_dialogue(update: Any) -> None:
    texts = {}
    for think in ("true", "false"):
        _, episodes, trainer = update(f"sampler.think={think}", out=think)
        tokenizer = trainer.sampler.engine.tokenizer
        texts[think] = [tokenizer.decode(turn.token_ids) for episode in episodes for turn in episode.turns]
    assert all("<think>" in text for text in texts["true"])
    assert not any("<think>" in text for text in texts["false"])


def test_passes_train_several_times_on_the_same_episodes(update: Any) -> None:
    """From the second pass on, the policy differs from the one that sampled the episodes."""
    results = {}
    for passes in (1, 3):
        metrics, episodes, trainer = update(
            f"optimization.passes={passes}", "optimization.episodes_per_step=6", out=f"online-{passes}"
        )
        tokens = [[turn.token_ids for turn in episode.turns] for episode in episodes]
        results[passes] = metrics, tokens, trainer.optimizer.policy.state_dict()
    (once, tokens, weights), (thrice, same_tokens, other_weights) = results[1], results[3]
    assert (once["steps"], thrice["steps"]) == (1, 3) and len(tokens) == len(same_tokens) == 6
    assert tokens == same_tokens
    assert thrice["tokens"] == pytest.approx(3 * once["tokens"])
    assert once["approx_kl"] == pytest.approx(0, abs=1e-9) and thrice["approx_kl"] > 1e-9
    assert any(not torch.equal(weights[name], other_weights[name]) for name in weights)
