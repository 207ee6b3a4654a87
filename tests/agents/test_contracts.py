"""Mistakes in classes of other packages: the error names the method and its line, and no episode is endless."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import arboretum
from arboretum.agents.base import Stop
from arboretum.agents.language import LanguageAgent
from arboretum.agents.play import Job, play
from arboretum.agents.reference import ExpertAgent, RandomAgent
from arboretum.envs.errors import ConfigurationError

PAGE = Path(arboretum.__file__).parent / "docs" / "plugins.md"

MISTAKES = """
class NoReplies(Stubborn):
    def act(self, seats): pass

class Texts(Stubborn):
    def act(self, seats): return ["one" for _ in seats]

class OneText(Stubborn):
    def act(self, seats): return [Reply("one") for _ in seats]

class Fails(Stubborn):
    def act(self, seats): return [Reply(seat.env.choices) for seat in seats]

class Exits(Stubborn):
    def act(self, seats): raise SystemExit(3)

class Idle(Stubborn):
    def act(self, seats): return [Reply(()) for _ in seats]

class Lists(Stubborn):
    def act(self, seats): return (Reply(["two"]) for _ in seats)

class NumberLike(Countdown):
    def _apply(self, action):
        import numpy
        self._state = 0
        return Outcome("", numpy.array(1) == 1, True, True, True, True)

class NoOutcome(Countdown):
    def _apply(self, action): pass

class ShortOutcome(Countdown):
    def _apply(self, action): return "x", 1.0, False

class TextReward(Countdown):
    def _apply(self, action): return Outcome("x", "1", False, False, True, True)

class NoObservation(Countdown):
    def _observe(self): return 3

class Raises(Countdown):
    def _apply(self, action): return {}["number"]

class Leaves(Countdown):
    def _apply(self, action): raise SystemExit(3)

class Unsolved(Countdown):
    def expert_actions(self): raise SystemExit(3)

class Huge(Countdown):
    def _apply(self, action): return Outcome("x", 1e308, False, False, True, True)

class Reserved(Countdown):
    def _details(self): return {"success": True, "left": 3}

class SetOfActions(Countdown):
    def admissible_actions(self): return {"one", "two"}

class TextPlan(Countdown):
    def expert_actions(self): return "one"

class NumberedTasks(Countdown):
    tasks = property(lambda self: [5, 6], lambda self, value: None)

class NumPyTasks(Countdown):
    tasks = property(lambda self: __import__("numpy").array(["5", "6"]), lambda self, value: None)

class NoParsed(Terse):
    def parse(self, reply): pass

class TextParsed(Terse):
    def parse(self, reply): return Parsed(reply, None, True)

class NoUser(Terse):
    def user(self, observation, turns): return observation.text

class Silent(Echo):
    def collect(self): return []

class NoPairs(Echo):
    def collect(self): return ["one"]

class Refuses(Echo):
    def submit(self, request): raise KeyError("model")
"""


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """The module of the page with mistakes in its classes."""
    blocks = PAGE.read_text(encoding="utf-8").split("```python\n")[1:5]
    path = tmp_path_factory.mktemp("parts") / "mistaken.py"
    path.write_text("".join(block.partition("```")[0] for block in blocks) + MISTAKES, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("mistaken", path)
    assert spec is not None and spec.loader is not None
    module = sys.modules["mistaken"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["mistaken"]


def line_of(name: str) -> int:
    """Return the line of a class's only method within the module's text of mistakes."""
    return MISTAKES.splitlines().index(next(one for one in MISTAKES.splitlines() if f"class {name}(" in one)) + 1


def offset(parts: ModuleType) -> int:
    text = Path(str(parts.__file__)).read_text(encoding="utf-8")
    return text[: text.index(MISTAKES)].count("\n") + 1


def one_episode(agent: Any, env: Any) -> Any:
    (episode,) = play(agent, [env], [Job("5", 1)])
    return episode


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "NoReplies",
            "NoReplies.act (PLACE) must return a list of 1, a Reply or None for each seat, not None",
        ),
        ("Texts", "TypeError: Texts.act (PLACE) must return a Reply or None for each seat, not 'one'"),
        ("OneText", "OneText.act (PLACE) must return a Reply whose actions are a tuple of texts, not 'one'"),
        ("Fails", "AttributeError: 'Countdown' object has no attribute 'choices' (PLACE, in Fails.act)"),
        ("Exits", "SystemExit: 3 (PLACE, in Exits.act)"),
    ],
)
def test_mistake_in_an_agent_names_its_line(parts: ModuleType, name: str, message: str) -> None:
    place = f"mistaken.py, line {offset(parts) + line_of(name)}"
    with pytest.raises(Stop) as caught:
        one_episode(getattr(parts, name)(), parts.Countdown())
    assert str(caught.value).startswith("the agent stubborn failed: ")
    assert message.replace("PLACE", place) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("NoParsed", "TypeError: NoParsed.parse (PLACE) must return Parsed, not None"),
        (
            "TextParsed",
            "TextParsed.parse (PLACE) must return Parsed whose actions are a tuple of texts, not 'take 5. ",
        ),
        ("NoUser", "AttributeError: 'str' object has no attribute 'text' (PLACE, in NoUser.user)"),
        ("Silent", "Silent.collect (PLACE) must return at least one finished request, for which it waits, not []"),
        (
            "NoPairs",
            "NoPairs.collect (PLACE) must return a list of pairs of a conversation's name and its Completion",
        ),
        ("Refuses", "KeyError: 'model' (PLACE, in Refuses.submit)"),
    ],
)
def test_mistake_in_a_dialogue_or_an_engine_names_its_line(parts: ModuleType, name: str, message: str) -> None:
    place = f"mistaken.py, line {offset(parts) + line_of(name)}"
    kind = getattr(parts, name)
    is_engine = issubclass(kind, parts.Engine)
    engine, dialogue = (kind() if is_engine else parts.Echo()), (parts.Terse() if is_engine else kind())
    with pytest.raises(Stop) as caught:
        one_episode(LanguageAgent("direct", engine, dialogue), parts.Countdown())
    shown = str(caught.value)
    assert shown.startswith("the agent direct failed: ") and message.replace("PLACE", place)[:90] in shown


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "NoOutcome",
            "the environment failed: TypeError: NoOutcome._apply (PLACE) must return an Outcome, not None",
        ),
        ("ShortOutcome", "ShortOutcome._apply (PLACE) must return an Outcome, not ('x', 1.0, False)"),
        ("TextReward", "TextReward._apply (PLACE) must return the reward as a number, not '1'"),
        (
            "NoObservation",
            "opening the task failed: TypeError: NoObservation._observe (PLACE) must return the obs",
        ),
        ("Raises", "the environment failed: KeyError: 'number' (PLACE, in Raises._apply)"),
        ("Leaves", "the environment failed: SystemExit: 3 (PLACE, in Leaves._apply)"),
        ("Huge", "the return is no finite number after the reward 1e+308 of the action"),
        ("Reserved", "Reserved._details (PLACE) must return entries of other names than task, success, valid, ch"),
        ("SetOfActions", "SetOfActions.admissible_actions (PLACE) must return a tuple of texts, or None, not {"),
        ("TextPlan", "TextPlan.expert_actions (PLACE) must return a list of texts, or None, not 'one'"),
    ],
)
def test_mistake_in_an_environment_names_its_line(parts: ModuleType, name: str, message: str) -> None:
    place = f"mistaken.py, line {offset(parts) + line_of(name)}"
    agent = ExpertAgent() if name == "TextPlan" else RandomAgent()
    episode = one_episode(agent, getattr(parts, name)())
    assert message.replace("PLACE", place) in episode.error
    assert "Traceback" in episode.trace


def test_expert_that_ends_the_process_ends_its_episode_alone(parts: ModuleType) -> None:
    place = f"mistaken.py, line {offset(parts) + line_of('Unsolved')}"
    episode = one_episode(ExpertAgent(), parts.Unsolved())
    assert episode.error == f"the environment failed: SystemExit: 3 ({place}, in Unsolved.expert_actions)"


def test_names_of_tasks_are_texts_also_in_an_array(parts: ModuleType) -> None:
    found = arboretum.evaluate("mistaken:NumPyTasks", "random")
    assert found.complete and {type(key.task) for key in found.episodes} == {str}
    with pytest.raises(ConfigurationError, match=r"NumberedTasks\.tasks must hold the names of tasks as texts, n"):
        arboretum.evaluate("mistaken:NumberedTasks", "random")


def test_agent_without_actions_uses_up_the_steps(parts: ModuleType) -> None:
    episode = one_episode(parts.Idle(), parts.Countdown())
    assert episode.truncated and len(episode.turns) == 20
    assert all(move.action == "" and not move.valid for turn in episode.turns for move in turn.moves)


def test_replies_of_other_collections_and_rewards_of_other_libraries_are_taken(parts: ModuleType) -> None:
    episode = one_episode(parts.Lists(), parts.NumberLike())
    assert [move.action for move in episode.turns[0].moves] == ["two"]
    assert episode.error is None and episode.total_reward == 1.0


def test_line_of_a_plug_in_that_is_installed_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "lib" / "site-packages"
    folder.mkdir(parents=True)
    (folder / "installed_part.py").write_text("def fail():\n    raise KeyError('boom')\n")
    code = (
        "import installed_part\nfrom arboretum.envs.user_code import describe_error, note_plugin\n"
        "for known in (False, True):\n"
        "    known and note_plugin('installed_part')\n"
        "    try: installed_part.fail()\n"
        "    except KeyError as error: print(describe_error(error))\n"
    )
    (folder / "asks.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "-c", "import asks"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])},
    )
    assert done.stdout.splitlines() == [
        "KeyError: 'boom'",
        "KeyError: 'boom' (installed_part.py, line 2, in fail)",
    ]
