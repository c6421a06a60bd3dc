"""Memory and time of the head, forward and backward: HF, a scatter hook, PEFT, and the split head.

``python tests/benchmarks/bench_head.py [--tokens N] [--vocab N] [--hidden N] [--repeats N] [--gpu] [--rows FILE]``

Default: float32 on one CPU thread, vocabulary 152,670, hidden size 1,024, 1,024 tokens. The hidden states are a leaf
with a gradient and there is no transformer layer, so that only the head is measured. Ratios are to (b), which is what
one writes without this package. Exit code 1 if a target is missed.

Memory: growth of the peak resident set (VmHWM, reset before the step) over the resident set before it, in a fresh
process for each line, one step after a small one that loads the code: all buffers of the step, the gradients of hidden
states and adapter, and the workspace of the matrix library. Time: CPU seconds of this process, median of interleaved
repetitions. With ``--gpu``: bfloat16 at the sizes of Qwen3-VL-4B, CUDA events and ``torch.cuda.max_memory_allocated``.
"""

import argparse
import ctypes
import gc
import json
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported

import torch
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.head_variants import NAMES, VARIANTS, Batch, Sizes, Variant, make_batch, make_model, make_offset

SHARES = (0.07, 0.25)
TARGETS = {0.07: (0.06, 0.10), 0.25: (0.09, 0.27)}
SMALL = Sizes(batch=1, tokens=64, vocab=3000, hidden=64)
GPU_SIZES = Sizes(batch=4, tokens=2048, vocab=152_670, hidden=2560)
MIB = 2**20
console = Console(width=110)
warnings.filterwarnings("ignore", module="peft|transformers")  # on tying, which PEFT does do here


@dataclass(frozen=True)
class Found:
    memory_bytes: float
    seconds: float


def prepare(sizes: Sizes, keys: Iterable[str], *, device: str, dtype: torch.dtype) -> dict[str, Variant]:
    """Build variants on one model."""
    model = make_model(sizes, device=device, dtype=dtype)
    return {key: VARIANTS[key](model, make_offset(sizes, device=device)) for key in keys}


def step(variant: Variant, batch: Batch) -> float:
    """Go forward and backward; the loss, so that what is compared computes the same."""
    batch.hidden_BTD.grad = variant.trained.grad = None
    loss = variant.forward(batch)
    loss.backward()
    return loss.item()


def status_bytes(name: str) -> int:
    """Read a line of /proc/self/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name + ":"))


def measure_memory(sizes: Sizes, key: str, share: float) -> dict[str, float]:
    """Return what one step of one variant adds to the peak resident set of this process."""
    where = {"device": "cpu", "dtype": torch.float32}
    step(prepare(SMALL, key, **where)[key], make_batch(SMALL, 0.5, **where))
    variant, batch = prepare(sizes, key, **where)[key], make_batch(sizes, share, **where)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # freed memory that the step could use again would go unseen
    Path("/proc/self/clear_refs").write_text("5")
    before = status_bytes("VmRSS")
    loss = step(variant, batch)
    return {"bytes": status_bytes("VmHWM") - before, "loss": loss}


def memory_in_own_process(sizes: Sizes, key: str, share: float) -> dict[str, float]:
    arguments = [f"--{name}={getattr(sizes, name)}" for name in ("tokens", "vocab", "hidden")]
    command = [sys.executable, __file__, *arguments, "--child", key, "--share", str(share)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def interleaved_seconds(
    cases: list[tuple[str, float]], seconds_of: Callable[[str, float], float], repeats: int
) -> dict[tuple[str, float], float]:
    """Return the median seconds of each case, the first round left out as a warm-up."""
    times: dict[tuple[str, float], list[float]] = {case: [] for case in cases}
    for _ in range(repeats + 1):
        for case in cases:
            times[case].append(seconds_of(*case))
    return {case: statistics.median(found[1:]) for case, found in times.items()}


def on_cpu(sizes: Sizes, repeats: int) -> dict[tuple[str, float], Found]:
    cases = [(key, share) for share in SHARES for key in VARIANTS]
    memory = {case: memory_in_own_process(sizes, *case) for case in cases}
    for share in SHARES:
        check_losses({key: memory[key, share]["loss"] for key in "bcd"}, 1e-4)
    variants = prepare(sizes, VARIANTS, device="cpu", dtype=torch.float32)
    batches = {share: make_batch(sizes, share, device="cpu", dtype=torch.float32) for share in SHARES}

    def seconds_of(key: str, share: float) -> float:
        started = time.process_time()
        step(variants[key], batches[share])
        return time.process_time() - started

    seconds = interleaved_seconds(cases, seconds_of, repeats)
    return {case: Found(memory[case]["bytes"], seconds[case]) for case in cases}


def on_gpu(sizes: Sizes, repeats: int) -> dict[tuple[str, float], Found]:
    cases = [(key, share) for share in SHARES for key in VARIANTS]
    where = {"device": "cuda", "dtype": torch.bfloat16}
    variants, small = prepare(sizes, VARIANTS, **where), prepare(SMALL, VARIANTS, **where)
    batches, small_batch = (
        {share: make_batch(sizes, share, **where) for share in SHARES},
        make_batch(SMALL, 0.5, **where),
    )
    memory: dict[tuple[str, float], int] = {}
    for share in SHARES:
        losses: dict[str, float] = {}
        for key in VARIANTS:
            step(small[key], small_batch)  # loads kernels and their workspaces
            batches[share].hidden_BTD.grad = variants[key].trained.grad = None
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            losses[key] = step(variants[key], batches[share])
            memory[key, share] = torch.cuda.max_memory_allocated() - before
        check_losses({key: losses[key] for key in "bcd"}, 2e-2)

    def seconds_of(key: str, share: float) -> float:
        started, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        started.record()
        step(variants[key], batches[share])
        ended.record()
        torch.cuda.synchronize()
        return started.elapsed_time(ended) / 1000

    seconds = interleaved_seconds(cases, seconds_of, repeats)
    return {case: Found(memory[case], seconds[case]) for case in cases}


def check_losses(losses: dict[str, float], tolerance: float) -> None:
    """Refuse to compare variants that compute different losses."""
    low, high = min(losses.values()), max(losses.values())
    if high - low > tolerance * high:
        raise SystemExit(f"the variants compute different losses: {losses}")


def rows_of(found: dict[tuple[str, float], Found]) -> list[tuple[str | float, ...]]:
    """Return share, variant, MiB, ratio to (b), seconds and ratio to (b) of each line."""
    rows: list[tuple[str | float, ...]] = []
    for (key, share), value in found.items():
        base = found["b", share]
        memory, seconds = value.memory_bytes / base.memory_bytes, value.seconds / base.seconds
        rows.append((share, NAMES[key], value.memory_bytes / MIB, memory, value.seconds, seconds))
    return rows


def report(found: dict[tuple[str, float], Found]) -> int:
    """Print the table and the targets; 1 if one is missed."""
    table = Table("supervised", "variant", "memory MiB", "to (b)", "seconds", "to (b)")
    verdicts: list[tuple[bool, str]] = []
    for share, name, mib, to_memory, seconds, to_seconds in rows_of(found):
        table.add_row(f"{share:.0%}", name, f"{mib:,.0f}", f"{to_memory:.3f}", f"{seconds:.3f}", f"{to_seconds:.3f}")
        if name == NAMES["d"]:
            for what, ratio, limit in zip(("memory", "time"), (to_memory, to_seconds), TARGETS[share], strict=True):
                met = ratio <= limit
                verdicts.append(
                    (met, f"{share:.0%} {what}: {ratio:.3f} of (b), target {limit:.2f}: {'met' if met else 'NOT met'}")
                )
    console.print(table)
    for _, line in verdicts:
        console.print(line)
    return int(not all(met for met, _ in verdicts))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int)
    parser.add_argument("--vocab", type=int, default=152_670)
    parser.add_argument("--hidden", type=int)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="write the table here too, tabs between its columns")
    parser.add_argument("--child", choices=list(VARIANTS), help=argparse.SUPPRESS)
    parser.add_argument("--share", type=float, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.gpu and not torch.cuda.is_available():
        console.print("--gpu needs a CUDA device, and this machine has none.")
        return 2
    sizes = Sizes(1, args.tokens or 1024, args.vocab, args.hidden or 1024)
    if args.gpu:
        sizes = Sizes(GPU_SIZES.batch, args.tokens or GPU_SIZES.tokens, args.vocab, args.hidden or GPU_SIZES.hidden)
    torch.set_num_threads(1)
    if args.child:
        sys.stdout.write(json.dumps(measure_memory(sizes, args.child, args.share)) + "\n")
        return 0
    where = (
        torch.cuda.get_device_name() + ", bfloat16" if args.gpu else f"CPU, {torch.get_num_threads()} thread, float32"
    )
    console.print(
        f"{where}; vocabulary {sizes.vocab:,}, hidden {sizes.hidden:,}, {sizes.batch} x {sizes.tokens:,} tokens"
    )
    found = on_gpu(sizes, args.repeats) if args.gpu else on_cpu(sizes, args.repeats)
    if args.rows:
        args.rows.write_text("".join("\t".join(map(str, row)) + "\n" for row in rows_of(found)))
    return report(found)


if __name__ == "__main__":
    sys.exit(main())
