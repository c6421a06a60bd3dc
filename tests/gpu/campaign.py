"""What we want to know of a GPU, in one command that fits a quarter of an hour, the machine's start included.

``python tests/gpu/campaign.py --out DIR [--part NAME ...] [--size 2b|4b|8b|tiny] [--device cuda|cpu]
[--cells REGEX] [--minutes N]``

Parts, the first three in this order where none is named:

- ``tests``: ``pytest -m gpu tests/gpu``, two minutes at most: is it right there;
- ``train``: training steps of random weights of a published size on COCO-like images, as a run takes them: images/s,
  MFU, peak memory, and the kernels of one cell; five minutes;
- ``generate``: answers of COCO's lengths, constrained and free, with transformers' ``generate`` beside them, and the
  same checkpoint at batch 1 and 16; four minutes;
- ``head``: the split head against HF's, a scatter hook's and PEFT's (``tests/benchmarks/bench_head.py``); three
  minutes.

Each part is a process of its own. No part begins a cell that the remaining time cannot hold. A cell that fails or no
longer fits is a row that says so. ``DIR/PART-SIZE.json`` is whole after each cell.

Ray, MLflow, DeepSpeed and pycocotools are not needed; the packages below are, beside torch, transformers, peft,
accelerate, numba, scipy, psutil, filelock and pytest. For a machine that reaches no registry, fetch their wheels
elsewhere and carry the folder (``cp312``: Python 3.12 there):

    pip download --no-deps --only-binary=:all: --python-version 3.12 --platform manylinux_2_17_x86_64 \\
        --platform manylinux2014_x86_64 -d wheels pydantic==2.14.3 pydantic_core==2.50.4 annotated_types \\
        typing_inspection msgspec==0.22.0 ruamel.yaml
    pip install --no-index --no-deps --find-links wheels pydantic pydantic_core annotated_types typing_inspection \\
        msgspec ruamel.yaml   # there
"""

import argparse
import os
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Minutes that a part may take at most. The first three are the quarter of an hour; the head is asked for by name.
PARTS = {"tests": 2.0, "train": 5.0, "generate": 4.0, "head": 3.0}
_ALWAYS = ("tests", "train", "generate")
_STARTING_SECONDS = 20.0  # of a part's process, before its first cell
_HIDDEN = {"2b": 2048, "4b": 2560, "8b": 4096}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one part here, or several in processes of their own."""
    args = _parser().parse_args(arguments)
    sys.path[:0] = [str(ROOT)]
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if args.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # both before torch is imported
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    args.out.mkdir(parents=True, exist_ok=True)
    parts = args.part or list(_ALWAYS)
    if args.here:
        return run_part(parts[0], args)
    return run_parts(parts, args)


def run_parts(parts: Sequence[str], args: argparse.Namespace) -> int:
    """Run parts in processes of their own, each within its minutes and what is left of all; 1 if one failed."""
    from tests.gpu.record import run_process

    end = time.monotonic() + 60 * args.minutes
    exit_codes: list[int] = []
    for part in parts:
        started = time.monotonic()
        seconds = min(60 * PARTS[part], end - started)
        if seconds < _STARTING_SECONDS:
            print(f"{part}: not begun, {max(seconds, 0):.0f} s were left of --minutes {args.minutes:g}", flush=True)
            exit_codes.append(1)
            continue
        log = args.out / f"{part}-{args.size}.log"
        print(f"{part}: at most {seconds:.0f} s; tail --follow {log}", flush=True)
        exit_code = run_process(_command(part, args, seconds), seconds=seconds, log=log)
        print(f"{part}: exit code {exit_code} after {time.monotonic() - started:.0f} s", flush=True)
        exit_codes.append(exit_code)
    return int(any(exit_codes))


def _command(part: str, args: argparse.Namespace, seconds: float) -> list[str]:
    """Return the arguments of Python that run one part."""
    if part == "tests":
        return ["-m", "pytest", "-q", "-m", "gpu", "tests/gpu", "-p", "no:cacheprovider"]
    command = [__file__, "--here", "--part", part, "--out", str(args.out.absolute()), "--size", args.size]
    return [*command, "--device", args.device, "--cells", args.cells, "--minutes", str(seconds / 60)]


def run_part(part: str, args: argparse.Namespace) -> int:
    """Measure the cells of one part in this process; 2 where its device is not there."""
    import torch

    from tests.gpu import generation, record, training
    from tests.gpu.setting import Setting

    if args.device == "cuda" and not torch.cuda.is_available():
        print("--device cuda: there is no CUDA device here; --device cpu --size tiny tries the campaign itself")
        return 2
    base = Setting.on(args.device, args.size)
    cells, notes = {
        "train": lambda: (training.train_cells(base), training.NOTES),
        "generate": lambda: (generation.generate_cells(base), generation.NOTES),
        "head": lambda: ([record.Cell("bench_head.py", 5.0, lambda: _run_head(args))], ()),
    }[part]()
    content = {"part": part, "size": args.size, "machine": record.machine(), "notes": list(notes)}
    path = args.out / f"{part}-{args.size}.json"
    chosen = [cell for cell in cells if re.search(args.cells, cell.name)]
    record.measure_cells(chosen, path, content, seconds=60.0 * args.minutes - _STARTING_SECONDS)
    return 0


def _run_head(args: argparse.Namespace) -> dict[str, object]:
    """Measure the head at the width of this size, and return the rows of its table."""
    from tests.gpu.record import run_process

    found = args.out / f"head-{args.size}-rows.txt"
    sizes = ["--tokens", "128", "--vocab", "4000", "--hidden", "64", "--repeats", "1"]
    if args.device == "cuda":
        sizes = ["--gpu", "--hidden", str(_HIDDEN.get(args.size, 64)), "--repeats", "10"]
    command = ["tests/benchmarks/bench_head.py", *sizes, "--rows", str(found)]
    code = run_process(command, seconds=60 * args.minutes, log=args.out / "bench_head.log")
    rows = [line.split("\t") for line in found.read_text().splitlines()] if found.exists() else []
    names = ("mib", "memory_to_b", "seconds", "time_to_b")
    table = [
        {"share": float(share), "variant": variant} | dict(zip(names, map(float, numbers), strict=True))
        for share, variant, *numbers in rows
    ]
    return {"targets_met": code == 0, "exit_code": code, "variants": table}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of the results")
    parser.add_argument("--part", action="append", choices=PARTS, help="only this part; may be repeated")
    parser.add_argument("--size", choices=("2b", "4b", "8b", "tiny"), default="4b", help="of the model")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--cells", default="", metavar="REGEX", help="only cells whose name matches")
    parser.add_argument("--minutes", type=float, default=13.0, help="that all parts may take together")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
