"""The `arboretum` command. Every verb calls into a room; the logic is there."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import shutil
import sys
from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

from tyro.conf import OmitArgPrefixes, Positional, UseAppendAction, arg, subcommand
from tyro.extras import SubcommandApp

from .agents.dialogue.registry import DIALOGUES
from .agents.engines.registry import ENGINES
from .agents.registry import MODEL_FREE_AGENTS, agent_names
from .envs.errors import ConfigurationError, unknown_name
from .envs.retrieval.commands import BuildIndex, Recall, ServeRetrieval, VerifyIndex
from .envs.terminal import Terminal, VisibleFormatter
from .envs.webshop.command import ServeWebShop
from .eval.bench import BENCHES
from .eval.planning import FULL_SCOPE, Scope
from .eval.suite import suite_names
from .trainers.algorithms.recipes import RECIPES
from .trainers.bench import TRAINING
from .trainers.config.cli_options import SFTOptions, TrainOptions, given_options
from .trainers.laboratory.options import LaboratoryOptions
from .trainers.study.parsing import study_names

DESCRIPTION = "Text environments, agents, trainers and evaluation for language models."

app = SubcommandApp()
console = Terminal(highlight=False)
_arguments: ContextVar[tuple[str, ...]] = ContextVar("arguments", default=())
"""Arguments of the command, from which a verb tells an option that was given from its default."""


def _verb(name: str) -> Any:
    """Return the mark of a sub-command whose name has no prefix."""
    return subcommand(name, prefix_name=False)


def _help(text: str, names: Iterable[str] = ()) -> Any:
    """Return the mark of an option whose help lists names, which stand in the place of `{}`."""
    return arg(help=text.format(", ".join(names)))


@app.command
def envs(write: Path | None = None) -> int:
    """List the environments: their ids, and a description of each.

    Args:
        write: Folder for the environments' documentation pages, made from docstrings. None prints the list.
    """
    from rich.table import Table

    from .envs.registry import all_envs

    if write is not None:
        from .envs.pages import write_pages

        for path in write_pages(write, all_envs()):
            console.print(str(path), markup=False, soft_wrap=True)
        return 0
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True, min_width=max(len(spec.id) for spec in all_envs()))  # never shortened
    for spec in all_envs():
        table.add_row(spec.id, spec.summary)
    console.print(table)
    return 0


@app.command
def docs(write: Path = Path("docs/reference")) -> int:
    """Write the reference pages: settings, engines, suites, files and data.

    Args:
        write: Folder of the pages, which are made from the code.
    """
    from .trainers.study.reference_pages import write_reference

    for path in write_reference(write):
        console.print(str(path), markup=False, soft_wrap=True)
    return 0


@app.command
def play(
    env: Positional[str],
    /,
    task: str | None = None,
    seed: int | None = None,
    split: str | None = None,
    agent: Annotated[str, _help("Agent: {}.", MODEL_FREE_AGENTS)] = "human",
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


@dataclass(frozen=True)
class ModelOptions:
    """Model of the language agents.

    Attributes:
        engine: Engine.
        model: Folder of the model, or PROVIDER/NAME with an engine as provider, such as openai/gpt-4.1-mini or
            vllm/Qwen/Qwen2.5-3B-Instruct.
        base_url: Address of an OpenAI-compatible server. None uses the engine's default.
        template: Name of a shipped chat template, such as qwen3. None uses the tokenizer's own.
        dialogue: Dialogue.
        dialogue_arg: Setting of the dialogue, as key=value, such as max_turns=5, over the suite's. Repeat the
            option for more.
        examples: Solved examples in the prompt. None uses the agent's default: 3 for react and reflexion, else 0.
        agent_arg: Setting of the agents that have it, as key=value, such as n=4 of best_of_n or simulations=32 of
            mcts. Repeat the option for more.
        temperature: Sampling temperature; 0 is greedy. None uses the suite's, or 1 for best_of_n and mcts.
        max_tokens: Maximum length of a reply in tokens. None uses the suite's.
        engine_arg: Argument of the engine, as key=value, such as cost_limit=5. Repeat the option for more.
        device: Device of a model in this process (engine transformers): cuda, cuda:1, mps or cpu. None uses the
            best available one.
    """

    engine: Annotated[
        str | None, _help("Engine that runs the model: {}, or a plug-in's. None takes it from --model.", ENGINES)
    ] = None
    model: str | None = None
    base_url: str | None = None
    template: str | None = None
    dialogue: Annotated[
        str | None,
        _help("Dialogue between environment and model: {}, or a plug-in's. None uses the agent's own.", DIALOGUES),
    ] = None
    dialogue_arg: UseAppendAction[tuple[str, ...]] = ()
    examples: int | None = None
    agent_arg: UseAppendAction[tuple[str, ...]] = ()
    temperature: float | None = None
    max_tokens: int | None = None
    engine_arg: UseAppendAction[tuple[str, ...]] = ()
    device: str | None = None


@app.command
def eval(
    suite: Annotated[
        Positional[str],
        _help("Suite: {}; the path of a YAML file; or the id of an environment.", suite_names()),
    ],
    /,
    agent: Annotated[tuple[str, ...], _help("Agents: {}, or a plug-in's.", agent_names())] = ("random", "expert"),
    out: Path | None = None,
    workers: int | None = None,
    ray: str | None = None,
    references: bool = True,
    in_flight: int = 64,
    *,
    scope: OmitArgPrefixes[Scope] = FULL_SCOPE,
    language_model: OmitArgPrefixes[ModelOptions] = ModelOptions(),
) -> int:
    """Evaluate agents on a suite; run the same command again to resume.

    Prints a table, and writes episodes.jsonl, summary.json and report.html.

    Args:
        suite: Suite.
        agent: Agents.
        out: Folder of the run. None makes a name of suite and agents below runs/.
        workers: Processes for agents without a model. None starts one per core, but at most 8.
        ray: Address of a Ray cluster to use instead of processes; "auto" or "local" also work.
        references: Also evaluate the random agent and the expert, for comparison.
        in_flight: Episodes of a language agent to roll out at the same time.
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
            out=out,
            workers=workers or min(os.cpu_count() or 1, 8),
            ray=ray,
            in_flight=in_flight,
            arguments=_arguments.get(),
            console=console,
        )


@app.command
def report(
    runs: Positional[tuple[Path, ...]],
    /,
    out: Path | None = None,
) -> int:
    """Write the report of a run again, or one report of several runs.

    Args:
        runs: Folders of evaluation runs, or the folder of one training run.
        out: HTML file to write. None writes report.html in the folder of the run; required for several runs.
    """
    from .eval.evaluate import print_remarks
    from .eval.evaluate import report as write_evaluation_report
    from .eval.table import fit_results
    from .trainers.reporting.report import is_training_run, write_report

    if not runs:
        raise ConfigurationError("name at least one folder of a run, such as runs/quick-random-expert.")
    if len(runs) > 1 and out is None:
        raise ConfigurationError("the report of several runs needs a file: add --out, such as --out both.html.")
    path = out or runs[0] / "report.html"
    training = [run for run in runs if is_training_run(run)]
    if training and len(runs) > 1:
        raise ConfigurationError(
            f"{training[0]}: is a training run, which cannot be compared in a report; name no other run."
        )
    if training:
        write_report(training[0], path)
    else:
        summary = write_evaluation_report(runs, path)
        console.print(fit_results(summary, console.width))
        print_remarks(summary, console)
    console.print(f"Report: {path}", soft_wrap=True, highlight=False, markup=False)
    return 0


@app.command
def compare(runs: Positional[tuple[Path, ...]], /, out: Path | None = None) -> int:
    """Compare training runs: differing settings, curves, and validations.

    Args:
        runs: Folders of at least two training runs, finished or not.
        out: HTML file to write as well. None prints the comparison only.
    """
    from .trainers.reporting.comparison import compare_runs, print_comparison, write_comparison

    comparison = compare_runs(runs)
    print_comparison(comparison, console)
    if out is not None:
        write_comparison(comparison, out)
        console.print(f"Comparison: {out}", soft_wrap=True, highlight=False, markup=False)
    return 0


@app.command
def bench(
    benchmark: Annotated[
        Positional[str], _help("Benchmark: {}; or one of their parts, such as sokoban.", [*BENCHES, *TRAINING])
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
    from .eval.bench import measurements
    from .eval.table import bench_table

    rows = []
    with console.status("measuring …") as status:
        for row in measurements(benchmark, peers=peers, further=TRAINING):
            rows.append(row)
            status.update(f"measured: {row.what}")
    console.print(bench_table(rows, console.width))
    for row in rows:
        if math.isnan(row.value):
            console.print(f"Not measured: {row.details}", markup=False, soft_wrap=True)
    targets = [row.reached for row in rows if row.reached is not None]
    if all(targets):
        return 0
    console.print(f"{targets.count(False)} of {len(targets)} targets missed.")
    return 1


def _print_address(address: str) -> None:
    console.print(f"Serving at {address}; stop with Ctrl-C.", markup=False, soft_wrap=True)


@app.command
def serve(
    server: OmitArgPrefixes[
        Annotated[ServeWebShop, _verb("webshop")] | Annotated[ServeRetrieval, _verb("retrieval")]
    ],
) -> int:
    """Serve the web shop, or a search index, over HTTP until Ctrl-C."""
    server.run(_print_address)
    return 0


@app.command
def index(
    job: OmitArgPrefixes[
        Annotated[BuildIndex, _verb("build")]
        | Annotated[VerifyIndex, _verb("verify")]
        | Annotated[Recall, _verb("recall")]
    ],
) -> int:
    """Build a search index, verify one, or measure the recall of retrievers."""
    console.print(job.run(), markup=False, soft_wrap=True)
    return 0


@app.command
def data(
    verb: Positional[Literal["list", "get", "verify"]],
    name: Positional[str | None] = None,
    /,
    root: Path | None = None,
) -> int:
    """List, download or verify public data sets.

    Args:
        verb: "list" shows all data sets, "get" downloads one, "verify" compares one with its recorded checksums.
        name: Name of the data set, for "get" and "verify".
        root: Data folder. None uses ARBORETUM_DATA.
    """
    from .envs.searchqa.data_command import run_data_command

    return run_data_command(verb, name, root, console)


@app.command
def train(
    recipe: Annotated[
        Positional[str | None],
        _help("Algorithm: {}, or a plug-in's. Required for a new run.", RECIPES),
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
    from .trainers import train as training

    config = training.resolve_training_config(recipe, options, given_options(_arguments.get()))
    return training.train(config, resume=options.resume is not None, console=console)


@app.command
def sft(*, options: Annotated[SFTOptions, arg(name="")]) -> int:
    """Fine-tune a language model on expert episodes, as a warm start.

    Args:
        options: Everything.
    """
    from .trainers import train as training

    config = training.resolve_sft_config(options, given_options(_arguments.get()))
    return training.sft(config, resume=options.resume is not None, console=console)


@app.command
def study(
    name: Annotated[Positional[str], _help("Study: {}; or the path of a YAML file.", [*study_names(), "credit"])],
    /,
    out: Path | None = None,
    workers: int = 2,
    envs: tuple[str, ...] = (),
    *,
    laboratory: Annotated[LaboratoryOptions, arg(name="")],
) -> int:
    """Train several recipes from one model, and compare them on held-out tasks.

    Finished runs are kept: the same command resumes a study. `credit` is the laboratory of tabular policies, which
    alone has the options --tasks, --arms, --seeds and --regime.

    Args:
        name: Study.
        out: Folder of the study. None makes a name of the study below runs/.
        workers: Runs at the same time, each in a process of its own with one thread.
        envs: Environments of the study to run now. None given takes all.
        laboratory: Options of the study `credit`.
    """
    from .trainers.study.command import run

    return run(name, out, laboratory, workers=workers, envs=envs, console=console)


@app.command
def sapling(
    family: Annotated[
        Positional[str],
        _help("Environments: {}.", ["grids (lakes and Sokoban)", "blocksworld", "alfworld", "search"]),
    ] = "grids",
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


COMMANDS = (envs, docs, play, eval, report, compare, bench, serve, index, data, train, sft, study, sapling)


def _check_verb(arguments: list[str]) -> None:
    """Raise for an unknown verb, with the nearest ones."""
    verbs = [command.__name__ for command in COMMANDS]
    if arguments and not arguments[0].startswith("-") and arguments[0] not in verbs:
        raise unknown_name("command", arguments[0], verbs)


def _print_help(arguments: list[str]) -> NoReturn:
    """Print the help that the arguments request, and exit."""
    from .eval.terminal_help import HelpBuffer

    buffer = HelpBuffer(sys.stdout)
    try:
        with contextlib.redirect_stdout(buffer):
            app.cli(args=arguments or ["--help"], prog="arboretum", description=DESCRIPTION)
    finally:
        sys.stdout.write(buffer.folded(shutil.get_terminal_size().columns))
        sys.stdout.flush()
    sys.exit(0)


def main(arguments: list[str] | None = None) -> None:
    """Run the command. Errors that the user can fix print one sentence and exit with status 2.

    Args:
        arguments: Arguments of the command; None takes those of the process. Without any the help is shown.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    warnings = logging.StreamHandler()
    warnings.setFormatter(VisibleFormatter())
    logging.basicConfig(handlers=[warnings])
    try:
        if arguments == ["--version"]:
            from . import __version__

            console.print(f"arboretum {__version__}", markup=False)
            sys.exit(0)
        _check_verb(arguments)
        if not arguments or {"-h", "--help"} & set(arguments):
            _print_help(arguments)
        _arguments.set(tuple(arguments))
        status: Any = app.cli(args=arguments, prog="arboretum", description=DESCRIPTION)
        sys.stdout.flush()
    except ConfigurationError as error:
        Terminal(stderr=True, highlight=False).print(f"arboretum: {error}", markup=False, soft_wrap=True)
        sys.exit(2)
    except BrokenPipeError:
        # The reader, such as `head`, has closed the pipe; Python must not flush into it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as error:
        reason = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        Terminal(stderr=True, highlight=False).print(f"arboretum: {reason}.", markup=False, soft_wrap=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(status)


if __name__ == "__main__":
    main()
