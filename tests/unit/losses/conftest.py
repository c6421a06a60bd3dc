"""Term inputs made from logits in the plainest way, without the head that training uses; a folder for new terms."""

import sys
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

import coordexp.losses.terms
from coordexp.coord_tokens.codec import NUM_BINS
from tests.support.by_hand import FIRST_ID as FIRST
from tests.support.by_hand import VOCABULARY as VOCAB
from tests.support.by_hand import inputs_by_hand

COORD = slice(FIRST, FIRST + NUM_BINS)


@dataclass
class Case:
    """Logits ``[T, V]`` (a leaf), true tokens ``[T]``, boxes ``[M, 4]``, and the inputs made of them."""

    logits: Tensor
    targets: Tensor
    boxes: Tensor

    coord = COORD

    @property
    def is_coord(self):
        """Which rows are coord tokens."""
        return (self.targets >= FIRST) & (self.targets < FIRST + NUM_BINS)

    @property
    def inputs(self):
        """The terms' view: the first four coord rows are the first box, and so on; left-over ones are no box."""
        return inputs_by_hand(self.logits, self.targets, self.boxes)

    def gradient(self, term):
        """Return the gradient of a term's sum at the logits."""
        return torch.autograd.grad(term(self.inputs), self.logits)[0]


@pytest.fixture
def make_case():
    """Make a random case: whole boxes, coord tokens of an object cut short, and text."""

    def make(*, num_boxes=3, num_loose=1, num_text=5, seed=0, dtype=torch.float64, scale=2.0):
        generator = torch.Generator().manual_seed(seed)
        boxes = torch.rand(num_boxes, 4, generator=generator, dtype=torch.float64)
        boxes = torch.cat([boxes[:, :2] * 0.5, 0.5 + boxes[:, 2:] * 0.5], dim=1)
        bins = (boxes.flatten() * NUM_BINS).round().clamp(0, NUM_BINS - 1).long()
        loose = torch.randint(NUM_BINS, (num_loose,), generator=generator)
        text = torch.randint(FIRST, (num_text,), generator=generator)
        targets = torch.cat([bins + FIRST, loose + FIRST, text])
        logits = torch.randn(len(targets), VOCAB, generator=generator, dtype=torch.float64) * scale
        return Case(logits.to(dtype).requires_grad_(), targets, boxes.to(dtype))

    return make


@pytest.fixture
def make_one_hot():
    """Make a case whose logits are -1e4 but for 1e4 at ``ids``: true tokens and boxes are given."""

    def make(ids, targets, boxes):
        logits = torch.full((len(ids), VOCAB), -1e4)
        logits[torch.arange(len(ids)), torch.tensor(ids, dtype=torch.int64)] = 1e4
        boxes = torch.tensor(boxes, dtype=torch.float32).view(-1, 4)
        return Case(logits.requires_grad_(), torch.tensor(targets, dtype=torch.int64), boxes)

    return make


@pytest.fixture
def terms_dir(tmp_path, monkeypatch):
    """A directory whose files are loss terms for one test."""
    directory = tmp_path / "more_terms"
    directory.mkdir()
    package = coordexp.losses.terms
    modules, names = set(sys.modules), set(vars(package))
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(directory)])
    yield directory
    for name in set(sys.modules) - modules:
        if name.startswith(package.__name__ + "."):
            del sys.modules[name]
    for name in set(vars(package)) - names:
        delattr(package, name)
