"""Workload of the update benchmarks: a model and a batch of real episodes, in a folder that every process reads.

The episodes are those of the environment's expert, with a noise at which half of them fail, tokenized as the model
would have sampled them, in groups with a common start. Lengths, turns and returns therefore vary as they do in
training, and no model has to be trained first.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...agents.dialogue import make_dialogue
from ...agents.episode import Episode
from ...agents.play import play
from ...envs.files import read_jsonl
from ...eval.bench.tiny import make_tiny_model
from ...eval.suite import Entry
from ..config.settings import ExpertConfig
from ..sampling.demonstrations import Demonstrator, ScriptedEngine
from ..sampling.rollout_plan import plan_chains
from ..sampling.tasks import draw_tasks

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from transformers import PreTrainedTokenizerBase

LR = 1e-4
EPS = 1e-4
"""Added to the standard deviation of a group's returns: TRL's constant, which is not configurable."""


@dataclass(frozen=True)
class Workload:
    """Sizes of the batch and of the model.

    Attributes:
        prompts: Number of groups.
        rollouts: Episodes per group.
        sequences: Sequences per micro-batch; TRL's per_device_train_batch_size.
        updates: Number of timed updates, after one that is not timed.
        hidden: Hidden size of the model.
        layers: Layers of the model; with the default hidden size it has 0.36 million parameters.
        env: Id of the environment. An episode has at most five turns, two actions per turn and ten actions.
    """

    prompts: int = 8
    rollouts: int = 8
    sequences: int = 8
    updates: int = 3
    hidden: int = 128
    layers: int = 2
    env: str = "TextSokoban-v0"

    def write(self, folder: Path) -> None:
        """Write the model and the episodes into a folder."""
        from ...agents.engines.local.load import load_tokenizer

        tokenizer = load_tokenizer(make_tiny_model(folder / "model", hidden=self.hidden, layers=self.layers))
        episodes, keys = self.demonstrate(tokenizer)
        with (folder / "episodes.jsonl").open("w", encoding="utf-8") as file:
            for episode, key in zip(episodes, keys, strict=True):
                file.write(json.dumps({"group": key, "episode": episode.to_dict()}) + "\n")

    def demonstrate(self, tokenizer: PreTrainedTokenizerBase) -> tuple[list[Episode], list[Hashable]]:
        """Return the episodes, as a model with this tokenizer would have sampled them, and the group of each."""
        dialogue = make_dialogue("think", {"max_turns": 5, "max_actions_per_turn": 2, "max_actions": 10})
        agent = Demonstrator(ScriptedEngine(tokenizer, None), dialogue, ExpertConfig(noise=0.3, keep="all"))
        entry = Entry(self.env, self.env, {}, "train", None)
        envs = [entry.make() for _ in range(self.rollouts)]
        tasks = draw_tasks(envs[0].tasks, 0, self.prompts, seed=0)
        plan = plan_chains(tasks, self.rollouts, batch=0, seed=0)
        return plan.arrange(play(agent, envs, plan.jobs))


def read_episodes(folder: Path) -> tuple[list[Episode], list[tuple[int, int]]]:
    """Return the episodes in a folder, and the group of each."""
    records = read_jsonl(folder / "episodes.jsonl")
    return [Episode.from_dict(record["episode"]) for record in records], [tuple(r["group"]) for r in records]


def episode_tokens(episode: Episode) -> tuple[list[int], list[int]]:
    """Return the tokens of an episode whose turns form one sequence, and its loss mask (1 for sampled tokens)."""
    ids = [token for turn in episode.turns for token in turn.token_ids or ()]
    return ids, [mark for turn in episode.turns for mark in turn.loss_mask or ()]


class Stopwatch:
    """CPU time of every update, and peak memory relative to the resident memory at construction.

    Attributes:
        seconds: CPU seconds of each update so far.
    """

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._initial_memory = _resident_memory()
        _reset_peak_memory()

    @contextmanager
    def update(self) -> Iterator[Callable[[float], None]]:
        """Time one update; the context's value is a function that subtracts seconds from the measurement."""
        start = time.process_time()
        subtracted: list[float] = []
        yield subtracted.append
        self.seconds.append(time.process_time() - start - math.fsum(subtracted))

    def report(self, tokens: int, **more: Any) -> str:
        """Return the measurements as JSON.

        Args:
            tokens: Tokens per update.
            more: Further entries.

        Returns:
            An object with `seconds` of every update except the first, `memory` in bytes, `tokens`, and `more`.
        """
        memory = _peak_memory() - self._initial_memory
        return json.dumps({"seconds": self.seconds[1:], "memory": memory, "tokens": tokens, **more})


def _process_status(field: str) -> int:
    """Return a field of `/proc/self/status` in bytes."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {field}")


def _resident_memory() -> int:
    return _process_status("VmRSS:")


def _peak_memory() -> int:
    return _process_status("VmHWM:")


def _reset_peak_memory() -> None:
    """Reset the kernel's record of peak memory: loading the model may have taken more than an update does."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def save_first_gradient(optimizer: Optimizer, path: Path) -> None:
    """Register a hook that saves the gradient of the next optimizer step as one vector, sorted by value.

    Args:
        optimizer: Optimizer of torch.
        path: File to write.
    """
    import torch

    def save(optimizer: Optimizer, *_: Any) -> None:
        handle.remove()
        parts = [p.grad.flatten() for group in optimizer.param_groups for p in group["params"]]
        # The two systems order parameters differently; sorting makes equal gradients comparable.
        torch.save(torch.cat(parts).sort().values, path)

    handle = optimizer.register_step_pre_hook(save)


def relative_distance(one: Path, other: Path) -> float:
    """Return the distance of two gradients of `save_first_gradient`, relative to the norm of the first."""
    import torch

    first, second = (torch.load(path, weights_only=True) for path in (one, other))
    return float((first - second).norm() / first.norm())


def count_tokens(episodes: Sequence[Episode]) -> int:
    """Return the number of tokens of all episodes, prompts included, padding excluded."""
    return sum(len(episode_tokens(episode)[0]) for episode in episodes)
