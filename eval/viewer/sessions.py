"""Episodes that are played in the browser: by a person, the expert, or an agent, turn by turn.

Sessions live in memory. Their number is bounded, and those that nobody has used for a while end.
"""

from __future__ import annotations

import random
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...agents.base import Agent, Reply, Seat
from ...agents.contracts import act
from ...agents.episode import Episode, Move
from ...agents.execution import execute
from ...envs.core import TextEnv
from ...envs.errors import ConfigurationError
from ...envs.seeding import stable_seed
from ...envs.snapshots import Snapshot
from ...envs.user_code import describe_failure
from ..suite import Entry, Suite
from .replay import check_snapshots

MAX_SESSIONS = 48
"""Number of sessions; a further one ends the session that was used least recently."""

IDLE_SECONDS = 1800.0
"""Time without a request after which a session ends."""

MAX_TURNS = 1000
"""Turns of a session; afterwards it takes no further action."""

MAX_ACTION = 4096
"""Characters of an action that is posted; the rest is cut off."""

RUN_SECONDS = 20.0
"""Time for which an agent plays on within one request."""

PERSON, EXPERT = "you", "expert"
"""Names of two of those who act in a session."""

AgentMaker = Callable[[Suite, Entry], Agent]


class Scenario(NamedTuple):
    """Settings under which a session is played.

    Attributes:
        entry: Entry of a suite; for a session from the start one of its own.
        suite: Suite of the entry.
        origin: Address of the page from which the session continues; empty for one from the start.
        title: Description of the origin; empty for one from the start.
    """

    entry: Entry
    suite: Suite
    origin: str = ""
    title: str = ""


class Frame(NamedTuple):
    """State of a session, and what led to it.

    Attributes:
        snapshot: State of the environment.
        observation: Observation.
        actor: Name of the one who acted; empty for the first frame.
        reply: Reply of an agent with a model, if it is more than the actions; empty otherwise.
        moves: Actions that led here, with their outcomes.
        terminated: True if the environment's rules ended the episode.
        truncated: True if a limit ended it.
        success: True if the task is solved.
    """

    snapshot: Snapshot
    observation: str
    actor: str
    reply: str
    moves: tuple[Move, ...]
    terminated: bool
    truncated: bool
    success: bool

    @property
    def ended(self) -> bool:
        """True if the episode is over."""
        return self.terminated or self.truncated


@dataclass
class Session:
    """Episode in progress.

    Attributes:
        key: Secret name in addresses.
        scenario: Settings.
        env: Its environment, which no other session uses.
        task: Name of the task.
        seed: Seed of the agents' randomness.
        frames: States so far.
        lock: Held while a request uses the session.
        last_used: `time.monotonic()` of the last request.
        message: Remark on the last request; empty without one.
        seats: Episodes of agents in progress, by name; they are left when somebody else acts.
        left: Episodes of agents to be ended, which all sessions share.
    """

    key: str
    scenario: Scenario
    env: TextEnv[Any]
    task: str
    seed: int
    frames: list[Frame]
    left: deque[tuple[Agent, Seat]]
    lock: threading.RLock = field(default_factory=threading.RLock)
    last_used: float = field(default_factory=time.monotonic)
    message: str = ""
    seats: dict[str, tuple[Agent, Seat]] = field(default_factory=dict)

    @property
    def now(self) -> Frame:
        """The current state."""
        return self.frames[-1]

    @property
    def total_reward(self) -> float:
        """Sum of the rewards of the session."""
        return sum(move.reward for frame in self.frames for move in frame.moves)

    def add(
        self, actor: str, reply: str, moves: tuple[Move, ...], observation: str, flags: tuple[bool, ...]
    ) -> None:
        """Append the state that actions have led to."""
        self.frames.append(Frame(self.env.snapshot(), observation, actor, reply, moves, *flags))
        self.leave("" if self.now.ended else actor)

    def leave(self, actor: str = "") -> None:
        """Leave the episodes of all agents but one; whoever acts later begins a new one."""
        for name in [name for name in self.seats if name != actor]:
            self.left.append(self.seats.pop(name))

    def act(self, action: str, actor: str = PERSON) -> None:
        """Execute an action. A failure of the environment is a remark, and the state stays."""
        self.message = ""
        if self.now.ended or len(self.frames) > MAX_TURNS:
            return
        try:
            self.env.restore(self.now.snapshot)
            observation, reward, terminated, truncated, info = self.env.step(action)
        except Exception as error:  # Servers may be away, and environments may come from plug-ins.
            self.message = describe_failure("the environment", error)
            self.env.restore(self.now.snapshot)
            return
        move = Move(action, float(reward), bool(info["valid"]), bool(info["changed"]))
        self.add(actor, "", (move,), observation, (terminated, truncated, bool(info["success"])))

    def undo(self) -> None:
        """Return to the state before the last turn."""
        self.message = ""
        self.leave()
        if len(self.frames) > 1:
            del self.frames[-1]


class Sessions:
    """Sessions by key. Threads may share it.

    Args:
        agents: Makers of agents that may play on, by name, in addition to the expert.
        limit: Maximum number of sessions.
        idle_seconds: Time without a request after which a session ends.
    """

    def __init__(
        self,
        agents: Mapping[str, AgentMaker],
        *,
        limit: int = MAX_SESSIONS,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        self._agents = dict(agents)
        self._limit, self._idle = limit, idle_seconds
        self._sessions: dict[str, Session] = {}
        self._lock = threading.Lock()
        self._agent_lock = threading.Lock()
        self._left: deque[tuple[Agent, Seat]] = deque()

    @property
    def agents(self) -> list[str]:
        """Names of the agents beside the expert."""
        return list(self._agents)

    def __len__(self) -> int:
        return len(self._sessions)

    def start(self, scenario: Scenario, task: str | None, seed: int) -> Session:
        """Start an episode.

        Args:
            scenario: Settings.
            task: Name of the task; None draws one from the seed.
            seed: Seed of the episode.

        Raises:
            ConfigurationError: The environment cannot be made or has no snapshots, or the task is unknown.
        """
        env = scenario.entry.make()
        check_snapshots(env)
        observation, info = env.reset(seed=seed, options=None if task is None else {"task": task})
        return self._add(scenario, env, seed, observation, bool(info["success"]))

    def resume(self, scenario: Scenario, snapshot: Snapshot, observation: str, seed: int) -> Session:
        """Start a session from a state of another episode.

        Args:
            scenario: Settings; they must be those of the other episode.
            snapshot: The state.
            observation: Its observation.
            seed: Seed of agents that act at random.

        Raises:
            ConfigurationError: The environment cannot be made.
        """
        env = scenario.entry.make()
        env.restore(snapshot)
        return self._add(scenario, env, seed, observation, snapshot.success)

    def get(self, key: str) -> Session | None:
        """Return a session, and count it as used; None if it has ended or never was."""
        with self._lock:
            self._end_idle()
            session = self._sessions.get(key)
            if session is not None:
                session.last_used = time.monotonic()
            return session

    def _add(self, scenario: Scenario, env: TextEnv[Any], seed: int, observation: str, success: bool) -> Session:
        snapshot = env.snapshot()
        ended = snapshot.terminated, snapshot.truncated
        first = Frame(snapshot, observation, "", "", (), *ended, success)
        session = Session(secrets.token_urlsafe(12), scenario, env, env.task, seed, [first], self._left)
        with self._lock:
            self._end_idle()
            while len(self._sessions) >= self._limit:
                self._end(min(self._sessions.values(), key=lambda one: one.last_used))
            self._sessions[session.key] = session
        return session

    def _end_idle(self) -> None:
        end = time.monotonic() - self._idle
        for session in [session for session in self._sessions.values() if session.last_used < end]:
            self._end(session)

    def _end(self, session: Session) -> None:
        del self._sessions[session.key]
        session.leave()

    # ------------------------------------------------------------------ agents

    def play(self, session: Session, actor: str, turns: int | None) -> None:
        """Let the expert or an agent act.

        Args:
            session: The session; its lock is held.
            actor: "expert", or the name of an agent.
            turns: Number of turns; None plays to the end, for `RUN_SECONDS` at most.
        """
        session.message = ""
        stop = time.monotonic() + RUN_SECONDS
        remaining = MAX_TURNS if turns is None else turns
        try:
            while remaining and not session.now.ended and len(session.frames) <= MAX_TURNS:
                acted = self._expert_acts(session) if actor == EXPERT else self._agent_acts(session, actor, stop)
                if not acted:
                    return
                remaining -= 1
                if remaining and time.monotonic() > stop:
                    session.message = f"{actor} has played for {RUN_SECONDS:g} s; let it go on if you like."
                    return
        except Exception as error:  # Models and environments may fail in any way; the session goes on.
            session.leave()  # The conversation may have a request without a reply, and cannot be continued.
            session.message = describe_failure(actor, error)

    def _expert_acts(self, session: Session) -> bool:
        session.env.restore(session.now.snapshot)
        plan = session.env.expert_actions()
        if not plan:
            session.message = "The expert has no plan from here."
            return False
        session.act(plan[0], EXPERT)
        return not session.message

    def _agent_acts(self, session: Session, name: str, stop: float) -> bool:
        """Let an agent reply once. It sees the state in which it began as the first observation of an episode."""
        with self._agent_lock:  # A model serves one request at a time.
            while self._left:
                agent, seat = self._left.popleft()
                agent.end(seat)
            agent, seat = session.seats.get(name) or self._begin(session, name)
            session.env.restore(session.now.snapshot)
            reply: Reply | None = None
            while reply is None:
                (reply,) = act(agent, [seat])
                if reply is None and time.monotonic() > stop + RUN_SECONDS:
                    raise TimeoutError("no reply in time")
            before = len(seat.episode.turns)
            execute(agent, seat, reply, 0.0, ())
        episode = seat.episode
        if len(episode.turns) == before or episode.error is not None:
            session.message = f"{name} stopped: {episode.error or 'no reply'}"
            session.leave()  # An episode that broke off cannot be continued.
            return False
        turn = episode.turns[-1]
        text = "" if turn.reply == "\n".join(move.action for move in turn.moves) else turn.reply
        snapshot = session.env.snapshot()
        flags = snapshot.terminated, snapshot.truncated, snapshot.success
        session.add(name, text, tuple(turn.moves), seat.observation, flags)
        if episode.truncated and not snapshot.truncated:
            session.message = (
                f"{name} has reached a limit of its own: {episode.details.get('ended', 'its budget')}."
            )
            session.leave()
            return False
        return True

    def _begin(self, session: Session, name: str) -> tuple[Agent, Seat]:
        """Return an agent and its new episode, which begins in the current state of a session."""
        maker = self._agents.get(name)
        if maker is None:
            raise ConfigurationError(f"there is no agent {name!r}")
        agent, seat = maker(session.scenario.suite, session.scenario.entry), _open_seat(session, name)
        agent.begin(seat)
        session.seats[name] = agent, seat
        return agent, seat


def posted_action(form: Mapping[str, str]) -> str:
    """Return the action of a form, whose line feeds browsers send as CR LF."""
    return form.get("action", "").replace("\r\n", "\n")[:MAX_ACTION]


def _open_seat(session: Session, name: str) -> Seat:
    """Return the seat of an agent that begins in the current state of a session."""
    env, frame = session.env, session.now
    env.restore(frame.snapshot)
    info = {"task": session.task, "success": frame.success, "valid": True, "changed": False}
    if env.admissible:
        info["admissible_actions"] = env.admissible_actions()
    episode = Episode(session.scenario.entry.env, session.task, session.seed, name)
    rng = random.Random(stable_seed("viewer", session.seed, len(session.frames)))
    return Seat(env, frame.observation, info, episode, rng)
