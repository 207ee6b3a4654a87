"""Addresses of servers, and what of them may be shown."""

from __future__ import annotations

import base64
import hashlib
import re
from contextlib import suppress
from urllib.parse import SplitResult, unquote, urlsplit

from .errors import ConfigurationError

CREDENTIAL = re.compile(r"auth|key|token|secret|pass|cookie|(^|[-_])sig", re.IGNORECASE)
"""Names of headers and of query parameters whose values are credentials."""
_CREDENTIAL_WORD = re.compile(
    r"(pass|passphrase|o?auth|authorization|sig|cookies?|keys|credentials?|\w*(token|secret|password|passwd|signature)"
    r"|(api|access|account|app|auth|client|function|license|master|private|secret|service|session|subscription|user)?key"
    r")\d*",
    re.IGNORECASE,
)
"""Words of the names of query parameters whose values do not say what is served, unlike those of `passages`."""
_SECRET = re.compile(
    r"(^|-)((api|access|auth|client|private|secret|service|subscription)-?key|client-?secret|secret|password|passwd|passphrase"
    r"|(access|api|auth|bearer|hf|hub|refresh|security|session)-?token|credentials?)\d*($|-)|^token$",
    re.IGNORECASE,
)
"""Names of settings that are secrets, with "-" between words; `state_key` and `stop_token` are none."""
_BETWEEN_WORDS = re.compile(r"[-_.]|(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
"""Separators, and the places between the words of names like accessToken and APIToken."""
_QUERY_MARK = re.compile(r"#query-[0-9a-f]{8}$")
_VERSION = "api-version"
"""Query parameter of Azure, which chooses the protocol and not what is served."""


def public_url(url: str) -> str:
    """Return a URL without user name, password, query and fragment, which may be secrets."""
    with suppress(ValueError):
        parts = urlsplit(url)
        if parts.hostname:
            host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
            port = "" if parts.port is None else f":{parts.port}"
            return f"{parts.scheme}://{host}{port}{parts.path}"
    return url.partition("?")[0].partition("#")[0].rpartition("@")[2]


def query_mark(url: str) -> str:
    """Return a fragment with a digest of a URL's query, which tells apart what one server serves under several.

    Parameters that are credentials by their names are left out; the others may be secrets, too, so that only the
    digest is stored. It is empty without a query, and the fragment that such a URL already has is returned.
    """
    pairs = url.partition("#")[0].partition("?")[2].split("&")
    names = {pair: pair.partition("=")[0] for pair in pairs if pair}
    kept = sorted(pair for pair, name in names.items() if name != _VERSION and not _is_credential(name))
    if kept:
        return f"#query-{hashlib.sha256('&'.join(kept).encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"
    found = _QUERY_MARK.search(url)
    return found[0] if found else ""


def is_secret(name: str) -> bool:
    """Return True if a setting of an agent is a secret by its name, such as `api_key` and `hfToken`."""
    return _SECRET.search(_BETWEEN_WORDS.sub("-", name)) is not None


def _is_credential(name: str) -> bool:
    return any(_CREDENTIAL_WORD.fullmatch(word) for word in _BETWEEN_WORDS.split(unquote(name)))


def check_has_query(url: str) -> None:
    """Check that an address is not one from the settings of a run, which lacks its query.

    Raises:
        ConfigurationError: It is, so that requests would be for something else.
    """
    if _QUERY_MARK.search(url):
        raise ConfigurationError(
            f"{url!r} is from the settings of a run, where a digest stands for the query of an address; give the"
            " address with its query."
        )


def identifying_url(url: str) -> str:
    """Return what identifies a server in the settings of a run: its `public_url`, and its `query_mark`."""
    return public_url(url) + query_mark(url)


def parse_address(url: str) -> SplitResult:
    """Return the parts of a server's URL.

    Raises:
        ConfigurationError: It is no `http://` or `https://` URL.
    """
    with suppress(ValueError):
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port >= 0):
            return parts
    raise ConfigurationError(f"a server's address looks like http://host:port, not {public_url(url)!r}.")


def basic_authorization(parts: SplitResult) -> dict[str, str]:
    """Return the header for the user name and the password of an address; nothing if it has none."""
    if parts.username is None:
        return {}
    user = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
    return {"authorization": f"Basic {base64.b64encode(user).decode()}"}
