"""The day with the blood cells, as ``docs/your-data.md`` prints it: no file by hand, no conversion."""

import json
from pathlib import Path

import pytest

from tests.integration.test_printed_commands import run
from tests.unit.commands_support import ROOT, blocks, lines_not_printed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
DAY = [block for block in blocks(ROOT / "docs" / "your-data.md") if "a slow test runs these" in block.reason]


def test_the_day_with_the_blood_cells_is_as_printed(shared_data: Path, tmp_path: Path) -> None:
    (tmp_path / "BCCD_Dataset").symlink_to(shared_data / "bccd")
    for block in DAY:
        for command in block.commands:
            assert command.argv is not None
            printed = run(tmp_path, "-m", "coordexp", *command.argv)
            assert lines_not_printed(command.output, printed) == []
    assert len(DAY) == 3
    assert "group has learned to detect anything yet" in printed
    assert list((tmp_path / "runs" / "blood").rglob("*.html")), "the page"
    assert len(list((tmp_path / "seen").glob("*.png"))) == 2
    truth = json.loads((tmp_path / "runs" / "blood" / "data" / "val_ground_truth.json").read_text())
    assert (len(truth["images"]), len(truth["annotations"])) == (87, 1137)
