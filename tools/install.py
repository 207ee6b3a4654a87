"""Install packages into a virtual environment, with a line of progress and with errors that name the fix.

    python3 tools/install.py .venv --torch --constraint constraints.txt --editable ".[lm]"

The folder of the environment is created if it does not exist. The other arguments are those of `pip install`,
except `--torch`: the packages need PyTorch. On Linux the build on PyPI contains CUDA; without an NVIDIA GPU the
CPU build, a tenth of the size, is installed first.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import threading
import time
import urllib.request
from html.parser import HTMLParser
from http.client import HTTPException
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urljoin

ROOT = Path(__file__).resolve().parents[1]
PYTORCH_INDEX = "https://download.pytorch.org/whl/cpu/torch/"
PATIENCE = 5.0
"""Seconds for the answer of PyTorch's index, since networks that reach only a mirror of PyPI may give none."""

TORCH, CPU_SIZE, CUDA_SIZE = "2.13.0", "190 MB", "2.7 GB with its CUDA libraries"
"""Version of PyTorch in constraints.txt, and the sizes of its downloads for Linux on x86-64."""

NETWORK = re.compile(
    "NewConnectionError|NameResolutionError|ConnectTimeout|ReadTimeout|ProxyError|ConnectionReset|Max retries"
)
"""Words of pip's output where the index could not be reached."""


class Failure(Exception):
    """Installation that cannot succeed; the message names the reason and the fix."""


class Links(HTMLParser):
    """Targets of the links of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.targets: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.targets += [value for name, value in attrs if tag == "a" and name == "href" and value]


class ProgressLine:
    """Progress of pip: one line that is rewritten in a terminal; a line for each large download elsewhere.

    Args:
        terminal: The output is a terminal.
    """

    LARGE = 10_000_000  # bytes; smaller downloads take seconds

    def __init__(self, terminal: bool) -> None:
        self.terminal = terminal
        self._package = ""
        self._shown = 0.0
        self._announced = False

    def read(self, line: str) -> None:
        """Show what a line of pip's output means, if anything."""
        if match := re.match(r"Progress (\d+) of (\d+)", line):
            done, total = (int(number) for number in match.groups())
            if not self.terminal and total >= self.LARGE and not self._announced:
                self._announced = True
                self._show(f"Downloading {self._package} ({total / 1e6:.0f} MB)")
            elif self.terminal and (done == total or time.monotonic() - self._shown > 0.2):
                self._show(f"Downloading {self._package}: {done / 1e6:.1f} of {total / 1e6:.1f} MB")
        elif match := re.match(r"\s*Downloading (\S+)", line):
            name = unquote(match[1].rpartition("/")[2])
            self._package, self._announced = " ".join(name.split("-")[:2]), False
        elif match := re.match(r"Collecting ([\w.-]+)", line):
            if self.terminal:
                self._show(f"Resolving {match[1]}")
        elif line.startswith("Installing collected packages:") and "," in line:
            self._show(f"Unpacking {line.count(',') + 1} packages")
        elif "Retrying" in line:
            self._show("No answer from the package index; trying again")

    def clear(self) -> None:
        """Remove the line from a terminal."""
        if self.terminal:
            print("\r\x1b[K", end="", flush=True)

    def _show(self, text: str) -> None:
        self._shown = time.monotonic()
        width = shutil.get_terminal_size().columns - 1
        print(f"\r\x1b[K{text[:width]}" if self.terminal else text, end="" if self.terminal else "\n", flush=True)


def main(folder: Path, arguments: list[str]) -> None:
    """Create the environment if it does not exist, and install packages into it.

    Args:
        folder: Folder of the environment.
        arguments: Arguments of `pip install`, and `--torch`.

    Raises:
        Failure: See the class.
    """
    python = environment(folder)
    if pip_version(python) < (25,):  # Older ones neither report progress to a program nor explain all failures.
        pip(python, ["--upgrade", "pip"])
    if "--torch" in arguments:
        arguments.remove("--torch")
        install_torch(python)
    pip(python, arguments)
    # The distribution was once called `arboretum`, and an environment of that time still has it.
    subprocess.run([python, "-m", "pip", "--quiet", "--quiet", "uninstall", "--yes", "arboretum"], check=True)


def environment(folder: Path) -> Path:
    """Return the interpreter of a virtual environment, which is created if it does not exist.

    Raises:
        Failure: This Python cannot create environments.
    """
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if python.exists():
        return python
    version = ".".join(map(str, sys.version_info[:2]))
    if find_spec("venv") is None or find_spec("ensurepip") is None:
        raise Failure(
            f"Python {version} has no module `ensurepip`, which makes virtual environments; on Debian and Ubuntu "
            f"install it with: apt install python{version}-venv"
        )
    print(f"Creating {folder} with Python {version} ...", flush=True)
    if subprocess.run([sys.executable, "-m", "venv", folder]).returncode:
        shutil.rmtree(folder, ignore_errors=True)  # A half-made one would be taken for complete.
        raise Failure(f"The virtual environment {folder} could not be created; the reason is above.")
    return python


def pip_version(python: Path) -> tuple[int, ...]:
    """Return the first number of the version of an environment's pip."""
    shown = subprocess.run([python, "-m", "pip", "--version"], capture_output=True, text=True, check=True).stdout
    return (int(shown.split()[1].split(".")[0]),)


def pip(python: Path, arguments: list[str]) -> None:
    """Run `pip install` in an environment, and show its progress.

    Raises:
        Failure: pip failed.
    """
    quiet = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_ROOT_USER_ACTION": "ignore", "PIP_NO_INPUT": "1"}
    # setuptools warns about every editable installation.
    env = {**os.environ, **quiet, "PYTHONUNBUFFERED": "1", "PYTHONWARNINGS": "ignore"}
    bar = ["--progress-bar", "raw"] if pip_version(python) >= (25,) else []
    command = [str(python), "-m", "pip", "install", *bar, *arguments]
    progress, output = ProgressLine(sys.stdout.isatty()), []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", env=env
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            progress.read(line)
            if not line.startswith("Progress "):
                output.append(line)
    progress.clear()
    if process.returncode == 0:
        return
    print("".join(output[-15:]), end="", file=sys.stderr)
    if NETWORK.search("".join(output)):
        raise Failure(
            "The package index cannot be reached; check the network and its proxy (HTTPS_PROXY), "
            "or name a mirror of PyPI with PIP_INDEX_URL."
        )
    raise Failure(f"pip failed with status {process.returncode}; its last words are above.")


def install_torch(python: Path) -> None:
    """Install the CPU build of PyTorch where there is no use for another, and say what will be downloaded.

    Nothing is installed, and pip chooses the build, where the user has named an index of packages.
    """
    if any(python.parents[1].glob(f"[Ll]ib*/**/site-packages/torch-{TORCH}*.dist-info")):
        return
    if sys.platform != "linux":
        print(f"Downloads PyTorch {TORCH} (about 100 MB) and smaller packages.", flush=True)
    elif shutil.which("nvidia-smi") is not None:
        print(f"Downloads PyTorch {TORCH} ({CUDA_SIZE}) and smaller packages.", flush=True)
    elif has_chosen_index(python):
        sizes = f"{CPU_SIZE} if pip finds the CPU build where it is set to look, or {CUDA_SIZE}"
        print(f"Downloads PyTorch {TORCH} ({sizes}) and smaller packages.", flush=True)
    elif (wheel := cpu_wheel(PYTORCH_INDEX, python_tag(python))) is not None:
        print(f"Downloads the CPU build of PyTorch {TORCH} ({CPU_SIZE}) and smaller packages.", flush=True)
        pip(python, ["--no-deps", wheel])
    else:
        print(f"PyTorch's index does not answer, so pip downloads the build on PyPI ({CUDA_SIZE}).", flush=True)


def has_chosen_index(python: Path) -> bool:
    """Return True if variables such as PIP_INDEX_URL or a configuration file of pip name an index or a folder."""
    shown = subprocess.run([python, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True)
    names = [line.partition("=")[0] for line in shown.stdout.splitlines()]
    return any("index" in name or "find-links" in name for name in names)


def python_tag(python: Path) -> str:
    """Return the tag of an interpreter in the names of wheels, such as cp313."""
    code = "import sys; print('cp%d%d' % sys.version_info[:2])"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def cpu_wheel(index: str, tag: str, patience: float = PATIENCE) -> str | None:
    """Return the address of PyTorch's CPU build for this machine; None if the index has none or does not answer.

    Args:
        index: Address of the index's page of PyTorch.
        tag: Tag of the interpreter, such as cp313.
        patience: Time limit of the whole request in seconds, in which the look-up of the host counts, too.
    """
    pages: list[str] = []

    def load() -> None:
        try:
            with urllib.request.urlopen(index, timeout=patience) as reply:
                pages.append(reply.read().decode("utf-8", "replace"))
        except (OSError, HTTPException):
            pass  # There is no page, which is the answer.

    thread = threading.Thread(target=load, daemon=True)
    thread.start()
    thread.join(patience)
    links = Links()
    for page in pages:
        links.feed(page)
    for target in links.targets:
        name = unquote(target.partition("#")[0]).rpartition("/")[2]
        is_ours = name.startswith(f"torch-{TORCH}+cpu-{tag}-{tag}-") and "linux" in name
        if is_ours and name.endswith(f"_{platform.machine()}.whl"):
            return urljoin(index, target)
    return None


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), sys.argv[2:])
    except Failure as failure:
        sys.exit(f"{failure}")
    except KeyboardInterrupt:
        sys.exit(130)
