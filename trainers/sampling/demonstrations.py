"""Expert episodes as a language model would have played them: the same dialogue, the same tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from ...agents.base import Reply, Seat
from ...agents.demonstrations import plan_in_words
from ...agents.dialogue import Dialogue
from ...agents.dialogue.think import SEPARATOR
from ...agents.engines.base import Completion, Engine, Message, Request, Usage
from ...agents.episode import Episode
from ...agents.language import LanguageAgent
from ...agents.play import play
from ...envs.errors import ConfigurationError
from ...eval.suite import Entry
from ..config.settings import Expert
from .rollout_plan import plan_chains
from .sampler import drawn_tasks


class Script(Engine):
    """An engine whose replies are written beforehand, and come out as the model's own tokens would.

    Args:
        tokenizer: of the model that is to learn.
        context: longest conversation that it takes, in tokens.
    """

    def __init__(self, tokenizer: Any, context: int | None) -> None:
        self.name = "script"
        self.tokenizer = tokenizer
        self.context = context
        self.usage = Usage()
        self.lines: dict[str, list[int]] = {}
        self._done: list[tuple[str, Completion]] = []

    def submit(self, request: Request) -> None:
        ids = self.lines.pop(request.conversation)
        # One that is too long is cut as a model's reply would be.
        cut = ids[: request.sampling.max_tokens]
        text = self.tokenizer.decode([i for i in cut if i not in self.end_ids])
        finish: Literal["stop", "length"] = "stop" if len(cut) == len(ids) else "length"
        self._done.append((request.conversation, Completion(text, finish, cut, [0.0] * len(cut))))

    def collect(self) -> list[tuple[str, Completion]]:
        done, self._done = self._done, []
        return done


class Demonstrator(LanguageAgent):
    """The world's own expert, speaking as a dialogue wants it."""

    def __init__(self, script: Script, dialogue: Dialogue, expert: Expert, template: str | None = None) -> None:
        super().__init__("demonstrator", script, dialogue, template=template)
        self.expert = expert
        self._script = script
        assert self.chat is not None
        ending = self.chat.bridge((), [Message("user", "")])
        self._end = next(i for i in ending if i in self.chat.end_ids)

    def ask(self, seat: Seat, text: str | None = None) -> Reply | None:
        actions, plan = self._actions(seat)
        thought = plan_in_words(plan) if self.expert.thoughts == "plan" else ""
        said = self.dialogue.demonstrate(thought, f" {SEPARATOR} ".join(actions))
        # The prefill is part of the prompt, and what is sampled begins after it.
        rest = said.removeprefix(self.dialogue.prefill)
        ids = list(self._script.tokenizer.encode(rest, add_special_tokens=False))
        if not said.endswith(self.dialogue.stop or ("\0",)):
            ids.append(self._end)
        self._script.lines[seat.memory.name] = ids
        return super().ask(seat, text)

    def _actions(self, seat: Seat) -> tuple[list[str], list[str]]:
        """What to do in this turn, and the plan that it is the beginning of."""
        room = self.expert.actions_per_turn or self.dialogue.max_actions_per_turn
        left = self.dialogue.actions_left(seat.episode.turns)
        room = min(room, self.dialogue.max_actions_per_turn, room if left is None else max(left, 1))
        plan = list(seat.env.expert_actions() or ())
        for place, _ in enumerate(plan[:room]):
            if seat.rng.random() < self.expert.noise:
                # Only the first is known to be admissible where it is drawn; a later one may be refused.
                plan = [*plan[:place], seat.env.random_action(seat.rng)]
                break
        if not plan:
            plan = [seat.env.random_action(seat.rng)]
        return plan[:room], plan


def expert_episodes(
    entry: Entry,
    count: int,
    *,
    tokenizer: Any,
    context: int | None,
    dialogue: Dialogue,
    expert: Expert,
    template: str | None = None,
    tasks: int | None = None,
    seed: int = 0,
    at_once: int = 64,
) -> list[Episode]:
    """Play until `count` episodes are worth learning from.

    Args:
        entry: the world and the split.
        count: how many.
        tokenizer, context: of the model that is to learn.
        dialogue: how the world speaks to it.
        expert: how well it is shown.
        template: a shipped chat template.
        tasks: only the first so many tasks of the split.
        seed: of tasks and luck.
        at_once: episodes played side by side.

    Raises:
        ConfigurationError: the expert solves too few tasks within the dialogue's budgets.
    """
    agent = Demonstrator(Script(tokenizer, context), dialogue, expert, template)
    envs = [entry.make() for _ in range(min(at_once, count))]
    found: list[Episode] = []
    played = 0
    while len(found) < count:
        names = drawn_tasks(envs[0].tasks, played, count, seed, tasks)
        plan = plan_chains(names, 1, batch=played, seed=seed)
        episodes, _ = plan.arrange(play(agent, envs, plan.jobs))
        played += count
        found += [episode for episode in episodes if episode.success or expert.keep == "all"]
        if played >= 20 * count and len(found) < count:
            raise ConfigurationError(
                f"the expert solved {len(found)} of {played} tasks of {entry.env} within the budgets of "
                f"dialogue {dialogue.name!r}; lower noise, raise max_turns, or keep all episodes."
            )
    return found[:count]


def quality(episodes: Sequence[Episode]) -> dict[str, float]:
    """How good demonstrations are: `success`, `return`, `turns` an episode."""
    n = max(len(episodes), 1)
    return {
        "success": sum(episode.success for episode in episodes) / n,
        "return": sum(episode.total_reward for episode in episodes) / n,
        "turns": sum(len(episode.turns) for episode in episodes) / n,
    }


__all__ = ["Demonstrator", "Expert", "Script", "expert_episodes", "quality"]
