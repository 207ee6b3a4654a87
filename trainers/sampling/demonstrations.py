"""Expert episodes in the form in which a language model would have produced them: same dialogue, same tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

from ...agents.base import Reply, Seat, Stop
from ...agents.demonstrations import plan_in_words
from ...agents.dialogue import Dialogue
from ...agents.dialogue.think import SEPARATOR
from ...agents.engines.base import Completion, Engine, Message, Request, Usage
from ...agents.episode import Episode
from ...agents.language import ChatState, LanguageAgent
from ...agents.play import play
from ...agents.reference import searching_plan
from ...envs.errors import ConfigurationError
from ...envs.user_code import describe_method
from ...eval.suite import Entry
from ..config.settings import ExpertConfig
from ..state import Activity
from .failures import Failures
from .rollout_plan import plan_chains
from .tasks import draw_tasks

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MAX_ATTEMPTS = 20
"""Episodes per demonstration after which the expert is given up."""

MAX_FAILED = 0.5
"""Fraction of the demonstrations of a round that may end with an error of the environment."""


class ScriptedEngine(Engine):
    """Engine whose replies are written beforehand and returned as the model's own tokens.

    Args:
        tokenizer: Tokenizer of the model to train.
        context: Context window of the model in tokens; None if unlimited.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, context: int | None) -> None:
        self.name = "script"
        self.tokenizer = tokenizer
        self.context = context
        self.usage = Usage()
        self.replies: dict[str, list[int]] = {}
        self._completions: list[tuple[str, Completion]] = []

    def submit(self, request: Request) -> None:
        ids = self.replies.pop(request.conversation)
        # A reply that is too long is cut, as a model's would be.
        cut = ids[: request.sampling.max_tokens]
        text = self.tokenizer.decode([i for i in cut if i not in self.end_ids])
        finish: Literal["stop", "length"] = "stop" if len(cut) == len(ids) else "length"
        self._completions.append((request.conversation, Completion(text, finish, cut, [0.0] * len(cut))))

    def collect(self) -> list[tuple[str, Completion]]:
        completions, self._completions = self._completions, []
        return completions


class Demonstrator(LanguageAgent):
    """Agent that writes the plan of an environment's expert in the form of a dialogue."""

    def __init__(
        self, engine: ScriptedEngine, dialogue: Dialogue, expert: ExpertConfig, template: str | None = None
    ) -> None:
        super().__init__("demonstrator", engine, dialogue, template=template)
        self.expert = expert
        self._script = engine
        assert self.chat is not None
        ending = self.chat.bridge((), [Message("user", "")])
        self._end_id = next(i for i in ending if i in self.chat.end_ids)
        self._known_actions: dict[str, dict[str, None]] = {}  # by conversation, in order of appearance
        self._expert_tokens: dict[str, int] = {}  # at the beginning of a reply that ends in a random action

    def ask(self, seat: Seat, text: str | None = None) -> Reply | None:
        actions, plan, is_noisy = self._choose(seat)
        thought = plan_in_words(plan) if self.expert.thoughts == "plan" else ""
        dialogue = self.dialogue.bind(seat.env)
        reply = _demonstrate(dialogue, thought, actions)
        if not is_noisy:
            _check_demonstration(dialogue, reply)
        ids = self._encode(dialogue, reply)
        if is_noisy and not self.expert.learn_noise:
            # A thought names the random action, so the expert's part of the reply ends before the thought.
            expert_ids: list[int] = []
            if not self.dialogue.has_thoughts:
                expert_ids = self._encode(dialogue, _demonstrate(dialogue, "", [*actions[:-1], ""]))
            self._expert_tokens[seat.memory.name] = _common_prefix(ids, expert_ids)
        self._script.replies[seat.memory.name] = ids
        return super().ask(seat, text)

    def receive(self, seat: Seat, completion: Completion) -> Reply | None:
        reply = super().receive(seat, completion)
        expert_tokens = self._expert_tokens.pop(seat.memory.name, None)
        if expert_tokens is not None and reply is not None and reply.loss_mask is not None:
            sampled = sum(reply.loss_mask)
            kept = min(expert_tokens, sampled)
            reply.loss_mask[len(reply.loss_mask) - sampled + kept :] = [0] * (sampled - kept)
        return reply

    def end(self, seat: Seat) -> None:
        if isinstance(seat.memory, ChatState):
            self._known_actions.pop(seat.memory.name, None)
            self._expert_tokens.pop(seat.memory.name, None)
        super().end(seat)

    def _encode(self, dialogue: Dialogue, reply: str) -> list[int]:
        """Return the token ids of a reply, its end included and the prefill excluded."""
        # The prefill is part of the prompt; sampling begins after it.
        sampled = reply.removeprefix(dialogue.prefill)
        ids = list(self._script.tokenizer.encode(sampled, add_special_tokens=False))
        if not reply.endswith(dialogue.stop or ("\0",)):
            ids.append(self._end_id)
        return ids

    def _choose(self, seat: Seat) -> tuple[list[str], list[str], bool]:
        """Return the actions of this turn, the plan that begins with them, and True if the last one is random."""
        limit = self.expert.actions_per_turn or self.dialogue.max_actions_per_turn
        left = self.dialogue.actions_left(seat.episode.turns)
        limit = min(limit, self.dialogue.max_actions_per_turn, limit if left is None else max(left, 1))
        if self.expert.searching:
            limit = 1
            plan = list(searching_plan(seat) or ())
        else:
            plan = list(seat.env.expert_actions() or ())
        refused = self._refused_actions(seat, plan) if self.expert.refused else ()
        is_noisy = False
        for place, _ in enumerate(plan[:limit]):
            if seat.rng.random() < self.expert.noise:
                # An admissible action is drawn from those admissible now, so it may be refused unless it is first.
                if refused and seat.rng.random() < self.expert.refused:
                    action = seat.rng.choice(refused)
                else:
                    action = seat.env.random_action(seat.rng)
                plan = [*plan[:place], action]
                is_noisy = True
                break
        if not plan:
            plan, is_noisy = [seat.env.random_action(seat.rng)], True
        return plan[:limit], plan, is_noisy

    def _refused_actions(self, seat: Seat, plan: Sequence[str]) -> Sequence[str]:
        """Return actions of the plan, and actions admissible earlier in the episode, that are inadmissible now."""
        admissible = seat.env.admissible_actions()
        if admissible is None:
            return ()
        known = self._known_actions.setdefault(seat.memory.name, {})
        known.update(dict.fromkeys([*admissible, *plan]))
        now = set(admissible)
        return [action for action in known if action not in now]


def _demonstrate(dialogue: Dialogue, thought: str, actions: Sequence[str]) -> str:
    return dialogue.demonstrate(thought, f" {SEPARATOR} ".join(actions))


def _check_demonstration(dialogue: Dialogue, reply: str) -> None:
    """Raise `Stop` if a dialogue does not accept a reply in which it wrote the expert's actions."""
    parsed = dialogue.parse(dialogue.prefill + reply.removeprefix(dialogue.prefill))
    if not (parsed.well_formed and parsed.actions):
        raise Stop(
            f"{describe_method(dialogue.parse)} refuses the demonstration {reply[:300]!r} of its own dialogue;"
            f" have {describe_method(dialogue.demonstrate)} write replies that it accepts."
        )


def _common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """Return the length of the longest common prefix of two sequences."""
    length = 0
    while length < min(len(first), len(second)) and first[length] == second[length]:
        length += 1
    return length


def collect_demonstrations(
    entry: Entry,
    count: int,
    *,
    tokenizer: PreTrainedTokenizerBase,
    context: int | None,
    dialogue: Dialogue,
    expert: ExpertConfig,
    template: str | None = None,
    tasks: int | None = None,
    seed: int = 0,
    in_flight: int = 64,
    activity: Activity | None = None,
    on_failures: Callable[[Failures], None] | None = None,
) -> list[Episode]:
    """Roll out the expert until there are `count` episodes to train on.

    Args:
        entry: Environment and split.
        count: Number of demonstrations.
        tokenizer, context: Tokenizer and context window (in tokens) of the model to train.
        dialogue: Dialogue between environment and model.
        expert: Settings of the expert.
        template: Name of a shipped chat template, or a .jinja file; None uses the tokenizer's own.
        tasks: Use the first so many tasks of the split only.
        seed: Seed of tasks and episodes.
        in_flight: Episodes to roll out at the same time.
        activity: Phase in progress, in which finished episodes are counted.
        on_failures: Called with the failures of every round of episodes; failed ones are left out.

    Raises:
        ConfigurationError: The expert solves too few tasks within the budgets, the environment or the dialogue
            fails, or the dialogue refuses its own demonstrations.
    """
    agent = Demonstrator(ScriptedEngine(tokenizer, context), dialogue, expert, template)
    envs = [entry.make() for _ in range(min(in_flight, count))]
    demonstrations: list[Episode] = []
    attempts = 0
    while len(demonstrations) < count:
        names = draw_tasks(envs[0].tasks, attempts, count, seed, tasks)
        plan = plan_chains(names, 1, batch=attempts, seed=seed)
        try:
            played = list((activity or Activity()).count(play(agent, envs, plan.jobs)))
        except Stop as error:
            raise ConfigurationError(str(error)) from error
        attempts += count
        failures = Failures.among(played)
        if failures.exceed(MAX_FAILED):
            raise ConfigurationError(f"{failures.describe('demonstrations')}; mend the environment {entry.env}.")
        if on_failures is not None:
            on_failures(failures)
        episodes, _ = plan.arrange(played)
        demonstrations += [episode for episode in episodes if episode.success or expert.keep == "all"]
        if attempts >= MAX_ATTEMPTS * count and len(demonstrations) < count:
            raise ConfigurationError(
                f"the expert solved {len(demonstrations)} of {attempts} tasks of {entry.env} within the budgets "
                f"of dialogue {dialogue.name!r}; lower expert.noise, raise max_turns, or set expert.keep = all."
            )
    return demonstrations[:count]


def demonstration_quality(episodes: Sequence[Episode]) -> dict[str, float]:
    """Return the mean `success`, `return` and `turns` of demonstrations."""
    n = max(len(episodes), 1)
    return {
        "success": sum(episode.success for episode in episodes) / n,
        "return": sum(episode.total_reward for episode in episodes) / n,
        "turns": sum(len(episode.turns) for episode in episodes) / n,
    }
