"""Package discovery only: the repository root is the package `arboretum`.

The package `arboretum_verifiers` is for verifiers, which imports a taskset by the name of a top-level package.
"""

from setuptools import find_namespace_packages, setup
from setuptools.command.build_py import build_py


class RoomsOnly(build_py):
    """Modules of the packages, without this file, which is in the root as well."""

    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        found: list[tuple[str, str, str]] = super().find_package_modules(package, package_dir)
        return [module for module in found if module[:2] != ("arboretum", "setup")]


rooms = ["agents", "assets", "envs", "eval", "trainers"]
found = find_namespace_packages(include=[*rooms, *(f"{room}.*" for room in rooms)], exclude=["*__pycache__*"])
setup(
    cmdclass={"build_py": RoomsOnly},
    package_dir={"arboretum": ".", "arboretum_verifiers": "arboretum_verifiers"},
    packages=["arboretum", *(f"arboretum.{name}" for name in found), "arboretum_verifiers"],
)
