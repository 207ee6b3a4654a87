"""Base class of all text environments: Gymnasium's interface plus snapshots, state keys and experts.

An environment consists of a level (static, built from the task's name) and a state (small, immutable, replaced by
every action). Observations, transitions and plans are pure functions of the two. A snapshot is therefore a tuple,
restoring it is an assignment, and the same seed gives the same episode on every machine.
"""

from __future__ import annotations

import math
import random
from abc import abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

import gymnasium as gym
import numpy as np
from gymnasium.error import ResetNeeded

from .checks import flag
from .copying import RebuiltCopies
from .display import show
from .effects import BranchRules
from .errors import ConfigurationError, unknown_name
from .open_episode import OpenEpisodeRules
from .optimum import OptimumRules
from .rendering import Rendering
from .seeding import split_mix
from .snapshots import Snapshot, SnapshotRules
from .spaces import ActionText, AnyText
from .tasks import requested_task, task_name
from .tools import ToolRules
from .user_code import wrong_result

StateT = TypeVar("StateT")
Info = dict[str, Any]
RewardMode = Literal["dense", "sparse"]

_REWARD_MODES = ("dense", "sparse")


class Outcome(NamedTuple):
    """Result of one action.

    Attributes:
        observation: Text shown next; for a refused action, the refusal.
        reward: Reward as in the published environment.
        terminated: True if the episode ended by the environment's own rules.
        success: True if the task is solved.
        valid: True if the action was understood and legal.
        changed: True if the action changed the state.
    """

    observation: str
    reward: float
    terminated: bool
    success: bool
    valid: bool
    changed: bool


OutcomeFields = tuple[str, float, bool, bool, bool, bool]
"""Fields of an `Outcome`, as a plain tuple, which is constructed in a sixth of the time."""


class TextEnv(
    RebuiltCopies,
    OpenEpisodeRules,
    SnapshotRules,
    BranchRules,
    OptimumRules,
    ToolRules,
    Rendering,
    gym.Env[str, str],
    Generic[StateT],
):
    """Gymnasium environment whose observations and actions are strings.

    ## Arguments
    Every environment has these arguments:

    * `split`: task split to draw from ("train", "valid", "test", or names of the environment's own). None uses the
      tasks of all splits.
    * `max_steps`: number of steps after which an unfinished episode is truncated. None removes the limit. The step
      count is part of a snapshot, so the limit holds along every branch of a tree.
    * `reward_mode="dense"`: "dense" for the published rewards; "sparse" for 1.0 at a successful end and 0.0
      otherwise.
    * `admissible=False`: include `admissible_actions` in every `info`.
    * `render_mode=None`: "ansi" for a `render()` that returns the current observation as terminal text, with
      colors (ANSI escape sequences) where the environment has a board. "human" prints every action and observation
      to standard output, with colors if that is a terminal and `NO_COLOR` is not set. "rgb_array" returns a
      picture as an array of bytes [height, width, 3]; only environments that say so have pictures.

    ## Reset and step
    `reset(seed=n)` draws a task and seeds the episode's random generator from n.

    `reset(seed=n, options={"task": t})` opens task t (a name, or an index into `tasks`) and uses n for the random
    generator only. The members of a group share t and differ in n.

    `step(action)` never raises on a string. An invalid action returns a refusal as observation and leaves the
    state unchanged.

    `action_space.sample()` draws an admissible action of the current state, or the environment's own random action
    where actions cannot be listed, so that `env.step(env.action_space.sample())` plays. Before the first reset and
    after the end it draws any text. The action space of a vector environment consists of copies without access to
    the state: theirs draw admissible actions if these are the same in every state (Sokoban, FrozenLake), and any
    text otherwise; take the actions from `info["admissible_actions"]` there.

    ## `info`
    Every `info` contains

    * `task`: name of the open task;
    * `success`: True if the task is solved;
    * `valid`: True if the last action was understood and legal;
    * `changed`: True if the last action changed the state;
    * `admissible_actions`, with `admissible=True`: the valid actions, or None if they cannot be listed.

    ## Additional methods
    On `env.unwrapped`:

    * `tasks`: task names of the chosen split.
    * `instructions`: description of the environment and its actions, for an agent to read once.
    * `generated_data`: name of the generated data that stands in for a benchmark's files, or None.
    * `admissible_actions()`: the valid actions in the current state, or None if they cannot be listed.
    * `snapshot()` and `restore(snapshot, seed=None)`: the complete episode as a small picklable value. With a
      seed, the random events after the snapshot are drawn anew, as independent branches of an episode need it.
    * `state_key()`: hashable identity of the current state.
    * `counts_as_effect(action, before, info)`: True if the last action modified the environment, for T-STAR.
    * `tools`: the actions as functions with JSON schemas, for agents that call functions; see `envs/tools.py`.
    * `calls_tool(action)`: True if a valid action calls a tool, such as a search engine.
    * `expert_actions()`: a plan from the current state to success within the step limit, or None.
    * `optimum()`: the probability of success (or the best score) that optimal play still reaches from the current
      state within the step limit, and the fewest steps to it. `optimum_is_exact` is True if both are proven.
    * `optimum_after(action)`: the same after an action, in expectation over its random outcomes.
    * `waits`: True if steps wait for something outside the process; rollouts then step such environments
      concurrently. Runs call `check_server()` before they play.

    Environments can be copied (`copy.deepcopy`) and pickled. A copy continues identically; it is built from the
    constructor's arguments, so a pickle is small and expects the same data where it is loaded.

    ## Subclasses
    A subclass calls `super().__init__`, sets `tasks`, and defines `instructions`, `_open`, `_observe`, `_apply`,
    `state_key`, `admissible_actions` and `expert_actions`. If a task's name does not determine its level, it also
    defines `_level_content`; with `_is_possible`, `restore` rejects states that no episode of the level has. The
    shortest example is `envs/bandit.py`.
    """

    tasks: Sequence[str]
    """Task names of the chosen split."""

    waits: bool = False
    """True if `reset` and `step` wait for something outside the process, such as the reply of a server.

    `play` then calls them in a thread of the environment's own, while other episodes continue. Set it on the class
    or on an instance; steps that compute in Python gain nothing from it.
    """

    _state: StateT
    """Current state: an immutable, picklable value."""

    _first_state: StateT
    """State of the open level before the first step."""

    _constant_actions: ClassVar[tuple[str, ...]] = ()
    """Actions that are admissible in every state, if these are all; they serve copies of the action space."""

    def __init__(
        self,
        *,
        config: Mapping[str, object],
        max_steps: int | None,
        reward_mode: RewardMode = "dense",
        admissible: bool = False,
        render_mode: str | None = None,
        max_observation: int = 4096,
        max_action: int = 4096,
        count_refused: bool = True,
    ) -> None:
        """
        Args:
            config: Settings that determine levels and rules. `restore` rejects snapshots of another config.
            max_steps: Step limit, or None; see the class.
            reward_mode: "dense" or "sparse"; see the class.
            admissible: Include `admissible_actions` in every `info`.
            render_mode: None, "ansi", "human" or "rgb_array"; see the class.
            max_observation: Maximum length of an observation in characters; bounds the shared memory of
                asynchronous vector environments.
            max_action: Maximum length of a string in the action space. `step` never raises on a longer action; an
                environment that cannot use it refuses it like any other invalid one.
            count_refused: Refused actions count as steps. False leaves the limit on them to the agent.

        Raises:
            ConfigurationError: A value is invalid.
        """
        if max_steps is not None and (type(max_steps) is not int or max_steps < 1):
            raise ConfigurationError(f"max_steps must be a positive integer or None, not {max_steps!r}.")
        flag("admissible", admissible)
        flag("count_refused", count_refused)
        if reward_mode not in _REWARD_MODES:
            raise unknown_name("reward_mode", reward_mode, _REWARD_MODES)
        self.observation_space = AnyText(max_observation)
        self.action_space = ActionText(max_action, self._sample_action, self._constant_actions)
        self.max_steps = max_steps
        self._replaced_limit: tuple[int | None, int | None] | None = None
        """The step limit before `restore`, and that of the snapshot."""
        self.counts_refused = count_refused
        self.reward_mode: RewardMode = reward_mode
        self.admissible = admissible
        self.render_mode = self._check_render_mode(render_mode)
        self._has_extra_info = admissible or type(self)._details is not TextEnv._details
        self._identity = f"{type(self).__name__}{sorted(config.items())} {reward_mode}"
        self._task: str | None = None
        self._digest: str | None = None
        self._issued: Snapshot | None = None
        self._steps = 0
        self._rng_state = 0
        self._terminated = self._truncated = self._success = False

    # ------------------------------------------------------------------ defined by subclasses

    @property
    @abstractmethod
    def instructions(self) -> str:
        """Description of the environment and its actions, for an agent to read once before it acts."""

    @abstractmethod
    def _open(self, task: str) -> StateT:
        """Make the level of `task` current and return its initial state, without drawing random numbers."""

    @abstractmethod
    def _observe(self) -> str:
        """Return the observation of the current state, as shown after `reset`."""

    @abstractmethod
    def _apply(self, action: str) -> OutcomeFields:
        """Replace `self._state` by its successor under `action`. No string raises an exception."""

    @abstractmethod
    def state_key(self) -> Hashable:
        """Return a hashable identity of the current state.

        Two keys are equal exactly when the distribution of futures is the same; the step budget and the random
        generator are excluded. The key serves anchor-state grouping, cycle detection and tree merging.
        """

    @abstractmethod
    def admissible_actions(self) -> tuple[str, ...] | None:
        """Return the valid actions of the current state: empty after the end, None if they cannot be listed."""

    @abstractmethod
    def expert_actions(self) -> list[str] | None:
        """Return a plan from the current state to success, or None if none fits into the remaining steps.

        In a stochastic environment only the plan's first action is certain to be optimal: call this method again
        after every step.
        """

    def searching_actions(self, observations: Sequence[str], actions: Sequence[str]) -> list[str] | None:
        """Return the next actions of an expert that sees only what an agent sees, or None if it is at a loss.

        `expert_actions` may use what no observation has shown, which cannot be imitated: override this where
        something is hidden. Given are all observations of the episode so far, and the actions between them.
        """
        return self.expert_actions()

    def _has_task(self, task: str) -> bool:
        """Return True if the task can be opened."""
        return task in self.tasks

    def random_action(self, rng: random.Random) -> str:
        """Return a uniformly random admissible action, or the empty string after the end.

        Environments that cannot list their actions override this method.
        """
        actions = self.admissible_actions()
        if actions is None:
            raise TypeError(f"{type(self).__name__} cannot list its actions; it must override random_action().")
        if not isinstance(actions, (tuple, list)):
            raise wrong_result(self.admissible_actions, "a tuple of texts, or None", actions)
        return rng.choice(actions) if actions else ""

    def check_server(self) -> None:
        """Raise `ConfigurationError` if a server that steps need does not answer; runs call it first."""

    def _details(self) -> Mapping[str, Any] | None:
        """Return additional entries of `info`, of other names than its own, or None."""
        return None

    # ------------------------------------------------------------------ Gymnasium's interface

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, Info]:
        """Open a task and start an episode.

        Args:
            seed: Seed of the episode's random generator, and of the draw of a task if `options` names none.
            options: None or `{"task": name or index}`.

        Returns:
            The first observation, and `info`.

        Raises:
            ConfigurationError: The option or the task is unknown.
        """
        super().reset(seed=seed)
        if self._task is None:
            self._open_class()
        # NumPy guarantees the raw 64-bit outputs of PCG64 across versions, but not the results of `integers()`.
        random_raw = self.np_random.bit_generator.random_raw
        rng_state, task_draw = int(random_raw()), int(random_raw())
        task = requested_task(options, self.tasks, self._has_task) if options else None
        if task is None:
            task = self.tasks[task_draw * len(self.tasks) >> 64]
        if type(task) is not str:
            task = task_name(self, task)
        if self._replaced_limit is not None:  # A restored episode has the limit of its own environment.
            own, restored = self._replaced_limit
            self.max_steps = own if self.max_steps == restored else self.max_steps
            self._replaced_limit = None
        if task != self._task:
            self._task = None  # and remains None if the level cannot be opened
        self._state = self._first_state = self._open(task)
        self._task = task
        self._digest = None
        self._steps = 0
        self._rng_state = rng_state
        self._terminated = self._truncated = self._success = False
        info = self._info(valid=True, changed=False)
        observation = self._observe()
        if self.render_mode == "human":
            show(observation, self.palette)
        return observation, info

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        """Apply one action.

        An invalid action does not raise: the observation is a refusal, `info["valid"]` is False, and the state
        does not change.

        Returns:
            Observation, reward, terminated, truncated and info. After the end of an episode, every step returns
            the last observation, reward 0, the same flags and `valid` False.

        Raises:
            gymnasium.error.ResetNeeded: `reset` was not called before.
        """
        if self._task is None:
            raise ResetNeeded("Call reset() before step().")
        if self._terminated or self._truncated:
            return self._observe(), 0.0, self._terminated, self._truncated, self._info(False, False)
        if not isinstance(action, str):
            action = ""  # refused like any other invalid action
        outcome = self._apply(action)
        try:
            observation, reward, terminated, success, valid, changed = outcome
        except (TypeError, ValueError):
            raise wrong_result(self._apply, "an Outcome", outcome) from None
        if not (type(terminated) is type(success) is type(valid) is type(changed) is bool):
            terminated, success, valid, changed = map(bool, (terminated, success, valid, changed))
        steps = self._steps = self._steps + (1 if valid or self.counts_refused else 0)
        truncated = not terminated and self.max_steps is not None and steps >= self.max_steps
        self._success = success
        if terminated or truncated:
            self._terminated, self._truncated = terminated, truncated
        if self.reward_mode == "sparse":
            reward = 1.0 if success and terminated else 0.0
        info: Info = {"task": self._task, "success": success, "valid": valid, "changed": changed}
        if self._has_extra_info:
            self._add_extra_info(info)
        if self.render_mode == "human":
            show(observation, self.palette, action)
        return observation, reward, terminated, truncated, info

    # ------------------------------------------------------------------ Arboretum's additions

    @property
    def generated_data(self) -> str | None:
        """Name of the generated data in the place of a benchmark's files, such as "generated homes".

        None if the tasks come from files, and in environments whose tasks are generated by definition. Evaluations
        name their results by it, so that no generated task is taken for one of the benchmark.
        """
        return None

    @property
    def reads_files(self) -> bool:
        """True if the tasks come from a benchmark's files."""
        return type(self).generated_data is not TextEnv.generated_data and self.generated_data is None

    @property
    def task(self) -> str:
        """Name of the open task."""
        if self._task is None:
            raise ResetNeeded("No task is open; call reset() first.")
        return self._task

    @property
    def steps(self) -> int:
        """Number of steps taken in this episode."""
        return self._steps

    @property
    def rng_state(self) -> int:
        """State of the episode's random generator; a step that draws nothing leaves it unchanged."""
        return self._rng_state

    # ------------------------------------------------------------------ for subclasses

    def _sample_action(self, rng: np.random.Generator) -> str | None:
        """Return a random action for `action_space.sample()`, or None if no episode is in progress."""
        if self._task is None or self._ended:
            return None
        actions = self.admissible_actions()
        if actions:
            return actions[int(rng.integers(len(actions)))]
        return self.random_action(random.Random(int(rng.integers(1 << 62))))

    @property
    def _ended(self) -> bool:
        return self._terminated or self._truncated

    def steps_left(self) -> float:
        """Return the number of steps until the step limit; infinity without one."""
        return math.inf if self.max_steps is None else self.max_steps - self._steps

    def _within_limit(self, plan: list[str] | None) -> list[str] | None:
        """Return a plan if it fits into the remaining steps, else None."""
        return None if plan is None or len(plan) > self.steps_left() else plan

    def _random(self) -> float:
        """Draw a uniform float in [0, 1) from the episode's random generator."""
        self._rng_state, value = split_mix(self._rng_state)
        return value

    def _info(self, valid: bool, changed: bool) -> Info:
        info: Info = {"task": self._task, "success": self._success, "valid": valid, "changed": changed}
        if self._has_extra_info:
            self._add_extra_info(info)
        return info

    def _add_extra_info(self, info: Info) -> None:
        """Add the optional entries of `info`."""
        if self.admissible:
            info["admissible_actions"] = self.admissible_actions()
        details = self._details() or {}
        if not info.keys().isdisjoint(details):
            raise wrong_result(self._details, f"entries of other names than {', '.join(info)}", details)
        info.update(details)
