"""Full-text search as Lucene's, in NumPy: the same English terms, the same BM25 scores, the same order.

The published WebShop and search-agent results were made with Anserini/Pyserini (k1 0.9, b 0.4). This package
reproduces their rankings without a Java machine: the analyser token for token, the score in the same float32
steps with the same one-byte document lengths, ties broken by document id.
"""

from .analysis import analyze, tokenize
from .index import BM25Index
from .porter import porter_stem

__all__ = ["BM25Index", "analyze", "porter_stem", "tokenize"]
