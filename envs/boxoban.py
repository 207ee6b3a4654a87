"""Boxoban: Sokoban on published level files of 10x10 boards with four boxes."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from .checks import flag
from .core import RewardMode
from .data import data_folder
from .errors import ConfigurationError
from .sokoban.board_env import BoardEnv
from .sokoban.generator import Spec, generate
from .sokoban.level_files import LevelFiles
from .sokoban.render import ObservationFormat
from .sokoban.rules import Vocabulary
from .tasks import SPLITS, GeneratedTasks

GENERATED = Spec(size=10, boxes=4, shortest=10, longest=40)
"""Kind of the levels generated in the absence of files; their constructed solutions have 10 to 40 pushes."""


class Boxoban(BoardEnv):
    """## Description
    Sokoban on the Boxoban levels: boards of 10x10 cells with four boxes. With the level files
    (https://github.com/google-deepmind/boxoban-levels, in the folder `boxoban/` of the data folder) a task is a
    level of a file: `medium/valid/000#17` is the level numbered 17 in `medium/valid/000.txt`. Files are indexed by
    their size and read one level at a time, so the 900,000 levels of `unfiltered/train` open immediately. Without
    files, levels of the same size are generated.

    ## Observations, actions, rewards
    These are the same as in [`TextSokoban-v0`](sokoban.md).

    ## Episode end
    The episode terminates when every box is on a target (success), and truncates after `max_steps` steps.

    ## Splits
    | split | tasks | content |
    |---|---|---|
    | "unfiltered/train" | 900,000 | level files |
    | "unfiltered/valid" | 100,000 | level files |
    | "unfiltered/test" | 1,000 | level files |
    | "medium/train" | 450,000 | level files |
    | "medium/valid" | 50,000 | level files |
    | "hard" | 3,332 | level files |
    | "train" | 2³¹ | generated: 60 % of all rooms |
    | "valid" | 2³¹ | generated: 20 % |
    | "test" | 2³¹ | generated: 20 % |

    With level files, "medium" joins all splits below it, and "valid" all splits of that name.

    ## Arguments
    * `split`: with files, a folder ("medium/valid", "unfiltered/test", "hard"), the parent of several folders
      ("medium"), or the last part of their names ("valid"). Without files, "train", "valid" or "test". None uses
      all levels.
    * `data`: folder of the level files; by default `boxoban/` in the folder that `ARBORETUM_DATA` names.
    * `generated=False`: generate levels even if there are files.
    * `max_steps=400`: step limit. The longest optimal solution among the first 1000 levels of `medium/valid`,
      `unfiltered/test` and `hard` has 152 moves.
    * `vocabulary`, `observation_format`: symbols and format of the observations, as in `TextSokoban-v0`.

    ## Source
    The levels were published with Guez, Mirza, Gregor et al., "An investigation of model-free planning" (2018).

    ## Version history
    * `v0`: initial version, of release 0.1.0.
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
        flag("generated", generated)
        if generated and data is not None:
            raise ConfigurationError("generated=True and data= exclude each other; give only one of them.")
        folder = None if generated else data_folder("boxoban", data)
        self.level_files = None if folder is None else LevelFiles(folder, split)
        """Level files in use, or None if levels are generated."""
        source: Literal["files", "generated"] = "generated" if folder is None else "files"
        if folder is None and split is not None and split not in SPLITS:
            raise ConfigurationError(
                f"split {str(split)[:80]!r} requires level files, and there are none: set ARBORETUM_DATA to a"
                f" folder that contains boxoban/, or choose {', '.join(SPLITS)} (generated levels)."
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

    @property
    def generated_data(self) -> str | None:
        return "generated levels" if self.level_files is None else None

    def _level(self, task: str) -> str:
        return generate(GENERATED, task) if self.level_files is None else self.level_files.board(task)
