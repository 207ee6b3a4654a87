"""Best of n: several episodes of a task, of which the one with the highest return is kept."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..envs.errors import unknown_name
from .base import Reply, Seat
from .checks import check_counts
from .engines.base import Sampling
from .episode import CHANCE_SEED
from .exchange import Exchange
from .forks import Fork
from .search import Search, SearchAgent, SimulationFailed

SELECTIONS = ("return",)
"""Values of `BestOfN.select`."""


@dataclass(slots=True)
class _Branch:
    """A branch from the start.

    Attributes:
        chance_seed: Seed of its random events.
        start: Fork at the start, with these random events.
        seat: Its episode.
        replies: Its replies.
        over: True if it has ended.
    """

    chance_seed: int
    start: Fork
    seat: Seat
    replies: list[Reply] = field(default_factory=list)
    over: bool = False


class _Turn(NamedTuple):
    """Turn of the kept branch.

    Attributes:
        observation: Observation before the reply.
        reply: The reply.
        exchanges: Its exchanges with the model.
    """

    observation: str
    reply: Reply
    exchanges: list[Exchange]


class BestOfN(SearchAgent):
    """Agent that plays a task n times as branches from the start, and keeps the episode with the highest return.

    Its result is that of a verifier that knows the reward of a finished episode (pass@n for tasks that reward
    success only). The recorded episode is the kept one, reply by reply; its `details` have the cost of all n, the
    number of the kept one as `kept`, and the seed of its random events as `chance_seed`.

    Args:
        n: Number of episodes.
        select: Criterion of the choice: "return" keeps the highest undiscounted return, the first one of several.
        settings: See `LanguageAgent`.
    """

    def __init__(self, *args: Any, n: int = 8, select: str = "return", **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.check(self.sampling, n=n, select=select)
        self.n = n
        self.select = select

    @classmethod
    def check(cls, sampling: Sampling, **settings: Any) -> None:
        super().check(sampling)
        check_counts(settings, n=1)
        select = settings.get("select", "return")
        if select not in SELECTIONS:
            raise unknown_name("select", select, SELECTIONS)

    def search(self, seat: Seat) -> Search:
        kept: deque[_Turn] | None = seat.memory.data
        if kept is None:
            kept = seat.memory.data = yield from self._play(seat)
        if not kept or kept[0].observation != seat.observation:
            raise SimulationFailed(
                "the environment does not repeat itself: from the same snapshot, the same replies had other"
                " effects; restore() must bring back the state and the random generator"
            )
        turn = kept.popleft()
        seat.episode.exchanges += turn.exchanges
        return turn.reply

    def _play(self, seat: Seat) -> Any:
        """Play n branches; return the turns of the best one."""
        root = self.root(seat)
        assert root.snapshot is not None
        branches: dict[int, _Branch] = {}
        for _ in range(self.n):
            chance_seed = self.draw_seed(seat)
            self.restore(seat, root.snapshot, chance_seed)
            start = Fork(self.snapshot(seat), root.observation, root.info, root.memory)
            one = self.branch(seat, start)
            branches[id(one)] = _Branch(chance_seed, start, one)
        waiting = [branch.seat for branch in branches.values()]
        while not all(branch.over for branch in branches.values()):
            answers = yield waiting
            waiting = []
            for one, reply in answers:
                branch, fork = branches[id(one)], one.fork
                assert fork is not None and fork.snapshot is not None
                branch.replies.append(reply)
                self.restore(seat, fork.snapshot)
                branch.over = self.step(seat, one, reply)
                if not branch.over:
                    one.fork = Fork(self.snapshot(seat), one.observation, one.info, None)
                    waiting.append(one)
        number, best = max(enumerate(branches.values()), key=lambda item: item[1].seat.episode.total_reward)
        seat.episode.details |= {"kept": number, CHANCE_SEED: best.chance_seed}
        assert best.start.snapshot is not None
        self.restore(seat, best.start.snapshot)  # The same replies then meet the same random events.
        episode = best.seat.episode
        return deque(
            _Turn(turn.observation, reply, [exchange for exchange in episode.exchanges if exchange.turn == number])
            for number, (turn, reply) in enumerate(zip(episode.turns, best.replies, strict=True))
        )
