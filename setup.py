"""Package discovery only: the repository root is the package `arboretum`.

The package `arboretum_verifiers` is for verifiers, which imports a taskset by the name of a top-level package.
"""

from setuptools import find_namespace_packages, setup

rooms = ["agents", "assets", "envs", "eval", "trainers"]
found = find_namespace_packages(include=[*rooms, *(f"{room}.*" for room in rooms)], exclude=["*__pycache__*"])
setup(
    package_dir={"arboretum": ".", "arboretum_verifiers": "arboretum_verifiers"},
    packages=["arboretum", *(f"arboretum.{name}" for name in found), "arboretum_verifiers"],
)
