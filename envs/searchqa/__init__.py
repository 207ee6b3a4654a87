"""Questions answered by searching a corpus: the world of Search-R1, Tree-GRPO and ReAct's HotpotQA."""

from ..retrieval.interface import RetrievalError
from .env import SearchQA

__all__ = ["RetrievalError", "SearchQA"]
