"""The `arboretum` command. Every verb calls into a room; nothing is worked out here."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from rich.console import Console
from tyro.conf import OmitArgPrefixes, Positional, UseAppendAction, arg, subcommand
from tyro.extras import SubcommandApp

from .envs.errors import ConfigurationError
from .trainers.config.cli_options import SFTOptions, TrainOptions

DESCRIPTION = "Text worlds, players, trainers and an evaluation harness for language-model agents."

app = SubcommandApp()
console = Console(highlight=False)


def _verb(name: str) -> Any:
    """A sub-command whose name is not prefixed by the argument that takes it."""
    return subcommand(name, prefix_name=False)


@app.command
def envs(write: Path | None = None) -> int:
    """List the worlds: their ids, for `gym.make` and for suites, and what they are.

    Args:
        write: write their documentation pages, made from the docstrings, into this folder instead.
    """
    from rich.table import Table

    from .envs.registry import all_envs

    if write is not None:
        from .envs.pages import write_pages

        for path in write_pages(write, all_envs()):
            console.print(str(path), markup=False, soft_wrap=True)
        return 0
    table = Table(box=None, pad_edge=False, show_header=False)
    for env in all_envs():
        table.add_row(env.id, env.summary)
    console.print(table)
    return 0


@app.command
def play(
    env: Positional[str],
    /,
    task: str | None = None,
    seed: int | None = None,
    split: str | None = None,
    agent: str = "human",
) -> int:
    """Play one episode in the terminal.

    Args:
        env: Id of an environment, such as TextSokoban-v0.
        task: name of a task; default: one drawn from the seed.
        seed: seed of task and luck; default: a new one each time.
        split: task split to draw from.
        agent: who plays: human, random, expert.
    """
    from .agents.terminal import play_in_terminal

    options = {} if split is None else {"split": split}
    return play_in_terminal(env, agent, task=task, seed=seed, options=options, console=console)


@dataclass(frozen=True)
class Model:
    """Which model language agents are, and how they are asked.

    Attributes:
        engine: transformers, vllm, vllm-server, openai, or a plug-in's.
        model: name or folder of the model.
        base_url: address of an OpenAI-compatible server (default: OpenAI's).
        template: a shipped chat template, such as qwen3, instead of the tokenizer's own.
        dialogue: a dialogue instead of the agent's own: think, no_think, react, tags, plain, or a plug-in's.
        examples: solved examples in the prompt (default: 3 for react and reflexion).
        temperature: over the suite's; 0 is greedy.
        max_tokens: longest reply, over the suite's.
        option: a further option of the engine, as key=value, such as cost_limit=5; may be given several times.
        in_flight: episodes played at once.
    """

    engine: str | None = None
    model: str | None = None
    base_url: str | None = None
    template: str | None = None
    dialogue: str | None = None
    examples: int | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    option: UseAppendAction[tuple[str, ...]] = ()
    in_flight: int = 64


@app.command
def eval(
    suite: Positional[str],
    /,
    agent: tuple[str, ...] = ("random", "expert"),
    out: Path | None = None,
    workers: int = min(os.cpu_count() or 1, 8),
    ray: str | None = None,
    references: bool = True,
    *,
    lm: OmitArgPrefixes[Model] = Model(),
) -> int:
    """Play a suite, print the table, and write summary.json and report.html. Run it again to resume.

    Args:
        suite: quick, grid, boxoban, planbench, …, or the path of a suite's YAML file.
        agent: the players: random, expert, human, direct, think, no_think, tags, react, reflexion, search_o1.
        out: folder of the run; default: runs/<suite>-<players>.
        workers: processes to play in.
        ray: play on a Ray cluster instead: its address, "auto" or "local".
        references: also play the random and the expert player.
        lm: the model of language agents.
    """
    from .eval.agents import open_agents
    from .eval.evaluate import evaluate

    if workers < 1:
        raise ConfigurationError(f"--workers must be at least 1, not {workers}.")
    with open_agents(agent, **vars(lm)) as agents:
        return evaluate(
            suite,
            agents,
            out=out,
            references=references,
            workers=workers,
            ray=ray,
            in_flight=lm.in_flight,
            console=console,
        )


@app.command
def report(
    runs: Positional[tuple[Path, ...]],
    /,
    out: Path | None = None,
) -> int:
    """Write the report of a run again, or of several runs of one suite side by side.

    Args:
        runs: folders that `arboretum eval` wrote, or one that `arboretum train` wrote.
        out: the HTML file; default: report.html in the first folder.
    """
    from .eval.evaluate import report as write
    from .eval.table import results_table

    if not runs:
        raise ConfigurationError("name at least one run's folder, such as runs/quick-random-expert.")
    if len(runs) > 1 and out is None:
        raise ConfigurationError("say with --out where the report of several runs goes, such as --out both.html.")
    from .trainers.reporting.report import is_training_run, write_report

    path = out or runs[0] / "report.html"
    trained = [run for run in runs if is_training_run(run)]
    if trained and len(runs) > 1:
        raise ConfigurationError(f"{trained[0]}: is a training run, whose report stands alone; name no other run.")
    if trained:
        write_report(trained[0], path)
        console.print(f"Report: {path}", soft_wrap=True, highlight=False, markup=False)
        return 0
    console.print(results_table(write(runs, path)))
    console.print(f"Report: {path}", soft_wrap=True, highlight=False, markup=False)
    return 0


@app.command
def bench(what: Positional[str] = "envs", /, peers: bool = False) -> int:
    """Measure speed as ratios within one run.

    Args:
        what: envs, retrieval, rollout, train, or one of their parts, such as sokoban.
        peers: also measure the original systems, where they are installed.
    """
    from .eval.bench import measurements
    from .eval.table import bench_table
    from .trainers.bench import TRAINING

    rows = []
    with console.status("measuring …") as status:
        for row in measurements(what, peers=peers, further=TRAINING):
            rows.append(row)
            status.update(f"measured: {row.what}")
    console.print(bench_table(rows, console.width))
    return 0


@dataclass(frozen=True)
class WebShopServer:
    """A shop to visit in the browser: the pages, goals and rewards of TextWebShop-v0.

    Attributes:
        host: where to listen; the default is reachable from this machine only.
        port: TCP port; 0 takes a free one.
        data: folder of the catalogue; default: webshop/ below ARBORETUM_DATA, else a generated one.
        num_products: use only the first so many.
        human_goals: goals as people put them, instead of those made from the products.
        threads: requests answered at once.
    """

    host: str = "127.0.0.1"
    port: int = 3000
    data: Path | None = None
    num_products: int | None = None
    human_goals: bool = False
    threads: int = 8

    def run(self) -> None:
        from .envs.webshop.server import serve

        _check_port(self.port)
        serve(**vars(self), ready=_ready)


@dataclass(frozen=True)
class RetrievalServer:
    """A search server, wire-compatible with Search-R1's POST /retrieve.

    Attributes:
        index: an index folder that `arboretum index build` made, or a corpus file.
        host: where to listen; the default is reachable from this machine only.
        port: TCP port; 0 takes a free one.
        max_batch: queries searched at once.
        max_waiting: requests that may wait; further ones are told 503.
    """

    index: Path
    host: str = "127.0.0.1"
    port: int = 8000
    max_batch: int = 64
    max_waiting: int = 64

    def run(self) -> None:
        from .envs.retrieval.server import serve

        _check_port(self.port)
        serve(**vars(self), ready=_ready)


def _check_port(port: int) -> None:
    if not 0 <= port <= 65535:
        raise ConfigurationError(f"--port must lie between 0 and 65535, not {port}.")


def _ready(address: str) -> None:
    console.print(f"Serving at {address}; Ctrl-C stops.", soft_wrap=True)


@app.command
def serve(
    server: OmitArgPrefixes[
        Annotated[WebShopServer, _verb("webshop")] | Annotated[RetrievalServer, _verb("retrieval")]
    ],
) -> int:
    """Serve a world's pages, or an index, over HTTP until Ctrl-C."""
    server.run()
    return 0


@dataclass(frozen=True)
class BuildIndex:
    """Build an index of a corpus: streamed, resumable, written whole or not at all.

    Attributes:
        corpus: JSON lines with `id` and `contents`, plain or gzipped.
        out: the folder to make.
        retriever: bm25, lucene, dense or hybrid.
        encoder: e5, bge, or the name or folder of a model; for dense and hybrid.
        faiss: Flat, IVF, HNSW or PQ; for dense and hybrid.
        overwrite: replace an index that stands there.
    """

    corpus: Path
    out: Path
    retriever: str = "bm25"
    encoder: str = "e5"
    faiss: str = "Flat"
    overwrite: bool = False

    def run(self) -> None:
        from .envs.retrieval.build import build_index
        from .envs.retrieval.progress import progress_bar

        with progress_bar() as report:
            manifest = build_index(**vars(self), progress=report)
        console.print(f"Indexed {manifest.documents:,} documents in {self.out}", soft_wrap=True)


@dataclass(frozen=True)
class Recall:
    """Recall of supporting titles on real questions (HotpotQA's, where they are found).

    Attributes:
        retriever: bm25, lucene, dense, hybrid, index folders, or addresses of servers.
        data: folder of the data set; default: hotpotqa/ below ARBORETUM_DATA.
        encoder: e5, bge, or the name or folder of a model; for dense and hybrid.
    """

    retriever: tuple[str, ...] = ("bm25",)
    data: Path | None = None
    encoder: str = "e5"

    def run(self) -> None:
        from .envs.retrieval.report import as_table
        from .envs.searchqa.recall import supporting_title_recall

        rows = supporting_title_recall(self.retriever, data=self.data, encoder=self.encoder)
        console.print(as_table(rows), markup=False, soft_wrap=True)


@app.command
def index(
    job: OmitArgPrefixes[Annotated[BuildIndex, _verb("build")] | Annotated[Recall, _verb("recall")]],
) -> int:
    """Build an index for retrieval, or measure how well one finds supporting articles."""
    job.run()
    return 0


@app.command
def data(
    verb: Positional[Literal["list", "get", "verify"]],
    name: Positional[str | None] = None,
    /,
    root: Path | None = None,
) -> int:
    """List, fetch or verify public data sets.

    Args:
        verb: list what is known and what is here; get one; verify one against the checksums noted when it came.
        name: name of a data set.
        root: the data folder; default: ARBORETUM_DATA.
    """
    from .envs.searchqa import downloads

    if verb == "list":
        from rich.table import Table

        table = Table(box=None, pad_edge=False, show_header=False)
        for known, state in downloads.data_list(root):
            table.add_row(known.name, state, known.size, known.license)
        console.print(table)
        return 0
    if name is None:
        raise ConfigurationError(f"say which data set to {verb}; `arboretum data list` shows them.")
    if verb == "get":
        from .envs.retrieval.progress import progress_bar

        with progress_bar() as progress:
            folder = downloads.data_get(name, root, progress=progress)
        console.print(f"{name} is in {folder}", soft_wrap=True)
        return 0
    found = downloads.data_verify(name, root)
    for file, state in found.items():
        console.print(f"{file}: {state}")
    return 0 if all(state in ("ok", "unknown") for state in found.values()) else 1


@app.command
def train(recipe: Positional[str | None] = None, /, *, options: Annotated[TrainOptions, arg(name="")]) -> int:
    """Train a language model by reinforcement learning on an environment's tasks.

    Args:
        recipe: Algorithm: {recipes}, or a plug-in's. Required, unless --resume is given.
        options: Everything else.
    """
    from .trainers import train as training

    config = training.resolve_training_config(recipe, options)
    return training.train(config, resume=options.resume is not None, console=console)


@app.command
def sft(*, options: Annotated[SFTOptions, arg(name="")]) -> int:
    """Fine-tune a language model on episodes of an environment's expert, as a warm start of training.

    Args:
        options: Everything.
    """
    from .trainers import train as training

    config = training.resolve_sft_config(options)
    return training.sft(config, resume=options.resume is not None, console=console)


@app.command
def study(name: Positional[str], /, out: Path | None = None, workers: int = 2) -> int:
    """Train several recipes from one warm start over several seeds, and measure them on held-out tasks.

    What is finished is kept: the same command goes on where it was stopped.

    Args:
        name: first-steps (minutes), ragen-mini (most of an hour), or the path of a .yaml file.
        out: folder of the study; default runs/study-<name>.
        workers: runs at once, each in a process of its own with one thread.
    """
    from .trainers.study.definition import load_study
    from .trainers.study.runner import run_study

    found = load_study(name)
    return run_study(found, out or Path("runs") / f"study-{found.name}", workers=workers, console=console)


@app.command
def sapling(out: Path = Path("runs/sapling"), seed: int = 0) -> int:
    """Pretrain the shipped model of 0.44 million parameters anew, on expert episodes of two environments.

    Args:
        out: Folder of the model.
        seed: Seed of the initial weights, the tasks and the episodes; 0 for the shipped model.
    """
    from .trainers.sapling.command import make_sapling

    return make_sapling(out, seed, console=console)


def main(arguments: list[str] | None = None) -> None:
    """Entry point: exit status 2 and one sentence for what the user can mend."""
    try:
        status: Any = app.cli(args=arguments, prog="arboretum", description=DESCRIPTION)
    except ConfigurationError as error:
        Console(stderr=True, highlight=False).print(f"arboretum: {error}", markup=False, soft_wrap=True)
        sys.exit(2)
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        Console(stderr=True, highlight=False).print(f"arboretum: {what}.", markup=False, soft_wrap=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(status)


if __name__ == "__main__":
    main()
