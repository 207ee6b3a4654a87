"""Logs of Inspect AI, made through its Python API, for `inspect view` and its analysis tools."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby, islice
from pathlib import Path
from typing import Any

from ...envs.extras import optional_module
from ..episode_filter import ALL_EPISODES
from ..provenance import played_versions
from ..statistics import mean, rate
from ..store import Result, amount
from .conversation import clean, conversation
from .source import ExportedEpisode, Source

SAMPLES = 2000
"""Episodes of a log, which are in memory at the same time; a cell with more has several logs."""

_SUCCESS = "success"


def write_inspect(source: Source, folder: Path) -> int:
    """Write logs of all episodes, one per entry and agent, and return the number of episodes.

    A sample is an episode: its id is the task, its epoch the repeat from 1. Its scores are `success` ("C" or "I",
    Inspect's letters for correct and incorrect) and `reward`, the undiscounted return.

    Args:
        source: The run.
        folder: Folder for the logs, which exists.

    Raises:
        ConfigurationError: The extra `inspect` is not installed.
    """
    log = optional_module("inspect_ai.log", "inspect", "--to inspect")
    results = source.results(ALL_EPISODES, sort="task")
    results.sort(key=lambda result: (result.key.entry, result.key.agent))  # A stable sort: tasks stay in order.
    written = number = 0
    for (entry, agent), cell in groupby(results, key=lambda result: (result.key.entry, result.key.agent)):
        while part := list(islice(cell, SAMPLES)):
            episodes = list(source.episodes(part))
            if not episodes:
                continue
            number += 1
            part, samples = [one.result for one in episodes], [_sample(one) for one in episodes]
            name = "".join(c if c.isalnum() or c in "-_" else "-" for c in f"{entry}_{agent}")
            log.write_eval_log(
                _log(source, entry, agent, part, samples), str(folder / f"{number:04d}_{name}.eval")
            )
            written += len(samples)
    return written


def _sample(one: ExportedEpisode) -> Any:
    log, model = _modules()
    scorer = optional_module("inspect_ai.scorer", "inspect", "--to inspect")
    result, episode = one.result, one.episode
    kinds = {
        "system": model.ChatMessageSystem,
        "user": model.ChatMessageUser,
        "assistant": model.ChatMessageAssistant,
        "tool": model.ChatMessageTool,
    }
    messages = [
        kinds[message.role](content=clean(message.content)) for message in conversation(episode, one.instructions)
    ]
    replies = [message for message in messages if message.role == "assistant"]
    first = next((n for n, message in enumerate(messages) if message.role == "assistant"), len(messages))
    error = None
    if result.error is not None:
        trace = clean(episode.trace or "")
        error = log.EvalError(message=clean(result.error), traceback=trace, traceback_ansi=trace)
    actions = [move.action for turn in episode.turns for move in turn.moves]
    usage = {
        name: int(amount(result.details, key))
        for name, key in (("input_tokens", "prompt_tokens"), ("output_tokens", "completion_tokens"))
    }
    scores = {
        _SUCCESS: scorer.Score(
            value="C" if result.success else "I",
            answer=clean(actions[-1]) if actions else None,
            explanation=clean(episode.final_observation),
        ),
        "reward": scorer.Score(value=float(result.total_reward)),
    }
    return log.EvalSample(
        id=clean(result.key.task) or "(no name)",
        epoch=result.key.repeat + 1,
        input=messages[:first],
        target="",
        messages=messages,
        output=model.ModelOutput.from_content(clean(result.key.agent), replies[-1].content if replies else ""),
        scores=None if error is not None else scores,
        metadata=clean(
            {
                "seed": result.seed,
                "steps": result.steps,
                "invalid": result.invalid,
                "truncated": result.truncated,
                "actions": actions,
                **result.details,
            }
        ),
        model_usage={clean(result.key.agent): model.ModelUsage(**usage)} if any(usage.values()) else {},
        total_time=float(result.seconds),
        error=error,
    )


def _log(source: Source, entry: str, agent: str, results: list[Result], samples: list[Any]) -> Any:
    log, _ = _modules()
    manifest = source.manifest
    identity: Mapping[str, Any] = manifest.get("identities", {}).get(agent, {})
    started = [session["started"] for session in manifest.get("sessions", ())]
    times = (started[0], started[-1]) if started else ("1970-01-01T00:00:00+00:00",) * 2
    complete = [result for result in results if result.error is None]
    tasks = list(dict.fromkeys(clean(result.key.task) or "(no name)" for result in results))
    spec = log.EvalSpec(
        created=times[0],
        task=clean(entry),
        dataset=log.EvalDataset(name=clean(entry), samples=len(tasks), sample_ids=tasks),
        model=clean(str(identity.get("model") or agent)),
        config=log.EvalConfig(epochs=max(result.key.repeat for result in results) + 1),
        packages=played_versions(manifest),
        metadata={"suite": source.suite.name, "agent": clean(agent)},
    )
    scores = [
        _score(
            log, _SUCCESS, "accuracy", rate([[r.success for r in group] for group in _by_task(complete)]).value
        ),
        _score(
            log,
            "reward",
            "mean",
            mean([sum(r.total_reward for r in group) / len(group) for group in _by_task(complete)]).value,
        ),
    ]
    return log.EvalLog(
        status="success",
        eval=spec,
        results=log.EvalResults(
            total_samples=len(results), completed_samples=len(complete), scores=scores if complete else []
        ),
        stats=log.EvalStats(started_at=times[0], completed_at=times[1]),
        samples=samples,
    )


def _score(log: Any, name: str, metric: str, value: float) -> Any:
    return log.EvalScore(name=name, scorer=name, metrics={metric: log.EvalMetric(name=metric, value=value)})


def _by_task(results: list[Result]) -> Iterator[list[Result]]:
    for _, group in groupby(results, key=lambda result: result.key.task):
        yield list(group)


def _modules() -> tuple[Any, Any]:
    """Return the modules `inspect_ai.log` and `inspect_ai.model`."""
    log = optional_module("inspect_ai.log", "inspect", "--to inspect")
    return log, optional_module("inspect_ai.model", "inspect", "--to inspect")
