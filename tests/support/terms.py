"""Every loss term there is, and what tests of them share; and the page's example of a new one."""

import textwrap
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from coordexp.losses.term import UNITS, SoftTargetTerm, TermInputs
from coordexp.losses.terms import loss_terms
from coordexp.losses.terms.gate import Gate
from coordexp.losses.terms.soft_ce import SoftCe

SHAPE = SoftCe(sigma=2.0, truncate=16, temperature=1.0)
WARM = SoftCe(sigma=3.0, truncate=None, temperature=2.5)
BOXES = ("box_l1", "box_giou", "smooth_l1", "box_diou", "box_ciou", "box_centre_l1")
RESTRICTED = (*BOXES, "soft_ce", "w1", "coord_slice_ce", "soft_target", "emd2", "ordinal_ce")


def terms(shape=SHAPE):
    """Every term there is; those of the distribution have the knobs of ``shape``."""
    knobs = shape.model_dump()
    return {
        name: term.model_validate(
            knobs if issubclass(term, SoftTargetTerm) else {"temperature": shape.temperature} if term is Gate else {}
        )
        for name, term in loss_terms().items()
    }


NAMES = sorted(terms())
ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "LOSSES.md").read_text(encoding="utf-8")
EXAMPLE, EXAMPLE_YAML = (PAGE.split(f"```{language}\n")[1].split("```")[0] for language in ("python", "yaml"))


def drop(directory, name, text):
    """Write a new file of a loss term."""
    (directory / f"{name}.py").write_text(textwrap.dedent(text), encoding="utf-8")


def count_units(inputs: TermInputs) -> Tensor:
    """Count the units of one batch, ``[U]``."""
    num_tokens, num_coord, num_boxes = map(len, (inputs.is_coord_T, inputs.coord_bins_N, inputs.box_rows_M4))
    counts = {"tokens": num_tokens, "text_tokens": num_tokens - num_coord, "coord_tokens": num_coord}
    return torch.tensor([float((counts | {"boxes": num_boxes})[unit]) for unit in UNITS])


def with_tensors(inputs: TermInputs, change) -> TermInputs:
    """Return inputs with ``change`` applied to every tensor."""
    head = replace(inputs.head, **{name: change(v) for name, v in vars(inputs.head).items() if isinstance(v, Tensor)})
    own = {name: change(value) for name, value in vars(inputs).items() if isinstance(value, Tensor)}
    return replace(inputs, head=head, **own)
