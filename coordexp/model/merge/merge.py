"""Bake an adapter into its base: a plain Hugging Face checkpoint that anyone can load.

The base is read and written piece by piece; then the logits of adapter and merged checkpoint, both
streamed from disk, are compared on a real sample, and a merge that does not agree leaves nothing.
"""

import contextlib
import tempfile
from collections.abc import Generator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from peft import PeftModel
from torch import Tensor, nn

from coordexp.coord_tokens.codec import NUM_BINS
from coordexp.coord_tokens.offset_adapter import DTypeName, active_offset, inner_model
from coordexp.coord_tokens.vocab import InitMethod, Structure
from coordexp.errors import CheckpointError
from coordexp.files import write_json
from coordexp.model.checkpoint.checkpoint_io import AdapterInfo, read_adapter, save_adapter
from coordexp.model.checkpoint.skeleton import Skeleton
from coordexp.model.expand.expand_files import expand_checkpoint, lacks_tokens
from coordexp.model.merge.merge_files import write_merged
from coordexp.model.merge.merge_report import REPORT_FILE, MergeReport, checked_report
from coordexp.model.merge.merge_target import base_directory, building_of, checked_output
from coordexp.model.merge.merge_weights import AdapterDelta
from coordexp.model.merge.parity import Reference, default_samples, dtype_name
from coordexp.model.processor import Processor
from coordexp.model.progress import Progress, silent
from coordexp.model.quiet import quiet

Sample = Mapping[str, Tensor]


def merge(
    adapter: str | Path,
    output: str | Path,
    base: str | Path | None = None,
    overwrite: bool = False,
    samples: Sequence[Sample] | None = None,
    *,
    dtype: DTypeName = "auto",
    vocab_init: InitMethod = "numeric",
    progress: Progress = silent,
) -> MergeReport:
    """Merge a saved adapter, in the memory of its largest layer in float32.

    Args:
        adapter: directory with ``adapter_model.safetensors``.
        output: directory to write; it appears only if the merge succeeds.
        base: the checkpoint the adapter was trained on; None reads it from ``adapter_config.json``.
        overwrite: replace an ``output`` that exists.
        samples: model inputs to compare on; None for a generated picture with coord tokens.
        dtype: of the result; ``auto`` takes the base's.
        vocab_init: see :func:`coordexp.model.load.load`; only for a base without coord tokens.
        progress: told how far the merge is.

    Returns:
        What was done, also stored as ``merge_report.json`` in ``output``.

    Raises:
        CheckpointError: if an input is wrong, ``output`` exists, or the results do not agree.
        TokenizerError: if the adapter is for another vocabulary.
    """
    info = read_adapter(adapter)
    delta = AdapterDelta.read(info)
    source = base_directory(base or info.base, wanted_by=str(adapter))
    target = checked_output(output, overwrite=overwrite, inputs=(source, info.directory))
    with building_of(target) as building:
        with _with_all_rows(source, info, near=target, vocab_init=vocab_init, progress=progress) as directory:
            processor = Processor.from_directory(directory)
            skeleton = Skeleton.of(directory)
            stored = write_merged(skeleton, delta, building, dtype=dtype, progress=progress)
            # In float32 on both sides, so that what is left is the rounding of the merged weights.
            reference = Reference.of_adapter(
                directory, info, processor, samples or default_samples(processor), progress=progress
            )
        return _finish(building, processor, reference, stored=stored, delta=delta, base=skeleton, progress=progress)


def merge_model(
    model: nn.Module,
    processor: Processor,
    output: str | Path,
    *,
    base: str | Path | None = None,
    overwrite: bool = False,
    samples: Sequence[Sample] | None = None,
) -> MergeReport:
    """Merge a model that is in memory, as at the end of a run; one trained in full is saved as it is.

    The result has the model's dtype. The model keeps its mode, its device and its adapters.

    Args:
        model: a PeftModel or a plain model, in any wrappers.
        processor: written beside the weights.
        output: directory to write; it appears only if the merge succeeds.
        base: the checkpoint ``model`` was loaded from; None reads it from the PEFT configuration.
        overwrite: replace an ``output`` that exists.
        samples: model inputs to compare on; None for a generated picture with coord tokens.

    Returns:
        What was done, also stored as ``merge_report.json`` in ``output``.

    Raises:
        CheckpointError: as :func:`merge`.
    """
    peft = next((module for module in model.modules() if isinstance(module, PeftModel)), None)
    inner = inner_model(model)
    dtype = dtype_name(inner.dtype)
    chosen = samples or default_samples(processor)
    if peft is None:
        if active_offset(inner) is not None:
            raise CheckpointError("coord offsets are merged from a PEFT model only; wrap the model with apply_tuning")
        with building_of(checked_output(output, overwrite=overwrite, inputs=())) as building:
            with quiet():
                inner.save_pretrained(building)
            return _finish(building, processor, Reference.of(inner, chosen), stored=dtype)
    with tempfile.TemporaryDirectory(prefix="coordexp_adapter.") as scratch:
        save_adapter(peft, scratch)
        info = read_adapter(scratch)
        delta = AdapterDelta.read(info)
        source = base_directory(base or info.base, wanted_by="the model")
        if inner.dtype == torch.float32:
            reference = Reference.of(peft, chosen)
        else:  # in half precision the rounding of activations would hide what the merge did, or look like it
            reference = Reference.of_adapter(source, info, processor, chosen)
    with building_of(checked_output(output, overwrite=overwrite, inputs=(source,))) as building:
        skeleton = Skeleton.of(source)
        write_merged(skeleton, delta, building, dtype=dtype, base_dtype=dtype)
        return _finish(building, processor, reference, stored=dtype, delta=delta, base=skeleton)


def _finish(
    building: Path,
    processor: Processor,
    reference: Reference,
    *,
    stored: str,
    delta: AdapterDelta | None = None,
    base: Skeleton | None = None,
    progress: Progress = silent,
) -> MergeReport:
    processor.save_pretrained(building)
    report = checked_report(
        reference.against(building, stored=stored, progress=progress),
        dtype=stored,
        num_merged_layers=0 if delta is None else len(delta.linear),
        num_offset_rows=0 if delta is None else delta.num_offset_rows,
        num_unused_weights=0 if base is None else len(base.unused),
    )
    write_json(building / REPORT_FILE, asdict(report), indent=2)
    return report


@contextlib.contextmanager
def _with_all_rows(
    base: Path, info: AdapterInfo, *, near: Path, vocab_init: InitMethod, progress: Progress
) -> Generator[Path]:
    """Yield the base, or an expanded copy beside the output if it lacks the tokens that the adapter adds to."""
    offset = info.offset
    structure: Structure = "spec" if offset is not None and offset.num_ids > NUM_BINS else "native"
    if offset is None or not lacks_tokens(Processor.from_directory(base).tokenizer, structure):
        yield base
        return
    with tempfile.TemporaryDirectory(prefix=f".{near.name}.base.", dir=near.parent) as scratch:
        expand_checkpoint(base, Path(scratch), init=vocab_init, structure=structure, link=True, progress=progress)
        yield Path(scratch)
