"""docs/configuration.md lists every key as the schema has it."""

import re
import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import pytest

from coordexp.config.schema import KEYS
from coordexp.config.schema.fields import Role
from coordexp.errors import DataError
from coordexp.files import write_between

DOCS = Path(__file__).parents[3] / "docs"
TEXT = (DOCS / "configuration.md").read_text(encoding="utf-8")
page = SimpleNamespace(**runpy.run_path(str(DOCS / "keys.py")))


def test_the_page_is_what_the_schema_says() -> None:
    written = TEXT.partition(f"{page.BEGIN}\n")[2].partition(f"\n{page.END}")[0]
    assert written == page.tables(), f"run: {page.COMMAND}"


def test_every_key_has_a_row_with_a_sentence_and_every_role_a_meaning() -> None:
    rows = re.findall(r"^\| `([\w.]+)` \| (.+) \| (.+) \| (\w+) \| (.+\.) \|$", TEXT, re.MULTILINE)
    assert [row[0] for row in rows] == list(KEYS)
    assert {row[3] for row in rows} == set(get_args(Role))
    for role in get_args(Role):
        assert re.search(rf"^\| {role} \| \w", TEXT, re.MULTILINE), role


@pytest.mark.parametrize(
    "row",
    [
        "| `training.max_steps` | whole number ≥ 1, or `null` | `1000` | results |",
        "| `data.max_bad_fraction` | number ≥ 0, ≤ 1 | `0.0` | results |",
        "| `custom.coord_offset.ids` | mapping of `start`, `end`, or list of: whole number ≥ 0, or `null` | `null` |",
        "| `custom.coord_offset.ids.start` | whole number ≥ 0 | none | results |",
        '| `evaluation.decoding` | list of: `constrained`, `free` | `["constrained", "free"]` | results |',
        "| `custom.coord_offset.enabled` | `true`, `false` | `false`; `base.yaml`: `true` | results |",
    ],
)
def test_values_and_defaults_are_in_words(row: str) -> None:
    assert row in page.tables()


def test_a_page_without_a_place_for_the_tables_is_refused(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("no place", encoding="utf-8")
    with pytest.raises(DataError, match=r"page.md: has no lines .* to write between"):
        write_between(tmp_path / "page.md", page.BEGIN, page.END, page.tables())
