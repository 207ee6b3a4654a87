"""The set-up script of the Makefile: choice of PyTorch's build, progress, and errors that name the fix."""

from __future__ import annotations

import hashlib
import importlib.util
import platform
import shutil
import socket
import subprocess
import sys
import threading
import tomllib
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import distributions
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet

import arboretum

ROOT = Path(arboretum.__file__).parent
PYTHON = Path(sys.executable)
LARGE = 11_000_000  # bytes


@pytest.fixture(scope="module")
def install() -> ModuleType:
    spec = importlib.util.spec_from_file_location("install", ROOT / "tools" / "install.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def web(tmp_path: Path) -> Iterator[str]:
    """Address of a server of the files in the test's folder."""

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(tmp_path))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


# ---------------------------------------------------------------------- PyTorch


def test_cpu_build_is_that_of_this_version_interpreter_and_machine(
    install: ModuleType, web: str, tmp_path: Path
) -> None:
    machine = platform.machine()
    ours = f"torch-{install.TORCH}%2Bcpu-cp313-cp313-manylinux_2_28_{machine}.whl#sha256=abc"
    others = [
        f"torch-2.1.0%2Bcpu-cp313-cp313-manylinux_2_28_{machine}.whl",
        f"torch-{install.TORCH}%2Bcpu-cp312-cp312-manylinux_2_28_{machine}.whl",
        f"torch-{install.TORCH}%2Bcpu-cp313-cp313t-manylinux_2_28_{machine}.whl",
        f"torch-{install.TORCH}%2Bcpu-cp313-cp313-manylinux_2_28_riscv64.whl",
        f"torch-{install.TORCH}%2Bcpu-cp313-cp313-win_{machine}.whl",
    ]
    page = tmp_path / "torch" / "index.html"
    page.parent.mkdir()
    page.write_text("".join(f'<a href="/whl/cpu/{name}">{name}</a><br/>' for name in [*others, ours]))
    assert install.cpu_wheel(f"{web}/torch/", "cp313") == f"{web}/whl/cpu/{ours}"
    assert install.cpu_wheel(f"{web}/torch/", "cp399") is None
    assert install.cpu_wheel(f"{web}/other/", "cp313") is None


def test_index_that_never_answers_costs_only_the_time_limit(install: ModuleType) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        assert install.cpu_wheel(address, "cp313", patience=0.2) is None


def test_answer_of_another_protocol_counts_as_none(install: ModuleType) -> None:
    """Captive portals and other servers on the port may answer anything."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"220 mail.example ready\r\n")

        thread = threading.Thread(target=greet)
        thread.start()
        assert install.cpu_wheel(f"http://127.0.0.1:{server.getsockname()[1]}/", "cp313") is None
        thread.join()


def test_index_that_the_user_named_is_respected(
    install: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name, raising=False)
    config = tmp_path / "pip.conf"
    config.write_text("[global]\ntimeout = 60\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    if not install.has_chosen_index(PYTHON):  # the machine's own files may name one
        monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
        assert not install.has_chosen_index(PYTHON)
        config.write_text("[global]\nindex-url = https://mirror.example/simple\n")
        assert install.has_chosen_index(PYTHON)
    for name, value in (("PIP_FIND_LINKS", "/wheels"), ("PIP_EXTRA_INDEX_URL", "https://mirror.example/simple")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            assert install.has_chosen_index(PYTHON)


def test_sizes_are_those_of_the_pinned_pytorch(install: ModuleType) -> None:
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert f"torch=={install.TORCH}" in pins, "raise TORCH in tools/install.py, and check its sizes"


def test_pinned_packages_run_on_the_oldest_python() -> None:
    """Debian's Python is not the last release of its series, which some packages require."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    oldest = project["requires-python"].removeprefix(">=") + ".0"
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = {line.lower().replace("_", "-") for line in lines}
    found = {f"{one.name}=={one.version}".lower().replace("_", "-"): one for one in distributions()}
    ours = {pin: found[pin].metadata.get("Requires-Python") for pin in pins & found.keys()}
    assert len(ours) > 10
    assert not [pin for pin, needed in ours.items() if needed and not SpecifierSet(needed).contains(oldest)]


# ---------------------------------------------------------------------- pip


@pytest.fixture
def package(tmp_path: Path) -> None:
    """Index with one package, whose wheel is large enough to be announced."""
    folder = tmp_path / "simple" / "arboretum-test-payload"
    folder.mkdir(parents=True)
    name = "arboretum_test_payload-1.0"
    wheel = folder / f"{name}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("payload.bin", bytes(LARGE))
        archive.writestr(
            f"{name}.dist-info/METADATA", "Metadata-Version: 2.1\nName: arboretum-test-payload\nVersion: 1.0\n"
        )
        archive.writestr(f"{name}.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{name}.dist-info/RECORD", "")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    (folder / "index.html").write_text(f'<a href="{wheel.name}#sha256={digest}">{wheel.name}</a>')


def arguments(index: str) -> list[str]:
    return ["--dry-run", "--no-cache-dir", "--retries", "1", "--index-url", index, "arboretum-test-payload"]


@pytest.mark.usefixtures("package")
def test_large_download_is_announced_with_name_and_size(
    install: ModuleType, web: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install.pip(PYTHON, [*arguments(f"{web}/simple"), "--target", str(tmp_path / "target")])
    assert capsys.readouterr().out == "Downloading arboretum_test_payload 1.0 (11 MB)\n"


@pytest.mark.usefixtures("package")
def test_terminal_shows_a_line_that_grows_to_the_size(
    install: ModuleType, web: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [sys.executable, "-m", "pip", "install", "--progress-bar", "raw", *arguments(f"{web}/simple")]
    done = subprocess.run(
        [*command, "--target", str(tmp_path / "target")], capture_output=True, text=True, check=True
    )
    line = install.ProgressLine(terminal=True)
    for text in done.stdout.splitlines():
        line.read(text)
    line.clear()
    shown = capsys.readouterr().out
    assert "\n" not in shown and shown.endswith("\r\x1b[K")
    assert "Downloading arboretum_test_payload 1.0: 11.0 of 11.0 MB" in shown


def test_unreachable_index_is_an_error_that_names_the_network(
    install: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"http://127.0.0.1:{closed.getsockname()[1]}/simple"
    with pytest.raises(install.Failure, match=r"cannot be reached.*PIP_INDEX_URL"):
        install.pip(PYTHON, arguments(address))
    assert "arboretum-test-payload" in capsys.readouterr().err


def test_last_words_of_pip_are_shown_when_it_fails(
    install: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(install.Failure, match="pip failed with status 1"):
        install.pip(PYTHON, ["--dry-run", "--no-index", "no-package-of-this-name"])
    assert "No matching distribution found for no-package-of-this-name" in capsys.readouterr().err


# ---------------------------------------------------------------------- Python


def test_python_without_ensurepip_is_an_error_that_names_the_package(
    install: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Debian's `python3` without `python3-venv`."""
    monkeypatch.setattr(install, "find_spec", lambda name: None if name == "ensurepip" else object())
    with pytest.raises(install.Failure, match=r"apt install python3\.\d+-venv"):
        install.environment(tmp_path / ".venv")
    assert not (tmp_path / ".venv").exists()


def test_make_names_the_version_of_python_that_is_needed() -> None:
    make = shutil.which("make")
    if make is None:
        pytest.skip("needs make")
    done = subprocess.run(
        [make, "--dry-run", "--always-make", "PYTHON=no-such-python", ".venv/.core"],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 2 and "Arboretum needs Python 3.11 or newer" in done.stderr
