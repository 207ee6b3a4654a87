"""One process on a node of a Ray cluster that steps environments, and the thread that sends it messages.

Calls that arrive while the process is busy form its next message, so that a round trip serves all environments
whose turn it is. A call during which two processes died is answered with an error: the environment itself is the
likely reason.
"""

from __future__ import annotations

import pickle
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress

from ...agents.base import Stop
from ...agents.deadline import Expired
from ...envs.errors import ConfigurationError
from ...eval.workers.connection import Place, first_line, living_nodes, make_actor
from ...eval.workers.local import OPENING
from ...eval.workers.process import GRACE
from .env_host import EnvAnswer, EnvCall, EnvHost, EnvSource, EnvState

_STARTS = 2
"""Times in a row that the process of a worker may fail to start before the worker is given up."""


class WorkerDied(RuntimeError):
    """The process in which an environment's call was executed has died, and so has the next one."""


class Request:
    """Call that waits for its answer.

    Attributes:
        call: The call.
        state: State of its environment before the call.
        answer: Its answer.
        deaths: Number of workers that died during the call, on nodes that are alive.
    """

    def __init__(self, call: EnvCall, state: EnvState) -> None:
        self.call, self.state = call, state
        self.answer: Future[EnvAnswer] = Future()
        self.deaths = 0


class _GivenUp(Exception):
    """A worker cannot go on, for the reason in its text."""


class EnvWorker(threading.Thread):
    """Process on the cluster, as the thread that sends it messages.

    Args:
        place: Its node, and the resources that it uses there.
        sources: Environments that it opens first.
        step_timeout: See `EnvHost`.
        give_up: Called with a worker that cannot go on, and the reason; it takes the calls that wait.

    Attributes:
        envs: Number of environments whose calls it receives, as its owner counts them.
    """

    def __init__(
        self,
        place: Place,
        sources: Sequence[EnvSource],
        step_timeout: float | None,
        give_up: Callable[[EnvWorker, str], None],
    ) -> None:
        super().__init__(name="environments on Ray", daemon=True)
        self.envs = 0
        self._place, self._sources, self._limit, self._give_up = place, sources, step_timeout, give_up
        self._waiting: deque[Request] = deque()
        self._dropped: deque[int] = deque()
        self._open: set[int] = set()  # numbers of the environments that the process has in their states
        self._changed = threading.Condition()
        self._is_closing = False
        self._begin()

    # ------------------------------------------------------------------ called by other threads

    def submit(self, request: Request) -> None:
        """Add a call to the next message."""
        with self._changed:
            self._waiting.append(request)
            self._changed.notify()

    def drop(self, number: int) -> None:
        """Have the process drop an environment with the next message."""
        self._dropped.append(number)

    def take_waiting(self) -> list[Request]:
        """Remove and return the calls that wait."""
        with self._changed:
            waiting = list(self._waiting)
            self._waiting.clear()
        return waiting

    def close(self) -> None:
        """Kill the process, and end the thread."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._kill()
        if self.is_alive():
            self.join()

    # ------------------------------------------------------------------ the process

    def _begin(self) -> None:
        from ... import __version__

        self._open.clear()
        self._actor = make_actor(EnvHost, self._place, self._limit)
        self._opening = self._actor.open.remote(__version__, self._sources)

    def wait_until_open(self) -> None:
        """Wait until the process has opened the environments.

        Raises:
            ConfigurationError: It has another version or other tasks, or does not start.
        """
        import ray
        from ray.exceptions import GetTimeoutError, RayError, RayTaskError

        try:
            ray.get(self._opening, timeout=OPENING)
        except RayTaskError as error:
            if isinstance(error.cause, ConfigurationError):
                raise error.cause from None
            raise ConfigurationError(f"a worker on the Ray cluster opens no environment: {error}") from None
        except GetTimeoutError:
            raise ConfigurationError(
                f"a worker on the Ray cluster did not start within {OPENING:g} s; see `ray status` for free CPUs."
            ) from None
        except RayError as error:
            raise ConfigurationError(
                f"a worker on the Ray cluster does not start ({first_line(error)}); is this version of arboretum"
                " installed on every node?"
            ) from None

    def _kill(self) -> None:
        import ray

        with suppress(Exception):
            ray.kill(self._actor)

    # ------------------------------------------------------------------ the thread

    def run(self) -> None:
        """Send calls until the worker is closed or given up."""
        batch: list[Request] | None = None
        try:
            while (batch := self._next_batch()) is not None:
                self._send(batch)
                self._put_back(batch)
        except Exception as error:  # _GivenUp, or an error of Ray itself
            self._put_back(batch or ())
            self._kill()
            self._give_up(self, str(error) or type(error).__name__)

    def _next_batch(self) -> list[Request] | None:
        """Wait for calls, and return those of the next message; None once the worker is closed.

        A call during which a worker died has a message of its own, so that it costs no other call a second time.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closing)
            if self._is_closing:
                return None
            batch = [self._waiting.popleft()]
            while not batch[0].deaths and self._waiting and not self._waiting[0].deaths:
                batch.append(self._waiting.popleft())
            return batch

    def _put_back(self, batch: Sequence[Request]) -> None:
        """Put the calls that were not answered in front of those that wait."""
        with self._changed:
            self._waiting.extendleft(one for one in reversed(batch) if not one.answer.done())

    def _send(self, batch: list[Request]) -> None:
        """Send calls and wait for the answers; calls without one are left for the next process.

        Raises:
            _GivenUp: The process has died, and cannot be replaced.
        """
        from ray.exceptions import GetTimeoutError, RayError, RayTaskError

        try:
            self._exchange(batch)
        except RayTaskError as error:  # an error of the host, not of an environment
            self._fail(batch, error)
        except GetTimeoutError:
            self._recover(batch, "it did not answer", is_hung=True)
        except RayError as error:
            if self._is_closing:
                self._fail(batch, Stop("the connection to the Ray cluster was closed"))
            else:
                self._recover(batch, first_line(error))

    def _exchange(self, batch: Sequence[Request]) -> None:
        """Have missing environments built, send the calls, and hand over the answers."""
        import ray

        missing = {one.call.number: one.state for one in batch if one.call.number not in self._open}
        failed: dict[int, bytes] = {}
        if missing:
            steps = sum(len(state.calls) for state in missing.values())
            seconds = self._longest(steps, len(missing) * OPENING)
            failed = ray.get(self._actor.build.remote(missing), timeout=seconds)
            self._open |= missing.keys() - failed.keys()
        calls = [one.call for one in batch if one.call.number not in failed]
        dropped = [self._dropped.popleft() for _ in range(len(self._dropped))]
        answers = ray.get(self._actor.execute.remote(calls, dropped), timeout=self._longest(len(calls)))
        executed = dict(zip((call.number for call in calls), answers, strict=True))
        for one in batch:
            number = one.call.number
            answer = _unpickle(failed[number] if number in failed else executed[number])
            if answer.is_lost:
                self._open.discard(number)
            one.answer.set_result(answer)

    def _fail(self, batch: Sequence[Request], error: Exception) -> None:
        for one in batch:
            one.answer.set_exception(error)

    def _longest(self, steps: int, more: float = 0.0) -> float | None:
        """Return the seconds after which steps have not ended themselves at their time limit; None without one.

        Args:
            steps: Number of steps.
            more: Further seconds that the message may take.
        """
        return None if self._limit is None else GRACE + steps * self._limit + more

    def _recover(self, batch: list[Request], reason: str, *, is_hung: bool = False) -> None:
        """Replace the process, and answer those calls of its message with an error that are not to be repeated.

        Raises:
            _GivenUp: Its node has died, or the process does not start again.
        """
        self._kill()
        is_node_alive = self._place.node in living_nodes("CPU")
        for one in batch:
            one.deaths += is_node_alive
            if is_hung and len(batch) == 1:
                trace = "The step was still in progress, in code that the time limit cannot interrupt.\n"
                one.answer.set_result(EnvAnswer(None, Expired(), trace, is_lost=True))
            elif one.deaths > 1:
                text = f"two processes of the Ray cluster died in this call ({reason})"
                one.answer.set_result(EnvAnswer(None, WorkerDied(text), text, is_lost=True))
        if not is_node_alive:
            raise _GivenUp(reason)
        for _ in range(_STARTS):
            if self._is_closing:
                break
            self._begin()
            try:
                self.wait_until_open()
                return
            except ConfigurationError as error:
                reason = str(error)
                self._kill()
        raise _GivenUp(reason)


def _unpickle(data: bytes) -> EnvAnswer:
    """Return an answer; its error if it holds an object of a class that cannot be imported here."""
    try:
        answer: EnvAnswer = pickle.loads(data)
    except Exception as error:
        return EnvAnswer(None, error, str(error))
    return answer


__all__ = ["EnvWorker", "Request", "WorkerDied"]
