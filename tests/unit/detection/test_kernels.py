import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
from coordexp.detection.kernels import fill_needed
import numpy as np
needed = np.empty(101, np.int64)
fill_needed(7, needed)
print(needed[[0, 1, 50, 100]].tolist())
"""


def run(**variables: str) -> str:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM],
        env={**os.environ, **variables},
        cwd=Path(__file__).parents[3],
        check=True,
        capture_output=True,
        text=True,
    ).stdout


def test_a_place_without_cache_compiles_all_the_same(tmp_path: Path) -> None:
    """Neither beside the source nor in a home: as in an image mounted read-only."""
    in_the_way = tmp_path / "file"
    in_the_way.touch()
    nowhere = "UserProvidedCacheLocator"
    said = run(NUMBA_CACHE_DIR=str(in_the_way / "cache"), NUMBA_CACHE_LOCATOR_CLASSES=nowhere)
    assert said == "[0, 1, 4, 7]\n"
    assert in_the_way.read_bytes() == b""


def test_a_cache_folder_is_used(tmp_path: Path) -> None:
    assert run(NUMBA_CACHE_DIR=str(tmp_path)) == "[0, 1, 4, 7]\n"
    assert list(tmp_path.rglob("*fill_needed*.nbc"))
