"""vLLM's own server in a child process, on loopback."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def serving(model: Path, port: int, context: int, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run vLLM's own server in a child process, and kill it on exit.

    Args:
        model: Folder of the model, which is served as "tiny".
        port: TCP port on loopback.
        context: Context window in tokens.
        options: Further options of the server.
    """
    command = [
        sys.executable,
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        str(model),
        "--port",
        str(port),
    ]
    command += ["--host", "127.0.0.1", "--dtype", "float32", "--enforce-eager"]
    command += ["--max-model-len", str(context), "--served-model-name", "tiny", "--enable-prompt-tokens-details"]
    command += ["--disable-uvicorn-access-log", *options]
    environment = {**os.environ, "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_SERVER_DEV_MODE": "1"}
    # The engine's process computes, as it does with one GPU; on CPUs it would start, and import, another.
    environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    try:
        end = time.monotonic() + 400  # seconds; it imports for minutes on a busy machine
        while True:
            assert process.poll() is None, "the server has exited"
            assert time.monotonic() < end, "the server did not start"
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
                break
            except OSError:
                time.sleep(0.5)
        yield process
    finally:
        kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the server and its engine process with SIGKILL."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
