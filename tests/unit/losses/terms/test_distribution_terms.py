"""The terms of the coord distribution: what they add up, at which temperature, over which rows."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from coordexp.coord_tokens.soft_ce_w1 import coord_gate
from coordexp.losses.terms.gate import Gate
from coordexp.losses.terms.soft_ce import SoftCe
from coordexp.losses.terms.text_gate import TextGate
from coordexp.losses.terms.w1 import W1

KNOBS = [
    {"sigma": 2.0, "truncate": 16, "temperature": 1.0},
    {"sigma": 0.5, "truncate": None, "temperature": 3.0},
    {"sigma": 30.0, "truncate": 5, "temperature": 0.25},
]


def _reference(case, *, sigma, truncate, temperature):
    """Soft CE and W1 of every coord row, in float64 numpy from their definitions."""
    logits = case.logits.detach().double()[case.is_coord][:, case.coord].numpy() / temperature
    bins = (case.targets[case.is_coord] - case.coord.start).numpy()
    distance = np.abs(np.arange(1000) - bins[:, None])
    q = np.exp(-(distance**2) / (2 * sigma**2)) * (distance <= (truncate or math.inf))
    q /= q.sum(axis=1, keepdims=True)
    log_p = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
    w1 = np.abs(np.cumsum(np.exp(log_p) - q, axis=1)).sum(axis=1) / 999
    return -(q * log_p).sum(), w1.sum()


@pytest.mark.parametrize("knobs", KNOBS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_soft_ce_and_w1_sum_over_coord_rows(knobs, dtype, make_case):
    case = make_case(dtype=dtype, num_boxes=3, num_loose=2)
    soft_ce, w1 = _reference(case, **knobs)
    # The targets are float32 throughout: 14 rows of an error of 2^-24 times log p near 10 / temperature.
    assert SoftCe(**knobs)(case.inputs).item() == pytest.approx(soft_ce, rel=1e-6)
    assert W1(**knobs)(case.inputs).item() == pytest.approx(w1, rel=1e-5)


@pytest.mark.parametrize("temperature", [1.0, 2.5, 0.25])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_the_gate_of_a_temperature_is_that_of_the_logits_divided_by_it(temperature, dtype, make_case):
    case = make_case(dtype=dtype, num_boxes=2, num_loose=1, num_text=4)
    per_row = coord_gate(case.logits / temperature, range(case.coord.start, case.coord.stop))
    torch.testing.assert_close(Gate(temperature=temperature)(case.inputs), per_row[case.is_coord].sum())
    if temperature != 1:
        assert not torch.allclose(Gate()(case.inputs), per_row[case.is_coord].sum(), rtol=1e-3)


def test_the_gate_is_the_public_function_at_coord_rows(make_case):
    case = make_case(num_boxes=2, num_loose=1, num_text=4)
    per_row = coord_gate(case.logits, range(case.coord.start, case.coord.stop))
    torch.testing.assert_close(Gate()(case.inputs), per_row[case.is_coord].sum())
    others = [i for i in range(case.logits.shape[1]) if not case.coord.start <= i < case.coord.stop]
    torch.testing.assert_close(TextGate()(case.inputs), coord_gate(case.logits, others)[~case.is_coord].sum())


@pytest.mark.parametrize("term", [Gate(), TextGate()], ids=lambda term: term.name)
@pytest.mark.parametrize("scale", [0.0, 1.0, 30.0, 1000.0])
def test_a_gate_is_never_negative_in_float32(term, scale, make_case):
    """Not even where the log-sum-exps are in the thousands, with a last bit of 1e-4."""
    for seed in range(10):
        inputs = make_case(seed=seed, scale=scale, dtype=torch.float32).inputs
        joined = torch.logaddexp(inputs.head.log_z_text_T, inputs.head.log_z_coord_T)  # as the head joins them
        assert term(replace(inputs, head=replace(inputs.head, log_z_T=joined))) >= 0


@pytest.mark.parametrize("knobs", [{"sigma": 0.0}, {"temperature": 0.0}, {"truncate": 0}, {"sigma": math.inf}])
@pytest.mark.parametrize("term", [SoftCe, W1])
def test_an_impossible_knob_is_refused(term, knobs):
    with pytest.raises(ValueError, match=next(iter(knobs))):
        term(**knobs)
