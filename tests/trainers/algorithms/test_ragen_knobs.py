"""RAGEN's knobs, said on the command line, change what is really played and learnt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tyro

torch = pytest.importorskip("torch", reason="needs torch: pip install 'arboretum[lm]'")
pytest.importorskip("accelerate", reason="needs accelerate: pip install 'arboretum[lm]'")

from arboretum.agents.episode import Episode
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
    """Makes one update of StarPO with settings as `--set` takes them; what was played is looked at on its way."""

    def make(*settings: str, out: str = "run") -> Update:
        usual = [
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
        for setting in (*usual, *settings):
            arguments += ["--set", setting]
        training = Trainer(tyro.cli(TrainOptions, args=arguments).run("starpo"))
        played: list[Episode] = []
        play = training.sampler.roll_out

        def watched(*positional: Any, **named: Any) -> list[Episode]:
            episodes = play(*positional, **named)
            played.extend(episodes)
            return episodes

        monkeypatch.setattr(training.sampler, "play", watched)
        (record,) = training.run()
        return record.metrics, played, training

    return make


def test_prompts_times_rollouts(update: Any) -> None:
    metrics, played, _ = update("sampler.prompts=3", "sampler.rollouts=4")
    assert sorted(Counter(episode.task for episode in played).values()) == [4, 4, 4]
    assert len({episode.seed for episode in played}) == 12 == metrics["episodes"]
    for task in {episode.task for episode in played}:  # the rollouts of a prompt start from the same board
        assert len({episode.turns[0].observation for episode in played if episode.task == task}) == 1


def test_turns_and_actions(update: Any) -> None:
    _, played, _ = update("sampler.prompts=4", "sampler.rollouts=4")
    assert max(len(episode.turns) for episode in played) == 3
    assert max(len(turn.moves) for episode in played for turn in episode.turns) == 2
    _, played, _ = update("sampler.max_turns=2", out="turns")
    assert max(len(episode.turns) for episode in played) == 2
    _, played, _ = update("sampler.max_actions_per_turn=1", out="per-turn")
    assert {len(turn.moves) for episode in played for turn in episode.turns} <= {0, 1}
    _, played, _ = update("sampler.max_actions=3", "sampler.rollouts=6", out="per-episode")
    assert max(episode.steps - episode.invalid for episode in played) == 3  # refused actions cost none


def test_thinking(update: Any) -> None:
    texts = {}
    for think in ("true", "false"):
        _, played, training = update(f"sampler.think={think}", out=think)
        decode = training.tokenizer.decode
        texts[think] = [decode(turn.token_ids) for episode in played for turn in episode.turns]
    assert all("<think>" in text for text in texts["true"])
    assert not any("<think>" in text for text in texts["false"])


def test_online_k_learns_k_times_from_one_batch(update: Any) -> None:
    """Sampled once, learnt from k times: from the second time on the policy is no longer the one that sampled."""
    found = {}
    for passes in (1, 3):
        metrics, played, training = update(
            f"optimization.passes={passes}", "optimization.episodes_per_step=6", out=f"online-{passes}"
        )
        found[passes] = metrics, [episode.to_dict() for episode in played], training.optimizer.policy.state_dict()
    (once, played, weights), (thrice, again, moved) = found[1], found[3]
    assert (once["steps"], thrice["steps"]) == (1, 3) and len(played) == len(again) == 6
    said = [[turn["token_ids"] for turn in episode["turns"]] for episode in played]
    assert said == [[turn["token_ids"] for turn in episode["turns"]] for episode in again]
    assert thrice["tokens"] == pytest.approx(3 * once["tokens"])
    assert once["approx_kl"] == pytest.approx(0, abs=1e-9) and thrice["approx_kl"] > 1e-9
    assert any(not torch.equal(weights[name], moved[name]) for name in weights)
