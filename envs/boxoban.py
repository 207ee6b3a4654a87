"""Boxoban: Sokoban from published level files, 10x10 with four boxes."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from .core import RewardMode
from .data import data_folder
from .errors import ConfigurationError
from .sokoban.env import BoardEnv
from .sokoban.generator import Spec, generate
from .sokoban.level_files import LevelFiles
from .sokoban.render import ObservationFormat
from .sokoban.rules import Vocabulary
from .tasks import SPLITS, GeneratedTasks

GENERATED = Spec(size=10, boxes=4, shortest=10, longest=40)
"""Levels made where there are no files: 10 to 40 pushes in the solution by construction."""


class Boxoban(BoardEnv):
    """## Description
    Sokoban on the Boxoban levels: 10x10, four boxes. With the level files (`boxoban/` in the data folder, as in
    https://github.com/google-deepmind/boxoban-levels) a task is a level of a file, such as `medium/valid/000#17`:
    the level numbered 17 in `medium/valid/000.txt`. Files are indexed by size and read level by level, so the
    900,000 levels of `unfiltered/train` open at once. Without files, levels of the same size are generated.

    ## Observations, actions, rewards
    As in `TextSokoban-v0`.

    ## Episode end
    When every box is on a target (success), or after `max_steps` steps.

    ## Arguments
    * `split`: with files, a folder ("medium/valid", "unfiltered/test", "hard"), all folders within one ("medium"),
      or all of one last name ("valid"). Generated: "train", "valid", "test". None: everything.
    * `data`: the folder of the level files; by default `boxoban/` in the folder named by `ARBORETUM_DATA`.
    * `generated=False`: make levels even where there are files.
    * `max_steps=400`: the longest optimal solution among the first 1000 levels of `medium/valid`,
      `unfiltered/test` and `hard` takes 152 moves.
    * `vocabulary`, `observation_format`: as in `TextSokoban-v0`.

    ## Source
    Guez, Mirza, Gregor et al., "An investigation of model-free planning" (2018), and its level files.
    """

    def __init__(
        self,
        split: str | None = None,
        data: str | Path | None = None,
        generated: bool = False,
        vocabulary: str | Vocabulary = "standard",
        observation_format: ObservationFormat = "grid",
        max_steps: int | None = 400,
        reward_mode: RewardMode = "dense",
        admissible: bool = False,
        render_mode: str | None = None,
    ) -> None:
        if generated and data is not None:
            raise ConfigurationError("generated=True makes levels and data= names files; give one of them.")
        folder = None if generated else data_folder("boxoban", data)
        self.level_files = None if folder is None else LevelFiles(folder, split)
        """The level files in use, or None where levels are generated."""
        source: Literal["files", "generated"] = "generated" if folder is None else "files"
        if folder is None and split is not None and split not in SPLITS:
            raise ConfigurationError(
                f"split {split[:80]!r} names level files, but there are none: set ARBORETUM_DATA to a folder that"
                f" has boxoban/, or choose {', '.join(SPLITS)} (generated levels)."
            )
        super().__init__(
            config={"source": source},
            vocabulary=vocabulary,
            observation_format=observation_format,
            max_steps=max_steps,
            reward_mode=reward_mode,
            admissible=admissible,
            render_mode=render_mode,
        )
        self.tasks = GeneratedTasks(split) if self.level_files is None else self.level_files
        self._size = None if self.level_files is not None else (GENERATED.size, GENERATED.size)

    def _level(self, task: str) -> str:
        return generate(GENERATED, task) if self.level_files is None else self.level_files.board(task)
