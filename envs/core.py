"""Base class of all text environments: Gymnasium's interface plus snapshots, state keys and experts.

An environment consists of a level (static, built from the task's name) and a state (small, immutable, replaced by
every action). Observations, transitions and plans are pure functions of the two. A snapshot is therefore a tuple,
restoring it is an assignment, and the same seed gives the same episode on every machine.
"""

from __future__ import annotations

import operator
import random
from abc import abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

import gymnasium as gym
from gymnasium.error import ResetNeeded

from .errors import ConfigurationError, unknown_name
from .seeding import split_mix
from .spaces import AnyText

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


class Snapshot(NamedTuple):
    """Complete state of an episode: a small, immutable, picklable value. See `snapshot` and `restore`.

    Attributes:
        task: Name of the open task.
        identity: Class, configuration and reward mode of the environment.
        state: State of the environment.
        steps: Number of steps taken.
        max_steps: Step limit, or None.
        rng_state: 64-bit state of the episode's random generator.
        terminated: True if the episode ended by the environment's own rules.
        truncated: True if the step limit ended the episode.
        success: True if the task is solved.
    """

    task: str
    identity: str
    state: Any
    steps: int
    max_steps: int | None
    rng_state: int
    terminated: bool
    truncated: bool
    success: bool


class TextEnv(gym.Env[str, str], Generic[StateT]):
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
    * `render_mode=None`: "ansi" for a `render()` that returns the current observation.

    ## Reset and step
    `reset(seed=n)` draws a task and seeds the episode's random generator from n.

    `reset(seed=n, options={"task": t})` opens task t (a name, or an index into `tasks`) and uses n for the random
    generator only. The members of a group share t and differ in n.

    `step(action)` never raises on a string. An invalid action returns a refusal as observation and leaves the
    state unchanged.

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
    * `admissible_actions()`: the valid actions in the current state, or None if they cannot be listed.
    * `snapshot()` and `restore(snapshot)`: the complete episode as a small picklable value.
    * `state_key()`: hashable identity of the current state.
    * `expert_actions()`: a plan from the current state to success, or None.

    ## Subclasses
    A subclass calls `super().__init__`, sets `tasks`, and defines `instructions`, `_open`, `_observe`, `_apply`,
    `state_key`, `admissible_actions` and `expert_actions`. The shortest example is `envs/bandit.py`.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012 (gymnasium.Env declares the type)

    palette: ClassVar[Mapping[str, str]] = {}
    """Terminal colors: from a symbol of the board to a `rich` style name."""

    tasks: Sequence[str]
    """Task names of the chosen split."""

    _state: StateT
    """Current state: an immutable, picklable value."""

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
    ) -> None:
        """
        Args:
            config: Settings that determine levels and rules. `restore` rejects snapshots of another config.
            max_steps: Step limit, or None; see the class.
            reward_mode: "dense" or "sparse"; see the class.
            admissible: Include `admissible_actions` in every `info`.
            render_mode: None or "ansi".
            max_observation: Maximum length of an observation in characters; bounds the shared memory of
                asynchronous vector environments.
            max_action: Maximum length of a string in the action space. `step` never raises on a longer action; an
                environment that cannot use it refuses it like any other invalid one.

        Raises:
            ConfigurationError: A value is invalid.
        """
        if max_steps is not None and (not isinstance(max_steps, int) or max_steps < 1):
            raise ConfigurationError(f"max_steps must be a positive integer or None, not {max_steps!r}.")
        if reward_mode not in _REWARD_MODES:
            raise unknown_name("reward_mode", reward_mode, _REWARD_MODES)
        if render_mode not in (None, "ansi"):
            raise unknown_name("render_mode", render_mode, ("ansi",))
        self.observation_space = AnyText(max_observation)
        self.action_space = AnyText(max_action)
        self.max_steps = max_steps
        self.reward_mode: RewardMode = reward_mode
        self.admissible = admissible
        self.render_mode = render_mode
        self._has_extra_info = admissible or type(self)._details is not TextEnv._details
        self._identity = f"{type(self).__name__}{sorted(config.items())} {reward_mode}"
        self._task: str | None = None
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
    def _apply(self, action: str) -> Outcome:
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
        """Return a plan from the current state to success, or None if there is none.

        In a stochastic environment only the plan's first action is certain to be optimal: call this method again
        after every step.
        """

    def random_action(self, rng: random.Random) -> str:
        """Return a uniformly random admissible action, or the empty string after the end.

        Environments that cannot list their actions override this method.
        """
        actions = self.admissible_actions()
        if actions is None:
            raise TypeError(f"{type(self).__name__} cannot list its actions; it must override random_action().")
        return rng.choice(actions) if actions else ""

    def _details(self) -> Mapping[str, Any] | None:
        """Return additional entries of `info`, or None."""
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
        # NumPy guarantees the raw 64-bit outputs of PCG64 across versions, but not the results of `integers()`.
        random_raw = self.np_random.bit_generator.random_raw
        rng_state, task_draw = int(random_raw()), int(random_raw())
        task = self._named_task(options) if options else None
        if task is None:
            task = self.tasks[task_draw * len(self.tasks) >> 64]
        if task != self._task:
            self._task = None  # and remains None if the level cannot be opened
        self._state = self._open(task)
        self._task = task
        self._steps = 0
        self._rng_state = rng_state
        self._terminated = self._truncated = self._success = False
        info = self._info(valid=True, changed=False)
        return self._observe(), info

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
        observation, reward, terminated, success, valid, changed = self._apply(action)
        steps = self._steps = self._steps + 1
        truncated = not terminated and self.max_steps is not None and steps >= self.max_steps
        self._terminated = terminated
        self._truncated = truncated
        self._success = success
        if self.reward_mode == "sparse":
            reward = 1.0 if success and terminated else 0.0
        info: Info = {"task": self._task, "success": success, "valid": valid, "changed": changed}
        if self._has_extra_info:
            self._add_extra_info(info)
        return observation, reward, terminated, truncated, info

    def render(self) -> str | None:
        """Return the current observation in render mode "ansi", and None otherwise."""
        if self.render_mode is None:
            return None
        if self._task is None:
            raise ResetNeeded("Call reset() before render().")
        return self._observe()

    # ------------------------------------------------------------------ Arboretum's additions

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

    def snapshot(self) -> Snapshot:
        """Return the episode as a small immutable value, its random generator and step count included.

        Gymnasium's `np_random`, which draws the task of the *next* unseeded reset, is not part of the episode.
        """
        return Snapshot(
            self.task,  # raises before the first reset
            self._identity,
            self._state,
            self._steps,
            self.max_steps,
            self._rng_state,
            self._terminated,
            self._truncated,
            self._success,
        )

    def restore(self, snapshot: Snapshot) -> None:
        """Continue from a snapshot of this environment, or of an equally configured one in any process.

        Raises:
            ConfigurationError: The snapshot belongs to another environment or another configuration.
        """
        task, identity, state, steps, max_steps, rng_state, terminated, truncated, success = snapshot
        if identity != self._identity:
            raise ConfigurationError(
                f"the snapshot belongs to {identity}, not to {self._identity}; restore it in an environment with"
                " the same configuration."
            )
        if task != self._task:
            self._task = None
            self._open(task)
            self._task = task
        self._state = state
        self._steps = steps
        self.max_steps = max_steps
        self._rng_state = rng_state
        self._terminated = terminated
        self._truncated = truncated
        self._success = success

    # ------------------------------------------------------------------ for subclasses

    @property
    def _ended(self) -> bool:
        return self._terminated or self._truncated

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
        details = self._details()
        if details is not None:
            info.update(details)

    def _named_task(self, options: Mapping[str, Any]) -> str | None:
        """Return the task that `options` names, or None if it names none."""
        if not isinstance(options, Mapping):
            raise ConfigurationError(f'options must be a mapping such as {{"task": 0}}, not {options!r}.')
        for key in options:
            if key != "task":
                raise unknown_name("reset option", key, ("task",))
        task = options.get("task")
        if task is None:
            return None
        if isinstance(task, str):
            if task not in self.tasks:
                raise unknown_name("task", task, self.tasks[:1000])
            return task
        if isinstance(task, bool) or not hasattr(task, "__index__"):
            raise ConfigurationError(f"the task must be a name or an index, not {task!r}.")
        index = operator.index(task)
        if not 0 <= index < len(self.tasks):
            raise ConfigurationError(f"task index {index} is outside 0 … {len(self.tasks) - 1} of this split.")
        return self.tasks[index]
