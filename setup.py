"""Package discovery only: the repository root is the package `arboretum`."""

from setuptools import find_namespace_packages, setup

rooms = ["agents", "assets", "envs", "eval", "trainers"]
found = find_namespace_packages(include=[*rooms, *(f"{room}.*" for room in rooms)], exclude=["*__pycache__*"])
setup(package_dir={"arboretum": "."}, packages=["arboretum", *(f"arboretum.{name}" for name in found)])
