"""What the documents name is there: files, keys of a configuration, and the places that links lead to."""

import re
from pathlib import Path

import pytest

from coordexp.config.keys import is_key, known_keys
from coordexp.sweep.schema import SweepConfig
from tests.support.commands import DOCUMENTS, ROOT

_PATH = re.compile(r"(?<![\w./-])(?:ray_jobs|experiments|docs|dashboards)/[\w./-]*\w")
_KEY = re.compile(r"(?<![\w./?&-])([a-z]\w*(?:\.[a-z]\w*)+)=")
_LINK = re.compile(r"\]\(([^()\s]+)\)")
_TO_BE_MADE = {"experiments/groups/NAME.yaml", "experiments/groups/C_spread.yaml"}  # by whoever follows the page
_SHOWN_AS_WRONG = {"training.max_stpes"}  # with the message it gets


def missing_paths(text: str) -> set[str]:
    """Return the files of the project that a document names and that are not there."""
    return {path for path in _PATH.findall(text) if path not in _TO_BE_MADE and not (ROOT / path).exists()}


def unknown_keys(text: str) -> set[str]:
    """Return the ``section.key=`` of a document that no configuration has; keys of a mapping may be any."""
    keys = set(known_keys()) | {f"sweep.{name}" for name in _sweep_keys()}
    sections = {key.partition(".")[0] for key in keys} | {"sweep"}
    named = {key for key in _KEY.findall(text) if key.partition(".")[0] in sections}
    return {key for key in named if key not in keys and not is_key(key)}


def broken_links(text: str, *, folder: Path) -> set[str]:
    """Return the relative links that lead nowhere, headings included."""
    links = {link for link in _LINK.findall(text) if "://" not in link and not link.startswith("mailto:")}
    return {link for link in links if not _leads_somewhere(link, text, folder)}


def _leads_somewhere(link: str, text: str, folder: Path) -> bool:
    name, _, anchor = link.partition("#")
    target = folder / name
    if not target.exists():
        return False
    return not anchor or anchor in _anchors(target.read_text(encoding="utf-8") if name else text)


def _anchors(text: str) -> set[str]:
    """Return the headings of a document as GitHub names them."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _sweep_keys() -> set[str]:
    names: set[str] = set()
    for name, field in SweepConfig.model_fields.items():
        names.add(name)
        names |= {f"{name}.{inner}" for inner in getattr(field.annotation, "model_fields", {})}
    return names


# A log tells of files and keys that were removed since.
@pytest.mark.parametrize(
    "path", [path for path in DOCUMENTS if path.name != "LOG.md"], ids=lambda path: str(path.relative_to(ROOT))
)
def test_what_a_document_names_is_there(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not missing_paths(text)
    assert unknown_keys(text) <= _SHOWN_AS_WRONG
    assert not broken_links(text, folder=path.parent)
