"""What is kept of an episode: enough to score it, replay it, and train on it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(slots=True)
class Move:
    """One action taken in the world, and what came of it."""

    action: str
    reward: float
    valid: bool
    changed: bool


@dataclass(slots=True)
class Turn:
    """One reply of the agent and the moves that it led to.

    Attributes:
        observation: what the agent was shown.
        reply: what it said, raw.
        thought: its reasoning, where the dialogue has any.
        moves: the actions taken, in order; empty when the reply held none.
        well_formed: whether the reply kept to the dialogue's format.
        penalty: the dialogue's penalty for this turn; not part of the return.
        agent_seconds: wall time that the agent took.
        world_seconds: wall time that the world took.
        token_ids: tokens that this turn added to the conversation, prompt pieces included (language agents).
        logprobs: log-probability of each of them under the sampling policy; 0.0 where not sampled.
        loss_mask: 1 for tokens that the policy sampled, 0 for all others.
        state_key: the `state_key()` before the turn, where `play` was asked to keep it; not stored in files.
        restart: whether these tokens begin a new sequence (histories that are cut) instead of continuing the last.
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
    restart: bool | None = None
    state_key: Hashable | None = None

    def to_dict(self) -> dict[str, Any]:
        """The turn as plain data, without its state key and what is None."""
        record = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "state_key"}
        record["moves"] = [asdict(move) for move in self.moves]
        return {name: value for name, value in record.items() if value is not None}


@dataclass(slots=True)
class Episode:
    """One played task.

    Attributes:
        world: id of the world.
        task: name of the task.
        seed: what the episode's luck was drawn from.
        agent: name of the agent.
        success: whether the task was solved at the end.
        terminated: ended by the world's rules.
        truncated: ended by a step or turn limit.
        error: why the episode broke off, in one sentence; None for a whole episode.
        details: what the world's last `info` said beyond the standard keys (scores, task type).
        final_observation: the text after the last move.
        trials: earlier attempts at the same task, of players that try again; this episode is the last.
        turns: the turns, in order.
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

    @property
    def total_reward(self) -> float:
        """The undiscounted return."""
        return sum(move.reward for turn in self.turns for move in turn.moves)

    @property
    def total_penalty(self) -> float:
        """The sum of format penalties, at most 0."""
        return sum(turn.penalty for turn in self.turns)

    @property
    def steps(self) -> int:
        """Actions taken in the world, refused ones included."""
        return sum(len(turn.moves) for turn in self.turns)

    @property
    def invalid(self) -> int:
        """Actions that the world refused."""
        return sum(not move.valid for turn in self.turns for move in turn.moves)

    @property
    def seconds(self) -> float:
        """Wall time of agent and world together."""
        return sum(turn.agent_seconds + turn.env_seconds for turn in self.turns)

    def to_dict(self) -> dict[str, Any]:
        """The record as plain data, without an empty `trials`."""
        record = {name: getattr(self, name) for name in self.__dataclass_fields__}
        record["turns"] = [turn.to_dict() for turn in self.turns]
        record["trials"] = [trial.to_dict() for trial in self.trials]
        if not self.trials:
            del record["trials"]
        return record

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Episode:
        """The inverse of `to_dict`; unknown keys are ignored."""
        known = {name: record[name] for name in cls.__dataclass_fields__ if name in record}
        known["trials"] = [cls.from_dict(trial) for trial in record.get("trials", ())]
        known["turns"] = [
            Turn(**{**turn, "moves": [Move(**move) for move in turn["moves"]]}) for turn in record["turns"]
        ]
        return cls(**known)
