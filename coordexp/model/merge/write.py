"""Write a merged checkpoint piece by piece: every weight of the base, with the adapter's part added."""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from coordexp.coord_tokens.offset_adapter import DTypeName
from coordexp.errors import CheckpointError
from coordexp.model.checkpoint.empty_model import EMBEDDING, HEAD
from coordexp.model.checkpoint.rewrite import write_config, write_weights
from coordexp.model.checkpoint.stored_model import StoredModel
from coordexp.model.merge.delta import AdapterDelta
from coordexp.model.progress import Progress, silent

STAGE = "writing shards"


def write_merged(
    base: StoredModel,
    delta: AdapterDelta,
    output: Path,
    *,
    dtype: DTypeName = "auto",
    base_dtype: DTypeName = "auto",
    progress: Progress = silent,
) -> str:
    """Write config and weights of ``base`` with ``delta`` baked in.

    A tied base stays tied unless the adapter has a head table of its own: then ``lm_head.weight`` is written
    next to the embedding and the configuration says so. Tensors that the model has no place for stay behind.

    Args:
        base: the checkpoint, its headers checked.
        delta: what to add.
        output: an existing directory.
        dtype: of the weights written; ``auto`` keeps each one's own.
        base_dtype: what the base was rounded to when the adapter was trained; ``auto`` for as stored.
        progress: called with the bytes written.

    Returns:
        The dtype of the embedding written, by name.

    Raises:
        CheckpointError: if the adapter is for another base, or a merged weight is not finite.
        ResourceError: if the disk is too small.
        OSError: as the disk says.
    """
    delta.check_fits(base)
    stored = base.weights
    specs = {name: stored.specs[name].cast_to(dtype) for name in base.shapes}
    unties = base.tied and delta.unties_head
    if unties:
        specs[HEAD] = specs[EMBEDDING]

    def pieces(name: str) -> Iterator[Tensor]:
        source = EMBEDDING if name == HEAD and unties else name
        rounded = stored.specs[source].cast_to(base_dtype).dtype
        for start, rows in stored.pieces(source):
            merged = delta.apply(name, rows.to(rounded), start)
            written = merged.to(specs[name].dtype)
            # What is written as it is stored is the base's own affair; what was computed must be a number.
            if written is not rows and written.is_floating_point() and not torch.isfinite(written).all():
                raise CheckpointError(f"{name}: the merged weight does not fit {specs[name].dtype_name}")
            yield written

    write_weights(base, output, specs, pieces, changed=delta.changes, progress=progress, stage=STAGE)
    write_config(base, output, specs, tied=base.tied and not unties, says_dtype=True)
    return specs[EMBEDDING].dtype_name
