"""`arboretum compare` of evaluation runs: from played episodes to the table, the page and the data."""

from __future__ import annotations

import html
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import ttest_rel

from arboretum.cli import main
from arboretum.envs.errors import ConfigurationError, DataError
from arboretum.eval.comparison.analysis import Difference, compare_evaluations
from arboretum.eval.comparison.page import write_page
from arboretum.eval.comparison.settings import differing_settings
from arboretum.eval.decisions import EpisodeDecisions, read_labels
from arboretum.eval.statistics import mcnemar, paired
from arboretum.eval.statistics.crossed import holm
from arboretum.eval.store import read_results
from arboretum.eval.summary import load_run

Command = Callable[..., str]

SUITE = """
name: small
entries:
  - {name: Lake, env: TextFrozenLake-v0, split: test, tasks: 12, repeats: 2}
  - {name: Bandit, env: TextBandit-v0, split: test, tasks: 8}
"""


@pytest.fixture
def runs(command: Command, tmp_path: Path) -> tuple[str, str]:
    """Run of the random agent, and one of the expert, on a suite of two entries."""
    Path("small.yaml").write_text(SUITE)
    for agent in ("random", "expert"):
        command("eval", "small.yaml", "--agent", agent, "--no-references", "--out", agent, "--workers", 1)
    return "random", "expert"


def outcomes(folder: str, entry: str, agent: str | None = None) -> dict[str, list[bool]]:
    """Return the outcomes of an agent's episodes of each task; of the only one without a name."""
    found: dict[str, list[bool]] = {}
    for key, result in sorted(read_results(Path(folder)).latest.items()):
        if key.entry == entry and agent in (None, key.agent):
            found.setdefault(key.task, []).append(result.success)
    return found


def successes(*runs: str, **options: Any) -> list[Difference]:
    """Return the differences in success between runs."""
    comparison = compare_evaluations([Path(run) for run in runs], **options)
    return [row for row in comparison.differences if row.measure == "success"]


# ---------------------------------------------------------------------- the whole way


def test_two_agents_in_two_folders_are_compared_from_the_command_line(
    command: Command, runs: tuple[str, str]
) -> None:
    text = command("compare", *runs, "--detect", 5, "--out", "page.html")
    assert max(map(len, text.splitlines())) <= 80
    assert re.search(r"^ A +random ", text, re.MULTILINE) and re.search(r"^ B +expert ", text, re.MULTILINE)
    assert "Common randomness: the episodes of shared tasks have the same seeds (A and B)." in text
    data = json.loads(Path("page.json").read_text())
    assert [agent["name"] for agent in data["agents"]] == ["random", "expert"] and data["left_out"] == []
    found = [row for row in data["differences"] if row["measure"] == "success"]
    rows = {row["entry"]: row for row in found}
    assert list(rows) == ["Lake", "Bandit", None]
    for entry in ("Lake", "Bandit"):
        a, b = outcomes("expert", entry), outcomes("random", entry)
        expected = paired([a[task] for task in sorted(a)], [b[task] for task in sorted(a)])
        assert rows[entry]["result"]["difference"] == pytest.approx(expected.difference._asdict())
        assert rows[entry]["result"]["p_value"] == pytest.approx(expected.p_value)
    single = outcomes("random", "Bandit")
    assert rows["Bandit"]["result"]["p_value"] == mcnemar(sum(not one[0] for one in single.values()), 0)
    values = [rows[entry]["result"]["difference"]["value"] for entry in rows]
    assert values[2] == pytest.approx((values[0] + values[1]) / 2)
    p_values = [row["result"]["p_value"] for row in found]
    assert [row["adjusted"] for row in found] == pytest.approx(holm(p_values))
    assert rows["Lake"]["needed"] > 0 and data["wanted"] == 0.05
    lake = data["agents"][0]["rates"][0]
    tries = outcomes("random", "Lake").values()
    assert lake["repeats"]["flips"]["value"] == pytest.approx(sum(x != y for x, y in tries) / 12)
    assert lake["repeats"]["pass_at_k"]["2"]["value"] == pytest.approx(sum(map(any, tries)) / 12)
    assert lake["repeats"]["pass_all_k"]["2"]["value"] == pytest.approx(sum(map(all, tries)) / 12)
    assert command("compare", *runs, "--out", "only.json").endswith("Comparison: only.json\n")
    assert [path.name for path in Path().glob("only.*")] == ["only.json"]
    page = Path("page.html").read_text(encoding="utf-8")
    value = f"{100 * values[0]:+.1f}"
    assert value in text and value in page and "pass^2" in text and "pass^2" in page


def test_scores_are_compared_beside_success(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ARBORETUM_DATA", raising=False)
    Path("shop.yaml").write_text(
        "entries: [{name: Shop, env: TextWebShop-v0, split: test, tasks: 6, repeats: 2, score: score}]"
    )
    for agent in ("random", "expert"):
        command("eval", "shop.yaml", "--agent", agent, "--no-references", "--out", agent, "--workers", 1)
    text = command("compare", "random", "expert", "--out", "page.html")
    scores: dict[str, dict[str, list[float]]] = {"random": {}, "expert": {}}
    for agent, tasks in scores.items():
        for key, result in read_results(Path(agent)).latest.items():
            tasks.setdefault(key.task, []).append(100 * (result.details.get("score") or 0.0))
    tasks = sorted(scores["random"])
    differences = [np.mean(scores["expert"][task]) - np.mean(scores["random"][task]) for task in tasks]
    expected = ttest_rel(differences, np.zeros(6)).confidence_interval()
    assert "difference in score" in text and "Paired differences in score" in Path("page.html").read_text()
    rows = json.loads(Path("page.json").read_text())["differences"]
    (row,) = (row for row in rows if row["measure"] == "score")
    assert (row["entry"], row["smallest"]) == ("generated shop: Shop", None)
    found = row["result"]["difference"]
    assert found == pytest.approx({"value": np.mean(differences), "low": expected.low, "high": expected.high})
    assert f"{found['value']:+.1f}" in text


def test_decisions_are_compared_where_both_runs_have_labels(command: Command, runs: tuple[str, str]) -> None:
    per_task: dict[str, dict[str, list[float]]] = {"random": {}, "expert": {}}
    for agent, tasks in per_task.items():
        labels = read_labels(Path(agent), load_run(Path(agent)).results.values())
        for key, found in labels.items():
            assert isinstance(found, EpisodeDecisions)
            if key.entry == "Lake":
                tasks.setdefault(key.task, []).append(100 * found.optimal / found.judged)
    text = command("compare", *runs, "--out", "page.html")
    rows = {
        (row["measure"], row["entry"]): row for row in json.loads(Path("page.json").read_text())["differences"]
    }
    row = rows["optimal decisions, points", "Lake"]
    random, expert = ([np.mean(tasks[task]) for task in sorted(tasks)] for tasks in per_task.values())
    assert row["means"] == pytest.approx([np.mean(expert), np.mean(random)]) and row["means"][0] == 100
    interval = ttest_rel(expert, random).confidence_interval()
    assert row["result"]["difference"]["low"] == pytest.approx(interval.low)
    assert rows["regret in steps per episode", "Lake"]["result"]["difference"]["value"] < 0
    # Probabilities, scores and payments have no mean in common.
    assert ("regret in value per episode", "Lake") in rows and ("regret in value per episode", None) not in rows
    assert "difference in optimal decisions, points" in text and "shortest known" in text

    Path("random/decisions.jsonl").unlink()
    assert "optimal decisions" not in command("compare", *runs)


def test_fatal_and_repeated_actions_are_compared(command: Command, tmp_path: Path) -> None:
    found: dict[str, dict[str, EpisodeDecisions]] = {}
    for seed in ("0", "1"):
        arguments = ["TextSokoban-v0", "--agent", "random", "--no-references", "--limit", "12", "--seed", seed]
        command("eval", *arguments, "--workers", 1, "--out", seed)
        labels = read_labels(Path(seed), load_run(Path(seed)).results.values())
        found[seed] = {key.task: one for key, one in labels.items() if isinstance(one, EpisodeDecisions)}
    text = command("compare", "0", "1", "--agent", "random", "--out", "page.html")
    rows = {row["measure"]: row for row in json.loads(Path("page.json").read_text())["differences"]}

    fatal = {seed: [100.0 * (one.first_fatal is not None) for one in found[seed].values()] for seed in found}
    assert rows["episodes with a fatal decision, points"]["means"] == pytest.approx(
        [np.mean(fatal["1"]), np.mean(fatal["0"])]
    )
    places = {
        seed: {task: one.first_fatal for task, one in found[seed].items() if one.first_fatal} for seed in found
    }
    both = sorted(places["0"].keys() & places["1"].keys())
    row = rows["number of the first fatal action"]
    assert 2 < len(both) < 12 and row["result"]["n"] == len(both)
    assert row["result"]["difference"]["value"] == pytest.approx(
        np.mean([places["1"][task] - places["0"][task] for task in both])
    )
    repeated = {
        seed: np.mean([100 * np.mean([d.repeated for d in one.decisions]) for one in found[seed].values()])
        for seed in found
    }
    row = rows["repeated actions, points"]
    assert row["means"] == pytest.approx([repeated["1"], repeated["0"]])
    assert "difference in number of the first fatal action" in text
    page = Path("page.html").read_text(encoding="utf-8")
    assert "where both agents have a fatal action" in page and "repeated actions, points" in page


def test_comparison_of_decisions_that_are_labelled_in_part_says_so(
    command: Command, runs: tuple[str, str]
) -> None:
    path = Path("expert") / "decisions.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:5]))
    Path("random/decisions.jsonl").unlink()
    text = command("compare", *runs, "--out", "page.html", width=300)
    sentences = [
        "A: 32 of 32 episodes have no labels; `arboretum decisions random` labels them.",
        "B: 27 of 32 episodes have no labels, among them all of expert on Bandit; `arboretum decisions"
        " expert` labels them.",
    ]
    page = html.unescape(Path("page.html").read_text(encoding="utf-8"))
    for sentence in sentences:
        assert sentence in text and sentence in page
    assert json.loads(Path("page.json").read_text())["left_out"] == sentences


def test_order_of_the_folders_is_the_direction_of_the_difference(runs: tuple[str, str]) -> None:
    forward, backward = successes(*runs)[0].result, successes(*reversed(runs))[0].result
    assert forward.difference.value == -backward.difference.value > 0
    assert forward.p_value == backward.p_value


def test_negative_intervals_have_minus_signs(command: Command, runs: tuple[str, str]) -> None:
    text = command("compare", *reversed(runs), "--out", "page.html")
    interval = re.compile(r"−\d+\.\d to −\d+\.\d")
    assert interval.search(text) and interval.search(Path("page.html").read_text())
    assert not re.search(r" -\d", text)


def test_resumed_run_is_compared_as_far_as_it_is_played(command: Command, runs: tuple[str, str]) -> None:
    whole = command("compare", *runs)
    file = Path("expert/episodes.jsonl")
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:10]))
    text = " ".join(command("compare", *runs).split())
    assert "B is incomplete: 10 of 32 episodes." in text
    count = len(outcomes("expert", "Lake"))
    assert 0 < count < 12 and not outcomes("expert", "Bandit")
    assert f"Lake: B has {count} of 12 tasks; the others are left out of pairs." in text
    assert "Bandit: B has no complete episode, and is left out of its pairs." in text
    (row,) = successes(*runs)
    assert (row.entry, row.result.n) == ("Lake", count)
    command("eval", "small.yaml", "--agent", "expert", "--no-references", "--out", "expert", "--workers", 1)
    assert command("compare", *runs) == whole


def test_shared_tasks_of_a_longer_and_a_shorter_run_are_paired(command: Command) -> None:
    for agent, limit in (("random", 6), ("expert", 9)):
        command("eval", "TextFrozenLake-v0", "--agent", agent, "--no-references", "--limit", limit, "--out", agent)
    text = " ".join(command("compare", "random", "expert").split())
    assert "TextFrozenLake-v0: A has 6 of 9 tasks; the others are left out of pairs." in text
    (row,) = successes("random", "expert")
    assert row.result.n == 6


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_comparison_fits_the_terminal_and_cuts_no_number(
    width: int, command: Command, runs: tuple[str, str]
) -> None:
    wide, text = command("compare", *runs, width=160), command("compare", *runs, width=width)
    assert max(map(len, text.splitlines())) <= width and "…" not in text
    found = set(re.findall(r"[+−]\d+\.\d", wide))
    assert len(found) >= 3 and found <= set(re.findall(r"[+−]\d+\.\d", text))


# ---------------------------------------------------------------------- seeds, temperatures, names


@pytest.fixture(scope="module")
def stored_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of runs of the sapling: at two temperatures, and at the first of them with another seed."""
    folder = tmp_path_factory.mktemp("runs")
    for name, temperature, seed in (("cold", 0.5, 0), ("hot", 1.5, 0), ("cold-1", 0.5, 1)):
        arguments = ["eval", "TextFrozenLake-v0", "--agent", "no_think", "--model", "sapling", "--limit", "8"]
        arguments += ["--temperature", str(temperature), "--max-tokens", "16", "--seed", str(seed)]
        with pytest.raises(SystemExit):
            main([*arguments, "--out", str(folder / name)])
    return folder


@pytest.fixture
def temperatures(command: Command, stored_runs: Path, tmp_path: Path) -> list[str]:
    shutil.copytree(stored_runs, tmp_path, dirs_exist_ok=True)
    return ["cold", "hot", "cold-1"]


def test_agents_of_one_name_have_the_names_of_their_runs_and_their_settings(
    temperatures: list[str], command: Command
) -> None:
    comparison = compare_evaluations([Path(one) for one in temperatures])
    names = [agent.name for agent in comparison.agents]
    assert names == [f"no_think:sapling ({run})" for run in temperatures]  # the references are left out
    assert comparison.settings == {"sampling.temperature": ["0.5", "1.5", "0.5"], "seed": ["0", "0", "1"]}
    assert comparison.randomness == [
        "Common randomness: the episodes of shared tasks have the same seeds (A and B).",
        "No common randomness: the tasks are the same, but the seeds of their episodes are not"
        " (A and C; B and C).",
    ]
    text = " ".join(command("compare", *temperatures).split())
    assert "sampling.temperature" in text and "B − A: the value of B minus that of A, paired by task." in text
    assert "Mean over tasks of the share of an episode's actions that were optimal" in text


def test_runs_with_other_seeds_are_pooled_as_repeats(temperatures: list[str], command: Command) -> None:
    comparison = compare_evaluations([Path(one) for one in temperatures], pool=True)
    cold, hot = comparison.agents
    assert (cold.name, hot.name) == ("no_think:sapling (cold + cold-1)", "no_think:sapling (hot)")
    assert (cold.episodes, cold.expected, hot.episodes) == (16, 16, 8) and list(cold.runs) == ["cold", "cold-1"]
    assert cold.rates[0].repeats is not None and list(cold.rates[0].repeats.pass_at_k) == [2]
    (row,) = successes(*temperatures, pool=True)
    first, second, other = (
        outcomes(run, "TextFrozenLake-v0", "no_think:sapling") for run in ("cold", "cold-1", "hot")
    )
    tasks = sorted(first)
    expected = paired([other[task] for task in tasks], [first[task] + second[task] for task in tasks])
    assert row.result == expected
    assert comparison.randomness[0].startswith("Common randomness in part")
    assert (comparison.settings["seed"], comparison.settings["repeats"]) == (["0, 1", "0"], ["2", "1"])

    shutil.copytree("cold", "copy")
    error = command("compare", "cold", "copy", "hot", "--pool", status=2)
    assert "cold and copy have the same episodes of no_think:sapling: --pool takes runs with different" in error


def test_reference_with_equal_episodes_in_several_runs_is_pooled_once(
    temperatures: list[str], command: Command
) -> None:
    runs = [Path(one) for one in ("cold", "cold-1", "hot")]
    random, *others = compare_evaluations(runs, ["random", "no_think:sapling"], pool=True).agents
    assert (random.name, random.episodes, list(random.runs)) == ("random", 16, ["cold", "cold-1"])
    assert [one.episodes for one in others] == [16, 8]
    error = command("compare", "cold", "cold-1", "--agent", "random", "--pool", status=2)
    assert "needs at least two agents, and the runs have random to compare" in error


def test_reference_with_equal_episodes_in_several_runs_is_taken_once(temperatures: list[str]) -> None:
    chosen = compare_evaluations([Path("cold"), Path("hot")], ["random", "no_think:sapling"])
    assert [agent.name for agent in chosen.agents] == [
        "random",
        "no_think:sapling (cold)",
        "no_think:sapling (hot)",
    ]
    other_seed = compare_evaluations([Path("cold"), Path("cold-1")], ["random"])
    assert [agent.name for agent in other_seed.agents] == ["random (cold)", "random (cold-1)"]


def test_settings_that_depend_on_the_entry_name_it() -> None:
    from types import SimpleNamespace

    from arboretum.eval.comparison.participants import Participant, Source
    from arboretum.eval.suite import Entry, Suite

    def participant(temperatures: tuple[float, float]) -> Participant:
        suite = Suite("s", "", (Entry("E", "X"), Entry("F", "Y")))
        settings = {name: {"sampling": {"temperature": t}} for name, t in zip("EF", temperatures, strict=True)}
        manifest: dict[str, Any] = {"settings": {"m": settings}, "identities": {"m": {"weights": "0" * 64}}}
        run: Any = SimpleNamespace(suite=suite, manifest=manifest)
        return Participant("", "m", "m", [Source(Path("r"), "r", run)], {}, 0, 0)

    assert differing_settings([participant((1.0, 1.0)), participant((1.0, 0.5))]) == {
        "sampling.temperature (F)": ["1.0", "0.5"]
    }
    assert differing_settings([participant((1.0, 1.0)), participant((0.5, 0.5))]) == {
        "sampling.temperature": ["1.0", "0.5"]
    }


# ---------------------------------------------------------------------- mistakes


def test_folders_that_cannot_be_compared_are_refused_in_one_sentence(
    command: Command, runs: tuple[str, str], tmp_path: Path
) -> None:
    from arboretum.trainers.algorithms.recipes import RECIPES
    from arboretum.trainers.config.run import TrainingConfig
    from arboretum.trainers.config.serialize import to_plain
    from arboretum.trainers.config.settings import EnvConfig

    training = TrainingConfig(RECIPES["grpo"], EnvConfig("TextFrozenLake-v0"), "M", Path("trained"))
    for folder in ("trained", "empty"):
        Path(folder).mkdir()
    Path("trained/run.json").write_text(json.dumps(to_plain(training)))
    command("eval", "TextBandit-v0", "--no-references", "--limit", 4, "--out", "bandit")
    for name, seed in (("left", 5), ("right", 5)):
        size = 4 if name == "left" else 5
        Path(f"{name}.yaml").write_text(
            f"name: lakes\nentries: [{{name: L, env: TextFrozenLake-v0, tasks: 4, kwargs: {{size: {size}}}}}]"
        )
        command("eval", f"{name}.yaml", "--agent", "random", "--no-references", "--seed", seed, "--out", name)
    cases = [
        (["random"], "name the folders of at least two different runs"),
        (["random", "random/"], "name the folders of at least two different runs"),
        (["random", "exprt"], "exprt: does not exist; name folders of runs"),
        (["random", "empty"], "empty: holds no run, but random an evaluation run; compare runs of one kind."),
        (["random", "trained"], "trained: holds a training run, but random an evaluation run"),
        (["random", "bandit"], "bandit: is a run of suite 'TextBandit-v0', but random is one of 'small'"),
        (["left", "right"], "right: has other tasks for 'L' than left (kwargs.size was 4 and is 5)"),
        ([*runs, "--agent", "rndom"], "agent 'rndom'"),
        (
            [*runs, "--agent", "expert"],
            "a comparison needs at least two agents, and the runs have expert to compare",
        ),
        ([*runs, "--detect", "0"], "--detect must be above 0 and at most 100 percentage points, not 0."),
        (["trained", "empty", "--pool"], "--agent, --pool and --detect are for evaluation runs"),
    ]
    for arguments, message in cases:
        error = command("compare", *arguments, status=2)
        assert message in error and error.startswith("arboretum: ") and error.count("\n") == 1, error


def test_identical_runs_are_refused_as_identical(command: Command, runs: tuple[str, str]) -> None:
    shutil.copytree("random", "again")
    error = command("compare", "random", "again", status=2)
    assert "the episodes of random are identical in these runs, so that they were counted once;" in error


def test_runs_without_episodes_are_named(command: Command, runs: tuple[str, str]) -> None:
    Path("expert/episodes.jsonl").write_bytes(b"")
    assert command("compare", *runs, status=2).startswith("arboretum: expert: has no complete episodes;")


def test_runs_without_a_shared_task_are_refused(command: Command, runs: tuple[str, str]) -> None:
    for run, kept in zip(runs, ("Lake", "Bandit"), strict=True):
        file = Path(run, "episodes.jsonl")
        lines = file.read_bytes().splitlines(keepends=True)
        file.write_bytes(b"".join(line for line in lines if f'"entry":"{kept}"'.encode() in line))
    error = command("compare", *runs, status=2)
    assert "no two of their agents completed a task in common" in error and error.count("\n") == 1


def test_other_data_under_the_same_names_is_refused(runs: tuple[str, str]) -> None:
    for name in ("run.json", ".run.json"):
        manifest = json.loads(Path("expert", name).read_text())
        manifest["tasks"]["Lake"] = "0" * 16
        Path("expert", name).write_text(json.dumps(manifest))
    with pytest.raises(ConfigurationError, match=r"expert: has other tasks for 'Lake' than random \(other data\)"):
        compare_evaluations([Path(one) for one in runs])
    with pytest.raises(DataError, match="holds no run"):
        compare_evaluations([Path("random"), Path("nowhere")])


def test_other_data_is_refused_in_runs_of_other_sizes(command: Command, tmp_path: Path) -> None:
    """The tasks of both folders have the same names; their digests are of different numbers of tasks."""
    rows = ["#" * 10, *["#  $.    #"] * 4, *["#        #"] * 4, "#" * 10]
    for folder, first in (("first", 1), ("second", 2)):
        path = tmp_path / folder / "boxoban" / "unfiltered" / "test"
        path.mkdir(parents=True)
        levels = [
            "\n".join([*rows[:6], f"#{'@':>{first + n}}{'#':>{9 - first - n}}", *rows[7:]]) for n in range(4)
        ]
        text = "".join(f"; {n}\n{level}\n\n" for n, level in enumerate(levels))
        (path / "000.txt").write_text(text, encoding="utf-8")
    for folder, limit, seed, out in (
        ("first", 2, 0, "a"),
        ("second", 3, 0, "b"),
        ("second", 3, 1, "b-1"),
        ("first", 3, 1, "c"),
    ):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("ARBORETUM_DATA", str(tmp_path / folder))
            tasks = ("--split", "unfiltered/test", "--limit", limit, "--seed", seed)
            options = ("--env-arg", "max_steps=5", "--no-references", "--label-seconds", 0, "--out", out)
            command("eval", "TextBoxoban-v0", *tasks, "--agent", "random", *options)
    for other in ("b", "b-1"):
        error = command("compare", "a", other, status=2)
        assert f"{other}: has other tasks for 'TextBoxoban-v0' than a (other data)" in error
    command("compare", "a", "c")


LIVE = """
import itertools
from arboretum.envs.frozenlake.env import FrozenLake

class Live(FrozenLake):
    "Lakes with a counter above them, and as many steps as their number says."

    openings = itertools.count()

    def __init__(self):
        super().__init__(split="test", max_steps=5)
        self.tasks = [f"test/{number}" for number in range(6)]

    def reset(self, **options):
        observation, info = super().reset(**options)
        self.max_steps = 5 + int(self.task[-1])
        return f"{next(self.openings)} visitors\\n{observation}", info
"""


def test_runs_on_tasks_with_live_observations_and_own_limits_are_resumed_and_compared(command: Command) -> None:
    Path("live_lakes.py").write_text(LIVE)
    for out, limit in (("four", 4), ("four", 4), ("six", 6)):
        command("eval", "live_lakes:Live", "--agent", "random", "--no-references", "--limit", limit, "--out", out)
    (facts,) = json.loads(Path("six", "run.json").read_text())["entries"].values()
    assert facts["max_steps"] == "by task"
    assert [len(one.runs) for one in compare_evaluations([Path("four"), Path("six")]).agents] == [1, 1]


def test_runs_with_other_limits_on_turns_are_not_pooled(command: Command, tmp_path: Path) -> None:
    for out, turns, seed in (("short", 2, 0), ("long", 40, 1)):
        entry = f"{{name: Lake, env: TextFrozenLake-v0, split: test, tasks: 8, max_turns: {turns}}}"
        Path("lake.yaml").write_text(f"entries: [{entry}]\n")
        command("eval", "lake.yaml", "--agent", "random", "--no-references", "--seed", seed, "--out", out)
    comparison = compare_evaluations([Path("short"), Path("long")], pool=True)
    assert [len(one.runs) for one in comparison.agents] == [1, 1]


def test_runs_with_the_same_limits_by_task_are_pooled(command: Command, planbench: Path) -> None:
    arguments = ["TextBlocksworld-v0", "--split", "planbench", "--env-arg", f"data={planbench}", "--workers", 1]
    for out, limit, seed in (("few", 1, 0), ("all", 2, 1)):
        command("eval", *arguments, "--agent", "random", "--limit", limit, "--seed", seed, "--out", out)
    comparison = compare_evaluations([Path("few"), Path("all")], ["random", "expert"], pool=True)
    assert [(one.name, list(one.runs)) for one in comparison.agents] == [
        ("random", ["few", "all"]),
        ("expert", ["few", "all"]),
    ]


# ---------------------------------------------------------------------- the page

HOSTILE = "<script>alert(1)</script>[red]x[/red]"


@pytest.fixture
def hostile(runs: tuple[str, str]) -> Path:
    """Page of a comparison whose suite and agent have hostile names."""
    for run in runs:
        for name in ("run.json", ".run.json"):
            manifest = json.loads(Path(run, name).read_text())
            manifest["suite"]["name"] = HOSTILE
            Path(run, name).write_text(json.dumps(manifest))
    write_page(compare_evaluations([Path(one) for one in runs], detect=10), Path("page.html"))
    return Path("page.html")


def test_page_escapes_names_needs_no_network_and_has_captions(hostile: Path) -> None:
    text = hostile.read_text(encoding="utf-8")
    assert "<script" not in text and "&lt;script&gt;" in text
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:)?//""", text) and "url(" not in text
    tables = re.findall(r"<table.*?</table>", text, re.S)
    assert len(tables) == 9  # agents, differences in success and five of decisions, repeats, settings
    for table in tables:
        assert re.search(r"<caption[^>]*>[^<]+</caption>", table)
        assert not re.search(r"<th(?![^>]*scope=)", table.replace("<thead", ""))


def test_page_names_an_agent_without_complete_episodes(command: Command, runs: tuple[str, str]) -> None:
    command("eval", "small.yaml", "--agent", "random", "expert", "--timeout", "1e-9", "--out", "none", status=1)
    write_page(compare_evaluations([Path(one) for one in (*runs, "none")]), Path("page.html"))
    table = re.findall(r'<table id="agents".*?</table>', Path("page.html").read_text(encoding="utf-8"), re.S)[0]
    assert "<strong>C</strong> random (none)" in table and "<strong>D</strong> expert (none)" in table


@pytest.mark.heavy
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_page_is_legible_and_fits_the_window(hostile: Path, browser: Any, width: int, scheme: str) -> None:
    from selenium.webdriver.common.by import By

    from support.pages import low_contrasts, set_width

    set_width(browser, width, scheme)
    browser.get(hostile.resolve().as_uri())
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    for table in browser.find_elements(By.CSS_SELECTOR, "table"):
        card = table.find_element(By.XPATH, "..")
        assert browser.execute_script("return arguments[0].scrollWidth <= arguments[0].clientWidth", card)
    assert len(browser.find_elements(By.CSS_SELECTOR, ".mark")) == 3
    assert low_contrasts(browser) == {}


# ---------------------------------------------------------------------- common randomness, repeats in the summary


def test_seed_of_an_episode_depends_on_its_task_and_repeat_and_not_on_the_agent(
    command: Command, runs: tuple[str, str]
) -> None:
    command("eval", "small.yaml", "--agent", "expert", "--out", "both", "--workers", 2)
    seeds: dict[tuple[str, str, int], set[int]] = {}
    for folder in (*runs, "both"):
        for key, result in read_results(Path(folder)).latest.items():
            seeds.setdefault(key[1:], set()).add(result.seed)
    assert all(len(found) == 1 for found in seeds.values()) and len(seeds) == 32
    assert len(set().union(*seeds.values())) == 32  # another one for each entry, task and repeat

    def played(folder: str, agent: str) -> dict[Any, Any]:
        results = load_run(Path(folder)).results
        return {
            key: (one.success, one.total_reward, one.steps) for key, one in results.items() if key.agent == agent
        }

    assert played("both", "expert") == played("expert", "expert")
    assert played("both", "random") == played("random", "random")


def test_evaluation_shows_repeats_in_terminal_summary_and_report(command: Command) -> None:
    text = command("eval", "TextFrozenLake-v0", "--limit", 6, "--repeats", 3, "--out", "run", "--workers", 1)
    assert "pass@2 %" in text and "pass^3 %" in text and "flips %" in text
    summary = json.loads(Path("run/summary.json").read_text())
    tries = outcomes("run", "TextFrozenLake-v0")
    line = next(line for line in summary["lines"] if line["agent"] == "random")
    results = [result for key, result in read_results(Path("run")).latest.items() if key.agent == "random"]
    by_task = {task: [one.success for one in results if one.key.task == task] for task in tries}
    assert line["repeats"]["pass_at_k"]["3"]["value"] == pytest.approx(sum(map(any, by_task.values())) / 6)
    assert line["repeats"]["pass_all_k"]["3"]["value"] == pytest.approx(sum(map(all, by_task.values())) / 6)
    assert line["repeats"]["flips"]["value"] == pytest.approx(
        sum(any(one) and not all(one) for one in by_task.values()) / 6
    )
    page = Path("run/report.html").read_text(encoding="utf-8")
    assert 'id="repeats"' in page and "pass@3" in page and "pass^2" in page
    single = command("eval", "TextFrozenLake-v0", "--limit", 3, "--out", "single", "--workers", 1)
    assert "pass@" not in single and 'id="repeats"' not in Path("single/report.html").read_text()
    assert json.loads(Path("single/summary.json").read_text())["lines"][0]["repeats"] is None
