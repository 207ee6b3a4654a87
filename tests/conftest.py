"""Fixtures that all tests share: benchmark data, recordings, an isolated cache and a browser."""

from __future__ import annotations

import gc
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from support.sessions import session_folder

# Deadlines are unreliable on a busy machine. Where CI is set, this profile inherits from Hypothesis's CI profile,
# which uses the same examples in every run.
settings.register_profile("patient", settings.default, deadline=None)
settings.load_profile("patient")


def pytest_configure() -> None:
    """Let Ctrl-C end the processes that tests start, also where the tests run in the background of a script."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Exempt the half a million objects of collected tests from garbage collection, which would take a second."""
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def isolated_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Use a temporary cache folder for all workers, so that tests neither read nor write the user's."""
    os.environ["ARBORETUM_CACHE"] = str(session_folder(tmp_path_factory) / "cache")


@pytest.fixture(scope="session")
def data() -> Path:
    """Folder of benchmark data, from `ARBORETUM_DATA`. Tests that need it are skipped if it is not set."""
    root = os.environ.get("ARBORETUM_DATA")
    if not root:
        pytest.skip("needs real benchmark data: set ARBORETUM_DATA to the folder that holds it")
    return Path(root)


@pytest.fixture(scope="session")
def golden(data: Path) -> Path:
    """Folder of recordings of the original systems, beside the data. Tests that need it are skipped without it."""
    folder = data.parent / "golden"
    if not folder.is_dir():
        pytest.skip(f"needs the recordings of the original systems in {folder}")
    return folder


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Headless Chromium. Tests that need it are skipped if it is not installed."""
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
