"""Retrieval: corpora, indexes (BM25, Lucene, dense, hybrid), and a server and client for Search-R1's protocol."""

from .interface import Document, Hit, RetrievalError, Retriever

__all__ = ["Document", "Hit", "RetrievalError", "Retriever"]
