"""Scores and samples of actions: those of the policy after the fixed prefix of actions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'arboretum-rl[lm]'")
pytest.importorskip("accelerate", reason="needs accelerate: pip install 'arboretum-rl[lm]'")

from arboretum.trainers.algorithms.credit.cognitive import exact_kl, merge_steps
from arboretum.trainers.config.settings import DialogueConfig, ValidationConfig
from arboretum.trainers.sampling.failures import SamplingFailed
from arboretum.trainers.sampling.policy_probe import LearnerProbe
from arboretum.trainers.sampling.turn_texts import TurnTexts
from arboretum.trainers.trainer import Trainer
from support.training import Make

pytestmark = [pytest.mark.heavy, pytest.mark.usefixtures("one_thread")]

ACTIONS = ["Left", "Right", "Up", "Down || Down"]


def contexts_of(trainer: Trainer, count: int) -> list[Any]:
    """Return the conversations before the first turns that were sampled."""
    rollouts = trainer.collector.roll_out(1.0)[0]
    texts = TurnTexts(rollouts, trainer.sampler.dialogue, trainer.sampler.chat.tokenizer)
    return [texts.prompt(turn) for turn in range(count)]


def plain_logprob(trainer: Trainer, context: Any, text: str, temperature: float, *, end: bool = False) -> float:
    """Return the log-probability of a text after a context by a plain forward pass."""
    ids = trainer.sampler.chat.encode(text)
    if end:
        ids.append(trainer.sampler.chat.turn_end)
    row = torch.tensor([*context.tolist(), *ids])
    with torch.no_grad():
        logits = trainer.optimizer.policy.model.eval()(input_ids=row[None]).logits[0] / temperature
    logp = torch.log_softmax(logits, -1)
    return sum(float(logp[place - 1, row[place]]) for place in range(len(context), len(row)))


@pytest.mark.parametrize(
    ("dialogue", "prefix", "form", "end"),
    [
        ("no_think", "", "{}</answer>", False),
        ("think", "</think><answer>", "{}</answer>", False),
        ("react", "Thought:\nAction:", " {}", True),
        ("plain", "", "{}", True),
    ],
)
def test_actions_are_scored_in_the_form_of_a_reply(
    run_of: Make, dialogue: str, prefix: str, form: str, end: bool
) -> None:
    options = DialogueConfig(dialogue, {"show_reward": False})
    changes: dict[str, object] = {"sampler.max_actions_per_turn": None}
    trainer = Trainer(run_of("dapo", changes, dialogue=options, validation=ValidationConfig(every=0)))
    contexts = contexts_of(trainer, 3)
    probe = LearnerProbe(trainer.learner, trainer.sampler, 0.7)
    sums = probe.action_logprobs(contexts, [ACTIONS, ACTIONS[:2], []], normalize=False)
    means = probe.action_logprobs(contexts, [ACTIONS, ACTIONS[:2], []])
    assert [len(row) for row in sums] == [4, 2, 0]
    encode = trainer.sampler.chat.encode
    for context, row, mean in zip(contexts, sums, means, strict=True):
        before = np.array([*context.tolist(), *encode(prefix)])
        for action, score, normalized in zip(ACTIONS, row, mean, strict=False):
            text = form.format(action)
            expected = plain_logprob(trainer, before, text, 0.7, end=end)
            assert score == pytest.approx(expected, abs=1e-4)
            assert normalized == pytest.approx(expected / (len(encode(text)) + end), abs=1e-4)


def test_equal_questions_are_scored_once(run_of: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer(run_of("dapo", validation=ValidationConfig(every=0)))
    context, other = contexts_of(trainer, 2)
    scored: list[int] = []
    score = trainer.learner.scorer.score_sequences
    monkeypatch.setattr(
        trainer.learner.scorer,
        "score_sequences",
        lambda p, r, t, **o: scored.append(len(p)) or score(p, r, t, **o),
    )
    probe = LearnerProbe(trainer.learner, trainer.sampler, 1.0)
    asked = [context, context.copy(), other]
    first, second, _ = probe.action_logprobs(asked, [["Up", "Left", "Up"], ["Left"], ["Up"]])
    assert first[0] == first[2] and first[1] == second[0] and scored == [3 if context is not other else 2]


def test_samples_occur_as_often_as_their_scores_say(run_of: Make) -> None:
    trainer = Trainer(run_of("dapo", validation=ValidationConfig(every=0)))
    contexts = contexts_of(trainer, 2)
    probe = LearnerProbe(trainer.learner, trainer.sampler, 1.0)
    count = 300
    samples = probe.sample_actions(contexts, count, seed=5)
    assert samples == probe.sample_actions(contexts, count, seed=5)
    assert samples != probe.sample_actions(contexts, count, seed=6)
    scores = probe.action_logprobs(contexts, [ACTIONS] * 2, normalize=False)
    for row, texts in zip(scores, samples, strict=True):
        assert len(texts) == count
        for action, score in zip(ACTIONS, row, strict=True):
            p = math.exp(score)
            found = sum(text == action for text in texts) / count
            assert found == pytest.approx(p, abs=4 * math.sqrt(p * (1 - p) / count) + 0.005)
    assert any(sum(text in ACTIONS for text in texts) > count / 4 for texts in samples)


def test_actions_beyond_the_context_window_are_neither_scored_nor_sampled(
    run_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last action has more tokens than there is room for; without any room nothing can be sampled."""
    trainer = Trainer(run_of("dapo", validation=ValidationConfig(every=0)))
    context = contexts_of(trainer, 1)[0]
    probe = LearnerProbe(trainer.learner, trainer.sampler, 1.0)
    (free,) = probe.action_logprobs([context], [ACTIONS])
    used = len(context) + len(probe._prefix)
    room = max(len(probe._action_ids(action)) for action in ACTIONS[:3])
    assert room < len(probe._action_ids(ACTIONS[3]))
    monkeypatch.setattr(trainer.sampler.engine, "context", used + room)
    (found,) = probe.action_logprobs([context], [ACTIONS])
    assert np.isnan(found[3]) and np.allclose(found[:3], free[:3], atol=1e-5)
    divergences = np.array([[0.0, exact_kl(found, free)], [exact_kl(free, found), 0.0]])
    assert np.isnan(divergences).sum() == 2 and merge_steps(divergences, [0, 0]) == [[0], [1]]
    monkeypatch.setattr(trainer.sampler.engine, "context", used)
    asked: list[int] = []
    complete = trainer.sampler.complete
    monkeypatch.setattr(
        trainer.sampler, "complete", lambda p, *a, **o: asked.append(len(p)) or complete(p, *a, **o)
    )
    assert probe.sample_actions([context], 3, seed=0) == [["", "", ""]] and asked == [0]
    assert np.isnan(probe.action_logprobs([context], [ACTIONS])[0]).all()


def test_reply_without_finite_logits_is_a_failure_of_the_engine(run_of: Make) -> None:
    trainer = Trainer(run_of("dapo", validation=ValidationConfig(every=0)))
    context = contexts_of(trainer, 1)[0]
    probe = LearnerProbe(trainer.learner, trainer.sampler, 1.0)
    with torch.no_grad():
        next(iter(trainer.optimizer.policy.model.parameters())).fill_(float("nan"))
    with pytest.raises(SamplingFailed, match="logits"):
        probe.sample_actions([context], 2, seed=0)
