"""The documentation site: built without a warning, complete, and without a dead link."""

from __future__ import annotations

import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import arboretum

DOCS = Path(arboretum.__file__).resolve().parent / "docs"
GROUPS = ["Start", "Evaluate", "Train", "Environments", "Recipes", "Extend"]
GROUPS += ["Scale and neighbours", "Evidence", "Reference"]


class Links(HTMLParser):
    """Addresses, anchors and the captions of the navigation in a page."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.addresses: set[str] = set()
        self.anchors: set[str] = set()
        self.captions: list[str] = []
        self._in_caption = False
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.addresses |= {value for name in ("href", "src") if (value := values.get(name))}
        self.anchors |= {value for name in ("id", "name") if (value := values.get(name))}
        self._in_caption = values.get("class") == "caption-text"

    def handle_data(self, data: str) -> None:
        if self._in_caption:
            self.captions.append(data)
            self._in_caption = False


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Links]:
    for module in ("sphinx", "myst_parser", "furo"):
        pytest.importorskip(module, reason=f"needs {module}: pip install 'arboretum-rl[docs]'")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going", DOCS, folder]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {page: Links(page) for page in folder.rglob("*.html")}


@pytest.mark.heavy
def test_every_page_is_in_the_site_and_its_navigation(site: dict[Path, Links]) -> None:
    (index,) = [page for page in site if page.name == "index.html"]
    assert site[index].captions == GROUPS
    sources = [path.relative_to(DOCS) for path in DOCS.rglob("*.md")]
    pages = {path.with_suffix(".html") for path in sources if path.parts[0] != "_build"}
    linked = {Path(unquote(urlsplit(address).path)) for address in site[index].addresses}
    assert pages - {Path("index.html")} <= linked


@pytest.mark.heavy
def test_every_link_within_the_site_leads_to_a_file_and_an_anchor(site: dict[Path, Links]) -> None:
    dead = []
    for page, links in site.items():
        for address in links.addresses:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            anchor = unquote(parts.fragment)
            if not target.exists() or (anchor and target in site and anchor not in site[target].anchors):
                dead.append(f"{page.name}: {address}")
    assert not dead
