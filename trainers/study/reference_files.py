"""Reference page of the files of a run, generated from the classes whose fields are their keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...agents.episode import NOT_STORED, Move, Turn
from ...envs.docstrings import fields_of, in_yaml, markdown_table, meanings
from ...eval.comparison.analysis import Agent, Difference, EntryRate, RunComparison
from ...eval.decisions import DecisionLine
from ...eval.decisions.file import DECISIONS_FILE
from ...eval.file_schemas import EXCHANGE, RUN_FILE, episode_keys
from ...eval.paper_results import Cell, ColumnFacts, FilledTable, TableRow
from ...eval.statistics import Paired
from ...eval.statistics.repeats import Repeats
from ...eval.summary import Comparison, Line, Summary
from ..config.run import SFTConfig, TrainingConfig
from ..config.settings import DialogueConfig, EnvConfig
from ..data.cognitive_graph import CognitiveGraph, Graft, GraphDivergence, GraphEdge, GraphEpisode, GraphNode
from ..reporting.metric_names import SFT_METRICS, TRAINING_METRICS
from ..reporting.trees import GROUPS, MAX_TEXT, StoredTree, TurnText

_KEY_TABLE = ("key", "meaning")


def files_page() -> str:
    """Return the page of the files that runs write."""
    config = markdown_table(_KEY_TABLE, _keys(TrainingConfig))
    sft = {**meanings(TrainingConfig), **{k: v for k, v in meanings(SFTConfig).items() if not v.startswith("See")}}
    sft_rows = [(f"`{field.name}`", in_yaml(sft[field.name])) for field in fields_of(SFTConfig)]
    return "\n".join(
        [
            "## `arboretum eval`\n\n### `run.json`\n\nSettings of the run, an object.\n",
            markdown_table(_KEY_TABLE, _rows(RUN_FILE)),
            "### `episodes.jsonl`\n\nOne finished episode per line, in order of completion. A later line of the"
            " same agent, entry, task and repeat replaces an earlier one. Lines that were damaged are in"
            " `episodes.damaged.jsonl`.\n",
            markdown_table(_KEY_TABLE, _rows(episode_keys())),
            "A turn; keys without a value are absent:\n",
            markdown_table(_KEY_TABLE, [row for row in _keys(Turn) if row[0].strip("`") not in NOT_STORED]),
            "A move:\n",
            markdown_table(_KEY_TABLE, _keys(Move)),
            "An exchange, which leaves out what the record implies; the messages of every request can be restored"
            " exactly:\n",
            markdown_table(_KEY_TABLE, _rows(EXCHANGE)),
            "### `decisions.jsonl`\n\nLabels of the episodes' actions, written by `arboretum eval` and"
            " `arboretum decisions`; [decisions.md](../decisions.md) explains them. The file is derived, and can"
            " be deleted.\n",
            markdown_table(_KEY_TABLE, _rows(DECISIONS_FILE)),
            "### `texts.jsonl`\n\nSystem messages, each stored once, as objects with `digest` and `text`.\n",
            "### `summary.json`\n\nWritten after every evaluation and by `arboretum report`; NaN is `null`.\n",
            markdown_table(_KEY_TABLE, _keys(Summary)),
            "A line; intervals have `value`, `low` and `high`:\n",
            markdown_table(_KEY_TABLE, _keys(Line)),
            "A line of the decisions:\n",
            markdown_table(_KEY_TABLE, _keys(DecisionLine)),
            f"A comparison has the keys {', '.join(f'`{f.name}`' for f in fields_of(Comparison))}.\n",
            "A table of the suite:\n",
            markdown_table(_KEY_TABLE, _keys(FilledTable)),
            "One of its `columns`:\n",
            markdown_table(_KEY_TABLE, _keys(ColumnFacts)),
            "One of its `rows`:\n",
            markdown_table(_KEY_TABLE, _keys(TableRow)),
            "One of the row's `cells`:\n",
            markdown_table(_KEY_TABLE, _keys(Cell)),
            "## `arboretum compare`\n\n### Data of a comparison of evaluation runs\n\nThe `.json` file beside the"
            " page of `--out`. Rates and differences in success are between -1 and 1; NaN and infinite are"
            " `null`.\n",
            *_key_tables(
                ("", RunComparison),
                ("An agent:\n", Agent),
                ("Its results on an entry:\n", EntryRate),
                ("Repeats of a task:\n", Repeats),
                ("A difference:\n", Difference),
                ("Its `result`:\n", Paired),
            ),
            "## `arboretum train`\n\n### `run.json`\n\nSettings of the run; their keys are those of"
            " [the settings](settings.md), and a part of a recipe carries its `name`.\n",
            config,
            "`env` has the keys\n",
            markdown_table(_KEY_TABLE, _keys(EnvConfig)),
            "and `dialogue`\n",
            markdown_table(_KEY_TABLE, _keys(DialogueConfig)),
            "### `metrics.jsonl`\n\nOne update per line, an object of numbers. A metric that was not measured in"
            " an update, or is not finite, is absent.\n",
            markdown_table(("metric", "meaning"), _rows(TRAINING_METRICS)),
            *_tree_tables(),
            "## `arboretum sft`\n\n### `run.json`\n",
            markdown_table(_KEY_TABLE, sft_rows),
            "### `metrics.jsonl`\n\nOne optimizer step per line.\n",
            markdown_table(("metric", "meaning"), _rows(SFT_METRICS)),
        ]
    )


def _key_tables(*tables: tuple[str, type]) -> list[str]:
    """Return the tables of keys of dataclasses, each below its title if it has one."""
    return [text for title, kind in tables for text in (title, markdown_table(_KEY_TABLE, _keys(kind))) if text]


def _tree_tables() -> list[str]:
    """Return the sections of `trees.jsonl`."""
    nested = {
        "An entry of `turns`": TurnText,
        "`graph`": CognitiveGraph,
        "An entry of `nodes`": GraphNode,
        "An entry of `edges`": GraphEdge,
        "An entry of `divergences`": GraphDivergence,
        "An entry of `episodes`": GraphEpisode,
        "An entry of `grafts`": Graft,
    }
    tables = [f"{name}:\n\n{markdown_table(_KEY_TABLE, _keys(cls))}" for name, cls in nested.items()]
    return [
        "### `trees.jsonl`\n\nOne group of episodes per line, merged by the credit or sampled as a tree:"
        f" up to {GROUPS} groups of the first update, of each with a validation, and of the last. Texts of a turn"
        f" are cut to {MAX_TEXT} characters. Recipes whose episodes are independent and are not merged have no"
        " such file.\n",
        markdown_table(_KEY_TABLE, _keys(StoredTree)),
        *tables,
    ]


def _rows(texts: Mapping[str, str]) -> list[tuple[str, str]]:
    return [(f"`{name}`", in_yaml(meaning)) for name, meaning in texts.items()]


def _keys(cls: Any) -> list[tuple[str, str]]:
    return [(f"`{field.name}`", in_yaml(field.meaning)) for field in fields_of(cls)]
