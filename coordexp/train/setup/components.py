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

    model: PreTrainedModel | PeftModel  # with adapters on it; a PeftModel under LoRA and DoRA
    processor: Processor
    encoding: Encoding
    train: SplitData
    val: SplitData
    criterion: Criterion
    param_groups: list[ParamGroup]  # for the optimizer
    forward_terms: TermForward


def build_components(config: RunConfig) -> Components:
    """Load the prepared base, add adapters, read the data; equal seeds give equal parts."""
    criterion = build_criterion(config)
    train = read_split(config, "train")
    val = read_split(config, "val")
    settings = config.model
    structure = config.data.structure
    loaded = load(
        str(ExperimentFolder.of(config).base(config)),
        dtype=settings.dtype,
        structure=structure,
        attn_implementation=settings.attn_implementation,
    )
    assert isinstance(loaded.model, PreTrainedModel), "no adapter was asked for"
    encoding = build_encoding(config, loaded.processor)
    vocab = encoding.vocab
    model = with_adapters(config, loaded.model, offset_ids=[*vocab.numbers.ids, *vocab.added_structure_ids])
    if isinstance(model, PeftModel):
        trained_base = TrainedBase(
            settings.path,
            settings.revision,
            settings.dtype,
            settings.vocab_init,
            None if config.text_arm else structure,
        )
        name_base(model, trained_base, encoding.trained_with)
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

    Args:
        config: the run.
        model: the base.
        offset_ids: ids of all coord tokens, of which ``custom.coord_offset.ids`` get offsets, followed by the added
            structure tokens, which all get offsets.
    """
    offset = config.custom.coord_offset
    lora = config.training.lora
    if config.trains_offset:
        coord_ids = offset_ids[:NUM_BINS]
        structure_ids = offset_ids[NUM_BINS:]
        adapted_ids = coord_ids if offset.listed_ids is None else offset.listed_ids
        # A bfloat16 number forgets every update below 1/512 of it, so on a model in half precision ``auto`` means
        # float32 offsets. Their optimizer moments are then float32 too.
        is_half = model.dtype in (torch.bfloat16, torch.float16)
        dtype = "float32" if offset.dtype == "auto" and is_half else offset.dtype
        install_coord_offset_adapter(
            model, coord_ids=[*adapted_ids, *structure_ids], tie_head=offset.tie_head, dtype=dtype
        )
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
    """Return the optimizer's groups.

    Raises:
        ConfigError: if a learning rate is given for something that does not train.
    """
    training = config.training
    offset = config.custom.coord_offset
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
