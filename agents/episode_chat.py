"""One episode as a conversation, for callers that bring the replies themselves."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import gymnasium as gym
import msgspec

from ..envs.core import TextEnv
from ..envs.errors import ConfigurationError
from ..envs.registry import text_env
from ..envs.type_words import in_words
from .base import Reply, Seat, Stop
from .chat import ChatAgent
from .dialogue import Dialogue
from .dialogue.think import SEPARATOR
from .engines.base import Message
from .episode import Episode
from .exchange import TURN, Exchange
from .execution import check_limits, execute, expired, is_over, start_episode
from .forks import Keep


class Heard(NamedTuple):
    """Outcome of a reply.

    Attributes:
        messages: The messages that follow the reply; none after the end of the episode.
        reward: Sum of the rewards of the turn's actions.
        penalty: Format penalty of the turn, at most 0.
        done: True if the episode has ended.
    """

    messages: list[Message]
    reward: float
    penalty: float
    done: bool


class EpisodeState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An episode so far as plain data, from which a replay restores it; see `EpisodeChat.state`.

    Attributes:
        env: Id of the environment.
        task: Id of the task.
        seed: Seed of the episode.
        actions: Executed actions of every turn.
        replies: Reply of every turn; None for replies that are their actions.
        digest: SHA-256 of the observations, as hexadecimal digits; None to omit the comparison.
    """

    env: str
    task: str
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    actions: tuple[tuple[str, ...], ...] = ()
    replies: tuple[str, ...] | None = None
    digest: str | None = None


class _Listener(ChatAgent):
    """Agent whose replies are passed to `EpisodeChat.hear`."""

    def check_limits(self, seat: Seat) -> None:
        """Accept an episode without limits: who passes the replies ends it."""

    def act(self, seats: Sequence[Seat]) -> list[Reply | None]:
        raise Stop(f"agent {self.name} has no model; pass replies to EpisodeChat.hear.")


class EpisodeChat:
    """One episode of an environment as a conversation.

    `open` returns the first messages and `hear` those that follow a reply. The episode is recorded as `play`
    records it: the same replies to the same task and seed give the same episode.
    `open` may be called again.

        >>> chat = EpisodeChat(gymnasium.make("TextSokoban-v0"), make_dialogue("think"))
        >>> messages = chat.open(seed=1)
        >>> while not chat.done:
        ...     reply = "<think>Up it is.</think><answer>Up</answer>"  # of any model, for chat.prompt
        ...     messages, reward, penalty, done = chat.hear(reply)

    Args:
        env: The environment, without a wrapper that changes its episodes.
        dialogue: Dialogue that renders observations and parses replies. Its budgets and its format penalty apply.
        name: Name of the agent in the record.
        examples: Number of solved tasks in the system message.
        max_turns: Replies after which the episode is truncated; None for no limit beyond the dialogue's.
        time_limit: Wall time of an episode in seconds, the waits for replies included, after which it is aborted
            with an error; None for no limit.
        keep: Further data to record of every turn; see `play`.

    Raises:
        ConfigurationError: An argument cannot be used.
    """

    def __init__(
        self,
        env: gym.Env[str, str],
        dialogue: Dialogue,
        *,
        name: str = "chat",
        examples: int = 0,
        max_turns: int | None = None,
        time_limit: float | None = None,
        keep: Collection[Keep] = (),
    ) -> None:
        if not isinstance(dialogue, Dialogue):
            raise ConfigurationError(f"the dialogue must be one of make_dialogue, not {dialogue!r:.80}.")
        check_limits(max_turns, time_limit, None, keep)
        self.env: TextEnv[Any] = text_env(env)
        self.dialogue = dialogue
        self._agent = _Listener(name, dialogue, examples)
        self._limits: dict[str, Any] = {"max_turns": max_turns, "time_limit": time_limit, "keep": keep}
        self._keep = keep
        self._seat: Seat | None = None
        self._prompt: tuple[Message, ...] = ()

    # ------------------------------------------------------------------ the conversation

    def open(self, task: str | None = None, seed: int = 0) -> list[Message]:
        """Begin an episode, and return its first messages: the system message and a user message.

        Members of a group are episodes of the same task and seed.

        Args:
            task: Id of the task; None draws one from the seed.
            seed: Seed of the episode.

        Returns:
            The messages; none if the environment failed, in which case the episode's `error` has the reason.
        """
        self._start(task, seed)
        return [] if self.done else self._ask()

    def hear(
        self,
        reply: str | None,
        *,
        cut: bool = False,
        token_ids: list[int] | None = None,
        logprobs: list[float] | None = None,
        loss_mask: list[int] | None = None,
    ) -> Heard:
        """Execute the actions of a reply.

        Args:
            reply: The model's reply; any text, or None for an empty one, as servers have it.
            cut: True if a limit of tokens ended the reply.
            token_ids, logprobs, loss_mask: Tokens of the turn, to be recorded; see `Turn`.

        Raises:
            RuntimeError: No episode is in progress.
        """
        seat = self._in_progress()
        reply = reply or ""
        tokens = {"token_ids": token_ids, "logprobs": logprobs, "loss_mask": loss_mask}
        exchange = seat.episode.exchanges[-1]
        exchange.reply, exchange.finish = reply, "length" if cut else "stop"
        if time.perf_counter() < seat.deadline:
            return self._execute(self._agent.read(seat, reply, cut=cut or None, **tokens))
        return self._execute(None)

    def refuse(self, reason: str, *, too_long: bool = False) -> Heard:
        """End the episode because the model did not take the prompt, such as a filter of contents.

        Args:
            reason: Reason in one sentence, recorded in the episode's details.
            too_long: True if the prompt left no room for a reply, so that it was never sent.

        Raises:
            RuntimeError: No episode is in progress.
        """
        seat = self._in_progress()
        if too_long:
            seat.episode.exchanges.pop()
        else:
            seat.episode.exchanges[-1].finish = "rejected"
        return self._execute(self._agent.refuse(reason, cut=too_long or None))

    @property
    def episode(self) -> Episode:
        """The record of the episode so far.

        Raises:
            RuntimeError: No episode was opened.
        """
        if self._seat is None:
            raise RuntimeError("no episode is open; call open() first")
        return self._seat.episode

    @property
    def is_open(self) -> bool:
        """True if an episode was opened, which may have ended."""
        return self._seat is not None

    @property
    def prompt(self) -> list[Message]:
        """The messages of the current turn within the dialogue's history, as a model receives them."""
        return list(self._prompt)

    @property
    def tools(self) -> list[dict[str, Any]]:
        """Schemas of the functions that a reply may call, for the model's request; none in most dialogues.

        A reply with structured calls is passed to `hear` as text; see `agents/tool_calls.py`.
        """
        return [tool.schema() for tool in self.dialogue.bind(self.env).tools]

    @property
    def done(self) -> bool:
        """True if the episode has ended, for any reason."""
        return is_over(self.episode)

    @property
    def score(self) -> float:
        """Undiscounted return with the format penalties."""
        return self.episode.total_reward + self.episode.total_penalty

    def _start(self, task: str | None, seed: int) -> Seat:
        self._seat = start_episode(self._agent, self.env, task, seed, **self._limits)
        self.env = self._seat.env  # another one if a time limit had interrupted the last
        return self._seat

    def _in_progress(self) -> Seat:
        if self.done or self._seat is None:
            raise RuntimeError("the episode has ended; call open() to begin another")
        return self._seat

    def _ask(self) -> list[Message]:
        """Add the next request to the record, and return its new messages."""
        assert self._seat is not None
        seat = self._seat
        messages = self._agent.prompt(seat)
        self._prompt = tuple(messages)
        seat.episode.exchanges.append(Exchange(len(seat.episode.turns), TURN, self._prompt))
        seat.waiting_since = time.perf_counter()
        return list(messages) if not seat.episode.turns else list(seat.memory.inputs[-1])

    def _execute(self, reply: Reply | None) -> Heard:
        """Execute a reply; None for one that came after the time limit."""
        assert self._seat is not None
        seat, episode = self._seat, self._seat.episode
        before = len(episode.turns)
        if reply is None:
            episode.error = expired(seat)
        else:
            execute(self._agent, seat, reply, time.perf_counter() - seat.waiting_since, self._keep)
        turns = episode.turns[before:]
        rewards = sum(move.reward for turn in turns for move in turn.moves)
        penalty = sum(turn.penalty for turn in turns)
        return Heard([] if self.done else self._ask(), rewards, penalty, self.done)

    # ------------------------------------------------------------------ states

    def state(self) -> dict[str, Any]:
        """Return the episode so far as JSON data; `EpisodeState` describes the keys."""
        episode = self.episode
        return {
            "env": episode.env,
            "task": episode.task,
            "seed": episode.seed,
            "actions": [[move.action for move in turn.moves] for turn in episode.turns],
            "replies": [turn.reply for turn in episode.turns],
            "digest": _digest(episode),
        }

    def resume(self, state: Mapping[str, Any]) -> list[Message]:
        """Restore an episode from its state by replaying it, and return all messages so far.

        Args:
            state: Value of `state()`, or an `EpisodeState` as a mapping. Without `replies`, the actions stand for
                the replies.

        Raises:
            ConfigurationError: The state is malformed, is of another environment, or the replay differs from it.
        """
        try:
            given = msgspec.convert(state, EpisodeState)
        except msgspec.ValidationError as error:
            raise ConfigurationError(f"the state of the episode is malformed: {in_words(error)}") from None
        if given.replies is not None and len(given.replies) != len(given.actions):
            turns, replies = len(given.actions), len(given.replies)
            raise ConfigurationError(f"the state has {turns} turns of actions, but {replies} replies")
        seat = self._start(given.task, given.seed)
        episode = seat.episode
        if given.env != episode.env:
            raise ConfigurationError(f"the state is of an episode of {given.env}, not of {episode.env}")
        if not self.done:
            self._ask()
        for turn, actions in enumerate(given.actions):
            if episode.error is not None:
                raise ConfigurationError(f"the episode cannot be replayed: {episode.error}")
            if self.done:
                raise ConfigurationError(f"the replayed episode ended before turn {turn + 1} of its state")
            if given.replies is not None:
                self.hear(given.replies[turn])
            else:
                self._hear_actions(actions)
            executed = tuple(move.action for one in episode.turns[turn:] for move in one.moves)
            if executed != actions and episode.error is None:
                raise ConfigurationError(
                    f"turn {turn + 1} of the replayed episode has other actions than its state"
                )
        if given.digest is not None and given.digest != _digest(episode):
            raise ConfigurationError("the replayed episode has other observations than its state")
        return list(seat.memory.messages) if seat.memory is not None else []

    def _hear_actions(self, actions: tuple[str, ...]) -> None:
        """Execute actions that no reply is known of."""
        seat = self._in_progress()
        dialogue = self.dialogue.bind(self.env)
        text = "\n".join(actions)
        if dialogue.tools:
            text = dialogue.demonstrate("", f" {SEPARATOR} ".join(actions))
        exchange = seat.episode.exchanges[-1]
        exchange.reply, exchange.finish = text, "stop"
        seat.memory.messages.append(Message("assistant", text))
        self._execute(Reply(actions, text))


def _digest(episode: Episode) -> str:
    """Return the SHA-256 of the observations of an episode."""
    observations = [*(turn.observation for turn in episode.turns), episode.final_observation]
    return hashlib.sha256("\0".join(observations).encode("utf-8", "surrogatepass")).hexdigest()
