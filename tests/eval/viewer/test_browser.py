"""The viewer in a real browser, as the command serves it: by keyboard, on a desktop and a phone, light and dark.

They need Debian's `chromium` and `chromium-driver`. `ARBORETUM_SCREENSHOTS` names a folder for screenshots.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from arboretum.eval.store import Result, read_results
from support.pages import low_contrasts, set_width

pytestmark = pytest.mark.heavy
pytest.importorskip("flask")
pytest.importorskip("waitress")
By = pytest.importorskip("selenium.webdriver.common.by").By
Keys = pytest.importorskip("selenium.webdriver.common.keys").Keys

FORMS = [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")]


@pytest.fixture(scope="module")
def address(run: Path) -> Iterator[str]:
    environment = {name: value for name, value in os.environ.items() if name != "ARBORETUM_DATA"}
    command = [sys.executable, "-m", "arboretum", "view", str(run.parent), "--port", "0", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout
        try:
            yield process.stdout.readline().split()[2].strip(";")
        finally:
            process.terminate()


def episode_of(run: Path, agent: str, entry: str, least: int = 0) -> Result:
    found = read_results(run).latest.values()
    return next(r for r in found if r.key[:2] == (agent, entry) and r.steps >= least)


def wait(browser: Any, condition: Callable[[], Any]) -> Any:
    """Return the first true value of a condition, whose elements may be replaced meanwhile."""
    from selenium.common.exceptions import WebDriverException
    from selenium.webdriver.support.ui import WebDriverWait

    # While a page changes, Chromium reports elements as stale, or as nodes of another document.
    ignored = [WebDriverException, IndexError]
    return WebDriverWait(browser, 60, 0.05, ignored_exceptions=ignored).until(lambda _: condition())


def texts(browser: Any, selector: str) -> list[str]:
    return [element.text for element in browser.find_elements(By.CSS_SELECTOR, selector)]


def press(browser: Any, *keys: str) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    ActionChains(browser).send_keys(*keys).perform()


def click_actor(browser: Any, label: str) -> None:
    """Click the expert's button with a label."""
    buttons = browser.find_elements(By.CSS_SELECTOR, ".actor button")
    next(button for button in buttons if button.text == label).click()


def check_page(browser: Any, name: str) -> None:
    """Check in all forms that nothing overflows the window and texts are legible; save screenshots if wanted."""
    for width, scheme in FORMS:
        set_width(browser, width, scheme)
        window, content = browser.execute_script("return [innerWidth, document.documentElement.scrollWidth]")
        assert content <= window, f"{name}: {content} pixels wide in a window of {window}"
        assert low_contrasts(browser) == {}, name
        if folder := os.environ.get("ARBORETUM_SCREENSHOTS"):
            Path(folder).mkdir(parents=True, exist_ok=True)
            browser.save_screenshot(str(Path(folder) / f"{name}-{width}-{scheme}.png"))
    set_width(browser, 1280)
    severe = [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    assert severe == []


def test_episode_is_opened_from_the_leaderboard_and_stepped_by_keyboard(
    browser: Any, address: str, run: Path
) -> None:
    set_width(browser, 1280)
    browser.get(address)
    check_page(browser, "1-runs")
    browser.find_element(By.LINK_TEXT, "expert").click()
    wait(browser, lambda: "/run/small" in browser.current_url)
    check_page(browser, "2-run")
    press(browser, "/")
    browser.switch_to.active_element.send_keys("test/1", Keys.ENTER)
    wait(browser, lambda: "task=test%2F1" in browser.current_url)
    rows = wait(browser, lambda: browser.find_elements(By.CSS_SELECTOR, "a[data-row]"))
    assert {row.text for row in rows} == {"test/1"}
    press(browser, "j", Keys.ENTER)
    wait(browser, lambda: "/episode/" in browser.current_url)
    result = episode_of(run, "expert", "Sokoban")
    browser.get(f"{address}episode/{result.offset}/small")
    pictures = []
    for step in range(1, result.steps + 1):
        wait(browser, lambda step=step: texts(browser, "#position")[0].startswith(f"Step {step} "))
        pictures.append(browser.find_element(By.CSS_SELECTOR, "figure.scene img").get_attribute("src"))
        press(browser, Keys.ARROW_RIGHT)
    wait(browser, lambda: texts(browser, "#position")[0].startswith("End"))
    assert len(set(pictures)) == result.steps
    press(browser, Keys.ARROW_LEFT)
    wait(browser, lambda: texts(browser, "#position")[0].startswith(f"Step {result.steps} "))
    press(browser, Keys.HOME)
    wait(browser, lambda: texts(browser, "#position")[0].startswith("Step 1 "))
    press(browser, "?")
    assert browser.find_element(By.ID, "help").is_displayed()
    press(browser, Keys.ESCAPE)
    assert not browser.find_element(By.ID, "help").is_displayed()


def test_decisions_are_marked_and_alternatives_shown(browser: Any, address: str, run: Path) -> None:
    set_width(browser, 1280)
    random = episode_of(run, "random", "Sokoban")
    browser.get(f"{address}episode/{random.offset}/small")
    wait(browser, lambda: browser.find_elements(By.CSS_SELECTOR, ".timeline a.costly"))
    kinds = wait(browser, lambda: [li.get_attribute("class") for li in
                                   browser.find_elements(By.CSS_SELECTOR, ".alternatives li")])  # fmt: skip
    assert len(kinds) == 4 and kinds[0].startswith("optimal")
    loaded = "return [...document.querySelectorAll('main img')].every(i => i.complete && i.naturalWidth > 200)"
    wait(browser, lambda: browser.execute_script(loaded))
    check_page(browser, "3-episode")
    press(browser, "w")
    wait(browser, lambda: not browser.find_elements(By.ID, "alternatives"))
    press(browser, "w")
    wait(browser, lambda: browser.find_elements(By.ID, "alternatives"))


def test_play_goes_on_from_an_episode_to_success_with_the_expert(browser: Any, address: str, run: Path) -> None:
    set_width(browser, 390)
    result = episode_of(run, "expert", "Sokoban", least=3)
    browser.get(f"{address}episode/{result.offset}/small?at=1")
    wait(browser, lambda: browser.find_element(By.CSS_SELECTOR, "form.inline button")).click()
    wait(browser, lambda: "/play/" in browser.current_url and texts(browser, "#status"))
    assert "step 1 of 30" in texts(browser, "#status")[0]
    click_actor(browser, "to the end")
    wait(browser, lambda: "✓ solved" in texts(browser, "#status")[0])
    assert f"step {result.steps} of 30" in texts(browser, "#status")[0]
    check_page(browser, "4-play-on")
    browser.find_element(By.ID, "undo").click()
    wait(browser, lambda: f"step {result.steps - 1} of 30" in texts(browser, "#status")[0])
    assert "✓ solved" not in texts(browser, "#status")[0]


def test_board_is_played_from_the_start_with_arrow_keys(browser: Any, address: str) -> None:
    from arboretum.envs.registry import make_env

    set_width(browser, 1280)
    browser.get(f"{address}play")
    check_page(browser, "5-environments")
    browser.find_element(By.CSS_SELECTOR, "details summary").click()
    browser.find_element(By.NAME, "task").send_keys("test/5")
    browser.find_element(By.CSS_SELECTOR, "button[value='TextSokoban-v0']").click()
    wait(browser, lambda: texts(browser, "#status"))
    env = make_env("TextSokoban-v0")
    env.reset(seed=0, options={"task": "test/5"})
    keys = {"Up": Keys.ARROW_UP, "Down": Keys.ARROW_DOWN, "Left": Keys.ARROW_LEFT, "Right": Keys.ARROW_RIGHT}
    for step, action in enumerate(env.expert_actions() or [], 1):
        press(browser, keys[action])
        wait(browser, lambda step=step: f"step {step} of 100" in texts(browser, "#status")[0])
    assert "✓ solved" in texts(browser, "#status")[0]


def test_shop_and_house_are_played_in_their_own_look(browser: Any, address: str) -> None:
    set_width(browser, 1280)
    for id in ("TextWebShop-v0", "TextALFWorld-v0", "TextSearchQA-v0"):
        browser.get(f"{address}play")
        browser.find_element(By.CSS_SELECTOR, f"button[value='{id}']").click()
        wait(browser, lambda: texts(browser, "#status"))
        click_actor(browser, "one turn")
        wait(browser, lambda: "step 1 of" in texts(browser, "#status")[0])
        if id == "TextWebShop-v0":
            browser.switch_to.frame(browser.find_element(By.CSS_SELECTOR, "iframe.scene"))
            assert browser.find_elements(By.CSS_SELECTOR, ".product")
            display = browser.find_element(By.CSS_SELECTOR, ".products").value_of_css_property("display")
            assert display == "grid", "the shop's style sheet is loaded"
            browser.switch_to.default_content()
            browser.get_log("browser")  # The shop's script is blocked, which the browser reports.
        check_page(browser, f"6-{id}")


def test_hostile_replies_do_nothing(browser: Any, address: str, run: Path) -> None:
    set_width(browser, 1280)
    result = episode_of(run, "hostile", "Sokoban")
    browser.get(f"{address}episode/{result.offset}/small")
    wait(browser, lambda: browser.find_elements(By.ID, "alternatives"))
    for _ in range(3):
        press(browser, Keys.ARROW_RIGHT)
        wait(browser, lambda: not browser.find_elements(By.CSS_SELECTOR, "[aria-busy]"))
        assert browser.title != "owned" and "owned" in browser.page_source
        assert not browser.find_elements(By.CSS_SELECTOR, "main script, main img[src=x]")
    check_page(browser, "7-hostile")


def test_two_agents_stand_side_by_side_and_step_together(browser: Any, address: str, run: Path) -> None:
    set_width(browser, 1280)
    a = episode_of(run, "expert", "Lake")
    b = next(r for r in read_results(run).latest.values() if r.key[1:3] == a.key[1:3] and r.key.agent == "random")
    browser.get(f"{address}pair/small?a={a.offset}&b={b.offset}")
    press(browser, Keys.ARROW_RIGHT)
    wait(browser, lambda: texts(browser, "#position")[0].startswith("Step 2 "))
    sources = [image.get_attribute("src") for image in browser.find_elements(By.CSS_SELECTOR, "figure.scene img")]
    assert len(sources) == 2 and len(set(sources)) == 2
    check_page(browser, "8-pair")


def test_run_in_progress_is_followed(browser: Any, address: str, run: Path) -> None:
    set_width(browser, 1280)
    growing = run.parent / "growing"
    growing.mkdir()
    for name in ("run.json", ".run.json"):
        (growing / name).write_bytes((run / name).read_bytes())
    lines = (run / "episodes.jsonl").read_bytes().splitlines(keepends=True)
    (growing / "episodes.jsonl").write_bytes(b"".join(lines[:4]))
    wait(browser, lambda: browser.get(f"{address}run/growing") or texts(browser, "#progress"))
    assert texts(browser, "#progress")[0].startswith("4 of 18")
    with (growing / "episodes.jsonl").open("ab") as file:
        file.write(b"".join(lines[4:]))
    wait(browser, lambda: texts(browser, "#progress")[0].startswith("18 of 18"))
    assert len(browser.find_elements(By.CSS_SELECTOR, "a[data-row]")) == 18
