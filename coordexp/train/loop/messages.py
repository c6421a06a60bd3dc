"""The lines a run prints at its start: what trains, and on what."""

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
    """Return what a run prints when it starts: strategy, parameters, data, optimizer groups, batches."""
    trainable = sum(p.numel() for p in parts.model.parameters() if p.requires_grad)
    total = sum(p.numel() for p in parts.model.parameters())
    warnings = [] if config.data.format == "shapes" else between_splits(parts.train, parts.val)
    fed = fed_sentence(parts.train.samples, parts.encoding.image_spec)
    return [
        f"starts: {strategy_line(config)}",
        f"starts: {trainable:,} of {total:,} parameters train",
        *(f"data: {sentence}" for sentence in set_lines(config)),
        *data_lines("train", parts.train, dataset),
        *data_lines("val", parts.val),
        *limit_lines(limits, ordering=config.data.ordering),
        *(f"val: {_WARNING}{sentence}" for sentence in warnings),
        *([f"pictures: {fed}"] if fed else []),
        *sum_lines(config, dataset),
        *term_table(parts.criterion),
        *group_table(describe(parts.param_groups)),
        *switch_notes(config),
        *_notes(parts),
        *batch_lines(config, sampler, num_ranks=ranks.world_size()),
    ]


def set_lines(config: RunConfig) -> list[str]:
    """Return what the user's files were found to hold, and what was remarked of units and tags."""
    record = set_of_run(config).record
    return [*([record.found] if record.found else []), *record.remarks]


def is_warning(line: str) -> bool:
    """Return whether one of these lines warns, so that it is shown where the others are not."""
    return f": {_WARNING}" in line


def data_lines(name: str, data: SplitData, dataset: DetectionDataset | None = None) -> list[str]:
    """Return lines for a person: one that counts, one a warning, one for each of the first records left out.

    The encoded samples add what the limits on objects and length cost.
    """
    parts = [counted(len(data.samples), "image"), counted(data.counts.get("boxes", 0), "box")]
    parts += [f"{data.counts[key]:,} {text}" for key, text in _COUNT_TEXTS.items() if data.counts.get(key)]
    if dataset is not None:
        limits = {
            "objects over data.max_objects are left out, the smallest": dataset.num_capped_objects,
            "samples lose the end of their target to data.max_length": dataset.num_cut_samples,
        }
        parts += [f"{number:,} {text}" for text, number in limits.items() if number]
    lines = [f"{name}: {'; '.join(parts)}"]
    lines += [f"{name}: {sentence}" for sentence in data.notes]
    lines += [f"{name}: {_WARNING}{sentence}" for sentence in data.warnings]
    if data.rejected:
        shown = data.rejected[:_NUM_REJECTED_SHOWN]
        lines.append(f"{name}: {len(data.rejected):,} records are left out:")
        lines += [f"  {record.where}: {record.reason}" for record in shown]
        lines += [f"  and {len(data.rejected) - len(shown):,} more"] if len(data.rejected) > len(shown) else []
    return lines


def limit_lines(limits: BoxLimits, *, ordering: Ordering) -> list[str]:
    """Return how many boxes are never learnt or never written; nothing where every box is."""
    said = {
        "train": (unlearnt(limits.on_training, ordering=ordering), too_many(limits.on_training)),
        "val": (unwritten(limits.max_new_tokens), too_many([limits.max_new_tokens])),
    }
    return [f"{split}: {_WARNING if grave else ''}{text}" for split, (text, grave) in said.items() if text]


def sum_lines(config: RunConfig, dataset: DetectionDataset) -> list[str]:
    """Return what ``lambda_coord`` is in a loss that adds up over tokens and boxes, as the specification's does."""
    objective, tokens, objects = config.objective, dataset.num_target_tokens, dataset.num_target_objects
    if not objective.use_geom_loss or not objects:
        return []
    return [
        f"objective.lambda_coord {objective.lambda_coord:g} of means is lambda_spec "
        f"{objective.lambda_coord * tokens / objects:.3g} of sums: {tokens:,} supervised tokens / {objects:,} objects"
    ]


def term_table(criterion: Criterion) -> list[str]:
    """Return the loss terms that are on, with weight and unit, as aligned lines under a head."""
    on = [weighted for weighted in criterion.terms if weighted.weight > 0]
    rows = [(one.term.name, f"{one.weight:.4g}", one.term.unit.replace("_", " ")) for one in on]
    lines = _table(("loss term", "weight", "divided by the number of"), rows, ("left", "right", "left"))
    if {weighted.term.name for weighted in on if weighted.term.supervises_coordinates()} == {"gate"}:
        lines.append("only the gate sees coordinates, and it does not say which bin is right")
    return lines


def group_table(rows: Sequence[GroupRow]) -> list[str]:
    """Return the optimizer groups as aligned lines under a head."""
    cells = [
        (
            one.name,
            one.num_tensors,
            f"{one.num_parameters:,}",
            f"{one.learning_rate:.3g}",
            f"{one.weight_decay:.3g}",
            one.note,
        )
        for one in rows
    ]
    head = ("optimizer group", "tensors", "parameters", "lr", "decay", "")
    return _table(head, cells, ("left", *["right"] * 4, "left"))


def _table(head: Sequence[str], rows: Sequence[Sequence[object]], sides: Sequence[str]) -> list[str]:
    return tabulate(rows, head, tablefmt="plain", colalign=sides, disable_numparse=True).splitlines()


def batch_lines(config: RunConfig, sampler: LengthBucketSampler, *, num_ranks: int) -> list[str]:
    """Return how full the batches are and how an epoch ends."""
    size, num_steps = config.training.per_device_batch_size, config.training.num_steps
    global_batch_size = config.global_batch_size
    num = len(sampler) - sampler.num_fillers
    steps = -(-num // global_batch_size)
    lines = [
        f"batches: {sampler.fill(size):.1%} full; {counted(steps, 'step')} of {counted(global_batch_size, 'sample')} "
        "an epoch"
    ]
    if num % global_batch_size:
        lines[0] += f", the last one of {num % global_batch_size:,}"
    lines.append(f"batches: {counted(num_steps, 'step')}, {counted(round(num_steps / max(1, steps), 3), 'epoch')}")
    if sampler.num_fillers:
        lines.append(
            f"batches: {counted(sampler.num_fillers, 'filler')} in the last one, for {num_ranks} workers: images "
            "with nothing to learn, not counted; each sample counts once an epoch"
        )
    return lines


def _notes(parts: Components) -> list[str]:
    """Return remarks on settings that may surprise."""
    adapter, vocab = active_offset(parts.model), parts.encoding.vocab
    notes: list[str] = []
    if adapter is not None and vocab.added_structure_ids:
        ids = ", ".join(map(str, vocab.added_structure_ids))
        notes.append(
            f"data.structure spec: the rows of the added object tokens ({ids}) train in the coord-offset adapter"
        )
    low = {str(p.dtype)[6:] for p in parts.model.parameters() if p.requires_grad and p.dtype != torch.float32}
    if low:
        notes.append(
            f"parameters train in {', '.join(sorted(low))}, where small updates round away; set "
            "custom.coord_offset.dtype (or, for full tuning, model.dtype) to float32"
        )
    family = family_of(inner_model(parts.model).config.model_type, where="the model")
    return [*notes, *([f"evaluation: {family.slower}"] if family.slower else [])]
