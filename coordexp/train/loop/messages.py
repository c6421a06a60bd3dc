"""The lines a run prints at its start: what trains, and on what."""

import math
from collections.abc import Sequence

import torch
from tabulate import tabulate

from coordexp.config.schema import RunConfig
from coordexp.coord_tokens.offset_adapter import active_offset, inner_model
from coordexp.data.box_limits.count import BoxLimits
from coordexp.data.box_limits.cut_boxes import too_many, unlearnt, unwritten
from coordexp.data.dataset import DetectionDataset
from coordexp.data.images.patches import fed_sentence
from coordexp.data.sample import Ordering
from coordexp.data.sampler import LengthBucketSampler
from coordexp.data.split_data import SplitData
from coordexp.data.splits.check import between_splits
from coordexp.errors import counted
from coordexp.losses.criterion import Criterion
from coordexp.model.families import family_of
from coordexp.model.param_groups import GroupRow, describe
from coordexp.runs import ranks
from coordexp.train.setup.components import Components
from coordexp.train.setup.data import set_of_run
from coordexp.train.setup.strategy import strategy_line, switch_notes

_NUM_REJECTED_SHOWN = 5
_WARNING = "warning: "
_COUNT_TEXTS = {
    "not_chosen": "more were not chosen (data.max_train_images)",
    "images_without_objects": "images without objects",
    "crowd": "crowd boxes are no targets",
    "ignored": "ignored boxes are no targets",
    "thin": "boxes are thinner than a bin and were widened to one",
    "of_rejected_images": "annotations are lost with their images",
    "trimmed_names": "names had white space around them, which is cut off",
    "repeated_file_names": "images name a file that another one names",
}


def start_lines(
    config: RunConfig, parts: Components, dataset: DetectionDataset, sampler: LengthBucketSampler, limits: BoxLimits
) -> list[str]:
    """Return what a run prints when it starts: strategy, parameters, data, loss terms, optimizer groups, batches.

    Args:
        config: the run.
        parts: its model, data and criterion.
        dataset: the training samples as they are encoded.
        sampler: their order.
        limits: the boxes that limits of the configuration take away.
    """
    num_trained = sum(p.numel() for p in parts.model.parameters() if p.requires_grad)
    num_parameters = sum(p.numel() for p in parts.model.parameters())
    lines = [
        f"starts: {strategy_line(config)}",
        f"starts: {num_trained:,} of {num_parameters:,} parameters train",
    ]
    lines += [f"data: {sentence}" for sentence in set_lines(config)]
    lines += data_lines("train", parts.train, dataset)
    lines += data_lines("val", parts.val)
    lines += limit_lines(limits, ordering=config.data.ordering)
    if config.data.format != "shapes":  # generated splits share no image
        lines += [f"val: {_WARNING}{sentence}" for sentence in between_splits(parts.train, parts.val)]
    fed = fed_sentence(parts.train.samples, parts.encoding.image_spec)
    if fed:
        lines.append(f"pictures: {fed}")
    lines += sum_lines(config, dataset)
    lines += term_table(parts.criterion)
    lines += group_table(describe(parts.param_groups))
    lines += switch_notes(config)
    lines += _notes(parts)
    lines += batch_lines(config, sampler, num_ranks=ranks.world_size())
    return lines


def set_lines(config: RunConfig) -> list[str]:
    """Return what the user's files were found to hold, and remarks on their units and tags."""
    record = set_of_run(config).record
    contents = [record.found] if record.found else []
    return [*contents, *record.remarks]


def is_warning(line: str) -> bool:
    """Return whether a line of this module is a warning, which is shown even when the other lines are not."""
    return f": {_WARNING}" in line


def data_lines(name: str, data: SplitData, dataset: DetectionDataset | None = None) -> list[str]:
    """Describe a split for a person.

    Args:
        name: the split, with which each line begins.
        data: the split as it was read.
        dataset: its encoded samples, which add what the limits on objects and length cost.

    Returns:
        A line of counts, a line for each note and warning, and one for each of the first records that are left out.
    """
    counts = [counted(len(data.samples), "image"), counted(data.counts.get("boxes", 0), "box")]
    counts += [f"{data.counts[key]:,} {text}" for key, text in _COUNT_TEXTS.items() if data.counts.get(key)]
    if dataset is not None and dataset.num_capped_objects:
        counts.append(f"{dataset.num_capped_objects:,} objects over data.max_objects are left out, the smallest")
    if dataset is not None and dataset.num_cut_samples:
        counts.append(f"{dataset.num_cut_samples:,} samples lose the end of their target to data.max_length")

    lines = [f"{name}: {'; '.join(counts)}"]
    lines += [f"{name}: {sentence}" for sentence in data.notes]
    lines += [f"{name}: {_WARNING}{sentence}" for sentence in data.warnings]
    if data.rejected:
        shown = data.rejected[:_NUM_REJECTED_SHOWN]
        lines.append(f"{name}: {len(data.rejected):,} records are left out:")
        lines += [f"  {record.where}: {record.reason}" for record in shown]
        if len(data.rejected) > len(shown):
            lines.append(f"  and {len(data.rejected) - len(shown):,} more")
    return lines


def limit_lines(limits: BoxLimits, *, ordering: Ordering) -> list[str]:
    """Return how many boxes are never learnt, and how many never written; nothing if there are none."""
    lines: list[str] = []
    unlearnt_boxes = unlearnt(limits.on_training, ordering=ordering)
    if unlearnt_boxes:
        mark = _WARNING if too_many(limits.on_training) else ""
        lines.append(f"train: {mark}{unlearnt_boxes}")
    unwritten_boxes = unwritten(limits.max_new_tokens)
    if unwritten_boxes:
        mark = _WARNING if too_many([limits.max_new_tokens]) else ""
        lines.append(f"val: {mark}{unwritten_boxes}")
    return lines


def sum_lines(config: RunConfig, dataset: DetectionDataset) -> list[str]:
    """Return what ``lambda_coord`` would be in a loss that sums over tokens and boxes, as the specification's does.

    Ours divides each term by its own units, so the two differ by the number of tokens for each box.
    """
    objective = config.objective
    num_tokens = dataset.num_target_tokens
    num_objects = dataset.num_target_objects
    if not objective.use_geom_loss or not num_objects:
        return []
    lambda_spec = objective.lambda_coord * num_tokens / num_objects
    return [
        f"objective.lambda_coord {objective.lambda_coord:g} of means is lambda_spec {lambda_spec:.3g} of sums: "
        f"{num_tokens:,} supervised tokens / {num_objects:,} objects"
    ]


def term_table(criterion: Criterion) -> list[str]:
    """Return the loss terms that are on, with weight and unit, as aligned lines under a head."""
    on = [weighted for weighted in criterion.terms if weighted.weight > 0]
    rows = [(weighted.term.name, f"{weighted.weight:.4g}", weighted.term.unit.replace("_", " ")) for weighted in on]
    lines = _table(("loss term", "weight", "divided by the number of"), rows, ("left", "right", "left"))
    coordinate_terms = {weighted.term.name for weighted in on if weighted.term.supervises_coordinates()}
    if coordinate_terms == {"gate"}:
        lines.append("only the gate sees coordinates, and it does not say which bin is right")
    return lines


def group_table(groups: Sequence[GroupRow]) -> list[str]:
    """Return the optimizer groups as aligned lines under a head."""
    rows = [
        (
            group.name,
            group.num_tensors,
            f"{group.num_parameters:,}",
            f"{group.learning_rate:.3g}",
            f"{group.weight_decay:.3g}",
            group.note,
        )
        for group in groups
    ]
    head = ("optimizer group", "tensors", "parameters", "lr", "decay", "")
    return _table(head, rows, ("left", "right", "right", "right", "right", "left"))


def _table(head: Sequence[str], rows: Sequence[Sequence[object]], sides: Sequence[str]) -> list[str]:
    return tabulate(rows, head, tablefmt="plain", colalign=sides, disable_numparse=True).splitlines()


def batch_lines(config: RunConfig, sampler: LengthBucketSampler, *, num_ranks: int) -> list[str]:
    """Return how full the batches are, how an epoch ends, and how many epochs a run takes."""
    global_batch_size = config.global_batch_size
    num_samples = len(sampler) - sampler.num_fillers
    steps_per_epoch = math.ceil(num_samples / global_batch_size)
    fill = sampler.fill(config.training.per_device_batch_size)
    an_epoch = (
        f"batches: {fill:.1%} full; {counted(steps_per_epoch, 'step')} of {counted(global_batch_size, 'sample')} "
        "an epoch"
    )
    num_in_last_step = num_samples % global_batch_size
    if num_in_last_step:
        an_epoch += f", the last one of {num_in_last_step:,}"
    num_steps = config.training.num_steps
    num_epochs = round(num_steps / max(1, steps_per_epoch), 3)
    lines = [an_epoch, f"batches: {counted(num_steps, 'step')}, {counted(num_epochs, 'epoch')}"]
    if sampler.num_fillers:
        lines.append(
            f"batches: {counted(sampler.num_fillers, 'filler')} in the last one, for {num_ranks} workers: images "
            "with nothing to learn, not counted; each sample counts once an epoch"
        )
    return lines


def _notes(parts: Components) -> list[str]:
    """Return remarks on settings that may surprise."""
    notes: list[str] = []
    added_ids = parts.encoding.vocab.added_structure_ids
    if active_offset(parts.model) is not None and added_ids:
        ids = ", ".join(map(str, added_ids))
        notes.append(
            f"data.structure spec: the rows of the added object tokens ({ids}) train in the coord-offset adapter"
        )
    dtypes = {p.dtype for p in parts.model.parameters() if p.requires_grad}
    low = sorted(str(dtype).removeprefix("torch.") for dtype in dtypes if dtype != torch.float32)
    if low:
        notes.append(
            f"parameters train in {', '.join(low)}, where small updates round away; set custom.coord_offset.dtype (or, "
            "for full tuning, model.dtype) to float32"
        )
    family = family_of(inner_model(parts.model).config.model_type, where="the model")
    if family.slower:
        notes.append(f"evaluation: {family.slower}")
    return notes
