"""The same losses twice: by the split head and the package's terms, and on plain full-vocabulary logits."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from coordexp.coord_tokens.codec import NUM_BINS
from coordexp.coord_tokens.expectation import expected_values
from coordexp.coord_tokens.soft_ce_w1 import coord_gate, gaussian_soft_targets, soft_cross_entropy, wasserstein_1
from coordexp.losses.coord_box import giou, l1
from coordexp.losses.head import HeadOutput, plain_head, split_head
from coordexp.losses.term import TermInputs
from tests.support import by_hand
from tests.support.terms import SHAPE, terms

LOSSES = ("ce", "gate", "soft_ce", "w1", "box")
EACH_AND_SUM = [*[(name,) for name in LOSSES], LOSSES]
KNOWN = terms()
TERMS = {
    "ce": ("text_ce", "coord_ce"),
    "gate": ("gate",),
    "soft_ce": ("soft_ce",),
    "w1": ("w1",),
    "box": ("box_l1", "box_giou"),
}


@dataclass(frozen=True)
class Layout:
    """Where the adapted rows lie in the table."""

    first_id: int
    vocab: int
    num_adapted: int = NUM_BINS


MIDDLE = Layout(first_id=40, vocab=1103)
END = Layout(first_id=300, vocab=1300)
EXTRA = Layout(first_id=40, vocab=1103, num_adapted=NUM_BINS + 2)
EXTRA_END = Layout(first_id=101, vocab=1103, num_adapted=NUM_BINS + 2)
LAYOUTS = {"middle": MIDDLE, "end": END, "extra rows": EXTRA, "extra rows at the end": EXTRA_END}


@dataclass(frozen=True)
class Problem:
    """Hidden states and offset (leaves), a frozen table, true tokens, boxes of each four coord tokens."""

    layout: Layout
    hidden: Tensor
    weight: Tensor
    offset: Tensor
    targets: Tensor
    boxes: Tensor

    @property
    def coord_rows(self) -> Tensor:
        first = self.layout.first_id
        return ((self.targets >= first) & (self.targets < first + NUM_BINS)).nonzero().squeeze(1)

    @property
    def box_rows(self) -> Tensor:
        return torch.arange(4 * len(self.boxes), device=self.targets.device).view(-1, 4)

    def moved(self, *, dtype: torch.dtype | None = None, device: str | None = None) -> "Problem":
        """Copy, as fresh leaves."""
        hidden, offset = (x.detach().to(device, dtype).clone().requires_grad_() for x in (self.hidden, self.offset))
        weight = self.weight.detach().to(device, dtype).clone()
        return Problem(self.layout, hidden, weight, offset, self.targets.to(device), self.boxes.to(device))

    def gradients(self, loss: Tensor) -> dict[str, Tensor]:
        """Return the loss and what it gives hidden states and offset."""
        hidden, offset = torch.autograd.grad(
            loss, (self.hidden, self.offset), allow_unused=True, materialize_grads=True
        )
        return {"loss": loss.detach(), "hidden": hidden, "offset": offset}


def make_problem(
    layout=MIDDLE, *, num_boxes=5, num_loose=2, num_text=17, seed=0, dtype=torch.float32, scale=1.0, width=24
):
    """Coord tokens scattered among text; ``scale`` is about the standard deviation of the logits."""
    generator = torch.Generator().manual_seed(seed)
    num_coord = 4 * num_boxes + num_loose
    is_text = torch.ones(layout.vocab, dtype=torch.bool)
    is_text[layout.first_id : layout.first_id + NUM_BINS] = False
    text_ids = is_text.nonzero().squeeze(1)
    text = text_ids[torch.randint(len(text_ids), (num_text,), generator=generator)]
    if num_text and layout.num_adapted > NUM_BINS:
        text[0] = layout.first_id + layout.num_adapted - 1
    coord = torch.randint(layout.first_id, layout.first_id + NUM_BINS, (num_coord,), generator=generator)
    order = torch.randperm(num_text + num_coord, generator=generator)
    hidden = torch.randn(num_text + num_coord, width, generator=generator)
    weight = scale * width**-0.5 * torch.randn(layout.vocab, width, generator=generator)
    offset = 0.3 * scale * width**-0.5 * torch.randn(layout.num_adapted, width, generator=generator)
    boxes = torch.rand(num_boxes, 4, generator=generator)
    return Problem(layout, hidden, weight, offset, torch.cat([coord, text])[order], boxes).moved(dtype=dtype)


def run_split_head(problem: Problem) -> HeadOutput:
    return split_head(
        problem.hidden,
        problem.weight,
        problem.targets,
        first_id=problem.layout.first_id,
        offset_KD=problem.offset,
        num_adapted=problem.layout.num_adapted,
        coord_rows_N=problem.coord_rows,
    )


def term_inputs(
    out: HeadOutput, problem: Problem, *, coord_rows: Tensor | None = None, box_rows: Tensor | None = None
) -> TermInputs:
    return by_hand.term_inputs(
        out,
        problem.targets,
        problem.boxes,
        first_id=problem.layout.first_id,
        coord_rows=problem.coord_rows if coord_rows is None else coord_rows,
        box_rows=problem.box_rows if box_rows is None else box_rows,
    )


def term_loss(inputs: TermInputs, names: tuple[str, ...]) -> Tensor:
    """Return the sum of the package's terms, per token."""
    return sum(KNOWN[term](inputs) for name in names for term in TERMS[name]) / inputs.is_coord_T.shape[0]


def full_logits(problem: Problem) -> Tensor:
    """Return ``[T, V]`` as the forward hook does: the head, then the deltas of the adapted columns."""
    layout = problem.layout
    deltas = F.linear(problem.hidden, problem.offset)
    return F.linear(problem.hidden, problem.weight) + F.pad(
        deltas, (layout.first_id, layout.vocab - layout.first_id - layout.num_adapted)
    )


def full_loss(logits: Tensor, problem: Problem, names: tuple[str, ...]) -> Tensor:
    """Return the same on full logits, which are upcast first, as transformers does."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    rows, first = problem.coord_rows, problem.layout.first_id
    coord = logits[rows][:, first : first + NUM_BINS]
    bins = problem.targets[rows] - first
    targets = gaussian_soft_targets(bins, sigma=SHAPE.sigma, truncate=SHAPE.truncate)
    boxes = expected_values(coord)[problem.box_rows]
    values = {
        "ce": lambda: F.cross_entropy(logits, problem.targets, reduction="sum"),
        "gate": lambda: coord_gate(logits[rows], range(first, first + NUM_BINS)).sum(),
        "soft_ce": lambda: soft_cross_entropy(coord, targets).sum(),
        "w1": lambda: wasserstein_1(coord.softmax(dim=1), targets).sum(),
        "box": lambda: l1(boxes, problem.boxes).sum() + (1 - giou(boxes, problem.boxes)).sum(),
    }
    return sum(values[name]() for name in names) / logits.shape[0]


def both(problem: Problem, names: tuple[str, ...]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return loss and gradients by the split head and by full logits."""
    ours = problem.gradients(term_loss(term_inputs(run_split_head(problem), problem), names))
    return ours, problem.gradients(full_loss(full_logits(problem), problem, names))


def distance(found: Tensor, truth: Tensor) -> float:
    return float((found.double() - truth.double()).norm())


def assert_equal(found: dict[str, Tensor], truth: dict[str, Tensor], *, relative: float = 1e-5) -> None:
    """Compare loss and each gradient: the norm of the difference against the norm of the truth."""
    assert found.keys() == truth.keys()
    for name, value in truth.items():
        error, norm = distance(found[name], value), float(value.double().norm())
        assert error <= relative * norm, f"{name}: off by {error:.3g} of {norm:.3g}"


def loss_id(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else "sum"


def run_plain_head(problem: Problem, table: Tensor) -> HeadOutput:
    keys = {"first_id": problem.layout.first_id, "coord_rows_N": problem.coord_rows}
    return plain_head(problem.hidden, table, problem.targets, offset_KD=problem.offset, **keys)


def bfloat16_errors(make, names: tuple[str, ...], *, seeds: int) -> dict[str, tuple[float, float]]:
    """Return squared errors over some seeds, by name: of the split head, and of plain autograd.

    The truth is float32 arithmetic on the same bfloat16 values; ``make(seed)`` gives the problem.
    """
    total: dict[str, tuple[float, float]] = {}
    for seed in range(seeds):
        problem = make(seed)
        exact = problem.moved(dtype=torch.float32)
        truth = exact.gradients(full_loss(full_logits(exact), exact, names))
        ours, plain = both(problem, names)
        for name, value in truth.items():
            a, b = total.get(name, (0.0, 0.0))
            total[name] = a + distance(ours[name], value) ** 2, b + distance(plain[name], value) ** 2
    return total
