"""Write an experiment on a user's own data: check the files as a run does, and measure what depends on them."""

import shlex
from collections.abc import Mapping, Sequence
from itertools import chain
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
_MOST_OBJECTS = 100  # of a target: a few images with more would cost memory in every batch
_NO_RESULT = "a check of the path, no result"
_PASSES = 2  # over the training images
_FEWEST_STEPS = 300
_CHECKPOINTS = 10  # of a run
_EVALUATIONS = 6  # of a run
_ROWS = 30  # at least so many rows of the log
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
    """Check the data as a run does, choose what depends on it, and write the experiment. Nothing else is written.

    Args:
        folder: of the data. If ``overrides`` has ``data.train_annotations``, it is not looked at.
        name: of the experiment.
        config: the experiment that the new file extends.
        overrides: ``KEY=VALUE``, which take the place of what would be measured.
        output: the file.
        machine: this machine, for the number of GPUs.

    Returns:
        The findings of the checks, and the lines at the head of the file.

    Raises:
        CoordExpError: the first reason why a run could not use the data, or the file cannot be written.
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
    most_objects = max(len(sample.objects) for sample in samples)
    max_objects = max(1, min(most_objects, _MOST_OBJECTS))
    draft.choose("data.max_objects", max_objects, f"the most crowded training image has {most_objects}")

    # The next two are those of the other experiment. They are written because a person changes them first.
    run = draft.load()
    is_embedded = run.model.path == EMBEDDED
    draft.choose("model.path", run.model.path, f"{_NO_RESULT}; else a directory or a hub id" if is_embedded else "")
    if run.data.max_pixels is not None:
        all_samples = chain(*(data[split].samples for split in SPLITS))
        largest = max(sample.width * sample.height for sample in all_samples)
        comment = f"larger images are shrunk to it; the largest here has {largest:,}"
        draft.choose("data.max_pixels", run.data.max_pixels, comment)

    advice = f", {_NO_RESULT}. For Qwen3-VL: --config coco_qwen3vl_4b" if is_embedded else ""
    about = [f"model: {run.model.path}{advice}"]
    about += [f"{split}: {_described(data[split])}" for split in SPLITS]
    checkpoint_findings, base = collect(guarded("checkpoint", examine_checkpoint(run)))
    findings += checkpoint_findings
    if base is None:  # the checkpoint is not on this machine, which is no reason to stop
        about.append("Lengths are those of the other experiment, since the model's shape is unknown here.")
    else:
        _choose_lengths(draft, base, data)
    _choose_workers(draft, machine)
    _choose_steps(draft, len(samples))
    draft.write(output, about)
    return findings, about


class _Draft:
    """The other experiment with chosen values on top. A key that a person gave on the command line is never chosen.

    Attributes:
        given: the keys that the person gave.
    """

    def __init__(self, config: Path, overrides: Sequence[str]) -> None:
        self._path = find_experiment(config)
        self._overrides = list(overrides)
        self.given = {text.partition("=")[0].strip() for text in self._overrides}
        self._chosen: dict[str, JsonValue] = {}
        self._comments: dict[str, str] = {}

    def choose(self, key: str, value: JsonValue, comment: str = "") -> None:
        """Choose the value of a dotted key, unless a person has given it."""
        if key not in self.given:
            self._chosen[key] = value
            self._comments[key] = comment

    def load(self) -> ExperimentConfig:
        """Return the configuration as it would be loaded from the file."""
        chosen = [f"{key}={_flow(value)}" for key, value in self._chosen.items()]
        return load_config(self._path, [*chosen, *self._overrides])

    def write(self, output: Path, about: Sequence[str]) -> None:
        """Write the file: ``about`` as its head, and a line for each key, with the reason why it was chosen.

        Raises:
            ConfigError: if the file exists or cannot be written.
        """
        if output.exists():
            raise ConfigError(f"{output}: is there already; change that file, or choose another name")
        base = self._path.resolve()
        # A shipped experiment is extended by its name, so that the file works on another machine; unless a file of that
        # name lies beside the new one, which would be found first.
        is_shipped = base.parent == shipped_experiments().resolve()
        is_hidden = (output.parent / base.name).is_file()
        lines = [
            "# Made by coordexp new dataset: values to start from, not results.",
            *(f"# {line}" for line in about),
            f"# coordexp ablation --config {shlex.quote(str(output))}",
            f"extends: {_flow(base.name if is_shipped and not is_hidden else str(base))}",
        ]
        for section, value in self._tree().items():
            if not isinstance(value, dict):
                lines += ["", f"{section}: {_flow(value)}"]
                continue
            lines += ["", f"{section}:"]
            for name, section_value in value.items():
                comment = self._comments.get(f"{section}.{name}", "")
                line = f"  {name}: {_flow(section_value)}"
                lines.append(f"{line:<{_COMMENT_COLUMN}}# {comment}" if comment else line)
        try:
            write_text(output, "\n".join([*lines, ""]))
        except OSError as error:
            raise ConfigError(f"{output}: cannot be written ({error.strerror})") from error

    def _tree(self) -> Tree:
        """Return the chosen values and those of the command line, as sections."""
        tree: Tree = {}
        for key, value in self._chosen.items():
            tree = with_value(tree, key.split("."), value, place=key)
        for text in self._overrides:
            key, _, value_text = text.partition("=")
            tree = with_value(tree, key.strip().split("."), parse_value(value_text, name=text), place=text)
        return tree


def _checked(run: ExperimentConfig) -> tuple[list[Finding], dict[Split, SplitData]]:
    """Return the findings of a run's own checks of both splits, and the splits. Raise what would stop a run."""
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
    findings += [warning("val annotations", sentence) for sentence in between_splits(data["train"], data["val"])]
    if read.splits["val"].is_original:  # if not, the ground truth is only made when a run starts
        ceiling = checked_ceiling(run, read.sources["val"].annotations)
        value = "not defined" if ceiling is None else f"{ceiling:.3f}"
        findings.append(ok("codec ceiling", f"the ground truth has an AP of {value} after 1,000 bins and back"))
    return findings, data


def _passed(check: Check[_Value], findings: list[Finding]) -> _Value:
    """Run a check to its end, add its findings to ``findings``, and return its value; or raise its first failure."""
    new_findings, value = collect(check)
    for finding in new_findings:
        if finding.error is not None:
            raise finding.error
    findings += new_findings
    return value


def _described(data: SplitData) -> str:
    """Return the sizes and counts of a split, in words."""
    smallest = min(data.samples, key=lambda sample: sample.width * sample.height)
    largest = max(data.samples, key=lambda sample: sample.width * sample.height)
    sizes = f"{smallest.width} x {smallest.height} to {largest.width} x {largest.height}"
    counts = [len(sample.objects) for sample in data.samples]
    num_categories = len(data.categories)
    if num_categories == 0:  # the data has no list of categories
        num_categories = len(set(chain(*(sample.objects.descs for sample in data.samples))))
    return (
        f"{counted(len(data.samples), 'image')} of {sizes} pixels, {counted(sum(counts), 'object')} of "
        f"{counted(num_categories, 'category')}, {sum(counts) / len(counts):.1f} an image and at most {max(counts)}"
    )


def _choose_lengths(draft: _Draft, base: Base, data: Mapping[Split, SplitData]) -> None:
    """Choose lengths of sequence and answer, by the longest ones of the data."""
    draft.choose("data.max_length", _NO_LIMIT)
    run = draft.load()
    facts = of_both_splits(facts_of(data["train"]), facts_of(data["val"]))
    longest = longest_sequence(run, base, facts, max_objects=run.data.max_objects)
    answer = longest.length - longest.prompt
    comment = (
        f"the longest sequence has {longest.length} tokens: {longest.prompt} of prompt and image, {answer} of answer"
    )
    draft.choose("data.max_length", _rounded_up(longest.length), comment)
    draft.choose("evaluation.max_new_tokens", _rounded_up(answer), f"the longest answer has {answer}")


def _rounded_up(num_tokens: int) -> int:
    return ceil(num_tokens / _ROUND_TO) * _ROUND_TO


def _choose_workers(draft: _Draft, machine: Machine) -> None:
    """Choose a worker for each GPU of this machine, and keep the number of images per step."""
    run = draft.load()
    num_gpus = len(machine.gpu_names)
    if run.cluster.gpus_per_worker > 0 and num_gpus not in (0, run.cluster.num_workers):
        draft.choose("cluster.num_workers", num_gpus, "the GPUs of this machine")
        images_per_microbatch = num_gpus * run.training.per_device_batch_size
        draft.choose(
            "training.gradient_accumulation_steps", max(1, round(run.global_batch_size / images_per_microbatch))
        )


def _choose_steps(draft: _Draft, num_images: int) -> None:
    """Choose the number of steps, by the number of training images, and how often a run saves, logs and evaluates."""
    run = draft.load()
    if run.training.epochs is not None:
        return
    steps_of_passes = ceil(_PASSES * num_images / run.global_batch_size)
    steps = max(_FEWEST_STEPS, steps_of_passes)
    too_few = ", too few to learn from" if steps_of_passes < steps else ""
    comment = f"{_PASSES} passes over the training images are {steps_of_passes}{too_few}"
    draft.choose("training.max_steps", steps, comment)
    draft.choose("training.checkpoint_steps", ceil(steps / _CHECKPOINTS))
    draft.choose("training.logging_steps", max(1, min(run.training.logging_steps, steps // _ROWS)))
    if run.evaluation.every_steps is not None:
        draft.choose("evaluation.every_steps", ceil(steps / _EVALUATIONS))


def _flow(value: JsonValue) -> str:
    """Return a value as YAML on one line."""
    return written_yaml(value, flow=True).removesuffix("\n")
