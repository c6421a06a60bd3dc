"""What the sentence of fairness says of machines, which are shown and not compared."""

import pytest

from coordexp.report.study.fairness import Fairness

NAMES = ("A-s0", "C-s0")


@pytest.mark.parametrize(
    ("hardware", "said"),
    [
        ((), ""),
        (("CPU with AVX2",), ""),
        (
            ("NVIDIA H200", "CPU with AVX2"),
            " They ran on different hardware, which can change last digits: NVIDIA H200, CPU with AVX2.",
        ),
    ],
)
def test_different_hardware_is_said_and_refuses_nothing(hardware, said):
    fairness = Fairness(True, ("objective",), (), checked=NAMES, hardware=hardware)
    assert fairness.sentence == f"The 2 runs differ in nothing, the declared factor (objective) included.{said}"
    with_files = Fairness(True, ("objective",), (), checked=NAMES, foreign=("rtdetr",), hardware=hardware)
    assert f"{said} Foreign: rtdetr" in with_files.sentence
