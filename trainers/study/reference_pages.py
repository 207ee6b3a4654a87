"""Reference pages in Markdown, generated from the code: settings, engines, files and data."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from ...agents.dialogue.base import Dialogue
from ...agents.dialogue.registry import DIALOGUES
from ...agents.engines.base import Engine, Sampling
from ...agents.engines.registry import ENGINES
from ...agents.episode import NOT_STORED, Move, Turn
from ...envs.data_sources import DATA_SOURCES
from ...envs.docstrings import (
    Field,
    fields_of,
    fields_table,
    in_yaml,
    markdown_table,
    meanings,
    parameters_of,
    summary_of,
)
from ...envs.files import write_atomic
from ...envs.searchqa.downloads import DATA_SETS
from ...eval.comparison.analysis import Agent, Difference, EntryRate, RunComparison
from ...eval.decisions import DecisionLine
from ...eval.decisions.file import DECISIONS_FILE
from ...eval.file_schemas import EXCHANGE, RUN_FILE, episode_keys
from ...eval.paper_results import Cell, ColumnFacts, FilledTable, TableRow
from ...eval.paper_tables import PaperTable, PublishedRow, TableColumn
from ...eval.repeats import Repeats
from ...eval.statistics import Paired
from ...eval.suite import Entry, Replacement, Suite, suite_names
from ...eval.summary import Comparison, Line, Summary
from ..algorithms.grafting import Grafting
from ..algorithms.objectives.settings import Kl, Mismatch, Objective, Overlong
from ..algorithms.recipe import Critic, Optimization
from ..algorithms.recipes import RECIPES
from ..algorithms.registry import CREDITS, SAMPLERS, SELECTORS, TERMS
from ..algorithms.rewards import Rewards
from ..algorithms.schedules import Linear
from ..config.run import SFTConfig, TrainingConfig
from ..config.serialize import flatten, to_plain
from ..config.settings import (
    DialogueConfig,
    EnvConfig,
    ExpertConfig,
    HardwareConfig,
    LoraConfig,
    SFTSettings,
    SteppingConfig,
    ValidationConfig,
)
from ..data.cognitive_graph import CognitiveGraph, Graft, GraphDivergence, GraphEdge, GraphEpisode, GraphNode
from ..laboratory.arms import ARMS
from ..laboratory.experiment import DEFAULT_TASKS, LEARNING_RATES, Experiment, Run
from ..laboratory.tasks import FAMILIES
from ..monitor import Monitor
from ..reporting.metric_names import SFT_METRICS, TRAINING_METRICS
from ..reporting.trees import GROUPS, MAX_TEXT, StoredTree, TurnText
from .api_pages import API_PAGES, api_page
from .controls import Controls, Supervised
from .definition import Study, StudyEnv
from .parsing import StudyFile, study_names
from .tuning import Tuning

_NOTE = "<!-- Generated from the code by `make docs`. -->\n"
_KEY_TABLE = ("key", "meaning")
SUITE_EXAMPLE = """\
name: mine
description: two environments
entries:
  - {env: TextSokoban-v0, split: test, tasks: 64}
  - {env: TextBandit-v0, split: test, repeats: 4}
sampling: {temperature: 0.7}
"""
TABLE_EXAMPLE = """\
name: search
entries:
  - name: NQ
    env: TextSearchQA-v0
    needs: [nq/test.jsonl, wiki-18/index]
    kwargs: {dataset: nq, retriever: $ARBORETUM_DATA/wiki-18/index}
    split: test
    otherwise:
      - {kwargs: {dataset: encyclopedia, hops: 1}, split: test, tasks: 256, note: generated questions}
  - {name: Two hops, env: TextSearchQA-v0, kwargs: {dataset: encyclopedia, hops: 2}, split: test, tasks: 256}
tables:
  - title: Search
    measure: exact match in %
    columns:
      - {name: NQ, entry: NQ, tasks: 3610}
      - {name: Two hops, entry: Two hops}
      - {name: Average, macro: [NQ, Two hops]}
    published:
      - {method: a method, model: its model, source: "a paper, table 1", values: {NQ: 40.1}}
"""
STUDY_EXAMPLE = """\
name: mine
model: sapling
envs:
  - {name: Sokoban, id: TextSokoban-v0, kwargs: {reward_mode: sparse}}
settings: {optimization.updates: 30, optimization.lr: 3.0e-4}
recipes:
  grpo: {}
  ppo: {critic.lr: 1.0e-3}
seeds: 5
controls:
  temperatures: [0.3, 0.5, 0.7]
  supervised: {lr: 5.0e-4, batch: 64}
"""


def reference_pages() -> Iterator[tuple[str, str]]:
    """Yield the file name and the Markdown of each page."""
    pages = {
        "settings.md": ("Settings of recipes and runs", _settings_page()),
        "engines.md": ("Engines, dialogues and sampling", _engines_page()),
        "suites.md": ("Suites and studies in YAML", _definitions_page()),
        "files.md": ("Files of a run", _files_page()),
        "laboratory.md": ("The laboratory of credit rules", _laboratory_page()),
        "data.md": ("Benchmark data", _data_page()),
        **{page.file: (page.title, api_page(page)) for page in API_PAGES},
    }
    links = "\n".join(f"* [{title}]({name})" for name, (title, _) in pages.items())
    yield "README.md", f"{_NOTE}# Reference\n\n{links}\n\n`arboretum COMMAND --help` lists a command's options.\n"
    for name, (title, text) in pages.items():
        yield name, f"{_NOTE}# {title}\n\n{text}"


def write_reference(folder: Path) -> list[Path]:
    """Write the pages into a folder, which is created if needed, and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, text in reference_pages():
        write_atomic(folder / name, text)
        written.append(folder / name)
    return written


# ---------------------------------------------------------------------- settings of training


def _settings_page() -> str:
    parts = [
        "`arboretum train RECIPE --set path=value` changes a setting of a recipe, and may be repeated. Values"
        " are YAML:"
        " numbers, `true`, `null`, lists. A part is exchanged by its name, such as `--set"
        " selector.name=uncertainty`;"
        " it then has its own defaults. The defaults below are those of the classes; what a recipe changes is"
        " listed"
        " at the end.\n",
        "## `optimization`: optimizer of the policy\n",
        fields_table(fields_of(Optimization), "optimization."),
    ]
    for part, kinds in (("sampler", SAMPLERS), ("selector", SELECTORS), ("credit", CREDITS)):
        parts.append(f"## `{part}`: one of {', '.join(f'`{name}`' for name in kinds)}\n")
        for name, cls in kinds.items():
            fields = fields_of(cls)
            parts.append(f"### `{part}.name={name}`\n\n{summary_of(cls)}\n")
            parts.append(fields_table(fields, f"{part}.") if fields else "It has no settings.\n")
    nested = {
        "rewards": (Rewards, "rewards of training"),
        "objective": (Objective, "loss of the policy"),
        "objective.kl": (Kl, "KL penalty"),
        "objective.mismatch": (Mismatch, "correction for the sampler's probabilities"),
        "overlong": (Overlong, "episodes that are too long"),
        "grafting": (Grafting, "preference pairs made at divergences"),
        "critic": (Critic, "value model, for credits that need one; `critic=null` removes it"),
    }
    for path, (kind, title) in nested.items():
        parts += [f"## `{path}`: {title}\n", fields_table(fields_of(kind), f"{path}.")]
    parts.append(
        "## `objective.terms`: further terms of the loss\n\nA list of names, or of mappings with settings:"
        " `--set 'objective.terms=[{name: surgical, weight: 0.3}]'`.\n"
    )
    for name, term in TERMS.items():
        parts += [f"### `{name}`\n\n{summary_of(term)}\n", fields_table(fields_of(term), heading="key")]
    parts += [
        "## Schedules\n\n`sampler.temperature` is a number, or changes linearly over the run:"
        " `--set sampler.temperature.start=1.0 --set sampler.temperature.end=0.7`.\n",
        fields_table(fields_of(Linear), "sampler.temperature."),
        "## Settings that recipes change\n",
        markdown_table(("recipe", "settings"), _recipe_rows()),
        "## Options beside `--set`\n\nThese are options of their own of `arboretum train` and `arboretum sft`.\n",
    ]
    options = [
        ("Hardware", HardwareConfig, "--", "train, sft"),
        ("Low-rank adapters, with `--lora`", LoraConfig, "--lora.", "train, sft"),
        ("Processes of environments", SteppingConfig, "--", "train"),
        ("Validation", ValidationConfig, "--validation.", "train"),
        ("Monitor", Monitor, "--monitor.", "train"),
        ("Supervised fine-tuning", SFTSettings, "--", "sft"),
        ("Expert", ExpertConfig, "--expert.", "sft"),
    ]
    for title, cls, prefix, commands in options:
        fields = [
            field._replace(name=field.name.replace("_", "-")) for field in fields_of(cls) if field.name != "lora"
        ]
        parts += [f"### {title} ({commands})\n", fields_table(fields, prefix, "option")]
    return "\n".join(parts)


def _recipe_rows() -> Iterator[tuple[str, str]]:
    """Yield the settings in which each recipe differs from the defaults of its parts."""
    for name, recipe in RECIPES.items():
        changed = []
        for part in (
            "sampler",
            "rewards",
            "selector",
            "credit",
            "objective",
            "overlong",
            "grafting",
            "critic",
            "optimization",
        ):
            value = getattr(recipe, part)
            if value is None:
                continue
            default = flatten(to_plain(type(value)()), part)
            plain = flatten(to_plain(value), part)
            shown = {
                path: one for path, one in plain.items() if one != default.get(path) or path == f"{part}.name"
            }
            changed += [f"`{path}={json.dumps(one)}`" for path, one in shown.items()]
        yield f"`{name}`", f"{recipe.about} {', '.join(changed)}"


# ---------------------------------------------------------------------- engines and dialogues


def _engines_page() -> str:
    parts = ["`arboretum eval --engine NAME --engine-arg option=value` sets an option of an engine.\n"]
    for name, (module, cls) in ENGINES.items():
        kind: type[Engine] = getattr(import_module(f"{Engine.__module__.rpartition('.')[0]}.{module}"), cls)
        parts += [f"## Engine `{name}`\n\n{summary_of(kind)}\n"]
        parts.append(fields_table(parameters_of(kind, without=("model",)), heading="option"))
        forwarded = meanings(kind).get("**options", "")
        if forwarded and not forwarded.startswith("See"):
            parts.append(f"{forwarded}\n")
    parts.append(
        "## Dialogues\n\n`--dialogue NAME --dialogue-arg setting=value` sets them in `arboretum eval` and"
        " `arboretum train`; in a suite's file they stand under `dialogue`. All dialogues have the settings\n"
    )
    common = fields_of(Dialogue)
    parts.append(fields_table(common))
    rows = []
    for name, dialogue in DIALOGUES.items():
        own = {field.name: field for field in fields_of(dialogue)}
        changed = [f"`{field.name}={own[field.name].default}`" for field in common if own[field.name] != field]
        changed += [f"`{field}={own[field].default}`" for field in own.keys() - {one.name for one in common}]
        rows.append((f"`{name}`", summary_of(dialogue), ", ".join(changed)))
    parts += [markdown_table(("dialogue", "description", "other defaults"), rows)]
    parts += [
        "## Sampling\n\nThe settings under `sampling` in a suite's file.\n",
        fields_table(fields_of(Sampling)),
    ]
    return "\n".join(parts)


# ---------------------------------------------------------------------- suites and studies


def _definitions_page() -> str:
    suite = [
        field._replace(default="required") if field.name == "entries" else field for field in fields_of(Suite)
    ]
    study_texts = {
        **meanings(Study),
        "envs": "Environments: a list with the keys below.",
        "recipes": (
            "Recipes by name, each with the settings by path that are its own, or `{}`. A variant has a"
            " free name, and the name of its recipe in the key `recipe`."
        ),
        "levels": meanings(Study)["levels"].replace(" by name;", ", a list with the keys below;"),
        "controls": "Policies to compare with the trained ones: a mapping with the keys below.",
        "tuning": (
            "Choice of a setting for each recipe in each environment before its runs: a mapping with the keys"
            " below; `null` for none."
        ),
    }
    study = [field._replace(meaning=study_texts[field.name]) for field in fields_of(StudyFile)]
    env_texts = meanings(EnvConfig)
    envs = [
        Field("name", "text", "required", "Name of the environment in tables and folders."),
        Field("id", "text", "required", env_texts["id"]),
        Field("kwargs", "mapping", "{}", env_texts["kwargs"]),
    ]
    envs += [field for field in fields_of(StudyEnv) if field.name != "config"]
    controls = fields_of(Controls)
    kind = "mapping or true or false"
    texts = {field.name: field.meaning.replace("None leaves", "False leaves") for field in controls}
    controls = [
        field._replace(kind=kind, default="true", meaning=texts[field.name])
        if field.name == "supervised"
        else field
        for field in controls
    ]
    suites, studies = (", ".join(f"`{name}`" for name in names()) for names in (suite_names, study_names))
    return "\n".join(
        [
            f"## Suites\n\n`arboretum eval SUITE` takes a shipped suite ({suites}), or the path of a file:\n",
            f"```yaml\n{SUITE_EXAMPLE}```\n",
            fields_table(_named_by_file(suite), heading="key"),
            "The keys of an entry:\n",
            fields_table(_named_by_file(fields_of(Entry)), heading="key"),
            "The keys of a replacement in `otherwise`:\n",
            fields_table(fields_of(Replacement), heading="key"),
            "### Tables in the layout of a paper\n\nA suite with `tables` prints them in place of the table of all"
            " results, which stays in the report; `summary.json` has them too. Each agent is a row below the"
            " headings, and published rows follow with their source. A column is marked if its tasks are not those"
            " of the published rows: with `*` if they are generated in the place of a benchmark's files, else with"
            " `+`. Published values in a marked column are in parentheses. An average of columns of which some"
            " are on generated data and some on files is left out. Changes of `tables` do not hinder the"
            " resumption of a run, which keeps the tables that it began with.\n",
            f"```yaml\n{TABLE_EXAMPLE}```\n",
            fields_table(fields_of(PaperTable), heading="key"),
            "The keys of a column:\n",
            fields_table(fields_of(TableColumn), heading="key"),
            "The keys of a published row:\n",
            fields_table(fields_of(PublishedRow), heading="key"),
            f"## Studies\n\n`arboretum study STUDY` takes a shipped study ({studies}), or the path of a file:\n",
            f"```yaml\n{STUDY_EXAMPLE}```\n",
            fields_table(study, heading="key"),
            "The keys of an environment; one of `levels` has `name`, `id`, `kwargs`, `model` and `test_split`:\n",
            fields_table(envs, heading="key"),
            "The keys of `controls`; the second table has those of `supervised`:\n",
            fields_table(controls, heading="key"),
            fields_table(fields_of(Supervised), heading="key of `supervised`"),
            "The keys of `tuning`:\n",
            fields_table(fields_of(Tuning), heading="key"),
        ]
    )


def _named_by_file(fields: list[Field]) -> list[Field]:
    """Return the fields with the defaults that the parser of a file gives to names and descriptions."""
    defaults = {"name": "see right", "description": '""'}
    return [field._replace(default=defaults[field.name]) if field.name in defaults else field for field in fields]


# ---------------------------------------------------------------------- files


def _files_page() -> str:
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


# ---------------------------------------------------------------------- data


def _laboratory_page() -> str:
    tasks = [
        (f"`{name}`" + ("" if name in DEFAULT_TASKS else " (not by default)"), family.about)
        for name, family in FAMILIES.items()
    ]
    options = [option for option in fields_of(Experiment) if option.name != "tuning_seeds"]
    arms = [(f"`{name}`", arm.about, f"`{arm.baseline}`") for name, arm in ARMS.items()]
    rates = ", ".join(f"{rate:g}" for rate in LEARNING_RATES)
    return "\n".join(
        [
            "`arboretum study credit` trains softmax tables by the credit rules of training, and evaluates them"
            " exactly; see [the laboratory](../laboratory.md).\n",
            "## Options\n",
            fields_table(options, "--", "option"),
            f"The tuned regime chooses among the learning rates {rates}.\n",
            "## Tasks\n",
            markdown_table(("name", "tasks"), tasks),
            "## Arms\n\nThe name of another registered credit, a plug-in's included, is an arm with the credit's"
            " defaults and eight chains.\n",
            markdown_table(("name", "arm", "compared with"), arms),
            "## `results.jsonl`: one record per run\n",
            fields_table(fields_of(Run), heading="key"),
        ]
    )


def _data_page() -> str:
    parts = [
        "Every environment generates its own tasks. With real data, set `ARBORETUM_DATA` to a folder with the"
        " subfolders below, or pass a subfolder's path as `data`. No environment downloads anything.\n"
    ]
    for source in DATA_SOURCES:
        layout = markdown_table(("file", "content"), [(f"`{name}`", text) for name, text in source.layout])
        parts.append(f"## `{source.folder}/`: {source.env}\n\n{source.publisher}\n\n{layout}")
        parts.append(f"Terms: {source.terms} Try it: `{source.check}`.\n")
    parts.append("## Question sets and corpora\n\nSizes are approximate; licenses are stated by publishers.\n")
    for one in DATA_SETS.values():
        rows = ", ".join(f"{count:,} {name}" for name, count in one.rows.items())
        parts.append(f"* `{one.name}`: {one.source}; {rows}; {one.size}; {one.license}")
        parts += [f"  * `{one.name}/{name}`: {url}" for name, url in one.files.items()]
    parts.append("")
    return "\n".join(parts)
