"""Names under which a server may be addressed, so that no web page reaches it under a name of its own."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Callable

_LOCAL_SUFFIXES = (".localhost", ".local", ".internal", ".lan", ".home.arpa", ".test")
"""Endings of names that nobody can register (RFC 6761, 6762 and 8375; `internal` is reserved by ICANN)."""

_HOST = re.compile(r"(\[[^\]]*\]|[^:\[\]]*)(?::\d{1,5})?")


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
