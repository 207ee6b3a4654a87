"""WebShop: online shopping by instruction, as a text environment and as a web site.

The environment is imported when it is first used, since the options of the shop's server need none of it.
"""

from typing import TYPE_CHECKING

from ..lazy_names import lazy_names

if TYPE_CHECKING:
    from .env import WebShop
else:
    __getattr__, __dir__ = lazy_names(__name__, {".env": "WebShop"})

__all__ = ["WebShop"]
