"""Demonstrations with random actions: admissible or refused, and in the loss or not."""

from __future__ import annotations

from typing import Any

import pytest

from arboretum.agents.dialogue import make_dialogue
from arboretum.agents.episode import Episode, Turn
from arboretum.envs.errors import ConfigurationError
from arboretum.envs.frozenlake.env import FrozenLake
from arboretum.eval.suite import Entry

pytest.importorskip("torch", reason="needs torch: pip install 'arboretum-rl[lm]'")
pytest.importorskip("transformers", reason="needs transformers: pip install 'arboretum-rl[lm]'")

from arboretum.agents.engines.local.load import load_tokenizer
from arboretum.trainers.config.settings import ExpertConfig
from arboretum.trainers.sampling.demonstrations import collect_demonstrations

TOKENIZER = load_tokenizer("sapling")
OPTIONS: dict[str, dict[str, Any]] = {
    "TextBlocksworld-v0": {"blocks": 4},
    "TextSearchQA-v0": {"dataset": "encyclopedia", "hops": 1},
}


def demonstrations(env: str, expert: ExpertConfig, dialogue: str = "plain", count: int = 24) -> list[Episode]:
    return collect_demonstrations(
        Entry(env, env, OPTIONS.get(env, {}), split="train"),
        count,
        tokenizer=TOKENIZER,
        context=None,
        dialogue=make_dialogue(dialogue),
        expert=expert,
    )


def invalid_fraction(episodes: list[Episode]) -> float:
    return sum(episode.invalid for episode in episodes) / sum(episode.steps for episode in episodes)


def learnt_text(turn: Turn) -> str:
    """Return the text of the tokens in the loss."""
    assert turn.token_ids is not None and turn.loss_mask is not None
    return str(TOKENIZER.decode([i for i, mask in zip(turn.token_ids, turn.loss_mask, strict=True) if mask]))


@pytest.mark.parametrize(("env", "count"), [("TextBlocksworld-v0", 24), ("TextALFWorld-v0", 8)])
def test_refused_noise_is_refused_by_the_environment_and_other_noise_is_not(
    env: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ε = 0.4, half of it refused, 0.2 of the first actions are refused in expectation."""
    monkeypatch.delenv("ARBORETUM_DATA", raising=False)  # Opening the thousands of real games takes long.
    assert invalid_fraction(demonstrations(env, ExpertConfig(noise=0.4), count=count)) == 0
    episodes = demonstrations(env, ExpertConfig(noise=0.4, refused=0.5), count=count)
    assert 0.1 < invalid_fraction(episodes) < 0.3
    assert all(episode.success for episode in episodes)


def test_refused_noise_falls_back_to_admissible_actions_where_nothing_is_refused() -> None:
    """Every move is admissible in FrozenLake."""
    episodes = demonstrations("TextFrozenLake-v0", ExpertConfig(noise=0.5, refused=1.0, keep="all"), "no_think")
    assert invalid_fraction(episodes) == 0


def test_noise_outside_the_loss_leaves_only_the_actions_of_the_expert_in_it() -> None:
    """Every action in the loss begins a shortest plan, and the same episodes with noise in the loss have more."""
    expert = ExpertConfig(noise=0.4, refused=0.5, learn_noise=False)
    env = Entry("b", "TextBlocksworld-v0", {"blocks": 4}, split="train").make()
    masked = 0
    episodes = demonstrations("TextBlocksworld-v0", expert)
    for episode in episodes:
        env.reset(options={"task": episode.task})
        for turn in episode.turns:
            before = len(env.expert_actions() or ())
            env.step(turn.moves[0].action)
            after = len(env.expert_actions() or ())
            if learnt_text(turn):
                assert learnt_text(turn) == turn.moves[0].action + "<|end|>"
                assert after < before
            else:
                masked += 1
    # A random action may coincide with the expert's, so more are masked than lead away from the goal.
    assert 0.3 < masked / sum(episode.steps for episode in episodes) < 0.5
    everything = demonstrations("TextBlocksworld-v0", ExpertConfig(noise=0.4, refused=0.5))
    assert [episode.seed for episode in everything] == [episode.seed for episode in episodes]
    assert all(learnt_text(turn) for episode in everything for turn in episode.turns)


def test_actions_of_the_expert_before_a_random_one_in_the_same_reply_stay_in_the_loss() -> None:
    expert = ExpertConfig(noise=0.5, learn_noise=False, keep="all")
    several = 0
    for episode in demonstrations("TextSokoban-v0", expert, "no_think", 40):
        for turn in episode.turns:
            complete = turn.reply.removeprefix("<answer>")
            learnt = learnt_text(turn)
            assert complete.startswith(learnt)
            if learnt != complete:
                assert learnt == "".join(f"{move} || " for move in complete.split(" || ")[:-1])
                several += " || " in learnt
    assert several > 5


def test_thoughts_that_announce_a_random_action_are_not_learnt() -> None:
    expert = ExpertConfig(noise=0.5, learn_noise=False, keep="all")
    turns = [turn for episode in demonstrations("TextSokoban-v0", expert, "think") for turn in episode.turns]
    assert {learnt_text(turn) in ("", turn.reply.removeprefix("<think>")) for turn in turns} == {True}
    assert {bool(learnt_text(turn)) for turn in turns} == {True, False}


def test_searching_demonstrations_go_only_to_receptacles_and_take_only_objects_that_were_shown() -> None:
    expert = ExpertConfig(noise=0.2, refused=0.5, learn_noise=False, searching=True)
    for episode in demonstrations("TextALFWorld-v0", expert, count=8):
        shown = ""
        for turn in episode.turns:
            shown += turn.observation
            if learnt_text(turn).startswith("take "):
                assert f"a {turn.moves[0].action.removeprefix('take ').partition(' from ')[0]}" in shown
        assert episode.success


def test_searching_demonstrations_answer_only_with_what_was_shown() -> None:
    expert = ExpertConfig(noise=0.2, learn_noise=False, searching=True)
    for episode in demonstrations("TextSearchQA-v0", expert, count=8):
        shown = "".join(turn.observation for turn in episode.turns)
        answer = learnt_text(episode.turns[-1]).removeprefix("<answer>").partition("</answer>")[0]
        assert answer and answer in shown and episode.success


def test_failing_environment_is_named_and_not_the_expert(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: FrozenLake, action: str) -> Any:
        raise ConnectionError("the ice is gone")

    monkeypatch.setattr(FrozenLake, "_apply", fail)
    message = "9 of 9 demonstrations ended with an error, the last with: the environment failed: ConnectionError"
    with pytest.raises(ConfigurationError, match=message):
        demonstrations("TextFrozenLake-v0", ExpertConfig(keep="all"), "no_think", 9)
