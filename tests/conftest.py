"""What all tests share: where real data lies, and a cache of their own."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# How long an example takes says little on a busy machine. Where CI is set, Hypothesis's own profile lies below
# this one: the same examples every time, so that a verdict does not hang on luck.
settings.register_profile("patient", settings.default, deadline=None)
settings.load_profile("patient")


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Tests never read or write the user's cache."""
    os.environ["ARBORETUM_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of real benchmark data; the test skips where there is none."""
    root = os.environ.get("ARBORETUM_DATA")
    if not root:
        pytest.skip("needs real benchmark data: set ARBORETUM_DATA to the folder that holds it")
    return Path(root)


@pytest.fixture(scope="session")
def golden(data: Path) -> Path:
    """The folder of recordings of the original systems, beside the data; the test skips where there is none."""
    folder = data.parent / "golden"
    if not folder.is_dir():
        pytest.skip(f"needs the recordings of the original systems in {folder}")
    return folder


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Chromium without a window; the test skips where there is none."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("needs chromium and chromedriver on the path")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    profile = tmp_path_factory.mktemp("profile")
    for flag in (
        "headless",
        "no-sandbox",
        "disable-gpu",
        "disable-quic",
        "no-first-run",
        "disable-background-networking",
        "disable-component-update",
        "disable-sync",
        f"user-data-dir={profile}",
    ):
        options.add_argument(f"--{flag}")
    chrome = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield chrome
    chrome.quit()
