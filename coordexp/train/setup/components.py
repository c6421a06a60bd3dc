"""Resolved configuration -> the parts of one run: model, vocabulary, data, criterion."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from peft import PeftModel
from transformers import PreTrainedModel

from coordexp.config.schema import RunConfig
from coordexp.coord_tokens.codec import NUM_BINS
from coordexp.coord_tokens.offset_adapter import install_coord_offset_adapter
from coordexp.data.split_data import SplitData
from coordexp.losses.criterion import Criterion
from coordexp.model.checkpoint.adapter import TrainedBase, name_base
from coordexp.model.loading import load
from coordexp.model.lora import apply_tuning
from coordexp.model.param_groups import ParamGroup, build_param_groups
from coordexp.model.processor import Processor
from coordexp.runs.folder import ExperimentFolder
from coordexp.train.forward import TermForward
from coordexp.train.setup.data import read_split
from coordexp.train.setup.encoding import Encoding, build_encoding
from coordexp.train.setup.weighted_terms import build_criterion


@dataclass(frozen=True)
class Components:
    """The parts of one run."""

    model: PreTrainedModel | PeftModel
    processor: Processor
    encoding: Encoding
    train: SplitData
    val: SplitData
    criterion: Criterion
    param_groups: list[ParamGroup]
    forward_terms: TermForward


def build_components(config: RunConfig) -> Components:
    """Load the prepared base, add adapters, read the data; equal seeds give equal parts."""
    criterion = build_criterion(config)
    train, val = read_split(config, "train"), read_split(config, "val")
    given, structure = config.model, config.data.structure
    loaded = load(
        str(ExperimentFolder.of(config).base(config)),
        dtype=given.dtype,
        structure=structure,
        attn_implementation=given.attn_implementation,
    )
    assert isinstance(loaded.model, PreTrainedModel)  # no adapter was asked for
    encoding = build_encoding(config, loaded.processor)
    vocab = encoding.vocab
    model = with_adapters(config, loaded.model, offset_ids=[*vocab.numbers.ids, *vocab.added_structure_ids])
    if isinstance(model, PeftModel):
        base = TrainedBase(
            given.path, given.revision, given.dtype, given.vocab_init, None if config.text_arm else structure
        )
        name_base(model, base, encoding.trained_with)
    return Components(
        model=model,
        processor=loaded.processor,
        encoding=encoding,
        train=train,
        val=val,
        criterion=criterion,
        param_groups=param_groups(config, model),
        forward_terms=TermForward(base=model, vocab=vocab, image_spec=encoding.image_spec),
    )


def with_adapters(
    config: RunConfig, model: PreTrainedModel, *, offset_ids: Sequence[int]
) -> PreTrainedModel | PeftModel:
    """Put on a model what the configuration trains: coord offsets, LoRA, DoRA or all weights.

    Offsets of ``dtype: auto`` are float32 on a model in half precision, and so are the optimizer's moments of them: a
    bfloat16 number forgets every update below 1/512 of it. ``offset_ids`` are those of all coord tokens, of which
    ``custom.coord_offset.ids`` get offsets, and of the added structure tokens behind them, which always do.
    """
    offset, lora = config.custom.coord_offset, config.training.lora
    if config.trains_offset:
        coords, markers = offset_ids[:NUM_BINS], offset_ids[NUM_BINS:]
        ids = [*(coords if offset.listed_ids is None else offset.listed_ids), *markers]
        is_half = offset.dtype == "auto" and model.dtype in (torch.bfloat16, torch.float16)
        dtype = "float32" if is_half else offset.dtype
        install_coord_offset_adapter(model, coord_ids=ids, tie_head=offset.tie_head, dtype=dtype)
    return apply_tuning(
        model,
        tuning=config.training.tuning,
        rank=lora.rank,
        alpha=lora.alpha,
        dropout=lora.dropout,
        vision=lora.vision,
        seed=config.experiment.seed,
    )


def param_groups(config: RunConfig, model: torch.nn.Module) -> list[ParamGroup]:
    """Return the optimizer's groups; a learning rate that has nothing to move is a ConfigError."""
    training, offset = config.training, config.custom.coord_offset
    return build_param_groups(
        model,
        optimizer=training.optimizer,
        learning_rate=training.learning_rate,
        vit_lr=training.vit_lr,
        aligner_lr=training.aligner_lr,
        weight_decay=training.weight_decay,
        embed_lr=offset.embed_lr,
        head_lr=offset.head_lr,
        offset_weight_decay=offset.weight_decay,
    )
