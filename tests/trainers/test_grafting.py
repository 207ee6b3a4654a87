"""Thought grafting: the prompt, the check of written thoughts, and preference pairs made of divergences."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'arboretum-rl[lm]'")
pytest.importorskip("accelerate", reason="needs accelerate: pip install 'arboretum-rl[lm]'")

from arboretum.agents.dialogue import make_dialogue
from arboretum.agents.engines.base import Completion, Message, Sampling
from arboretum.agents.engines.local.load import load_tokenizer
from arboretum.agents.episode import Episode, Move, Turn
from arboretum.agents.tokens.chat import ChatTokens
from arboretum.trainers.algorithms.credit.base import Advantages, Credit
from arboretum.trainers.algorithms.grafting import Grafting
from arboretum.trainers.config.settings import DialogueConfig, ValidationConfig
from arboretum.trainers.data.cognitive_graph import DivergencePair
from arboretum.trainers.data.episodes import Branch, from_episodes
from arboretum.trainers.data.preferences import Preference
from arboretum.trainers.data.rollouts import Rollouts
from arboretum.trainers.data.segments import BoolArray, FloatArray
from arboretum.trainers.sampling.graft_prompt import clean_thought, thought_fault
from arboretum.trainers.sampling.grafting import Grafter
from arboretum.trainers.sampling.turn_texts import TurnTexts
from arboretum.trainers.trainer import Trainer
from support.training import Make, equal, finish, weights, without_times

GOOD = "<think>The goal is right of me.</think><answer>Right</answer>"
BAD = "<think>I should go left.</think><answer>Left</answer>"
WRITTEN = "The goal is on the other side, so right is the way."


def episodes_of(chat: ChatTokens, dialogue: str, episodes: Sequence[Sequence[str]]) -> list[Episode]:
    """Return episodes whose turns have these replies, without the prefill; the first one succeeds."""
    rendered = make_dialogue(dialogue)
    played = []
    for number, replies in enumerate(episodes):
        turns: list[Turn] = []
        sampled: list[int] = []
        for place, reply in enumerate(replies):
            user = Message("user", rendered.user(f"observation {place}", turns))
            prompt = (
                chat.bridge(sampled, [user], rendered.prefill)
                if turns
                else chat.opening([Message("system", "rules"), user], rendered.prefill)
            )
            sampled = chat.encode(reply.removeprefix(rendered.prefill))
            parsed = rendered.parse(reply)
            turns.append(
                Turn(
                    f"observation {place}",
                    reply,
                    parsed.thought,
                    [Move(action, 0.0, True, True) for action in parsed.actions],
                    actions=parsed.actions,
                    token_ids=prompt + sampled,
                    logprobs=[0.0] * len(prompt + sampled),
                    loss_mask=[0] * len(prompt) + [1] * len(sampled),
                )
            )
        played.append(Episode("TextFrozenLake-v0", "t", number, "policy", success=number == 0, turns=turns))
    return played


def make_rollouts(chat: ChatTokens, dialogue: str, episodes: Sequence[Sequence[str]]) -> Rollouts:
    """Return the `episodes_of` these replies as rollouts of one group."""
    played = episodes_of(chat, dialogue, episodes)
    return from_episodes(played, [0] * len(played))


class Scripted:
    """Sampler whose replies are given; the rest is that of a policy."""

    def __init__(self, chat: ChatTokens, dialogue: str, replies: Sequence[Completion], context: int | None = None):
        self.chat, self.dialogue = chat, make_dialogue(dialogue)
        self.engine = SimpleNamespace(context=context)
        self.replies = list(replies)
        self.prompts: list[str] = []
        self.sampling: Sampling | None = None

    def complete(self, prompts: Any, sampling: Sampling, seeds: Any, *, phase: str) -> list[Completion]:
        self.prompts = [self.chat.tokenizer.decode(ids) for ids in prompts]
        self.sampling = sampling
        return self.replies[: len(prompts)]


@pytest.fixture(scope="module")
def chat(warm_model: Path) -> ChatTokens:
    return ChatTokens(load_tokenizer(warm_model))


def graft(sampler: Scripted, rollouts: Rollouts, pairs: Sequence[DivergencePair], **settings: Any) -> Any:
    grafter = Grafter(Grafting(**settings), sampler, ["Cross the lake."], 0)  # type: ignore[arg-type]
    return grafter.graft(rollouts, pairs, update=7, temperature=0.9)


# ---------------------------------------------------------------------- written thoughts


@pytest.mark.parametrize(
    ("dialogue", "reply", "thought"),
    [
        ("think", " The goal is right. ", "The goal is right."),
        ("think", "<think> right </think><answer>Right</answer>", "right"),
        ("think", "right </think> <answer>Right</answer>", "right"),  # the prefill left out
        ("react", "Thought: go north", "go north"),
        ("react", "Thought: go north\nAction: north", "go north"),
        ("tags", "<think>who wrote it?</think><search>author</search>", "who wrote it?"),
        ("tags", "Reasoning: who wrote it?", "who wrote it?"),
        ("think", "  \n ", ""),
    ],
)
def test_thought_is_taken_out_of_the_form_of_a_reply(dialogue: str, reply: str, thought: str) -> None:
    assert clean_thought(reply, make_dialogue(dialogue)) == thought


@pytest.mark.parametrize(
    ("thought", "cut", "fault"),
    [
        (WRITTEN, False, None),
        ("", False, "empty"),
        (WRITTEN, True, "long"),
        ("i should  GO left.", False, "equal"),
        ("Unlike the failed branch, go right.", False, "leak"),
        ("The other trajectory went right.", False, "leak"),
        ("A branching path", False, None),
        ("right</think><answer>Up</answer>", False, "format"),
    ],
)
def test_invalid_thoughts_are_told_by_their_fault(thought: str, cut: bool, fault: str | None) -> None:
    dialogue = make_dialogue("think")
    reply = dialogue.demonstrate(thought, "Right")
    assert thought_fault(thought, "I should go left.", "a lake", reply, dialogue, cut=cut) == fault


def test_word_of_the_environment_is_no_leak() -> None:
    dialogue = make_dialogue("think")
    thought = "Cut the branch off the tree."
    reply = dialogue.demonstrate(thought, "cut branch")
    assert thought_fault(thought, "Wait.", "You see a branch here.", reply, dialogue, cut=False) is None


# ---------------------------------------------------------------------- pairs


def test_rewritten_thought_is_preferred_in_the_plain_conversation(chat: ChatTokens) -> None:
    rollouts = make_rollouts(chat, "think", [[GOOD, GOOD], [GOOD, BAD], [BAD]])
    sampler = Scripted(chat, "think", [Completion(WRITTEN, "stop")] * 2)
    pairs = [DivergencePair(0, 1, 3, 1.0), DivergencePair(0, 0, 4, 0.5)]
    found = graft(sampler, rollouts, pairs, thought_tokens=40)
    decode = chat.tokenizer.decode
    for pair, worst, preference in zip(pairs, (3, 4), found.pairs, strict=True):
        row = rollouts.rows[1 if worst == 3 else 2]
        context = decode(TurnTexts(rollouts, sampler.dialogue, chat.tokenizer).prompt(worst))
        assert context.endswith("<think>") and preference.update == 7 and pair.worst == worst
        # The rejected tokens are those that were sampled, where they were sampled.
        together = np.concatenate([preference.rejected.prompt, preference.rejected.tokens])
        assert np.array_equal(together, row[: len(together)])
        assert decode(preference.rejected.prompt) == context
        assert decode(preference.rejected.tokens).startswith("I should go left.")
        assert decode(preference.chosen.prompt) == context
        assert decode(preference.chosen.tokens) == WRITTEN
        assert "Branch" not in context
    assert [text[:2] for text in found.texts] == [(pair, WRITTEN) for pair in pairs]
    assert all(text.rejected.startswith("I should go left.") and not text.fault for text in found.texts)
    assert found.metrics["graft/coverage"] == 1 and found.metrics["graft/validity"] == 1
    assert found.metrics["graft/skipped"] == 0
    assert sampler.sampling == Sampling(temperature=0.9, max_tokens=40, stop=("</answer>",))


def test_prompt_shows_context_and_both_branches(chat: ChatTokens) -> None:
    rollouts = make_rollouts(chat, "think", [[GOOD, GOOD, GOOD], [GOOD, BAD, BAD]])
    sampler = Scripted(chat, "think", [Completion(WRITTEN, "stop")])
    graft(sampler, rollouts, [DivergencePair(0, 1, 4, 1.0)], thought_tokens=40)
    (prompt,) = sampler.prompts
    system, user = prompt.split("## Context")
    assert "You revise one reasoning step" in system and "Cross the lake." in system
    context, rest = user.split("## Branch that worked")
    worked, failed = rest.split("## Branch that failed")
    assert "Observation: observation 0\nAction: Right\nObservation: observation 1" in context
    assert "Thought: The goal is right of me.\nAction: Right\nOutcome: observation 2" in worked
    assert "the task was solved." in worked and "the task was not solved." in failed
    assert "Thought: I should go left.\nAction: Left\nOutcome: observation 2" in failed
    assert "at most 30 words" in failed and "{{" not in prompt
    graft(sampler, rollouts, [DivergencePair(0, 1, 4, 1.0)], history=0)
    assert "observation 0" not in sampler.prompts[0]


def test_outcome_of_a_turn_that_branches_share_counts_all_its_episodes(chat: ChatTokens) -> None:
    """Of the three episodes through the better turn, the first one failed."""
    played, tails = (
        episodes_of(chat, "think", replies)
        for replies in ([[GOOD, BAD], [BAD, BAD]], [[GOOD, GOOD], [GOOD, GOOD], [BAD, GOOD]])
    )
    (failed, other), (one, two, hopeless) = played, tails
    failed.success, one.success, two.success = False, True, True
    for branch, origin in ((one, failed), (two, failed), (hopeless, other)):
        branch.turns[0] = origin.turns[0]
    rollouts = from_episodes(
        [failed, one, two, other, hopeless],
        [0] * 5,
        branches=[None, Branch(0, 1), Branch(0, 1), None, Branch(3, 1)],
    )
    sampler = Scripted(chat, "think", [Completion(WRITTEN, "stop")])
    graft(sampler, rollouts, [DivergencePair(0, 0, 4, 1.0)])
    worked, failure = sampler.prompts[0].split("## Branch that worked")[1].split("## Branch that failed")
    assert "In the end 2 of 3 attempts from here solved the task." in worked
    assert "In the end the task was not solved." in failure


def test_faulty_and_impossible_divergences_are_counted(chat: ChatTokens) -> None:
    rollouts = make_rollouts(chat, "think", [[GOOD], [BAD], ["<think>no end"], [BAD], [BAD]])
    replies = [Completion("Left the branch.", "stop"), Completion("x " * 9, "length"), Completion(WRITTEN, "stop")]
    pairs = [DivergencePair(0, 0, worst, 1.0) for worst in (1, 2, 3, 4)]
    found = graft(Scripted(chat, "think", replies), rollouts, pairs)
    assert [preference.rejected.tokens.tolist() for preference in found.pairs]
    assert found.metrics["graft/coverage"] == 0.25 and found.metrics["graft/skipped"] == 1
    assert found.metrics["graft/validity"] == pytest.approx(1 / 3)
    assert found.metrics["graft/leak"] == found.metrics["graft/long"] == 1
    assert [text.fault for text in found.texts] == ["", "leak", "long"]
    assert found.texts[1].chosen == "Left the branch." and "go left" in found.texts[1].rejected
    none = graft(Scripted(chat, "think", replies, context=100), rollouts, pairs)
    assert none.pairs == [] and none.metrics == {"graft/coverage": 0.0, "graft/skipped": 4.0}
    assert graft(Scripted(chat, "think", []), rollouts, []).metrics["graft/coverage"] == 0


def test_branch_mode_takes_the_thought_of_the_better_branch(chat: ChatTokens) -> None:
    rollouts = make_rollouts(chat, "react", [["Thought: all is well\nAction: Right"], ["Thought: hm\nAction: Up"]])
    found = graft(Scripted(chat, "react", []), rollouts, [DivergencePair(0, 0, 1, 1.0)], mode="branch")
    ((chosen, rejected, _),) = found.pairs
    decode = chat.tokenizer.decode
    assert decode(chosen.tokens).strip() == "all is well" and decode(rejected.tokens).strip() == "hm"
    for side in (chosen, rejected):
        assert decode(side.prompt).rstrip().endswith("Thought:")


def test_dialogue_without_thoughts_compares_the_replies(chat: ChatTokens) -> None:
    good, bad = "<answer>Right</answer>", "<answer>Up || Left</answer>"
    rollouts = make_rollouts(chat, "no_think", [[good], [bad]])
    found = graft(Scripted(chat, "no_think", []), rollouts, [DivergencePair(0, 0, 1, 1.0)])
    ((chosen, rejected, _),) = found.pairs
    decode = chat.tokenizer.decode
    assert decode(chosen.tokens) == "Right</answer>" and decode(rejected.tokens) == "Up || Left</answer>"
    assert np.array_equal(chosen.prompt, rejected.prompt)


def test_pair_survives_a_file(chat: ChatTokens) -> None:
    rollouts = make_rollouts(chat, "no_think", [["<answer>Right</answer>"], ["<answer>Up</answer>"]])
    (pair,) = graft(Scripted(chat, "no_think", []), rollouts, [DivergencePair(0, 0, 1, 1.0)]).pairs
    again = Preference.from_plain(json.loads(json.dumps(pair.to_plain())))
    assert again.update == pair.update
    for side, other in ((pair.chosen, again.chosen), (pair.rejected, again.rejected)):
        assert all(np.array_equal(a, b) for a, b in zip(side, other, strict=True))


# ---------------------------------------------------------------------- in a run


@dataclasses.dataclass(frozen=True)
class FirstTurns(Credit):
    """Centered returns, and a divergence between the first turns of a group's best and worst episode."""

    name: ClassVar[str] = "first_turns"

    def assign(
        self, rollouts: Rollouts, values: FloatArray | None = None, in_loss: BoolArray | None = None
    ) -> Advantages:
        returns = rollouts.returns(penalties=True)
        firsts = {
            int(episode): int(turn)
            for turn, episode in zip(*rollouts.paths, strict=True)
            if rollouts.turn_depth[turn] == 0
        }
        pairs = []
        for group in range(rollouts.groups):
            members = np.flatnonzero(rollouts.group == group)
            best, worst = members[returns[members].argmax()], members[returns[members].argmin()]
            if returns[best] > returns[worst]:
                gap = float(returns[best] - returns[worst])
                pairs.append(DivergencePair(group, firsts[int(best)], firsts[int(worst)], gap))
        advantages = returns[rollouts.copies.episode] - returns.mean()
        return Advantages(advantages, divergences=pairs)


CHANGES: dict[str, object] = {
    "credit": FirstTurns(),
    "objective.terms": ["surgical"],
    "objective.reference_decay": 0.95,
    "optimization.updates": 4,
    "sampler.prompts": 4,
    "sampler.rollouts": 6,
    "optimization.lr": 1e-3,
}


@pytest.mark.heavy
@pytest.mark.usefixtures("one_thread")
def test_run_with_old_pairs_resumes_exactly(run_of: Make, tmp_path: Path) -> None:
    """Pairs of the two updates before are trained on again, and are part of a checkpoint."""
    changes = {**CHANGES, "grafting.max_age": 3}
    uninterrupted = finish(Trainer(run_of("grpo", changes, out=tmp_path / "uninterrupted")))
    pairs = [record["pairs"] for record in uninterrupted.history if record["update"]]
    assert max(pairs) > 4  # more than one a group
    config = run_of("grpo", changes, out=tmp_path / "interrupted", checkpoint_every=2)
    interrupted = Trainer(config)
    for record in interrupted.run():
        if record.metrics["update"] == 3:
            break
    resumed = finish(Trainer(config, resume=True))
    assert without_times(resumed.history) == without_times(uninterrupted.history)
    assert equal(weights(resumed), weights(uninterrupted))


@pytest.mark.heavy
@pytest.mark.usefixtures("one_thread")
def test_policy_writes_thoughts_by_its_own_engine(run_of: Make) -> None:
    """The small model writes no sentences, but every divergence has a defined result, the same every time."""
    dialogue = DialogueConfig("think", {"show_reward": False})
    changes = {**CHANGES, "grafting.thought_tokens": 16, "sampler.reply_tokens": 24}
    trainer = Trainer(run_of("grpo", changes, dialogue=dialogue, validation=ValidationConfig(every=0)))
    rollouts = make_rollouts(trainer.sampler.chat, "think", [[GOOD]] + [[BAD]] * 12)
    pairs = [DivergencePair(0, 0, worst, 1.0) for worst in range(1, 13)]
    first, second, other = (
        trainer.grafter.graft(rollouts, pairs, update=update, temperature=1.0) for update in (0, 0, 1)
    )
    assert first.metrics == second.metrics and first.texts == second.texts != other.texts
    faults = sum(first.metrics[f"graft/{name}"] for name in ("empty", "long", "equal", "leak", "format"))
    assert len(first.pairs) + faults == 12 and first.metrics["graft/skipped"] == 0
    for pair in first.pairs:
        assert 0 < len(pair.chosen.tokens) <= 32
