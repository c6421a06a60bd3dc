"""Answers on a device: those of transformers' own generate and of the CPU."""

import copy
from dataclasses import replace

import pytest
import torch

from tests.support.model_fixtures import Base, random_base
from tests.support.plain_generate import plain_answers

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
NUMBERS = list(range(1, 20))


@pytest.fixture(scope="module")
def on_cpu() -> Base:
    return random_base("native", seed=7)


@pytest.mark.parametrize("constrained", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_answers_are_those_of_plain_generate(on_cpu: Base, dtype: torch.dtype, constrained: bool) -> None:
    """In half precision ways part at a token that two ways of rounding choose otherwise; until there they agree."""
    base = replace(on_cpu, model=copy.deepcopy(on_cpu.model).to("cuda", dtype))
    grammar = base.answering.grammar if constrained else None
    ids, log_probs = plain_answers(base, NUMBERS, grammar=grammar, max_new_tokens=40)
    exact, tolerance = (dtype == torch.float32, 1e-3 if dtype == torch.float32 else 0.3)
    same = 0
    for number, answer in zip(NUMBERS, base.answers(NUMBERS, constrained=constrained, batch_size=5), strict=True):
        common = next(
            (at for at, pair in enumerate(zip(answer.ids.tolist(), ids[number], strict=False)) if len({*pair}) > 1),
            None,
        )
        same += common is None
        shared = len(answer.ids) if common is None else common
        assert answer.log_probs[:shared] == pytest.approx(log_probs[number][:shared], abs=tolerance)
    assert same == len(NUMBERS) if exact else same > len(NUMBERS) // 3


def test_a_device_and_the_cpu_write_the_same(on_cpu: Base) -> None:
    base = replace(on_cpu, model=copy.deepcopy(on_cpu.model).to("cuda"))
    for found, wanted in zip(base.answers(NUMBERS), on_cpu.answers(NUMBERS), strict=True):
        assert found.ids.tolist() == wanted.ids.tolist()
        assert found.expected == pytest.approx(wanted.expected, abs=1e-3)
