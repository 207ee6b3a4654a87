"""Trajectories in Harbor's Agent Trajectory Interchange Format (ATIF), version 1.8."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from ...agents.episode import Turn
from ...agents.exchange import TURN
from ..episode_filter import ALL_EPISODES
from ..provenance import played_versions
from ..store import amount
from .conversation import clean
from .source import ExportedEpisode, Source
from .training_data import write_lines

VERSION = "ATIF-v1.8"


def write_atif(source: Source, path: Path) -> int:
    """Write the trajectories of all episodes, one JSON object per line, and return their number."""
    results = source.results(ALL_EPISODES)
    return write_lines(path, (clean(trajectory(one, source)) for one in source.episodes(results)))


def write_atif_files(source: Source, folder: Path) -> int:
    """Write the trajectories of all episodes as files of a folder, and return their number."""
    number = 0
    for number, one in enumerate(source.episodes(source.results(ALL_EPISODES)), 1):
        text = json.dumps(clean(trajectory(one, source)), ensure_ascii=False, indent=1)
        # One folder for each 1,000 files.
        path = folder / f"{(number - 1) // 1000:04d}" / f"{number:07d}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text + "\n", encoding="utf-8")
    return number


def trajectory(one: ExportedEpisode, source: Source) -> dict[str, Any]:
    """Return an episode as a trajectory.

    A system step has the instructions, and a user step the first observation. Each turn is a step of the agent:
    its reply, its thought, its actions as calls of the function `act`, and the observation after them. The token
    ids of a prompt are all that the model received: those of the turns before, too.
    """
    result, episode = one.result, one.episode
    key = result.key
    identity = source.manifest.get("identities", {}).get(key.agent, {})
    version = played_versions(source.manifest).get("arboretum", "unknown")
    agent = {"name": key.agent, "version": str(version)}
    if identity.get("model"):
        agent["model_name"] = str(identity["model"])
    steps = [{"step_id": number, **step} for number, step in enumerate(_steps(one), 1)]
    totals = {"total_steps": len(steps)}
    for total, name in (
        ("total_prompt_tokens", "prompt_tokens"),
        ("total_completion_tokens", "completion_tokens"),
    ):
        if name in result.details:
            totals[total] = int(amount(result.details, name))
    metrics: dict[str, Any] = dict(totals)
    if "cost" in result.details:
        metrics["total_cost_usd"] = amount(result.details, "cost")
    extra = {
        "env": episode.env,
        "entry": key.entry,
        "task": key.task,
        "repeat": key.repeat,
        "seed": result.seed,
        "success": result.success,
        "reward": result.total_reward,
        "truncated": result.truncated,
        "details": result.details,
    }
    if result.error is not None:
        extra["error"] = result.error
    return {
        "schema_version": VERSION,
        "session_id": f"{key.entry}/{key.task}/{key.repeat}/{key.agent}",
        "agent": agent,
        "steps": steps,
        "final_metrics": metrics,
        "extra": extra,
    }


def _steps(one: ExportedEpisode) -> Iterator[dict[str, Any]]:
    episode = one.episode
    system = one.instructions
    first = next((exchange for exchange in episode.exchanges if exchange.purpose == TURN), None)
    if first is not None:
        system = next((message.content for message in first.messages if message.role == "system"), system)
    if system:
        yield {"source": "system", "message": system}
    if episode.turns:
        yield {"source": "user", "message": episode.turns[0].observation}
    starts = list(accumulate((len(turn.moves) for turn in episode.turns), initial=0))
    after = [*(turn.observation for turn in episode.turns[1:]), episode.final_observation]
    context: list[int] = []
    for turn, start, observation in zip(episode.turns, starts, after, strict=False):
        step: dict[str, Any] = {"source": "agent", "message": turn.reply}
        if turn.thought is not None:
            step["reasoning_content"] = turn.thought
        calls = [f"call_{start + n + 1}" for n in range(len(turn.moves))]
        if calls:
            step["tool_calls"] = [
                {"tool_call_id": call, "function_name": "act", "arguments": {"action": move.action}}
                for call, move in zip(calls, turn.moves, strict=True)
            ]
        result = {"source_call_id": calls[-1], "content": observation} if calls else {"content": observation}
        step["observation"] = {"results": [result]}
        metrics = _token_metrics(turn, context)
        if metrics:
            step["metrics"] = metrics
        step["extra"] = {
            "rewards": [move.reward for move in turn.moves],
            "valid": [move.valid for move in turn.moves],
        }
        yield step


def _token_metrics(turn: Turn, context: list[int]) -> dict[str, Any]:
    """Return the token metrics of a turn, whose tokens are appended to the context.

    Where a turn has several replies, such as those before and after a notice, the completion is the last.
    """
    if turn.token_ids is None or turn.loss_mask is None:
        return {}
    if turn.restart:
        context.clear()
    sampled = [n for n, mask in enumerate(turn.loss_mask) if mask]
    breaks = [place for place, (one, two) in enumerate(pairwise(sampled), 1) if two != one + 1]
    sampled = sampled[breaks[-1] if breaks else 0 :]
    first = sampled[0] if sampled else len(turn.token_ids)
    prompt = [*context, *turn.token_ids[:first]]
    context += turn.token_ids
    metrics: dict[str, Any] = {
        "prompt_tokens": len(prompt),
        "completion_tokens": len(sampled),
        "prompt_token_ids": prompt,
        "completion_token_ids": [turn.token_ids[n] for n in sampled],
    }
    if turn.logprobs is not None:
        metrics["logprobs"] = [turn.logprobs[n] for n in sampled]
    return metrics
