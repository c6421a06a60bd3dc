"""docs/build.py: what the site is made of, without building it."""

import importlib.util
import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def build():
    spec = importlib.util.spec_from_file_location("build_docs", ROOT / "docs" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_site_has_every_page_and_all_that_they_link_to(build) -> None:
    found = build.documents()
    names = {path.as_posix() for path in found}
    assert {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("*.md")} < names
    assert {"README.md", "CONTRIBUTING.md", "SECURITY.md", "dashboards/README.md", "CITATION.cff"} < names
    assert {"results/shapes/groups.svg", "docs/figures/coordinate-distribution.svg", "docs/site.css"} < names
    assert all((ROOT / path).is_file() for path in found)


def test_every_page_has_a_place_in_the_navigation(build) -> None:
    text = (ROOT / "docs" / "mkdocs.yml").read_text(encoding="utf-8")
    (nav,) = re.findall(r"^nav:\n(?:  .*\n)+", text, re.MULTILINE)
    placed: list[str] = []
    for entry in yaml.safe_load(nav)["nav"]:
        (pages,) = entry.values()
        placed += [pages] if isinstance(pages, str) else [path for page in pages for path in page.values()]
    assert len(set(placed)) == len(placed)
    assert set(placed) == {path.as_posix() for path in build.documents() if path.suffix == ".md"}


def test_a_page_becomes_one_that_the_builder_reads_as_github_does(build) -> None:
    github = "Two:\n- a `x|y`\n  b\n- c\n\n| t | `\\|d\\|` |\n\n```text\nTwo:\n- `\\|` |\n```\nend"
    assert build.for_the_builder(github) == (
        "Two:\n\n- a `x|y`\n  b\n- c\n\n| t | `|d|` |\n\n```text\nTwo:\n- `\\|` |\n```\nend"
    )
    assert build.for_the_builder("- a\n- b\n  - c\n\n1. d\n2. e\n") == "- a\n- b\n  - c\n\n1. d\n2. e\n"
