"""An experiment on one's own data: its files are checked as a run does, and what they ask for is measured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import TypeVar

import numpy as np
from torch import nn

from coordexp.ablation.preparation import checked_ceiling
from coordexp.config import ExperimentConfig
from coordexp.data.sample import SplitData
from coordexp.data.sources.source import SPLITS, Split, source_of
from coordexp.doctor.checkpoint import Base, examine_checkpoint
from coordexp.doctor.data import facts_of, of_both_splits, open_images
from coordexp.doctor.examine import longest_sequence
from coordexp.doctor.machine import Machine
from coordexp.doctor.memory import EVALUATION, TRAINING, ParameterCounts, SequenceSize, expanded_base, run_model
from coordexp.findings import Check, Finding, collect, duration_text, guarded, ok, size_text
from coordexp.model.checkpoint.directory import EMBEDDED
from coordexp.runs.folder import ExperimentFolder
from coordexp.scaffold.coco_folder import SplitFiles
from coordexp.scaffold.draft import Draft
from coordexp.scaffold.sizing import ASSUMED_GPU_BYTES, largest_batch, training_time
from coordexp.train.setup.encoding import check_split_of

_ROUND_TO = 64  # tokens
_NO_LIMIT = 1_000_000
_MOST_OBJECTS = 100  # of a target: more cost memory in every batch, for few images
_LARGEST_BATCH = 32
_NO_RESULT = "a check of the path, no result"
_PASSES, _FEWEST_STEPS, _CHECKPOINTS, _EVALUATIONS, _ROWS = 2, 300, 10, 6, 30
_Value = TypeVar("_Value")


@dataclass(frozen=True)
class NewDataset:
    """What an experiment on some data begins with.

    Attributes:
        name: of the experiment.
        files: of both splits.
        config: the experiment whose model and training it takes.
        overrides: ``KEY=VALUE`` that the new file is to hold, in the place of what is measured.
        output: the new file.
    """

    name: str
    files: Mapping[Split, SplitFiles]
    config: Path
    overrides: Sequence[str]
    output: Path


def new_dataset(wanted: NewDataset, machine: Machine) -> tuple[list[Finding], list[str]]:
    """Check the data as a run does, choose what depends on it, and write the experiment; nothing else is written.

    Returns:
        What the checks found, and what the head of the file says.

    Raises:
        DataError: if a run could not use the data; the first reason.
        ConfigError: if the file is there already or cannot be written, or a key is wrong.
    """
    draft = Draft(wanted.config, wanted.overrides)
    draft.choose("experiment.name", wanted.name)
    draft.choose("data.format", "coco")
    if draft.says("training.epochs"):
        draft.choose("training.max_steps", None)
    for split, files in wanted.files.items():
        draft.choose(f"data.{split}_annotations", str(files.annotations.absolute()))
        draft.choose(f"data.{split}_images", str(files.images.absolute()))
    findings, data = _checked(draft.load())
    about = [f"{split}: {_described(data[split])}" for split in SPLITS]
    most = max(len(sample.objects) for sample in data["train"].samples)
    draft.choose("data.max_objects", max(1, min(most, _MOST_OBJECTS)), f"the most crowded training image has {most}")
    run = draft.load()
    _choose_model(draft, run, data)
    found, base = collect(guarded("checkpoint", examine_checkpoint(run)))
    findings += found
    if base is None:
        about.insert(0, f"model: {run.model.path}")
        about.append("Lengths and batches are those of the other experiment, since the model's shape is unknown here.")
    else:
        about.insert(0, _model_line(run.model.path, base))
        about.append(_choose_by_model(draft, base, data, machine))
    draft.write(wanted.output, about)
    return findings, about


def _checked(run: ExperimentConfig) -> tuple[list[Finding], dict[Split, SplitData]]:
    """Return what the run's own checks found of both splits, and the splits; raise what would stop a run."""
    findings: list[Finding] = []
    data: dict[Split, SplitData] = {}
    for split in SPLITS:
        loaded = _passed(check_split_of(run, split), findings)
        assert loaded is not None  # a missing file was a failure
        _passed(open_images(split, loaded.samples), findings)
        data[split] = loaded
    truth = source_of(run.data, "val", data_dir=ExperimentFolder.of(run).data).ground_truth_file
    if truth.is_file():  # of JSONL it is made when a run starts
        ceiling = checked_ceiling(run, truth)
        value = "not defined" if ceiling is None else f"{ceiling:.3f}"
        findings.append(ok("codec ceiling", f"the ground truth has an AP of {value} after 1,000 bins and back"))
    return findings, data


def _passed(check: Check[_Value], findings: list[Finding]) -> _Value:
    """Do a check to its end, keep what it found, and raise its first failure."""
    found, value = collect(check)
    for finding in found:
        if finding.error is not None:
            raise finding.error
    findings += found
    return value


def _described(data: SplitData) -> str:
    samples = data.samples
    sizes = np.array([(sample.width, sample.height) for sample in samples])
    areas = sizes.prod(axis=1)
    (small_w, small_h), (large_w, large_h) = sizes[areas.argmin()], sizes[areas.argmax()]
    counts = [len(sample.objects) for sample in samples]
    categories = len(data.categories) or len({desc for sample in samples for desc in sample.objects.descs})
    return (
        f"{len(samples):,} images of {small_w} x {small_h} to {large_w} x {large_h} pixels, {sum(counts):,} objects of "
        f"{categories} categories, {np.mean(counts):.1f} an image and at most {max(counts)}"
    )


def _choose_model(draft: Draft, run: ExperimentConfig, data: Mapping[Split, SplitData]) -> None:
    """State the model and its image size in the file, though they are those of the other experiment."""
    is_small = run.model.path == EMBEDDED
    draft.choose("model.path", run.model.path, f"{_NO_RESULT}; else " * is_small + "a directory or a hub id")
    largest = max(sample.width * sample.height for split in SPLITS for sample in data[split].samples)
    limit = "the limit of the model's own" if run.data.max_pixels is None else "larger images are shrunk to it"
    draft.choose("data.max_pixels", run.data.max_pixels, f"{limit}; the largest here has {largest:,}")


def _model_line(path: str, base: Base) -> str:
    """Say which model is trained, and what the one that ships is for."""
    num = ParameterCounts.of(expanded_base(base.model, num_tokens=0, dtype=base.dtype)).num
    size = f"{num / 1e6:.1f} million" if num < 1e9 else f"{num / 1e9:.1f} billion"
    line = f"model: {path}, {size} parameters"
    return f"{line}: {_NO_RESULT}. For Qwen3-VL: --config coco_qwen3vl_4b" if path == EMBEDDED else line


def _choose_by_model(draft: Draft, base: Base, data: Mapping[Split, SplitData], machine: Machine) -> str:
    """Choose lengths, batches and steps; return what one run will take."""
    draft.choose("data.max_length", _NO_LIMIT)
    run = draft.load()
    both = of_both_splits(facts_of(data["train"]), facts_of(data["val"]))
    longest = longest_sequence(run, base, both, max_objects=run.data.max_objects)
    answer = longest.length - longest.prompt
    draft.choose(
        "data.max_length",
        _rounded(longest.length),
        f"the longest sequence has {longest.length} tokens: {longest.prompt} of prompt and image, {answer} of answer",
    )
    draft.choose("evaluation.max_new_tokens", _rounded(answer), f"the longest answer has {answer}")
    # Neither batches nor steps change it, and it takes a second to make.
    model = run_model(base.model, run, dtype=base.dtype, offset_ids=base.offset_ids)
    _choose_batches(draft, model, longest, machine)
    num_images = len(data["train"].samples)
    _choose_steps(draft, num_images)
    run = draft.load().with_steps(num_images)
    time = training_time(run, base, model, data["train"].samples, machine)
    return (
        f"One run trains {run.training.num_steps:,} steps of {run.global_batch_size} images, about "
        f"{duration_text(time.seconds)} ({time.basis}); start, evaluation and merging come on top."
    )


def _choose_batches(draft: Draft, model: nn.Module, longest: SequenceSize, machine: Machine) -> None:
    """Choose how many images a device takes at once, and keep the images of a step."""
    run = draft.load()
    step = run.global_batch_size
    if run.cluster.gpus_per_worker > 0 and machine.gpu_names and run.cluster.num_workers != len(machine.gpu_names):
        draft.choose("cluster.num_workers", len(machine.gpu_names), "the GPUs of this machine")
    workers = draft.load().cluster.num_workers
    where = f"{size_text(machine.ram_bytes)} of memory"
    if run.cluster.gpus_per_worker > 0:
        size = min(machine.gpu_bytes, default=ASSUMED_GPU_BYTES)
        where = f"a GPU of {size_text(size)}" + ("" if machine.gpu_bytes else ", which is not here")
    wanted = 2 ** int(np.log2(max(1, min(_LARGEST_BATCH, step // workers))))
    draft.choose("training.gradient_accumulation_steps", 1)
    draft.choose("training.per_device_batch_size", wanted)
    batch = largest_batch(draft.load(), model, longest, machine, phase=TRAINING)
    draft.choose("training.per_device_batch_size", batch, f"as many of the longest sequence fit into {where}")
    draft.choose("training.gradient_accumulation_steps", max(1, round(step / (workers * batch))))
    evaluated = largest_batch(draft.load(), model, longest, machine, phase=EVALUATION)
    if evaluated < run.evaluation.batch_size:
        draft.choose("evaluation.batch_size", evaluated, f"as many fit into {where}")


def _choose_steps(draft: Draft, num_images: int) -> None:
    run = draft.load()
    if run.training.epochs is not None:
        return
    passes = ceil(_PASSES * num_images / run.global_batch_size)
    steps = max(_FEWEST_STEPS, passes)
    comment = f"{_PASSES} passes over the training images are {passes}" + (
        ", too few to learn from" if passes < steps else ""
    )
    draft.choose("training.max_steps", steps, comment)
    draft.choose("training.checkpoint_steps", ceil(steps / _CHECKPOINTS))
    draft.choose("training.logging_steps", max(1, min(run.training.logging_steps, steps // _ROWS)))
    if run.evaluation.every_steps is not None:
        draft.choose("evaluation.every_steps", ceil(steps / _EVALUATIONS))


def _rounded(num: int) -> int:
    return ceil(num / _ROUND_TO) * _ROUND_TO
