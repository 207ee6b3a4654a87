"""Tests of the shop in a real browser: purchases of the right and of a wrong product, on a desktop and a phone.

They need Debian's `chromium` and `chromium-driver`. `ARBORETUM_SCREENSHOTS` names a folder for screenshots.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from arboretum.envs.webshop.shop import Shop, open_shop
from support.pages import low_contrasts

pytestmark = pytest.mark.heavy
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
if not CHROMIUM or not DRIVER:
    pytest.skip("needs Debian's chromium and chromium-driver", allow_module_level=True)
pytest.importorskip("flask")
pytest.importorskip("waitress")
By = pytest.importorskip("selenium.webdriver.common.by").By

GOAL = 17


@pytest.fixture(scope="module")
def shop() -> Iterator[Shop]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("ARBORETUM_DATA", raising=False)
        yield open_shop(tagger="letters")


@pytest.fixture(scope="module")
def address(shop: Shop) -> Iterator[str]:
    code = (
        "from arboretum.envs.webshop.server import serve\n"
        "serve(port=0, tagger='letters', ready=lambda url: print(url, flush=True))"
    )
    environment = {k: v for k, v in os.environ.items() if k != "ARBORETUM_DATA"}
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


@pytest.fixture(params=[(1280, 900), (390, 844)], ids=["desktop", "phone"])
def browser(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (
        "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-dev-shm-usage",
        "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
        f"--user-data-dir={tmp_path / 'profile'}",
    ):  # fmt: skip
        options.add_argument(flag)
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=DRIVER))
    driver.implicitly_wait(60)  # Seconds to wait for a page to load.
    width, height = request.param
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        yield driver
    finally:
        driver.quit()


LETTERS = """
const linear = c => c <= .03928 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4;
const luminance = color => color.match(/[\\d.]+/g).slice(0, 3).map(c => linear(c / 255))
  .reduce((sum, c, i) => sum + c * [.2126, .7152, .0722][i], 0);
return [...document.querySelectorAll(".picture")].flatMap(e => {
  const {backgroundImage, backgroundColor} = getComputedStyle(e);
  const ink = luminance(getComputedStyle(e, "::before").color);
  return (backgroundImage.match(/rgba?\\([^)]*\\)/g) || [backgroundColor]).map(luminance)
    .map(paper => (Math.max(ink, paper) + .05) / (Math.min(ink, paper) + .05));
});
"""  # The contrasts of the letters that stand for missing pictures.


def check_page(browser: Any, name: str) -> None:
    """Check that nothing overflows the window and texts are legible; save a screenshot if a folder is set."""
    width, content = browser.execute_script("return [window.innerWidth, document.documentElement.scrollWidth]")
    assert content <= width, f"{name}: {content} pixels wide in a window of {width}"
    assert low_contrasts(browser) == {}
    assert all(contrast >= 4.5 for contrast in browser.execute_script(LETTERS)), name
    if folder := os.environ.get("ARBORETUM_SCREENSHOTS"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        browser.save_screenshot(str(Path(folder) / f"{name}-{width}.png"))


def press(browser: Any, label: str) -> None:
    """Click the element with a label once it exists, and wait until the old page is gone."""
    from selenium.common.exceptions import WebDriverException
    from selenium.webdriver.support.ui import WebDriverWait

    # While a page changes, Chromium reports elements as stale, or as nodes of another document.
    wait = WebDriverWait(browser, 60, ignored_exceptions=[WebDriverException])
    found = wait.until(
        lambda _: [b for b in browser.find_elements(By.CSS_SELECTOR, "button, a, label") if b.text == label],
        f"no element with the label {label!r} on {browser.current_url}",
    )
    browser.execute_script("window.isOld = true")
    found[0].click()
    wait.until(lambda _: browser.execute_script("return !window.isOld && document.readyState === 'complete'"))


def search_for(browser: Any, words: str) -> None:
    browser.find_element(By.ID, "search_input").send_keys(words)
    press(browser, "Search")


def reward(browser: Any) -> float:
    return float(browser.find_element(By.CSS_SELECTOR, "#reward pre").text)


def test_purchase_of_the_right_product_scores_1(browser: Any, shop: Shop, address: str) -> None:
    goal = shop.goal(GOAL)
    browser.get(f"{address}?goal={GOAL}")
    assert goal.instruction_text in browser.find_element(By.ID, "instruction-text").text
    check_page(browser, "1-start")
    search_for(browser, goal.words)
    assert re.search(r"Page 1 \(Total results: \d+\)", browser.page_source)
    check_page(browser, "2-results")
    press(browser, "Next >")
    press(browser, "< Prev")
    press(browser, goal.asin)
    assert browser.find_element(By.ID, "product-image").get_attribute("aria-label") == goal.name
    press(browser, "Features")
    check_page(browser, "3-features")
    press(browser, "< Prev")
    assert isinstance(goal.goal_options, dict)
    for name, value in goal.goal_options.items():
        press(browser, value)
        chosen = browser.find_element(By.CSS_SELECTOR, f"input[name='{name}']:checked")
        assert chosen.get_attribute("value") == value
    check_page(browser, "4-item")
    press(browser, "Buy Now")
    assert reward(browser) == 1.0
    check_page(browser, "5-score")
    browser.back()
    assert "Buy Now" in browser.page_source, "the back button returns to the product"
    browser.forward()
    press(browser, "Shop for another customer")
    assert browser.find_element(By.ID, "search_input").is_displayed()
    assert not [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]


def test_purchase_of_a_wrong_product_scores_less_than_1(browser: Any, shop: Shop, address: str) -> None:
    other = next(p for p in map(shop.catalog.product, range(99)) if p.query != shop.goal(GOAL).query)
    browser.get(f"{address}?goal={GOAL}")
    search_for(browser, other.title)
    press(browser, other.asin)
    press(browser, "Buy Now")
    assert 0 <= reward(browser) < 1
    assert len(browser.find_element(By.CSS_SELECTOR, "#reward pre").text) <= 6  # at most four decimals
    check_page(browser, "6-wrong")
