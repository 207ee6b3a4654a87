"""The record of an episode, complete enough to score it, replay it and train on it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..envs.snapshots import Snapshot
from .exchange import Exchange, pack_exchanges, unpack_exchanges
from .forks import Fork

SPENT = "are spent"
"""End of the reason of an episode, `ended` of its details, that a limit of turns, actions or tokens ended."""

CHANCE_SEED = "chance_seed"
"""Detail of an episode whose random events an agent drew anew at the start, as `best_of_n` does: their seed."""


@dataclass(slots=True)
class Move:
    """One action executed in the environment, and its outcome.

    Attributes:
        action: The action, as passed to `env.step`.
        reward: The reward.
        valid: True if the environment accepted the action.
        changed: True if the action changed the state.
    """

    action: str
    reward: float
    valid: bool
    changed: bool

    def to_dict(self) -> dict[str, Any]:
        """Return the move as plain data."""
        # In place of `dataclasses.asdict`, which copies recursively and takes 30 times as long.
        return {"action": self.action, "reward": self.reward, "valid": self.valid, "changed": self.changed}


class Limits(NamedTuple):
    """Remainder of the limits of an episode; None without a limit.

    Attributes:
        turns: Turns.
        actions: Actions; the smaller number if the dialogue limits the valid ones and the environment all of them.
    """

    turns: int | None
    actions: int | None


NOT_STORED = frozenset(
    {"actions", "state_key", "next_state_key", "effects", "choices", "limits", "limits_after", "snapshot", "fork"}
)
"""Fields of a turn that its record in a file does not have."""


@dataclass(slots=True)
class Turn:
    """One reply of the agent and the moves that it led to.

    Attributes:
        observation: The observation before the turn.
        reply: The raw reply.
        thought: The reasoning, where the dialogue has any.
        moves: The executed actions, in order; empty if there were none.
        actions: Actions parsed from the reply and cut to the budgets. An episode that ends within the turn
            executes only the first of them. None in records from files.
        well_formed: True if the reply follows the dialogue's format.
        penalty: The dialogue's format penalty for this turn; not part of the return.
        agent_seconds: Wall time of the agent, in seconds.
        env_seconds: Wall time of the environment, in seconds.
        token_ids: Tokens that this turn appended to the conversation, prompt included; None for agents without a
            tokenizer.
        logprobs: Log-probability of each of these tokens under the sampling policy; 0.0 for prompt tokens.
        loss_mask: 1 for sampled tokens, 0 for prompt tokens.
        cut: True if the reply reached a limit of tokens, or the prompt left no room for one; None otherwise.
        restart: True if these tokens begin a new sequence (truncated histories) instead of extending the previous
            one.
        state_key: The environment's `state_key()` before the turn; `play` records it with `keep={"states"}`.
        next_state_key: The key after the turn, recorded likewise; None where the environment terminated.
        effects: Executed actions that count as modifying the environment (see `TextEnv.counts_as_effect`),
            recorded likewise.
        choices: Admissible actions before the turn, recorded with `keep={"choices"}`; None where they cannot be
            listed.
        limits: What the limits allow before the turn, this turn included; recorded with `keep={"limits"}`.
        limits_after: The same after the turn, recorded likewise.
        snapshot: State of the environment before the turn, recorded with `keep={"snapshots"}`; None where it has
            no snapshots.
        fork: The state before the turn, recorded with `keep={"forks"}`.

    `actions` and everything that only `keep` records are not stored in files.
    """

    observation: str
    reply: str
    thought: str | None = None
    moves: list[Move] = field(default_factory=list)
    well_formed: bool = True
    penalty: float = 0.0
    agent_seconds: float = 0.0
    env_seconds: float = 0.0
    token_ids: list[int] | None = None
    logprobs: list[float] | None = None
    loss_mask: list[int] | None = None
    cut: bool | None = None
    restart: bool | None = None
    actions: tuple[str, ...] | None = None
    state_key: Hashable | None = None
    next_state_key: Hashable | None = None
    effects: tuple[str, ...] | None = None
    choices: tuple[str, ...] | None = None
    limits: Limits | None = None
    limits_after: Limits | None = None
    snapshot: Snapshot | None = None
    fork: Fork | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the turn as plain data, without fields that are None or not stored."""
        record = {name: value for name in _STORED if (value := getattr(self, name)) is not None}
        record["moves"] = [move.to_dict() for move in self.moves]
        return record


_STORED = tuple(name for name in Turn.__dataclass_fields__ if name not in NOT_STORED)


@dataclass(slots=True)
class Episode:
    """The record of one attempt at a task.

    Attributes:
        env: Id of the environment.
        task: Id of the task.
        seed: Seed of all randomness of the episode.
        agent: Name of the agent.
        success: True if the task was solved at the end.
        terminated: True if the episode was ended by the environment's rules.
        truncated: True if the episode was ended by a step, turn or action limit.
        error: Reason why the environment failed or the time limit expired, in one sentence; None for a complete
            episode. Failures of the agent raise out of `play` and are never recorded here.
        details: Entries of the last `info` beyond the standard keys (scores, task type), and entries of the agent.
        final_observation: The observation after the last move.
        trials: Earlier attempts at the same task, for agents that retry; this episode is the last attempt.
        turns: The turns, in order.
        exchanges: Every request to a language model with its reply, in order; empty for agents without a model.
        trace: Traceback of the failure in `error`; None for a complete episode, or where there is none.
    """

    env: str
    task: str
    seed: int
    agent: str
    success: bool = False
    terminated: bool = False
    truncated: bool = False
    error: str | None = None
    details: dict[str, Any] = field(default_factory=dict)
    final_observation: str = ""
    trials: list[Episode] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    exchanges: list[Exchange] = field(default_factory=list)
    trace: str | None = None

    @property
    def total_reward(self) -> float:
        """Undiscounted return."""
        return sum(move.reward for turn in self.turns for move in turn.moves)

    @property
    def chance_seed(self) -> int | None:
        """Seed with which the random events were drawn anew after the reset; None if they are those of `seed`."""
        seed = self.details.get(CHANCE_SEED)
        return seed if isinstance(seed, int) else None

    @property
    def total_penalty(self) -> float:
        """Sum of the format penalties, at most 0."""
        return sum(turn.penalty for turn in self.turns)

    @property
    def steps(self) -> int:
        """Number of executed actions, invalid ones included."""
        return sum(len(turn.moves) for turn in self.turns)

    @property
    def invalid(self) -> int:
        """Number of actions that the environment rejected."""
        return sum(not move.valid for turn in self.turns for move in turn.moves)

    @property
    def seconds(self) -> float:
        """Wall time of agent and environment together, in seconds."""
        return sum(turn.agent_seconds + turn.env_seconds for turn in self.turns)

    def to_dict(self) -> dict[str, Any]:
        """Return the record as plain data, without `trials`, `exchanges` and `trace` if they are empty.

        `pack_exchanges` has the form of the exchanges.
        """
        record = {name: getattr(self, name) for name in self.__dataclass_fields__}
        record["turns"] = [turn.to_dict() for turn in self.turns]
        record["trials"] = [trial.to_dict() for trial in self.trials]
        record["exchanges"] = pack_exchanges(self.exchanges, self._observations, self._replies)
        for name in ("trials", "exchanges", "trace"):
            if not record[name]:
                del record[name]
        return record

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Episode:
        """Return the episode of a record written by `to_dict`; unknown keys are ignored but in turns."""
        known = {name: record[name] for name in cls.__dataclass_fields__ if name in record}
        known["trials"] = [cls.from_dict(trial) for trial in record.get("trials", ())]
        known["turns"] = [
            Turn(**{**turn, "moves": [Move(**move) for move in turn["moves"]]}) for turn in record["turns"]
        ]
        episode = cls(**{**known, "exchanges": []})
        stored = record.get("exchanges", ())
        episode.exchanges = unpack_exchanges(stored, episode._observations, episode._replies)
        return episode

    @property
    def _observations(self) -> list[str]:
        return [*(turn.observation for turn in self.turns), self.final_observation]

    @property
    def _replies(self) -> list[str]:
        return [turn.reply for turn in self.turns]
