"""The `arboretum` command. Every verb calls into a room; the logic is there."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from tyro.conf import OmitArgPrefixes, Positional, UseAppendAction, arg
from tyro.extras import SubcommandApp

from .agents.registry import MODEL_FREE_AGENTS, agent_names
from .envs.checks import expand_option
from .envs.errors import ConfigurationError
from .envs.files import started_here
from .envs.retrieval.commands import BuildIndex, Recall, ServeRetrieval, VerifyIndex
from .envs.terminal import Terminal, VisibleFormatter, exit_on_error, replace_unencodable
from .envs.webshop.command import ServeWebShop
from .eval.bench import BENCHES
from .eval.export import Format
from .eval.model_options import DEFAULT_MODEL, ModelOptions
from .eval.pairing_options import NO_OPTIONS, PairingOptions
from .eval.planning import FULL_SCOPE, Scope
from .eval.serve_envs import ServeEnvs
from .eval.suite import suite_names
from .eval.terminal_help import as_verb, hint, run_verb
from .eval.verify.options import VerifyOptions
from .trainers.algorithms.recipes import RECIPES
from .trainers.bench import TRAINING
from .trainers.bench.scaling.command import MeasureCosts, PlanTraining
from .trainers.config.cli_options import SFTOptions, TrainOptions, given_options
from .trainers.config.misplaced import check_misplaced
from .trainers.laboratory.options import LaboratoryOptions
from .trainers.study.options import StudyOptions
from .trainers.study.parsing import study_names

DESCRIPTION = "Text environments, agents, trainers and evaluation for language models."

app = SubcommandApp()
console = Terminal(highlight=False)
VERBS: dict[str, Callable[..., int]] = {}
"""Functions of the verbs, by name."""
_arguments: ContextVar[tuple[str, ...]] = ContextVar("arguments", default=())
"""Arguments of the command, from which a verb tells an option that was given from its default."""

Verb = TypeVar("Verb", bound=Callable[..., int])


def verb(function: Verb) -> Verb:
    """Make a function a verb of the command, whose options are its arguments."""
    VERBS[function.__name__] = function
    app.command(function)
    return function


@verb
def envs(write: Path | None = None, measure: Path | None = None) -> int:
    """List the environments: their ids, and a description of each.

    Args:
        write: Folder for the environments' documentation pages, made from docstrings. None prints the list.
        measure: Folder of runs in which the baselines on these pages are measured first. None keeps the numbers.
    """
    from .envs.command import list_envs

    if measure is not None:
        from .eval.baselines import measure_baselines

        measure_baselines(measure, write, console)
    return list_envs(write, console)


@verb
def docs(write: Path = Path("docs/reference"), recipes: Path | None = None) -> int:
    """Write the reference pages: settings, engines, suites, files and data.

    Args:
        write: Folder of the pages, which are made from the code.
        recipes: Folder of the recipes' pages, whose tables are written again, too. None leaves them as they are.
    """
    from .trainers.study.recipe_pages import update_recipe_pages
    from .trainers.study.reference_pages import write_reference

    for path in [*write_reference(write), *(update_recipe_pages(recipes) if recipes else [])]:
        console.print(str(path), markup=False, soft_wrap=True)
    return 0


@verb
def play(
    env: Annotated[Positional[str], arg(metavar="ENV")],
    /,
    task: str | None = None,
    seed: int | None = None,
    split: str | None = None,
    agent: Annotated[str, hint("Agent: {}.", MODEL_FREE_AGENTS)] = "human",
    pace: float | None = None,
    env_arg: UseAppendAction[tuple[str, ...]] = (),
) -> int:
    """Play one episode in the terminal, or watch an agent play it.

    Args:
        env: Id of the environment, such as TextSokoban-v0.
        task: Name of the task. None draws one from the seed.
        seed: Seed of the task and of the environment's randomness. None draws a new one each time.
        split: Task split to draw from. None draws from all tasks.
        agent: Agent.
        pace: Seconds between the moves of an agent to watch. None is 0.5 in a terminal and 0 in a pipe.
        env_arg: Argument of the environment, as key=value, such as size=8. Repeat the option for more.
    """
    from .agents.terminal import play_in_terminal
    from .eval.options import parse_options

    options = parse_options(env_arg, "--env-arg") | ({} if split is None else {"split": split})
    return play_in_terminal(env, agent, task=task, seed=seed, options=options, console=console, pace=pace)


@verb
def eval(
    suite: Annotated[
        Positional[str],
        hint("Suite: {}; the path of a YAML file; or the id of an environment.", suite_names(), "SUITE"),
    ],
    /,
    agent: Annotated[tuple[str, ...], hint("Agents: {}, or a plug-in's.", agent_names())] = ("random", "expert"),
    out: Path | None = None,
    workers: int | None = None,
    ray: str | None = None,
    references: bool = True,
    split: str | None = None,
    in_flight: int = 64,
    label_seconds: float = 10.0,
    env_arg: UseAppendAction[tuple[str, ...]] = (),
    *,
    scope: OmitArgPrefixes[Scope] = FULL_SCOPE,
    language_model: OmitArgPrefixes[ModelOptions] = DEFAULT_MODEL,
) -> int:
    """Evaluate agents on a suite; run the same command again to resume.

    Prints a table, and writes episodes.jsonl, summary.json and report.html.

    Args:
        suite: Suite.
        agent: Agents.
        out: Folder of the run. None makes a name of suite and agents below runs/.
        workers: Processes for agents without a model. None starts one per core, but at most 8.
        ray: Address of a Ray cluster to use instead of processes; "auto" or "local" also work. A model gets a copy
            for every GPU, or for every node without any.
        references: Also evaluate the random agent and the expert, for comparison.
        split: Task split to play, such as train; only with the id of an environment. None plays held-out tasks.
        in_flight: Episodes of a language agent to roll out at the same time.
        label_seconds: Time in seconds for labelling decisions after playing: optimal, costly or fatal. 0 labels
            none; the command `decisions` labels the rest.
        env_arg: Argument of the environment, as key=value, such as homes=full; only with the id of an environment.
            Repeat the option for more.
        scope: Part of the suite to play, and the time to play it in.
        language_model: Model of the language agents.
    """
    from .eval.agents import open_agents
    from .eval.evaluate import evaluate

    if workers is not None and workers < 1:
        raise ConfigurationError(f"--workers must be at least 1, not {workers}.")
    with open_agents(agent, **vars(language_model)) as agents:
        return evaluate(
            suite,
            agents,
            scope=scope,
            references=references,
            env_arg=(*env_arg, *(() if split is None else (f"split={split}",))),
            out=out,
            workers=workers or min(os.cpu_count() or 1, 8),
            ray=ray,
            in_flight=in_flight,
            label_seconds=label_seconds,
            arguments=_arguments.get(),
            console=console,
        )


@verb
def decisions(runs: Positional[tuple[Path, ...]], /, seconds: float | None = None) -> int:
    """Label every decision of stored episodes: optimal, costly or fatal, and why tasks were not solved.

    Compares a replay of the episodes with the environment's optimum, and prints a table. The exit status is 1 if
    episodes are left without labels.

    Args:
        runs: Folders of evaluation runs.
        seconds: Time for each run in seconds. None labels all episodes.
    """
    from .eval.decisions.command import label_runs

    return label_runs(runs, seconds, console=console)


@verb
def report(runs: Positional[tuple[Path, ...]], /, out: Path | None = None) -> int:
    """Write the report of a run again, or one report of several runs.

    Args:
        runs: Folders of evaluation runs, or the folder of one training run.
        out: HTML file to write. None writes report.html in the folder of the run; required for several runs.
    """
    from .trainers.reporting.command import report_runs

    return report_runs(runs, out, console=console)


@verb
def export(
    run: Positional[Path],
    /,
    to: Format,
    out: Path | None = None,
    agent: tuple[str, ...] = (),
    all_episodes: bool = False,
) -> int:
    """Export the episodes of an evaluation run to the format of another tool.

    Args:
        run: Folder of the run, finished or not.
        to: Format: tables (csv, parquet), data for training (sft, preference, stepwise), logs of Inspect AI
            (inspect), or trajectories (atif).
        out: File or folder to write, which must not exist. None makes a name of the format in the folder of the
            run.
        agent: Agents to export, by name. None given exports all agents.
        all_episodes: With sft: also export unsuccessful episodes.
    """
    from .eval.export.command import export_run

    return export_run(run, to, out, agents=agent, everything=all_episodes, console=console)


@verb
def compare(
    runs: Positional[tuple[Path, ...]],
    /,
    out: Path | None = None,
    *,
    pairing: OmitArgPrefixes[PairingOptions] = NO_OPTIONS,
) -> int:
    """Compare runs: agents of evaluation runs paired by task, or curves and validations of training runs.

    Args:
        runs: Folders of at least two runs of one kind, finished or not.
        out: HTML file to write as well; of evaluation runs also the data, in a .json file beside it. None prints
            the comparison only.
        pairing: Options of evaluation runs.
    """
    from .trainers.reporting.command import compare_any

    return compare_any(runs, out, pairing, console=console)


@verb
def view(
    folder: Positional[Path] = Path("runs"),
    /,
    agent: Annotated[tuple[str, ...], hint("Agents that may play on: {}, or a plug-in's.", agent_names())] = (),
    host: str = "127.0.0.1",
    port: int = 8400,
    browser: bool = True,
    *,
    language_model: OmitArgPrefixes[ModelOptions] = DEFAULT_MODEL,
) -> int:
    """Show runs in the browser: leaderboard, episodes step by step, what else could be done; and play.

    Args:
        folder: Folder of runs, or of one run.
        agent: Agents that may play on from any state, in addition to the expert.
        host: Address to listen on; the default accepts connections from this machine only.
        port: TCP port; 0 chooses a free one.
        browser: Open the first page in the browser.
        language_model: Model of the language agents.
    """
    from .eval.agents import open_agents
    from .eval.viewer.command import view_runs
    from .trainers.reporting.viewer import TrainingPages

    with open_agents(agent, **vars(language_model)) as agents:
        pages = [TrainingPages()]
        return view_runs(folder, agents, pages, host=host, port=port, browser=browser, ready=_print_address)


@verb
def bench(
    benchmark: Annotated[
        Positional[str],
        hint("Benchmark: {}; or one of their parts, such as sokoban.", [*BENCHES, *TRAINING], "[BENCHMARK]"),
    ] = "envs",
    /,
    peers: bool = False,
) -> int:
    """Measure speed, as ratios within one run.

    The exit status is 1 if a target is missed.

    Args:
        benchmark: Benchmark.
        peers: Also measure the original systems, if they are installed.
    """
    from .eval.bench.command import run_benchmark

    return run_benchmark(benchmark, peers=peers, further=TRAINING, console=console)


@verb
def scaling(
    job: OmitArgPrefixes[Annotated[PlanTraining, as_verb("plan")] | Annotated[MeasureCosts, as_verb("measure")]],
) -> int:
    """Predict the time of training steps on many GPUs, or measure the costs of steps here."""
    job.run(console)
    return 0


def _print_address(address: str) -> None:
    console.print(f"Serving at {address}; stop with Ctrl-C.", markup=False, soft_wrap=True)


@verb
def serve(
    server: OmitArgPrefixes[
        Annotated[ServeEnvs, as_verb("envs")]
        | Annotated[ServeWebShop, as_verb("webshop")]
        | Annotated[ServeRetrieval, as_verb("retrieval")]
    ],
) -> int:
    """Serve environments, the web shop, or a search index until Ctrl-C."""
    server.run(_print_address)
    return 0


@verb
def index(
    job: OmitArgPrefixes[
        Annotated[BuildIndex, as_verb("build")]
        | Annotated[VerifyIndex, as_verb("verify")]
        | Annotated[Recall, as_verb("recall")]
    ],
) -> int:
    """Build a search index, verify one, or measure the recall of retrievers."""
    console.print(job.run(), markup=False, soft_wrap=True)
    return 0


@verb
def data(
    verb: Positional[Literal["list", "get", "verify"]],
    name: Positional[str | None] = None,
    /,
    root: Path | None = None,
) -> int:
    """List, download or verify public data sets.

    Args:
        verb: "list" shows all data that environments read, "get" downloads one set, "verify" compares one with its
            recorded checksums.
        name: Name of the data set, for "get" and "verify".
        root: Data folder. None uses ARBORETUM_DATA.
    """
    from .envs.searchqa.data_command import run_data_command

    return run_data_command(verb, name, root, console)


@verb
def verify(*, options: Annotated[VerifyOptions, arg(name="")]) -> int:
    """Check environments against OpenEnv's quality policy, and print the verdicts with figures.

    The exit status is 1 if a check fails. docs/verify.md describes the checks.

    Args:
        options: Everything.
    """
    from .eval.verify.command import verify_envs

    return verify_envs(options, console=console)


@verb
def train(
    recipe: Annotated[
        Positional[str | None],
        hint("Algorithm: {}, or a plug-in's. Required for a new run.", RECIPES, "[RECIPE]"),
    ] = None,
    /,
    *,
    options: Annotated[TrainOptions, arg(name="")],
) -> int:
    """Train a language model by reinforcement learning in an environment.

    Args:
        recipe: Algorithm.
        options: Everything else.
    """
    from .trainers.checkpoints.stored_config import resolve_training_config
    from .trainers.commands.train import train

    config = resolve_training_config(recipe, options, given_options(_arguments.get()))
    return train(config, resume=options.resume is not None, console=console)


@verb
def sft(*, options: Annotated[SFTOptions, arg(name="")]) -> int:
    """Fine-tune a language model on expert episodes, as a warm start.

    Args:
        options: Everything.
    """
    from .trainers.checkpoints.stored_config import resolve_sft_config
    from .trainers.commands.fine_tune import fine_tune

    config = resolve_sft_config(options, given_options(_arguments.get()))
    return fine_tune(config, resume=options.resume is not None, console=console)


@verb
def study(
    name: Annotated[
        Positional[str], hint("Study: {}; or the path of a YAML file.", [*study_names(), "credit"], "STUDY")
    ],
    /,
    out: Path | None = None,
    workers: int = 2,
    *,
    options: Annotated[StudyOptions, arg(name="")],
    laboratory: Annotated[LaboratoryOptions, arg(name="")],
) -> int:
    """Train several recipes from one model, and compare them on held-out tasks.

    Finished runs are kept: the same command resumes a study. `credit` is the laboratory of tabular policies, which
    alone has the options --tasks, --arms, --seeds and --regime.

    Args:
        name: Study.
        out: Folder of the study. None makes a name of the study below runs/.
        workers: Runs at the same time, each in a process of its own with one thread.
        options: Options of the other studies.
        laboratory: Options of the study `credit`.
    """
    from .trainers.study.command import run

    return run(name, out, options, laboratory, workers=workers, console=console)


_SAPLINGS = ("grids (lakes and Sokoban)", "blocksworld", "alfworld", "search", "thoughts (grids, with thoughts)")


@verb
def sapling(
    family: Annotated[Positional[str], hint("Models: {}.", _SAPLINGS, "[FAMILY]")] = "grids",
    /,
    out: Path | None = None,
    seed: int = 0,
) -> int:
    """Pretrain a sapling again, a shipped small model, or resume an interrupted run, and evaluate it.

    Args:
        out: Folder of the model. None makes a name below runs/.
        seed: Seed of the initial weights and of the training data; the shipped models have 0.
    """
    from .trainers.sapling.command import make_sapling

    return make_sapling(family, out, seed, console=console)


def main(arguments: list[str] | None = None) -> None:
    """Run the command, and exit with its status.

    Args:
        arguments: Arguments of the command; None takes those of the process. Without any the help is shown.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    warnings = logging.StreamHandler()
    warnings.setFormatter(VisibleFormatter())
    logging.basicConfig(handlers=[warnings])
    logging.getLogger("stamina").propagate = False  # retries of requests are counted, not printed
    replace_unencodable()
    with started_here(), exit_on_error():
        if arguments == ["--version"]:
            from . import __version__

            console.print(f"arboretum {__version__}", markup=False)
            sys.exit(0)
        if arguments[:1] == ["train"]:
            check_misplaced(arguments[1:])
        arguments = [expand_option(argument) for argument in arguments]
        _arguments.set(tuple(arguments))
        status = run_verb(app, VERBS, arguments or ["--help"], DESCRIPTION)
        sys.stdout.flush()
    sys.exit(status)


if __name__ == "__main__":
    main()
