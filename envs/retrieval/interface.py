"""What every retriever is: queries in, ranked documents with scores out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple


class Document(NamedTuple):
    """One passage of a corpus.

    Attributes:
        id: unique within its corpus.
        contents: the title (usually in double quotes) on the first line, then the text: Search-R1's form.
    """

    id: str
    contents: str

    @property
    def title(self) -> str:
        """The first line without its quotes."""
        line = self.contents.partition("\n")[0].strip()
        if len(line) >= 2 and line[0] == line[-1] == '"':
            return line[1:-1]
        return line

    @property
    def text(self) -> str:
        """What follows the first line."""
        return self.contents.partition("\n")[2]


class Hit(NamedTuple):
    """A retrieved document and its score (higher is better; the scale is the retriever's own)."""

    document: Document
    score: float


class RetrievalError(RuntimeError):
    """A search that could not be carried out: a server is down, overloaded or answers nonsense.

    It is raised out of `SearchQA.step`. The world's state is then what it was before the step, so an episode can
    be tried again, or go on from a snapshot.
    """


class Retriever(ABC):
    """A searchable corpus. Implementations are safe to call from several threads."""

    @property
    @abstractmethod
    def identity(self) -> str:
        """Names retriever, parameters and corpus: equal identities give equal results."""

    @abstractmethod
    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """The best documents of each query.

        Args:
            queries: any strings; an empty sequence gives an empty list.
            k: the most hits a query; fewer come back where fewer match.

        Returns:
            A list a query, best first, equal scores in an order that is always the same.

        Raises:
            RetrievalError: a remote retriever failed.
        """

    def close(self) -> None:  # noqa: B027  (nothing to do is the right default)
        """Let go of files and connections. Calling it twice does no harm."""
