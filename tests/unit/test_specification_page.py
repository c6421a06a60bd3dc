"""docs/from-the-specification.md: what stands under "here" exists."""

import importlib
import re
from pathlib import Path

import pytest

from coordexp.cli.main import VERBS
from coordexp.config.keys import is_key, sections
from coordexp.metrics import find_metric

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "from-the-specification.md").read_text(encoding="utf-8")
_FOLDERS = ("coordexp/", "experiments/", "ray_jobs/", "docs/", "tests/")


def rows(text: str) -> list[tuple[str, str]]:
    """Return the cells under "specification" and "here" of every row of every table."""
    found: list[tuple[str, str]] = []
    columns: tuple[int, int] | None = None
    for line in text.splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if not cells:
            columns = None
        elif "specification" in cells:
            heads = [cell.partition(",")[0] for cell in cells]
            columns = heads.index("specification"), heads.index("here")
        elif columns and set(cells[0]) != {"-"}:
            found.append((cells[columns[0]], cells[columns[1]]))
    return found


def names(cell: str) -> list[str]:
    """Return what stands in backticks."""
    return re.findall(r"`([^`]+)`", cell)


def is_there(name: str) -> bool | None:
    """Return whether a name exists; None for what is no name: a formula, a token, a value."""
    if name.startswith("coordexp "):
        return name.split()[1] in VERBS
    if name.startswith(_FOLDERS):
        return (ROOT / name).exists()
    if re.fullmatch(r"coordexp(\.\w+)+(\(.*\))?", name):
        return _resolves(name.partition("(")[0])
    key = name.partition(":")[0]
    if key.partition(".")[0] in sections() and re.fullmatch(r"\w+(\.\w+)+", key):
        return is_key(key)
    if "/" in name or re.match(r"(train|eval)_\w+$", name):
        return find_metric(name) is not None
    return None


def _resolves(dotted: str) -> bool:
    parts = dotted.split(".")
    for split in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:split]))
        except ModuleNotFoundError:
            continue
        for part in parts[split:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


@pytest.mark.parametrize(("specified", "here"), rows(PAGE), ids=lambda cell: cell[:40])
def test_what_stands_under_here_exists(specified: str, here: str):
    assert [name for name in names(here) if is_there(name) is False] == []
    if here.startswith("the same"):
        kept = [is_there(name) for name in names(specified)]
        assert False not in kept


def test_every_row_of_the_first_part_names_something():
    first = PAGE.partition("## What is read differently")[0]
    assert len(rows(first)) > 25
    for specified, here in rows(first):
        assert here.startswith("the same") or any(is_there(name) for name in names(here)), specified


@pytest.mark.parametrize(
    "name",
    [
        "coordexp.coord_tokens.codec.no_such",
        "coordexp.coord_tokens.nothing.encode",
        "experiments/none.yaml",
        "coordexp frobnicate",
        "objective.lambda_cord",
        "coord_diag/nothing",
        "train_txt_loss",
    ],
)
def test_a_name_that_does_not_exist_is_found(name: str):
    assert is_there(name) is False
