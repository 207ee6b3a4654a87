"""Evaluation of a sapling on test tasks, beside random actions and the expert."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from rich.box import SIMPLE_HEAD
from rich.table import Table

from ...agents.base import Agent
from ...agents.play import Job, play
from ...agents.reference import ExpertAgent, RandomAgent, SearchingExpertAgent
from ...envs.tasks import distinct_tasks
from ...eval.statistics import Interval, rate
from ...eval.suite import Suite
from ..config.resolve import make_entry
from ..config.settings import EnvConfig, ValidationConfig
from .family import Family
from .pretraining import SaplingTrainer

_IN_FLIGHT = 32


class Scores(NamedTuple):
    """Success rates on the test tasks of one environment, with 95 % intervals.

    Attributes:
        label: Label of the environment in the family.
        tasks: Number of tasks, each played once.
        random: Uniformly random admissible actions.
        sampled: The model with temperature 1.
        greedy: The model with greedy decoding.
        expert: The expert that demonstrates in the last stage.
    """

    label: str
    tasks: int
    random: Interval
    sampled: Interval
    greedy: Interval
    expert: Interval


def evaluate(trainer: SaplingTrainer) -> Iterator[Scores]:
    """Yield the scores of a trained model on every environment of its family.

    Random actions and the expert have the action budget of the dialogue, too.

    Args:
        trainer: Trainer after its run.
    """
    family = trainer.config.family
    for label, env in family.held_out.items():
        tasks = count_tasks(env, family)
        model = [
            trainer.sampler.validate(
                env, ValidationConfig(tasks=tasks, split=family.test_split, temperature=temperature), 1.0, 0
            ).success
            for temperature in (1.0, 0.0)
        ]
        budget = trainer.sampler.dialogue.action_limit
        limited = EnvConfig(env.id, {**env.kwargs, "max_steps": budget}) if budget else env
        demonstrator = SearchingExpertAgent() if family.stages[-1].expert.searching else ExpertAgent()
        random, expert = (
            reference_success(agent, limited, family.test_split, tasks) for agent in (RandomAgent(), demonstrator)
        )
        yield Scores(label, tasks, random, model[0], model[1], expert)


def count_tasks(env: EnvConfig, family: Family) -> int:
    """Return the number of test tasks to evaluate on: those of the family, or all distinct ones if fewer."""
    return len(distinct_tasks(make_entry(env, family.test_split).make(), family.evaluation_tasks))


def reference_success(agent: Agent, env: EnvConfig, split: str, tasks: int) -> Interval:
    """Return the success rate of an agent without a model on the first distinct tasks of a split."""
    entry = make_entry(env, split, tasks)
    names = entry.task_names(entry.make())
    suite = Suite("sapling", "", (entry,), 0)
    jobs = [Job(name, suite.episode_seed(entry, name, 0)) for name in names]
    envs = [entry.make() for _ in range(min(_IN_FLIGHT, len(jobs)))]
    return rate([(episode.success,) for episode in play(agent, envs, jobs)])


def scores_table(scores: list[Scores]) -> Table:
    """Return a table of scores."""
    table = Table(
        title="Success on held-out tasks, with 95 % intervals",
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
    )
    table.add_column("environment")
    for name in ("tasks", "random", "sampled", "greedy", "expert"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in scores:
        rates = (_percent(value) for value in (row.random, row.sampled, row.greedy, row.expert))
        table.add_row(row.label, str(row.tasks), *rates)
    return table


def _percent(value: Interval) -> str:
    return f"{value.value:.0%} [{100 * value.low:.0f}, {100 * value.high:.0f}]"
