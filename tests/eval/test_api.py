"""`arboretum.evaluate`: results as an object, without output, also inside a running event loop."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy
import pytest

import arboretum
from arboretum.agents.base import Agent, Reply, Seat, Stop
from arboretum.agents.reference import RandomAgent
from arboretum.cli import main
from arboretum.envs.bandit import Bandit
from arboretum.envs.code_digest import code_digest
from arboretum.envs.errors import ConfigurationError
from arboretum.envs.retrieval.interface import Hit, Retriever
from arboretum.eval import open_index, read_episode
from arboretum.eval.suite import Entry, Suite, load_suite

ROOT = Path(arboretum.__file__).parent


def test_references_on_an_environment_give_rates_and_episodes_and_print_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    result = arboretum.evaluate("TextSokoban-v0", limit=4, repeats=2)
    assert result.complete and result.stopped is None and result.folder is None
    assert result.rates["TextSokoban-v0", "expert"].value == 1.0
    assert result.line("random").expected == 8
    assert len(result.episodes) == 16
    for key, episode in result.episodes.items():
        assert (key.agent, key.task) == (episode.agent, episode.task) and episode.turns
    assert "TextSokoban-v0, expert: 100.0 % solved (" in str(result)
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""
    assert list(tmp_path.iterdir()) == []


def test_result_is_that_of_the_command(tmp_path: Path) -> None:
    result = arboretum.evaluate("TextBandit-v0", "random", limit=5, seed=4, out=tmp_path / "api")
    command = ["eval", "TextBandit-v0", "--agent", "random", "--no-references", "--limit", "5", "--seed", "4"]
    subprocess.run(
        [sys.executable, "-m", "arboretum", *command, "--out", str(tmp_path / "command")],
        check=True,
        capture_output=True,
    )

    def outcomes(folder: Path) -> list[tuple[Any, ...]]:
        lines = (folder / "episodes.jsonl").read_text().splitlines()
        return sorted((r["task"], r["seed"], r["return"], r["success"]) for r in map(json.loads, lines))

    assert outcomes(tmp_path / "api") == outcomes(tmp_path / "command")
    assert result.folder == tmp_path / "api" and (tmp_path / "api" / "report.html").exists()


def test_run_in_a_folder_is_resumed(tmp_path: Path) -> None:
    arboretum.evaluate("TextBandit-v0", "random", limit=5, out=tmp_path / "run")
    before = (tmp_path / "run" / "episodes.jsonl").read_bytes()
    again = arboretum.evaluate("TextBandit-v0", "random", limit=5, out=tmp_path / "run")
    assert (tmp_path / "run" / "episodes.jsonl").read_bytes() == before and len(again.episodes) == 5
    with pytest.raises(ConfigurationError, match="another suite"):
        arboretum.evaluate("TextBandit-v0", "random", limit=5, seed=1, out=tmp_path / "run")


def test_dataframe_has_a_row_per_episode(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="needs pandas")
    result = arboretum.evaluate("TextBandit-v0", limit=5, repeats=2)
    frame = result.to_dataframe()
    assert isinstance(frame, pandas.DataFrame) and len(frame) == 20
    assert list(frame.columns[:8]) == ["agent", "entry", "task", "repeat", "seed", "success", "return", "steps"]
    rates = frame.groupby("agent")["success"].mean()
    assert rates["random"] == pytest.approx(result.line("random").success.value)


class Choosy(Agent):
    """Agent of a caller, which takes the last admissible action."""

    name = "choosy"

    def act(self, seats: Sequence[Seat]) -> list[Reply | None]:
        return [Reply(((seat.env.admissible_actions() or ("",))[-1],)) for seat in seats]


class Weak(RandomAgent):
    name = "weak"

    def act(self, seats: Sequence[Seat]) -> list[Reply | None]:
        if seats[0].episode.seed % 2:
            raise ValueError("tired")
        return super().act(seats)


def test_agents_environments_and_suites_are_taken_as_objects() -> None:
    env = gym.make("TextSokoban-v0", size=7, max_steps=5, split="valid")
    result = arboretum.evaluate(env, [Choosy(), "random"], limit=3)
    assert {key.agent for key in result.episodes} == {"choosy", "random"}
    assert all(key.task.startswith("valid/") for key in result.episodes)
    assert all(episode.steps <= 5 for episode in result.episodes.values())
    assert all(len(e.turns[0].observation.splitlines()[0]) == 7 for e in result.episodes.values())
    assert arboretum.evaluate(load_suite("quick"), Choosy(), limit=2).complete


class Nowhere(Retriever):
    """Retriever of a caller, which finds nothing."""

    def __init__(self, version: int) -> None:
        self.version = version

    @property
    def identity(self) -> str:
        return f"version {self.version}"

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        return [[] for _ in queries]


def test_arguments_that_are_not_json_are_taken_and_told_apart(tmp_path: Path) -> None:
    def play(version: int) -> Any:
        env = gym.make("TextSearchQA-v0", retriever=Nowhere(version), dataset="encyclopedia")
        return arboretum.evaluate(env, "random", limit=1, seed=numpy.int64(3), out=tmp_path / "run")

    assert play(1).complete and play(1).complete
    with pytest.raises(ConfigurationError, match=r"another suite \(--env-arg retriever was .* 1' and"):
        play(2)


def test_server_that_is_down_ends_a_run_before_its_first_episode(tmp_path: Path) -> None:
    pytest.importorskip("aiohttp", reason="the extra openai is not installed")

    def play(retriever: Retriever | str, out: str) -> Any:
        env = gym.make("TextSearchQA-v0", retriever=retriever, dataset="encyclopedia")
        return arboretum.evaluate(env, "random", limit=1, out=tmp_path / out)

    with pytest.raises(
        ConfigurationError, match=r"127.0.0.1:9/retrieve cannot be reached .*; start it .*retriever="
    ):
        play("http://127.0.0.1:9", "down")
    assert not (tmp_path / "down" / "episodes.jsonl").read_text()

    class Stoppable(Nowhere):
        waits = True
        is_up = True

        def check(self) -> None:
            if not self.is_up:
                raise ConfigurationError("the server is down.")

    retriever = Stoppable(0)
    assert play(retriever, "up").complete
    retriever.is_up = False
    assert play(retriever, "up").complete, "a finished run needs no server"


@pytest.mark.parametrize(
    ("agent", "options", "message"),
    [
        ("random", {"temperature": 0.0}, "temperature requires a model"),
        (
            Choosy(),
            {"dialogue_args": {"max_turns": 1}, "examples": 0},
            "dialogue_args and examples require a model",
        ),
        ("random", {"model": "sapling"}, "model is for language agents"),
        ("random", {"in_flight": 0}, "in_flight must be at least 1"),
        ("random", {"workers": 0}, "workers must be at least 1"),
    ],
)
def test_setting_without_effect_is_refused(agent: Any, options: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        arboretum.evaluate("TextBandit-v0", agent, limit=1, **options)


class Settable(RandomAgent):
    """Agent of one's own with settings."""

    name = "settable"

    def __init__(self, pick: int = 0) -> None:
        super().__init__()
        if pick < 0:
            raise KeyError(f"no arm {pick}")
        self.pick = pick

    def act(self, seats: Sequence[Seat]) -> list[Reply | None]:
        return [Reply((seat.env.admissible_actions()[self.pick],)) for seat in seats]


def test_agent_of_ones_own_takes_settings(tmp_path: Path) -> None:
    path = f"{__name__}:Settable"

    def arms(pick: int, folder: str) -> list[str]:
        result = arboretum.evaluate(
            "TextBandit-v0", path, limit=4, agent_args={"pick": pick}, out=tmp_path / folder
        )
        return [episode.turns[0].moves[0].action for _, episode in sorted(result.episodes.items())]

    first, second = arms(0, "first"), arms(1, "second")
    assert len(first) == 4 and all(one != other for one, other in zip(first, second, strict=True))
    assert arms(1, "second") == second
    with pytest.raises(ConfigurationError, match="pick"):
        arms(0, "second")  # other episodes in the same folder
    for options, message in (
        ({"agent_args": {"pik": 1}}, "setting of .*Settable.* 'pik'"),
        (
            {"agent_args": {"pick": -1}},
            r"Settable cannot be made with pick=-1: KeyError: 'no arm -1' \(test_api.py",
        ),
        ({"agent_args": {"pick": 1}, "examples": 1}, "examples requires a model"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            arboretum.evaluate("TextBandit-v0", path, limit=1, **options)  # type: ignore[arg-type]


class Wrapping(RandomAgent):
    """Agent of one's own whose settings have the names of those of language agents."""

    name = "wrapping"
    made: ClassVar[list[tuple[str, ...]]] = []

    def __init__(
        self,
        model: str = "",
        engine: str = "",
        sampling: str = "",
        kind: str = "",
        name: str = "",
        api_key: str = "",
    ) -> None:
        super().__init__()
        if name == "nobody":
            raise RuntimeError("no such person")
        self.made.append((model, engine, sampling, kind, name, api_key))


def test_settings_of_an_agent_of_ones_own_may_have_any_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, settings = f"{__name__}:Wrapping", ("model", "engine", "sampling", "kind", "name")
    given = [part for name in settings for part in ("--agent-arg", f"{name}={name}-1")]
    run = tmp_path / "run"
    command = ["eval", "TextBandit-v0", "--agent", path, "--limit", "1", "--no-references", "--out", str(run)]
    with pytest.raises(SystemExit) as ended:
        main([*command, *given, "--agent-arg", "api_key=sk-5ecret"])
    assert not ended.value.code
    assert {*Wrapping.made} == {(*(f"{name}-1" for name in settings), "sk-5ecret")}
    stored = json.loads((run / "run.json").read_text())
    assert stored["identities"] == {"wrapping": {"settings": {name: f"{name}-1" for name in settings}}}
    page = (run / "report.html").read_text()
    assert "model model-1, engine engine-1" in page and "class None" not in page
    assert not any("sk-5ecret" in file.read_text() for file in run.glob("*.[jh]*"))
    capsys.readouterr()
    with pytest.raises(SystemExit):
        main([*command, "--agent-arg", "model=other"])
    assert "wrapping" in (refused := capsys.readouterr().err) and "model was 'model-1' and is 'other'" in refused
    with pytest.raises(ConfigurationError) as failed:
        arboretum.evaluate("TextBandit-v0", path, agent_args={"name": "nobody", "api_key": "sk-5ecret"})
    assert "cannot be made with name='nobody', api_key=***: RuntimeError: no such person" in str(failed.value)


def test_settings_of_a_given_engine_are_refused() -> None:
    pytest.importorskip("torch", reason="needs torch: pip install 'arboretum-rl[lm]'")
    from arboretum.agents.engines.registry import make_engine

    engine = make_engine("transformers", "sapling")
    with pytest.raises(ConfigurationError, match="base_url has no effect on an engine that is already made"):
        arboretum.evaluate("TextBandit-v0", "think", model=engine, limit=1, base_url="http://127.0.0.1:1/v1")


def test_numbers_of_numpy_are_taken_in_every_option() -> None:
    pytest.importorskip("torch", reason="needs torch: pip install 'arboretum-rl[lm]'")
    result = arboretum.evaluate(
        "TextBandit-v0",
        "no_think",
        model="sapling",
        limit=numpy.int64(2),
        max_tokens=numpy.int64(8),
        temperature=numpy.float32(0.5),
        examples=numpy.int64(0),
        dialogue_args={"max_turns": numpy.int64(2)},
        timeout=numpy.float32(50),
    )
    assert result.complete and all(len(episode.turns) <= 2 for episode in result.episodes.values())


def test_failed_agent_is_stated_in_the_result() -> None:
    result = arboretum.evaluate("TextBandit-v0", Weak(), limit=8)
    place = r"\(test_api.py, line \d+, in Weak.act\)"
    assert re.fullmatch(f"the agent weak failed: ValueError: tired {place}", result.stopped or "")
    assert not result.complete
    assert "Stopped: the agent weak failed" in str(result)


def test_agent_without_an_episode_leaves_the_scores_of_the_others_readable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Down(Agent):
        name = "down"

        def act(self, seats: Sequence[Seat]) -> list[Reply | None]:
            raise Stop("the engine is down")

    result = arboretum.evaluate("qa", ["random", Down()], limit=1, out=tmp_path / "run")
    assert result.stopped == "the engine is down" and not result.complete
    assert "1 hop, down: 0 of 1 episodes\n" in str(result) and "nan" not in str(result)
    with pytest.raises(SystemExit):
        main(["report", str(tmp_path / "run")])
    shown = " ".join(capsys.readouterr().out.split())
    assert "down: success – %, score –" in shown and "random: success 0.0 0.0 to 79.3 %, score 0.0" in shown
    lines = json.loads((tmp_path / "run" / "summary.json").read_text())["lines"]
    assert [line["episodes"] for line in lines if line["agent"] == "down"] == [0] * 4


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("TextBandt-v0",), {}, "did you mean TextBandit-v0"),
        (("TextBandit-v0", "rndom"), {}, "did you mean random"),
        (("TextBandit-v0", "think"), {}, r"needs a model: pass --model \(in Python model=\)"),
        (("TextBandit-v0", "think"), {"model": "foo/bar"}, "^model 'foo/bar' names neither"),
        (
            ("TextBandit-v0", "think"),
            {"model": ["sapling"]},
            "^model must be PROVIDER/NAME or the path of a folder",
        ),
        (("TextSokoban-v0",), {}, r"choose their number with --limit \(in Python limit=\)"),
        (("TextBandit-v0",), {"limit": "three"}, "limit must be a whole number, not 'three'"),
        (("TextBandit-v0",), {"seed": 1.5}, "seed must be a whole number, not 1.5"),
        (("TextBandit-v0", "think"), {"model": "sapling", "dialogue_args": {"turns": 1}}, "unknown setting"),
        (("TextBandit-v0",), {"workers": 1.5}, "workers must be a whole number, not 1.5"),
        (("TextBandit-v0",), {"in_flight": "a"}, "in_flight must be a whole number, not 'a'"),
        (("TextBandit-v0",), {"timeout": "a"}, "timeout must be a number, not 'a'"),
        (("TextBandit-v0",), {"label_seconds": "a"}, "label_seconds must be a number, not 'a'"),
        (("TextBandit-v0",), {"references": "no"}, "references must be True or False, not 'no'"),
        ((Suite("both", "", ()),), {}, "suite 'both' has no entries"),
        (
            (Suite("both", "", (Entry("a", "TextBandit-v0"), Entry("a", "TextBandit-v0"))),),
            {},
            "have the name 'a'",
        ),
        ((Suite("both", "", (Entry("a", "TextBandit-v0", tasks=-1),)),), {}, "`tasks` of entry 'a' must be at"),
        ((Suite("both", "", (Entry("a", "TextBandit-v0", repeats=1.5),)),), {}, "must be a whole number, not 1.5"),  # type: ignore[arg-type]
    ],
)
def test_mistake_raises_one_sentence(arguments: Any, options: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        arboretum.evaluate(*arguments, **options)


class Refused(RandomAgent):
    """Agent whose model takes no prompt of the second half of the tasks."""

    name = "refused"

    def act(self, seats: Sequence[Seat]) -> list[Reply | None]:
        replies = super().act(seats)
        full = [f"a prompt of {seat.episode.seed} tokens fills the context of 9" for seat in seats]
        return [
            Reply((), quit=why) if int(seat.episode.task.partition("/")[2]) > 3 else reply
            for seat, reply, why in zip(seats, replies, full, strict=True)
        ]


def test_prompts_that_were_not_taken_are_noted() -> None:
    found = arboretum.evaluate("TextFrozenLake-v0", Refused(), limit=8)
    refused = [one.details["ended"] for one in found.episodes.values() if "ended" in one.details]
    assert len(refused) > 1
    note = f"refused: {len(refused)} episodes ended because the model did not take a prompt, such as: {refused[0]}"
    assert note in found.summary.notes


def test_edited_code_of_an_environment_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = tmp_path / "edited_env.py"
    monkeypatch.chdir(tmp_path)
    outputs = []
    for condition in ("self.tasks", "self.tasks", "not self.tasks"):
        module.write_text(
            "from arboretum.envs.bandit import Bandit\n"
            "class Paid(Bandit):\n"
            "    def _apply(self, action):\n"
            f"        if {condition}: raise ValueError\n"
            "        return super()._apply(action)\n",
            encoding="utf-8",
        )
        options = ["--agent", "random", "--limit", "2", "--no-references", "--out", "run"]
        command = [sys.executable, "-m", "arboretum", "eval", "edited_env:Paid", *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        outputs.append("the code of edited_env:Paid was edited" in " ".join(done.stdout.split()))
    assert outputs == [False, False, True]
    versions = json.loads((tmp_path / "run" / "run.json").read_text())["sessions"][-1]["versions"]
    assert re.fullmatch("code [0-9a-f]{12}", versions["edited_env:Paid"])


def test_edit_that_changes_first_observations_is_named_as_the_reason(tmp_path: Path) -> None:
    refusals = []
    for text in ("One", "Two"):
        (tmp_path / "greeting_env.py").write_text(
            "from arboretum.envs.bandit import Bandit\n"
            "class Greeting(Bandit):\n"
            "    def _observe(self):\n"
            f"        return {text!r} + super()._observe()\n",
            encoding="utf-8",
        )
        options = ["--agent", "random", "--limit", "2", "--no-references", "--out", "run"]
        command = [sys.executable, "-m", "arboretum", "eval", "greeting_env:Greeting", *options]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=120, cwd=tmp_path, env=os.environ
        )
        refusals.append(" ".join(done.stderr.split()))
    assert refusals[0] == ""
    assert "run: the code of greeting_env:Greeting was edited, so that tasks of" in refusals[1]


def test_code_of_imported_modules_belongs_to_a_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "mazes"
    package.mkdir()
    texts = {
        "__init__": "",
        "envs": "from typing import TYPE_CHECKING\n"
        "try:\n    import no_such_words\nexcept ImportError:\n    import maze_words\n"
        "if TYPE_CHECKING:\n    from . import unrelated\nelse:\n    from .deep.er import thing\n"
        "if __name__ == '__main__':\n    from . import unrelated\n"
        "from . import rules\nfrom arboretum.envs.bandit import Bandit\n"
        "class Maze(Bandit):\n    def late(self):\n        from . import late\n",
        "late": "x = 1\n",
        "rules": "from .sizes import SIZE\n",
        "sizes": "SIZE = 3\n",
        "unrelated": "x = 1\n",
    }
    for name, text in texts.items():
        (package / f"{name}.py").write_text(text)
    (package / "deep").mkdir()
    (package / "deep" / "__init__.py").write_text("y = 1\n")
    (package / "deep" / "er.py").write_text("thing = 1\n")
    (tmp_path / "maze_words.py").write_text("GO = 'go'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    kind = importlib.import_module("mazes.envs").Maze
    first = code_digest(kind)
    for name in ("unrelated", "late"):  # A method's import may not have been executed, so that it never counts.
        importlib.import_module(f"mazes.{name}")
    assert code_digest(kind) == first
    assert first is not None and code_digest(Bandit) is None
    (package / "unrelated.py").write_text("x = 2\n")
    assert code_digest(kind) == first
    digests = {first}
    deep = package / "deep" / "__init__.py", package / "deep" / "er.py"
    for path in (
        *deep,
        package / "sizes.py",
        package / "rules.py",
        tmp_path / "maze_words.py",
        package / "envs.py",
    ):
        path.write_text(path.read_text() + "# edited\n")
        digests.add(code_digest(kind))
    assert len(digests) == 7


def test_paths_may_be_texts_and_begin_with_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "own.yaml").write_text("entries: [{env: TextBandit-v0, tasks: 2}]", encoding="utf-8")
    found = arboretum.evaluate(Path("~/own.yaml"), (name for name in ["random"]), out="~/run")  # type: ignore[arg-type]
    assert found.folder == tmp_path / "run" and found.complete
    assert load_suite(tmp_path / "own.yaml") == load_suite("~/own.yaml")
    index = open_index(str(tmp_path / "run"))
    (first, _) = index.page()
    assert read_episode(str(tmp_path / "run"), first).task == first.key.task
    with pytest.raises(SystemExit, match="0"):
        main(["eval", "TextBandit-v0", "--agent", "random", "--limit", "1", "--no-references", "--out=~/mine"])
    assert (tmp_path / "mine" / "run.json").is_file()


@pytest.mark.heavy
def test_model_that_training_returns_is_taken_as_it_is() -> None:
    pytest.importorskip("torch", reason="needs torch: pip install 'arboretum-rl[lm]'")
    found = arboretum.evaluate(
        "TextBandit-v0", "no_think", model=ROOT / "assets" / "sapling", limit=1, max_tokens=24
    )
    assert found.complete


def test_suite_of_an_environment_that_cannot_be_made_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="did you mean size"):
        load_suite("TextSokoban-v0", {"siz": 5})


@pytest.mark.parametrize("limit", ["auto", None])
def test_step_limit_of_a_made_environment_is_its_own(limit: str | None, tmp_path: Path) -> None:
    env = gym.make("TextBlocksworld-v0", max_steps=limit, split="test")
    for _ in range(2):
        result = arboretum.evaluate(env, "expert", references=False, limit=3, out=tmp_path)
    assert result.line("expert").episodes == 3
    longest = max(len(episode.turns) for episode in result.episodes.values())
    recorded = json.loads((tmp_path / "run.json").read_text())["entries"]["TextBlocksworld-v0"]["max_steps"]
    assert recorded is None if limit is None else recorded >= longest


def test_result_names_what_it_has() -> None:
    result = arboretum.evaluate("quick", "random", limit=1)
    with pytest.raises(ConfigurationError, match="name one of the entries: Bandit, Sokoban"):
        result.line("random")
    with pytest.raises(ConfigurationError, match="did you mean Bandit"):
        result.line("random", "Bandi")
    with pytest.raises(ConfigurationError, match="unknown agent"):
        result.line("expert", "Bandit")


def test_evaluation_runs_inside_an_event_loop() -> None:
    """As in a notebook, whose cells run inside a loop; the OpenAI engine has a loop of its own."""
    pytest.importorskip("aiohttp", reason="needs the extra openai")
    from arboretum.eval.bench.endpoint import Endpoint

    async def cell(url: str) -> Any:
        return arboretum.evaluate("TextBandit-v0", "direct", model="openai/m", base_url=url, limit=4)

    with Endpoint().running() as endpoint:
        result = asyncio.run(cell(endpoint.url))
    assert result.complete and len(result.episodes) == 4 and len(endpoint.requests) >= 4
    assert result.line("direct:m").episodes == 4


def test_address_of_the_server_may_be_given_as_argument_of_the_engine() -> None:
    pytest.importorskip("aiohttp", reason="needs the extra openai")
    from arboretum.eval.bench.endpoint import Endpoint

    with Endpoint().running() as endpoint:
        address = {"base_url": endpoint.url}
        result = arboretum.evaluate("TextBandit-v0", "direct", model="openai/m", engine_args=address, limit=2)
    assert result.complete and len(endpoint.requests) >= 2


def test_given_engine_stays_open() -> None:
    pytest.importorskip("torch", reason="needs torch: pip install 'arboretum-rl[lm]'")
    from arboretum.agents.engines.registry import make_engine

    engine = make_engine("transformers", "sapling")
    for _ in range(2):
        result = arboretum.evaluate("TextBandit-v0", "no_think", model=engine, limit=2, max_tokens=8)
        assert result.complete
    engine.close()


def test_example_in_the_readme_runs_as_it_is_printed(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs torch: pip install 'arboretum-rl[lm]'")
    pytest.importorskip("pandas", reason="needs pandas")
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    (example,) = [block for block in blocks if "arboretum.evaluate(" in block]
    done = subprocess.run(
        [sys.executable, "-c", example],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONWARNINGS": "error"},
    )
    assert done.returncode == 0, done.stderr
    assert "no_think:sapling" in done.stdout
