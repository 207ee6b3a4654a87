"""Sampling of the next update's rollouts in another process, while this one learns from the current ones.

Update k learns from rollouts that were sampled with the weights before update k - 1 (the first update from its
own), so training is one update off-policy, as in Noukhovitch et al. (arXiv:2410.18252); `Mismatch` says how the
loss corrects for it. The rollouts are a function of the run's settings, its counters of tasks and batches, and
these weights. A checkpoint holds all three, so a resumed run continues to the same numbers.
"""

from __future__ import annotations

import atexit
import errno
import os
import signal
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ...envs.errors import ConfigurationError
from ..algorithms.selectors import NotEnoughGroups
from ..config.run import TrainingConfig
from ..learning.distributed import make_accelerator
from ..learning.optimizer import PolicyOptimizer
from ..learning.policy import load_trainable_model
from ..learning.sharding import merged_weights
from ..learning.threads import limit_threads
from ..state import TrainerState
from .collector import Collection, Collector
from .failures import SamplingFailed
from .policy_agent import ReplyCounts
from .policy_engine import model_engine
from .sampler import RolloutSampler
from .worker import init_worker

LOG_FILE = "sampling.log"
"""File in the folder of a run that receives what the sampling process prints."""

_Shapes = Mapping[str, Sequence[int]]
_BLOCK = 1 << 20
"""Bytes that are written at once where the system cannot allocate a file."""


class _Order(NamedTuple):
    """Rollouts to sample: counters of batches and tasks before them, and the temperature."""

    batch: int
    task: int
    temperature: float


class Delivery(NamedTuple):
    """Rollouts of one update from the sampling process.

    Attributes:
        collection: The rollouts.
        replies: Number of replies, and of those that failed.
        batch, task: Counters of batches and tasks after them.
        seconds: Wall time of sampling.
        lag: Updates between the weights that sampled and those that learn.
    """

    collection: Collection
    replies: ReplyCounts
    batch: int
    task: int
    seconds: float
    lag: int = 0

    def metrics(self) -> dict[str, float]:
        """Return the counts of replies, `sampling_seconds` and `sampler_lag`."""
        return {
            **self.replies.metrics(),
            "sampling_seconds": self.seconds,
            "sampler_lag": float(self.lag),
        }


def allocate(path: Path, size: int) -> None:
    """Make a file of a size in bytes, with room for all of it.

    A mapped file without room ends the process, without an exception, at the first write that finds none.

    Raises:
        ConfigurationError: There is no room.
    """
    try:
        with path.open("wb") as file:
            if not _is_allocated(file.fileno(), size):
                for written in range(0, size, _BLOCK):
                    file.write(bytes(min(_BLOCK, size - written)))
    except OSError as error:
        raise ConfigurationError(
            f"{path.parent}: has no room for the {size / 2**30:.1f} GiB of weights that sampler.asynchronous"
            f" shares ({error.strerror}); set the environment variable TMPDIR to a folder with more."
        ) from None


def _is_allocated(file: int, size: int) -> bool:
    """Allocate the blocks of a file, and return True; False where system or file system cannot."""
    if not hasattr(os, "posix_fallocate"):
        return False
    try:
        os.posix_fallocate(file, 0, size)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        return False
    return True


class SharedWeights:
    """Weights in a file that is mapped into the memory of two processes.

    Args:
        path: The file; created if it does not exist.
        shapes: Shape of each tensor by its name.

    Attributes:
        flat: All weights in one row, float32.
    """

    def __init__(self, path: Path, shapes: _Shapes) -> None:
        sizes = [torch.Size(shape).numel() for shape in shapes.values()]
        self.flat: Tensor = torch.from_file(str(path), shared=True, size=sum(sizes), dtype=torch.float32)
        self._parts = {
            name: part.view(*shape)
            for (name, shape), part in zip(shapes.items(), self.flat.split(sizes), strict=True)
        }

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def store(self, weights: Mapping[str, Tensor]) -> None:
        """Overwrite the weights by those of the same names."""
        for name, part in self._parts.items():
            part.copy_(weights[name])

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def load_into(self, model: nn.Module) -> None:
        """Overwrite the parameters of a model."""
        parameters = dict(model.named_parameters())
        for name, part in self._parts.items():
            parameters[name].copy_(part)


class AsynchronousSampling:
    """Process that samples the rollouts of the next update with its own copy of the weights.

        delivery = sampling.receive(temperature)
        sampling.order(next_temperature)  # samples with the weights of now …
        learn(delivery.collection)  # … which change here

    Args:
        config: Configuration of the run.
        optimizer: Policy in training.
        state: Counters of the run, which `receive` advances.

    Raises:
        ConfigurationError: Several processes train, which this does not support.
    """

    def __init__(self, config: TrainingConfig, optimizer: PolicyOptimizer, state: TrainerState) -> None:
        if optimizer.world_size > 1:
            raise ConfigurationError(
                "sampler.asynchronous works with one training process; with several, set "
                "sampler.asynchronous=false, which samples in every process."
            )
        self._optimizer, self._state = optimizer, state
        self._folder = tempfile.TemporaryDirectory(prefix="arboretum-weights-", ignore_cleanup_errors=True)
        shapes = {name: tuple(weight.shape) for name, weight in merged_weights(optimizer.policy.model)}
        path = Path(self._folder.name) / "weights"
        allocate(path, 4 * sum(torch.Size(shape).numel() for shape in shapes.values()))
        self._weights = SharedWeights(path, shapes)
        self._lag: int | None = None  # of the stored weights; None if they are not those of the next rollouts
        self._ordered = False
        config.out.mkdir(parents=True, exist_ok=True)
        context = get_context("spawn")
        self._connection, theirs = context.Pipe()
        device = _sampling_device(optimizer.accelerator.device)
        self._process = context.Process(
            target=_serve, args=(theirs, config, device, path, shapes), daemon=True, name="arboretum sampling"
        )
        (config.out / LOG_FILE).touch()
        _start_without_signals(self._process)
        # At exit Python sends SIGTERM, which the process blocks, and would wait for it for ever.
        atexit.register(self._process.kill)
        theirs.close()  # So that a dead process closes the connection.

    def order(self, temperature: float | None) -> None:
        """Store the current weights for the next rollouts, and begin to sample them.

        Args:
            temperature: Sampling temperature; None only stores the weights, with which a prolonged run goes on.
        """
        self._store(lag=1)
        if temperature is not None:
            self._send(temperature)

    def receive(self, temperature: float) -> Delivery:
        """Return the ordered rollouts once they are sampled; without an order, with the current weights.

        Args:
            temperature: Sampling temperature of rollouts that were not ordered.

        Raises:
            EpisodesFailed, NotEnoughGroups: See `Collector.collect`.
            SamplingFailed: The engine or the process failed.
        """
        if self._lag is None:
            self._store(lag=0)
        if not self._ordered:
            self._send(temperature)
        try:
            answer = self._connection.recv()
        except (EOFError, OSError):
            raise _ended() from None
        self._ordered = False
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, Delivery) and self._lag is not None
        self._state.batch, self._state.task = answer.batch, answer.task
        answer, self._lag = answer._replace(lag=self._lag), None
        return answer

    def discard(self) -> None:
        """Drop the ordered rollouts, whose tasks count as drawn: the next ones are sampled with new weights."""
        if self._ordered:
            try:
                self.receive(0.0)
            except (SamplingFailed, NotEnoughGroups):
                self._lag = None  # The next rollouts fail likewise, if the reason persists.
        self._lag = None

    def _store(self, *, lag: int) -> None:
        self._weights.store(dict(merged_weights(self._optimizer.policy.model)))
        self._lag = lag

    def _send(self, temperature: float) -> None:
        try:
            self._connection.send(_Order(self._state.batch, self._state.task, temperature))
        except OSError:
            raise _ended() from None
        self._ordered = True

    def state_dict(self) -> dict[str, Tensor]:
        """Return the weights of the next rollouts; empty if those will be sampled with the current ones."""
        return {} if not self._lag else {"weights": self._weights.flat.clone()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load a `state_dict`."""
        self._lag = None
        if state:
            self._weights.flat.copy_(state["weights"])
            self._lag = 1

    def close(self) -> None:
        """End the process; rollouts in progress are lost."""
        self._connection.close()
        self._process.kill()
        self._process.join()
        atexit.unregister(self._process.kill)
        self._folder.cleanup()


def _start_without_signals(process: BaseProcess) -> None:
    """Start a process that SIGINT and SIGTERM to the group of processes do not end; the run ends it itself."""
    if not hasattr(signal, "pthread_sigmask"):
        process.start()
        return
    resource_tracker.ensure_running()  # It would unblock the signals.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        process.start()  # A process inherits which signals are blocked.
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _ended() -> SamplingFailed:
    return SamplingFailed(
        f"sampling failed: its process ended; {LOG_FILE} in the run's folder may say why. In a script, the call"
        " that trains must be below `if __name__ == '__main__':`."
    )


def _sampling_device(device: torch.device) -> str:
    """Return the device to sample on: a second GPU where there is one, otherwise that of training."""
    if device.type == "cuda" and torch.cuda.device_count() > 1:
        return f"cuda:{(torch.cuda.current_device() + 1) % torch.cuda.device_count()}"
    return str(device)


def _serve(connection: Connection, config: TrainingConfig, device: str, path: Path, shapes: _Shapes) -> None:
    """Sample rollouts in order of their orders, until the connection is closed; runs in a process of its own."""
    init_worker(config.out / LOG_FILE)
    try:
        collector, sampler = _make_collector(config, device, SharedWeights(path, shapes))
    except Exception as error:  # reported by the process that trains
        connection.send(_failure(error))
        return
    try:
        while True:
            connection.send(_answer(connection.recv(), collector, sampler))
    except (EOFError, BrokenPipeError):
        return


def _failure(error: Exception) -> SamplingFailed:
    """Return an error for the process that trains, and print its traceback into the log."""
    traceback.print_exception(error)
    return SamplingFailed(f"sampling failed: {str(error).rstrip('.')} ({LOG_FILE} has the traceback).")


def _make_collector(
    config: TrainingConfig, device: str, weights: SharedWeights
) -> tuple[Collector, RolloutSampler]:
    hardware = config.hardware
    accelerator = make_accelerator(hardware.device, hardware.precision)
    model, tokenizer = load_trainable_model(config.model, device=device)
    model.requires_grad_(False)
    limit_threads(model)
    engine = model_engine(model, tokenizer, hardware.in_flight, accelerator.autocast)
    invalidate = engine.load_weights

    def load_weights() -> None:
        weights.load_into(model)
        invalidate()

    engine.load_weights = load_weights
    sampler = RolloutSampler(
        engine,
        config.dialogue,
        config.recipe.sampler,
        in_flight=hardware.in_flight,
        accelerator=accelerator,
        step_timeout=config.stepping.step_timeout,
    )
    return Collector(config, sampler, TrainerState()), sampler


def _answer(order: _Order, collector: Collector, sampler: RolloutSampler) -> Delivery | Exception:
    """Return the rollouts of an order, or the error for which there are none."""
    start, state = time.perf_counter(), collector.state
    state.batch, state.task = order.batch, order.task
    try:
        collection = collector.collect(order.temperature)
    except (SamplingFailed, NotEnoughGroups) as error:
        return error
    except Exception as error:  # reported by the process that trains
        return _failure(error)
    finally:
        replies = sampler.take_reply_counts()
    return Delivery(collection, replies, state.batch, state.task, time.perf_counter() - start)
