"""TCP server on loopback that sends given bytes, for replies that no HTTP server would send."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Reply = Callable[[socket.socket], object]


def sends(
    *parts: bytes, headers: tuple[str, ...] = (), status: str = "200 OK", length: int | str | None = None
) -> Reply:
    """Return a reply of a status, headers and a body in parts; `length` is a false Content-Length."""
    body = b"".join(parts)
    lines = (f"HTTP/1.1 {status}", f"Content-Length: {len(body) if length is None else length}", *headers, "", "")
    return lambda connection: connection.sendall("\r\n".join(lines).encode("latin-1") + body)


@contextmanager
def raw_server(reply: Reply) -> Iterator[tuple[str, list[bytes]]]:
    """Context with the URL of a server that answers every request with `reply`, and the requests so far."""
    requests: list[bytes] = []
    listener = socket.create_server(("127.0.0.1", 0))

    def answer(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.settimeout(30)
            request = b""
            while b"\r\n\r\n" not in request:
                request += connection.recv(1 << 16)
            head, _, body = request.partition(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
            while len(body) < length:
                body += connection.recv(1 << 16)
            requests.append(head + b"\r\n\r\n" + body)
            reply(connection)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=answer, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", requests
    finally:
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
