"""Decisions of unknown optimum in labels, tables, reports, comparisons and exports: not counted as without loss.

The environment leaves the outcome of "dice" to chance, so that the expected optimum after it is unknown by
default. At the number `hard` its optimum is unknown, too, unless the steps that are left are too few.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from arboretum import play
from arboretum.agents import Job, make_agent
from arboretum.cli import main
from arboretum.envs import Optimum
from arboretum.envs.registry import make_env
from arboretum.eval import label_episode
from arboretum.eval.decisions import Decision, EpisodeDecisions
from arboretum.eval.decisions.labels import judge

Command = Callable[..., str]

MODULE = '''
from arboretum.envs import Outcome, TextEnv


class Dice(TextEnv[int]):
    """Count down to zero. A task is named after the first actions of the expert, which then takes ones away."""

    optimum_is_exact = True

    def __init__(self, plans="", hard=None, split=None, max_steps=20, **options):
        super().__init__(config={}, max_steps=max_steps, **options)
        self.tasks = plans.split()
        self.hard = hard

    @property
    def instructions(self):
        return "Bring the number to zero. Actions: one, dice, wait, lose, grow."

    def _open(self, task):
        return 6

    def _observe(self):
        return f"The number is {self._state}."

    def _apply(self, action):
        if action == "one" or (action == "dice" and self._random() < 0.5):
            self._state -= 1
        elif action == "dice":
            self._state -= 2
        elif action == "grow":
            self._state += 100
        done = self._state <= 0
        return Outcome(self._observe(), float(done), done or action == "lose", done, True, action != "wait")

    def state_key(self):
        return self._state

    def admissible_actions(self):
        return "one", "dice"

    def _find_plan(self):
        return ["one"] * self._state

    def optimum(self):
        is_unknown = self._state == self.hard and self.steps_left() >= self.hard
        return None if is_unknown else super().optimum()

    def expert_actions(self):
        return [*self.task.split("-")[self._steps :], *["one"] * 6]
'''


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Importable module with the environment."""
    (tmp_path / "dice_env.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "dice_env", raising=False)


def labels_of(plan: str, hard: int | None = None) -> EpisodeDecisions:
    env = make_env("dice_env:Dice", plans=plan, hard=hard)
    (episode,) = play(make_agent("expert"), [env], [Job(plan, 0)])
    labels = label_episode(env, episode)
    assert isinstance(labels, EpisodeDecisions)
    return labels


def evaluate(command: Command, plans: str, out: str = "run", *options: object) -> str:
    arguments = ("--agent", "expert", "--no-references", "--env-arg", f"plans={plans}", "--out", out, *options)
    return " ".join(command("eval", "dice_env:Dice", *arguments, width=100).split())


def decisions_of(out: str) -> dict[str, Any]:
    (line,) = json.loads(Path(out, "summary.json").read_text())["decisions"]
    return dict(line)


# ---------------------------------------------------------------------- labels


@pytest.mark.parametrize(
    ("plan", "value", "steps", "fatal", "outcome"),
    [
        ("one", 0.0, 0.0, False, "solved"),
        ("wait-wait", 0.0, 2.0, False, "solved"),
        ("wait-dice", None, None, None, "solved"),
        ("wait-lose", 1.0, 1.0, True, "dead end"),
        ("dice-lose", None, None, True, "dead end"),
        ("grow-dice-dice", 1.0, 0.0, True, "out of steps"),
    ],
)
def test_losses_of_an_episode_are_unknown_unless_all_actions_are_known(
    plan: str, value: float | None, steps: float | None, fatal: bool | None, outcome: str
) -> None:
    labels = labels_of(plan)
    assert (labels.value_regret, labels.step_regret, labels.fatal) == (value, steps, fatal)
    assert labels.outcome == outcome and (labels.first_fatal is not None) is (fatal is True)


def test_fatal_action_after_an_unknown_start_is_the_reason_of_the_failure() -> None:
    labels = labels_of("one-lose", hard=6)
    assert labels.outcome == "dead end" and labels.first_fatal == 2 and labels.value_regret is None
    assert labels_of("lose", hard=6).outcome == "unknown"


def test_fatal_action_is_no_dead_end_where_the_optimum_without_the_step_limit_is_unknown() -> None:
    labels = labels_of("grow", hard=106)
    assert labels.first_fatal == 1 and labels.outcome == "unknown"
    assert labels_of("grow-lose", hard=106).outcome == "unknown"  # Nothing was left to lose.


def test_action_of_unknown_result_loses_nothing_only_where_nothing_is_provably_left() -> None:
    lost = Optimum(0.0, None)
    assert judge(lost, None, True, False, False) == Decision(None, 0.0, None, False, False, False)
    assert judge(lost, None, False, False, False) == Decision(None, None, None, None, False, False)


# ---------------------------------------------------------------------- tables and files


def test_table_has_dashes_where_nothing_is_known(command: Command) -> None:
    shown = evaluate(command, "dice dice-dice wait-dice-lose")
    assert "expert 80.0 " in shown and " – – 3 0.0 dead end 33 % " in shown  # The fatal action is known.
    line = decisions_of("run")
    for name in ("value_regret", "step_regret", "fatal"):
        assert line[name]["value"] is None
    assert line["known"] == 0 and line["unknown"] == 4 and line["first_fatal"] == 3
    sentence = (
        f"dice_env:Dice, expert: 4 of {line['decisions']} actions have no known optimum; lost, extra steps and the"
        " share of fatal decisions are unknown."
    )
    assert sentence in shown and sentence in Path("run/report.html").read_text(encoding="utf-8")
    assert sentence in " ".join(command("report", "run", width=100).split())
    narrow = " ".join(command("report", "run", width=40).split())
    assert "– % lost, – extra steps" in narrow and sentence in narrow


def test_statistics_are_over_the_episodes_that_are_known(command: Command) -> None:
    shown = evaluate(command, "one wait-wait wait-lose dice-lose dice")
    line = decisions_of("run")
    assert line["known"] == 3 and line["labelled"] == 5
    assert line["value_regret"]["value"] == line["fatal"]["value"] == pytest.approx(1 / 3)
    assert line["step_regret"]["value"] == 1.0
    sentence = (
        f"2 of {line['decisions']} actions have no known optimum; lost, extra steps and the share of fatal"
        " decisions are over the 3 of 5 episodes without such actions."
    )
    assert sentence in shown and " 33.3 1.0 2 " in shown


def test_table_of_known_decisions_has_no_sentence_about_unknown_ones(command: Command) -> None:
    assert "no known optimum" not in evaluate(command, "one wait-lose")


def test_comparison_pairs_the_known_losses_and_counts_the_unknown_actions(command: Command) -> None:
    for name, seed in (("a", 0), ("b", 1)):
        evaluate(command, "one wait-lose dice-lose dice", f"runs/{name}", "--seed", seed)
    shown = " ".join(command("compare", "runs/a", "runs/b", "--out", "page.html", width=100).split())
    content = json.loads(Path("page.json").read_text())
    tasks = {row["measure"]: row["result"]["n"] for row in content["differences"]}
    assert tasks["success"] == tasks["repeated actions, points"] == 4
    per_episode = ("regret in value per episode", "regret in steps per episode")
    assert {tasks[name] for name in (*per_episode, "episodes with a fatal decision, points")} == {2}
    for letter in "AB":
        start = f"{letter}: dice_env:Dice, expert: 2 of "
        (sentence,) = [one for one in content["left_out"] if one.startswith(start)]
        assert "the share of fatal decisions are over the 2 of 4 episodes without such actions." in sentence
        assert sentence in shown and sentence in Path("page.html").read_text(encoding="utf-8")


def test_comparison_without_any_known_loss_has_no_row_for_it(command: Command) -> None:
    for name, seed in (("a", 0), ("b", 1)):
        evaluate(command, "dice dice-dice", f"runs/{name}", "--seed", seed)
    command("compare", "runs/a", "runs/b", "--out", "page.html")
    content = json.loads(Path("page.json").read_text())
    assert {row["measure"] for row in content["differences"]} == {
        "success",
        "optimal decisions, points",
        "repeated actions, points",
    }
    assert any("are unknown." in sentence for sentence in content["left_out"])


# ---------------------------------------------------------------------- exports


def test_stepwise_export_counts_the_episodes_whose_first_turn_is_unknown(command: Command) -> None:
    evaluate(command, "one wait-dice dice dice-lose")
    shown = " ".join(command("export", "run", "--to", "stepwise").split())
    assert "2 episodes are left out: an action of the first turn has no known optimum." in shown
    rows = [json.loads(line) for line in Path("run/stepwise.jsonl").read_text().splitlines()]
    assert {row["task"]: len(row["labels"]) for row in rows} == {"one": 6, "wait-dice": 1}


def test_stepwise_export_of_unknown_decisions_alone_is_refused(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluate(command, "dice dice-lose")
    with pytest.raises(SystemExit) as ended:
        main(["export", "run", "--to", "stepwise"])
    shown = capsys.readouterr()
    assert ended.value.code == 2 and not Path("run/stepwise.jsonl").exists()
    assert "2 episodes are left out: an action of the first turn has no known optimum." in shown.out
    assert "run: there is nothing to export (none of its 2 episodes can be judged)." in " ".join(shown.err.split())


def test_preference_export_counts_the_episodes_without_a_known_action(command: Command) -> None:
    evaluate(command, "dice-dice-dice-dice-dice-dice wait-dice")
    shown = " ".join(command("export", "run", "--to", "preference").split())
    assert "1 episode is left out: no action has a known optimum. 1 pairs:" in shown
