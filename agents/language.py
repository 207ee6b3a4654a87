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
        system: the system message.
        users: the user message of every turn so far, the current one included.
        tokens: the conversation as the model saw it, for engines with a tokenizer.
        mark: length of `tokens` at the end of the last turn.
        restart: whether the current turn began a new token sequence.
        waiting: whether a request is under way.
    """

    name: str
    system: str
    users: list[str] = field(default_factory=list)
    tokens: Conversation | None = None
    mark: int = 0
    restart: bool = False
    waiting: bool = False


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
        self.chat = ChatTokens(engine.tokenizer, template) if engine.tokenizer is not None else None

    # ------------------------------------------------------------------ the player's interface

    def begin(self, seat: Seat) -> None:
        system = self.dialogue.system(seat.env)
        if self.demonstrations is not None:
            system = f"{system}\n\n{self.demonstrations.text(seat)}"
        seat.memory = Talk(f"{self.name}-{next(_names)}", system)

    def act(self, seats: Sequence[Seat]) -> list[Reply | None]:
        replies: dict[str, Reply] = {}
        for seat in seats:
            talk: Talk = seat.memory
            if not talk.waiting:
                refusal = self.ask(seat)
                if refusal is not None:
                    replies[talk.name] = refusal
        if not replies:
            by_name = {seat.memory.name: seat for seat in seats}
            for name, completion in self.engine.collect():
                if name in by_name:
                    reply = self.hear(by_name[name], completion)
                    if reply is not None:
                        replies[by_name[name].memory.name] = reply
        return [replies.get(seat.memory.name) for seat in seats]

    def settle(self, seat: Seat) -> str | None:
        turns = seat.episode.turns
        turns[-1].penalty = self.dialogue.penalty(turns[-1])
        return self.dialogue.spent(turns)

    def end(self, seat: Seat) -> None:
        if isinstance(seat.memory, Talk):
            self.engine.release(seat.memory.name)

    # ------------------------------------------------------------------ one turn

    def ask(self, seat: Seat) -> Reply | None:
        """Submit the request of the current turn; returns a reply at once if there is no room for one."""
        talk: Talk = seat.memory
        turns = seat.episode.turns
        talk.users.append(self.dialogue.user(seat.observation, turns))
        messages = self._messages(talk, seat)
        sampling = self.sampling
        prompt_ids = None
        if self.chat is not None:
            prompt_ids = self._extend(talk, seat, messages, self.chat)
            if self.engine.context is not None:
                room = self.engine.context - len(prompt_ids)
                if room < 1:
                    reason = (
                        f"the conversation of {len(prompt_ids)} tokens fills the context of {self.engine.context}"
                    )
                    return Reply((), text="", quit=reason, well_formed=False)
                sampling = replace(sampling, max_tokens=min(sampling.max_tokens, room))
        self.engine.submit(
            Request(
                conversation=talk.name,
                messages=tuple(messages),
                prompt_ids=prompt_ids,
                sampling=sampling,
                seed=seat.rng.getrandbits(31),
                prefill=self.dialogue.prefill if self.chat is not None else "",
            )
        )
        talk.waiting = True
        return None

    def hear(self, seat: Seat, completion: Completion) -> Reply | None:
        """Turn a completion into what the player does; None if it has asked for more instead."""
        talk: Talk = seat.memory
        talk.waiting = False
        if completion.finish == "error":
            return Reply((), error=f"the engine failed: {completion.error}")
        text = completion.text
        tokens: dict[str, Any] = {}
        if talk.tokens is not None:
            text = self.dialogue.prefill + text
            assert completion.token_ids is not None and completion.logprobs is not None
            talk.tokens.add_reply(completion.token_ids, completion.logprobs)
            ids, mask, logprobs = talk.tokens.since(talk.mark)
            talk.mark = len(talk.tokens)
            tokens = {"token_ids": ids, "loss_mask": mask, "logprobs": logprobs, "restart": talk.restart or None}
        parsed = self.dialogue.parse(text)
        actions = self.dialogue.allowed(parsed.actions, seat.episode.turns)
        return Reply(actions, text=text, thought=parsed.thought, well_formed=parsed.well_formed, **tokens)

    # ------------------------------------------------------------------ what the model sees

    def _messages(self, talk: Talk, seat: Seat) -> list[Message]:
        turns = seat.episode.turns
        system = Message("system", talk.system)
        if self.dialogue.history == "single":
            return [system, Message("user", self.dialogue.summary(seat.observation, turns))]
        first = 0 if self.dialogue.history == "full" else max(0, len(turns) - (self.dialogue.window - 1))
        messages = [system]
        for user, turn in zip(talk.users[first:], turns[first:], strict=False):
            messages += [Message("user", user), Message("assistant", turn.reply)]
        return [*messages, Message("user", talk.users[-1])]

    def _extend(self, talk: Talk, seat: Seat, messages: Sequence[Message], chat: ChatTokens) -> list[int]:
        """The prompt of this turn: the conversation so far with the new message, or a new one if it was cut."""
        prefill = self.dialogue.prefill
        turns = seat.episode.turns
        if talk.tokens is None or self._is_cut(turns):
            talk.restart = talk.tokens is not None
            talk.tokens = Conversation()
            talk.mark = 0
            talk.tokens.add_prompt(chat.opening(messages, prefill))
        else:
            talk.restart = False
            sampled = talk.tokens.last_reply()
            talk.tokens.add_prompt(chat.bridge(sampled, [messages[-1]], prefill))
        return talk.tokens.ids

    def _is_cut(self, turns: Sequence[object]) -> bool:
        """Whether this turn's prompt is not the last one continued."""
        history = self.dialogue.history
        return history == "single" or (history == "window" and len(turns) >= self.dialogue.window)
