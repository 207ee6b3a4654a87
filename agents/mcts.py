"""Monte-Carlo tree search with a language model as the policy, and forks of the environment as the simulator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..envs.errors import ConfigurationError
from .base import Reply, Seat
from .checks import check_count, check_counts, check_number
from .engines.base import Sampling
from .episode import SPENT, Turn
from .exchange import Exchange
from .forks import Fork
from .puct import Actions, Bounds, Candidate, Edge, Node, back_up, select
from .search import Search, SearchAgent, collect

_UNLIMITED = 1 << 60
"""Tokens of an episode without a budget."""


class _State(NamedTuple):
    """State before a turn, in `Node.data`.

    Attributes:
        fork: The fork before the turn.
        turns: Turns before it.
        exchanges: Exchanges of these turns.
    """

    fork: Fork
    turns: Sequence[Turn]
    exchanges: Sequence[Exchange]


class _Sample(NamedTuple):
    """A sampled reply, in `Candidate.data`.

    Attributes:
        reply: The reply.
        memory: Memory of the agent after it.
        exchanges: Its exchanges.
    """

    reply: Reply
    memory: Any
    exchanges: Sequence[Exchange]


@dataclass(slots=True)
class _Tree:
    """Search tree of one episode, kept between its turns.

    Attributes:
        bounds: Range of the returns.
        played: The move of the last turn; None before the first.
    """

    bounds: Bounds = field(default_factory=Bounds)
    played: Edge | None = None


@dataclass(slots=True, eq=False)
class _Simulation:
    """A simulation in progress.

    Attributes:
        node: The state that it has reached.
        tokens: Tokens that it may still sample.
        path: Its moves, each with its reward.
        asked: The last node for which it waited for samples.
        over: True if it has ended.
    """

    node: Node
    tokens: int
    path: list[tuple[Edge, float]] = field(default_factory=list)
    asked: Node | None = None
    over: bool = False


class MCTS(SearchAgent):
    """Agent that chooses each reply by Monte-Carlo tree search over the model's own replies.

    In every state the model samples `width` replies; replies with the same actions within the budget of actions
    are one move. Simulations descend by PUCT (AlphaZero, Silver et al., 2018) with the model's probability of a
    move as its prior. A state that is reached for the first time is played to the end of the episode with the
    model's replies, and its return is the value of all moves on the way. Every simulation executes its moves
    anew, with new randomness, so that the value of a move averages over its outcomes; outcomes with one state
    key are one state, and those without a key are different ones. The most simulated move is played, and the
    part of the tree below its actual outcome is kept for the next turn.

    Simulations run in rounds of `parallel`, together with those of all other episodes. The result depends on the
    seed only. A turn in which all sampled replies have the same actions is played without simulations.

    Args:
        simulations: Simulations per turn.
        width: Replies sampled per state.
        tokens: Maximum number of sampled tokens per episode, the played replies included; a single reply may
            exceed it. A turn uses at most half of what is left; once nothing is left, the episode is truncated.
            Every reply reserves its maximum length (`max_tokens`) until it is sampled, so set that near the actual
            length. None for no limit.
        exploration: Constant c of PUCT (1.25 in MuZero).
        parallel: Simulations in progress at the same time, per episode.
        settings: See `LanguageAgent`.
    """

    def __init__(
        self,
        *args: Any,
        simulations: int = 16,
        width: int = 4,
        tokens: int | None = None,
        exploration: float = 1.25,
        parallel: int = 4,
        **settings: Any,
    ) -> None:
        super().__init__(*args, **settings)
        own = {"simulations": simulations, "width": width, "tokens": tokens, "exploration": exploration}
        self.check(self.sampling, **own, parallel=parallel)
        self.simulations = simulations
        self.width = width
        self.tokens = tokens
        self.exploration = exploration
        self.parallel = parallel

    @classmethod
    def check(cls, sampling: Sampling, **settings: Any) -> None:
        super().check(sampling)
        check_counts(settings, simulations=1, parallel=1, width=2)
        check_number("exploration", settings.get("exploration", 1.0), 0)
        tokens = settings.get("tokens")
        if tokens is None:
            return
        check_count("tokens", tokens, 1)
        if tokens < sampling.max_tokens:
            raise ConfigurationError(
                f"a budget of {tokens} tokens per episode is less than one reply of up to {sampling.max_tokens}"
                " tokens; raise tokens, or lower max_tokens."
            )

    def search(self, seat: Seat) -> Search:
        left = self._tokens_left(seat)
        if left <= 0:
            spent = f"the {self.tokens} tokens of the search {SPENT}"
            return Reply((), text="", quit=spent, well_formed=False)
        if seat.memory.data is None:
            seat.memory.data = _Tree()
        tree: _Tree = seat.memory.data
        actual = self.snapshot(seat)
        root = self._reroot(seat, tree)
        floor = left - left // 2  # what this turn must leave
        missing = min(self.width - len(root.candidates), self._replies(left // 2))
        if missing > 0 or not root.candidates:
            yield from self._sample(seat, {id(root): (root, max(1, missing))})
        done = 0
        while done < self.simulations and len(root.edges) > 1:
            available = self._tokens_left(seat) - floor
            count = min(self.parallel, self.simulations - done, self._replies(available))
            if count < 1:
                break
            yield from self._simulate(seat, tree, root, count, available // count)
            done += count
        edge = tree.played = root.best()
        self._prune(seat, root, edge)
        self.restore(seat, actual)
        sample: _Sample = edge.candidate.data
        seat.episode.exchanges += sample.exchanges
        details = seat.episode.details
        details["simulations"] = details.get("simulations", 0) + done
        return sample.reply

    def _tokens_left(self, seat: Seat) -> int:
        used: int = seat.memory.usage.completion_tokens
        return (_UNLIMITED if self.tokens is None else self.tokens) - used

    def _replies(self, tokens: int) -> int:
        """Return the number of replies that certainly fit into some tokens."""
        return tokens // self.sampling.max_tokens

    def _reroot(self, seat: Seat, tree: _Tree) -> Node:
        """Return the node of the actual state: that of the simulations, if one of them reached the state."""
        if tree.played is None:
            return Node(_State(self.root(seat), [], []))
        sample: _Sample = tree.played.candidate.data
        fork = Fork(self.snapshot(seat), seat.observation, seat.info, sample.memory)
        node = tree.played.children.get(self.state_key(seat)) or Node(None)
        node.data = _State(fork, [*seat.episode.turns], [*seat.episode.exchanges])
        return node

    def _prune(self, seat: Seat, root: Node, kept: Edge) -> None:
        """Release the conversations of all moves but one."""
        edges = [edge for edge in root.edges.values() if edge is not kept]
        dropped = [one for one in root.candidates if one is not kept.candidate]
        while edges:
            for child in edges.pop().children.values():
                dropped += child.candidates
                edges += child.edges.values()
        self.release(seat, [one.data.memory.state.name for one in dropped])

    # ------------------------------------------------------------------ simulations

    def _simulate(self, seat: Seat, tree: _Tree, root: Node, count: int, tokens: int) -> Any:
        """Run simulations in lockstep, so that the result does not depend on the order in which replies end."""
        simulations = [_Simulation(root, tokens) for _ in range(count)]
        while True:
            wanted: dict[int, tuple[Node, int]] = {}
            asking = {}
            for one in simulations:
                known = len(wanted)
                self._advance(seat, tree, one, wanted)
                if len(wanted) > known:
                    asking[id(one.node)] = one
            if not wanted:
                break
            for key, tokens in (yield from self._sample(seat, wanted)).items():
                asking[key].tokens -= tokens
        for one in simulations:
            back_up(one.path, tree.bounds)

    def _advance(self, seat: Seat, tree: _Tree, one: _Simulation, wanted: dict[int, tuple[Node, int]]) -> None:
        """Move a simulation on until it ends, or needs samples, which are added to `wanted`."""
        while not one.over:
            node = one.node
            if node.over:
                one.over = True
                return
            if id(node) in wanted:  # of another simulation
                one.asked = node
                return
            if one.asked is not node:
                missing = self.width - len(node.candidates) if node.candidates else 1
                count = min(missing, self._replies(one.tokens))
                if count > 0:
                    one.asked = node
                    wanted[id(node)] = node, count
                    return
            if not node.edges:
                one.over = True  # The tokens are spent.
                return
            edge = select(node, self.exploration, tree.bounds)
            edge.in_flight += 1
            one.node, reward = self._step(seat, node, edge)
            one.path.append((edge, reward))

    def _sample(self, seat: Seat, wanted: dict[int, tuple[Node, int]]) -> Any:
        """Sample replies in some states, and add them as candidates; return the number of tokens of each state."""
        branches: list[Seat] = []
        nodes: list[Node] = []
        for node, count in wanted.values():
            state: _State = node.data
            for _ in range(count):
                branches.append(self.branch(seat, state.fork, state.turns, state.exchanges))
                nodes.append(node)
        replies = yield from collect(branches)
        found: dict[int, list[Candidate]] = {}
        tokens = dict.fromkeys(wanted, 0)
        for node, branch, reply in zip(nodes, branches, replies, strict=True):
            own = branch.episode.exchanges[len(node.data.exchanges) :]
            sample = _Sample(reply, self.save(branch), own)
            logprob = None
            if reply.logprobs is not None and reply.loss_mask is not None:
                logprob = sum(p for p, sampled in zip(reply.logprobs, reply.loss_mask, strict=True) if sampled)
            actions = self._within_budget(seat, node, branch, reply)
            found.setdefault(id(node), []).append(Candidate(actions, reply.text or "", logprob, sample))
            tokens[id(node)] += branch.episode.details.get("completion_tokens", 0)
        for node, _ in wanted.values():
            node.add(found[id(node)])
        return tokens

    def _within_budget(self, seat: Seat, node: Node, branch: Seat, reply: Reply) -> Actions:
        """Return the actions of a reply that the dialogue's budget allows, which depends on those refused."""
        left = self.limits(branch).actions
        if left is None or len(reply.actions) <= left:
            return reply.actions
        state: _State = node.data
        assert state.fork.snapshot is not None
        self.restore(seat, state.fork.snapshot)
        trial = self._seat(seat, state.fork.observation, state.fork.info, state.turns, ())
        self.step(seat, trial, reply)
        return trial.episode.turns[-1].actions or ()

    def _step(self, seat: Seat, node: Node, edge: Edge) -> tuple[Node, float]:
        """Execute a move with new randomness; return the state after it, and the reward."""
        state: _State = node.data
        sample: _Sample = edge.candidate.data
        assert state.fork.snapshot is not None
        self.restore(seat, state.fork.snapshot, self.draw_seed(seat))
        branch = self._seat(seat, state.fork.observation, state.fork.info, state.turns, ())
        over = self.step(seat, branch, sample.reply)
        turns = branch.episode.turns
        key = self.state_key(branch)
        if key not in edge.children:
            fork = Fork(self.snapshot(seat), branch.observation, branch.info, sample.memory)
            edge.children[key] = Node(_State(fork, turns, [*state.exchanges, *sample.exchanges]), over)
        return edge.children[key], sum(move.reward for move in turns[-1].moves)
