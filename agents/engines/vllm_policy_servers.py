"""Engine for vLLM servers that sample for a trainer and take its weights between updates."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from ...envs.addresses import public_url
from ...envs.errors import ConfigurationError
from ..base import Stop
from .base import Request
from .connection import Connection
from .faults import ContextOverflow, RequestRejected, RetryableError
from .vllm_server import VLLMServerEngine, model_card

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

COMMAND = (
    "VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --dtype {dtype} --logprobs-mode processed_logprobs"
    " --worker-extension-cls arboretum.agents.engines.vllm_worker.WeightLoader"
)
"""Command that starts a server."""

_LOAD_SECONDS = 1800.0
"""Time limit of loading weights, which takes minutes for large models on network file systems."""


class _Server(NamedTuple):
    """A vLLM server.

    Attributes:
        url: Its URL, without what may be secret.
        model: Its name for the model.
        context: Context window in tokens.
        api: Connection to the endpoints below `/v1`.
        root: Connection to the other endpoints.
    """

    url: str
    model: str
    context: int
    api: Connection
    root: Connection


class VLLMPolicyServers(VLLMServerEngine):
    """Engine for one or more vLLM servers of one model, which take new weights from a folder.

    All requests of a conversation go to one server, whose prefix cache has the earlier turns; a new conversation
    goes to the server that has the fewest, and a branch to that of its parent. Log-probabilities are those of the
    sampling distribution. `COMMAND` starts a server.

    Args:
        urls: URLs of the servers, up to and including `/v1`.
        dtype: Dtype in which the servers must compute, such as "bfloat16".
        tokenizer: Tokenizer of the policy.
        **options: See `VLLMServerEngine`.

    Attributes:
        version: Version of the weights that the servers loaded last; None before `load_weights`.

    Raises:
        ConfigurationError: A server does not answer, was started without an option of `COMMAND`, or has another
            dtype.
    """

    def __init__(
        self, urls: Sequence[str], *, dtype: str, tokenizer: PreTrainedTokenizerBase, **options: Any
    ) -> None:
        super().__init__(base_url=urls[0], tokenizer=tokenizer, **options)
        self.version: str | None = None
        self._homes: dict[str, int] = {}  # servers by conversation
        try:
            self._servers = [self._connect(url) for url in urls]
            self.context = min(server.context for server in self._servers)
            self._check_servers(dtype)
        except BaseException:
            self.close()
            raise

    def _connect(self, url: str) -> _Server:
        card = model_card(url, None, self._headers)
        model, context = str(card["id"]), card.get("max_model_len")
        if not isinstance(context, int):
            raise ConfigurationError(f"the server at {public_url(url)} is not a vLLM server: it names no context.")
        api = Connection(url, model, self._headers, self._timeout)
        root = Connection(_root(url), model, self._headers, _LOAD_SECONDS)
        self._connections += [api, root]  # closed with the engine
        return _Server(api.base_url, model, context, api, root)

    @property
    def urls(self) -> list[str]:
        """URLs of the servers, in order, without what may be secret."""
        return [server.url for server in self._servers]

    def _check_servers(self, dtype: str) -> None:
        """Raise `ConfigurationError` unless every server was started as `COMMAND` starts it."""
        command = COMMAND.format(dtype=dtype)
        try:
            statuses = self._run(self._call_all("arboretum_status"))
        except Stop as error:
            reason = str(error).rstrip(".")
            raise ConfigurationError(f"{reason}; start each server with: {command}") from None
        for url, status in zip(self.urls, statuses, strict=True):
            for name, value in (("dtype", dtype), ("logprobs_mode", "processed_logprobs")):
                if status[0].get(name) != value:
                    option = f"--{name.replace('_', '-')}"
                    raise ConfigurationError(
                        f"the server at {url} runs with {option} {status[0].get(name)}, but this run needs "
                        f"{value}; start it with: {command}"
                    )

    # ------------------------------------------------------------------ requests

    def submit(self, request: Request) -> None:
        if request.conversation not in self._homes:
            counts = Counter(self._homes.values())
            fewest = min(range(len(self._servers)), key=lambda server: counts[server])
            self._homes[request.conversation] = self._homes.get(request.parent or "", fewest)
        super().submit(request)

    def release(self, conversation: str) -> None:
        super().release(conversation)
        self._homes.pop(conversation, None)

    def connection_of(self, request: Request) -> Connection:
        return self._server_of(request).api

    def body(self, request: Request) -> dict[str, Any]:
        return {**super().body(request), "model": self._server_of(request).model}

    def _server_of(self, request: Request) -> _Server:
        return self._servers[self._homes.get(request.conversation, 0)]

    # ------------------------------------------------------------------ weights

    def load_weights(self, folder: Path, version: str) -> None:
        """Have all servers replace their weights in place and clear their prefix caches.

        Args:
            folder: Folder of safetensors files, which all servers see under this path; needed by this call only.
            version: Version of the weights, different from that of any others.

        Raises:
            RuntimeError: Requests are pending.
            Stop: A server does not answer, or refuses the weights, for instance because it serves another model.
        """
        if self._pending:
            raise RuntimeError("weights cannot change while requests are pending; collect or release them first.")
        replies = self._run(self._call_all("arboretum_load", str(folder.absolute()), version))
        for url, results in zip(self.urls, replies, strict=True):
            for result in results:
                if result.get("error") is not None:
                    raise Stop(f"the server at {url} cannot load the weights: {result['error']}")
        for url, reply in zip(self.urls, self._run(self._post_all("reset_prefix_cache", {})), strict=True):
            if reply.get("success") is not True:
                raise Stop(f"the server at {url} could not clear the prefix cache of the old weights.")
        self.version = version

    def check_version(self) -> None:
        """Raise `Stop` if a server has other weights than those it loaded last, since it was started again."""
        for url, results in zip(self.urls, self._run(self._call_all("arboretum_status")), strict=True):
            if any(result.get("version") != self.version for result in results):
                raise Stop(
                    f"the server at {url} no longer has the weights of this run: it was started again, or takes "
                    "weights from another run."
                )

    def prompt_logprobs(self, token_ids: Sequence[int]) -> list[list[float]]:
        """Return each server's log-probability of every token of a text but the first, at temperature 1.

        Raises:
            Stop: A server does not answer, or not with log-probabilities.
        """
        body = {"prompt": list(token_ids), "max_tokens": 1, "prompt_logprobs": 0, "temperature": 1.0}
        replies = self._run(
            _together(
                _post(server.api, "completions", {**body, "model": server.model}) for server in self._servers
            )
        )
        try:
            return [
                [
                    float(position[str(token)]["logprob"])
                    for token, position in zip(
                        token_ids[1:], reply["choices"][0]["prompt_logprobs"][1:], strict=True
                    )
                ]
                for reply in replies
            ]
        except (KeyError, TypeError, ValueError):
            raise Stop("a server returns no log-probabilities of prompts; it must be a vLLM server.") from None

    # ------------------------------------------------------------------ calls of all servers

    async def _call_all(self, method: str, *arguments: str) -> list[list[dict[str, Any]]]:
        """Call a method of `WeightLoader` in all workers of all servers, and return their results by server.

        Raises:
            Stop: A server does not answer, or has no such method.
        """
        replies = await self._post_all("collective_rpc", {"method": method, "args": list(arguments)})
        results = [reply.get("results") for reply in replies]
        for url, found in zip(self.urls, results, strict=True):
            if not isinstance(found, list) or not found or not all(isinstance(one, dict) for one in found):
                raise Stop(f"the server at {url} takes no weights.")
        return results  # type: ignore[return-value]

    async def _post_all(self, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
        return await _together(_post(server.root, path, body) for server in self._servers)

    def _run(self, calls: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine in the engine's loop, and return its result."""
        return asyncio.run_coroutine_threadsafe(calls, self._loop).result()


def _root(url: str) -> str:
    """Return the URL of a server without the path of its API."""
    parts = urlsplit(url)
    return parts._replace(path=parts.path.rstrip("/").removesuffix("/v1")).geturl()


async def _together(calls: Iterable[Coroutine[Any, Any, dict[str, Any]]]) -> list[dict[str, Any]]:
    return list(await asyncio.gather(*calls))


async def _post(connection: Connection, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Send a request.

    Raises:
        Stop: There is no answer, or an error.
    """
    try:
        reply = await connection.post(path, body)
        connection.check_reply(reply)
        return reply
    except RetryableError as error:
        state = "does not answer" if error.unreachable else "failed"
        raise Stop(f"the server at {connection.base_url} {state} ({error}).") from None
    except (RequestRejected, ContextOverflow, Stop) as error:
        raise Stop(f"the server at {connection.base_url} takes no weights ({str(error).rstrip('.')}).") from None
