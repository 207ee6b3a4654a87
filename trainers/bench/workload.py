"""What the two sides of the training benchmark learn from: one model, and one batch of real episodes, in a folder.

The episodes are those of the world's own expert at a noise that makes half of them fail, in the tokens that the
model would have seen and sampled, in groups that share a start. So lengths, turns and returns are ragged as they
are in training, and no model has to be taught first.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...agents.dialogue import make_dialogue
from ...agents.episode import Episode
from ...agents.play import play
from ...eval.bench.tiny import make_tiny_model
from ...eval.suite import Entry
from ..config.settings import ExpertConfig
from ..sampling.demonstrations import Demonstrator, ScriptedEngine
from ..sampling.rollout_plan import plan_chains
from ..sampling.tasks import draw_tasks

LR = 1e-4
EPS = 1e-4
"""Added to the deviation of a group's returns: TRL's constant, which it does not let one change."""


@dataclass(frozen=True)
class Workload:
    """How large the batch is.

    Attributes:
        prompts, rollouts: groups, and episodes in each.
        sequences: in one micro-batch; TRL's per_device_train_batch_size.
        updates: rollout_metrics ones, after one that is not.
        hidden, layers: of the model; 128 and 2 make 0.36M parameters.
        env: where the episodes are played, by RAGEN's protocol: five turns, five actions a turn, ten in all.
    """

    prompts: int = 8
    rollouts: int = 8
    sequences: int = 8
    updates: int = 3
    hidden: int = 128
    layers: int = 2
    env: str = "TextSokoban-v0"

    def write(self, folder: Path) -> None:
        """Put the model and the episodes into `folder`."""
        from ...agents.engines.local.load import load_tokenizer

        tokenizer = load_tokenizer(make_tiny_model(folder / "model", hidden=self.hidden, layers=self.layers))
        dialogue = make_dialogue("think", {"max_turns": 5, "max_actions_per_turn": 2, "max_actions": 10})
        agent = Demonstrator(ScriptedEngine(tokenizer, None), dialogue, ExpertConfig(noise=0.3, keep="all"))
        entry = Entry(self.env, self.env, {}, "train", None)
        envs = [entry.make() for _ in range(self.rollouts)]
        tasks = draw_tasks(envs[0].tasks, 0, self.prompts, seed=0)
        plan = plan_chains(tasks, self.rollouts, batch=0, seed=0)
        episodes, keys = plan.arrange(play(agent, envs, plan.jobs))
        with (folder / "episodes.jsonl").open("w", encoding="utf-8") as file:
            for episode, key in zip(episodes, keys, strict=True):
                file.write(json.dumps({"group": key, "episode": episode.to_dict()}) + "\n")


def read(folder: Path) -> tuple[list[Episode], list[tuple[int, int]]]:
    """The episodes of a folder and their groups."""
    with (folder / "episodes.jsonl").open(encoding="utf-8") as file:
        records = [json.loads(line) for line in file]
    return [Episode.from_dict(record["episode"]) for record in records], [tuple(r["group"]) for r in records]


def whole_row(episode: Episode) -> tuple[list[int], list[int]]:
    """The tokens of an episode whose conversation only ever grew, and 1 for those that the policy sampled."""
    ids = [token for turn in episode.turns for token in turn.token_ids or ()]
    return ids, [mark for turn in episode.turns for mark in turn.loss_mask or ()]


class Stopwatch:
    """CPU seconds of each rollout_metrics update, and the memory above that of its beginning.

    Attributes:
        seconds: of each update.
    """

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._before = _resident()
        _forget_peak()

    @contextmanager
    def update(self) -> Iterator[Callable[[float], None]]:
        """Around one update; what it gives takes seconds off that were another's."""
        start = time.process_time()
        off: list[float] = []
        yield off.append
        self.seconds.append(time.process_time() - start - math.fsum(off))

    def report(self, tokens: int, **more: Any) -> str:
        """What one side tells the other process, as JSON."""
        return json.dumps(
            {"seconds": self.seconds[1:], "memory": _peak() - self._before, "tokens": tokens, **more}
        )


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {field}")


def _resident() -> int:
    return _status("VmRSS:")


def _peak() -> int:
    return _status("VmHWM:")


def _forget_peak() -> None:
    """Let the kernel count the peak from now on; loading a model may have needed more than learning does."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def keep_gradient(optimizer: Any, path: Path) -> None:
    """Write the gradient of the first step, as the optimizer gets it, to `path`: one vector."""
    import torch

    def write(optimizer: Any, *_: Any) -> None:
        handle.remove()
        parts = [p.grad.flatten() for group in optimizer.param_groups for p in group["params"]]
        # The two sides order parameters differently; the sorted values are the same for the same gradient.
        torch.save(torch.cat(parts).sort().values, path)

    handle = optimizer.register_step_pre_hook(write)


def apart(one: Path, other: Path) -> float:
    """How far two gradients of `keep_gradient` are apart, to the length of one."""
    import torch

    first, second = (torch.load(path, weights_only=True) for path in (one, other))
    return float((first - second).norm() / first.norm())


def tokens_of(episodes: Sequence[Episode]) -> int:
    """Tokens of all rows, prompts included, padding not."""
    return sum(len(whole_row(episode)[0]) for episode in episodes)
