"""docs/configuration.md lists every key as the schema has it."""

import re
import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

from coordexp.config.schema import KEYS
from coordexp.config.schema.fields import Role

DOCS = Path(__file__).parents[3] / "docs"
TEXT = (DOCS / "configuration.md").read_text(encoding="utf-8")
page = SimpleNamespace(**runpy.run_path(str(DOCS / "tables.py")))


def test_the_page_is_what_the_schema_says() -> None:
    written = TEXT.partition(f"{page.BEGIN}\n")[2].partition(f"\n{page.END}")[0]
    assert written == page.key_tables(), f"run: {page.COMMAND}"


def test_every_key_has_a_row_with_a_sentence_and_every_role_a_meaning() -> None:
    rows = re.findall(r"^\| `([\w.]+)` \| (.+) \| (.+) \| (\w+) \| (.+\.) \|$", TEXT, re.MULTILINE)
    assert [row[0] for row in rows] == list(KEYS)
    assert {row[3] for row in rows} == set(get_args(Role))
    for role in get_args(Role):
        assert re.search(rf"^\| {role} \| \w", TEXT, re.MULTILINE), role
