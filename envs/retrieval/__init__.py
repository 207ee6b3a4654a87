"""Retrieval: corpora, indexes (BM25, Lucene, dense, hybrid), and a server and a client on Search-R1's wire."""

from .interface import Document, Hit, RetrievalError, Retriever

__all__ = ["Document", "Hit", "RetrievalError", "Retriever"]
