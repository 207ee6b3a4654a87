"""Thought grafting: preference pairs from the divergences of an update (T-STAR, arXiv:2604.07165, eq. 9).

At a divergence, z⁻ is the thought of the turn that begins the worse branch, and s the conversation before it. The
policy is shown s and both branches, and writes a corrected thought z_rect. The pair prefers z_rect to z⁻ under the
plain conversation s, which does not show the branches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...agents.engines.base import Message, Sampling
from ...envs.seeding import stable_seed
from ..algorithms.grafting import Grafting
from ..data.cognitive_graph import DivergencePair
from ..data.preferences import Continuation, Preference
from ..data.rollouts import Rollouts
from .graft_prompt import FAULTS, ShownBranch, ShownTurn, clean_thought, graft_messages, thought_fault
from .sampler import RolloutSampler
from .turn_texts import TurnTexts


class GraftText(NamedTuple):
    """Both sides of a graft as text, for the report.

    Attributes:
        pair: The divergence.
        chosen: Corrected thought, or the better branch's part of a reply.
        rejected: Thought or part of the reply of the worse branch.
        fault: Reason for which it is no preference pair; empty if it is one.
    """

    pair: DivergencePair
    chosen: str
    rejected: str
    fault: str = ""


class Grafts(NamedTuple):
    """Result of grafting.

    Attributes:
        pairs: Preference pairs, in the order of the divergences.
        metrics: `graft/coverage` (fraction of the divergences that have a pair), `graft/skipped` (number of those
            without a thought to correct, or whose prompt does not fit the context window), and for written
            thoughts `graft/validity` (fraction that is valid) and `graft/<fault>` (number of the others).
        texts: Texts of the pairs, and of written thoughts that are not valid.
    """

    pairs: list[Preference]
    metrics: dict[str, float]
    texts: list[GraftText]


class Grafter:
    """Makes preference pairs from the divergences of an update.

    Args:
        settings: Settings of the recipe.
        sampler: Sampler of the current policy.
        instructions: System message of the dialogue in each environment of the run.
        seed: Seed of the run.
    """

    def __init__(
        self, settings: Grafting, sampler: RolloutSampler, instructions: Sequence[str], seed: int
    ) -> None:
        self._settings = settings
        self._sampler = sampler
        self._instructions = instructions
        self._seed = seed

    def graft(
        self, rollouts: Rollouts, divergences: Sequence[DivergencePair], *, update: int, temperature: float
    ) -> Grafts:
        """Return preference pairs of some divergences; a collective operation of all processes.

        A divergence is skipped if its worse turn has no thought, or if its prompt or the pair does not fit the
        context window. With the mode "branch" the better turn needs a thought, too.

        Args:
            rollouts: Episodes of the update.
            divergences: Their divergences.
            update: Number of the update, from 0.
            temperature: Sampling temperature of the update.

        Raises:
            SamplingFailed: The engine failed.
        """
        texts = TurnTexts(rollouts, self._sampler.dialogue, self._sampler.chat.tokenizer)
        rejected = [texts.compared_part(pair.worst, pair.worst) for pair in divergences]
        refused: list[GraftText] = []
        chosen: list[Continuation | None]
        writes = self._settings.mode == "rewrite" and self._sampler.dialogue.has_thoughts
        if writes:
            wanted = [pair for pair, part in zip(divergences, rejected, strict=True) if part is not None]
            written, refused = self._write(texts, wanted, update, temperature)
            chosen = [written.get(pair.worst, {}).get(pair.best) for pair in divergences]
        else:
            chosen = [texts.compared_part(pair.best, pair.worst) for pair in divergences]
        pairs: list[Preference] = []
        used: list[GraftText] = []
        decode = self._sampler.chat.tokenizer.decode
        for pair, good, bad in zip(divergences, chosen, rejected, strict=True):
            if good is not None and bad is not None and self._fits(good) and self._fits(bad):
                pairs.append(Preference(good, bad, update))
                used.append(GraftText(pair, decode(good.tokens.tolist()), decode(bad.tokens.tolist())))
        faults = Counter(text.fault for text in refused)
        faulty = len(refused)
        metrics = {
            "graft/coverage": len(pairs) / len(divergences) if divergences else 0.0,
            "graft/skipped": float(len(divergences) - len(pairs) - faulty),
        }
        if writes and len(pairs) + faulty:
            metrics["graft/validity"] = len(pairs) / (len(pairs) + faulty)
            metrics |= {f"graft/{fault}": float(faults[fault]) for fault in FAULTS}
        return Grafts(pairs, metrics, used + refused)

    def _fits(self, part: Continuation) -> bool:
        return self._has_room(len(part.prompt) + len(part.tokens))

    def _has_room(self, tokens: int) -> bool:
        context = self._sampler.engine.context
        return context is None or tokens <= context

    # ------------------------------------------------------------------ thoughts that the policy writes

    def _write(
        self, texts: TurnTexts, divergences: Sequence[DivergencePair], update: int, temperature: float
    ) -> tuple[dict[int, dict[int, Continuation]], list[GraftText]]:
        """Return the valid written thoughts by worse and better turn, and the texts of the others."""
        settings, chat, dialogue = self._settings, self._sampler.chat, self._sampler.dialogue
        opened = [(pair, chat.opening(self._messages(texts, pair))) for pair in divergences]
        asked = [(pair, ids) for pair, ids in opened if self._has_room(len(ids) + settings.thought_tokens)]
        sampling = Sampling(
            temperature=temperature if settings.temperature is None else settings.temperature,
            max_tokens=settings.thought_tokens,
            stop=dialogue.stop,  # A reply in the dialogue's form is complete there.
        )
        seeds = [stable_seed("graft", self._seed, update, number) >> 11 for number in range(len(asked))]
        replies = self._sampler.complete([ids for _, ids in asked], sampling, seeds, phase="grafting thoughts")
        written: dict[int, dict[int, Continuation]] = {}
        refused: list[GraftText] = []
        for (pair, _), reply in zip(asked, replies, strict=True):
            thought = clean_thought(reply.text, dialogue)
            action = (texts.actions(pair.worst) or ["x"])[0]
            shown = [texts.rollouts.turn_observation[turn] for turn in texts.path(pair.worst)]
            fault = thought_fault(
                thought,
                texts.thought(pair.worst),
                " ".join([self._instructions_for(texts, pair), *shown]),
                dialogue.demonstrate(thought, action),
                dialogue,
                cut=reply.finish != "stop",
            )
            if fault is None and chat.has_special(thought):
                fault = "format"
            if fault is None:
                written.setdefault(pair.worst, {})[pair.best] = self._encode(texts, pair, thought, action)
            else:
                refused.append(GraftText(pair, thought, texts.thought(pair.worst), fault))
        return written, refused

    def _encode(self, texts: TurnTexts, pair: DivergencePair, thought: str, action: str) -> Continuation:
        """Return a written thought in the form of a reply, in the conversation before the worse turn."""
        dialogue, chat = self._sampler.dialogue, self._sampler.chat
        reply = dialogue.demonstrate(thought, action)
        span = dialogue.thought_span(reply)
        assert span is not None, "a thought without this form has a fault"
        before = reply[: span[0]].removeprefix(dialogue.prefill)
        opening = before.rstrip()  # Tokenizers join a space to the word after it.
        prompt = np.concatenate([texts.prompt(pair.worst), np.array(chat.encode(opening), dtype=np.int64)])
        tokens = chat.encode(before[len(opening) :] + thought)
        return Continuation(prompt, np.array(tokens, dtype=np.int64))

    def _instructions_for(self, texts: TurnTexts, pair: DivergencePair) -> str:
        return self._instructions[int(texts.rollouts.group_env[pair.group])]

    def _messages(self, texts: TurnTexts, pair: DivergencePair) -> list[Message]:
        path = texts.path(pair.worst)
        observations = texts.rollouts.turn_observation
        first = max(len(path) - 1 - self._settings.history, 0)
        best, worst = (
            ShownBranch(texts.thought(turn), texts.action(turn), texts.outcome(turn))
            for turn in (pair.best, pair.worst)
        )
        return graft_messages(
            self._instructions_for(texts, pair),
            [ShownTurn(observations[turn], texts.action(turn)) for turn in path[first:-1]],
            observations[pair.worst],
            best,
            worst,
            self._settings.thought_tokens,
        )
