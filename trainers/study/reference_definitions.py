"""Reference page of suites and studies in YAML, generated from the classes that their keys set."""

from __future__ import annotations

from ...envs.docstrings import Field, fields_of, fields_table, meanings
from ...eval.paper_tables import PaperTable, PublishedRow, TableColumn
from ...eval.suite import Entry, Replacement, Suite, suite_names
from ..config.settings import EnvConfig
from .controls import Controls, Supervised
from .definition import Study, StudyEnv
from .parsing import StudyFile, study_names
from .tuning import Tuning

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


def definitions_page() -> str:
    """Return the page of the files that define suites and studies."""
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
