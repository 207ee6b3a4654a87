"""Best of n: several episodes of a task, of which the one with the highest return is kept."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from ..envs.errors import unknown_name
from .base import Reply, Seat
from .checks import check_counts
from .engines.base import Sampling
from .exchange import Exchange
from .forks import Fork
from .search import Search, SearchAgent

SELECTIONS = ("return",)
"""Values of `BestOfN.select`."""


@dataclass(slots=True)
class _Branch:
    """A branch from the start.

    Attributes:
        start: Fork at the start, with the branch's own randomness.
        seat: Its episode.
        replies: Its replies.
        over: True if it has ended.
    """

    start: Fork
    seat: Seat
    replies: list[Reply] = field(default_factory=list)
    over: bool = False


class BestOfN(SearchAgent):
    """Agent that plays a task n times as branches from the start, and keeps the episode with the highest return.

    Its result is that of a verifier that knows the reward of a finished episode (pass@n for tasks that reward
    success only). The recorded episode is the kept one, reply by reply; its `details` have the cost of all n, and
    the number of the kept one as `kept`.

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
        kept: deque[tuple[Reply, list[Exchange]]] | None = seat.memory.data
        if kept is None:
            kept = seat.memory.data = yield from self._play(seat)
        reply, exchanges = kept.popleft()
        seat.episode.exchanges += exchanges
        return reply

    def _play(self, seat: Seat) -> Any:
        """Play n branches; return the replies of the best one, each with its exchanges."""
        root = self.root(seat)
        assert root.snapshot is not None
        branches: dict[int, _Branch] = {}
        for _ in range(self.n):
            self.restore(seat, root.snapshot, self.draw_seed(seat))
            start = Fork(self.snapshot(seat), root.observation, root.info, root.memory)
            one = self.branch(seat, start)
            branches[id(one)] = _Branch(start, one)
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
        seat.episode.details["kept"] = number
        assert best.start.snapshot is not None
        self.restore(seat, best.start.snapshot)  # The same replies then meet the same random events.
        exchanges = best.seat.episode.exchanges
        return deque(
            (reply, [exchange for exchange in exchanges if exchange.turn == turn])
            for turn, reply in enumerate(best.replies)
        )
