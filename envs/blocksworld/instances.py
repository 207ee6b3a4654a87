"""PlanBench's instances: PDDL problem files in a folder or in a tar archive."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from ..data import archive_members, data_folder
from ..errors import ConfigurationError, DataError, unknown_name
from .pddl import read_problem
from .rules import Problem

PLANBENCH = "planbench"
_SUFFIX = ".pddl"


class Instances:
    """Problem files of one data folder.

    The name of a task is the path of its file below the folder (or inside the archive) without the suffix, such as
    `blocksworld/generated_basic/instance-2`.

    Args:
        folder: Folder of `.pddl` files at any depth. If there are none, its tar archives are read.

    Raises:
        DataError: There are no problem files, or an archive is damaged.
    """

    def __init__(self, folder: Path) -> None:
        files: dict[str, Path | tuple[str, bytes]] = {
            path.relative_to(folder).with_suffix("").as_posix(): path for path in folder.rglob(f"*{_SUFFIX}")
        }
        if not files:
            for archive in sorted(folder.glob("*.tar*")):
                for name, content in archive_members(archive):
                    if name.endswith(_SUFFIX):
                        files[name.removeprefix("./").removesuffix(_SUFFIX)] = (f"{archive}:{name}", content)
        names = [name for name in files if "domain" not in Path(name).name]
        self._files = {name: files[name] for name in sorted(names, key=_natural_order)}
        if not self._files:
            raise DataError(folder, "contains no PDDL problem files, unpacked or in a tar archive.")

    def split(self, name: str) -> tuple[str, ...]:
        """Return the task names of the split `planbench` (all) or `planbench/<folder>` (those below a folder).

        Raises:
            ConfigurationError: The folder does not exist.
        """
        prefix = name.removeprefix(PLANBENCH).removeprefix("/").rstrip("/")
        tasks = tuple(task for task in self._files if not prefix or task.startswith(f"{prefix}/"))
        if not tasks:
            raise unknown_name("split", name, self.splits())
        return tasks

    def splits(self) -> list[str]:
        """Return the names of all splits."""
        folders = {parent.as_posix() for task in self._files for parent in Path(task).parents} - {"."}
        return [PLANBENCH, *(f"{PLANBENCH}/{folder}" for folder in sorted(folders))]

    def problem(self, task: str) -> Problem:
        """Read one instance.

        Raises:
            DataError: The file cannot be read or is not a consistent problem.
        """
        source = self._files[task]
        if isinstance(source, Path):
            try:
                path, content = str(source), source.read_bytes()
            except OSError as error:
                raise DataError(source, f"cannot be read ({error.strerror}).") from error
        else:
            path, content = source
        try:
            text = content.decode()
        except UnicodeDecodeError as error:
            line = content.count(b"\n", 0, error.start) + 1
            raise DataError(path, "expected UTF-8 text.", line) from error
        return read_problem(text, path)

    def __contains__(self, task: object) -> bool:
        return task in self._files

    @property
    def files(self) -> Mapping[str, object]:
        """Mapping from task names to their files: a path, or an archive member's name and content."""
        return self._files


def load_instances(data: str | Path | None) -> Instances:
    """Return the instances of `data` or of `ARBORETUM_DATA`, which are indexed once per process.

    Args:
        data: Folder of the instances, or its parent. None uses `ARBORETUM_DATA`.

    Raises:
        ConfigurationError: No data folder is configured.
        DataError: The folder contains no instances, or a damaged archive.
    """
    folder = data_folder("blocksworld", data)
    if folder is None:
        raise ConfigurationError(
            "split 'planbench' needs PlanBench's PDDL files; set data= to their folder, or set ARBORETUM_DATA to"
            " a folder with a subfolder blocksworld/."
        )
    return _load_folder(folder.resolve())


@lru_cache(maxsize=8)
def _load_folder(folder: Path) -> Instances:
    return Instances(folder)


def _natural_order(name: str) -> list[tuple[int, str]]:
    """Return a sort key that orders numbers within names by value."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]
