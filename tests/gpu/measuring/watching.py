"""What happens inside training steps: how long each stage takes, which kernels run, and where the host waits."""

import contextlib
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Generator, Sequence
from pathlib import Path

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile
from transformers import TrainerCallback

from coordexp.coord_tokens.offset_adapter import inner_model
from coordexp.train.trainer import CoordTrainer

from .record import Numbers

_NUM_KERNELS = 25
_WARNINGS = Path(warnings.__file__)
_SYNCHRONISES = "called a synchronizing CUDA operation"


class Deadline(TrainerCallback):
    """Ends training when its time is over."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def on_step_end(self, args, state, control, **kwargs):
        """Ask the trainer to stop."""
        control.should_training_stop = control.should_training_stop or time.monotonic() > self._end


class StepWatch(TrainerCallback):
    """Watches a few steps behind a logging step, first for waits, then for stages, then for kernels.

    Each watch begins at the end of one step and ends at that of a later one, so that it covers the next batch too.
    """

    def __init__(self, trainer: CoordTrainer, *, first: int, num_steps: int) -> None:
        """Plan the watches; behind ``first`` there must be no logging step for ``3 * num_steps`` steps."""
        self.waits = Waits()
        self.stages = Stages(trainer)
        self.kernels = Kernels()
        self._num_steps = num_steps
        watches = (self.waits, self.stages, self.kernels)
        self._begins = {first + number * num_steps: watch for number, watch in enumerate(watches)}
        self._open = contextlib.ExitStack()

    def on_step_end(self, args, state, control, **kwargs):
        """End one watch and begin the next."""
        self.stages.mark("after the optimizer")
        if state.global_step in (*self._begins, max(self._begins) + self._num_steps):
            self._open.close()
        if state.global_step in self._begins:
            self._open.enter_context(self._begins[state.global_step].watching())

    def on_step_begin(self, args, state, control, **kwargs):
        """Note that the batch is there."""
        self.stages.mark("next batch")

    def on_optimizer_step(self, args, state, control, **kwargs):
        """Note that the optimizer has moved."""
        self.stages.mark("optimizer")

    def found(self) -> Numbers:
        """Return what was seen, a step each."""
        stages = self.stages.per_step(self._num_steps)
        total = sum(stages.values())
        share = {name: ms / total for name, ms in stages.items()} if total else {}
        return {
            "host_waits_per_step": self.waits.per_step(self._num_steps),
            "head_and_losses_share": sum(share.get(name, 0.0) for name in (_HEAD, f"{_HEAD}, backward")),
            "device_busy": self.kernels.busy_fraction,
            "host_waits": self.waits.rows(self._num_steps),
            "stages": [{"stage": name, "ms": round(ms, 3), "share": share[name]} for name, ms in stages.items()],
            "kernels": self.kernels.rows(self._num_steps),
        }


class Waits:
    """Counts the operations that make the host wait for the device, by the line that asks for them."""

    def __init__(self) -> None:
        self.lines: Counter[str] = Counter()

    @contextlib.contextmanager
    def watching(self) -> Generator[None]:
        """Count inside the block; without CUDA nothing waits."""
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = self._note
            _set_sync_debug("warn")
            try:
                yield
            finally:
                _set_sync_debug("default")

    def _note(self, message: Warning | str, *args: object, **kwargs: object) -> None:
        if _SYNCHRONISES in str(message):
            self.lines[calling_line(traceback.extract_stack()[:-1])] += 1

    def per_step(self, num_steps: int) -> float | None:
        """Return how often the host waits in a step; None where that cannot be seen."""
        return sum(self.lines.values()) / num_steps if torch.cuda.is_available() else None

    def rows(self, num_steps: int) -> list[dict[str, object]]:
        """Return the lines, most frequent first."""
        return [{"per_step": count / num_steps, "line": line} for line, count in self.lines.most_common()]


def _set_sync_debug(mode: str) -> None:
    if torch.cuda.is_available():
        torch.cuda.set_sync_debug_mode(mode)


def calling_line(stack: Sequence[traceback.FrameSummary]) -> str:
    """Return the innermost line that is not torch's own, and the innermost of this package if that is another one."""
    callers = [frame for frame in stack if "/torch/" not in frame.filename and Path(frame.filename) != _WARNINGS]
    ours = [frame for frame in callers if "/coordexp/" in frame.filename]
    chosen = [callers[-1], *ours[-1:]]
    lines = [f"{'/'.join(Path(f.filename).parts[-3:])}:{f.lineno} {f.name}: {f.line}" for f in chosen]
    return " <- ".join(dict.fromkeys(lines))


_HEAD = "head, losses and diagnostics"


class Stages:
    """Times the stages of a step between marks on the device, which take no time themselves.

    Between two marks lies all that the device does, waiting for the host included. The stages backward are those of
    the gradient's way: it reaches the language model's output, then that of the vision tower, then the optimizer.
    """

    def __init__(self, trainer: CoordTrainer) -> None:
        self._marks: list[tuple[str, float | torch.cuda.Event]] = []
        self._on = False
        self._trainer = trainer

    @contextlib.contextmanager
    def watching(self) -> Generator[None]:
        """Take times inside the block."""
        inner = inner_model(self._trainer.model).get_submodule("model")
        visual, language = inner.get_submodule("visual"), inner.get_submodule("language_model")
        compute_loss, clip = self._trainer.compute_loss, self._trainer._clip_grad_norm

        def timed_loss(*args, **kwargs):
            loss = compute_loss(*args, **kwargs)
            self.mark(_HEAD)
            return loss

        def timed_clip(model: nn.Module):
            self.mark("vision tower, backward")
            norm = clip(model)
            self.mark("clipping and check of the loss")
            return norm

        handles = [
            visual.register_forward_pre_hook(lambda *_: self.mark("inputs")),
            visual.register_forward_hook(lambda _m, _i, out: self._passed("vision tower", "language model", out)),
            language.register_forward_pre_hook(lambda *_: self.mark("embedding and merging")),
            language.register_forward_hook(lambda _m, _i, out: self._passed("language model", _HEAD, out)),
        ]
        self._trainer.compute_loss, self._trainer._clip_grad_norm = timed_loss, timed_clip
        self._on = True
        self.mark("")
        try:
            yield
        finally:
            self._on = False
            del self._trainer.compute_loss, self._trainer._clip_grad_norm
            for handle in handles:
                handle.remove()

    def mark(self, name: str) -> None:
        """Say that the stage of this name ends here."""
        if not self._on:
            return
        if torch.cuda.is_available():
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._marks.append((name, event))
        else:
            self._marks.append((name, time.perf_counter()))

    def _passed(self, name: str, behind: str, output) -> None:
        """End a stage forward, and say that what lies ``behind`` ends backward where the gradient arrives here."""
        self.mark(name)
        hidden = output.pooler_output if name == "vision tower" else output.last_hidden_state
        if hidden.requires_grad:
            hidden.register_hook(lambda _: self.mark(f"{behind}, backward"))

    def per_step(self, num_steps: int) -> dict[str, float]:
        """Return the milliseconds of each stage."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        found: Counter[str] = Counter()
        for (_, before), (name, now) in zip(self._marks, self._marks[1:], strict=False):
            gap = before.elapsed_time(now) if isinstance(before, torch.cuda.Event) else (now - before) * 1000
            found[name] += gap / num_steps
        return dict(found.most_common())


class Kernels:
    """Profiles what the device runs; on a CPU, the operations."""

    def __init__(self) -> None:
        self._profile: profile | None = None
        self._seconds = 0.0

    @contextlib.contextmanager
    def watching(self) -> Generator[None]:
        """Profile inside the block."""
        on_gpu = torch.cuda.is_available()
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
        with profile(activities=activities, acc_events=True) as self._profile:
            started = time.perf_counter()
            yield
            if on_gpu:
                torch.cuda.synchronize()
            self._seconds = time.perf_counter() - started

    def _times(self) -> list[tuple[str, int, float]]:
        """Return name, calls and microseconds of each kernel."""
        if self._profile is None:
            return []
        on_gpu = torch.cuda.is_available()
        events = self._profile.key_averages()
        if on_gpu:
            cuda = torch.autograd.DeviceType.CUDA
            own = [e for e in events if e.device_type == cuda and not e.is_user_annotation]  # not ranges around kernels
            times = [(e.key, e.count, e.self_device_time_total) for e in own]
        else:
            times = [(e.key, e.count, e.self_cpu_time_total) for e in events]
        return sorted(times, key=lambda item: -item[2])

    @property
    def busy_fraction(self) -> float:
        """Share of the time in which the device ran something; profiling itself slows the host."""
        return sum(us for _, _, us in self._times()) / 1e6 / max(self._seconds, 1e-9)

    def rows(self, num_steps: int) -> list[dict[str, object]]:
        """Return the kernels that take the longest."""
        times = self._times()
        total = sum(us for _, _, us in times) or 1.0
        return [
            {"ms": us / 1000 / num_steps, "share": us / total, "calls": calls / num_steps, "kernel": name[:110]}
            for name, calls, us in times[:_NUM_KERNELS]
        ]
