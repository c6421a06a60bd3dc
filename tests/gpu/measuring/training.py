"""Training steps as a run takes them: speed, use of the device, memory, and where the time goes."""

import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from transformers import Qwen3VLConfig

from coordexp.config import ExperimentConfig
from coordexp.coord_tokens.offset_adapter import inner_model
from coordexp.doctor.memory import TRAINING, SequenceSize, estimate
from coordexp.model.checkpoint.stored_model import empty_model
from coordexp.runs.reporter import LocalReporter
from coordexp.train.loop.averages import StepLog
from coordexp.train.loop.schedule import Schedule
from coordexp.train.loop.throughput import FlopCounter, count_flops, peak_flops
from coordexp.train.run import Run, make_trainer, set_up_process
from coordexp.train.setup.components import Components

from .record import GIB, Cell, Numbers
from .shapes import Setting, components, configured, named
from .watching import Deadline, StepWatch

NOTES = (
    "mfu: operations that the model asks for, over the published dense peak in bfloat16. Forward and backward of the "
    "language model, the vision tower with its mergers, attention and the head at supervised positions; a frozen "
    "weight takes no product for its own gradient (about 4 N a token and 6 for the adapters' own parameters), and "
    "neither recomputation, padding nor the optimizer count.",
    "mfu_as_if_full: the same steps counted as if every weight trained (6 N a token), as many publications count LoRA.",
    "hardware_use: with what activation checkpointing computes a second time, one forward pass of all layers.",
    "Images/s and all of these are of the logging interval behind the warm-up, waiting for data included: "
    "data_wait is its share.",
    "doctor_gib is what `coordexp doctor` estimates for the longest sample of the data, CUDA's context and 5 % for "
    "fragmentation included; device_gib is what the driver says is used at the end, context included.",
)
_LOGGED = {"cuda": 11, "cpu": 5}  # steps between two rows; the watches need 2 + a multiple of 3
_ROWS = {"cuda": 3, "cpu": 2}


def train_cells(base: Setting) -> list[Cell]:
    """Return the training cells, the most telling first."""
    shown = [
        named(base),
        named(base, deterministic=True),
        named(base, packing=True),
        named(base, batch=2 * base.batch),
        named(base, attention="flash_attention_2"),
        named(base, checkpointing=True, batch=4 * base.batch),
        named(base, scenes="640x480"),
        named(base, group="A"),
        named(base, group="D"),
        named(base, checkpointing=True),
        named(base, checkpointing=True, packing=True),
        named(base, "training.lora.vision=false"),
        named(base, "custom.coord_offset.enabled=false"),
        named(base, accumulate=2),
    ]
    seconds = 40.0 if torch.cuda.is_available() else 2.0
    watched = Cell(f"watched: {shown[0][0]}", seconds, lambda left: train(base, seconds=left, watch=True))
    cells = [Cell(name, seconds, _training(setting)) for name, setting in shown]
    return [cells[0], watched, *cells[1:]]


def memory_cells(base: Setting) -> list[Cell]:
    """Return cells of a few steps with samples that are all alike, at several batch sizes and lengths."""
    shown: list[tuple[str, Setting]] = []
    for batch in (base.batch, 1, 2 * base.batch, base.batch // 2):
        for scenes in ("640x480", "640x640 crowded"):
            shown.append(named(base, batch=max(batch, 1), scenes=scenes))
    shown += [
        named(base, scenes="640x640 crowded", checkpointing=True),
        named(base, scenes="640x640 crowded", checkpointing=True, batch=4 * base.batch),
        named(base, scenes="640x640 crowded", packing=True),
        named(base, scenes="640x640 crowded", packing=True, checkpointing=True),
    ]
    seconds = 25.0 if torch.cuda.is_available() else 2.0
    return [Cell(name, seconds, _memory(setting)) for name, setting in dict(shown).items()]


def _training(setting: Setting) -> Callable[[float], Numbers]:
    longest = 60.0 if torch.cuda.is_available() else 600.0  # on a CPU nothing is measured but that it runs
    return lambda left: train(setting, seconds=min(left, longest))


def _memory(setting: Setting) -> Callable[[float], Numbers]:
    """Return what measures the peak of three steps; logged at each of them, for a row behind the first."""
    short = replace(setting, num_images=8 * setting.batch)
    keys = ("peak_gib", "reserved_gib", "device_gib", "doctor_gib", "peak_to_doctor", "device_to_doctor", "step_ms")

    def measure(left: float) -> Numbers:
        found = train(short, seconds=left, logging_steps=1)
        return {"batch": setting.batch, "longest": found["longest"]} | {key: found[key] for key in keys}

    return measure


def train(setting: Setting, *, seconds: float, watch: bool = False, logging_steps: int | None = None) -> Numbers:
    """Take training steps of a run that was never saved, and say how they went."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    every = logging_steps or _LOGGED[device]
    num_rows = 3 if watch else _ROWS[device]
    changes = (f"training.max_steps={num_rows * every}", f"training.logging_steps={every}", *setting.changes)
    folder = Path(tempfile.gettempdir()) / "coordexp-campaign"
    started = time.monotonic()
    config = configured(replace(setting, changes=changes), folder)
    set_up_process(config)
    parts = components(config, setting.size)
    logs: list[StepLog] = []
    scratch = Path(tempfile.mkdtemp(dir=folder))
    try:
        run = Run.of(config, parts, reporter=LocalReporter(scratch), print_line=lambda line: None)
        shown = run.log.on_step_log
        vars(run.log)["on_step_log"] = lambda log: (logs.append(log), shown(log))
        trainer = make_trainer(run, scratch)
        trainer.remove_callback(Schedule)  # nothing is saved or evaluated
        watcher = StepWatch(trainer, first=2 * every + 1, num_steps=(every - 2) // 3) if watch else None
        trainer.add_callback(Deadline(max(seconds - (time.monotonic() - started), 1.0)))
        if watcher is not None:
            trainer.add_callback(watcher)
        built = time.monotonic() - started
        forget_peak()
        trainer.train()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    # What watches slows the host, and the first steps load kernels.
    measured = logs[1:2] if watch else logs[1:]
    if not measured:
        raise RuntimeError(f"{len(logs) * every} steps in {seconds:.0f} s: nothing behind the warm-up was measured")
    found = dict(speed(measured, parts, config=config))
    found |= memory(parts, config, on_gpu=device == "cuda")
    found |= {"built_seconds": round(built, 1), "loss": logs[-1].means["coord_ce"]}
    if watcher is not None:
        found |= watcher.found()
    return found


def forget_peak() -> None:
    """Begin anew with the peak of memory: of the device, or of this process."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    else:
        Path("/proc/self/clear_refs").write_text("5")


def speed(logs: Sequence[StepLog], parts: Components, *, config: ExperimentConfig) -> Numbers:
    """Return throughput and utilisation over some logging intervals."""
    names = ("num_images", "num_sequence_tokens", "num_sequence_tokens_squared", "num_patches", "num_patches_squared")
    names = (*names, "num_tokens", "num_steps", "data_wait_seconds")
    sums = {name: sum(log.sums[name] for log in logs) for name in names}
    seconds = sum(log.seconds for log in logs)
    model, model_config = parts.model, inner_model(parts.model).config
    assert isinstance(model_config, Qwen3VLConfig)
    dtype = torch.bfloat16 if config.training.precision == "bfloat16" else torch.float32
    possible = seconds * peak_flops(next(model.parameters()).device, dtype)
    counter = count_flops(model, model_config)
    full = count_flops(empty_model(model_config, dtype=torch.bfloat16).requires_grad_(), model_config)
    flops = counter.step_flops(sums)
    again = forward_flops(model_config).step_flops(sums) if config.training.gradient_checkpointing else 0.0
    return {
        "images_s": sums["num_images"] / seconds,
        "tokens_s": sums["num_sequence_tokens"] / seconds,
        "mfu": flops / possible,
        "mfu_as_if_full": full.step_flops(sums) / possible,
        "hardware_use": (flops + again) / possible,
        "step_ms": 1000 * seconds / sums["num_steps"],
        "data_wait": sums["data_wait_seconds"] / seconds,
        "tflop_an_image": flops / sums["num_images"] / 1e12,
        "vision_share": vision_share(counter, sums),
        "tokens_an_image": sums["num_sequence_tokens"] / sums["num_images"],
        "answer_tokens_an_image": sums["num_tokens"] / sums["num_images"],
        "steps": sums["num_steps"],
    }


def vision_share(counter: FlopCounter, sums: dict[str, float]) -> float:
    """Return the share of the operations that the vision tower asks for."""
    vision = counter.per_patch * sums["num_patches"] + counter.per_patch_squared * sums["num_patches_squared"]
    return vision / counter.step_flops(sums)


def forward_flops(config: Qwen3VLConfig) -> FlopCounter:
    """Return what one forward pass of all layers asks for, which checkpointing repeats; the head is not among them."""
    frozen = count_flops(empty_model(config, dtype=torch.bfloat16).requires_grad_(False), config)
    return FlopCounter(
        per_token=frozen.per_token / 2,  # a frozen language model still has a gradient to pass on
        per_token_squared=frozen.per_token_squared / 3,
        per_patch=frozen.per_patch,
        per_patch_squared=frozen.per_patch_squared,
        per_supervised_token=0.0,
    )


def memory(parts: Components, config: ExperimentConfig, *, on_gpu: bool) -> dict[str, object]:
    """Return the peak beside what ``doctor`` estimates for the longest sample; on a CPU the peak of the process."""
    dataset, spec = parts.encoding.dataset(parts.train.samples), parts.encoding.image_spec
    at = max(range(len(dataset)), key=lambda index: dataset.lengths[index])
    rows, columns = spec.grid(width=parts.train.samples[at].width, height=parts.train.samples[at].height)
    prompt = len(parts.encoding.prompt) + rows * columns // spec.merge_size**2
    longest = SequenceSize(prompt=prompt, length=dataset.lengths[at], patches=rows * columns)
    expected = estimate(parts.model, config, longest, on_gpu=on_gpu).totals[TRAINING] / GIB
    found: dict[str, object] = {"longest": longest.length, "doctor_gib": expected}
    if not on_gpu:
        lines = Path("/proc/self/status").read_text().splitlines()
        peak = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024 / GIB
        reserved = device = None
    else:
        peak, reserved = torch.cuda.max_memory_allocated() / GIB, torch.cuda.max_memory_reserved() / GIB
        free, total = torch.cuda.mem_get_info()
        device = (total - free) / GIB
    found |= {"peak_gib": peak, "reserved_gib": reserved, "device_gib": device, "peak_to_doctor": peak / expected}
    return found | {"device_to_doctor": None if device is None else device / expected}
