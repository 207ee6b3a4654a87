"""Inspect AI 0.3: environments as the task `arboretum/environment`, which Inspect finds by its entry point."""

from __future__ import annotations

from typing import Any

from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import ChatMessageSystem, ChatMessageUser
from inspect_ai.scorer import Score, Scorer, Target, accuracy, mean, scorer, stderr
from inspect_ai.solver import TaskState

from ..dialogue import make_dialogue
from .inspect_solver import OUTCOME, play_episode
from .rows import open_tasks


@task  # type: ignore[untyped-decorator]
def environment(
    env: str,
    dialogue: str = "think",
    tasks: int = 100,
    seed: int = 0,
    env_options: dict[str, Any] | None = None,
    dialogue_options: dict[str, Any] | None = None,
) -> Task:
    """Return an environment's first distinct tasks, one sample each. Epochs of a sample share task and seed.

    Args:
        env: Id of the environment.
        dialogue: Name of a dialogue with the history "full".
        tasks: Maximum number of tasks.
        seed: Base seed of the episodes, the option `--seed` of `arboretum eval`.
        env_options, dialogue_options: Arguments of the environment, and settings of the dialogue.
    """
    rows = open_tasks(env, tasks, make_dialogue(dialogue, dialogue_options), seed=seed, **env_options or {})
    samples = []
    for row in rows:
        system, user = (message["content"] for message in row.messages)
        opening = [ChatMessageSystem(content=system), ChatMessageUser(content=user)]
        samples.append(Sample(opening, id=row.task, metadata={"task": row.task, "seed": row.seed}))
    solver = play_episode(env, dialogue, env_options, dialogue_options)
    return Task(MemoryDataset(samples, name=env), solver=solver, scorer=episode_scorer(), name=env)


@scorer(  # type: ignore[untyped-decorator]
    metrics={
        "success": [accuracy(), stderr(cluster="task")],
        "score": [mean(), stderr(cluster="task")],
        "turns": [mean()],
        "invalid_actions": [mean()],
    }
)
def episode_scorer() -> Scorer:
    """Return a scorer of the episode: success, return with format penalties, turns and invalid actions."""

    async def score(state: TaskState, target: Target) -> Score | None:
        outcome = state.store.get(OUTCOME)
        return None if outcome is None else Score(value=outcome, answer=state.output.completion)

    return score
