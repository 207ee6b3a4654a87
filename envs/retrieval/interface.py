"""Interface of retrievers: documents, hits, and the base class that turns queries into ranked hits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

MAX_QUERY = 8192
"""Maximum number of characters of a query over HTTP; client and server cut off the rest."""


class Document(NamedTuple):
    """Passage of a corpus.

    Attributes:
        id: Identifier, unique within the corpus.
        contents: Title, usually in double quotes, on the first line, then the text; the form of Search-R1.
    """

    id: str
    contents: str

    @property
    def title(self) -> str:
        """First line without its quotes."""
        line = self.contents.partition("\n")[0].strip()
        if len(line) >= 2 and line[0] == line[-1] == '"':
            return line[1:-1]
        return line

    @property
    def text(self) -> str:
        """Everything after the first line."""
        return self.contents.partition("\n")[2]


class Hit(NamedTuple):
    """Retrieved document with its score.

    Attributes:
        document: The document.
        score: Score; higher is better, and the scale depends on the retriever.
    """

    document: Document
    score: float


class RetrievalError(RuntimeError):
    """Failed search: a server is down, overloaded or returns an invalid reply.

    `SearchQA.step` raises it and leaves the environment's state unchanged, so that the step can be repeated or the
    episode continued from a snapshot.
    """


class Retriever(ABC):
    """Searchable corpus. Implementations are thread-safe."""

    waits: bool = False
    """True if `search` waits for a server; environments with this retriever are then stepped concurrently."""

    @property
    @abstractmethod
    def identity(self) -> str:
        """Name of retriever, parameters and corpus; equal identities give equal results."""

    @abstractmethod
    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Return the best documents of each query.

        Args:
            queries: Any strings; an empty sequence gives an empty list.
            k: Maximum number of hits per query.

        Returns:
            One list per query, best first; the order of equal scores is deterministic.

        Raises:
            RetrievalError: A remote retriever failed.
        """

    def check(self) -> None:  # noqa: B027  (Most retrievers are in this process.)
        """Raise `ConfigurationError` if a server that searches need does not answer a request, without retries."""

    def close(self) -> None:  # noqa: B027  (Most retrievers hold nothing.)
        """Close files and connections; further calls have no effect."""
