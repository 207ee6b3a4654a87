"""Local server of OpenAI's chat completions, for benchmarks and for tests of failures.

    python -m arboretum.eval.bench.endpoint --delay 0.1

It prints its port. The default response, sent after `delay` seconds, states the number of messages in the request;
`Endpoint.script` holds other responses to the next requests.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ...agents.engines.connection import decode_json, encode_json


@dataclass(frozen=True, kw_only=True)
class ScriptedResponse:
    """Response to one request, or a failure.

    Attributes:
        status: HTTP status.
        headers: Further headers, as names and values.
        body: Body as bytes or JSON data; None for the default completion.
        delay: Seconds before the response starts; None for the endpoint's delay.
        byte_delay: Seconds between the bytes of the response.
        close_after: Number of bytes of the body after which the connection is closed; None for the whole body.
        reset: Close the connection without a response.
    """

    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | dict[str, Any] | None = None
    delay: float | None = None
    byte_delay: float = 0.0
    close_after: int | None = None
    reset: bool = False


@dataclass
class Endpoint:
    """Server whose state tests can inspect and script.

    Attributes:
        delay: Seconds before a response.
        script: Responses to the next requests, in order; the default response follows when it is empty.
        requests: Path, lower-case headers and JSON body of every request so far.
        active: Number of requests that are being answered.
        peak_active: Maximum of `active` so far.
        port: TCP port; 0 before the start takes a free one.
    """

    delay: float = 0.0
    script: deque[ScriptedResponse] = field(default_factory=deque)
    requests: list[tuple[str, dict[str, str], dict[str, Any]]] = field(default_factory=list)
    active: int = 0
    peak_active: int = 0
    port: int = 0
    _connections: set[asyncio.Task[Any]] = field(default_factory=set)

    @property
    def url(self) -> str:
        """Base URL of the server."""
        return f"http://127.0.0.1:{self.port}/v1"

    @contextmanager
    def running(self) -> Iterator[Endpoint]:
        """Context in which a thread of this process serves."""
        loop = asyncio.new_event_loop()
        ready = threading.Event()
        stop = asyncio.Event()

        async def main() -> None:
            server = await asyncio.start_server(self._handle_connection, "127.0.0.1", self.port)
            self.port = server.sockets[0].getsockname()[1]
            ready.set()
            await stop.wait()
            await _run_pending_callbacks()  # A connection that is half accepted would leave its socket open.
            server.close()
            while others := asyncio.all_tasks(loop) - {asyncio.current_task()}:
                for task in others & self._connections:
                    task.cancel()
                await asyncio.wait(others, timeout=0.1)
            await _run_pending_callbacks()  # Aborted transports close their sockets.

        thread = threading.Thread(target=lambda: loop.run_until_complete(main()), daemon=True)
        thread.start()
        ready.wait()
        try:
            yield self
        finally:
            loop.call_soon_threadsafe(stop.set)
            thread.join()
            loop.close()

    async def serve(self) -> None:
        """Print the port and serve until cancelled."""
        server = await asyncio.start_server(self._handle_connection, "127.0.0.1", self.port)
        sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
        sys.stdout.flush()
        await server.serve_forever()

    async def _handle_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.current_task()
        assert connection is not None
        self._connections.add(connection)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                first, *lines = head.decode("latin-1").split("\r\n")
                headers = {}
                for line in lines:
                    name, _, value = line.partition(":")
                    headers[name.lower()] = value.strip()
                content = await reader.readexactly(int(headers.get("content-length", 0)))
                request = decode_json(content) if content else {}
                self.requests.append((first.split(" ")[1], headers, request))
                self.active += 1
                self.peak_active = max(self.peak_active, self.active)
                try:
                    keep_alive = await self._respond(request, writer)
                finally:
                    self.active -= 1
                if not keep_alive:
                    return
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._connections.discard(connection)
            writer.transport.abort()

    async def _respond(self, request: dict[str, Any], writer: asyncio.StreamWriter) -> bool:
        """Send the next response; return True if the connection stays open."""
        response = self.script.popleft() if self.script else _DEFAULT_RESPONSE
        await asyncio.sleep(self.delay if response.delay is None else response.delay)
        if response.reset:
            return False
        body = response.body if response.body is not None else default_completion(request)
        content = body if isinstance(body, bytes) else encode_json(body)
        head = [
            f"HTTP/1.1 {response.status} X",
            "content-type: application/json",
            f"content-length: {len(content)}",
        ]
        head += [f"{name}: {value}" for name, value in response.headers]
        data = "\r\n".join([*head, "", ""]).encode() + content
        if response.close_after is not None:
            writer.write(data[: len(data) - len(content) + response.close_after])
            await writer.drain()
            return False
        if response.byte_delay:
            for byte in data:
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(response.byte_delay)
        else:
            writer.write(data)
            await writer.drain()
        return True


_DEFAULT_RESPONSE = ScriptedResponse()


async def _run_pending_callbacks(iterations: int = 5) -> None:
    """Let the event loop run a few iterations."""
    for _ in range(iterations):
        await asyncio.sleep(0.002)


def default_completion(request: dict[str, Any], text: str | None = None, **choice: Any) -> dict[str, Any]:
    """Return a chat completion.

    Args:
        request: JSON body of the request.
        text: Text of the reply; None for the number of messages.
        choice: Fields that extend or replace those of the only choice.
    """
    messages = request.get("messages", [])
    text = f"I read {len(messages)} messages." if text is None else text
    prompt = sum(len((message["content"] or "").split()) for message in messages)
    usage = {"prompt_tokens": prompt, "completion_tokens": len(text.split())}
    message = {"role": "assistant", "content": text}
    only_choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None, **choice}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 0,
        "model": request.get("model"),
        "choices": [only_choice],
        "usage": {**usage, "total_tokens": sum(usage.values())},
    }


@contextmanager
def run_in_process(delay: float = 0.0, port: int = 0) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Context with a server in a separate process, whose CPU time is not counted here: its URL and the process."""
    command = [sys.executable, "-m", __name__, "--delay", str(delay), "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1", process
        finally:
            process.kill()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--delay", type=float, default=0.0)
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args()
    asyncio.run(Endpoint(delay=options.delay, port=options.port).serve())
