"""Package discovery only: the repository root is the package `arboretum`."""

from setuptools import find_packages, setup

rooms = find_packages(exclude=["tests", "tests.*", "build", "build.*"])
setup(package_dir={"arboretum": "."}, packages=["arboretum", *(f"arboretum.{room}" for room in rooms)])
