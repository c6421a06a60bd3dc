"""Bake an adapter into its base: a plain Hugging Face checkpoint that anyone can load.

The base is read and written shard by shard; then the logits of adapter and merged checkpoint are
compared on a real sample, and a merge that does not agree leaves nothing behind.
"""

import contextlib
import tempfile
from collections.abc import Generator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from peft import PeftModel
from safetensors import SafetensorError
from torch import Tensor, nn

from coordexp.coord_tokens.codec import NUM_BINS
from coordexp.coord_tokens.offset_adapter import DTypeName, active_offset, inner_model
from coordexp.coord_tokens.vocab import InitMethod, expand_vocab
from coordexp.errors import CheckpointError
from coordexp.files import replace_directory, write_json
from coordexp.model.checkpoint_io import AdapterInfo, check_config, find_checkpoint, read_adapter, save_adapter
from coordexp.model.embedded import EMBEDDED, TINY_BASE
from coordexp.model.load import load
from coordexp.model.merge_files import is_tied, num_rows, write_merged
from coordexp.model.merge_weights import AdapterDelta
from coordexp.model.parity import Agreement, Reference, default_samples, dtype_name
from coordexp.model.processor import Processor
from coordexp.model.quiet import quiet

REPORT_FILE = "merge_report.json"

Sample = Mapping[str, Tensor]


@dataclass(frozen=True)
class MergeReport:
    """What a merge did.

    Attributes:
        max_abs_logit_diff: largest difference of a logit, model against merged checkpoint.
        tolerance: what it had to stay below.
        max_abs_logit: the largest logit, for scale.
        tie_word_embeddings: whether the result shares embedding and head.
        dtype: of the result's weights.
        num_merged_layers: linear layers that changed.
        num_offset_rows: embedding rows that changed.
    """

    max_abs_logit_diff: float
    tolerance: float
    max_abs_logit: float
    tie_word_embeddings: bool
    dtype: str
    num_merged_layers: int
    num_offset_rows: int


def merge(
    adapter: str | Path,
    output: str | Path,
    base: str | Path | None = None,
    overwrite: bool = False,
    samples: Sequence[Sample] | None = None,
    *,
    dtype: DTypeName = "auto",
    vocab_init: InitMethod = "numeric",
) -> MergeReport:
    """Merge a saved adapter.

    Args:
        adapter: directory with ``adapter_model.safetensors``.
        output: directory to write; it appears only if the merge succeeds.
        base: the checkpoint the adapter was trained on; None reads it from ``adapter_config.json``.
        overwrite: replace an ``output`` that exists.
        samples: model inputs to compare on; None for a generated picture with coord tokens.
        dtype: of the result; ``auto`` takes the base's.
        vocab_init: see :func:`coordexp.model.load.load`; only for a base without coord tokens.

    Returns:
        What was done, also stored as ``merge_report.json`` in ``output``.

    Raises:
        CheckpointError: if an input is wrong, ``output`` exists, or the results do not agree.
    """
    info = read_adapter(adapter)
    delta = AdapterDelta.read(info)
    source = _base_directory(base or info.base, wanted_by=str(adapter))
    target = _checked_output(output, overwrite=overwrite, inputs=(source, info.directory))
    with _with_all_rows(source, info, vocab_init=vocab_init) as directory:
        # In float32 on both sides, so that what is left is the rounding of the merged weights.
        loaded = load(directory, info.directory, dtype="float32")
        reference = Reference.of(loaded.model, samples or default_samples(loaded.processor))
        processor = loaded.processor
        del loaded  # two models at once would double the memory
        with _target(target) as building:
            stored = write_merged(directory, delta, building, dtype=dtype)
            return _finish(building, processor, reference, stored=stored, delta=delta)


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
    reference = Reference.of(inner if peft is None else peft, samples or default_samples(processor))
    if peft is None:
        if active_offset(inner) is not None:
            raise CheckpointError("coord offsets are merged from a PEFT model only; wrap the model with apply_tuning")
        with _target(_checked_output(output, overwrite=overwrite, inputs=())) as building:
            with quiet():
                inner.save_pretrained(building)
            return _finish(building, processor, reference, stored=dtype, delta=None)
    with tempfile.TemporaryDirectory(prefix="coordexp_adapter.") as scratch:
        save_adapter(peft, scratch)
        info = read_adapter(scratch)
        delta = AdapterDelta.read(info)
    source = _base_directory(base or info.base, wanted_by="the model")
    with _target(_checked_output(output, overwrite=overwrite, inputs=(source,))) as building:
        write_merged(source, delta, building, dtype=dtype)
        return _finish(building, processor, reference, stored=dtype, delta=delta)


def _finish(
    building: Path, processor: Processor, reference: Reference, *, stored: str, delta: AdapterDelta | None
) -> MergeReport:
    processor.save_pretrained(building)
    agreement = reference.against(building, stored=stored)
    # transformers unties, with a warning, what differs; other readers of the file believe the configuration.
    if is_tied(check_config(building)) and not agreement.tie_word_embeddings:
        raise CheckpointError("the merged checkpoint says tie_word_embeddings: true, but loads with two tables")
    if not agreement.holds:
        raise CheckpointError(_disagreement(agreement))
    offset = None if delta is None else delta.offset
    report = MergeReport(
        max_abs_logit_diff=agreement.max_abs_diff,
        tolerance=agreement.tolerance,
        max_abs_logit=agreement.max_abs_logit,
        tie_word_embeddings=agreement.tie_word_embeddings,
        dtype=stored,
        num_merged_layers=0 if delta is None else len(delta.linear),
        num_offset_rows=0 if offset is None else offset.ids.numel(),
    )
    write_json(building / REPORT_FILE, asdict(report), indent=2)
    return report


def _disagreement(agreement: Agreement) -> str:
    return (
        f"the merged checkpoint disagrees with the model by {agreement.max_abs_diff:.3g} in a logit (tolerance "
        f"{agreement.tolerance:.3g}); nothing was written. Is the base the one that the adapter was trained on?"
    )


@contextlib.contextmanager
def _target(output: Path) -> Generator[Path]:
    try:
        with replace_directory(output) as building:
            yield building
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{output}: the merged checkpoint cannot be written ({error})") from None


@contextlib.contextmanager
def _with_all_rows(base: Path, info: AdapterInfo, *, vocab_init: InitMethod) -> Generator[Path]:
    """Yield the base, or an expanded copy if it lacks the rows that the adapter adds to."""
    offset = info.offset
    if offset is None or offset.coord_ids is None or max(offset.coord_ids) < num_rows(base):
        yield base
        return
    with tempfile.TemporaryDirectory(prefix="coordexp_base.") as scratch:
        loaded = load(base)
        structure = "spec" if offset.num_ids > NUM_BINS else "native"
        expand_vocab(inner_model(loaded.model), loaded.processor.tokenizer, init=vocab_init, structure=structure)
        with quiet():
            loaded.model.save_pretrained(scratch)
        loaded.processor.save_pretrained(scratch)
        del loaded
        yield Path(scratch)


def _base_directory(source: str | Path | None, *, wanted_by: str) -> Path:
    if source is None:
        raise CheckpointError(f"{wanted_by} does not name its base; give the base checkpoint")
    return find_checkpoint(TINY_BASE if str(source) == EMBEDDED else source)


def _checked_output(output: str | Path, *, overwrite: bool, inputs: Sequence[Path]) -> Path:
    target = Path(output).expanduser().absolute()
    if any(target.resolve() == path.resolve() for path in inputs):
        raise CheckpointError(f"{output}: is an input of the merge; expected another directory")
    if not target.exists():
        return target
    if not overwrite:
        raise CheckpointError(f"{output}: exists; give another directory, or overwrite it on purpose (--overwrite)")
    if not target.is_dir() or (any(target.iterdir()) and not (target / "config.json").is_file()):
        raise CheckpointError(f"{output}: holds something else than a checkpoint; it is not overwritten")
    return target
