"""PlanBench's instances: PDDL problem files in a folder, or in the archive as it was published."""

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
    """The problem files of one data folder.

    A task's name is the file's path below the folder (or inside the archive) without its suffix, such as
    `blocksworld/generated_basic/instance-2`.

    Args:
        folder: holds `.pddl` files at any depth, or else tar archives of them.
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
        self._files = {name: files[name] for name in sorted(names, key=_natural)}
        if not self._files:
            raise DataError(folder, "holds no PDDL problem files, unpacked or in a tar archive.")

    def split(self, name: str) -> tuple[str, ...]:
        """The task names of `planbench` (all) or `planbench/<folder>` (those below a folder).

        Raises:
            ConfigurationError: there is no such folder.
        """
        prefix = name.removeprefix(PLANBENCH).removeprefix("/").rstrip("/")
        tasks = tuple(task for task in self._files if not prefix or task.startswith(f"{prefix}/"))
        if not tasks:
            raise unknown_name("split", name, self.splits())
        return tasks

    def splits(self) -> list[str]:
        """The names that `split` knows."""
        folders = {parent.as_posix() for task in self._files for parent in Path(task).parents} - {"."}
        return [PLANBENCH, *(f"{PLANBENCH}/{folder}" for folder in sorted(folders))]

    def problem(self, task: str) -> Problem:
        """Read one instance.

        Raises:
            DataError: the file cannot be read or is not a sound problem.
        """
        found = self._files[task]
        if isinstance(found, Path):
            try:
                where, content = str(found), found.read_bytes()
            except OSError as error:
                raise DataError(found, f"cannot be read ({error.strerror}).") from error
        else:
            where, content = found
        try:
            text = content.decode()
        except UnicodeDecodeError as error:
            line = content.count(b"\n", 0, error.start) + 1
            raise DataError(where, "expected UTF-8 text.", line) from error
        return read_problem(text, where)

    def __contains__(self, task: object) -> bool:
        return task in self._files

    @property
    def files(self) -> Mapping[str, object]:
        """Task names and where their text comes from."""
        return self._files


def load_instances(data: str | Path | None) -> Instances:
    """The instances of `data`, or of `ARBORETUM_DATA`; read once per process.

    Raises:
        ConfigurationError: there is no data folder.
        DataError: it holds no instances, or a broken archive.
    """
    folder = data_folder("blocksworld", data)
    if folder is None:
        raise ConfigurationError(
            "split 'planbench' needs PlanBench's PDDL files: give their folder as data=, or set ARBORETUM_DATA to"
            " a folder with a subfolder blocksworld/."
        )
    return _loaded(folder.resolve())


@lru_cache(maxsize=8)
def _loaded(folder: Path) -> Instances:
    return Instances(folder)


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]
