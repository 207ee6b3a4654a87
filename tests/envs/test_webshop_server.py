"""Tests of the shop's web server: pages, isolation of visits, escaping, and concurrent customers."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from arboretum.envs.errors import ConfigurationError
from arboretum.envs.webshop.product import Product
from arboretum.envs.webshop.server import COOKIE, create_app, serve
from arboretum.envs.webshop.session import Session
from arboretum.envs.webshop.shop import Shop, open_shop
from arboretum.envs.webshop.visits import Stop, Visits
from arboretum.eval.bench.webshop_load import plan_requests, serve_shop, simulate_customers

pytest.importorskip("flask")


@pytest.fixture(scope="module")
def shop() -> Iterator[Shop]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("ARBORETUM_DATA", raising=False)
        yield open_shop(tagger="letters")


@pytest.fixture
def client(shop: Shop) -> Any:
    return create_app(shop).test_client()


def test_purchase_of_the_right_product_scores_1(shop: Shop, client: Any) -> None:
    for goal in (0, 17, 230):
        page = client.get(f"/?goal={goal}", follow_redirects=True)
        assert shop.goal(goal).instruction_text in page.text.replace("&#39;", "'")
        for method, path, form in plan_requests(shop, goal):
            page = client.open(page.request.path + path, method=method, data=form, follow_redirects=True)
            assert page.status_code == 200
        assert '<div id="reward" class="full"><pre>1.0</pre></div>' in page.text
        assert "Shop for another customer" in page.text
        assert "letters" in page.text
        again = client.post("/new", follow_redirects=True)
        assert 'id="search_input"' in again.text


def test_purchase_of_a_wrong_product_scores_less_than_1(shop: Shop, client: Any) -> None:
    page = client.get("/?goal=0", follow_redirects=True)
    other = next(p for p in map(shop.catalog.product, range(99)) if p.query != shop.goal(0).query)
    page = client.post(page.request.path, data={"search_query": other.title}, follow_redirects=True)
    page = client.get(f"{page.request.path}/item/{other.asin}", follow_redirects=True)
    page = client.post(page.request.path, data={"action": "Buy Now"}, follow_redirects=True)
    score = float(re.findall(r'id="reward" class="part"><pre>([\d.]+)<', page.text)[0])
    assert 0 <= score < 1


def test_score_is_shown_with_four_decimals(shop: Shop, client: Any) -> None:
    scores = []
    for goal in range(12):  # bought without the options that the goal asks for
        page = client.get(f"/?goal={goal}", follow_redirects=True)
        page = client.post(page.request.path, data={"search_query": shop.goal(goal).words}, follow_redirects=True)
        page = client.get(f"{page.request.path}/item/{shop.goal(goal).asin}", follow_redirects=True)
        page = client.post(page.request.path, data={"action": "Buy Now"}, follow_redirects=True)
        scores += re.findall(r'id="reward" class="\w+"><pre>([\d.]+)<', page.text)
    assert len(scores) == 12 and max(map(len, scores)) == 6  # such as 0.6667


def test_page_address_shows_the_same_page_after_later_actions(shop: Shop, client: Any) -> None:
    """The back button, a reload and a second tab rely on it."""
    client.get("/?goal=3", follow_redirects=True)
    client.post("/visit/0", data={"search_query": "lamp"})
    results = client.get("/visit/1").text
    client.post("/visit/1", data={"action": "Next >"})
    assert "Page 2" in client.get("/visit/2").text
    assert client.get("/visit/1").text == results
    client.post("/visit/1", data={"action": "Back to Search"})
    assert 'id="search_input"' in client.get("/visit/3").text
    assert client.get("/").headers["Location"] == "/visit/3"


def test_customers_cannot_open_pages_of_others(shop: Shop) -> None:
    app = create_app(shop)
    one, two, stranger = app.test_client(), app.test_client(), app.test_client()
    one.get("/?goal=1", follow_redirects=True)
    two.get("/?goal=2", follow_redirects=True)
    one.post("/visit/0", data={"search_query": "lamp"})
    assert two.get("/visit/1").headers["Location"] == "/", "the page of another customer is unknown"
    assert stranger.get("/visit/0").headers["Location"] == "/"
    stranger.set_cookie(COOKIE, "guess")
    assert stranger.post("/visit/0", data={"action": "buy now"}).headers["Location"] == "/"
    keys = {Visits(shop).enter() for _ in range(50)}
    assert len(keys) == 50 and min(map(len, keys)) == 32
    cookie = one.get("/?goal=1").headers["Set-Cookie"]
    assert "HttpOnly" in cookie and "SameSite=Lax" in cookie


def test_number_of_customers_and_pages_is_bounded(shop: Shop) -> None:
    visits = Visits(shop, customers=3, pages=4)
    keys = [visits.enter(0) for _ in range(5)]
    assert [visits.latest(key) for key in keys] == [None, None, 0, 0, 0]
    for _ in range(10):
        visits.add(keys[-1], Stop(Session("x", 0)))
    assert visits.latest(keys[-1]) == 10 and visits.stop(keys[-1], 6) is None and visits.stop(keys[-1], 7)
    assert visits.add(keys[0], Stop(Session("x", 0))) is None


def test_following_a_link_buys_nothing(shop: Shop, client: Any) -> None:
    client.get("/?goal=0", follow_redirects=True)
    client.post("/visit/0", data={"search_query": shop.goal(0).words})
    client.get(f"/visit/1/item/{shop.goal(0).asin}")
    assert client.get("/visit/2/item/buy%20now").headers["Location"] == "/visit/2"
    assert client.post("/visit/2", data={"action": "Buy Now"}).headers["Location"] == "/visit/3"


@pytest.mark.parametrize(
    ("method", "path", "form", "status"),
    [
        ("GET", "/?goal=99999999999999", {}, 404),
        ("GET", "/?goal=-1", {}, 404),
        ("GET", "/nowhere", {}, 404),
        ("POST", "/visit/77", {"action": "buy now"}, 303),
        ("GET", "/visit/0/item/B000000000", {}, 303),
        ("POST", "/visit/0/option", {"color": "plaid"}, 303),
        ("POST", "/visit/0", {"action": "buy now"}, 303),
        ("POST", "/visit/0", {"search_query": "<c>"}, 303),
        ("POST", "/visit/0", {"search_query": " "}, 303),
        ("POST", "/visit/0", {"search_query": "x" * 5000}, 303),
        ("GET", "/new", {}, 405),
    ],
)
def test_invalid_requests_redirect_or_report_an_error(
    client: Any, method: str, path: str, form: dict[str, str], status: int
) -> None:
    client.get("/?goal=0", follow_redirects=True)
    assert client.open(path, method=method, data=form).status_code == status
    assert client.get("/", follow_redirects=True).status_code == 200


def test_untrusted_text_is_escaped(shop: Shop, tmp_path: Any) -> None:
    from arboretum.envs.webshop.product_catalog import ProductCatalog

    evil = "<script>alert('x')</script>\"&"
    product = Product(
        asin="B000000001",
        title=f"Lamp {evil}",
        description=evil,
        bullets=(evil,),
        prices=(5.0,),
        image=f'x" onerror="{evil}',
        category=evil,
        query="lamps",
        product_category=evil,
        options={f"color{evil}": (evil.lower(),)},
        images={},
        attributes=(evil,),
        instruction=f"Find me a lamp {evil}",
        instruction_attributes=("bright",),
    )
    client = create_app(Shop(ProductCatalog.build([product], tmp_path / "shop"), tagger="letters")).test_client()
    option = {f"color{evil}": evil.lower()}
    pages = [
        client.get("/?goal=0", follow_redirects=True),
        client.post("/visit/0", data={"search_query": f"lamp {evil}"}, follow_redirects=True),
        client.get("/visit/1/item/B000000001", follow_redirects=True),
        client.post("/visit/2/option", data=option, follow_redirects=True),
        client.post("/visit/3", data={"action": "features"}, follow_redirects=True),
        client.post("/visit/3", data={"action": "buy now"}, follow_redirects=True),
        client.get("/visit/0?message=" + evil),
    ]
    assert [page.request.path for page in pages] == [f"/visit/{n}" for n in range(6)] + ["/visit/0"]
    for page in pages:
        assert page.status_code == 200
        assert "<script>" not in page.text and 'onerror="' not in page.text.replace("&#34;", "'")
        assert "script-src 'self'" in page.headers["Content-Security-Policy"]
    assert "checked" in pages[3].text


def test_every_image_has_alternative_text(shop: Shop, client: Any) -> None:
    client.get("/?goal=0", follow_redirects=True)
    page = client.post("/visit/0", data={"search_query": "lamp"}, follow_redirects=True).text
    pictures = re.findall(r'<(?:img|span class="picture")[^>]*>', page)
    assert len(pictures) == 10
    assert all(re.search(r'(alt|aria-label)="[^"]{10,}"', picture) for picture in pictures)


def test_taken_or_invalid_port_is_rejected() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigurationError, match="choose another port"):
            serve(port=taken.getsockname()[1])
    with pytest.raises(ConfigurationError, match="port must be between"):
        serve(port=70000)
    with pytest.raises(ConfigurationError, match="threads must be at least 1"):
        serve(port=0, threads=0)


@pytest.mark.heavy
def test_fifty_concurrent_customers_reach_the_full_score(shop: Shop) -> None:
    """Every customer makes two purchases; `arboretum bench webshop` measures the latency."""
    with serve_shop(tagger="letters") as address:
        assert address[0] == "127.0.0.1"
        times = simulate_customers(address, shop, customers=50)
    assert len(times) > 50 * 2 * 8
