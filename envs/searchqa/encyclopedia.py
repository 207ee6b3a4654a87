"""Seeded generation of an encyclopedia of a made-up world: people, places, works and organizations.

Articles refer to one another. Names and facts are random, so no model can know them beforehand. Each split is a
separate country, whose articles refer only to one another; the articles of all countries form one corpus.

Spelling in titles and sentences is British; it is part of the data and must not change.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

from ..retrieval.interface import Document
from ..seeding import stable_seed

Kind = Literal["person", "place", "work", "organization"]

SPLITS = ("train", "dev", "test")
SIZES: Mapping[str, Mapping[Kind, int]] = {
    "train": {"person": 560, "place": 240, "work": 400, "organization": 240},
    "dev": {"person": 190, "place": 80, "work": 130, "organization": 80},
    "test": {"person": 190, "place": 80, "work": 130, "organization": 80},
}
"""Number of articles by split and kind: 2,400 in total."""

ONSETS = [
    "b", "br", "c", "d", "dr", "f", "g", "h", "j", "k", "l", "l", "m", "m", "n", "n", "p", "r", "r", "s", "st",
    "t", "th", "tr", "v", "w"
]  # fmt: skip
VOWELS = ["a", "a", "e", "e", "i", "i", "o", "o", "u", "ae", "ai", "ea", "ia", "ou"]
CODAS = ("", "", "", "", "l", "n", "r", "s", "th", "m")
PLACE_ENDINGS = [
    "holm", "mere", "wick", "stead", "ford", "march", "dale", "haven", "gard", "fell", "moor", "reach"
]  # fmt: skip
COLORS = [
    "Amber", "Ashen", "Azure", "Brazen", "Broken", "Copper", "Crimson", "Distant", "Drowned", "Eastern",
    "Emerald", "Empty", "Fallen", "Frozen", "Gilded", "Golden", "Hollow", "Iron", "Ivory", "Last", "Lost",
    "Northern", "Pale", "Patient", "Quiet", "Restless", "Sapphire", "Scarlet", "Second", "Silent", "Silver",
    "Sleeping", "Southern", "Velvet", "Wandering", "Western", "Winter", "Wooden"
]  # fmt: skip
THINGS = [
    "Almanac", "Anchor", "Archive", "Bell", "Bridge", "Candle", "Causeway", "Chapel", "Compass", "Courtyard",
    "Crown", "Ferry", "Fountain", "Gate", "Granary", "Harbour", "Hourglass", "Key", "Lantern", "Ledger",
    "Library", "Lighthouse", "Loom", "Map", "Masquerade", "Mill", "Mirror", "Needle", "Oracle", "Orchard",
    "Parable", "Pilgrim", "Quarry", "Raven", "Sail", "Sparrow", "Staircase", "Tapestry", "Threshold", "Tower",
    "Vineyard", "Violin", "Voyage", "Well", "Windmill"
]  # fmt: skip
FORMS = ("novel", "comic opera", "play", "long poem", "film", "song cycle", "travelogue")
BODIES = [
    "Academy", "Bank", "Brewery", "Conservatory", "Foundry", "Guild", "Hospital", "Institute", "Museum",
    "Observatory", "Orchestra", "Press", "Shipyard", "Society", "Theatre", "Trust"
]  # fmt: skip
PROFESSIONS = [
    "apothecary", "architect", "astronomer", "bookbinder", "botanist", "cartographer", "clockmaker",
    "composer", "diplomat", "engraver", "geologist", "glassblower", "historian", "inventor", "linguist",
    "mathematician", "navigator", "painter", "philosopher", "physician", "sculptor"
]  # fmt: skip
INSTRUMENTS = [
    "bassoon", "cello", "clarinet", "cornet", "dulcimer", "fiddle", "flute", "harp", "harpsichord", "lute",
    "oboe", "trumpet", "zither"
]  # fmt: skip
GOODS = [
    "amber", "bells", "carpets", "cheese", "cider", "clocks", "glass", "honey", "ink", "lace", "linen",
    "paper", "pottery", "rope", "saffron", "salt"
]  # fmt: skip
EMBLEMS = [
    "badger", "beehive", "falcon", "fern", "griffin", "heron", "key", "lynx", "plough", "rose", "ship", "stag",
    "star", "sword", "thistle", "wheel"
]  # fmt: skip
GENRES = ["a satire", "a tragedy", "a comedy", "a mystery", "a romance", "a chronicle", "an allegory"]


class Article(NamedTuple):
    """One article.

    Attributes:
        title: Title, unique in the encyclopedia.
        kind: Kind of subject.
        split: Split, and therefore country, of the subject.
        facts: Facts by name; a fact that refers to another article is its title.
        text: A few sentences that state every fact.
    """

    title: str
    kind: Kind
    split: str
    facts: Mapping[str, str]
    text: str


class Encyclopedia:
    """All articles of one made-up world.

    Attributes:
        seed: Seed of the world.
        articles: Articles by title.
        titles: Titles by (split, kind), in the order of generation.

    Args:
        seed: Seed of the world; different seeds give different worlds.
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        rng = random.Random(stable_seed("encyclopedia", seed))
        names = _Names(rng)
        self.articles: dict[str, Article] = {}
        self.titles: dict[tuple[str, Kind], list[str]] = {}
        for split in SPLITS:
            for article in _generate_country(split, rng, names):
                self.articles[article.title] = article
                self.titles.setdefault((split, article.kind), []).append(article.title)

    def documents(self) -> list[Document]:
        """Return the corpus, in an order that mixes kinds and countries."""
        articles = list(self.articles.values())
        random.Random(stable_seed("order", self.seed)).shuffle(articles)
        return [Document(str(i), f'"{a.title}"\n{a.text}') for i, a in enumerate(articles)]


@lru_cache(maxsize=4)
def encyclopedia(seed: int = 0) -> Encyclopedia:
    """Return the encyclopedia of a seed, generated once per process."""
    return Encyclopedia(seed)


class _Names:
    """Generator of made-up names without repetition."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._used: set[str] = set()
        works = [f"The {color} {thing}" for color in COLORS for thing in THINGS]
        rng.shuffle(works)
        self._works = iter(works)

    def _word(self, syllables: int) -> str:
        choice = self._rng.choice
        return "".join(choice(ONSETS) + choice(VOWELS) + choice(CODAS) for _ in range(syllables)).capitalize()

    def draw_title(self, kind: Kind) -> str:
        """Draw an unused title for an article of `kind`."""
        if kind == "work":
            return next(self._works)
        while True:
            if kind == "person":
                # Family names are unique, because references are searched for by family name.
                family = self._word(self._rng.choice((2, 3)))
                name, unique = f"{self._word(2)} {family}", family
            elif kind == "place":
                unique = name = self._word(self._rng.choice((1, 2))) + self._rng.choice(PLACE_ENDINGS)
            else:
                unique = self._word(2)
                name = f"{unique} {self._rng.choice(BODIES)}"
            if unique not in self._used:
                self._used.add(unique)
                return name

    def draw_river(self) -> str:
        """Draw the name of a river."""
        return self._word(2)


def _generate_country(split: str, rng: random.Random, names: _Names) -> Iterator[Article]:
    sizes = SIZES[split]
    titles: dict[Kind, list[str]] = {kind: [names.draw_title(kind) for _ in range(n)] for kind, n in sizes.items()}
    rivers = [names.draw_river() for _ in range(max(6, sizes["place"] // 8))]
    for kind in titles:
        for title in titles[kind]:
            facts = _DRAW[kind](title, titles, rivers, rng)
            yield Article(title, kind, split, facts, _write_text(kind, title, facts, rng))


Titles = Mapping[Kind, Sequence[str]]


def _draw_person(title: str, titles: Titles, rivers: Sequence[str], rng: random.Random) -> dict[str, str]:
    return {
        "birthplace": rng.choice(titles["place"]),
        "born": str(rng.randint(1402, 1899)),
        "profession": rng.choice(PROFESSIONS),
        "teacher": _draw_other(title, titles["person"], rng),
        "employer": rng.choice(titles["organization"]),
        "instrument": rng.choice(INSTRUMENTS),
    }


def _draw_place(title: str, titles: Titles, rivers: Sequence[str], rng: random.Random) -> dict[str, str]:
    return {
        "river": rng.choice(rivers),
        "founded": str(rng.randint(611, 1398)),
        "population": str(rng.randint(1_100, 99_000)),
        "goods": rng.choice(GOODS),
        "mayor": rng.choice(titles["person"]),
    }


def _draw_work(title: str, titles: Titles, rivers: Sequence[str], rng: random.Random) -> dict[str, str]:
    return {
        "form": rng.choice(FORMS),
        "author": rng.choice(titles["person"]),
        "year": str(rng.randint(1430, 1960)),
        "setting": rng.choice(titles["place"]),
        "publisher": rng.choice(titles["organization"]),
        "genre": rng.choice(GENRES),
    }


def _draw_organization(title: str, titles: Titles, rivers: Sequence[str], rng: random.Random) -> dict[str, str]:
    return {
        "founder": rng.choice(titles["person"]),
        "seat": rng.choice(titles["place"]),
        "founded": str(rng.randint(1400, 1930)),
        "emblem": rng.choice(EMBLEMS),
        "members": str(rng.randint(12, 4_800)),
    }


def _draw_other(title: str, titles: Sequence[str], rng: random.Random) -> str:
    while True:
        found = rng.choice(titles)
        if found != title:
            return found


_DRAW = {"person": _draw_person, "place": _draw_place, "work": _draw_work, "organization": _draw_organization}

OPENINGS: Mapping[Kind, tuple[str, ...]] = {
    "person": (
        "{t} (born {born} in {birthplace}) was a {profession}.",
        "{t} was a {profession}, born in {born} in {birthplace}.",
    ),
    "place": (
        "{t} is a town on the river {river}, founded in {founded}.",
        "{t}, founded in {founded}, lies on the river {river}.",
    ),
    "work": (
        "{t} is a {form} by {author}, completed in {year}.",
        "{t} is a {form} of {year} and the best known work of its author {author}.",
    ),
    "organization": (
        "The {t} has its seat in {seat} and was founded in {founded}.",
        "The {t}, founded in {founded}, is seated in {seat}.",
    ),
}
SENTENCES: Mapping[Kind, tuple[tuple[str, ...], ...]] = {
    "person": (
        (
            "As a young {profession}, {t} was taught by {teacher}.",
            "{t} learned the trade from {teacher}, the teacher.",
        ),
        ("The employer of {t} was the {employer}.", "For many years {t} was employed by the {employer}."),
        ("{t} also played the {instrument}.", "In the evenings {t} would play the {instrument}."),
    ),
    "place": (
        ("Its population is {population}.", "At the last count {t} had a population of {population}."),
        ("The mayor of {t} is {mayor}.", "Its mayor, {mayor}, lives at the market square of {t}."),
        ("{t} is known for its {goods}.", "Traders come to {t} for its {goods}."),
    ),
    "work": (
        ("It is set in {setting}.", "The story of {t} is set in {setting}."),
        ("The {publisher} published it.", "{t} was published by the {publisher}."),
        ("Critics call {t} {genre}.", "In genre {t} is {genre}."),
    ),
    "organization": (
        ("Its founder was {founder}.", "The {t} was the idea of its founder {founder}."),
        ("The emblem of the {t} shows a {emblem}.", "Its emblem is a {emblem}."),
        ("The {t} has {members} members.", "It counts {members} members."),
    ),
}
ASIDES: Mapping[Kind, tuple[str, ...]] = {
    "person": ("A statue in the garden remembers the day.", "Letters from those years are kept to this day.", ""),
    "place": ("A market is held there every second week.", "The old walls can still be walked.", ""),
    "work": ("The manuscript was long thought lost.", "It has been translated many times.", ""),
    "organization": ("Visitors are welcome in the summer months.", "Its records fill four cellars.", ""),
}


def _write_text(kind: Kind, title: str, facts: Mapping[str, str], rng: random.Random) -> str:
    body = [rng.choice(variants) for variants in SENTENCES[kind]]
    rng.shuffle(body)
    aside = rng.choice(ASIDES[kind])
    parts = [rng.choice(OPENINGS[kind]), *body, *([aside] if aside else [])]
    return " ".join(parts).format(t=title, **facts)
