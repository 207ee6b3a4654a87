"""The architecture: rooms depend downward only, importing is light, and linters and type checker find nothing."""

from __future__ import annotations

import ast
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from support.source import ROOT, tree_of

ROOMS = ["envs", "agents", "eval", "trainers", "cli"]
TRAINER_LAYERS = [
    {"data"},
    {"algorithms"},
    {"monitor"},
    {"config"},
    {"state"},
    {"learning"},
    {"sampling"},
    {"checkpoints"},
    {"reporting"},
    {"trainer", "sft"},
    {"commands"},
    {"laboratory"},
    {"study", "bench", "sapling"},
]
"""Parts of `trainers`, lowest first. A part may import from lower layers and from its own."""


@cache
def sources() -> list[Path]:
    inside = (path for room in (*ROOMS, "assets") for path in (ROOT / room).rglob("*.py"))
    return sorted([*inside, ROOT / "cli.py", ROOT / "__init__.py"])


def module_name(path: Path) -> str:
    """Return the name of a module below the package; "" for the package itself."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def run_time_nodes(tree: ast.AST, *, lazy: bool) -> Iterator[ast.AST]:
    """Yield the nodes of a module outside `if TYPE_CHECKING`; without `lazy`, outside functions, too."""
    for node in ast.iter_child_nodes(tree):
        if is_type_checking(node):
            continue
        if not lazy and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue
        yield node
        yield from run_time_nodes(node, lazy=lazy)


def imports(path: Path, *, lazy: bool = True) -> set[str]:
    """Return the modules and names of this package that a module imports, as dotted names below the package.

    Args:
        path: File of the module.
        lazy: Include imports inside functions.
    """
    package = list(path.relative_to(ROOT).parent.parts)
    found = set()
    for node in run_time_nodes(tree_of(path), lazy=lazy):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1]
            module = [*base, *(node.module.split(".") if node.module else [])]
            found |= {".".join([*module, alias.name]) for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "arboretum":
            pytest.fail(f"{path}: imports its own package by absolute name; use a relative import")
    return found


# ---------------------------------------------------------------------- dependencies


def test_rooms_depend_downward_only() -> None:
    upward = [
        f"{path.relative_to(ROOT)} must not import {name}"
        for path in sources()
        for name in sorted(imports(path))
        if room_of(name) > room_of(module_name(path)) >= 0
    ]
    assert upward == []


def room_of(name: str) -> int:
    """Return the height of the room of a module; -1 for a module outside all rooms."""
    room = name.split(".")[0]
    return ROOMS.index(room) if room in ROOMS else -1


def test_parts_of_trainers_depend_downward_only() -> None:
    layers = {part: number for number, layer in enumerate(TRAINER_LAYERS) for part in layer}
    upward = []
    for path in sources():
        room, _, rest = module_name(path).partition(".")
        if room != "trainers" or not rest:
            continue
        part = rest.split(".")[0]
        assert part in layers, f"{path}: name its layer in TRAINER_LAYERS"
        for name in sorted(imports(path)):
            other = layers.get(name.split(".")[1] if name.startswith("trainers.") else "", 0)
            if other > layers[part]:
                upward.append(f"{path.relative_to(ROOT)} must not import {name}")
    assert upward == []


def test_trainers_lists_few_entries() -> None:
    entries = sorted(path.name for path in (ROOT / "trainers").iterdir() if path.name != "__pycache__")
    assert len(entries) <= 17, entries


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the strongly connected components with more than one node (Tarjan, 1972), or with a self-loop."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        order[node] = low[node] = len(order)
        stack.append(node)
        for other in sorted(graph[node]):
            if other not in order:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], order[other])
        if low[node] == order[node]:
            component = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(component) > 1 or node in graph[node]:
                found.append(sorted(component))

    for node in sorted(graph):
        if node not in order:
            visit(node)
    return found


def test_circles_are_found_in_an_example() -> None:
    graph = {"a": {"b"}, "b": {"c", "d"}, "c": {"b"}, "d": {"e"}, "e": set(), "f": {"f", "a"}}
    assert sorted(circles(graph)) == [["b", "c"], ["f"]]


def test_modules_import_each_other_in_no_circle() -> None:
    """Imports at module level only; those inside functions and under TYPE_CHECKING cannot fail at import."""
    modules = {module_name(path): path for path in sources()}
    graph = {}
    for module, path in modules.items():
        # `from .part import name` imports `part.name` if that is a module, and `part` otherwise.
        targets = {name if name in modules else name.rpartition(".")[0] for name in imports(path, lazy=False)}
        graph[module] = targets & set(modules)
    assert circles(graph) == []


# ---------------------------------------------------------------------- importing

HEAVY = {"torch", "transformers", "faiss", "flask", "bm25s", "openai", "vllm", "ray"} | {
    "rich",
    "yaml",
    "jinja2",
    "tyro",
}


def output_of(code: str) -> str:
    """Return the output of a fresh interpreter."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/")
    return done.stdout


def test_import_loads_nothing_heavy() -> None:
    code = "import sys, json, arboretum; print(json.dumps(sorted({m.split('.')[0] for m in sys.modules})))"
    assert not HEAVY & set(json.loads(output_of(code)))


def test_import_takes_at_most_half_as_long_again_as_gymnasium() -> None:
    """CPU time in fresh interpreters; the median of 11 pairs, since the speed of shared processors changes."""
    code = "import time; t = time.process_time(); import {}; print(time.process_time() - t)"
    ratios = []
    for _ in range(11):
        theirs, ours = (float(output_of(code.format(name))) for name in ("gymnasium", "arboretum"))
        ratios.append(ours / theirs)
    assert statistics.median(ratios) <= 1.5


def test_import_leaves_global_random_states_unchanged() -> None:
    code = (
        "import random, numpy; random.seed(1); numpy.random.seed(1); a = random.getstate()[1][:3], "
        "numpy.random.get_state()[1][:3].tolist(); import arboretum; "
        "print(a == (random.getstate()[1][:3], numpy.random.get_state()[1][:3].tolist()))"
    )
    assert output_of(code).strip() == "True"


# ---------------------------------------------------------------------- linters, sizes, generated pages


def run_tool(name: str, *arguments: str, cwd: Path, **env: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", name, *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, **env},
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_ruff_finds_nothing() -> None:
    run_tool("ruff", "check", ".", cwd=ROOT)
    run_tool("ruff", "format", "--check", ".", cwd=ROOT)


def test_mypy_finds_nothing(tmp_path: Path) -> None:
    (tmp_path / "arboretum").symlink_to(ROOT)  # The root is the package, whatever its folder is called.
    rooms = [room for room in ROOMS if (ROOT / room).exists() or (ROOT / f"{room}.py").exists()]
    packages = [part for room in rooms for part in ("-p", f"arboretum.{room}")]
    config, cache_folder = str(ROOT / "pyproject.toml"), str(ROOT / ".mypy_cache")
    # In another folder than the root, whose __main__.py would be that of any package that imports `__main__`.
    arguments = ["--config-file", config, "--cache-dir", cache_folder, *packages]
    run_tool("mypy", *arguments, cwd=tmp_path, MYPYPATH=str(tmp_path))


def test_modules_fit_on_a_few_screens() -> None:
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in sources()}
    assert {str(path.relative_to(ROOT)): count for path, count in lines.items() if count > 500} == {}


def test_no_module_is_named_for_what_it_happens_to_hold() -> None:
    assert [str(path) for path in sources() if path.stem in ("utils", "helpers", "misc")] == []


def test_vllm_tests_in_the_makefile_exist() -> None:
    """`make test-all` runs these files in an environment of their own."""
    (line,) = [line for line in (ROOT / "Makefile").read_text().splitlines() if line.startswith("VLLM_TESTS :=")]
    paths = line.partition(":=")[2].split()
    assert paths and all((ROOT / path).is_file() for path in paths)
