"""Training steps as a run takes them: speed, use of the device, memory, and which kernels run."""

import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import torch
from torch.profiler import ProfilerActivity, profile
from transformers import TrainerCallback

from coordexp.runs.reporter import LocalReporter
from coordexp.train.run import TrainingRun, make_trainer
from coordexp.train.schedule import Schedule

from .record import GIB, Cell, Numbers
from .setting import FOLDER, Setting, components, configured

NOTES = (
    "mfu: as a run logs it, operations that the model asks for over the published dense peak in bfloat16; a frozen "
    "weight takes no product for its own gradient, and neither recomputation nor padding counts.",
    "Speed and mfu are of the logging intervals behind the warm-up, waiting for data included: data_wait is its share.",
    "peak_gib is what torch allocated at most, device_gib what the driver says is used at the end, context included.",
)
_NUM_KERNELS = 20
_PROFILED = 3  # steps


def train_cells(base: Setting) -> list[Cell]:
    """Return the training cells, the most telling first."""
    checkpointing = "training.gradient_checkpointing=true"
    shown = {
        f"C batch {base.batch}": base,
        "flash_attention_2": replace(base, changes=(*base.changes, "model.attn_implementation=flash_attention_2")),
        f"batch {2 * base.batch}": replace(base, batch=2 * base.batch),
        f"batch {base.batch // 2}": replace(base, batch=base.batch // 2),
        f"checkpointing, batch {4 * base.batch}": replace(
            base, batch=4 * base.batch, changes=(*base.changes, checkpointing)
        ),
        "checkpointing": replace(base, changes=(*base.changes, checkpointing)),
        "group A": replace(base, group="A"),
        "group D": replace(base, group="D"),
        "frozen vision": replace(base, changes=(*base.changes, "training.lora.vision=false")),
        "deterministic": replace(base, changes=(*base.changes, "training.deterministic=true")),
    }
    seconds = 40.0 if torch.cuda.is_available() else 2.0
    cells = [Cell(name, seconds, lambda given=given: train(given)) for name, given in shown.items()]
    kernels = Cell("kernels", seconds, lambda: train(base, profiles=True))
    return [cells[0], kernels, *cells[1:]]


def train(setting: Setting, *, profiles: bool = False) -> Numbers:
    """Take training steps of a run that is never saved or evaluated, and say how they went."""
    on_gpu = torch.cuda.is_available()
    every, num_rows = (11, 3) if on_gpu else (4, 2)
    steps = (f"training.max_steps={num_rows * every}", f"training.logging_steps={every}")
    started = time.monotonic()
    config = configured(replace(setting, changes=(*setting.changes, *steps)))
    parts = components(config)
    scratch = Path(tempfile.mkdtemp(dir=FOLDER))
    try:
        run = TrainingRun.of(config, parts, reporter=LocalReporter(scratch), print_line=lambda line: None)
        trainer = make_trainer(run, scratch)
        trainer.remove_callback(Schedule)
        kernels = _Kernels(first=num_rows * every - _PROFILED)
        if profiles:
            trainer.add_callback(kernels)
        built = time.monotonic() - started
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
        trainer.train()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    rows = [row.metrics for row in run.log.rows if "train_total_loss" in row.metrics]
    if profiles:
        return {"kernels": kernels.rows()}
    speed = {
        name: fmean(row[f"throughput/{key}"] for row in rows[1:])
        for name, key in {
            "images_s": "images_per_second",
            "tokens_s": "tokens_per_second",
            "mfu": "mfu",
            "data_wait": "data_wait_fraction",
        }.items()
    }
    return speed | {
        "step_ms": 1000 * setting.batch / speed["images_s"],
        **_memory(on_gpu=on_gpu),
        "built_seconds": round(built, 1),
        "loss": rows[-1]["train_total_loss"],
    }


def _memory(*, on_gpu: bool) -> dict[str, float]:
    if not on_gpu:
        return {}
    free, total = torch.cuda.mem_get_info()
    return {"peak_gib": torch.cuda.max_memory_allocated() / GIB, "device_gib": (total - free) / GIB}


class _Kernels(TrainerCallback):
    """Profiles the last steps: kernels of the device, or operations of the CPU."""

    def __init__(self, *, first: int) -> None:
        self._first = first
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
        self._profile = profile(activities=activities, acc_events=True)

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self._first:
            self._profile.start()

    def on_train_end(self, args, state, control, **kwargs):
        self._profile.stop()

    def rows(self) -> list[dict[str, object]]:
        """Return the kernels that take the longest, a step each."""
        events = self._profile.key_averages()
        if torch.cuda.is_available():
            cuda = torch.autograd.DeviceType.CUDA
            own = [e for e in events if e.device_type == cuda and not e.is_user_annotation]
            times = [(e.key, e.count, e.self_device_time_total) for e in own]
        else:
            times = [(e.key, e.count, e.self_cpu_time_total) for e in events]
        total = sum(us for *_, us in times) or 1.0
        return [
            {"ms": us / 1000 / _PROFILED, "share": us / total, "calls": calls / _PROFILED, "kernel": name[:110]}
            for name, calls, us in sorted(times, key=lambda item: -item[2])[:_NUM_KERNELS]
        ]
