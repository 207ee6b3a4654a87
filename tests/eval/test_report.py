"""The evaluation report: self-contained, escaped, and replayable step by step in a browser."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from arboretum.eval.agents import NamedAgent
from arboretum.eval.evaluate import evaluate

HOSTILE = '<script>document.title="owned"</script><img src=x onerror="document.title=\'owned\'">'


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Report of a suite whose names and observations contain hostile markup."""
    from arboretum.envs.bandit import Bandit

    folder = tmp_path_factory.mktemp("report")
    suite = folder / "suite.yaml"
    suite.write_text(
        f"name: bandits\ndescription: >-\n  {HOSTILE}\nentries:\n"
        f"  - {{name: 'A {HOSTILE.replace(chr(39), chr(39) * 2)}', env: TextBandit-v0, split: test}}\n"
        "  - {name: B, env: TextBanditRev-v0, split: test}\n"
    )
    observe = Bandit._observe
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Bandit, "_observe", lambda self: f"{observe(self)} {HOSTILE} </script>")
        with Path(os.devnull).open("w") as sink:
            evaluate(str(suite), [NamedAgent("random")], out=folder / "run", console=Console(file=sink))
    return folder / "run" / "report.html"


def test_report_needs_no_network_and_escapes_markup(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:)?//""", text)
    assert "@import" not in text and "url(" not in text
    assert HOSTILE not in text
    assert "<script>document" not in text


@pytest.mark.heavy
def test_episode_replays_step_by_step_in_browser(page: Path, browser: Any) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import Select, WebDriverWait

    browser.set_window_size(390, 844)  # a phone
    browser.get(page.as_uri())
    wait = WebDriverWait(browser, 60)

    def text(id: str) -> str:
        return str(browser.find_element(By.ID, id).text)

    wait.until(lambda _: "Which one do you choose?" in text("observation"))
    assert HOSTILE in text("observation")  # shown as text, not run
    assert browser.title == "bandits · Arboretum report"
    width = browser.execute_script("return document.documentElement.scrollWidth")
    assert width <= browser.execute_script("return window.innerWidth")  # no horizontal scrolling on a phone

    Select(browser.find_element(By.ID, "entry")).select_by_visible_text("B")
    Select(browser.find_element(By.ID, "agent")).select_by_visible_text("expert")
    wait.until(lambda _: "1 / 1" in text("position"))
    assert "→" in text("moves") and "solved" in text("verdict")
    browser.find_element(By.ID, "next").click()
    assert text("position") == "end" and "points" in text("observation")
    browser.find_element(By.ID, "previous").click()
    assert text("position") == "1 / 1"
    Select(browser.find_element(By.ID, "outcome")).select_by_value("unsolved")
    assert text("observation") == "No episode with this outcome."
    assert len(browser.find_elements(By.CSS_SELECTOR, "svg circle")) == 4  # two agents on two entries
    assert not [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
