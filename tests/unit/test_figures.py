"""docs/figures: what is committed is what the script draws."""

import importlib.util
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "docs" / "figures" / "draw.py"


def test_the_figure_is_what_the_script_draws() -> None:
    spec = importlib.util.spec_from_file_location("draw", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    draw = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(draw)
    assert draw.FIGURE.read_text(encoding="utf-8") == draw.figure(), "run: python docs/figures/draw.py"
