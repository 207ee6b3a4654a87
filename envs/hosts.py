"""Sockets of servers, and the names under which a server may be addressed.

The names are limited so that no web page reaches a server under a name of its own.
"""

from __future__ import annotations

import ipaddress
import logging
import re
import socket
from collections.abc import Callable

from .errors import ConfigurationError

_LOCAL_SUFFIXES = (".localhost", ".local", ".internal", ".lan", ".home.arpa", ".test")
"""Endings of names that nobody can register (RFC 6761, 6762 and 8375; `internal` is reserved by ICANN)."""

_HOST = re.compile(r"(\[[^\]]*\]|[^:\[\]]*)(?::\d{1,5})?")
_log = logging.getLogger(__name__)


def listen(name: str, host: str, port: int) -> socket.socket:
    """Return a socket that takes connections, which wait until a server answers them.

    Args:
        name: Name of the service, for the warning that other machines reach it.
        host: Address to bind.
        port: TCP port; 0 takes a free one.

    Raises:
        ConfigurationError: The address is taken or invalid.
    """
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (while ")[0]  # Python repeats the address.
        raise ConfigurationError(
            f"cannot listen on {host}:{port} ({reason}); choose another port or host."
        ) from None
    if not is_loopback(host):
        _log.warning("%s on %s is reachable from other machines, and asks nobody for a password.", name, host)
    return listener


def url_of(host: str, listener: socket.socket) -> str:
    """Return the address of the server that listens, without a path."""
    port = listener.getsockname()[1]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_loopback(host: str) -> bool:
    """Return True if an address or name is reachable from this machine only."""
    try:
        return host == "localhost" or host.endswith(".localhost") or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_filter(host: str) -> Callable[[str], bool]:
    """Return a function that tells of a `Host` header whether it may name this server.

    On loopback the header must name loopback. On other addresses it may be any address, a name without a dot, a
    name of a local network, or the name of this machine. That stops DNS rebinding.

    Args:
        host: Address that the server binds.
    """
    own = {host.lower(), socket.gethostname().lower()}

    def is_allowed(header: str) -> bool:
        match = _HOST.fullmatch(header.strip().lower())
        if match is None:
            return False
        name = match[1].strip("[]").removesuffix(".")
        if name == host.lower() or is_loopback(name):
            return True
        if is_loopback(host):
            return False
        return name in own or "." not in name or name.endswith(_LOCAL_SUFFIXES) or _is_address(name)

    return is_allowed


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
