"""Help and tables in narrow terminals: nothing is wider, and neither names nor numbers are cut."""

from __future__ import annotations

import re
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

import arboretum
from arboretum import cli
from arboretum.agents.reference import RandomAgent
from arboretum.cli import main
from arboretum.envs.registry import ENVS
from arboretum.envs.searchqa.downloads import DATA_SETS
from arboretum.eval.table import fit_results

WIDTHS = (40, 60, 80)
HELP = sorted(path.stem for path in (Path(__file__).parent / "help").glob("*.txt"))


Output = Callable[..., str]


@pytest.fixture
def output(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Output:
    """Function that returns the output of a command in a terminal of a width."""

    def run(width: int, *arguments: str) -> str:
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setattr(cli, "console", Console(highlight=False))
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        assert ended.value.code == 0
        return capsys.readouterr().out

    return run


def too_wide(text: str, width: int) -> list[str]:
    return [line for line in text.splitlines() if len(line) > width]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("command", HELP)
def test_help_is_not_wider_than_the_terminal(command: str, width: int, output: Output) -> None:
    text = output(width, *(command.split("-") if command != "arboretum" else ()), "--help")
    assert text.startswith("usage: arboretum") and too_wide(text, width) == []


def test_folded_usage_keeps_options_together_and_loses_nothing(output: Output) -> None:
    wide, narrow = output(300, "compare", "--help"), output(40, "compare", "--help")
    first = wide.partition("\n\n")[0]
    lines = narrow.partition("\n\n")[0].splitlines()
    assert " ".join(line.strip() for line in lines) == first.strip() and len(lines) > 1
    assert all(line.count("[") == line.count("]") for line in lines)


@pytest.mark.parametrize("width", WIDTHS)
def test_lists_show_their_names_in_full(width: int, output: Output) -> None:
    listed = output(width, "envs")
    assert too_wide(listed, width) == [] and all(spec.id in listed.split() for spec in ENVS)
    sets = output(width, "data", "list")
    assert too_wide(sets, width) == [] and all(name in sets.split() for name in DATA_SETS)
    assert "…" not in listed + sets


def test_results_show_every_number_at_every_width(
    tmp_path: Path, output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ("eval", "quick", "--workers", "1", "--out", "run")
    texts = {width: output(width, *arguments) for width in (120, *WIDTHS)}
    rates = set(re.findall(r"\d+\.\d to +\d+\.\d", texts[120]))
    assert len(rates) >= 5
    for width, text in texts.items():
        assert too_wide(text, width) == [] and "…" not in text
        flat = re.sub(r"to\s+", "to ", text)
        assert all(re.sub(r"to\s+", "to ", rate) in flat for rate in rates), width


@pytest.mark.parametrize("width", (*WIDTHS, 200))
def test_long_names_part_no_word_and_no_number_from_its_name(
    width: int, tmp_path: Path, output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    agent, entry = "agent_with_a_rather_long_name", "lake with a rather long name"
    path = Path("repeats.yaml")
    path.write_text(f"name: repeats\nentries: [{{name: {entry}, env: TextFrozenLake-v0, tasks: 2, repeats: 3}}]\n")
    named = RandomAgent()
    named.name = agent
    arboretum.evaluate(str(path), [named, "expert"], out="run")
    for text in (output(width, "report", "run"), output(width, "decisions", "run")):
        assert agent in text and too_wide(text, width) == []
        numbers = (
            r"(return|success|optimal|n|flips|fatal at|pass[@^]\d)\s+[-–\d]|\d\s+(%|extra steps|refused|steps)"
        )
        parted = [found[0] for found in re.finditer(numbers, text) if "\n" in found[0]]
        assert parted == []


def test_usual_names_are_not_folded_at_80_columns(tmp_path: Path) -> None:
    agent = RandomAgent()
    agent.name = "no_think:sapling"
    result = arboretum.evaluate("TextFrozenLake-v0", agent, limit=100)
    shown = StringIO()
    Console(file=shown, width=80).print(fit_results(result.summary, 80))
    (line,) = [line for line in shown.getvalue().splitlines() if "TextFrozenLake-v0" in line]
    assert "no_think:sapling" in line and too_wide(shown.getvalue(), 80) == []
