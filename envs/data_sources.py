"""Real benchmark data: who publishes it, how its folder below `ARBORETUM_DATA` is laid out, and its terms."""

from __future__ import annotations

from typing import NamedTuple


class DataSource(NamedTuple):
    """Published data that an environment reads in place of generated tasks.

    Attributes:
        folder: Subfolder of `ARBORETUM_DATA`.
        env: Id of the environment.
        publisher: Publication, and where the files come from.
        download: Command or address that gets the files.
        license: License in a word or two; `terms` has the details.
        layout: Files of the folder, one a line, each with its meaning.
        check: Command that shows whether the data is found.
        terms: License as its publishers state it.
    """

    folder: str
    env: str
    publisher: str
    download: str
    license: str
    layout: tuple[tuple[str, str], ...]
    check: str
    terms: str


DATA_SOURCES: tuple[DataSource, ...] = (
    DataSource(
        "alfworld",
        "TextALFWorld-v0",
        "ALFWorld (Shridhar et al., ICLR 2021, arXiv:2010.03768), https://github.com/alfworld/alfworld. The"
        " folder is called `json_2.1.1` in every release; the files of alfworld 0.4 and later are expected, in"
        " which objects are put down with `move X to Y`.",
        "`alfworld-download` of the package `alfworld`",
        "MIT (repository)",
        (
            ("json_2.1.1/<split>/<task type>-…/<trial>/game.tw-pddl", "the game files; other files are ignored"),
            ("*.tar.xz, *.tar.gz, …", "archives of that tree, read without being unpacked"),
        ),
        "arboretum eval alfworld",
        "The repository is MIT-licensed and publishes the files as release assets; they derive from ALFRED (MIT)"
        " and AI2-THOR scenes. No separate license comes with the files.",
    ),
    DataSource(
        "webshop",
        "TextWebShop-v0",
        "WebShop (Yao, Chen, Yang, Narasimhan, NeurIPS 2022), repository princeton-nlp/WebShop. Its small set has"
        " 1,000 products, the full one 1.18 million.",
        "`setup.sh -d small` (or `all`) of https://github.com/princeton-nlp/WebShop",
        "academic and research use",
        (
            ("items_shuffle*.json or .json.gz", "the products; of several such files the largest is used"),
            (
                "items_ins_v2*.json or .json.gz",
                "attributes and synthetic instructions, with the ending of the product file, such as `_1000`, or"
                " none",
            ),
            ("items_human_ins*.json or .json.gz", "crowd-sourced instructions; optional"),
        ),
        "arboretum eval webshop",
        "The license of Princeton University (`LICENSE.md`, read in webshop 0.1.0) permits academic and research"
        " use only. No separate license is stated for the data; product texts come from public Amazon pages.",
    ),
    DataSource(
        "boxoban",
        "TextBoxoban-v0",
        "Boxoban levels (Guez, Mirza, Gregor et al., 2018).",
        "`git clone https://github.com/google-deepmind/boxoban-levels`",
        "Apache 2.0",
        (
            ("unfiltered/{train,valid,test}/NNN.txt", "1,000 levels a file"),
            ("medium/{train,valid}/NNN.txt", "1,000 levels a file"),
            ("hard/NNN.txt", "3,332 levels in four files"),
        ),
        "arboretum eval boxoban",
        "Apache 2.0 (LICENSE of the repository).",
    ),
    DataSource(
        "blocksworld",
        "TextBlocksworld-v0",
        "PlanBench's instances (Valmeekam et al., NeurIPS 2023 Datasets and Benchmarks, arXiv:2206.10498).",
        "`git clone https://github.com/karthikv792/LLMs-Planning` (its instances)",
        "MIT (repository)",
        (
            (
                "blocksworld/generated_basic/*.pddl",
                "instances of 4 and 5 blocks; the folder's path names the split",
            ),
            ("blocksworld/generated_basic_3/*.pddl", "instances of 3 blocks"),
            ("blocksworld_hard/*.pddl", "instances of 6 to 15 blocks"),
            ("*.tar.xz, *.tar.gz, …", "archives of these folders, read if no file is unpacked"),
        ),
        "arboretum eval planbench",
        "The repository is MIT-licensed. No separate license comes with the instances.",
    ),
    DataSource(
        "hotpotqa",
        "TextSearchQA-v0",
        "Question sets and corpora below; `arboretum data get NAME` downloads them into their folders, from the"
        " addresses there. Each data set has a folder of its own, and the environment's argument `dataset`"
        " selects it; without it `hotpotqa` is used.",
        "`arboretum data get hotpotqa`",
        "CC BY-SA 4.0",
        (
            (
                "*.jsonl, *.jsonl.gz, *.json or *.parquet",
                "questions: FlashRAG's JSON lines, HotpotQA's JSON or Search-R1's parquet; the file's name is the"
                " split",
            ),
            (
                "corpus.jsonl or corpus.jsonl.gz",
                "the corpus, unless the questions have paragraphs of their own; larger corpora are indexed with"
                " `arboretum index build` and passed as `retriever`",
            ),
        ),
        "arboretum eval TextSearchQA-v0",
        "See the list below.",
    ),
)
"""Sources of the real data, in the order of the documentation."""
