"""Write an adapter as stock PEFT: LoRA or DoRA, with the coord rows as ``trainable_token_indices``.

Our offsets are added to rows; PEFT's trainable tokens replace them. The exported rows are therefore
base row plus offset, and hold for the base they were made with. Stock PEFT rounds them to the dtype
of the model they are put on.
"""

from collections.abc import Sequence
from pathlib import Path

from safetensors.torch import load_file, save_file

from coordexp.coord_tokens.offset_adapter import ADAPTER_NAME
from coordexp.errors import CheckpointError
from coordexp.files import write_json
from coordexp.model.checkpoint.adapter import ADAPTER_CONFIG, ADAPTER_WEIGHTS, AdapterInfo, read_adapter
from coordexp.model.checkpoint.directory import JsonObject
from coordexp.model.checkpoint.rewrite import Progress, silent
from coordexp.model.checkpoint.stored_model import EMBEDDING, HEAD, StoredModel
from coordexp.model.expand import lacks_tokens
from coordexp.model.merge.delta import AdapterDelta, OffsetDelta
from coordexp.model.merge.merge import base_of, building_of, checked_output
from coordexp.model.merge.parity import Inputs, MergeReport, default_samples, logits_from_disk, write_report
from coordexp.model.processor import Processor

_DTYPE = "float32"
_DELTA_KEY = "base_model.model.{module}.token_adapter.trainable_tokens_delta"


def export_peft_tokens(
    adapter: str | Path,
    output: str | Path,
    base: str | Path | None = None,
    overwrite: bool = False,
    samples: Sequence[Inputs] | None = None,
    *,
    progress: Progress = silent,
) -> MergeReport:
    """Export a saved adapter for ``PeftModel.from_pretrained`` without coordexp.

    On a tied base one table can be expressed, so ``tie_head`` must be true; on an untied base there
    is one entry for the embedding and one for the head, whatever ``tie_head`` is.

    Stock PEFT needs a whole table and a copy of it at once, so the check takes twice the larger
    table in float32; everything else is streamed as in a merge.

    Args:
        adapter: directory with ``adapter_model.safetensors``.
        output: directory to write; it appears only if the export succeeds.
        base: the checkpoint the adapter was trained on, with its coord tokens; None reads it from
            ``adapter_config.json``, where it is often the one without them.
        overwrite: replace an ``output`` that exists.
        samples: model inputs to compare on; None for a generated picture with coord tokens.
        progress: called with the stage and how far it is.

    Returns:
        What was done, also stored as ``merge_report.json`` in ``output``.

    Raises:
        CheckpointError: if an input is wrong, ``output`` exists, PEFT cannot express the adapter, or
            the results do not agree.
        TokenizerError: if the adapter is for another vocabulary.
    """
    info = read_adapter(adapter)
    delta = AdapterDelta.read(info)
    if delta.offset is None:
        raise CheckpointError(f"{adapter}: has no coord offsets, so it is an adapter of stock PEFT as it is")
    source = base_of(info, base)
    target = checked_output(output, overwrite=overwrite, inputs=(source, info.directory), marker=ADAPTER_CONFIG)
    processor, stored = Processor.from_directory(source), StoredModel.of(source)
    _check_expressible(info, delta.offset, stored, processor)
    delta.check_fits(stored)
    samples = samples or default_samples(processor)
    with building_of(target) as building:
        _write(building, info, delta.offset, stored, base_name=None if base is None else str(base))
        before, after = (
            logits_from_disk(
                stored,
                samples,
                adapter=one,
                tokenizer=processor.tokenizer,
                progress=progress,
                stage=f"logits of the {name}",
            )
            for name, one in (("adapter", info), ("export", read_adapter(building)))
        )
        return write_report(
            building,
            before,
            after,
            dtype=_DTYPE,
            tie_word_embeddings=stored.tied,
            num_merged_layers=len(delta.linear),
            num_offset_rows=delta.num_offset_rows,
            format="peft-tokens",
        )


def _check_expressible(info: AdapterInfo, offset: OffsetDelta, base: StoredModel, processor: Processor) -> None:
    if base.tied and not offset.tie_head:
        raise CheckpointError(
            f"{info.directory}: was trained with tie_head: false on a model whose embedding and head are one table; "
            "PEFT's trainable tokens have one row for both, so only --format hf can express it"
        )
    if info.base.structure is None or lacks_tokens(processor.tokenizer, info.base.structure):
        raise CheckpointError(
            f"{base.weights.directory}: has no coord tokens yet, and PEFT replaces rows that are there; expand it "
            "first (coordexp expand-vocab) and give that as the base"
        )


def _write(output: Path, info: AdapterInfo, offset: OffsetDelta, base: StoredModel, *, base_name: str | None) -> None:
    names = [EMBEDDING] if base.tied else [EMBEDDING, HEAD]
    ids = offset.ids.tolist()
    kept = {key: tensor for key, tensor in load_file(info.weights).items() if ADAPTER_NAME not in key}
    rows = {
        _DELTA_KEY.format(module=name.removesuffix(".weight")): (
            base.weights.listed_rows(name, ids).float() + offset.tables[name].float()
        )
        for name in names
    }
    save_file(kept | rows, output / ADAPTER_WEIGHTS, metadata={"format": "pt"})
    layers = [name.removesuffix(".weight").rsplit(".", 1)[-1] for name in names]
    changes: JsonObject = {
        "modules_to_save": None,
        "auto_mapping": None,
        "trainable_token_indices": dict.fromkeys(layers, ids),
    }
    if base_name is not None:
        changes["base_model_name_or_path"] = base_name
    write_json(output / ADAPTER_CONFIG, info.config | changes, indent=2)
