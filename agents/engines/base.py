"""Interface of engines: requests are submitted, and completions are collected as they finish.

The same interface serves a model in this process, a vLLM server and a hosted API. Requests of many conversations
are processed concurrently, at most one per conversation. An engine with per-conversation state (a key-value cache)
identifies it by the conversation's name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ...envs.errors import ConfigurationError
from ..checks import check_count, check_number

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Role = Literal["system", "user", "assistant", "tool"]
Finish = Literal["stop", "length", "rejected", "error"]


class Message(NamedTuple):
    """One message of a conversation.

    Attributes:
        role: Author of the message; "tool" for the answer to a function call. The answers to the calls of a reply
            follow it in order.
        content: The text, which includes calls; see `agents/tool_calls.py`.
    """

    role: Role
    content: str


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling settings of a reply.

    Attributes:
        temperature: Sampling temperature; 0 is greedy.
        top_p: Probability mass of nucleus sampling; 1 disables it.
        top_k: Number of most likely tokens to sample from; 0 disables the limit.
        max_tokens: Maximum length of the reply, in tokens.
        stop: Texts that end the reply; the reply includes the one that ended it.

    Raises:
        ConfigurationError: A value is out of range, or of another type.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 400
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_number("temperature", self.temperature, 0)
        check_number("top_p", self.top_p, 0, 1)
        check_count("top_k", self.top_k, 0)
        check_count("max_tokens", self.max_tokens, 1)
        if not isinstance(self.stop, tuple) or not all(isinstance(text, str) for text in self.stop):
            raise ConfigurationError(f"stop must be a list of texts, not {self.stop!r:.80}.")


@dataclass(frozen=True, slots=True)
class Request:
    """A request for one reply.

    Attributes:
        conversation: Name of the conversation, unique among those not released.
        messages: The whole conversation as text, ending with a message to the model; for engines without a
            tokenizer.
        prompt_ids: The whole conversation as token ids up to the beginning of the reply, sampled ids unchanged;
            for engines with a tokenizer. None for engines without.
        sampling: Sampling settings.
        seed: Seed of the sampling, for engines that can be seeded.
        prefill: Forced beginning of the reply (already part of `prompt_ids`).
        parent: Name of the conversation that this one branched from, whose cache may be forked; None if there is
            none.
        tools: Schemas of the functions that the reply may call, in the form of OpenAI's `tools`; for engines
            without a tokenizer (`prompt_ids` has them already).
    """

    conversation: str
    messages: tuple[Message, ...]
    prompt_ids: Sequence[int] | None
    sampling: Sampling
    seed: int
    prefill: str = ""
    parent: str | None = None
    tools: tuple[Mapping[str, Any], ...] = ()


@dataclass(slots=True)
class Usage:
    """Token counts and cost.

    Attributes:
        prompt_tokens: Number of prompt tokens, cached ones included.
        cached_tokens: Number of prompt tokens that needed no computation.
        completion_tokens: Number of sampled tokens.
        cost: Cost in US dollars; 0 where prices are unknown.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0

    def add(self, other: Usage) -> None:
        """Add another usage in place."""
        self.prompt_tokens += other.prompt_tokens
        self.cached_tokens += other.cached_tokens
        self.completion_tokens += other.completion_tokens
        self.cost += other.cost


@dataclass(frozen=True, slots=True)
class Completion:
    """A reply.

    Attributes:
        text: The text, without the prefill and without end-of-turn tokens.
        finish: "stop" (end of turn or stop text), "length" (limit of `max_tokens` or of the context window),
            "rejected" (the server refuses this conversation for its content or its length), or "error" (the engine
            failed).
        token_ids: The sampled token ids, end-of-turn token included; None for engines without a tokenizer.
        logprobs: Log-probability of each sampled token at temperature 1, before top-p and top-k. Engines of
            trainers may be configured to report those of the sampling distribution instead.
        usage: Token counts and cost.
        error: Reason in one sentence if `finish` is "rejected", which truncates the episode, or "error", which
            ends the run.
    """

    text: str
    finish: Finish
    token_ids: list[int] | None = None
    logprobs: list[float] | None = None
    usage: Usage = field(default_factory=Usage)
    error: str | None = None


class Engine(ABC):
    """A sampler that serves many conversations concurrently.

    Attributes:
        name: Name in records, such as "transformers:Qwen/Qwen2.5-0.5B-Instruct".
        tokenizer: Hugging Face tokenizer of an engine that takes `prompt_ids`; None for engines that take text.
        context: Context window in tokens, reply included; None if unknown.
        forces_prefill: True if an engine that takes text begins replies with the prefill of their request.
        end_ids: Tokens that end a reply; agents add those of their chat template.
        usage: Token counts and cost of all replies.
    """

    name: str
    tokenizer: PreTrainedTokenizerBase | Any = None
    context: int | None = None
    forces_prefill: bool = False
    end_ids: Set[int] = frozenset()
    usage: Usage

    @abstractmethod
    def submit(self, request: Request) -> None:
        """Queue a request and return at once."""

    @abstractmethod
    def collect(self) -> list[tuple[str, Completion]]:
        """Wait until at least one request is finished or `wake` is called, and return all finished ones.

        Returns:
            Pairs of conversation name and completion.

        Raises:
            RuntimeError: No request is pending.
        """

    def wake(self) -> None:  # noqa: B027 (optional)
        """Have a `collect` in progress, or else the next one, return soon; may be called from any thread."""

    def release(self, conversation: str) -> None:  # noqa: B027 (optional)
        """Drop the state of a conversation, and its request if one is pending."""

    def close(self) -> None:  # noqa: B027 (optional)
        """Release models, connections and threads."""
