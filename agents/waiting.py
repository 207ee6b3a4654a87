"""Concurrent steps of environments that wait for something outside this process, such as the reply of a server.

Each of them is opened and stepped in a thread of its own, while the rollout loop continues with the other
episodes. A thread whose step exceeds a time limit is abandoned together with its environment. The threads are
daemons, so that none of them keeps the process from exiting.
"""

from __future__ import annotations

import math
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from ..envs.core import TextEnv
from .base import Agent, Reply, Seat
from .contracts import act
from .execution import (
    MAX_TRACE,
    add_turn,
    begin_step,
    call_agent,
    expired,
    open_task,
    perform,
    prepare_agent,
    settle,
)
from .forks import Keep, Origin
from .replacement import discard


@dataclass(eq=False, slots=True)
class _Work:
    """The beginning or a turn of an episode.

    Attributes:
        seat: The episode.
        run: The environment's part, which runs in a thread.
        finish: The agent's part, which runs in the loop's thread afterwards.
        is_opening: True for the beginning.
        thread: The thread in which `run` is in progress; None before and after.
        error: Error that `run` raised.
    """

    seat: Seat
    run: Callable[[], None]
    finish: Callable[[], None]
    is_opening: bool = False
    thread: _Thread | None = None
    error: BaseException | None = None

    @property
    def deadline(self) -> float:
        """Value of `time.perf_counter()` at which the thread is abandoned."""
        return min(self.seat.deadline, self.seat.step_deadline)


class _Thread(threading.Thread):
    """Thread of one environment, which runs the work that it is given until it is given None."""

    def __init__(self, report: Callable[[_Work], None]) -> None:
        super().__init__(name="environment", daemon=True)
        self.inbox: SimpleQueue[_Work | None] = SimpleQueue()
        self._report = report

    def run(self) -> None:
        while (work := self.inbox.get()) is not None:
            try:
                work.run()
            except BaseException as error:
                work.error = error
            self._report(work)
            del work  # An idle thread must not keep an ended episode in memory.


class WaitingSteps:
    """Steps in progress of environments that wait; a context manager that ends the idle threads.

    Args:
        agent: The agent of the episodes.

    Attributes:
        in_progress: Beginnings and turns in progress, in the order of their starts.
    """

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self.in_progress: dict[_Work, None] = {}
        self._done: SimpleQueue[_Work] = SimpleQueue()
        self._idle: dict[TextEnv[Any], _Thread] = {}
        self._is_acting = False

    def __enter__(self) -> WaitingSteps:
        return self

    def __exit__(self, *exception: object) -> None:
        for thread in self._idle.values():
            thread.inbox.put(None)
        for work in self.in_progress:
            # The episode is discarded, but the caller may play on with the environment.
            self._abandon(work)
        self._idle.clear()
        self.in_progress.clear()

    # ------------------------------------------------------------------ the loop's interface

    def begin(
        self, seat: Seat, task: str | None, seed: int, origin: Origin | None, keep: Collection[Keep]
    ) -> None:
        """Start what `execution.begin` does."""
        run = partial(open_task, seat, task, seed, origin)
        self._start(_Work(seat, run, partial(prepare_agent, self._agent, seat, origin, keep), is_opening=True))

    def execute(self, seat: Seat, reply: Reply, agent_seconds: float, keep: Collection[Keep]) -> None:
        """Start what `execution.execute` does; `reply` must not be an error."""
        turn = add_turn(self._agent, seat, reply, agent_seconds, keep)
        assert turn is not None
        self._start(
            _Work(seat, partial(perform, seat, turn, keep), partial(settle, self._agent, seat, reply, keep))
        )

    def act(self, seats: Sequence[Seat]) -> Sequence[Reply | None]:
        """Return `Agent.act`, which ends early where a step ends before a reply is ready."""
        self._is_acting = True
        if not self._done.empty():  # Its thread may have ended before the line above.
            self._agent.wake()
        try:
            return call_agent(self._agent, act, self._agent, seats)
        finally:
            self._is_acting = False

    def finished(self, *, wait: bool) -> Iterator[Seat]:
        """Yield the seats whose beginning or turn has ended or exceeded a time limit, in the order of starts.

        Args:
            wait: Wait for the first one if something is in progress and nothing has ended.

        Yields:
            The seat; a copy of it if its thread was abandoned.

        Raises:
            Stop: The agent failed.
            CannotFork: See `play`.
        """
        ended: list[_Work] = []
        late: list[_Work] = []
        while self.in_progress and not ended and not late:
            ended = self._take_ended(wait)
            now = time.perf_counter()
            late = [work for work in self.in_progress if work not in ended and work.deadline <= now]
            if not wait:
                break
        for work in [one for one in self.in_progress if one in ended or one in late]:
            del self.in_progress[work]
            if work in late:
                yield self._abandon(work)
                continue
            assert work.thread is not None
            self._idle[work.seat.env] = work.thread
            if work.error is not None:
                raise work.error
            work.finish()
            yield work.seat

    # ------------------------------------------------------------------ threads

    def _start(self, work: _Work) -> None:
        thread = self._idle.pop(work.seat.env, None)
        if thread is None:
            thread = _Thread(self._report)
            thread.start()
        work.thread = thread
        begin_step(work.seat)
        self.in_progress[work] = None
        thread.inbox.put(work)

    def _report(self, work: _Work) -> None:
        """Hand over work that has ended; called in its thread."""
        self._done.put(work)
        if self._is_acting:
            self._agent.wake()

    def _take_ended(self, wait: bool) -> list[_Work]:
        """Return the work that has ended, abandoned work left out; wait for it until the next deadline."""
        ended = []
        try:
            if wait:
                next_deadline = min(work.deadline for work in self.in_progress)
                if next_deadline == math.inf:
                    ended.append(self._done.get())
                else:
                    # A turn with several steps has a later deadline when this one passes, and is waited for again.
                    ended.append(self._done.get(timeout=max(0.0, next_deadline - time.perf_counter())))
            while True:
                ended.append(self._done.get_nowait())
        except Empty:
            pass
        return [work for work in ended if work in self.in_progress]

    def _abandon(self, work: _Work) -> Seat:
        """Leave a thread to itself, and return a copy of its seat, which it cannot change, with the error."""
        thread, episode = work.thread, work.seat.episode
        assert thread is not None
        thread.inbox.put(None)  # It ends when the step returns, if ever.
        discard(work.seat.env)
        turns = [*episode.turns]
        if not work.is_opening:
            turns[-1] = replace(turns[-1], moves=[*turns[-1].moves])
        episode = replace(episode, turns=turns, details={**episode.details}, error=expired(work.seat))
        frame = sys._current_frames().get(thread.ident or 0)
        if frame is not None:
            stack = "".join(traceback.format_stack(frame))
            episode.trace = f"The step was still in progress (most recent call last):\n{stack}"[-MAX_TRACE:]
        return replace(work.seat, episode=episode)
