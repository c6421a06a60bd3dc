import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "ray", "mlflow", "numba", "scipy", "matplotlib")


@pytest.mark.parametrize("module", ["coordexp.detection", "coordexp.detection.metric", "coordexp.evaluate.analysis"])
def test_what_a_report_needs_loads_no_large_library(module: str) -> None:
    program = f"import sys, {module}; print([name for name in {HEAVY!r} if name in sys.modules])"
    said = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert said == "[]\n"


def test_the_public_name() -> None:
    from coordexp.detection import DetectionMetrics, evaluate_detections

    assert evaluate_detections.__annotations__["return"] is DetectionMetrics
