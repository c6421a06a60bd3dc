"""Bake an adapter into its base: a plain Hugging Face checkpoint that anyone can load.

The base is read and written one shard at a time. Then stock transformers loads the result, and each of its weights is
compared with base plus adapter (``proof.py``). If one differs, nothing is left behind.
"""

import contextlib
import tempfile
from collections.abc import Generator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch
from peft import PeftModel
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import PreTrainedModel

from coordexp.coord_tokens.offset_adapter import DTYPES, DTypeName, active_offset, inner_model
from coordexp.coord_tokens.vocab import InitMethod, added_tokens
from coordexp.errors import CheckpointError
from coordexp.files import replace_directory, write_json
from coordexp.model.checkpoint.adapter import (
    AdapterInfo,
    TrainedBase,
    named_base,
    naming_the_adapter,
    read_adapter,
    save_adapter,
)
from coordexp.model.checkpoint.directory import CONFIG_FILE, find_checkpoint, is_hub_id
from coordexp.model.checkpoint.rewrite import write_config, write_weights
from coordexp.model.checkpoint.stored_model import (
    EMBEDDING,
    HEAD,
    StoredModel,
    empty_model,
    has_tied_head,
    load_stock,
    quiet,
)
from coordexp.model.checkpoint.trained_with import TRAINED_WITH, TrainedWith
from coordexp.model.checkpoint.weights import StoredWeights
from coordexp.model.expand import cast_checkpoint, expand_checkpoint
from coordexp.model.loading import load, load_adapter
from coordexp.model.merging.card import TrainingFacts, write_card
from coordexp.model.merging.delta import AdapterDelta
from coordexp.model.merging.proof import Inputs, MergeReport, answer_logits, default_samples, prove_weights
from coordexp.model.processor import Processor
from coordexp.stages import ReportStage, report_stage

_MERGED = "the merged checkpoint"
_BothLogits = tuple[list[Tensor], list[Tensor]]  # logits of the base, and of the base with its adapter


def merge(
    adapter: str | Path,
    output: str | Path,
    base: str | Path | None = None,
    overwrite: bool = False,
    *,
    dtype: DTypeName = "auto",
    vocab_init: InitMethod | None = None,
    progress: ReportStage = report_stage,
) -> MergeReport:
    """Merge a saved adapter. Memory holds the model once, in the dtype of the result.

    Args:
        adapter: directory with ``adapter_model.safetensors``.
        output: directory to write; it appears only if the merge succeeds.
        base: the checkpoint that the adapter was trained on; None reads it from ``adapter_config.json``.
        overwrite: whether an ``output`` that exists is replaced.
        dtype: dtype of the result; ``auto`` for the one that the adapter was trained on.
        vocab_init: see :func:`coordexp.model.loading.load`; only for a base without coord tokens.
        progress: called with the stage and how far it is.

    Returns:
        What was done, which is also in ``merge_report.json`` of ``output``.

    Raises:
        CheckpointError: if an input is wrong, ``output`` exists, or a merged weight is not base plus adapter.
        TokenizerError: if the adapter is for another vocabulary.
        ResourceError: if the disk is too small.
    """
    info = read_adapter(adapter)
    source = _base_of(info, base)
    target = _checked_output(output, overwrite=overwrite, inputs=(source, info.directory))
    trained = info.base if vocab_init is None else replace(info.base, vocab_init=vocab_init)
    with (
        _building_of(target) as building,
        _as_trained_on(source, trained, near=target, progress=progress) as directory,
    ):
        AdapterDelta.read(info).check_fits(StoredModel.of_headers(directory))
        progress("logits of the adapter", 0, 1)
        adapted = load(directory, info.directory, dtype=dtype)
        samples = default_samples(adapted.processor)
        logits_before = _logits_of_both(adapted.model, samples)
        nn.Module.to(adapted.model, "meta")  # frees its weights before the merged model is loaded
        # The base on disk has the dtype of training by now, so nothing is left to round.
        report = _merge(
            info, directory, building, samples, logits_before, dtype=dtype, base_dtype="auto", progress=progress
        )
        write_card(building, _facts_of(info, base), report)
        return report


def merge_model(
    model: nn.Module,
    processor: Processor,
    output: str | Path,
    *,
    base: str | Path | None = None,
    overwrite: bool = False,
    samples: Sequence[Inputs] | None = None,
    trained_with: TrainedWith | None = None,
    facts: TrainingFacts | None = None,
    gives_up: bool = False,
) -> MergeReport:
    """Merge a model that is in memory, as at the end of a run. A model trained in full is saved as it is.

    The adapter is saved and merged on disk. The result has the model's dtype, and is loaded on the model's device to be
    compared with it. The model keeps its mode, its device and its adapters.

    Args:
        model: in any wrappers.
        processor: written beside a model trained in full; an adapter names its own base, which has one.
        output: directory to write; it appears only if the merge succeeds.
        base: the checkpoint that the model was loaded from; None reads it from the PEFT configuration.
        overwrite: whether an ``output`` that exists is replaced.
        samples: model inputs on which to measure what rounding loses; None for one generated picture.
        trained_with: written beside a model trained in full; an adapter has it in its configuration.
        facts: what the result's card says of the training; None for what the adapter says.
        gives_up: whether to free the weights of an adapted model once its logits are known, so that memory never holds
            two models. The model is of no use afterwards.

    Returns:
        What was done, which is also in ``merge_report.json`` of ``output``.

    Raises:
        CheckpointError: as :func:`merge`.
    """
    peft = next((module for module in model.modules() if isinstance(module, PeftModel)), None)
    inner = inner_model(model)
    if peft is None:
        with _building_of(_checked_output(output, overwrite=overwrite, inputs=())) as building:
            report = _save_whole(inner, processor, building, trained_with)
            write_card(building, facts or TrainingFacts(trained_with=trained_with), report)
            return report
    dtype = _name_of_dtype(inner)
    device = inner.device
    samples = samples or default_samples(processor)
    logits_before = _logits_of_both(peft, samples)
    with tempfile.TemporaryDirectory(prefix="coordexp_adapter.") as scratch:
        save_adapter(peft, scratch)
        info = read_adapter(scratch)
        source = _base_of(info, base)
        if gives_up:
            nn.Module.to(model, "meta")
        with _building_of(_checked_output(output, overwrite=overwrite, inputs=(source,))) as building:
            report = _merge(
                info, source, building, samples, logits_before, dtype=dtype, base_dtype=dtype, device=device
            )
            write_card(building, facts or _facts_of(info, base), report)
            return report


def _facts_of(info: AdapterInfo, base: str | Path | None) -> TrainingFacts:
    """Return what an adapter says about its training. If ``base`` is another path than it names, both are in it."""
    named_base = info.base.path or ""
    used_base = named_base if base is None else str(base)
    is_named = used_base == named_base
    return TrainingFacts(
        base=used_base,
        named_base="" if is_named else named_base,
        revision=info.base.revision if is_named else None,
        structure=info.base.structure,
        trained_with=info.trained_with,
    )


def _merge(
    info: AdapterInfo,
    base: Path,
    building: Path,
    samples: Sequence[Inputs],
    logits_before: _BothLogits,
    *,
    dtype: DTypeName,
    base_dtype: DTypeName,
    device: torch.device | str = "cpu",
    progress: ReportStage = report_stage,
) -> MergeReport:
    """Write the merged checkpoint, load it with stock transformers, prove it, and describe it.

    Args:
        info: the adapter.
        base: folder of the base, which has every row that the adapter adds to.
        building: folder to write.
        samples: model inputs on which to measure what rounding loses.
        logits_before: logits of base and adapter on the samples.
        dtype: dtype of the result.
        base_dtype: dtype that the base was rounded to in training; ``auto`` if it was left as stored.
        device: where the merged model answers the samples.
        progress: called with the stage and how far it is.
    """
    delta = AdapterDelta.read(info)
    stored = StoredModel.of(base)
    processor = Processor.from_directory(base)  # a fresh one, because a tokenizer saves how it padded last
    dtype_name = _write_merged(stored, delta, building, dtype=dtype, base_dtype=base_dtype, progress=progress)
    _save_processor(processor, building, info.trained_with)
    progress("comparing weights", 0, 1)
    merged = _as_others_load_it(building)
    adapted = load_adapter(_weightless(stored), processor, info, trainable=False)
    proof = prove_weights(merged, stored, adapted, trained=DTYPES.get(base_dtype))
    report = MergeReport(
        dtype=dtype_name,
        tie_word_embeddings=stored.tied and not delta.unties_head,
        num_merged_layers=len(delta.linear),
        num_offset_rows=0 if delta.offset is None else delta.offset.ids.numel(),
        num_unused_weights=len(stored.unused),
        left_behind=stored.left_behind,
        template=processor.template_arguments,
        ties_fraction=proof.num_ties / max(1, proof.num_compared),
        lost_at_weights=proof.lost(),
    )
    # Without room for the merged model on the device, the report has no logits. The proof of the weights stands.
    with contextlib.suppress(torch.OutOfMemoryError):
        nn.Module.to(merged, device)
        report = report.with_logits(*logits_before, answer_logits(merged, samples))
    report.write(building)
    progress("comparing weights", 1, 1)
    return report


def _write_merged(
    base: StoredModel,
    delta: AdapterDelta,
    output: Path,
    *,
    dtype: DTypeName,
    base_dtype: DTypeName,
    progress: ReportStage,
) -> str:
    """Write config and weights of ``base`` with ``delta`` baked in, and return the dtype of the embedding.

    A tied base stays tied unless the adapter has offsets of its own for the head. Then ``lm_head.weight`` is written
    beside the embedding, and the configuration says so. Tensors that the model has no place for are left out.

    Args:
        base: the checkpoint of the base.
        delta: what the adapter changes.
        output: folder to write.
        dtype: dtype of the result.
        base_dtype: dtype that the base was rounded to in training; ``auto`` if it was left as stored.
        progress: called with the stage, the bytes written, and all bytes.
    """
    delta.check_fits(base)
    stored = base.weights
    specs = {name: stored.specs[name].cast_to(dtype) for name in base.shapes}
    unties = base.tied and delta.unties_head
    if unties:
        specs[HEAD] = specs[EMBEDDING]

    def make(name: str) -> Tensor:
        name_in_base = EMBEDDING if name == HEAD and unties else name
        # First the dtype that training saw, then that of the result: the delta belongs to the rounded weight.
        dtype_in_training = stored.specs[name_in_base].cast_to(base_dtype).dtype
        base_weight = stored.read(name_in_base).to(dtype_in_training)
        return delta.apply(name, base_weight, specs[name].dtype)

    write_weights(base, output, specs, make, changed=delta.changes, progress=progress, stage="writing shards")
    write_config(base, output, specs, tied=base.tied and not unties, says_dtype=True)
    return specs[EMBEDDING].dtype_name


def _save_whole(
    model: PreTrainedModel, processor: Processor, building: Path, trained_with: TrainedWith | None
) -> MergeReport:
    """Save a model without adapters, and compare its weights with the saved ones."""
    if active_offset(model) is not None:
        raise CheckpointError("coord offsets are merged from a PEFT model only; wrap the model with apply_tuning")
    with quiet():
        model.save_pretrained(building)
    _save_processor(processor, building, trained_with)
    saved = _as_others_load_it(building)
    weights = model.state_dict()
    for name, tensor in saved.state_dict().items():
        if not torch.equal(tensor, weights[name].cpu()):
            raise CheckpointError(f"{_MERGED}: {name} differs from the model's")
    report = MergeReport(
        dtype=_name_of_dtype(model),
        tie_word_embeddings=has_tied_head(saved),
        template=processor.template_arguments,
        is_whole=True,
    )
    report.write(building)
    return report


def _logits_of_both(adapted: nn.Module, samples: Sequence[Inputs]) -> _BothLogits:
    """Return the logits of the base, and of the base with its adapter."""
    assert isinstance(adapted, PeftModel)
    with adapted.disable_adapter():
        base = answer_logits(adapted, samples)
    return base, answer_logits(adapted, samples)


def _as_others_load_it(directory: Path) -> PreTrainedModel:
    """Return the merged checkpoint as stock transformers loads it, or raise if it holds anything beside its model."""
    stored = StoredModel.of(directory, title=_MERGED)
    if stored.unused:
        raise CheckpointError(f"{_MERGED}: {len(stored.unused)} weights are unexpected, e.g. {stored.unused[0]}")
    return load_stock(directory, dtype="auto")[0]


def _weightless(stored: StoredModel) -> PreTrainedModel:
    """Return a model on which PEFT can put an adapter. Each weight is a single zero, expanded to its shape.

    Only the adapter's own tensors are read from it, and a second copy of the base would double the memory.
    """
    model = empty_model(stored.config, dtype=torch.float32)
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            zeros = torch.zeros((), dtype=parameter.dtype).expand(parameter.shape)
            setattr(module, name, nn.Parameter(zeros, requires_grad=False))
    model.tie_weights()
    return model


def _save_processor(processor: Processor, building: Path, trained_with: TrainedWith | None) -> None:
    """Save a processor with the image sizes of training, and ``trained_with.json``."""
    if trained_with is not None:
        processor = processor.with_limits(min_pixels=trained_with.min_pixels, max_pixels=trained_with.max_pixels)
        write_json(building / TRAINED_WITH, asdict(trained_with), indent=2)
    processor.save_pretrained(building)


def _name_of_dtype(model: PreTrainedModel) -> DTypeName:
    """Return the name of a model's dtype, or raise a CheckpointError if no configuration can name it."""
    for name in ("float32", "bfloat16", "float16"):
        if model.dtype == DTYPES[name]:
            return name
    raise CheckpointError(f"weights are {model.dtype}; expected float32, bfloat16 or float16")


def _base_of(adapter: AdapterInfo, base: str | Path | None) -> Path:
    """Return the directory of ``base``, or if that is None, of the base that the adapter names."""
    if base is not None:
        return find_checkpoint(base)
    named = named_base(adapter.directory)
    if not is_hub_id(named):
        return find_checkpoint(named, revision=adapter.base.revision)
    with naming_the_adapter(adapter):
        return find_checkpoint(named, revision=adapter.base.revision)


def _checked_output(output: str | Path, *, overwrite: bool, inputs: Sequence[Path]) -> Path:
    """Return the absolute path of an output.

    Raises:
        CheckpointError: if it exists and may not be overwritten; or if it is, contains or is inside an input, which
            replacing the output would delete.
    """
    target = Path(output).expanduser().absolute()
    resolved_target = target.resolve()
    for path in inputs:
        resolved_input = path.resolve()
        relation = None
        if resolved_target == resolved_input:
            relation = "is"
        elif resolved_input in resolved_target.parents:
            relation = f"lies inside {path},"
        elif resolved_target in resolved_input.parents:
            relation = f"holds {path},"
        if relation is not None:
            raise CheckpointError(f"{output}: {relation} an input of the merge; expected another directory")
    if not target.exists():
        return target
    if not overwrite:
        raise CheckpointError(f"{output}: exists; give another directory, or overwrite it on purpose (--overwrite)")
    is_checkpoint = (target / CONFIG_FILE).is_file()
    if not target.is_dir() or (any(target.iterdir()) and not is_checkpoint):
        raise CheckpointError(f"{output}: holds something else than a checkpoint; it is not overwritten")
    return target


@contextlib.contextmanager
def _building_of(output: Path) -> Generator[Path]:
    """Yield a folder that becomes ``output`` if the block raises nothing."""
    try:
        with replace_directory(output) as building:
            yield building
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{output}: the merged checkpoint cannot be written ({error})") from None


@contextlib.contextmanager
def _as_trained_on(base: Path, trained: TrainedBase, *, near: Path, progress: ReportStage) -> Generator[Path]:
    """Yield the base as training had it.

    That is ``base`` itself, or a temporary copy beside the output (``near``) if training expanded the vocabulary of
    ``base`` or cast its weights.
    """
    structure = trained.structure
    lacks_rows = False
    if structure is not None:
        ids = Processor.from_directory(base).tokenizer.get_vocab()
        lacks_rows = any(token not in ids for token in added_tokens(structure))
    specs = StoredWeights.of(base).specs.values()
    has_dtype = all(spec.cast_to(trained.dtype) == spec for spec in specs)
    if has_dtype and not lacks_rows:
        yield base
        return
    with tempfile.TemporaryDirectory(prefix=f".{near.name}.base.", dir=near.parent) as scratch:
        copy = Path(scratch)
        if structure is None:
            cast_checkpoint(base, copy, dtype=trained.dtype, progress=progress)
        else:
            init, dtype = trained.vocab_init, trained.dtype
            expand_checkpoint(base, copy, init=init, structure=structure, dtype=dtype, link=True, progress=progress)
        yield copy
