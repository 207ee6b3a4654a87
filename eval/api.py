"""Evaluation from Python: `arboretum.evaluate`, which returns its results as an object and prints nothing."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium as gym

from ..agents.base import Agent
from ..agents.engines.base import Engine
from ..agents.episode import Episode
from ..agents.registry import LANGUAGE_AGENTS
from ..envs.checks import at_least, flag, integer_at_least, user_path
from ..envs.core import TextEnv
from ..envs.errors import ConfigurationError, DataError, unknown_name
from ..envs.files import shown_path
from ..envs.plain import plain_numbers
from ..envs.registry import text_env
from . import runner
from .agents import AgentFactory, GivenAgent, NamedAgent, check_settings, divide_settings
from .decisions.labelling import label_run
from .evaluate import prepare
from .models import GivenModel, Model, resolve_model
from .planning import Scope
from .results import report
from .statistics import Interval
from .store import EpisodeKey, Result, Store, read_episodes
from .suite import Suite, check_suite, load_suite, suite_of
from .summary import Line, Summary, load_run
from .workers.local import local_workers


@dataclass(frozen=True)
class Evaluation:
    """Results of an evaluation.

    Attributes:
        summary: Statistics by entry, group and agent; paired comparisons; errors and notes.
        episodes: Every episode that was played, by agent, entry, task and repeat; those that broke off have an
            `error`.
        folder: Folder with the stored run; None if nothing was kept on disk.
        stopped: Reason for which an agent failed, which ended the evaluation before its end; None otherwise.
    """

    summary: Summary
    episodes: dict[EpisodeKey, Episode]
    folder: Path | None
    stopped: str | None
    _results: dict[EpisodeKey, Result] = field(repr=False)

    @property
    def complete(self) -> bool:
        """True if every episode was played to its end."""
        return self.summary.complete

    @property
    def rates(self) -> dict[tuple[str, str], Interval]:
        """Success rate with its 95 % interval, by entry and agent."""
        return {(line.entry, line.agent): line.success for line in self.summary.lines if line.group is None}

    def line(self, agent: str, entry: str | None = None) -> Line:
        """Return the statistics of an agent on an entry.

        Args:
            agent: Name of the agent.
            entry: Name of the entry; None for the only one.

        Raises:
            ConfigurationError: There is no such result, or the suite has several entries and none is named.
        """
        lines = {(line.agent, line.entry): line for line in self.summary.lines if line.group is None}
        entries = list(dict.fromkeys(name for _, name in lines))
        if entry is None:
            if len(entries) != 1:
                raise ConfigurationError(f"name one of the entries: {', '.join(entries)}.")
            entry = entries[0]
        if entry not in entries:
            raise unknown_name("entry", entry, entries)
        if (agent, entry) not in lines:
            raise unknown_name("agent", agent, [name for name, other in lines if other == entry])
        return lines[agent, entry]

    def to_dataframe(self) -> Any:
        """Return a pandas DataFrame with one row per episode: identity, outcome, lengths, and all details.

        Raises:
            ConfigurationError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise ConfigurationError("to_dataframe() needs pandas: pip install pandas.") from None
        rows = [
            {
                **result.details,
                **result.key._asdict(),
                "seed": result.seed,
                "success": result.success,
                "return": result.total_reward,
                "steps": result.steps,
                "turns": result.turns,
                "invalid": result.invalid,
                "truncated": result.truncated,
                "seconds": result.seconds,
                "error": result.error,
            }
            for result in self._results.values()
        ]
        first = [*EpisodeKey._fields, "seed", "success", "return", "steps", "turns", "invalid", "truncated"]
        frame = pandas.DataFrame(rows)
        columns = [*first, "seconds", "error"]
        return frame.reindex(columns=[*columns, *(name for name in frame.columns if name not in columns)])

    def __str__(self) -> str:
        """Return one line per entry and agent."""
        lines = [_describe(line) for line in self.summary.lines if line.group is None]
        lines += [f"{count} broke off: {reason}" for reason, count in self.summary.errors.items()]
        return "\n".join(lines if self.stopped is None else [*lines, f"Stopped: {self.stopped}"])


def _describe(line: Line) -> str:
    played = f"{line.episodes} of {line.expected} episodes"
    if not line.episodes:
        return f"{line.entry}, {line.agent}: {played}"
    success = (
        f"{100 * line.success.value:.1f} % solved ({100 * line.success.low:.1f}–{100 * line.success.high:.1f})"
    )
    return f"{line.entry}, {line.agent}: {success}, {played}, mean return {line.mean_return.value:.3f}"


def evaluate(
    suite: str | Path | Suite | gym.Env[str, str],
    agent: str | Agent | Sequence[str | Agent] = ("random", "expert"),
    *,
    model: str | Path | Engine | None = None,
    engine: str | None = None,
    base_url: str | None = None,
    engine_args: Mapping[str, Any] | None = None,
    template: str | None = None,
    dialogue: str | None = None,
    dialogue_args: Mapping[str, Any] | None = None,
    examples: int | None = None,
    agent_args: Mapping[str, Any] | None = None,
    temperature: float | None = None,
    max_tokens: int | None = None,
    limit: int | None = None,
    seed: int | None = None,
    repeats: int | None = None,
    timeout: float | None = None,
    step_timeout: float | None = None,
    references: bool = False,
    out: str | Path | None = None,
    workers: int = 1,
    in_flight: int = 64,
    label_seconds: float = 0.0,
) -> Evaluation:
    """Evaluate agents on an environment or a suite, like `arboretum eval`, and return the results.

    Nothing is printed, and a running event loop, such as a notebook's, is no obstacle. Ctrl-C raises
    KeyboardInterrupt; finished episodes are kept in `out`.

    Args:
        suite: Id of an environment, name of a suite, path of a suite's file, `Suite`, or environment that
            `gym.make` made, which is made again with the same arguments.
        agent: Name of an agent, agent, or several of them.
        model: Model of language agents: folder, `PROVIDER/NAME`, or an engine, which stays open.
        engine: Name of the engine; None derives it from `model`.
        base_url: Address of an OpenAI-compatible server; None for the engine's default.
        engine_args: Further arguments of the engine.
        template: Name of a shipped chat template, or a .jinja file; None for the tokenizer's.
        dialogue: Name of a dialogue; None for each agent's own.
        dialogue_args: Settings of the dialogue over the suite's.
        examples: Number of solved examples in the prompt; None for each agent's default.
        agent_args: Settings of the agents that have them, such as `n` of best_of_n.
        temperature: Sampling temperature; None for the suite's.
        max_tokens: Maximum length of a reply in tokens; None for the suite's.
        limit, seed, repeats, timeout, step_timeout: See `Scope`.
        references: Also play the random agent and the expert.
        out: Folder of the run, which is resumed if it exists and gets a report; None keeps nothing on disk. An
            agent or engine of a class of your own whose attributes are not plain data cannot resume the run of
            another process, unless plain data in its attribute `identity` names what decides its replies.
        workers: Number of processes for agents without a model. Above 1, a script's call must be below
            `if __name__ == "__main__":`.
        in_flight: Maximum number of concurrent episodes of a language agent.
        label_seconds: Time for labelling the decisions, which are then in `summary.decisions`; 0 labels none.

    Returns:
        The results. They are incomplete if episodes broke off, or if an agent failed: see `stopped`.

    Raises:
        ConfigurationError: A name, setting or data set cannot be used.
    """
    scope = Scope(*plain_numbers((limit, seed, repeats, timeout, step_timeout)))
    temperature, max_tokens, examples = plain_numbers((temperature, max_tokens, examples))
    engine_args, dialogue_args, agent_args = plain_numbers((engine_args, dialogue_args, agent_args))
    names: Sequence[str | Agent] = [agent] if isinstance(agent, str | Agent) else list(agent)
    integer_at_least("workers", workers, 1)
    integer_at_least("in_flight", in_flight, 1)
    at_least("label_seconds", label_seconds, 0)
    flag("references", references)
    model = str(model) if isinstance(model, Path) else model
    language_settings = {
        "engine": engine,
        "base_url": base_url,
        "engine_args": engine_args,
        "template": template,
        "dialogue": dialogue,
        "dialogue_args": dialogue_args,
        "examples": examples,
        "agent_args": agent_args,
        "temperature": temperature,
        "max_tokens": max_tokens,
    }
    check_settings(names, model, language_settings, "model")
    given = (("template", template), ("dialogue_name", dialogue), ("examples", examples))
    settings = {name: value for name, value in given if value is not None}
    own = divide_settings(names, agent_args or {}, "agent_args")
    limits = (("temperature", temperature), ("max_tokens", max_tokens))
    sampling = {name: value for name, value in limits if value is not None}
    with ExitStack() as stack:
        shared: Model | None = None
        if isinstance(model, Engine):
            for name in ("engine", "base_url", "engine_args"):
                if language_settings[name]:
                    raise ConfigurationError(f"{name} has no effect on an engine that is already made; remove it.")
            shared = GivenModel(model)
        elif model is not None:
            shared = Model(*resolve_model(model, engine), base_url, engine_args)
            stack.callback(shared.close)
        factories: list[AgentFactory] = []
        for one in names:
            if isinstance(one, Agent):
                factories.append(GivenAgent(one))
            elif one in LANGUAGE_AGENTS:
                factories.append(NamedAgent(one, shared, sampling, dialogue_args, settings | own[one]))
            else:
                factories.append(NamedAgent(one, settings=own.get(one)))
        temporary = stack.enter_context(tempfile.TemporaryDirectory()) if out is None else out
        named = user_path("out", temporary)
        folder = named.absolute()  # Environments may change the working directory.
        prepared = prepare(_as_suite(suite), factories, scope, references=references, out=folder)
        store = Store(folder, prepared.manifest)
        try:
            pool = stack.enter_context(local_workers(workers) if workers > 1 else nullcontext())
            progress = runner.run(
                prepared.plan, prepared.agents, store, workers=pool, in_flight=in_flight, limits=scope.limits
            )
        finally:
            store.close()
        if label_seconds:
            label_run(folder, label_seconds, with_costly=False)
        summary = report([folder])
        results = load_run(folder).results
        stored = zip(results, read_episodes(folder, results.values()), strict=True)
        # Errors are among the summary's problems.
        episodes = {key: one.episode for key, one in stored if not isinstance(one, DataError)}
    shown = folder if named.is_absolute() else shown_path(folder)
    return Evaluation(summary, episodes, None if out is None else shown, progress.stopped, results)


def _as_suite(suite: str | Path | Suite | gym.Env[str, str]) -> Suite:
    if isinstance(suite, Suite):
        check_suite(suite)
        return suite
    if isinstance(suite, gym.Env):
        env = text_env(suite)
        if not isinstance(env, TextEnv) or env.spec is None:
            raise ConfigurationError(
                f"{env} is not an environment that gym.make made; pass the id of a text environment."
            )
        return suite_of(env.spec.id, **env.spec.kwargs)
    return load_suite(suite)
