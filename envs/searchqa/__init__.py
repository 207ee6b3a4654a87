"""Question answering by search, as in Search-R1, Tree-GRPO and ReAct's HotpotQA environment."""

from ..retrieval.interface import RetrievalError
from .env import SearchQA

__all__ = ["RetrievalError", "SearchQA"]
