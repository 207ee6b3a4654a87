"""Reference pages in Markdown, generated from the code: settings, engines, files and data."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from ...agents.dialogue.base import Dialogue
from ...agents.dialogue.registry import DIALOGUES
from ...agents.engines.base import Engine, Sampling
from ...agents.engines.registry import ENGINES
from ...envs.data_sources import DATA_SOURCES
from ...envs.docstrings import fields_of, fields_table, markdown_table, meanings, parameters_of, summary_of
from ...envs.files import write_atomic
from ...envs.searchqa.downloads import DATA_SETS
from ..laboratory.arms import ARMS
from ..laboratory.experiment import DEFAULT_TASKS, LEARNING_RATES, Experiment, Run
from ..laboratory.tasks import FAMILIES
from .api_pages import API_PAGES, api_page
from .reference_definitions import definitions_page
from .reference_files import files_page
from .reference_settings import settings_page

_NOTE = "<!-- Generated from the code by `make docs`. -->\n"


def reference_pages() -> Iterator[tuple[str, str]]:
    """Yield the file name and the Markdown of each page."""
    pages = {
        "settings.md": ("Settings of recipes and runs", settings_page()),
        "engines.md": ("Engines, dialogues and sampling", _engines_page()),
        "suites.md": ("Suites and studies in YAML", definitions_page()),
        "files.md": ("Files of a run", files_page()),
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
            " defaults and eight chains, or four trees where it needs trees.\n",
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
        parts.append(f"Get it: {source.download}. Terms: {source.terms} Try it: `{source.check}`.\n")
    parts.append("## Question sets and corpora\n\nSizes are approximate; licenses are stated by publishers.\n")
    for one in DATA_SETS.values():
        rows = ", ".join(f"{count:,} {name}" for name, count in one.rows.items())
        parts.append(f"* `{one.name}`: {one.source}; {rows}; {one.size}; {one.license}")
        parts += [f"  * `{one.name}/{name}`: {url}" for name, url in one.files.items()]
    parts.append("")
    return "\n".join(parts)
