"""docs/STATISTICS.md says what the code does."""

import re
from pathlib import Path

from coordexp.detection.average_precision import AVERAGE_PRECISIONS
from coordexp.statistics import planned_detectable
from coordexp.statistics.power import PLANNED_IMAGE_STD, PLANNED_SEED_STD
from coordexp.statistics.resampling import Stream

PAGE = (Path(__file__).parents[3] / "docs" / "STATISTICS.md").read_text()


def test_the_table_of_plans() -> None:
    rows = re.findall(r"^\| ([\d,]+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", PAGE, re.MULTILINE)
    assert len(rows) == 3
    for images, *cells in rows:
        num = int(images.replace(",", ""))
        assert cells == [f"{planned_detectable(num, seeds):.4f}" for seeds in (1, 3, 5)]


def test_constants_and_names() -> None:
    assert f"`v_i = {PLANNED_IMAGE_STD:g}^2 / N` and `v_s = {PLANNED_SEED_STD:g}^2 / S`" in PAGE
    assert f"`{', '.join(AVERAGE_PRECISIONS)}`" in PAGE
    assert f"stream {Stream.IMAGES:d} for images, {Stream.SWAPS:d} for swaps and {Stream.SEEDS:d} for seeds" in PAGE
