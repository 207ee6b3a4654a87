"""Cache of completions, so that no request to a paid API is repeated."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import astuple
from hashlib import blake2b
from pathlib import Path
from typing import Any

from ...envs.reply_cache import ReplyCache
from .base import Completion, Usage

log = logging.getLogger(__name__)


def reply_key(endpoint: str, body: Mapping[str, Any], sample: int) -> bytes:
    """Return the cache key of a request.

    Args:
        endpoint: URL of the request.
        body: Body of the request: model, messages or token ids, sampling settings, seed.
        sample: Number of identical requests that the conversation made before, each of which is a sample of its
            own.
    """
    canonical = json.dumps([endpoint, body, sample], sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return blake2b(canonical.encode("utf-8", "surrogatepass"), digest_size=20).digest()


class CompletionCache:
    """Completions in a `ReplyCache`.

    Args:
        path: The file; it and its folder are created if missing.

    Raises:
        DataError: The file is not a cache of this version, or cannot be opened.
    """

    def __init__(self, path: str | Path) -> None:
        self._replies = ReplyCache(path)
        self._samples: dict[str, dict[bytes, int]] = {}  # numbers of identical requests by conversation

    def next_key(self, conversation: str, endpoint: str, body: Mapping[str, Any]) -> bytes:
        """Return the cache key of the next request of a conversation.

        An identical request of the same conversation is another sample; one of a new conversation repeats the
        first sample.

        Args:
            conversation: Name of the conversation.
            endpoint: URL of the request.
            body: Body of the request.
        """
        samples = self._samples.setdefault(conversation, {})
        first = reply_key(endpoint, body, 0)
        sample = samples.get(first, 0)
        samples[first] = sample + 1
        return first if sample == 0 else reply_key(endpoint, body, sample)

    def release(self, conversation: str) -> None:
        """Forget the requests of a conversation, whose name may then be that of a new one."""
        self._samples.pop(conversation, None)

    def get(self, key: bytes) -> Completion | None:
        """Return the reply of a key, at no cost and with its whole prompt counted as cached; None on a miss."""
        row = self._replies.get([key]).get(key)
        if row is None:
            return None
        try:
            text, finish, token_ids, logprobs, (prompt, completion) = row
        except (ValueError, TypeError):
            log.warning("reply cache %s: a reply is damaged", self._replies.path)
            return None
        usage = Usage(prompt_tokens=prompt, cached_tokens=prompt, completion_tokens=completion)
        return Completion(text, finish, token_ids, logprobs, usage)

    def put(self, key: bytes, completion: Completion) -> None:
        """Store a reply, unless it is an error or a rejection."""
        if completion.finish in ("error", "rejected"):
            return
        prompt, _, generated, _ = astuple(completion.usage)
        tokens = completion.token_ids, completion.logprobs
        self._replies.put({key: [completion.text, completion.finish, *tokens, [prompt, generated]]})

    def close(self) -> None:
        """Close the file."""
        self._replies.close()
