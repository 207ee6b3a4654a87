"""Tables of rooms, furniture and objects from which homes are generated."""

from __future__ import annotations

from typing import NamedTuple


class Furniture(NamedTuple):
    """A kind of receptacle.

    Attributes:
        min_count, max_count: Range of the number of instances in a room.
        openable: True if it has a door or lid, which is initially closed.
        part: Suffix of its id if the receptacle is part of a larger piece (a sink's basin), else empty.
        beside: Kind of receptacle whose location it may share (a desk for its drawers), or empty.
    """

    min_count: int
    max_count: int
    openable: bool = False
    part: str = ""
    beside: str = ""


class Thing(NamedTuple):
    """A kind of object.

    Attributes:
        places: Kinds of receptacle that may contain it.
        cleanable, heatable, coolable, sliceable: Treatments that it admits.
        container: True if other objects can be inside it.
        lamp: True if it is a lamp, which can be switched on but not carried.
        knife: True if it slices other objects.
    """

    places: tuple[str, ...]
    cleanable: bool = False
    heatable: bool = False
    coolable: bool = False
    sliceable: bool = False
    container: bool = False
    lamp: bool = False
    knife: bool = False


ROOMS: dict[str, dict[str, Furniture]] = {
    "kitchen": {
        "CounterTop": Furniture(1, 3),
        "Cabinet": Furniture(3, 10, openable=True, beside="CounterTop"),
        "Drawer": Furniture(2, 7, openable=True, beside="CounterTop"),
        "DiningTable": Furniture(0, 1),
        "Shelf": Furniture(0, 3),
        "StoveBurner": Furniture(2, 4),
        "Sink": Furniture(1, 1, part="SinkBasin"),
        "Fridge": Furniture(1, 1, openable=True),
        "Microwave": Furniture(1, 1, openable=True),
        "CoffeeMachine": Furniture(1, 1),
        "Toaster": Furniture(1, 1),
        "GarbageCan": Furniture(1, 1),
        "SideTable": Furniture(0, 1),
    },
    "living room": {
        "Sofa": Furniture(1, 2),
        "ArmChair": Furniture(1, 2),
        "CoffeeTable": Furniture(1, 2),
        "SideTable": Furniture(1, 2),
        "DiningTable": Furniture(0, 1),
        "TVStand": Furniture(0, 1),
        "Dresser": Furniture(0, 1),
        "Drawer": Furniture(1, 5, openable=True, beside="Dresser"),
        "Cabinet": Furniture(0, 4, openable=True, beside="TVStand"),
        "Shelf": Furniture(0, 4),
        "Safe": Furniture(0, 1, openable=True),
        "Desk": Furniture(0, 1),
        "GarbageCan": Furniture(1, 1),
    },
    "bedroom": {
        "Bed": Furniture(1, 1),
        "Desk": Furniture(1, 2),
        "Drawer": Furniture(2, 6, openable=True, beside="Desk"),
        "Dresser": Furniture(0, 1),
        "SideTable": Furniture(1, 2),
        "Shelf": Furniture(0, 6),
        "ArmChair": Furniture(0, 1),
        "LaundryHamper": Furniture(0, 1, openable=True),
        "Safe": Furniture(0, 1, openable=True),
        "GarbageCan": Furniture(1, 1),
    },
    "bathroom": {
        "Sink": Furniture(1, 2, part="SinkBasin"),
        "CounterTop": Furniture(1, 1),
        "Cabinet": Furniture(2, 4, openable=True, beside="CounterTop"),
        "Drawer": Furniture(0, 3, openable=True, beside="CounterTop"),
        "Toilet": Furniture(1, 1),
        "Bathtub": Furniture(0, 1, part="BathtubBasin"),
        "ToiletPaperHanger": Furniture(1, 1),
        "TowelHolder": Furniture(1, 1),
        "HandTowelHolder": Furniture(1, 2),
        "Cart": Furniture(0, 1),
        "SideTable": Furniture(0, 1),
        "Shelf": Furniture(0, 2),
        "GarbageCan": Furniture(1, 1),
    },
}
"""Furniture by kind of room. The original's floor plans have the same four kinds of room."""

_SURFACES = (
    "CounterTop",
    "DiningTable",
    "SideTable",
    "CoffeeTable",
    "Desk",
    "Dresser",
    "Shelf",
    "Cart",
    "TVStand",
)
_TABLES = ("CounterTop", "DiningTable", "SideTable", "CoffeeTable", "Desk")
_STORES = ("Drawer", "Cabinet")
_FOOD = ("CounterTop", "DiningTable", "SideTable", "Fridge", "Microwave", "Sink", "GarbageCan")
_SEATS = ("Sofa", "ArmChair", "Bed")

THINGS: dict[str, dict[str, Thing]] = {
    "kitchen": {
        "Apple": Thing(_FOOD, True, True, True, True),
        "Tomato": Thing(_FOOD, True, True, True, True),
        "Potato": Thing(_FOOD, True, True, True, True),
        "Lettuce": Thing(_FOOD, True, False, True, True),
        "Bread": Thing((*_FOOD, "Toaster"), False, True, True, True),
        "Egg": Thing(_FOOD, True, True, True),
        "Mug": Thing((*_FOOD[:-1], "CoffeeMachine", "Cabinet", "Shelf"), True, True, True, container=True),
        "Cup": Thing((*_FOOD[:-1], "Cabinet", "Shelf"), True, True, True, container=True),
        "Bowl": Thing((*_FOOD[:-1], "Cabinet", "Shelf"), True, False, True, container=True),
        "Plate": Thing((*_FOOD[:-1], "Cabinet", "Shelf"), True, True, True, container=True),
        "Pot": Thing(
            ("StoveBurner", "CounterTop", "Sink", "Cabinet", "Fridge"), True, False, True, container=True
        ),
        "Pan": Thing(
            ("StoveBurner", "CounterTop", "Sink", "Cabinet", "Fridge"), True, False, True, container=True
        ),
        "Knife": Thing(("CounterTop", "DiningTable", "Drawer", "Sink"), True, knife=True),
        "ButterKnife": Thing(("CounterTop", "DiningTable", "Drawer", "Sink"), True, knife=True),
        "Fork": Thing(("CounterTop", "DiningTable", "Drawer", "Sink"), True),
        "Spoon": Thing(("CounterTop", "DiningTable", "Drawer", "Sink"), True),
        "Spatula": Thing(("CounterTop", "DiningTable", "Drawer", "Sink"), True),
        "DishSponge": Thing((*_TABLES, *_STORES, "Sink", "GarbageCan"), True),
        "SaltShaker": Thing((*_TABLES, *_STORES, "Shelf")),
        "PepperShaker": Thing((*_TABLES, *_STORES, "Shelf")),
        "SoapBottle": Thing((*_TABLES, *_STORES, "Sink", "GarbageCan")),
    },
    "living room": {
        "RemoteControl": Thing((*_SURFACES, *_SEATS, "Drawer")),
        "KeyChain": Thing((*_SURFACES, *_SEATS, "Drawer", "Safe")),
        "CreditCard": Thing((*_SURFACES, *_SEATS, "Drawer")),
        "Watch": Thing((*_SURFACES, "Drawer", "Safe", "Cabinet")),
        "Newspaper": Thing((*_TABLES, *_SEATS, "Drawer", "GarbageCan")),
        "Book": Thing((*_SURFACES, *_SEATS, "Drawer", "Cabinet")),
        "Vase": Thing((*_SURFACES, "Cabinet", "Safe")),
        "Statue": Thing((*_SURFACES, "Safe")),
        "TissueBox": Thing((*_SURFACES, "Drawer", "Cabinet")),
        "Box": Thing((*_TABLES, *_SEATS, "Dresser"), container=True),
        "Laptop": Thing((*_TABLES, *_SEATS)),
        "Pillow": Thing(_SEATS),
        "DeskLamp": Thing(("SideTable", "Desk", "CoffeeTable", "DiningTable", "Dresser"), lamp=True),
    },
    "bedroom": {
        "AlarmClock": Thing((*_SURFACES, "Drawer")),
        "Book": Thing((*_SURFACES, *_SEATS, "Drawer")),
        "CD": Thing((*_SURFACES, "Drawer", "Safe", "GarbageCan")),
        "CellPhone": Thing((*_SURFACES, *_SEATS, "Drawer", "Safe")),
        "CreditCard": Thing((*_SURFACES, *_SEATS, "Drawer")),
        "KeyChain": Thing((*_SURFACES, *_SEATS, "Drawer", "Safe")),
        "Laptop": Thing((*_TABLES, *_SEATS)),
        "Pen": Thing((*_SURFACES, "Drawer", "GarbageCan")),
        "Pencil": Thing((*_SURFACES, "Drawer", "GarbageCan")),
        "Pillow": Thing(_SEATS),
        "Mug": Thing(("Desk", "SideTable", "Dresser", "Shelf"), True, True, True, container=True),
        "Bowl": Thing(("Desk", "SideTable", "Dresser", "Shelf"), True, False, True, container=True),
        "Cloth": Thing((*_SURFACES, "Drawer", "LaundryHamper"), True),
        "TissueBox": Thing((*_SURFACES, "Drawer")),
        "DeskLamp": Thing(("SideTable", "Desk", "Dresser"), lamp=True),
    },
    "bathroom": {
        "SoapBar": Thing(("CounterTop", *_STORES, "Sink", "Toilet", "Bathtub", "Cart", "GarbageCan"), True),
        "SoapBottle": Thing(("CounterTop", *_STORES, "Sink", "Toilet", "Cart", "SideTable", "GarbageCan")),
        "SprayBottle": Thing(("CounterTop", *_STORES, "Toilet", "Cart", "SideTable", "GarbageCan")),
        "Cloth": Thing(("CounterTop", *_STORES, "Sink", "Bathtub", "Cart", "SideTable", "Shelf"), True),
        "ToiletPaper": Thing(("CounterTop", *_STORES, "Toilet", "ToiletPaperHanger", "SideTable", "GarbageCan")),
        "Towel": Thing(("TowelHolder", "Bathtub")),
        "HandTowel": Thing(("HandTowelHolder", "CounterTop", "Sink", "Cabinet")),
        "Candle": Thing(("CounterTop", *_STORES, "Toilet", "Cart", "SideTable", "Bathtub", "Shelf")),
        "TissueBox": Thing(("CounterTop", *_STORES, "Toilet", "Cart", "SideTable", "Shelf")),
        "DishSponge": Thing(("CounterTop", *_STORES, "Sink", "Bathtub", "Cart"), True),
        "Plunger": Thing(("Cabinet",)),
        "ScrubBrush": Thing(("CounterTop", "Cabinet", "Toilet")),
    },
}
"""Objects by kind of room."""


def receptacle_type(kind: str) -> str:
    """Return the PDDL type of a kind of furniture; for a sink, that is the type of its basin."""
    part = next((room[kind].part for room in ROOMS.values() if kind in room), "")
    return f"{part or kind}Type"
