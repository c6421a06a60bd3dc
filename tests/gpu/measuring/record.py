"""What a part of the campaign has found so far: a JSON file that is whole after each cell, and lines as it goes."""

import gc
import json
import os
import platform
import re
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import psutil
import torch

from coordexp.files import write_json

ROOT = Path(__file__).parents[3]
GIB = 2**30
Numbers = Mapping[str, object]

# What a cell may end with: no memory, no package, a setting that the product refuses, an API of another version.
_CELL_ERRORS = (RuntimeError, ValueError, TypeError, KeyError, AttributeError, AssertionError, ImportError, OSError)
_ENDING = 10.0  # seconds to leave a process before it is ended
_PACKAGES = ("torch", "transformers", "peft", "accelerate", "numpy", "flash-attn")


class StoppedError(BaseException):
    """SIGTERM came, or the time of the part is over."""


@dataclass(frozen=True)
class Cell:
    """One measurement.

    Attributes:
        name: says what is measured.
        seconds: it is not begun with less than this left.
        measure: makes the numbers; is given the seconds that it may take.
    """

    name: str
    seconds: float
    measure: Callable[[float], Numbers]


@dataclass
class PartRecord:
    """The file of one part, written anew after each cell under another name and then renamed.

    Attributes:
        path: of the file.
        content: as it will be written.
        seconds: the process may take.
        chosen: only cells whose name matches.
    """

    path: Path
    content: dict[str, object]
    seconds: float
    chosen: re.Pattern[str]

    @property
    def left(self) -> float:
        """Seconds that are left for cells: what this process took to start is gone."""
        return self.seconds - _ENDING - (time.time() - psutil.Process().create_time())

    def run(self, cells: Sequence[Cell]) -> None:
        """Measure cell by cell; one that fails is a row with its error, one that no time is left for says so."""
        rows: list[Numbers] = []
        self.content["cells"], self.content["finished"] = rows, False
        write_json(self.path, self.content, indent=1)
        before = signal.signal(signal.SIGTERM, _stop)
        try:
            for cell in cells:
                if self.chosen.search(cell.name):
                    self._measure(cell, rows)
            self.content["finished"] = True
        except StoppedError:
            if set(rows[-1]) == {"cell"}:
                rows[-1] = {**rows[-1], "skipped": "stopped by a signal before it ended"}
        finally:
            signal.signal(signal.SIGTERM, before)
        write_json(self.path, self.content, indent=1)

    def _measure(self, cell: Cell, rows: list[Numbers]) -> None:
        rows.append({"cell": cell.name})
        started = time.monotonic()
        if self.left < cell.seconds:
            why = f"{max(self.left, 0):.0f} s were left, and it takes about {cell.seconds:g}"
            found: dict[str, object] = {"skipped": why}
        else:
            try:
                found = dict(cell.measure(self.left))
            except _CELL_ERRORS as error:
                found = {"error": sentence(error)}
                traceback.clear_frames(error.__traceback__)  # they hold the tensors of what did not fit
            found["cell_seconds"] = round(time.monotonic() - started, 2)
        rows[-1] = {**rows[-1], **found}
        write_json(self.path, self.content, indent=1)
        print(line_of(rows[-1]), flush=True)
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _stop(number: int, frame: object) -> None:
    raise StoppedError


def sentence(error: BaseException) -> str:
    """Return an error in one line."""
    first = next((line for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {first}"[:400]


def line_of(row: Numbers) -> str:
    """Return a row for a person: its plain numbers, or why there are none."""
    for kind in ("error", "skipped"):
        if kind in row:
            return f"{row['cell']}: {kind}: {row[kind]}"
    numbers = [f"{name} {value:g}" for name, value in row.items() if isinstance(value, int | float)]
    return f"{row['cell']}: {', '.join(numbers)}"


def machine() -> dict[str, object]:
    """Return what measures: device, processors, versions and commit."""
    versions: dict[str, str] = {}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "not installed"
    git = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    return {
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or "cpu",
        "memory_gib": torch.cuda.get_device_properties(0).total_memory / GIB if torch.cuda.is_available() else None,
        "cuda": torch.version.cuda,
        "processors": os.cpu_count(),
        "python": platform.python_version(),
        "versions": versions,
        "commit": git.stdout.strip() or "unknown",
    }


def write_summary(folder: Path) -> Path:
    """Write ``summary.md`` from every part's file in a folder, one table each."""
    lines: list[str] = []
    for file in sorted(folder.glob("*.json")):
        content = json.loads(file.read_text(encoding="utf-8"))
        made = content["machine"]
        state = "" if content["finished"] else " (not finished)"
        versions = ", ".join(f"{name} {version}" for name, version in made["versions"].items())
        lines += [f"## {file.stem}{state}", "", f"{made['device']}, {versions}, commit {made['commit'][:10]}", ""]
        lines += [*_table(content["cells"]), "", *(f"- {note}" for note in content.get("notes", ())), ""]
    path = folder / "summary.md"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def _table(cells: Sequence[Mapping[str, object]]) -> list[str]:
    columns = list(dict.fromkeys(name for row in cells for name, value in row.items() if _is_plain(value)))
    if not columns:
        return ["nothing was measured"]
    rows = [[_text(row.get(name)) for name in columns] for row in cells]
    lines = [_line(columns), _line(["---"] * len(columns)), *map(_line, rows)]
    for row in cells:
        for name, value in row.items():
            if isinstance(value, list) and value:
                lines += ["", f"{row['cell']}, {name.replace('_', ' ')}:", "", *_table(value)]
    return lines


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, str | int | float)


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "" if value is None else str(value).replace("|", "/").replace("\n", " ")


def _line(values: Sequence[str]) -> str:
    return f"| {' | '.join(values)} |"


def run_process(command: Sequence[str], *, seconds: float, log: Path, echo: bool = False) -> int:
    """Run Python with this checkout on its path; end it by SIGTERM when the time is over.

    Args:
        command: behind ``python``.
        seconds: that it may take.
        log: takes its output.
        echo: show it here as well, as it comes.

    Returns:
        Its exit code, negative if it was ended.
    """
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    with log.open("w", encoding="utf-8", buffering=1) as output:
        process = subprocess.Popen(
            [sys.executable, *command],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE if echo else output,
            stderr=subprocess.STDOUT,
            text=True,
        )
        ending = threading.Timer(max(seconds, 1.0), process.terminate)
        ending.start()
        try:
            for line in process.stdout or ():
                output.write(line)
                print(line, end="", flush=True)
            return process.wait()
        finally:
            ending.cancel()
            if process.poll() is None:
                process.terminate()
                process.wait()
