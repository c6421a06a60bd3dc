"""What a run says when it starts: what trains, in which optimizer groups, and what may surprise."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from coordexp.coord_tokens.offset_adapter import active_offset
from coordexp.data.batches.dataset import DetectionDataset
from coordexp.data.summary import data_lines
from coordexp.files import write_json
from coordexp.model.param_groups import GroupRow, describe
from coordexp.runs.folder import RunFolder
from coordexp.train.setup.components import Components


def start_lines(parts: Components, dataset: DetectionDataset) -> list[str]:
    """Return the summary of a run's parts and data, with the table of optimizer groups.

    Args:
        parts: of the run.
        dataset: its encoded training samples.
    """
    model = parts.model
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    total = sum(p.numel() for p in model.parameters())
    data = [*data_lines("train", parts.train, dataset), *data_lines("val", parts.val)]
    summary = f"starts: {trainable:,} of {total:,} parameters train"
    return [summary, *data, *group_table(describe(parts.param_groups)), *_notes(parts)]


def group_table(rows: Sequence[GroupRow]) -> list[str]:
    """Return the optimizer groups as aligned lines under a head."""
    width = max(len("optimizer group"), *(len(row.name) for row in rows))
    head = f"{'optimizer group':<{width}}  tensors   parameters         lr      decay"
    lines = [
        f"{row.name:<{width}}  {row.num_tensors:>7}  {row.num_parameters:>11,}  {row.learning_rate:>9.3g}"
        f"  {row.weight_decay:>9.3g}" + (f"  {row.note}" if row.note else "")
        for row in rows
    ]
    return [head, *lines]


def write_param_groups(parts: Components, run_dir: Path) -> None:
    """Keep the table of optimizer groups beside the run's configuration."""
    write_json(RunFolder(run_dir).param_groups, [asdict(row) for row in describe(parts.param_groups)], indent=2)


def _notes(parts: Components) -> list[str]:
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
    return notes
