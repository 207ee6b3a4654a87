"""Lake whose steps kill their process or do not return; importable by the processes of a Ray cluster."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from arboretum.envs.frozenlake import FrozenLake


class FailingLake(FrozenLake):
    """Lake that hangs in some episodes, and kills its process once for every file named fuse-… in a folder.

    Args:
        folder: The folder, which also has a file named by the id of every process with such a lake.
        is_stubborn: Hang in a way that the time limit of a step cannot interrupt.
    """

    def __init__(self, folder: str, is_stubborn: bool = False, split: str | None = None) -> None:
        super().__init__(split=split)
        self._folder, self._is_stubborn = Path(folder), is_stubborn
        (self._folder / str(os.getpid())).touch()

    def _apply(self, action: str) -> Any:
        for fuse in self._folder.glob("fuse-*"):
            fuse.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        if self._steps == 1 and self.rng_state % 16 == 0:
            if self._is_stubborn:
                signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
            time.sleep(600)
        return super()._apply(action)
