"""WebShop: online shopping by instruction, as a text environment and as a web site."""

from .env import WebShop

__all__ = ["WebShop"]
