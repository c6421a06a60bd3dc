"""Every loss term there is, for tests that go over all of them; and the page's example of a new one."""

import textwrap
from pathlib import Path

from coordexp.losses.term import _REGISTRY, find_term
from coordexp.losses.terms.coord_distribution import SoftTargetShape, soft_ce_term, w1_term

SHAPE = SoftTargetShape(sigma=2.0, truncate=16, temperature=1.0)
WARM = SoftTargetShape(sigma=3.0, truncate=None, temperature=2.5)
RESTRICTED = ("box_l1", "box_giou", "soft_ce", "w1", "coord_slice_ce")


def terms(shape=SHAPE):
    """Every term there is: what any file registers, and the two that the configuration shapes."""
    find_term("text_ce")  # imports every file
    registered = {name: entry.term for name, entry in _REGISTRY.items() if entry.origin[0].startswith("coordexp.")}
    return registered | {term.name: term for term in (soft_ce_term(shape), w1_term(shape))}


NAMES = sorted(terms())
ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "LOSSES.md").read_text(encoding="utf-8")
EXAMPLE, EXAMPLE_YAML = (PAGE.split(f"```{language}\n")[1].split("```")[0] for language in ("python", "yaml"))


def drop(directory, name, text):
    """Write a new file of loss terms."""
    (directory / f"{name}.py").write_text(textwrap.dedent(text), encoding="utf-8")
