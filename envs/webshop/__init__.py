"""WebShop: a shop with a catalogue, a search engine and customers' wishes, as a text world and in the browser."""

from .env import WebShop

__all__ = ["WebShop"]
