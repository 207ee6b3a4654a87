"""Sampling of episodes from tables: many chains at a time, or trees that the package's own tree growth plans."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...agents.episode import Episode, Move, Turn
from ...agents.play import Job
from ..algorithms.samplers import Sampler, Trees
from ..data.rollouts import Rollouts
from ..data.segments import BoolArray, FloatArray, IntArray
from ..sampling.tree_growth import Prompt, TreeGrowth, arrange_forest
from .forest import Steps, build_rollouts
from .mdp import Mdp


class TableSampler:
    """Samples the rollouts of one policy.

    Args:
        mdp: Tasks.
        policy: Probability of each action, [N, A].
        rng: Generator of actions and outcomes.
    """

    def __init__(self, mdp: Mdp, policy: FloatArray, rng: np.random.Generator) -> None:
        self._mdp, self._rng = mdp, rng
        self._bounds = np.cumsum(policy, axis=1)[:, :-1]
        self._last = mdp.valid.shape[1] - 1 - mdp.valid[:, ::-1].argmax(axis=1)
        with np.errstate(divide="ignore"):
            self._log_policy = np.log(policy)
        self._turns: dict[int, Turn] = {}

    def roll_out(self, sampler: Sampler, seed: int, update: int) -> tuple[Rollouts, IntArray]:
        """Return one update's rollouts, and the row of each turn, [S].

        Args:
            sampler: `Chains` or `Trees`; of the settings only the sizes, and how trees grow, matter here.
            seed: Seed of the run.
            update: Number of the update.
        """
        if isinstance(sampler, Trees):
            return self._trees(sampler, seed, update)
        groups = np.repeat(np.arange(self._mdp.groups), sampler.rollouts)
        starts = self._mdp.starts[groups]
        steps = self.play(starts, np.full(len(starts), self._mdp.horizon))
        return build_rollouts(self._mdp, steps, groups, self._log_policy), steps.rows

    # ------------------------------------------------------------------ chains

    def play(self, starts: IntArray, limits: IntArray) -> Steps:
        """Return the steps of episodes that begin in given rows, with given numbers of steps left, [E]."""
        mdp, count = self._mdp, len(starts)
        longest = int(limits.max(initial=0))
        columns = [np.zeros((longest, count), dtype=np.int64) for _ in range(3)]
        rows_at, actions_at, next_at = columns
        rewards_at = np.zeros((longest, count))
        lengths = np.zeros(count, dtype=np.int64)
        draws = self._rng.random((longest, count))
        chances = None if mdp.is_deterministic else self._rng.random((longest, count))
        alive, rows = np.flatnonzero(limits > 0), starts[limits > 0]
        for step in range(longest):
            if not len(alive):
                break
            actions = (draws[step, alive, None] >= self._bounds[rows]).sum(axis=1)
            actions = np.minimum(actions, self._last[rows])  # against rounding of the last bound
            outcomes: IntArray | int = 0
            if chances is not None:
                bounds = mdp.chance_bounds[rows, actions]
                outcomes = (chances[step, alive, None] >= bounds).sum(axis=1)
            following = mdp.following[rows, actions, outcomes]
            rows_at[step, alive], actions_at[step, alive], next_at[step, alive] = rows, actions, following
            rewards_at[step, alive] = mdp.rewards[rows, actions, outcomes]
            lengths[alive] = step + 1
            goes_on = (following < mdp.rows) & (limits[alive] > step + 1)
            alive, rows = alive[goes_on], following[goes_on]
        taken: BoolArray = np.arange(longest)[:, None] < lengths
        order = taken.T
        return Steps(rows_at.T[order], actions_at.T[order], next_at.T[order], rewards_at.T[order], lengths)

    # ------------------------------------------------------------------ trees

    def _trees(self, settings: Trees, seed: int, update: int) -> tuple[Rollouts, IntArray]:
        """Return trees, whose nodes, leaves and random choices are those of `TreeGrowth`."""
        prompts = [Prompt((update, group), str(group)) for group in range(self._mdp.groups)]
        growth = TreeGrowth(prompts, settings, seed=seed)
        paths: dict[int, Steps] = {}
        while growth.jobs:
            jobs = list(growth.jobs)
            growth.jobs.clear()
            for episode, path in self._play_jobs(jobs, paths):
                paths[episode.seed] = path
                growth.add(episode)
        forest = arrange_forest(growth.episodes())
        shared = np.array([0 if branch is None else branch.turns for branch in forest.branches])
        steps = Steps.concatenate(
            [
                paths[episode.seed].skip(turns)
                for episode, turns in zip(forest.episodes, shared.tolist(), strict=True)
            ]
        )
        groups = np.array([int(episode.task) for episode in forest.episodes])
        rollouts = build_rollouts(self._mdp, steps, groups, self._log_policy, forest.trees, forest.branches)
        return rollouts, steps.rows

    def _play_jobs(self, jobs: Sequence[Job], paths: dict[int, Steps]) -> list[tuple[Episode, Steps]]:
        """Return the episode of each job, and its steps from the start of the task on."""
        starts = [
            self._mdp.starts[int(job.task or 0)]
            if job.origin is None
            else paths[job.origin.episode.seed].rows[job.origin.turns]
            for job in jobs
        ]
        before = [0 if job.origin is None else job.origin.turns for job in jobs]
        steps = self.play(np.array(starts), self._mdp.horizon - np.array(before))
        width = self._bounds.shape[1] + 1
        kinds = 2 * (steps.rows * width + steps.actions) + (steps.rewards > 0)
        turns = [self._turns.get(kind) or self._make_turn(kind) for kind in kinds.tolist()]
        ends = np.cumsum(steps.lengths).tolist()
        played = []
        for index, (job, end, length) in enumerate(zip(jobs, ends, steps.lengths.tolist(), strict=True)):
            own, path = turns[end - length : end], steps.episode(index, end)
            if job.origin is not None:
                own = job.origin.episode.turns[: job.origin.turns] + own
                path = Steps.concatenate([paths[job.origin.episode.seed].first(job.origin.turns), path])
            played.append((Episode("", job.task or "", job.seed, "table", turns=own), path))
        return played

    def _make_turn(self, kind: int) -> Turn:
        """Return the turn of a row, an action and a reward, which equal steps share; trees compare places only.

        Args:
            kind: 2 · (row · A + action), plus 1 for success.
        """
        row, action = divmod(kind // 2, self._bounds.shape[1] + 1)
        turn = Turn("", "", None, [Move("", float(kind % 2), True, True)], loss_mask=[1])
        turn.state_key = int(self._mdp.row_keys[row])
        turn.logprobs = [float(self._log_policy[row, action])]
        self._turns[kind] = turn
        return turn
