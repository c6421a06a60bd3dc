"""Everything that a first real run does, at the true shape of Qwen3-VL-2B, on a CPU and without a download.

make rehearsal                                # 2b: 12 minutes of two cores, 10 GB of memory, 30 GB of disk
make rehearsal SIZE=small                     # as deep and as many words, but narrow: two minutes
make rehearsal FAMILY=qwen3_5                 # the shape of Qwen3.5-0.8B
make rehearsal FAMILY=qwen3_vl_moe SIZE=small # every family has a narrow one

A checkpoint with random weights is trained, evaluated, merged, reported on and read again by the commands of
docs/cluster.md with the shipped experiment. It prints what each took beside what ``doctor`` and the plan had foretold.
"""

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from coordexp.config.schema.data import Shapes
from coordexp.data.sources.shapes import write_shapes
from tests.rehearsal.checkpoint import SIZES

ROOT = Path(__file__).parents[2]
NAME = "coco_qwen3vl_2b"
CONFIG = f"experiments/{NAME}.yaml"
GROUPS = {"A": "argmax", "C": "expected"}  # and how each is read
_GIB = 2**30
_SECONDS = 3600  # that a stage may take
_FEW = (
    "data.num_workers=0",
    "data.min_pixels=16384",
    "data.max_pixels=65536",
    "training.max_steps=2",
    "training.checkpoint_steps=1",
    "training.logging_steps=1",
    "training.per_device_batch_size=2",
    "evaluation.every_steps=null",
    "evaluation.batch_size=4",
    "evaluation.max_new_tokens=8",
    "evaluation.loss_images=2",
    "cluster.num_workers=1",
    "cluster.gpus_per_worker=0",
    "ablation.groups=[A, C]",
    "ablation.seeds=[0]",
)
_ONE_AT_A_TIME = ("cluster.cpus_per_worker=2", "cluster.max_concurrent_runs=1")
_AT_ONCE = ("cluster.cpus_per_worker=1",)
_IN_FLOAT32 = ("model.dtype=float32", "training.precision=float32")


@dataclass(frozen=True)
class Stage:
    """What one command took.

    Attributes:
        name: what it was for.
        seconds: of the wall.
        all_bytes: of memory in all its processes at the peak; what they share counts once, and pages of mapped files
            (a checkpoint that is read) do not count: the system drops them where it needs the room.
        largest_bytes: in the largest of them.
        output: that it printed.
    """

    name: str
    seconds: float
    all_bytes: int
    largest_bytes: int
    output: str


class StageError(Exception):
    """A command ended otherwise than it should."""


class Rehearsal:
    """Runs the commands one after the other, in the folder of the checkout."""

    def __init__(self, folder: Path, size: str, *, family: str = "qwen3_vl") -> None:
        self.folder, self.size, self.family, self.stages = folder, size, family, list[Stage]()
        self.commands: list[tuple[str, ...]] = []
        self.model, self.data, self.runs = folder / "checkpoint", folder / "data", folder / "runs"
        self.overrides = [
            f"model.path={self.model}",
            f"experiment.runs_dir={self.runs}",
            *(f"data.{split}_annotations={self.data}/instances_{split}.json" for split in ("train", "val")),
            *(f"data.{split}_images={self.data}/{split}" for split in ("train", "val")),
            *_FEW,
            *(_AT_ONCE if size == "small" else _ONE_AT_A_TIME),
        ]
        self.dtype = "bfloat16"
        if size != "small" and torch.backends.cpu.get_cpu_capability() == "AVX2":  # a backward of 1 GFLOP takes 4 s
            self.dtype = "float32"
            self.overrides += _IN_FLOAT32
            print("this CPU has no 16-bit products (AVX512): runs compute in float32")

    def run(self) -> None:
        """Go the whole way.

        Raises:
            StageError: where it ends early.
        """
        experiment = ("--config", CONFIG, *self.overrides)
        truth = ("--annotations", str(self.data / "instances_val.json"), "--images", str(self.data / "val"))
        pictures = sorted(map(str, (self.data / "val").iterdir()))
        run_dirs = {group: self.runs / NAME / f"{group}-s0" for group in GROUPS}
        merged = {group: str(run_dir / "merged") for group, run_dir in run_dirs.items()}

        predict = ("predict", "--model", merged["C"], "--output", str(self.folder / "predictions"))
        merge = ("merge", "--adapter", str(run_dirs["C"] / "checkpoints" / "step_000002"), "--dtype=float32")
        outputs = {group: self.folder / f"evaluated-{group}" for group in GROUPS}
        evaluate = ("-m", "coordexp", "evaluate", *truth, "--generations", str(self.answers()))
        evaluations = [
            (f"evaluate {group}", *evaluate, "--model", merged[group], "--output", str(output))
            for group, output in outputs.items()
        ]
        detections = [f"{group}={outputs[group]}/free/detections.{box}.json" for group, box in GROUPS.items()]

        self.stage("checkpoint", "-m", "tests.rehearsal.checkpoint", "write", self.family, self.size, str(self.model))
        self.stages_at_once(
            ("doctor", "-m", "coordexp", "doctor", "--format=json", *experiment),
            ("plan", "-m", "coordexp", "ablation", "--dry-run", *experiment),
        )
        self.stage("ablation", "ray_jobs/ablation.py", *experiment)
        again, *_ = self.stages_at_once(
            ("ablation again", "ray_jobs/ablation.py", *experiment),
            ("merge", "-m", "coordexp", *merge, "--output", str(self.folder / "C-float32")),
            ("transformers", "-m", "tests.rehearsal.checkpoint", "load", self.dtype, pictures[0], *merged.values()),
            ("predict", "-m", "coordexp", *predict, "--max-new-tokens=8", *pictures[:2]),
            *evaluations,
            load_models=True,
        )
        if not all(f"{group}-s0  finished before" in again.output for group in GROUPS):
            raise StageError(f"ablation again: expected both runs to be finished before, got {again.output}")
        self.stages_at_once(
            ("report", "-m", "coordexp.report", NAME, f"--runs-dir={self.runs}"),
            (
                "compare",
                "-m",
                "coordexp",
                "compare",
                *truth,
                "--output",
                str(self.folder / "comparison"),
                "--resamples=200",
                *detections,
            ),
        )
        table = (self.runs / NAME / "report" / "report.csv").read_text()
        if missing := [group for group in GROUPS if f"\n{NAME},group,{group}," not in table]:
            raise StageError(f"report: expected a row of each group, missing {missing} in {table}")

    def stages_at_once(self, *stages: tuple[str, ...], load_models: bool = False) -> list[Stage]:
        """Run stages that do not wait for one another, two at a time; in turn where each loads a large model."""
        with ThreadPoolExecutor(1 if load_models and self.size != "small" else 2) as pool:
            return list(pool.map(lambda stage: self.stage(*stage), stages))

    def answers(self) -> Path:
        """Write the annotated objects as another engine's answers: random weights name no category by themselves."""
        truth = json.loads((self.data / "instances_val.json").read_text())
        names = {category["id"]: category["name"] for category in truth["categories"]}
        texts = {image["id"]: "" for image in truth["images"]}
        sizes = {image["id"]: (image["width"], image["height"]) for image in truth["images"]}
        for item in truth["annotations"]:
            (x, y, w, h), (width, height) = item["bbox"], sizes[item["image_id"]]
            bins = (1000 * x // width, 1000 * y // height, 1000 * (x + w) // width, 1000 * (y + h) // height)
            box = "".join(f"<|coord_{min(number, 999)}|>" for number in bins)
            name = names[item["category_id"]]
            texts[item["image_id"]] += f"<|object_ref_start|>{name}<|box_start|>{box}<|box_end|>"
        path = self.folder / "answers.jsonl"
        path.write_text("".join(json.dumps({"image_id": key, "text": text}) + "\n" for key, text in texts.items()))
        return path

    def stage(self, name: str, *arguments: str) -> Stage:
        """Run Python with these arguments, and note what it took.

        Raises:
            StageError: if it does not end with 0.
        """
        self.commands.append(arguments)
        log = self.folder / f"{name.replace(' ', '-')}.log"
        with log.open("w") as handle:
            process = subprocess.Popen(
                [sys.executable, *arguments], cwd=ROOT, env=_environment(), stdout=handle, stderr=subprocess.STDOUT
            )
            peak = _Peak(process.pid)
            began = time.monotonic()
            try:
                code = process.wait(_SECONDS)
            finally:
                process.kill()
                seconds, (all_bytes, largest_bytes) = time.monotonic() - began, peak.end()
        done = Stage(name, seconds, all_bytes, largest_bytes, log.read_text())
        self.stages.append(done)
        print(
            f"{name:20}{seconds:8.1f} s  {all_bytes / _GIB:6.2f} GiB in all, "
            f"{largest_bytes / _GIB:.2f} in the largest process",
            flush=True,
        )
        if code:
            raise StageError(f"{name}: exit code {code}, {log}\n{done.output[-3000:]}")
        return done

    def foretold(self) -> list[str]:
        """Return what was known before anything ran beside what came, a line each."""
        by_name = {stage.name: stage for stage in self.stages}
        said = json.loads(by_name["doctor"].output)
        sentences = {finding["check"]: finding["sentence"] for finding in said["findings"]}
        memory = sentences["memory"]
        if said["memory"]:
            memory = f"{max(phase['bytes'] for phase in said['memory'].values()) / _GIB:.2f} GiB"
        (hours,) = (line for line in by_name["plan"].output.splitlines() if line.startswith("estimated time"))
        ablation = by_name["ablation"]
        disk = sum(path.stat().st_size for path in self.runs.rglob("*") if path.is_file() and not path.is_symlink())
        return [
            f"memory of a worker  doctor: {memory}; came: {ablation.largest_bytes / _GIB:.2f} GiB",
            f"disk                doctor: {sentences['disk']}; came: {disk / 1e9:.1f} GB",
            f"time                plan: {hours.removeprefix('estimated time').strip()}; came: {ablation.seconds:.0f} s",
        ]


class _Peak:
    """Looks at the memory of a process and all below it until it is told to end."""

    def __init__(self, pid: int) -> None:
        self._process, self._over = psutil.Process(pid), threading.Event()
        self._all_bytes = self._largest_bytes = 0
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._over.wait(2):  # the kernel walks every page of a process to count: a quarter of a core at 0.5
            sizes = [0]
            try:
                processes = [self._process, *self._process.children(recursive=True)]
            except psutil.NoSuchProcess:
                return
            for process in processes:
                with contextlib.suppress(psutil.Error, OSError):  # it has just ended
                    sizes.append(_own_bytes(process))
            self._all_bytes = max(self._all_bytes, sum(sizes))
            self._largest_bytes = max(self._largest_bytes, max(sizes))

    def end(self) -> tuple[int, int]:
        """Return the peaks of all processes together and of the largest one."""
        self._over.set()
        self._thread.join()
        return self._all_bytes, self._largest_bytes


def _own_bytes(process: psutil.Process) -> int:
    """Return the memory of a process without the pages of mapped files."""
    if not psutil.LINUX:
        return process.memory_full_info().uss
    lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
    kib = {line.split()[0]: int(line.split()[1]) for line in lines[1:]}
    return 1024 * (kib["Pss_Anon:"] + kib["Pss_Shmem:"])


def write_pictures(folder: Path) -> None:
    """Write generated pictures as COCO files."""
    write_shapes(folder, Shapes(num_train=4, num_val=4, max_objects=2))


def _environment() -> dict[str, str]:
    """Neither a cluster nor a tracking server of the user's; modules that are compiled are kept for others."""
    mine = {name: value for name, value in os.environ.items() if name not in ("RAY_ADDRESS", "MLFLOW_TRACKING_URI")}
    return mine | {"PYTHONDONTWRITEBYTECODE": "", "MPLBACKEND": "agg", "HF_HUB_OFFLINE": "1", "COLUMNS": "160"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Rehearse; 0 where everything went."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", choices=tuple(SIZES), default="qwen3_vl")
    sizes = "; ".join(f"{family}: {', '.join(found)}" for family, found in SIZES.items())
    parser.add_argument("--size", help=f"the first that a family has, by default ({sizes})")
    parser.add_argument("--folder", type=Path, help="of everything it makes; emptied first (runs/rehearsal-SIZE)")
    options = parser.parse_args(arguments)
    size = options.size or next(iter(SIZES[options.family]))
    if size not in SIZES[options.family]:
        parser.error(f"{options.family} has the sizes {', '.join(SIZES[options.family])}, not {size}")
    name = f"rehearsal-{size}" if options.family == "qwen3_vl" else f"rehearsal-{options.family}-{size}"
    folder = (options.folder or ROOT / "runs" / name).absolute()
    shutil.rmtree(folder, ignore_errors=True)
    write_pictures(folder / "data")
    rehearsal = Rehearsal(folder, size, family=options.family)
    began = time.monotonic()
    try:
        rehearsal.run()
    except (StageError, subprocess.TimeoutExpired) as error:
        print(f"\n{error}")
        return 1
    peak = max(stage.all_bytes for stage in rehearsal.stages)
    print(f"{'together':20}{time.monotonic() - began:8.1f} s  {peak / _GIB:6.2f} GiB in all")
    print("\n".join(["", "foretold and come:", *rehearsal.foretold()]))
    print(f"\nall went well; {folder} may be deleted, the report is {rehearsal.runs / NAME / 'report' / 'report.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
