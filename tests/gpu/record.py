"""What a part of the campaign has found so far: a JSON file that is whole after each cell, and lines as it goes."""

import gc
import os
import platform
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import torch

from coordexp.files import write_json

ROOT = Path(__file__).parents[2]
GIB = 2**30
Numbers = Mapping[str, object]

# What a cell may end with: no memory, no package, a setting that the product refuses, an API of another version.
_CELL_ERRORS = (RuntimeError, ValueError, TypeError, KeyError, AttributeError, AssertionError, ImportError, OSError)
_PACKAGES = ("torch", "transformers", "peft", "accelerate", "numpy", "flash-attn")


@dataclass(frozen=True)
class Cell:
    """One measurement of so many seconds: it is not begun with less left."""

    name: str
    seconds: float
    measure: Callable[[], Numbers]


def measure_cells(cells: Sequence[Cell], path: Path, content: dict[str, object], *, seconds: float) -> None:
    """Measure cell by cell; one that fails is a row with its error, one that no time is left for says so.

    Args:
        cells: in order.
        path: of the file, which is whole after each.
        content: of the file, beside the cells.
        seconds: that all of them may take.
    """
    rows: list[Numbers] = []
    content |= {"cells": rows, "finished": False}
    end = time.monotonic() + seconds
    for cell in cells:
        rows.append({"cell": cell.name, "skipped": "stopped before it ended"})  # as a kill leaves it
        write_json(path, content, indent=1)
        rows[-1] = {"cell": cell.name, **_measured(cell, end - time.monotonic())}
        print(_line_of(rows[-1]), flush=True)
    content["finished"] = True
    write_json(path, content, indent=1)


def _measured(cell: Cell, left: float) -> Numbers:
    if left < cell.seconds:
        return {"skipped": f"{max(left, 0):.0f} s were left, and it takes about {cell.seconds:g}"}
    started = time.monotonic()
    try:
        found = dict(cell.measure())
    except _CELL_ERRORS as error:
        found = {"error": f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"[:400]}
        traceback.clear_frames(error.__traceback__)  # they hold the tensors of what did not fit
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return found | {"cell_seconds": round(time.monotonic() - started, 2)}


def _line_of(row: Numbers) -> str:
    why = [f"{kind}: {row[kind]}" for kind in ("error", "skipped") if kind in row]
    numbers = [f"{name} {value:g}" for name, value in row.items() if isinstance(value, int | float)]
    return f"{row['cell']}: {', '.join(why or numbers)}"


def machine() -> dict[str, object]:
    """Return what measures: device, processors, versions and commit."""
    versions: dict[str, str] = {}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "not installed"
    git = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    on_gpu = torch.cuda.is_available()
    return {
        "device": torch.cuda.get_device_name() if on_gpu else platform.processor() or "cpu",
        "memory_gib": torch.cuda.get_device_properties(0).total_memory / GIB if on_gpu else None,
        "cuda": torch.version.cuda,
        "processors": os.cpu_count(),
        "python": platform.python_version(),
        "versions": versions,
        "commit": git.stdout.strip() or "unknown",
    }


def run_process(command: Sequence[str], *, seconds: float, log: Path) -> int:
    """Run Python with this checkout on its path; its output goes to a file. Return its exit code, -9 after its time."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen([sys.executable, *command], cwd=ROOT, env=environment, stdout=output, stderr=output)
        try:
            return process.wait(max(seconds, 1.0))
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()
