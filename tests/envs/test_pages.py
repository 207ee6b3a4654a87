"""Documentation pages: up to date, with splits, baselines and pictures that are those of the environments."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import load_env_creator, registry

import arboretum
from arboretum.agents.engines.shipped_models import SHIPPED_MODELS
from arboretum.cli import main
from arboretum.envs.baselines import BASELINES_FILE, Baseline, baselines_section, read_baselines
from arboretum.envs.illustrations import SCENES, draw
from arboretum.envs.pages import by_class, pages, write_pages
from arboretum.envs.pictures.transcript import transcript_svg
from arboretum.envs.registry import ENVS, EnvSpec, make_env
from support.png import decode_png

FOLDER = Path(arboretum.__file__).parent / "docs" / "environments"
PAGES = dict(pages(ENVS, read_baselines(FOLDER)))
MODULES = list(dict.fromkeys(spec.module for spec in ENVS))
FIRST_IDS = {spec.module: spec.id for spec in reversed(ENVS)}


@pytest.mark.parametrize(
    ("id", "kwargs"),
    [
        ("TextBandit-v0", {}),
        ("TextSokoban-v0", {}),
        ("TextFrozenLake-v0", {}),
        ("TextBlocksworld-v0", {"blocks": 3, "notation": "pddl"}),
    ],
)
def test_first_observation_on_the_page_is_that_of_seed_zero(id: str, kwargs: dict[str, Any]) -> None:
    env = gym.make(id, **kwargs).unwrapped
    (quoted,) = re.findall(r"```\n(.*?)\n```", inspect.getdoc(type(env)) or "", re.DOTALL)
    assert env.reset(seed=0)[0] == quoted


def test_stored_pages_are_up_to_date() -> None:
    for name, text in PAGES.items():
        assert (FOLDER / name).read_text(encoding="utf-8") == text, f"docs/environments/{name}: run `make docs`"
    assert {path.name for path in FOLDER.iterdir()} == {*PAGES, BASELINES_FILE, "pictures"}


@pytest.mark.parametrize("module", MODULES)
def test_page_has_its_sections_with_the_version_history_last(module: str) -> None:
    sections = re.findall(r"^## (.*)$", PAGES[f"{module}.md"], re.MULTILINE)
    assert sections[0] == "Description" and sections[-2:] == ["Source", "Version history"]
    assert sections.index("Splits") < sections.index("Arguments") < sections.index("Baselines")


# ---------------------------------------------------------------------- splits


def stated_splits(module: str) -> list[tuple[str, int]]:
    """Return the splits of generated data on a page, with their numbers of tasks."""
    table = PAGES[f"{module}.md"].partition("## Splits\n")[2].partition("\n\n")[0].splitlines()
    headings = [cell.strip() for cell in table[0].split("|")]
    column = next(
        headings.index(name)
        for name in ("tasks in generated homes", "generated catalog", "encyclopedia", "tasks")
        if name in headings
    )
    found = []
    for line in table[2:]:
        cells = [cell.strip() for cell in line.split("|")]
        if re.fullmatch(r"[\d,]+|2³¹", cells[column]) and "level files" not in line:
            found.append(
                (cells[1].strip('"'), 2**31 if "³" in cells[column] else int(cells[column].replace(",", "")))
            )
    return found


@pytest.mark.parametrize("module", MODULES)
def test_splits_on_the_page_have_the_stated_numbers_of_tasks(module: str) -> None:
    splits = stated_splits(module)
    assert len(splits) >= 2
    for split, tasks in splits:
        assert len(make_env(FIRST_IDS[module], split=split, **SCENES[module].kwargs).tasks) == tasks


# ---------------------------------------------------------------------- baselines


def test_every_environment_has_random_and_expert_and_the_expert_is_better() -> None:
    baselines = read_baselines(FOLDER)
    assert {row.env for row in baselines} == {spec.id for spec in ENVS}
    success = {(row.env, str(row.settings), row.agent): row.success for row in baselines}
    for (env, settings, agent), (mean, low, high) in success.items():
        assert 0 <= low <= mean <= high <= 1
        assert mean <= success[env, settings, "expert"][0], f"{agent} in {env}"
        assert (env, settings, "random") in success
    assert {row.agent for row in baselines} == {"random", "expert", *SHIPPED_MODELS}


def test_pages_show_every_number_of_the_file() -> None:
    for row in read_baselines(FOLDER):
        (page,) = [text for name, text in PAGES.items() if f"| `{row.env}`" in text and name != "README.md"]
        numbers = f"{100 * row.success[0]:.1f} [{100 * row.success[1]:.1f}, {100 * row.success[2]:.1f}]"
        assert any(
            line.startswith(f"| `{row.env}`") and f" {row.tasks} | {numbers} |" in line and row.agent in line
            for line in page.splitlines()
        ), row


def test_section_names_common_settings_once_and_others_in_the_row() -> None:
    half, zero = (0.5, 0.25, 0.75), (-0.0001, -1.0, 1.0)
    rows = [
        Baseline("TextA-v0", {"data": "made"}, "test", "random", None, 8, half, zero, 3.0),
        Baseline("TextA-v0", {"data": "made", "hops": 2}, "test", "m", "plain", 8, half, zero, 3.0),
    ]
    section = baselines_section(["TextA-v0"], rows)
    assert '`data="made"`' in section.partition("|")[0] and "greedily" in section
    assert "| `TextA-v0` | random | 8 | 50.0 [25.0, 75.0] | 0.00 [-1.00, 1.00] | 3.0 |" in section
    assert "| `TextA-v0`, `hops=2` | `m`, dialogue `plain` | 8 |" in section
    assert baselines_section(["TextB-v0"], rows) == ""


def test_measuring_without_a_folder_of_pages_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["envs", "--measure", str(tmp_path)])
    assert ended.value.code == 2
    assert "add --write docs/environments" in capsys.readouterr().err


# ---------------------------------------------------------------------- pictures


def test_every_environment_has_a_small_picture_that_its_page_shows() -> None:
    assert set(SCENES) == set(MODULES)
    stored = {path.name: path for path in (FOLDER / "pictures").iterdir()}
    assert set(stored) == {scene.file_name(module) for module, scene in SCENES.items()}
    for module, scene in SCENES.items():
        name = scene.file_name(module)
        assert stored[name].stat().st_size <= 40_000
        assert re.search(rf"!\[[^\]]{{20,}}\]\(pictures/{name}\)", PAGES[f"{module}.md"])


@pytest.mark.parametrize("module", MODULES)
def test_stored_picture_is_that_of_the_experts_episode(module: str) -> None:
    scene = SCENES[module]
    stored = (FOLDER / "pictures" / scene.file_name(module)).read_bytes()
    drawn = draw(FIRST_IDS[module], scene)
    if scene.is_board:  # Other versions of zlib compress to other bytes.
        assert np.array_equal(decode_png(stored), decode_png(drawn)), "run `make docs`"
    else:
        assert stored == drawn, "run `make docs`"


def test_transcript_shows_every_word_and_marks_actions() -> None:
    words = [f"word{number}" for number in range(60)]
    svg = transcript_svg(
        [("observation", " ".join(words)), ("action", "go <north> & look"), ("observation", "Done.")]
    )
    root = ElementTree.fromstring(svg)
    lines = [(line.get("class"), line.text) for line in root.iter() if line.tag.endswith("text")]
    shown = " ".join(text or "" for role, text in lines if role == "observation")
    assert shown.split() == [*words, "Done."]
    assert ("action", "> go <north> & look") in lines
    bottom = max(float(line.get("y") or 0) for line in root.iter() if line.tag.endswith("text"))
    assert bottom < float(root.get("height") or 0) and "prefers-color-scheme: dark" in svg


def test_transcript_shortens_long_observations() -> None:
    svg = transcript_svg([("observation", "\n".join("abcdefghij"))], max_lines=4)
    assert [line.text for line in ElementTree.fromstring(svg).iter() if line.tag.endswith("text")] == [*"abc", "…"]


def test_pages_and_pictures_of_a_new_folder_have_no_baselines(tmp_path: Path) -> None:
    written = write_pages(tmp_path / "pages", [spec for spec in ENVS if spec.module == "bandit"])
    assert {path.relative_to(tmp_path / "pages").as_posix() for path in written} == {
        "bandit.md",
        "README.md",
        "pictures/bandit.svg",
    }
    assert "## Baselines" not in (tmp_path / "pages" / "bandit.md").read_text(encoding="utf-8")


def test_classes_of_one_module_and_equal_names_have_pages_of_their_own() -> None:
    specs = [EnvSpec(f"{module}{cls}-v0", module, cls, "a summary") for module, cls in
             (("mine", "A"), ("mine", "B"), ("other", "A"))]  # fmt: skip
    assert [[spec.id for spec in group] for group in by_class([*specs, specs[0]])] == [
        ["mineA-v0", "mineA-v0"],
        ["mineB-v0"],
        ["otherA-v0"],
    ]
    with pytest.MonkeyPatch.context() as patch:
        for spec in specs:
            patch.setitem(registry, spec.id, registry["TextBandit-v0"])
        assert [name for name, _ in pages(specs)] == ["mine.A.md", "mine.B.md", "other.md", "README.md"]


def test_class_docstring_is_the_page() -> None:
    for module in MODULES:
        entry_point = registry[FIRST_IDS[module]].entry_point
        assert isinstance(entry_point, str)
        for line in (inspect.getdoc(load_env_creator(entry_point)) or "").splitlines():
            assert line in PAGES[f"{module}.md"]
