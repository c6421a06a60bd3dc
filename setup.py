"""What ``pyproject.toml`` cannot say: the experiments, a folder beside the package, are a part of it in a wheel."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["coordexp", "coordexp.*"]), "coordexp.experiments"],
    package_dir={"coordexp.experiments": "experiments"},
)
