"""The interface of every engine: requests go in, completions come out as they are ready.

One interface serves a model in this process, a vLLM server and a paid API. Requests of many conversations are
under way at once; a conversation has at most one. Engines that keep state a conversation (a key-value cache)
find it again by the conversation's name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

Role = Literal["system", "user", "assistant"]
Finish = Literal["stop", "length", "error"]


class Message(NamedTuple):
    """One message of a conversation."""

    role: Role
    content: str


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a reply is drawn.

    Attributes:
        temperature: 0 is greedy.
        top_p: nucleus sampling; 1 is off.
        top_k: 0 is off.
        max_tokens: longest reply, in tokens.
        stop: texts after which the reply ends; the reply includes the one that ended it.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 400
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be answered.

    Attributes:
        conversation: name of the conversation, unique among those alive.
        messages: the whole conversation as text, for engines that take text. The last message is the user's.
        prompt_ids: the whole conversation as tokens, sampled ones verbatim, up to where the reply begins; for
            engines with a tokenizer.
        sampling: how to draw.
        seed: decides the draw, where the engine can be seeded.
        prefill: text that the reply is made to begin with (already part of `prompt_ids`).
        parent: name of the conversation that this one branched off, whose cache may be forked.
    """

    conversation: str
    messages: tuple[Message, ...]
    prompt_ids: Sequence[int] | None
    sampling: Sampling
    seed: int
    prefill: str = ""
    parent: str | None = None


@dataclass(slots=True)
class Usage:
    """Tokens and money. `prompt_tokens` counts all, `cached_tokens` those of them that cost no computation."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0
    """In US dollars, where prices are known."""

    def add(self, other: Usage) -> None:
        self.prompt_tokens += other.prompt_tokens
        self.cached_tokens += other.cached_tokens
        self.completion_tokens += other.completion_tokens
        self.cost += other.cost


@dataclass(frozen=True, slots=True)
class Completion:
    """A reply.

    Attributes:
        text: what was said, without the prefill and without end-of-turn tokens.
        finish: "stop" (end of turn or a stop text), "length" (cut by `max_tokens` or the context), "error".
        token_ids: what was sampled, end-of-turn token included, for engines with a tokenizer.
        logprobs: the log-probability of each, at temperature 1 and before top-p and top-k (an engine beside a
            trainer may be told to report those of the distribution that was drawn from).
        usage: what it cost.
        error: one sentence, when `finish` is "error"; the episode then breaks off and a resumed run retries it.
    """

    text: str
    finish: Finish
    token_ids: list[int] | None = None
    logprobs: list[float] | None = None
    usage: Usage = field(default_factory=Usage)
    error: str | None = None


class Engine(ABC):
    """Answers requests of many conversations at once.

    Attributes:
        name: how records call it, such as "transformers:Qwen/Qwen2.5-0.5B-Instruct".
        tokenizer: the Hugging Face tokenizer of engines that take `prompt_ids`; None for text engines.
        context: longest conversation in tokens, reply included; None where it is not known.
        end_ids: tokens that end a reply; agents add those of their chat template.
        usage: what all replies together cost.
    """

    name: str
    tokenizer: Any = None
    context: int | None = None
    end_ids: Set[int] = frozenset()
    usage: Usage

    @abstractmethod
    def submit(self, request: Request) -> None:
        """Take a request. Returns at once; the work may begin."""

    @abstractmethod
    def collect(self) -> list[tuple[str, Completion]]:
        """Wait until at least one request is answered; return all that are, by conversation name.

        Raises:
            RuntimeError: nothing was submitted.
        """

    def release(self, conversation: str) -> None:  # noqa: B027 (optional)
        """Forget a conversation, and drop its request if one is under way."""

    def close(self) -> None:  # noqa: B027 (optional)
        """Let go of models, connections and threads."""
