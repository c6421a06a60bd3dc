"""An experiment on one's own data: its files are checked as a run does, and what depends on them is measured."""

import shlex
from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import TypeVar

from coordexp.campaign.preparation import checked_ceiling
from coordexp.config import ExperimentConfig, load_config
from coordexp.config.trees import Tree, with_value
from coordexp.config.yaml_file import parse_value, written_yaml
from coordexp.data.sample import SPLITS, Split
from coordexp.data.sources.door import check_read, read_unwritten
from coordexp.data.split_data import SplitData
from coordexp.data.splits.check import between_splits
from coordexp.doctor.checkpoint import Base, examine_checkpoint
from coordexp.doctor.data import Pictures, facts_of, of_both_splits
from coordexp.doctor.examine import longest_sequence
from coordexp.doctor.machine import Machine
from coordexp.errors import ConfigError, counted
from coordexp.files import JsonValue, write_text
from coordexp.findings import Check, Finding, collect, guarded, ok, warning
from coordexp.model.checkpoint.directory import EMBEDDED
from coordexp.runs.folder import ExperimentFolder
from coordexp.shipped import find_experiment, shipped_experiments
from coordexp.train.setup.data import accepts_prequantised

_ROUND_TO = 64  # tokens
_NO_LIMIT = 1_000_000
_MOST_OBJECTS = 100  # of a target: more cost memory in every batch, for few images
_NO_RESULT = "a check of the path, no result"
_PASSES, _FEWEST_STEPS, _CHECKPOINTS, _EVALUATIONS, _ROWS = 2, 300, 10, 6, 30
_COMMENT_COLUMN = 40
_Value = TypeVar("_Value")


def new_dataset(
    folder: Path,
    *,
    name: str,
    config: Path,
    overrides: Sequence[str],
    output: Path,
    machine: Machine,
) -> tuple[list[Finding], list[str]]:
    """Check the data as a run does, choose what depends on it, and write the experiment; nothing else is written.

    ``config`` is the experiment that the file ``output`` extends, and ``overrides`` are ``KEY=VALUE`` for it, in the
    place of what is measured; where ``data.train_annotations`` is among them, the folder is not looked at. Returns what
    the checks found, and what the head of the file says; raises the first reason why a run could not use the data.
    """
    draft = _Draft(config, overrides)
    draft.choose("experiment.name", name)
    if "data.train_annotations" not in draft.given:
        draft.choose("data.format", "auto")
        draft.choose("data.path", str(folder.absolute()))
    if "training.epochs" in draft.given:
        draft.choose("training.max_steps", None)
    findings, data = _checked(draft.load())
    samples = data["train"].samples
    most = max(len(sample.objects) for sample in samples)
    draft.choose("data.max_objects", max(1, min(most, _MOST_OBJECTS)), f"the most crowded training image has {most}")
    run = draft.load()
    # Stated, though they are those of the other experiment: a person changes them first.
    is_small = run.model.path == EMBEDDED
    draft.choose("model.path", run.model.path, f"{_NO_RESULT}; else a directory or a hub id" if is_small else "")
    largest = max(sample.width * sample.height for split in SPLITS for sample in data[split].samples)
    if run.data.max_pixels is not None:
        comment = f"larger images are shrunk to it; the largest here has {largest:,}"
        draft.choose("data.max_pixels", run.data.max_pixels, comment)
    small = f", {_NO_RESULT}. For Qwen3-VL: --config coco_qwen3vl_4b" if is_small else ""
    about = [f"model: {run.model.path}{small}", *(f"{split}: {_described(data[split])}" for split in SPLITS)]
    found, base = collect(guarded("checkpoint", examine_checkpoint(run)))
    findings += found
    if base is None:
        about.append("Lengths are those of the other experiment, since the model's shape is unknown here.")
    else:
        _choose_lengths(draft, base, data)
    _choose_workers(draft, machine)
    _choose_steps(draft, len(samples))
    draft.write(output, about)
    return findings, about


class _Draft:
    """Another experiment with keys chosen on top; what a person gives on the command line is never chosen."""

    def __init__(self, config: Path, overrides: Sequence[str]) -> None:
        self._path, self._overrides = find_experiment(config), list(overrides)
        self.given = {text.partition("=")[0].strip() for text in self._overrides}
        self._chosen: dict[str, JsonValue] = {}
        self._comments: dict[str, str] = {}

    def choose(self, key: str, value: JsonValue, comment: str = "") -> None:
        """Choose the value of a dotted key, unless a person has given it."""
        if key not in self.given:
            self._chosen[key], self._comments[key] = value, comment

    def load(self) -> ExperimentConfig:
        chosen = [f"{key}={_flow(value)}" for key, value in self._chosen.items()]
        return load_config(self._path, [*chosen, *self._overrides])

    def write(self, output: Path, about: Sequence[str]) -> None:
        """Write the file, never over one: what it is about, and a line a key, with why it was chosen."""
        if output.exists():
            raise ConfigError(f"{output}: is there already; change that file, or choose another name")
        base = self._path.resolve()
        by_name = base.parent == shipped_experiments().resolve() and not (output.parent / base.name).is_file()
        lines = [
            "# Made by coordexp new dataset: values to start from, not results.",
            *(f"# {line}" for line in about),
            f"# coordexp ablation --config {shlex.quote(str(output))}",
            f"extends: {_flow(base.name if by_name else str(base))}",
        ]
        tree: Tree = {}
        for key, value in self._chosen.items():
            tree = with_value(tree, key.split("."), value, place=key)
        for text in self._overrides:
            key, _, value_text = text.partition("=")
            tree = with_value(tree, key.strip().split("."), parse_value(value_text, name=text), place=text)
        for section, value in tree.items():
            if not isinstance(value, dict):
                lines += ["", f"{section}: {_flow(value)}"]
                continue
            lines += ["", f"{section}:"]
            for name, below in value.items():
                comment = self._comments.get(f"{section}.{name}", "")
                line = f"  {name}: {_flow(below)}"
                lines.append(f"{line:<{_COMMENT_COLUMN}}# {comment}" if comment else line)
        try:
            write_text(output, "\n".join([*lines, ""]))
        except OSError as error:
            raise ConfigError(f"{output}: cannot be written ({error.strerror})") from error


def _checked(run: ExperimentConfig) -> tuple[list[Finding], dict[Split, SplitData]]:
    """Return what the run's own checks found of both splits, and the splits; raise what would stop a run."""
    findings: list[Finding] = []
    data: dict[Split, SplitData] = {}
    read = _passed(read_unwritten(run.data, data_dir=ExperimentFolder.of(run).data), findings)
    assert read is not None  # a missing file was a failure
    for split in SPLITS:
        checked = check_read(
            read,
            run.data,
            split,
            accept_prequantised=accepts_prequantised(run),
            max_images=run.evaluation.max_images,
        )
        data[split] = _passed(checked, findings)
        _passed(Pictures().check(split, data[split].samples), findings)
    findings += [warning("val annotations", said) for said in between_splits(data["train"], data["val"])]
    if read.splits["val"].is_original:  # another ground truth is made when a run starts
        ceiling = checked_ceiling(run, read.sources["val"].annotations)
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
    small = min(data.samples, key=lambda sample: sample.width * sample.height)
    large = max(data.samples, key=lambda sample: sample.width * sample.height)
    counts = [len(sample.objects) for sample in data.samples]
    categories = len(data.categories) or len({desc for sample in data.samples for desc in sample.objects.descs})
    return (
        f"{counted(len(data.samples), 'image')} of {small.width} x {small.height} to {large.width} x {large.height} "
        f"pixels, {counted(sum(counts), 'object')} of {counted(categories, 'category')}, "
        f"{sum(counts) / len(counts):.1f} an image and at most {max(counts)}"
    )


def _choose_lengths(draft: _Draft, base: Base, data: Mapping[Split, SplitData]) -> None:
    draft.choose("data.max_length", _NO_LIMIT)
    run = draft.load()
    both = of_both_splits(facts_of(data["train"]), facts_of(data["val"]))
    longest = longest_sequence(run, base, both, max_objects=run.data.max_objects)
    answer = longest.length - longest.prompt
    parts = f"{longest.prompt} of prompt and image, {answer} of answer"
    comment = f"the longest sequence has {longest.length} tokens: {parts}"
    draft.choose("data.max_length", ceil(longest.length / _ROUND_TO) * _ROUND_TO, comment)
    draft.choose("evaluation.max_new_tokens", ceil(answer / _ROUND_TO) * _ROUND_TO, f"the longest answer has {answer}")


def _choose_workers(draft: _Draft, machine: Machine) -> None:
    """Take the GPUs that are here, and keep the images of a step."""
    run, gpus = draft.load(), len(machine.gpu_names)
    if run.cluster.gpus_per_worker > 0 and gpus not in (0, run.cluster.num_workers):
        draft.choose("cluster.num_workers", gpus, "the GPUs of this machine")
        steps = max(1, round(run.global_batch_size / (gpus * run.training.per_device_batch_size)))
        draft.choose("training.gradient_accumulation_steps", steps)


def _choose_steps(draft: _Draft, num_images: int) -> None:
    run = draft.load()
    if run.training.epochs is not None:
        return
    passes = ceil(_PASSES * num_images / run.global_batch_size)
    steps = max(_FEWEST_STEPS, passes)
    few = ", too few to learn from" if passes < steps else ""
    draft.choose("training.max_steps", steps, f"{_PASSES} passes over the training images are {passes}{few}")
    draft.choose("training.checkpoint_steps", ceil(steps / _CHECKPOINTS))
    draft.choose("training.logging_steps", max(1, min(run.training.logging_steps, steps // _ROWS)))
    if run.evaluation.every_steps is not None:
        draft.choose("evaluation.every_steps", ceil(steps / _EVALUATIONS))


def _flow(value: JsonValue) -> str:
    return written_yaml(value, flow=True).removesuffix("\n")
