"""The documentation names only files, code, commands and options that exist."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

import arboretum
from arboretum.cli import main
from arboretum.eval.options import parse_options
from arboretum.trainers.algorithms.overrides import apply_overrides
from arboretum.trainers.algorithms.recipes import RECIPES, get_recipe
from arboretum.trainers.algorithms.registry import CREDITS, SELECTORS

ROOT = Path(arboretum.__file__).parent
ARCHITECTURE = ROOT / "docs" / "architecture.md"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES += sorted((ROOT / "docs" / "recipes").glob("*.md"))


def page_name(path: object) -> str:
    return str(path.relative_to(ROOT)) if isinstance(path, Path) else str(path)


# ---------------------------------------------------------------------- files and code


def inline_code(path: Path) -> list[str]:
    """Return the code spans of a page outside its code blocks."""
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    return re.findall(r"`([^`\n]+)`", text)


@cache
def definitions() -> tuple[dict[str, set[str]], set[str]]:
    """Return the members of every class of the package, inherited ones included, and all names of its modules."""
    members: dict[str, set[str]] = {}
    bases: dict[str, list[str]] = {}
    names: set[str] = set()
    folders = [ROOT / room for room in ("envs", "agents", "eval", "trainers", "assets")]
    for path in [ROOT / "cli.py", *(file for folder in folders for file in folder.rglob("*.py"))]:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            names |= set(_defined(node))
            if isinstance(node, ast.ClassDef):
                own = members.setdefault(node.name, set())
                own |= {name for part in node.body for name in _defined(part)}
                own |= {
                    part.attr
                    for part in ast.walk(node)
                    if isinstance(part, ast.Attribute)
                    and isinstance(part.value, ast.Name)
                    and part.value.id == "self"
                }
                bases.setdefault(node.name, []).extend(ast.unparse(base).partition("[")[0] for base in node.bases)

    def inherited(cls: str) -> set[str]:
        return members.get(cls, set()).union(*(inherited(base) for base in bases.get(cls, ()) if base != cls))

    return {cls: inherited(cls) for cls in members}, names


def _defined(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
        yield node.name
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        yield node.target.id
    elif isinstance(node, ast.Assign):
        yield from (target.id for target in node.targets if isinstance(target, ast.Name))


def is_setting(path: str) -> bool:
    """Return True for the path of a recipe's setting, such as optimization.lr."""
    value: object = RECIPES["ppo"]
    for name in path.split("."):
        if not hasattr(value, name):
            return False
        value = getattr(value, name)
    return True


def is_defined(name: str) -> bool:
    """Return True if a name in a page is a class, function, constant, member, field or setting of the package."""
    members, names = definitions()
    owner, dot, member = name.rpartition(".")
    if not dot:
        return name in names or any(name in own for own in members.values())
    return member in members.get(owner, set()) or is_setting(name)


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_every_file_and_link_in_a_page_exists(page: Path) -> None:
    files = {code for code in inline_code(page) if re.fullmatch(r"[\w.]+(/[\w.]+)+\.(py|md|yaml)", code)}
    missing = [file for file in files if not (ROOT / file).exists()]
    for target, anchor in re.findall(r"\]\(([^)#:]+)(?:#([\w-]*))?\)", page.read_text(encoding="utf-8")):
        linked = page.parent / target
        if not linked.exists() or (anchor and anchor not in anchors(linked)):
            missing.append(f"{target}#{anchor}")
    assert not missing, f"{page_name(page)} names what does not exist: {', '.join(sorted(missing))}"


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_name_in_the_architecture_page_is_defined() -> None:
    words = {"trainers", "grpo", "Up", "assets", *CREDITS, *SELECTORS}
    words |= {path.name for room in (ROOT, ROOT / "trainers") for path in room.iterdir() if path.is_dir()}
    code = {span for span in inline_code(ARCHITECTURE) if re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", span)}
    code = {span for span in code if not span.endswith((".py", ".json", ".jsonl", ".html", ".pt"))}
    assert len(code) > 60
    missing = sorted(name for name in code - words if not is_defined(name))
    assert not missing, f"docs/architecture.md names code that does not exist: {', '.join(missing)}"


def test_name_that_is_not_in_the_package_is_recognized_as_missing() -> None:
    assert is_defined("Rollouts.action_turn") and is_defined("Group.assign") and is_defined("optimization.updates")
    assert (
        not is_defined("Rollouts.action_luck") and not is_defined("drawn_tasks") and not is_defined("descent.lr")
    )


def test_chain_of_an_update_has_ten_links() -> None:
    links = re.findall(r"^(\d+)\. \*\*", ARCHITECTURE.read_text(encoding="utf-8"), re.MULTILINE)
    assert links == [str(number) for number in range(1, 11)]


# ---------------------------------------------------------------------- rooms


def rooms_of_trainers() -> list[set[str]]:
    """Return the rows of the page's table of the rooms inside `trainers`, in its order."""
    text = ARCHITECTURE.read_text(encoding="utf-8")
    table = text[text.index("imports inside `trainers`") :].partition("\n\n")[0]
    return [set(re.findall(r"`([\w.]+)`", line.split("|")[1])) for line in table.splitlines()[2:]]


def imported_rooms(room: str) -> set[str]:
    """Return the parts of `trainers` that a folder or file in it imports, itself excluded."""
    trainers = ROOT / "trainers"
    found = set()
    for path in (trainers / room).rglob("*.py") if (trainers / room).is_dir() else [trainers / room]:
        package = path.parent.relative_to(ROOT).parts
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.level:
                base = package[: len(package) - node.level + 1]
                module = [*base, *(node.module.split(".") if node.module else [])]
                names = [alias.name for alias in node.names]
                if module[:1] == ["trainers"]:
                    found |= {module[1]} if len(module) > 1 else set(names)
    parts = {name if (trainers / name).is_dir() else f"{name}.py" for name in found}
    return {part for part in parts if (trainers / part).exists()} - {room}


def test_table_of_rooms_lists_everything_inside_trainers() -> None:
    listed = set().union(*rooms_of_trainers()) | {"state.py", "monitor.py", "__init__.py", "__pycache__"}
    assert {path.name for path in (ROOT / "trainers").iterdir()} <= listed


def test_rooms_of_trainers_import_only_rooms_listed_before_them() -> None:
    before = {"state.py", "monitor.py"}
    assert not imported_rooms("state.py") and not imported_rooms("monitor.py")
    for row in rooms_of_trainers():
        for room in row:
            assert imported_rooms(room) <= before, f"trainers/{room} imports {imported_rooms(room) - before}"
        before |= row


# ---------------------------------------------------------------------- commands


def commands(page: Path) -> list[list[str]]:
    """Return the arguments of every `arboretum` command in a page, in console blocks and in code spans."""
    text = page.read_text(encoding="utf-8")
    lines = []
    for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
        lines += re.sub(r"\\\n\s*", " ", block).splitlines()
    lines += inline_code(page)
    found = []
    for line in lines:
        match = re.search(r"(?:^|\s)(?:-m arboretum\.cli|arboretum) +([a-z].*)", line.removeprefix("$"))
        if match is not None and "pip install" not in line:
            found.append(shlex.split(match[1], comments=True))
    return found


def help_of(verb: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        main([*verb, "--help"])
    assert ended.value.code == 0, f"arboretum {' '.join(verb)} is not a command"
    return capsys.readouterr().out


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_every_command_in_a_page_has_its_verb_and_options(
    page: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    verbs = set(re.findall(r"[a-z]+", re.findall(r"\{([a-z,]+)\}", help_of((), capsys))[0]))
    for arguments in commands(page):
        verb = arguments[0]
        assert verb in verbs, f"{page_name(page)}: `arboretum {' '.join(arguments)}` has no such verb"
        shown = help_of((verb,), capsys)
        if "subcommands" in shown and len(arguments) > 1:
            shown = help_of((verb, arguments[1]), capsys)
        known = set(re.findall(r"--[a-z][\w.-]*", shown))
        options = {argument.partition("=")[0] for argument in arguments if argument.startswith("--")}
        assert options <= known, (
            f"{page_name(page)}: `arboretum {verb}` has no {', '.join(sorted(options - known))}"
        )


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_every_option_in_the_text_of_a_page_exists(page: Path) -> None:
    texts = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests" / "help").glob("*.txt"))
    named = {match for code in inline_code(page) for match in re.findall(r"^--[a-z][\w.-]*", code)}
    assert named <= set(re.findall(r"--[a-z][\w.-]*", texts))


def test_every_setting_in_the_page_of_training_can_be_set() -> None:
    text = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    settings = re.findall(r"--set ([a-z_.]+=[^\s`]+)", text)
    settings = [setting for setting in settings if setting != "path=value"]
    assert len(settings) >= 4
    for setting in settings:
        named = (
            ["selector.name=uncertainty"] if setting.startswith("selector.") else []
        )  # others are of one selector
        apply_overrides(get_recipe("grpo"), parse_options([*named, setting], "--set"))


def test_every_recipe_is_named_in_the_readme() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert not [name for name in RECIPES if f"`{name}`" not in text]


def output_folder(arguments: list[str]) -> str:
    """Return the folder that a command of a run writes; "" if its name has all settings, or there is none."""
    if arguments[0] not in ("eval", "train", "sft", "study"):
        return ""
    options = list(pairwise(arguments))
    names = [value for option, value in options if option == "--env"]
    default = f"runs/{arguments[1]}-{'+'.join(names)}" if arguments[0] == "train" and names else ""
    return next((value for option, value in options if option == "--out"), default)


def test_no_two_commands_of_the_pages_write_the_same_folder() -> None:
    """A reader may run all commands in one checkout; a folder of another run is refused."""
    found: dict[str, list[str]] = {}
    for page in PAGES:
        for arguments in commands(page):
            folder = output_folder(arguments)
            if folder and shlex.join(arguments) not in found.setdefault(folder, []):
                found[folder].append(shlex.join(arguments))
    assert len(found) > 30
    assert not [several for several in found.values() if len(several) > 1]
