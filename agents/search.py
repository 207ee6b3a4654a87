"""Search with the environment as a simulator: branches of an episode are played before its next move is chosen."""

from __future__ import annotations

import random
import time
from collections.abc import Generator, Hashable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ..envs.errors import ConfigurationError
from ..envs.seeding import stable_seed
from ..envs.snapshots import Snapshot
from ..envs.user_code import USER_ERRORS, describe_failure
from .base import Reply, Seat, Stop
from .engines.base import Sampling, Usage
from .episode import Episode
from .exchange import Exchange
from .execution import execute
from .forks import CannotFork, Fork, take_snapshot
from .language import LanguageAgent

Answers = list[tuple[Seat, Reply]]
"""Branches whose reply is ready, with their replies."""

Search = Generator[list[Seat], Answers, Reply]
"""A search: it yields the branches that wait for a reply, is sent those that are ready, and returns its choice."""


class SimulationFailed(Exception):
    """The environment failed in a branch; the message is the reason."""


@dataclass(slots=True)
class SearchState:
    """Memory of one episode.

    Attributes:
        process: The search for the current turn; None between turns.
        waiting: Branches that wait for a reply.
        reply: Result of the search.
        conversations: Names of the conversations of the branches that the engine holds.
        branches: Number of branches so far; their seeds derive from it.
        usage: Tokens and cost of all replies of the episode, those of branches included.
        steps: Number of actions executed in branches.
        reused: Number of sampled tokens with which branches began, instead of sampling them.
        data: What the agent keeps.
    """

    process: Search | None = None
    waiting: list[Seat] = field(default_factory=list)
    reply: Reply | None = None
    conversations: set[str] = field(default_factory=set)
    branches: int = 0
    usage: Usage = field(default_factory=Usage)
    steps: int = 0
    reused: int = 0
    data: Any = None


class SearchAgent(LanguageAgent):
    """Base of agents that play branches of an episode with a model before they choose its next reply.

    The branches are played in the environment itself, which is restored afterwards, with new randomness. Branches
    of all episodes in progress share the batches of the engine. The details of an episode have the cost of its
    search: `completion_tokens` and `prompt_tokens` of all branches, `simulated_steps` (actions executed in
    branches) and `reused_tokens` (sampled tokens with which branches began).

    A subclass defines `search`. The arguments are those of `LanguageAgent`; the temperature must not be 0.
    """

    uses_success_labels = True
    uses_simulator = True

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.check(self.sampling)

    @classmethod
    def check(cls, sampling: Sampling, **settings: Any) -> None:
        """Check the settings of the agent.

        Raises:
            ConfigurationError: A value is out of range.
        """
        if sampling.temperature == 0:
            raise ConfigurationError(
                "search needs different replies to one prompt, but the temperature is 0; pass --temperature 1."
            )

    def search(self, seat: Seat) -> Search:
        """Search for the next reply of an episode; see `Search`."""
        raise NotImplementedError

    # ------------------------------------------------------------------ interface of Agent

    def begin(self, seat: Seat) -> None:
        self.snapshot(seat)
        seat.memory = SearchState()

    def save(self, seat: Seat) -> Any:
        if isinstance(seat.memory, SearchState):
            raise Stop(f"episodes of agent {self.name} cannot be forked: their search is not part of a fork.")
        return super().save(seat)

    def act(self, seats: Sequence[Seat]) -> list[Reply | None]:
        for seat in seats:
            state: SearchState = seat.memory
            if state.process is None:
                state.process, state.reply = self.search(seat), None
                self._continue(seat, None)
        while all(seat.memory.reply is None and time.perf_counter() < seat.deadline for seat in seats):
            branches = [(seat, branch) for seat in seats for branch in seat.memory.waiting]
            replies = super().act([branch for _, branch in branches])
            ready: dict[int, Answers] = {}
            for (seat, branch), reply in zip(branches, replies, strict=True):
                if reply is not None:
                    self._count(seat.memory, branch)
                    ready.setdefault(id(seat), []).append((branch, reply))
            if not ready:
                break  # `wake` was called.
            for seat in seats:
                if id(seat) in ready:
                    self._continue(seat, ready[id(seat)])
        found = [seat.memory.reply for seat in seats]
        for seat, reply in zip(seats, found, strict=True):
            if reply is not None:
                seat.memory.process = None
        return found

    def end(self, seat: Seat) -> None:
        state = seat.memory
        if isinstance(state, SearchState):
            self.release(seat, [*state.conversations])

    def _continue(self, seat: Seat, answers: Answers | None) -> None:
        """Run the search of an episode until it needs further replies, or has found its own."""
        state: SearchState = seat.memory
        process = state.process
        assert process is not None
        answered = {id(branch) for branch, _ in answers or ()}
        try:
            new = next(process) if answers is None else process.send(answers)
            state.waiting = [*(one for one in state.waiting if id(one) not in answered), *new]
        except StopIteration as stop:
            state.waiting, state.reply = [], stop.value
        except SimulationFailed as error:
            state.waiting, state.reply = [], Reply((), error=str(error))
        seat.episode.details |= {
            **asdict(state.usage),
            "simulated_steps": state.steps,
            "reused_tokens": state.reused,
        }

    def _count(self, state: SearchState, branch: Seat) -> None:
        """Move the usage of a branch to that of its episode."""
        state.usage.add(branch.memory.usage)
        branch.memory.usage = Usage()

    # ------------------------------------------------------------------ branches

    def snapshot(self, seat: Seat) -> Snapshot:
        """Return the snapshot of an episode's environment.

        Raises:
            Stop: The environment has none.
        """
        try:
            snapshot = take_snapshot(seat.env)
        except CannotFork:
            snapshot = None
        if snapshot is None:
            env_id = seat.env.spec.id if seat.env.spec is not None else type(seat.env).__name__
            raise Stop(
                f"agent {self.name} searches with the environment as a simulator, but {env_id} has no snapshot();"
                " define snapshot() and restore() there, or take an agent that does not search, such as direct."
            )
        return snapshot

    def root(self, seat: Seat) -> Fork:
        """Return the fork before the first turn of an episode."""
        first = self._seat(seat, seat.observation, seat.info, [], [])
        super().begin(first)
        return Fork(self.snapshot(seat), seat.observation, seat.info, super().save(first))

    def branch(
        self, seat: Seat, fork: Fork, turns: Sequence[Any] = (), exchanges: Sequence[Exchange] = ()
    ) -> Seat:
        """Return a new branch of an episode, which continues from a fork; its environment is not restored yet.

        Args:
            seat: The episode.
            fork: State before the branch's first own turn.
            turns: Turns before it.
            exchanges: Exchanges of these turns.
        """
        state: SearchState = seat.memory
        branch = self._seat(seat, fork.observation, fork.info, turns, exchanges)
        branch.fork = fork
        self.resume(branch, fork.memory)
        state.conversations.add(branch.memory.name)
        state.reused += sum(sum(turn.loss_mask or ()) for turn in turns)
        return branch

    def release(self, seat: Seat, conversations: Sequence[str]) -> None:
        """Release conversations of branches, which then are not forked any more."""
        for name in conversations:
            self.engine.release(name)
        seat.memory.conversations.difference_update(conversations)

    def state_key(self, seat: Seat) -> Hashable:
        """Return the key of the current state of an episode or a branch, its end and its observation included.

        It equals no other key where the environment has none.

        Raises:
            SimulationFailed: The environment failed.
        """
        episode = seat.episode
        try:
            key = seat.env.state_key()
        except USER_ERRORS as error:
            raise SimulationFailed(describe_failure("the environment", error)) from error
        return episode.terminated or episode.truncated, object() if key is None else key, seat.observation

    def restore(self, seat: Seat, snapshot: Snapshot, seed: int | None = None) -> None:
        """Restore the environment of an episode.

        Raises:
            SimulationFailed: The environment failed.
        """
        try:
            seat.env.restore(snapshot, seed)
        except USER_ERRORS as error:
            raise SimulationFailed(describe_failure("the environment", error)) from error

    def step(self, seat: Seat, branch: Seat, reply: Reply) -> bool:
        """Execute a reply in a branch, whose state the environment must be in; return True if the branch ended.

        The branch's fork becomes the state after the turn, with the memory as it is.

        Raises:
            SimulationFailed: The environment failed.
        """
        state: SearchState = seat.memory
        before = len(branch.episode.turns)
        execute(self, branch, reply, 0.0, ())
        state.steps += sum(len(turn.moves) for turn in branch.episode.turns[before:])
        if branch.episode.error is not None:
            raise SimulationFailed(branch.episode.error)
        return branch.episode.terminated or branch.episode.truncated

    def draw_seed(self, seat: Seat) -> int:
        """Return the seed of the next random events in branches of an episode."""
        state: SearchState = seat.memory
        state.branches += 1
        return stable_seed("search", seat.episode.seed, state.branches) >> 1

    def _seat(
        self, seat: Seat, observation: str, info: Any, turns: Sequence[Any], exchanges: Sequence[Exchange]
    ) -> Seat:
        outer = seat.episode
        episode = Episode(outer.env, outer.task, outer.seed, self.name, turns=[*turns], exchanges=[*exchanges])
        branch = Seat(seat.env, observation, info, episode, random.Random(self.draw_seed(seat)))
        branch.deadline, branch.time_limit, branch.max_turns = seat.deadline, seat.time_limit, seat.max_turns
        branch.step_time_limit = seat.step_time_limit
        return branch


def collect(branches: Sequence[Seat]) -> Generator[list[Seat], Answers, list[Reply]]:
    """Wait for the replies of all branches, and return them in the order of the branches."""
    replies: dict[int, Reply] = {}
    new = list(branches)
    while len(replies) < len(branches):
        answers = yield new
        new = []
        replies |= {id(branch): reply for branch, reply in answers}
    return [replies[id(branch)] for branch in branches]
