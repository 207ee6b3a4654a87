"""A language model as a player: a dialogue on one side, an engine on the other."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .base import Agent, Reply, Seat
from .demonstrations import Demonstrations
from .dialogue import Dialogue
from .engines.base import Completion, Engine, Message, Request, Sampling
from .tokens.chat import ChatTokens
from .tokens.conversation import Conversation

_names = itertools.count()


@dataclass(slots=True)
class Talk:
    """One episode's conversation.

    Attributes:
        name: of the conversation, for the engine.
        messages: everything said, the system message first.
        users: the user message of every turn so far, the current one included.
        tokens: the conversation as the model saw it, for engines with a tokenizer.
        mark: length of `tokens` at the end of the last turn.
        sampled: the tokens of the last reply.
        restart: whether the current turn began a new token sequence.
        pending: the conversation whose request is under way; None while there is none.
    """

    name: str
    messages: list[Message]
    users: list[str] = field(default_factory=list)
    tokens: Conversation | None = None
    mark: int = 0
    sampled: Sequence[int] = ()
    restart: bool = False
    pending: str | None = None


class LanguageAgent(Agent):
    """Tells the model what the world shows, and does what it answers.

    Args:
        name: how tables and records call it.
        engine: what answers.
        dialogue: how the world speaks to the model.
        sampling: how replies are drawn; the dialogue's stop texts are added.
        examples: solved tasks shown in the system message, made by the world's own expert on other tasks.
        template: a shipped chat template to use instead of the tokenizer's own.
    """

    one_process = True

    def __init__(
        self,
        name: str,
        engine: Engine,
        dialogue: Dialogue,
        sampling: Sampling | None = None,
        examples: int = 0,
        template: str | None = None,
    ) -> None:
        self.name = name
        self.engine = engine
        self.dialogue = dialogue
        sampling = sampling or Sampling()
        self.sampling = replace(sampling, stop=tuple(dict.fromkeys([*sampling.stop, *dialogue.stop])))
        self.demonstrations = Demonstrations(dialogue, examples) if examples else None
        self.chat: ChatTokens | None = None
        if engine.tokenizer is not None:
            self.chat = ChatTokens(engine.tokenizer, template)
            engine.end_ids = engine.end_ids | self.chat.end_ids

    # ------------------------------------------------------------------ the player's interface

    def begin(self, seat: Seat) -> None:
        seat.memory = Talk(f"{self.name}-{next(_names)}", [Message("system", self.system(seat))])

    def act(self, seats: Sequence[Seat]) -> list[Reply | None]:
        replies: dict[int, Reply | None] = {}
        for i, seat in enumerate(seats):
            if seat.memory.pending is None:
                replies[i] = self.ask(seat)
        if not any(replies.values()):
            places = {seat.memory.pending: i for i, seat in enumerate(seats)}
            for name, completion in self.engine.collect():
                if name in places:
                    seat = seats[places[name]]
                    seat.memory.pending = None
                    replies[places[name]] = self.hear(seat, completion)
        return [replies.get(i) for i in range(len(seats))]

    def settle(self, seat: Seat) -> str | None:
        turns = seat.episode.turns
        turns[-1].penalty = self.dialogue.penalty(turns[-1])
        return self.dialogue.spent(turns)

    def end(self, seat: Seat) -> None:
        if isinstance(seat.memory, Talk):
            self.engine.release(seat.memory.pending or seat.memory.name)
            self.engine.release(seat.memory.name)

    # ------------------------------------------------------------------ one turn

    def system(self, seat: Seat) -> str:
        """The system message of an episode."""
        text = self.dialogue.system(seat.env)
        if self.demonstrations is not None:
            text = f"{text}\n\n{self.demonstrations.text(seat)}"
        return text

    def ask(self, seat: Seat, text: str | None = None) -> Reply | None:
        """Submit the request of the current turn.

        Args:
            text: what to say to the model instead of the dialogue's message for the turn.

        Returns:
            A reply at once where there is no room for one, else None: the completion will be heard.
        """
        talk: Talk = seat.memory
        turns = seat.episode.turns
        talk.users.append(self.dialogue.user(seat.observation, turns) if text is None else text)
        talk.messages.append(Message("user", talk.users[-1]))
        messages = talk.messages if self.dialogue.history == "full" else self._recent(talk, seat)
        sampling = self.sampling
        prompt_ids = None
        if self.chat is not None:
            prompt_ids = self._extend(talk, messages, self.chat)
            if self.engine.context is not None:
                room = self.engine.context - len(prompt_ids)
                if room < 1:
                    reason = f"a prompt of {len(prompt_ids)} tokens fills the context of {self.engine.context}"
                    return Reply((), text="", quit=reason, well_formed=False)
                sampling = replace(sampling, max_tokens=min(sampling.max_tokens, room))
        prefill = self.dialogue.prefill if self.chat is not None else ""
        self.engine.submit(
            Request(talk.name, tuple(messages), prompt_ids, sampling, seat.rng.getrandbits(31), prefill)
        )
        talk.pending = talk.name
        return None

    def hear(self, seat: Seat, completion: Completion) -> Reply | None:
        """Turn a completion into what the player does; None if it has asked for more instead."""
        talk: Talk = seat.memory
        if completion.finish == "error":
            return Reply((), error=f"the engine failed: {completion.error}")
        text = completion.text
        tokens: dict[str, Any] = {}
        if talk.tokens is not None:
            text = self.dialogue.prefill + text
            assert completion.token_ids is not None and completion.logprobs is not None
            talk.tokens.add_reply(completion.token_ids, completion.logprobs)
            talk.sampled = completion.token_ids
            tokens = {**talk.tokens.since(talk.mark)._asdict(), "restart": talk.restart or None}
            talk.mark = len(talk.tokens)
        talk.messages.append(Message("assistant", text))
        parsed = self.dialogue.parse(text)
        # A reply without an action is no way out of a step limit: the world refuses the empty one, and counts it.
        actions = self.dialogue.allowed(parsed.actions or ("",), seat.episode.turns)
        return Reply(actions, text=text, thought=parsed.thought, well_formed=parsed.well_formed, **tokens)

    def aside(self, seat: Seat, system: str, user: str, purpose: str) -> None:
        """Submit a question outside the episode's conversation; `hear` gets the answer."""
        talk: Talk = seat.memory
        messages = (Message("system", system), Message("user", user))
        prompt_ids = self.chat.opening(messages) if self.chat is not None else None
        talk.pending = f"{talk.name}-{purpose}"
        sampling = replace(self.sampling, stop=())
        self.engine.submit(Request(talk.pending, messages, prompt_ids, sampling, seat.rng.getrandbits(31)))

    # ------------------------------------------------------------------ what the model sees

    def _recent(self, talk: Talk, seat: Seat) -> list[Message]:
        """The messages of a history that is cut."""
        turns = seat.episode.turns
        if self.dialogue.history == "single":
            return [talk.messages[0], Message("user", self.dialogue.summary(seat.observation, turns))]
        first = max(0, len(turns) - (self.dialogue.window - 1))
        messages = [talk.messages[0]]
        for user, turn in zip(talk.users[first:], turns[first:], strict=False):
            messages += [Message("user", user), Message("assistant", turn.reply)]
        return [*messages, Message("user", talk.users[-1])]

    def _extend(self, talk: Talk, messages: Sequence[Message], chat: ChatTokens) -> list[int]:
        """The prompt of this turn: the conversation so far with the new message, or a new one if it was cut."""
        history, turn = self.dialogue.history, len(talk.users)
        is_cut = history == "single" or (history == "window" and turn > self.dialogue.window)
        if talk.tokens is None or is_cut:
            talk.restart = talk.tokens is not None
            talk.tokens = Conversation()
            talk.mark = 0
            talk.tokens.add_prompt(chat.opening(messages, self.dialogue.prefill))
        else:
            talk.restart = False
            talk.tokens.add_prompt(chat.bridge(talk.sampled, [messages[-1]], self.dialogue.prefill))
        return talk.tokens.ids
