"""A small local server of OpenAI's chat completions, for benchmarks and for tests of what can go wrong.

    python -m arboretum.eval.bench.endpoint --delay 0.1

It prints its port. Every request is answered after `delay` seconds with a reply that names how many messages it
read; `Endpoint.script` holds other things to do with the next requests, one each.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Deed:
    """What to do with one request.

    Attributes:
        status, headers, body: of the response; None gives the usual reply.
        delay: seconds before the response begins.
        drip: seconds between its bytes.
        keep: bytes after which the connection is closed, although more were promised.
        reset: drop the connection without an answer.
    """

    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | dict[str, Any] | None = None
    delay: float | None = None
    drip: float = 0.0
    keep: int | None = None
    reset: bool = False


@dataclass
class Endpoint:
    """The server's state, shared with who tests it.

    Attributes:
        delay: seconds that a usual answer takes.
        script: deeds for the next requests; when it is empty the usual answer is given.
        requests: path, lower-case headers and JSON body of every request so far.
        busy, busiest: requests being answered now, and at most at any time.
        port: where it listens.
    """

    delay: float = 0.0
    script: deque[Deed] = field(default_factory=deque)
    requests: list[tuple[str, dict[str, str], dict[str, Any]]] = field(default_factory=list)
    busy: int = 0
    busiest: int = 0
    port: int = 0
    _talks: set[asyncio.Task[Any]] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @contextmanager
    def running(self) -> Iterator[Endpoint]:
        """Serve from a thread of this process."""
        loop = asyncio.new_event_loop()
        ready = threading.Event()
        stop = asyncio.Event()

        async def main() -> None:
            server = await asyncio.start_server(self._talk, "127.0.0.1", self.port)
            self.port = server.sockets[0].getsockname()[1]
            ready.set()
            await stop.wait()
            await _turns()  # a connection just accepted is let in first: half-way it would leave its socket open
            server.close()
            while others := asyncio.all_tasks(loop) - {asyncio.current_task()}:
                for task in others & self._talks:
                    task.cancel()
                await asyncio.wait(others, timeout=0.1)
            await _turns()  # aborted transports close their sockets

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
        """Serve until cancelled, and print the port."""
        server = await asyncio.start_server(self._talk, "127.0.0.1", self.port)
        sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
        sys.stdout.flush()
        await server.serve_forever()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talk = asyncio.current_task()
        assert talk is not None
        self._talks.add(talk)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                first, *lines = head.decode("latin-1").split("\r\n")
                headers = {}
                for line in lines:
                    name, _, value = line.partition(":")
                    headers[name.lower()] = value.strip()
                content = await reader.readexactly(int(headers.get("content-length", 0)))
                request = json.loads(content) if content else {}
                self.requests.append((first.split(" ")[1], headers, request))
                self.busy += 1
                self.busiest = max(self.busiest, self.busy)
                try:
                    stays = await self._answer(request, writer)
                finally:
                    self.busy -= 1
                if not stays:
                    return
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._talks.discard(talk)
            writer.transport.abort()

    async def _answer(self, request: dict[str, Any], writer: asyncio.StreamWriter) -> bool:
        deed = self.script.popleft() if self.script else _USUAL
        await asyncio.sleep(self.delay if deed.delay is None else deed.delay)
        if deed.reset:
            return False
        body = deed.body if deed.body is not None else usual_reply(request)
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        head = [f"HTTP/1.1 {deed.status} X", "content-type: application/json", f"content-length: {len(content)}"]
        head += [f"{name}: {value}" for name, value in deed.headers]
        data = "\r\n".join([*head, "", ""]).encode() + content
        if deed.keep is not None:
            writer.write(data[: len(data) - len(content) + deed.keep])
            await writer.drain()
            return False
        if deed.drip:
            for byte in data:
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(deed.drip)
        else:
            writer.write(data)
            await writer.drain()
        return True


_USUAL = Deed()


async def _turns(count: int = 5) -> None:
    """Let the event loop turn a few times."""
    for _ in range(count):
        await asyncio.sleep(0.002)


def usual_reply(request: dict[str, Any], text: str | None = None, **choice: Any) -> dict[str, Any]:
    """A chat completion; `choice` adds to, or replaces, fields of its only choice."""
    messages = request.get("messages", [])
    text = f"I read {len(messages)} messages." if text is None else text
    prompt = sum(len(message["content"].split()) for message in messages)
    usage = {"prompt_tokens": prompt, "completion_tokens": len(text.split())}
    message = {"role": "assistant", "content": text}
    only = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None, **choice}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 0,
        "model": request.get("model"),
        "choices": [only],
        "usage": {**usage, "total_tokens": sum(usage.values())},
    }


@contextmanager
def in_a_process(delay: float = 0.0, port: int = 0) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Serve from a process of its own, so that its time is not ours; yields its address and the process."""
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
