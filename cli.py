"""The `arboretum` command. Every verb calls into a room; nothing is worked out here."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from tyro.conf import OmitArgPrefixes, Positional
from tyro.extras import SubcommandApp

from .envs.errors import ConfigurationError

DESCRIPTION = "Text worlds, players, trainers and an evaluation harness for language-model agents."

app = SubcommandApp()
console = Console(highlight=False)


@app.command
def worlds() -> int:
    """List the worlds: their ids, for `gym.make` and for suites, and what they are."""
    from rich.table import Table

    from .envs.registry import all_worlds

    table = Table(box=None, pad_edge=False, show_header=False)
    for world in all_worlds():
        table.add_row(world.id, world.summary)
    console.print(table)
    return 0


@app.command
def play(
    world: Positional[str],
    /,
    task: str | None = None,
    seed: int | None = None,
    split: str | None = None,
    agent: str = "human",
) -> int:
    """Play one episode in the terminal.

    Args:
        world: id of a world, such as TextSokoban-v0.
        task: name of a task; default: one drawn from the seed.
        seed: seed of task and luck; default: a new one each time.
        split: task split to draw from.
        agent: who plays: human, random, expert.
    """
    from .agents.terminal import play_in_terminal

    options = {} if split is None else {"split": split}
    return play_in_terminal(world, agent, task=task, seed=seed, options=options, console=console)


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
        option: further options of the engine, as key=value, such as dtype=bfloat16 or cost_limit=5.
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
    option: tuple[str, ...] = ()
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
    from .eval.evaluate import evaluate
    from .eval.players import players_of

    with players_of(agent, **vars(lm)) as players:
        return evaluate(
            suite,
            players,
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
        runs: folders that `arboretum eval` wrote.
        out: the HTML file; default: report.html in the first folder.
    """
    from .eval.evaluate import report as write
    from .eval.table import results_table

    if not runs:
        raise ConfigurationError("name at least one run's folder, such as runs/quick-random-expert.")
    path = out or runs[0] / "report.html"
    console.print(results_table(write(runs, path)))
    console.print(f"Report: {path}", soft_wrap=True)
    return 0


@app.command
def bench(what: Positional[str] = "worlds", /, peers: bool = False) -> int:
    """Measure speed as ratios within one run.

    Args:
        what: worlds.
        peers: also measure the original systems, where they are installed.
    """
    from .eval.bench import measurements
    from .eval.table import bench_table

    rows = []
    with console.status("measuring …") as status:
        for row in measurements(what, peers=peers):
            rows.append(row)
            status.update(f"measured: {row.what}")
    console.print(bench_table(rows, console.width))
    return 0


def main(arguments: list[str] | None = None) -> None:
    """Entry point: exit status 2 and one sentence for what the user can mend."""
    try:
        status: Any = app.cli(args=arguments, prog="arboretum", description=DESCRIPTION)
    except ConfigurationError as error:
        Console(stderr=True, highlight=False).print(f"arboretum: {error}", markup=False, soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(status)


if __name__ == "__main__":
    main()
