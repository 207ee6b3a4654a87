"""Report of a training run: contents, errors, and display in a browser with hostile observations."""

from __future__ import annotations

import html
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from arboretum.envs.errors import ConfigurationError, DataError
from arboretum.trainers.algorithms.recipes import RECIPES
from arboretum.trainers.config.run import TrainingConfig
from arboretum.trainers.config.serialize import to_plain
from arboretum.trainers.config.settings import DialogueConfig, EnvConfig, HardwareConfig, ValidationConfig
from arboretum.trainers.monitor import Monitor
from arboretum.trainers.reporting.report import write_report
from arboretum.trainers.reporting.samples import read_samples
from support.pages import low_contrasts, set_width

HOSTILE = '<script>document.title="owned"</script><img src=x onerror="document.title=\'owned\'">'


def small_config(model: Path | str, out: Path, **options: Any) -> TrainingConfig:
    """Return the configuration of a short GRPO run on FrozenLake."""
    small: dict[str, object] = {
        "sampler.prompts": 2,
        "sampler.rollouts": 4,
        "sampler.reply_tokens": 12,
        "sampler.max_turns": 2,
        "sampler.think": None,
        "optimization.updates": 2,
        "optimization.episodes_per_step": 8,
    }
    settings: dict[str, Any] = {
        "dialogue": DialogueConfig("no_think", {"show_reward": False}),
        "hardware": HardwareConfig(device="cpu"),
        "validation": ValidationConfig(every=1, tasks=8),
    }
    recipe = RECIPES["grpo"].with_settings({**small, **options.pop("changes", {})})
    return TrainingConfig(recipe, EnvConfig("TextFrozenLake-v0"), str(model), out, **{**settings, **options})


def write_run(folder: Path, history: list[dict[str, float]], **options: Any) -> Path:
    """Write the folder of a run with these metrics, and return it."""
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps(to_plain(small_config("M", folder, **options))))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in history))
    return folder


def test_page_shows_charts_alarms_validations_and_changed_settings(tmp_path: Path) -> None:
    history: list[dict[str, float]] = [
        {
            "update": 0,
            "validation/success": 0.25,
            "validation/low": 0.1,
            "validation/high": 0.5,
            "validation/return": 0.25,
        }
    ]
    for t in range(1, 41):
        fade = 0.9 ** max(t - 15, 0)
        history.append(
            {"update": t, "success": 0.3, "return": 0.3, "group_return_std": 0.4 * fade, "entropy": 1.5 * fade}
            | {"sampled_tokens_per_second": 1_400_000.0}
        )
    history[20] |= {
        f"validation/{k}": v for k, v in (("success", 0.5), ("low", 0.3), ("high", 0.7), ("return", 0.5))
    }
    monitor = Monitor(window=5)
    alarms = monitor.all_alarms(history[1:])
    assert {alarm.sign for alarm in alarms} >= {"variance", "entropy", "echo-trap"}
    changes = {"optimization.updates": 50, "objective.clip_high": 0.28}
    run = write_run(tmp_path / "my run", history, monitor=monitor, changes=changes)
    page = write_report(run).read_text()
    assert "40 of 50 updates" in page and "10 updates are left" in page
    assert f"arboretum train --resume '{run}'" in html.unescape(page)
    for alarm in alarms:  # once in the list, once in each chart
        charts = page.count("<svg")
        assert page.count(str(alarm)) == 1 + charts
    assert page.count("<polyline") >= 5 and "<polygon" in page
    assert ">500k</text>" in page and ">1M</text>" in page and ">1.5M</text>" in page
    points = re.findall(r'<polyline points="([^"]+)"', page)
    assert len(points[0].split()) == 40 and len(points[1].split()) == 2  # training, held out
    assert re.search(r"objective\.clip_high</th><td>0\.28</td><td>0\.2</td>", page)
    assert "+25.0" in page and "25.0" in page and "30.0 to 70.0" in page
    assert not re.search(r"\b(nan|inf|None|built-in)\b", re.sub(r"<style>.*?</style>", "", page, flags=re.S))


def test_incomplete_metrics_are_reported_and_damaged_ones_rejected(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="holds no training run"):
        write_report(tmp_path)
    folder = write_run(tmp_path / "run", [])
    assert "0 of 2 updates" in write_report(folder).read_text()  # killed before its first update
    (folder / "metrics.jsonl").write_text('{"update": 0}\n{"upd')  # killed while writing a line
    assert "0 of 2 updates" in write_report(folder).read_text()
    (folder / "metrics.jsonl").write_text('{"upd\n{"update": 1}\n')
    with pytest.raises(DataError, match="line 1: is not valid JSON"):
        write_report(folder)
    (folder / "metrics.jsonl").write_text("")
    record = json.loads((folder / "run.json").read_text())
    record["monitor"]["crystal"] = "ball"
    (folder / "run.json").write_text(json.dumps(record))
    with pytest.raises(DataError, match="another version"):
        write_report(folder)
    del record["monitor"]["crystal"], record["env"]
    (folder / "run.json").write_text(json.dumps(record))
    with pytest.raises(DataError, match="another version"):
        write_report(folder)


@pytest.fixture(scope="module")
def run(warm_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a run that finished two updates and was then resumed with three."""
    from arboretum.envs.frozenlake.env import FrozenLake
    from arboretum.trainers.commands.train import train

    folder = tmp_path_factory.mktemp("report") / "run"
    observe = FrozenLake._observe
    with pytest.MonkeyPatch.context() as patch, (folder.parent / "log").open("w") as log:
        patch.setattr(FrozenLake, "_observe", lambda self: f"{observe(self)} {HOSTILE} </script>")
        console = Console(file=log, width=200)
        assert train(small_config(warm_model, folder), console=console) == 0
        log.flush()
        assert str(folder / "report.html") in (folder.parent / "log").read_text()
        # A validation after the last checkpoint, and an unfinished line, as a killed process leaves them.
        with (folder / "samples.jsonl").open("a") as samples:
            samples.write(json.dumps({"update": 3, "task": "discarded"}) + '\n{"upda')
        longer = small_config(warm_model, folder, changes={"optimization.updates": 3})
        assert train(longer, resume=True, console=console) == 0
    return folder


@pytest.mark.heavy
def test_resumed_run_samples_the_same_tasks_in_every_validation(run: Path) -> None:
    samples = read_samples(run)
    tasks = {update: [s["task"] for s in samples if s["update"] == update] for update in (0, 1, 2, 3)}
    assert len(samples) == 24 and all(found == tasks[0] for found in tasks.values())
    assert len(set(tasks[0])) == 6
    turn = samples[0]["turns"][0]
    assert "<|im_start|>user" in turn["prompt"] and turn["observation"] in turn["prompt"]
    assert turn["sampled"].startswith(turn["reply"]) or turn["reply"].endswith(turn["sampled"])
    assert "token_ids" not in turn and "logprobs" not in turn


@pytest.mark.heavy
def test_report_command_writes_the_same_report(run: Path, tmp_path: Path) -> None:
    before = (run / "report.html").read_text()
    (run / "report.html").unlink()
    command = [sys.executable, "-m", "arboretum.cli", "report", str(run)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and "report.html" in done.stdout
    assert (run / "report.html").read_text() == before
    done = subprocess.run([*command, str(tmp_path), "--out", "x.html"], capture_output=True, text=True)
    assert done.returncode == 2 and "name no other run" in done.stderr


@pytest.mark.heavy
def test_page_needs_no_network_and_escapes_observations(run: Path) -> None:
    text = (run / "report.html").read_text(encoding="utf-8")
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:)?//""", text)
    assert "@import" not in text and "url(" not in text
    assert HOSTILE not in text and "<script>document" not in text
    assert "Not finished" not in text and "3 of 3 updates" in text


@pytest.mark.heavy
def test_interrupted_run_writes_a_report(warm_model: Path, tmp_path: Path) -> None:
    """SIGINT arrives in the middle of an update."""
    run = tmp_path / "run"
    command = [sys.executable, "-m", "arboretum.cli", "train", "grpo", "--env", "TextFrozenLake-v0"]
    command += ["--model", str(warm_model), "--out", str(run), "--device", "cpu", "--dialogue", "no_think"]
    command += ["--validation.tasks", "2", "--checkpoint-every", "1"]
    for setting in ("prompts=2", "rollouts=4", "reply_tokens=12", "max_turns=2", "think=null"):
        command += ["--set", f"sampler.{setting}"]
    command += ["--set", "optimization.episodes_per_step=8"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    # The children of a background shell ignore SIGINT unless the handler is restored.
    restore = lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None  # noqa: E731
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env, preexec_fn=restore)
    deadline = time.monotonic() + 120
    metrics = run / "metrics.jsonl"
    while not (metrics.exists() and metrics.read_text().count("\n") >= 3):
        assert child.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    child.send_signal(signal.SIGINT)
    output, _ = child.communicate(timeout=60)
    assert child.returncode == 130
    assert "the last checkpoint is update-" in output and f"Report: {run / 'report.html'}" in output.replace(
        "\n", ""
    )
    page = (run / "report.html").read_text()
    assert "of 200 updates" in page and "Not finished" in page and "before training" in page


@pytest.mark.heavy
def test_page_fits_a_phone_and_shows_prompts_and_sampled_text(run: Path, browser: Any) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import Select, WebDriverWait

    phone = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    browser.get((run / "report.html").as_uri())
    wait = WebDriverWait(browser, 60)

    def text(id: str) -> str:
        return str(browser.find_element(By.ID, id).text)

    wait.until(lambda _: "Board" in text("turns"))
    assert HOSTILE in text("turns") and browser.title == "grpo on TextFrozenLake-v0 · Arboretum report"
    width = browser.execute_script("return document.documentElement.scrollWidth")
    assert width <= browser.execute_script("return window.innerWidth")
    table = browser.find_element(By.ID, "validations")
    assert table.rect["width"] <= table.find_element(By.XPATH, "..").rect["width"]  # no horizontal scrolling

    entries = Select(browser.find_element(By.ID, "entry"))
    names = [option.text for option in entries.options]
    assert names == ["before training", *(f"after update {n}" for n in (1, 2, 3))]
    assert not browser.find_element(By.ID, "agent").is_displayed()  # there is only one agent

    def tasks() -> list[Any]:
        return list(browser.find_elements(By.CSS_SELECTOR, "#list button"))

    tasks()[2].click()
    first = text("title")
    entries.select_by_visible_text("after update 3")
    wait.until(lambda _: browser.find_elements(By.CSS_SELECTOR, "#list tr[aria-selected]"))
    assert text("title") == first  # the same task in the other validation
    turn = [sample for sample in read_samples(run) if sample["update"] == 3][2]["turns"][0]
    shown = browser.find_element(By.CSS_SELECTOR, "#turns .assistant pre").get_property("textContent")
    assert shown == turn["reply"]  # the conversation, as in the report of an evaluation
    summaries = browser.find_elements(By.CSS_SELECTOR, "#turns summary")
    next(one for one in summaries if "token for token" in one.text).click()
    assert "<|im_start|>system" in turn["prompt"] and turn["sampled"]
    for name, expected in (("read", turn["prompt"]), ("wrote", turn["sampled"])):
        element = wait.until(lambda _, name=name: browser.find_element(By.CSS_SELECTOR, f"#turns .{name}"))
        assert element.get_property("textContent") == expected

    for width in (1280, 390):
        for scheme in ("light", "dark"):
            set_width(browser, width, scheme)
            assert browser.execute_script("return document.documentElement.scrollWidth") <= width
            assert low_contrasts(browser) == {}
    for table in browser.find_elements(By.TAG_NAME, "table"):
        assert table.find_elements(By.TAG_NAME, "caption")
        assert not table.find_elements(By.CSS_SELECTOR, "th:not([scope])")
    charts = browser.find_elements(By.CSS_SELECTOR, ".charts svg")
    assert len(charts) >= 12 and all(chart.rect["height"] > 100 for chart in charts)
    assert not [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
