"""The examples of the README and the documentation run: Python blocks unchanged, and commands with a small budget.

An example that cannot run here has a comment with the reason above it: `<!-- not run: needs a GPU -->`. Commands
that need a server, a model or hours are recognized by their arguments (`reason_not_to_run`), and only parsed, by
tests/test_docs.py.
"""

from __future__ import annotations

import ast
import doctest
import re
import shlex
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import arboretum
from arboretum.cli import main
from arboretum.trainers.algorithms.recipes import get_recipe
from arboretum.trainers.algorithms.samplers import Chains
from arboretum.trainers.study.api_pages import API_PAGES

ROOT = Path(arboretum.__file__).parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"(?:<!-- not run: (?P<reason>.+?) -->\n)?^```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.M | re.S)

LONG = {
    "bench": "measures for minutes",
    "data": "needs the network",
    "sapling": "trains for hours",
    "scaling": "measures for minutes",
    "serve": "serves until Ctrl-C",
    "study": "trains for minutes to hours",
    "verify": "is run by tests/eval/test_verify.py",
    "view": "serves until Ctrl-C",
}
FOREIGN = {
    r"^index recall\b": "needs benchmark data and Java",
    r"--ray\b": "needs a cluster",
    r"\b(openai|vllm-server)/": "needs a server",
    r"\b(transformers|vllm)/|--model (Qwen|smollm2|runs/smollm2)": "needs a model of another source",
    r"--model runs/warm/model\b|runs/ppo|runs/study-": "needs a model or run of your own",
}
SMALL_EVAL = ["--limit", "2", "--workers", "1"]
SMALL_SFT = ["--episodes", "8", "--batch", "4", "--epochs", "1"]


class Example(NamedTuple):
    """Block of Python, or one command, with the reason why it is not run; "" if it is."""

    code: str
    command: list[str]
    reason: str


def examples(page: Path) -> Iterator[Example]:
    """Yield the Python blocks and the commands of a page in order."""
    for block in BLOCK.finditer(page.read_text(encoding="utf-8")):
        if block["kind"] == "python":
            yield Example(block["text"], [], block["reason"] or "")
        elif block["kind"] == "console":
            for line in re.sub(r"\\\n\s*", " ", block["text"]).splitlines():
                if line.startswith("$ arboretum "):
                    command = shlex.split(line, comments=True)[2:]
                    yield Example("", command, block["reason"] or reason_not_to_run(command))


def reason_not_to_run(command: list[str]) -> str:
    """Return why a command is only parsed, or "" for one that runs within seconds anywhere."""
    if command[0] == "play" and "--agent" not in command:
        return "waits for a person at the keyboard"
    reasons = (reason for pattern, reason in FOREIGN.items() if re.search(pattern, " ".join(command)))
    return LONG.get(command[0], "") or next(reasons, "")


def with_small_budget(command: list[str]) -> list[str]:
    """Return the command with few tasks, episodes and updates in the place of its own."""
    verb, rest = command[0], command[1:]
    if verb == "eval":
        return [verb, *_without(rest, "--limit", "--workers"), *SMALL_EVAL]
    if verb == "sft":
        return [verb, *_without(rest, *SMALL_SFT[::2]), *SMALL_SFT]
    if verb != "train":
        return command
    settings = {"optimization.updates": 2}
    if "--resume" not in rest:
        settings = {"optimization.updates": 1, "optimization.episodes_per_step": 4, "sampler.prompts": 2}
        if isinstance(get_recipe(rest[0]).sampler, Chains):
            settings["sampler.rollouts"] = 4
        rest = [*_without(rest, "--validation.tasks"), "--validation.tasks", "2"]
    elif not any(part.startswith("optimization.updates=") for part in rest):
        return command
    kept = [f"--set={part}" for part in _settings(rest) if part.partition("=")[0] not in settings]
    return [verb, *_without(rest, "--set"), *kept, *(f"--set={path}={value}" for path, value in settings.items())]


def _settings(rest: list[str]) -> list[str]:
    return [value for option, value in pairwise(rest) if option == "--set"]


def _without(arguments: list[str], *options: str) -> list[str]:
    """Return the arguments without options of one value and their values."""
    return [part for before, part in pairwise(["", *arguments]) if part not in options and before not in options]


def missing_package(code: str) -> str:
    """Return the name of a package that a block imports and that is not installed, or ""."""
    names = {"pandas"} if "to_dataframe()" in code else set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.partition(".")[0])
    return next((name for name in sorted(names) if find_spec(name) is None), "")


def write_files(page: Path) -> None:
    """Write the YAML blocks that follow the words "`NAME.yaml` is" into files of that name."""
    for name, text in re.findall(r"`([\w-]+\.yaml)` is\n\n```yaml\n(.*?)```", page.read_text("utf-8"), re.DOTALL):
        Path(name).write_text(text, encoding="utf-8")


def needs_torch(page: Path) -> bool:
    texts = (example.code or " ".join(example.command) for example in examples(page) if not example.reason)
    return any(re.search(r"sapling|\btrain\b|\bsft\b|trl", text) for text in texts)


def is_heavy(page: Path) -> bool:
    return needs_torch(page) or page.stem == "suites"  # three suites of up to seventeen entries


RUNNABLE = [page for page in PAGES if any(not example.reason for example in examples(page))]


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.heavy if is_heavy(page) else ()) for page in RUNNABLE],
    ids=lambda page: page.stem,
)
@pytest.mark.filterwarnings("default::FutureWarning", "default::UserWarning")  # of neighbours, about transformers
def test_examples_of_a_page_run_in_order(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if needs_torch(page):
        for module in ("torch", "transformers", "accelerate"):
            pytest.importorskip(module, reason=f"needs {module}: pip install 'arboretum-rl[lm]'")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ARBORETUM_DATA", raising=False)  # so that environments generate their tasks
    monkeypatch.setenv("COLUMNS", "120")
    shutil.copytree(ROOT / "examples", "examples")
    write_files(page)
    names: dict[str, Any] = {"__name__": "__main__"}
    missing = set()
    for example in examples(page):
        if example.reason:
            continue
        if example.code and (package := missing_package(example.code)):
            missing.add(package)
        elif example.code:
            exec(compile(example.code, str(page), "exec", dont_inherit=True), names)
        else:
            command = with_small_budget(example.command)
            with pytest.raises(SystemExit) as ended:
                main(command)
            printed = capsys.readouterr()
            if extra := re.search(r"pip install .*\[(\w+)\]", printed.err):
                missing.add(f"the extra {extra[1]}")
            else:
                assert ended.value.code in (0, None), f"{shlex.join(command)}\n{printed.out[-2000:]}{printed.err}"
    if missing:
        pytest.skip(f"all examples ran but those that need {', '.join(sorted(missing))}")


def test_most_commands_of_the_guides_run() -> None:
    """The rules that exclude commands do not exclude whole pages."""
    run = {page.stem: [one for one in examples(page) if one.command and not one.reason] for page in PAGES}
    assert sum(len(commands) for commands in run.values()) >= 34
    assert [one.command[0] for one in run["README"]] == ["eval", "train", "eval", "compare"]
    for name in ("start", "evaluate", "training", "trees", "decisions", "statistics", "runs", "search-agents"):
        assert len(run[name]) >= 2, name


@pytest.mark.parametrize("page", API_PAGES, ids=lambda page: page.file)
def test_examples_of_docstrings_give_what_they_show(page: Any) -> None:
    text = (ROOT / "docs" / "reference" / page.file).read_text(encoding="utf-8")
    names: dict[str, Any] = {"gymnasium": __import__("gymnasium")}
    for module, public in page.names.items():
        path = ".".join(part for part in ("arboretum", module) if part)
        names |= {name: getattr(__import__(path, fromlist=[name]), name) for name in public}
    for block in re.findall(r"```pycon\n(.*?)```", text, re.DOTALL):
        example = doctest.DocTestParser().get_doctest(block, names, page.file, page.file, 0)
        assert doctest.DocTestRunner(verbose=False).run(example).failed == 0


def test_evaluations_of_one_environment_name_a_number_of_tasks() -> None:
    """Most environments have endless tasks, so that the command as it is on the page would be refused."""
    for page in PAGES:
        for example in examples(page):
            if example.command[:1] == ["eval"] and example.command[1].startswith("Text"):
                assert "--limit" in example.command, f"{page.name}: {shlex.join(example.command)}"


def test_small_budget_replaces_options_and_settings_of_a_command() -> None:
    command = shlex.split("train grpo --env A --set optimization.updates=300 --set optimization.lr=1 --seed 1")
    expected = "train grpo --env A --seed 1 --validation.tasks 2 --set=optimization.lr=1 "
    assert shlex.join(with_small_budget(command)).startswith(expected)
    assert with_small_budget(["train", "--resume", "runs/a"]) == ["train", "--resume", "runs/a"]
    assert with_small_budget(["eval", "quick", "--limit", "64"]) == ["eval", "quick", *SMALL_EVAL]
