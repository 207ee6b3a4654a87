"""Full-text search in NumPy with the terms, BM25 scores and ranking of Lucene.

Published results on WebShop and of search agents were made with Anserini and Pyserini (k1 0.9, b 0.4). This
package reproduces their rankings without Java: the analyzer token for token, and scores in the same float32
operations with the same one-byte document lengths. Ties are broken by document id.
"""

from .analysis import analyze, tokenize
from .index import BM25Index
from .porter import porter_stem

__all__ = ["BM25Index", "analyze", "porter_stem", "tokenize"]
