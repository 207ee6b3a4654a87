"""The pages of the recipes: complete, with up-to-date tables and with examples that the code computes."""

from __future__ import annotations

import doctest
import json
import re
import shutil
from functools import cache
from pathlib import Path

import pytest

import arboretum
from arboretum.cli import main
from arboretum.envs.errors import DataError
from arboretum.trainers.algorithms.recipes import RECIPES
from arboretum.trainers.study.recipe_pages import INDEX, generated_parts, replace_part, update_recipe_pages
from arboretum.trainers.study.recipe_sources import abbreviations, recipe_sources
from arboretum.trainers.study.reference_pages import reference_pages

FOLDER = Path(arboretum.__file__).parent / "docs" / "recipes"
PAGES = [f"{name}.md" for name in RECIPES]
SECTIONS = ["Equations", "Worked example", "Defaults", "Deviations", "Evidence", "Run it"]
_SETTING = re.compile(
    r"`((?:sampler|selector|rewards|credit|objective|overlong|grafting|critic|optimization)\.[a-z_.]+)(?:=[^`]*)?`"
)


def read(page: str) -> str:
    return (FOLDER / page).read_text(encoding="utf-8")


def rows(table: str) -> list[list[str]]:
    """Return the cells of a Markdown table, row by row, without the heading."""
    lines = table.splitlines()[2:]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def test_every_recipe_has_a_page_and_every_page_a_recipe() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {INDEX, *PAGES}


@pytest.mark.parametrize("page", [INDEX, *PAGES])
def test_generated_tables_are_up_to_date(page: str) -> None:
    for part, content in generated_parts()[page].items():
        text = replace_part(read(page), part, content, FOLDER / page)
        assert text == read(page), f"docs/recipes/{page}: run `make docs`"


@pytest.mark.parametrize("page", PAGES)
def test_page_has_all_sections_in_order(page: str) -> None:
    assert re.findall(r"^## (.*)$", read(page), re.MULTILINE) == SECTIONS


@pytest.mark.parametrize("page", PAGES)
def test_worked_example_has_the_numbers_that_the_code_computes(page: str) -> None:
    assert "from arboretum.trainers.algorithms." in read(page)
    test = doctest.DocTestParser().get_doctest(read(page), {}, page, str(FOLDER / page), 0)
    report: list[str] = []
    result = doctest.DocTestRunner().run(test, out=report.append)
    assert result.attempted >= 3 and not result.failed, "".join(report)


def test_equations_are_in_the_form_that_github_and_sphinx_render() -> None:
    for page in (INDEX, *PAGES):
        text = re.sub(r"```.*?```", "", read(page), flags=re.DOTALL)
        blocks = re.findall(r"^\$\$\n(.*?)\n\$\$$", text, re.DOTALL | re.MULTILINE)
        assert len(blocks) * 2 == text.count("$$"), (
            f"{page}: an equation begins and ends with $$ on a line of its own"
        )
        assert blocks or "#equations" in text
        inline = re.sub(r"\$\$.*?\$\$", "", re.sub(r"`[^`\n]*`", "", text), flags=re.DOTALL)
        assert inline.count("$") % 2 == 0, f"{page}: a $ has no partner"
        for formula in re.findall(r"\$([^$]*)\$", inline):
            assert formula == formula.strip() and "|" not in formula, f"{page}: ${formula}$"


# ---------------------------------------------------------------------- settings


@cache
def listed_settings() -> set[str]:
    listed = set(re.findall(r"^\| `([a-z_.]+)` \|", dict(reference_pages())["settings.md"], re.MULTILINE))
    return listed | {f"{part}.name" for part in ("sampler", "selector", "credit")}


@pytest.mark.parametrize("page", [INDEX, *PAGES])
def test_every_setting_that_a_page_names_exists(page: str) -> None:
    named = set(_SETTING.findall(read(page)))
    assert len(named) >= (3 if page == INDEX else 10) and named <= listed_settings()


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_setting_in_which_a_recipe_differs_has_its_source(recipe: str) -> None:
    table = generated_parts()[f"{recipe}.md"]["defaults"]
    without = [cells[0] for cells in rows(table) if not cells[3] and ".name" not in cells[0]]
    assert without == [], f"recipes.py: add the source of {', '.join(without)} of {recipe} in a comment"


def test_sources_follow_bases_replaced_parts_and_constants() -> None:
    assert recipe_sources("starpo")["sampler.reply_tokens"] == "RAGEN code"  # in a constant
    assert recipe_sources("grpo")["objective.kl.estimator"] == "arXiv:2402.03300, eq. 4"
    grove = recipe_sources("grove")
    assert grove["objective.kl.estimator"] == "arXiv:2402.03300, eq. 4"  # of its base
    assert grove["objective.aggregation"].startswith("GROVE: an advantage belongs to a turn")  # lines above
    assert "credit.singleton" not in grove
    t_star = recipe_sources("t_star_gigpo")
    assert t_star["sampler.prompts"].startswith("T-STAR") and t_star["sampler.reply_tokens"] == "GiGPO, code"
    assert t_star["credit.omega"] == "GiGPO eq. 8; code"
    assert not [path for path in t_star if path.startswith(("objective.kl.", "rewards.", "credit.anchor"))]


def test_table_of_defaults_shows_value_default_and_source() -> None:
    found = {cells[0]: cells[1:] for cells in rows(generated_parts()["starpo_s.md"]["defaults"])}
    assert found["`objective.clip_high`"] == ["`0.28`", "`0.2`", "RAGEN app. D"]
    assert found["`selector.name`"] == ["`uncertainty`", "", ""]
    assert found["`selector.amount`"][1] == "", "equal to the default of the selector"
    temperature = rows(generated_parts()["dapo_tstar.md"]["defaults"])
    assert ["`sampler.temperature.end`", "`0.5`", "`1.0`"] in [cells[:3] for cells in temperature]


def test_abbreviations_of_the_sources_are_explained() -> None:
    assert {"RAGEN", "verl", "Dr. GRPO", "T-STAR", "GROVE"} <= set(abbreviations())
    assert [cells[0] for cells in rows(generated_parts()[INDEX]["sources"])] == list(abbreviations())


# ---------------------------------------------------------------------- the command


def test_command_writes_changed_tables_again_and_keeps_the_text(tmp_path: Path) -> None:
    folder = tmp_path / "recipes"
    shutil.copytree(FOLDER, folder)
    page = folder / "grpo.md"
    page.write_text(read("grpo.md").replace("| `1e-06` |", "| `3` |"), encoding="utf-8")
    with pytest.raises(SystemExit) as ended:
        main(["docs", "--write", str(tmp_path / "reference"), "--recipes", str(folder)])
    assert ended.value.code == 0
    assert {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()} == {
        name: read(name) for name in (INDEX, *PAGES)
    }


def test_page_without_marks_and_missing_page_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "recipes"
    shutil.copytree(FOLDER, folder)
    (folder / "ppo.md").write_text("# PPO\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"ppo\.md: must have <!-- generated: defaults"):
        update_recipe_pages(folder)
    (folder / "ppo.md").unlink()
    with pytest.raises(DataError, match=r"ppo\.md: is missing; every recipe has a page"):
        update_recipe_pages(folder)


def test_values_in_the_tables_are_those_of_the_recipes() -> None:
    for name, recipe in RECIPES.items():
        found = {
            cells[0].strip("`"): cells[1].strip("`") for cells in rows(generated_parts()[f"{name}.md"]["defaults"])
        }
        assert json.loads(found["optimization.lr"]) == recipe.optimization.lr
        assert found["credit.name"] == recipe.credit.name
